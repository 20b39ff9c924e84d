//! The driver's functions, by the names under which a program looks them up.
//!
//! Only pointers are handled here; the work is [`State`](crate::state::State)'s. Handles are numbers that are never
//! dereferenced. Invariant: a pointer is written only where the call succeeds.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    ptr, slice,
};

use tokenmill_ptx_sim::Arguments;

use crate::state::{Outcome, code, describe, state};

/// The name of the simulated GPU: `Simulator::DEVICE_NAME` of `tokenmill-cuda-exec`, by which tools tell that times mean nothing.
const NAME: &CStr = c"simulated GPU";
/// Attributes that a program asks for, as the driver's header numbers them.
const MULTIPROCESSOR_COUNT: c_int = 16;
const CAPABILITY_MAJOR: c_int = 75;
const CAPABILITY_MINOR: c_int = 76;
/// The function attribute that allows more dynamic shared memory.
const MAX_DYNAMIC_SHARED_BYTES: c_int = 8;

fn status(outcome: Outcome) -> c_int {
    outcome.err().unwrap_or(code::SUCCESS)
}

/// Writes what a call gives.
///
/// # Safety
/// `to` is valid for a write.
unsafe fn give<T, U>(to: *mut T, value: Result<U, i32>, convert: fn(U) -> T) -> c_int {
    match value {
        Ok(value) => {
            // SAFETY: the caller says so.
            unsafe { to.write(convert(value)) };
            code::SUCCESS
        }
        Err(code) => code,
    }
}

fn pointer(handle: u64) -> *mut c_void {
    ptr::without_provenance_mut(handle as usize)
}

/// Pinned memory comes in pages.
fn pinned_layout(n_bytes: usize) -> Result<Layout, i32> {
    Layout::from_size_align(n_bytes.max(1), 4096).map_err(|_| code::INVALID_VALUE)
}

/// Writes an exported function: its name, its arguments, and what it does. All of them are called by a program that keeps the
/// driver's contract: pointers are valid for what the function reads and writes.
macro_rules! exported {
    ($($name:ident($($argument:ident: $ty:ty),*) $body:block)*) => {
        $(
            // SAFETY: the names are the driver's, and this library stands in its place.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $ty),*) -> c_int $body
        )*
    };
}

exported! {
    cuInit(_flags: c_uint) {
        if state().machine.n_devices > 0 { code::SUCCESS } else { code::NO_DEVICE }
    }

    cuDriverGetVersion(version: *mut c_int) {
        // SAFETY: the caller's pointer.
        unsafe { give(version, Ok(state().machine.cuda_version), |version| version) }
    }

    cuDeviceGetCount(count: *mut c_int) {
        // SAFETY: the caller's pointer.
        unsafe { give(count, Ok(state().machine.n_devices), |count| count) }
    }

    cuDeviceGet(device: *mut c_int, ordinal: c_int) {
        let is_there = (0..state().machine.n_devices).contains(&ordinal);
        let found = if is_there { Ok(ordinal) } else { Err(code::INVALID_DEVICE) };
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

    cuDeviceTotalMem_v2(n_bytes: *mut usize, _device: c_int) {
        // SAFETY: the caller's pointer.
        unsafe { give(n_bytes, Ok(state().machine.total_bytes), |n| n as usize) }
    }

    cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, _device: c_int) {
        let (major, minor) = state().machine.capability;
        let found = match attribute {
            MULTIPROCESSOR_COUNT => Ok(108),
            CAPABILITY_MAJOR => Ok(major),
            CAPABILITY_MINOR => Ok(minor),
            _ => Err(code::INVALID_VALUE),
        };
        // SAFETY: the caller's pointer.
        unsafe { give(value, found, |value| value) }
    }

    cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int) {
        // SAFETY: the caller's pointer.
        unsafe { give(context, Ok(device as u64 + 1), pointer) }
    }

    cuDevicePrimaryCtxRelease_v2(_device: c_int) {
        code::SUCCESS
    }

    cuCtxSetCurrent(_context: *mut c_void) {
        status(state().check())
    }

    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let info = state().memory_info();
        // SAFETY: the caller's pointers.
        unsafe { free.write(info.0) };
        // SAFETY: the caller's pointers.
        unsafe { total.write(info.1) };
        code::SUCCESS
    }

    cuMemAlloc_v2(address: *mut u64, n_bytes: usize) {
        // SAFETY: the caller's pointer.
        unsafe { give(address, state().alloc(n_bytes), |address| address) }
    }

    cuMemFree_v2(address: u64) {
        status(state().free(address))
    }

    cuMemHostAlloc(memory: *mut *mut c_void, n_bytes: usize, _flags: c_uint) {
        let layout = match pinned_layout(n_bytes) {
            Ok(layout) => layout,
            Err(code) => return code,
        };
        // SAFETY: the layout has a size.
        let allocated = unsafe { alloc_zeroed(layout) };
        if allocated.is_null() {
            return code::OUT_OF_MEMORY;
        }
        state().note_pinned(allocated as u64, n_bytes);
        // SAFETY: the caller's pointer.
        unsafe { memory.write(allocated.cast()) };
        code::SUCCESS
    }

    cuMemFreeHost(memory: *mut c_void) {
        let Some(n_bytes) = state().forget_pinned(memory as u64) else {
            return code::INVALID_VALUE;
        };
        match pinned_layout(n_bytes) {
            // SAFETY: the memory came from `cuMemHostAlloc` with this size.
            Ok(layout) => unsafe { dealloc(memory.cast(), layout) },
            Err(code) => return code,
        }
        code::SUCCESS
    }

    cuModuleLoadData(module: *mut *mut c_void, image: *const c_void) {
        // SAFETY: PTX ends with a zero byte.
        let text = unsafe { CStr::from_ptr(image.cast()) };
        let loaded = match text.to_str() {
            Ok(text) => state().load_module(text),
            Err(_) => Err(code::INVALID_PTX),
        };
        // SAFETY: the caller's pointer.
        unsafe { give(module, loaded, pointer) }
    }

    cuModuleGetFunction(function: *mut *mut c_void, module: *mut c_void, name: *const c_char) {
        // SAFETY: names end with a zero byte.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        // SAFETY: the caller's pointer.
        unsafe { give(function, state().function(module as u64, &name), pointer) }
    }

    cuFuncSetAttribute(function: *mut c_void, attribute: c_int, value: c_int) {
        match attribute {
            MAX_DYNAMIC_SHARED_BYTES => status(state().allow_shared_bytes(function as u64, value as u32)),
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
        let mut state = state();
        let mut arguments = Arguments::new();
        match state.param_bytes(function as u64) {
            Ok(sizes) => {
                for (index, &n_bytes) in sizes.iter().enumerate() {
                    // SAFETY: a kernel's parameters are as many as it declares.
                    let param = unsafe { *params.add(index) };
                    // SAFETY: a parameter points to a value of the declared size.
                    let value = unsafe { slice::from_raw_parts(param.cast::<u8>(), n_bytes) };
                    arguments = arguments.bytes(value);
                }
            }
            Err(code) => return code,
        }
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        status(state.launch(stream as u64, function as u64, grid, block, shared_bytes, arguments))
    }

    cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, n_bytes: usize, stream: *mut c_void) {
        // SAFETY: the caller's memory holds `n_bytes`.
        let bytes = unsafe { slice::from_raw_parts(from.cast::<u8>(), n_bytes) };
        status(state().upload(stream as u64, bytes, to))
    }

    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, n_bytes: usize, stream: *mut c_void) {
        // SAFETY: the caller's memory holds `n_bytes`.
        let bytes = unsafe { slice::from_raw_parts_mut(to.cast::<u8>(), n_bytes) };
        status(state().download(stream as u64, from, bytes))
    }

    cuMemcpyDtoDAsync_v2(to: u64, from: u64, n_bytes: usize, stream: *mut c_void) {
        status(state().copy(stream as u64, from, to, n_bytes))
    }

    cuMemsetD8Async(address: u64, byte: u8, n_bytes: usize, stream: *mut c_void) {
        status(state().fill(stream as u64, address, byte, n_bytes))
    }

    cuStreamCreate(stream: *mut *mut c_void, _flags: c_uint) {
        let handle = state().handle();
        // SAFETY: the caller's pointer.
        unsafe { give(stream, Ok(handle), pointer) }
    }

    cuStreamDestroy_v2(_stream: *mut c_void) {
        code::SUCCESS
    }

    cuStreamWaitEvent(_stream: *mut c_void, event: *mut c_void, _flags: c_uint) {
        status(state().wait(event as u64))
    }

    cuStreamBeginCapture_v2(stream: *mut c_void, _mode: c_int) {
        status(state().begin_capture(stream as u64))
    }

    cuStreamEndCapture(stream: *mut c_void, graph: *mut *mut c_void) {
        // SAFETY: the caller's pointer.
        unsafe { give(graph, state().end_capture(stream as u64), pointer) }
    }

    cuGraphInstantiateWithFlags(executable: *mut *mut c_void, graph: *mut c_void, _flags: u64) {
        // SAFETY: the caller's pointer.
        unsafe { give(executable, state().instantiate(graph as u64), pointer) }
    }

    cuGraphDestroy(graph: *mut c_void) {
        status(state().destroy_graph(graph as u64))
    }

    cuGraphExecDestroy(graph: *mut c_void) {
        status(state().destroy_graph(graph as u64))
    }

    cuGraphLaunch(graph: *mut c_void, _stream: *mut c_void) {
        status(state().launch_graph(graph as u64))
    }

    cuEventCreate(event: *mut *mut c_void, _flags: c_uint) {
        let handle = state().create_event();
        // SAFETY: the caller's pointer.
        unsafe { give(event, Ok(handle), pointer) }
    }

    cuEventDestroy_v2(event: *mut c_void) {
        status(state().destroy_event(event as u64))
    }

    cuEventRecord(event: *mut c_void, _stream: *mut c_void) {
        status(state().record(event as u64))
    }

    cuEventSynchronize(event: *mut c_void) {
        status(state().wait(event as u64))
    }

    cuEventElapsedTime(ms: *mut f32, start: *mut c_void, end: *mut c_void) {
        // SAFETY: the caller's pointer.
        unsafe { give(ms, state().elapsed_ms(start as u64, end as u64), |ms| ms) }
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
