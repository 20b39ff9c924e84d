//! The driver's functions, by the names under which a program looks them up.
//!
//! Only pointers are handled here; the work is [`State`](crate::gpu::State)'s. Handles are numbers that are never dereferenced.
//! Invariants: a pointer is written only if the call succeeds; a call that needs a context fails without a current one on the
//! calling thread, and does not find another context's objects.

mod copy_2d;
mod launch_record;
mod nccl;
#[cfg(test)]
mod tests;

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    ptr, slice,
};

use tokenmill_cuda_exec::Api;
use tokenmill_ptx_sim::Arguments;

use crate::{
    code::{self, Outcome, describe},
    context::State,
    gpu::{self, in_context},
    host_memory::HostMemory,
};

pub(crate) use self::nccl::nccl_functions;
pub use self::nccl::nccl_symbol;
use self::{copy_2d::Copy2d, launch_record::LaunchRecord};

/// The name of a simulated GPU, as C has it.
const NAME: &CStr = c"simulated GPU";
/// Attributes that a program queries, as the driver's header numbers them.
const MULTIPROCESSOR_COUNT: c_int = 16;
const CAPABILITY_MAJOR: c_int = 75;
const MULTIPROCESSOR_SHARED_BYTES: c_int = 81;
const CAPABILITY_MINOR: c_int = 76;
/// Options of a load, each followed by that of its size.
const INFO_LOG: c_int = 3;
const ERROR_LOG: c_int = 5;
/// An event without times.
const DISABLE_TIMING: c_uint = 2;
/// The function attribute that allows more dynamic shared memory.
const MAX_DYNAMIC_SHARED_BYTES: c_int = 8;
/// Attribute for a kernel's preferred shared memory carveout.
const PREFERRED_CARVEOUT: c_int = 9;

fn status(outcome: Outcome) -> c_int {
    outcome.err().unwrap_or(code::SUCCESS)
}

/// Writes the result of a call.
///
/// # Safety
/// `to` is valid for a write.
unsafe fn give<T, U>(to: *mut T, value: Outcome<U>, convert: fn(U) -> T) -> c_int {
    match value {
        Ok(value) => {
            // SAFETY: the caller guarantees it.
            unsafe { to.write(convert(value)) };
            code::SUCCESS
        }
        Err(code) => code,
    }
}

fn pointer(handle: u64) -> *mut c_void {
    ptr::without_provenance_mut(handle as usize)
}

/// Returns the functions for callers in this process.
pub(crate) fn functions() -> Api {
    // SAFETY: the functions keep the contract of the driver's.
    unsafe { Api::from_symbols(&symbol) }.expect("every function is here")
}

/// Returns the same functions for a driver of CUDA 13.0, whatever the environment says.
pub(crate) fn functions_for_cuda_13() -> Api {
    unsafe extern "C" fn version(version: *mut c_int) -> c_int {
        // SAFETY: the caller passes a valid pointer.
        unsafe { version.write(13_000) };
        code::SUCCESS
    }
    let symbol = |name: &str| match name {
        "cuDriverGetVersion" => Some(version as unsafe extern "C" fn(*mut c_int) -> c_int as *const c_void),
        _ => symbol(name),
    };
    // SAFETY: the functions keep the driver's contract.
    unsafe { Api::from_symbols(&symbol) }.expect("every function is here")
}

/// Writes a text to the log of a load's options, as far as it fits.
///
/// # Safety
/// The arrays have `n_options` elements, and a log is valid for as many bytes as the next option says.
unsafe fn write_log(
    log: c_int,
    text: &str,
    n_options: c_uint,
    options: *mut c_int,
    values: *mut *mut c_void,
) {
    let value_of = |wanted: c_int| {
        (0..n_options as usize).find_map(|index| {
            // SAFETY: the caller guarantees this number of options.
            let option = unsafe { *options.add(index) };
            // SAFETY: the caller guarantees this number of values.
            (option == wanted).then(|| unsafe { *values.add(index) })
        })
    };
    if let (Some(to), Some(n_bytes)) = (value_of(log), value_of(log + 1)) {
        let n_bytes = text.len().min((n_bytes as usize).saturating_sub(1));
        let to = to.cast::<u8>();
        // SAFETY: the caller's log has more bytes.
        unsafe { to.copy_from_nonoverlapping(text.as_ptr(), n_bytes) };
        // SAFETY: as above.
        unsafe { to.add(n_bytes).write(0) };
    }
}

/// Queues a launch.
///
/// # Safety
/// The parameters are as many as the kernel declares, each with a value of the declared size; the record's attributes exist.
unsafe fn launch(
    state: &mut State,
    function: *mut c_void,
    record: &LaunchRecord,
    params: *mut *mut c_void,
) -> Outcome {
    let mut arguments = Arguments::new();
    for (index, &n_bytes) in state.context.param_bytes(function as u64)?.iter().enumerate() {
        // SAFETY: the caller guarantees this number of parameters.
        let param = unsafe { *params.add(index) };
        // SAFETY: the caller says that it has this size.
        let value = unsafe { slice::from_raw_parts(param.cast::<u8>(), n_bytes) };
        arguments = arguments.bytes(value);
    }
    // SAFETY: the caller says that they are there.
    let is_early = unsafe { record.is_early() }?;
    let (config, shared_bytes) = record.config();
    let stream = record.stream();
    state.launch(stream, function as u64, config, shared_bytes, arguments, is_early)
}

/// Writes exported functions (their names, arguments and bodies) and [`symbol`]. All callers keep the driver's contract:
/// pointers are valid for the function's reads and writes.
macro_rules! exported {
    ($($name:ident($($argument:ident: $ty:ty),*) $body:block)*) => {
        $(
            // SAFETY: the names are the driver's, and this library stands in its place.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $ty),*) -> c_int $body
        )*

        /// Returns the address of the function with this name, as the loader of shared libraries gives it.
        pub fn symbol(name: &str) -> Option<*const c_void> {
            match name {
                $(stringify!($name) => {
                    Some($name as unsafe extern "C" fn($($ty),*) -> c_int as *const c_void)
                })*
                _ => None,
            }
        }
    };
}

exported! {
    cuInit(_flags: c_uint) {
        if gpu::n_devices() > 0 { code::SUCCESS } else { code::NO_DEVICE }
    }

    cuDriverGetVersion(version: *mut c_int) {
        // SAFETY: the caller's pointer.
        unsafe { give(version, Ok(gpu::cuda_version()), |version| version) }
    }

    cuDeviceGetCount(count: *mut c_int) {
        // SAFETY: the caller's pointer.
        unsafe { give(count, Ok(gpu::n_devices()), |count| count) }
    }

    cuDeviceGet(device: *mut c_int, ordinal: c_int) {
        let found = gpu::gpu(ordinal).map(|_| ordinal);
        // SAFETY: the caller's pointer.
        unsafe { give(device, found, |device| device) }
    }

    cuDeviceGetName(name: *mut c_char, len: c_int, _device: c_int) {
        let bytes = NAME.to_bytes_with_nul();
        if (len as usize) < bytes.len() {
            return code::INVALID_VALUE;
        }
        // SAFETY: the caller's buffer has `len` bytes.
        unsafe { name.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len()) };
        code::SUCCESS
    }

    cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) {
        let found = gpu::gpu(device).map(|_| u128::from(device as u32) + 1);
        // SAFETY: the caller's pointer.
        unsafe { give(uuid, found, u128::to_be_bytes) }
    }

    cuDeviceTotalMem_v2(n_bytes: *mut usize, device: c_int) {
        let found = gpu::gpu(device).map(|gpu| gpu.spec.total_bytes);
        // SAFETY: the caller's pointer.
        unsafe { give(n_bytes, found, |n| n as usize) }
    }

    cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) {
        let found = gpu::gpu(device).and_then(|gpu| match attribute {
            MULTIPROCESSOR_COUNT => Ok(gpu.spec.card().n_multiprocessors as c_int),
            MULTIPROCESSOR_SHARED_BYTES => Ok(gpu.spec.card().shared_bytes as c_int),
            CAPABILITY_MAJOR => Ok(gpu.spec.capability.0),
            CAPABILITY_MINOR => Ok(gpu.spec.capability.1),
            _ => Err(code::INVALID_VALUE),
        });
        // SAFETY: the caller's pointer.
        unsafe { give(value, found, |value| value) }
    }

    cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int) {
        // SAFETY: the caller's pointer.
        unsafe { give(context, gpu::retain(device), pointer) }
    }

    cuDevicePrimaryCtxRelease_v2(device: c_int) {
        status(gpu::release(device))
    }

    cuCtxSetCurrent(context: *mut c_void) {
        status(gpu::set_current(context as u64))
    }

    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        match in_context(|state| Ok(state.context.memory_info())) {
            Ok(info) => {
                // SAFETY: the caller's pointers.
                unsafe { free.write(info.0) };
                // SAFETY: the caller's pointers.
                unsafe { total.write(info.1) };
                code::SUCCESS
            }
            Err(code) => code,
        }
    }

    cuMemAlloc_v2(address: *mut u64, n_bytes: usize) {
        // SAFETY: the caller's pointer.
        unsafe { give(address, in_context(|state| state.context.alloc(n_bytes)), |address| address) }
    }

    cuMemFree_v2(address: u64) {
        status(in_context(|state| state.free(address)))
    }

    cuMemHostAlloc(memory: *mut *mut c_void, n_bytes: usize, _flags: c_uint) {
        let allocated = in_context(|state| {
            let memory = HostMemory::alloc(n_bytes)?;
            state.context.keep_pinned(memory).inspect_err(|_| memory.free())?;
            Ok(memory.address())
        });
        let convert = |address| ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: the caller's pointer.
        unsafe { give(memory, allocated, convert) }
    }

    cuMemFreeHost(memory: *mut c_void) {
        let forgotten = in_context(|state| state.context.forget_pinned(memory as u64));
        status(forgotten.map(HostMemory::free))
    }

    cuCtxSynchronize() {
        status(in_context(State::synchronize_all))
    }

    cuModuleLoadDataEx(
        module: *mut *mut c_void,
        image: *const c_void,
        n_options: c_uint,
        options: *mut c_int,
        values: *mut *mut c_void
    ) {
        // SAFETY: PTX ends with a zero byte, and so does the stand-in for a cubin.
        let image = unsafe { CStr::from_ptr(image.cast()) }.to_bytes();
        let loaded = in_context(|state| Ok(state.context.load_module(image)));
        let (outcome, said) = match loaded {
            Ok(loaded) => loaded,
            Err(code) => (Err(code), String::new()),
        };
        // SAFETY: the caller's arrays have `n_options` elements, and its logs the sizes that they say.
        unsafe { write_log(if outcome.is_ok() { INFO_LOG } else { ERROR_LOG }, &said, n_options, options, values) };
        // SAFETY: the caller's pointer.
        unsafe { give(module, outcome, pointer) }
    }

    cuModuleGetFunction(function: *mut *mut c_void, module: *mut c_void, name: *const c_char) {
        // SAFETY: names end with a zero byte.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        // SAFETY: the caller's pointer.
        unsafe { give(function, in_context(|state| state.context.function(module as u64, &name)), pointer) }
    }

    cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: *mut c_void) {
        let found = in_context(|state| state.context.function_attribute(function as u64, attribute));
        // SAFETY: the caller's pointer.
        unsafe { give(value, found, |value| value) }
    }

    cuOccupancyMaxActiveBlocksPerMultiprocessor(
        n_blocks: *mut c_int,
        function: *mut c_void,
        n_threads: c_int,
        shared_bytes: usize
    ) {
        let found = in_context(|state| {
            state.context.resident_blocks_of(function as u64, n_threads, shared_bytes)
        });
        // SAFETY: the caller's pointer.
        unsafe { give(n_blocks, found, |n_blocks| n_blocks) }
    }

    cuFuncSetAttribute(function: *mut c_void, attribute: c_int, value: c_int) {
        match attribute {
            MAX_DYNAMIC_SHARED_BYTES => status(in_context(|state| {
                state.context.allow_shared_bytes(function as u64, value)
            })),
            PREFERRED_CARVEOUT => status(in_context(|state| {
                state.context.prefer_carveout(function as u64, value)
            })),
            _ => code::INVALID_VALUE,
        }
    }

    cuLaunchKernel(
        function: *mut c_void,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        stream: *mut c_void,
        params: *mut *mut c_void,
        _extra: *mut *mut c_void
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let record = LaunchRecord::plain(grid, block, shared_bytes, stream);
        // SAFETY: the caller's parameters are those of the kernel.
        status(in_context(|state| unsafe { launch(state, function, &record, params) }))
    }

    cuLaunchKernelEx(
        record: *const LaunchRecord,
        function: *mut c_void,
        params: *mut *mut c_void,
        _extra: *mut *mut c_void
    ) {
        // SAFETY: the caller's pointer.
        let record = unsafe { *record };
        // SAFETY: the caller's parameters are those of the kernel.
        status(in_context(|state| unsafe { launch(state, function, &record, params) }))
    }

    cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, n_bytes: usize, stream: *mut c_void) {
        // SAFETY: the caller's memory holds `n_bytes` until the copy is done.
        let from = unsafe { HostMemory::of_caller(from, n_bytes) };
        status(in_context(|state| state.upload(stream as u64, from, to)))
    }

    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, n_bytes: usize, stream: *mut c_void) {
        // SAFETY: the caller's memory holds `n_bytes` until the copy is done.
        let to = unsafe { HostMemory::of_caller(to, n_bytes) };
        status(in_context(|state| state.download(stream as u64, from, to)))
    }

    cuMemcpyDtoDAsync_v2(to: u64, from: u64, n_bytes: usize, stream: *mut c_void) {
        status(in_context(|state| state.context.copy(stream as u64, from, to, n_bytes)))
    }

    cuMemcpy2DAsync_v2(copy: *const Copy2d, stream: *mut c_void) {
        // SAFETY: the caller's pointer.
        let copy = unsafe { *copy };
        // SAFETY: a side on the host has memory for its rows until the copy is done.
        match unsafe { copy.rows() } {
            Ok(rows) => status(in_context(|state| state.copy_rows(stream as u64, rows))),
            Err(code) => code,
        }
    }

    cuMemsetD8Async(address: u64, byte: u8, n_bytes: usize, stream: *mut c_void) {
        status(in_context(|state| state.context.fill(stream as u64, address, byte, n_bytes)))
    }

    cuStreamCreate(stream: *mut *mut c_void, _flags: c_uint) {
        // SAFETY: the caller's pointer.
        unsafe { give(stream, in_context(|state| state.context.create_stream()), pointer) }
    }

    cuStreamDestroy_v2(stream: *mut c_void) {
        status(in_context(|state| state.destroy_stream(stream as u64)))
    }

    cuStreamWaitEvent(stream: *mut c_void, event: *mut c_void, _flags: c_uint) {
        status(in_context(|state| state.context.wait(stream as u64, event as u64)))
    }

    cuStreamBeginCapture_v2(stream: *mut c_void, _mode: c_int) {
        status(in_context(|state| state.begin_capture(stream as u64)))
    }

    cuStreamEndCapture(stream: *mut c_void, graph: *mut *mut c_void) {
        // SAFETY: the caller's pointer.
        unsafe { give(graph, in_context(|state| state.end_capture(stream as u64)), pointer) }
    }

    cuGraphInstantiateWithFlags(executable: *mut *mut c_void, graph: *mut c_void, _flags: u64) {
        // SAFETY: the caller's pointer.
        unsafe { give(executable, in_context(|state| state.context.instantiate(graph as u64)), pointer) }
    }

    cuGraphDestroy(graph: *mut c_void) {
        status(in_context(|state| state.context.destroy_graph(graph as u64)))
    }

    cuGraphExecDestroy(graph: *mut c_void) {
        status(in_context(|state| state.context.destroy_graph(graph as u64)))
    }

    cuGraphLaunch(graph: *mut c_void, stream: *mut c_void) {
        status(in_context(|state| state.launch_graph(graph as u64, stream as u64)))
    }

    cuEventCreate(event: *mut *mut c_void, flags: c_uint) {
        let has_time = flags & DISABLE_TIMING == 0;
        // SAFETY: the caller's pointer.
        unsafe { give(event, in_context(|state| state.context.create_event(has_time)), pointer) }
    }

    cuEventDestroy_v2(event: *mut c_void) {
        status(in_context(|state| state.context.destroy_event(event as u64)))
    }

    cuEventRecord(event: *mut c_void, stream: *mut c_void) {
        status(in_context(|state| state.record(event as u64, stream as u64)))
    }

    cuEventSynchronize(event: *mut c_void) {
        status(in_context(|state| state.synchronize(event as u64)))
    }

    cuEventQuery(event: *mut c_void) {
        status(in_context(|state| state.query(event as u64)))
    }

    cuEventElapsedTime(ms: *mut f32, start: *mut c_void, end: *mut c_void) {
        // SAFETY: the caller's pointer.
        unsafe { give(ms, in_context(|state| state.context.elapsed_ms(start as u64, end as u64)), |ms| ms) }
    }

    cuGetErrorName(error: c_int, name: *mut *const c_char) {
        let found = describe(error).map(|(name, _)| name.as_ptr()).ok_or(code::INVALID_VALUE);
        // SAFETY: the caller's pointer.
        unsafe { give(name, found, |name| name) }
    }

    cuGetErrorString(error: c_int, text: *mut *const c_char) {
        let found = describe(error).map(|(_, text)| text.as_ptr()).ok_or(code::INVALID_VALUE);
        // SAFETY: the caller's pointer.
        unsafe { give(text, found, |text| text) }
    }
}
