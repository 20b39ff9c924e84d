//! [`CudaDriver`]: the driver seam over the NVIDIA driver, loaded at run time.
//!
//! Separate so that nothing else calls it. Invariants: no symbol of the driver is looked up before its library was found,
//! since the binding panics otherwise; the primary context is current on the calling thread in every call; an error after
//! which the context is unusable is remembered, and no call is made any more.

use std::{ffi::CString, ptr::NonNull};

use cudarc::driver::{
    result::{self, DriverError},
    sys,
};

use super::{Args, DeviceInfo, Driver, Handle, LaunchShape, NEEDED_CAPABILITY, NEEDED_CUDA, Poison, Stream};
use crate::{CudaExecError, error::Result};

/// A GPU of the NVIDIA driver.
#[derive(Debug)]
pub(super) struct CudaDriver {
    info: DeviceInfo,
    device: sys::CUdevice,
    context: Handle,
    streams: [Handle; 2],
    poison: Poison,
}

/// Whether the driver's library can be loaded.
pub(super) fn is_present() -> bool {
    // SAFETY: this only tries to open a library by its name.
    unsafe { sys::is_culib_present() }
}

/// Starts the driver and counts its GPUs.
pub(super) fn count_devices() -> Result<usize> {
    if !is_present() {
        return Err(CudaExecError::NoDriver);
    }
    let no_device = |error: DriverError| CudaExecError::NoDevice {
        reason: describe(error),
    };
    result::init().map_err(no_device)?;
    match result::device::get_count().map_err(no_device)? {
        0 => Err(CudaExecError::NoDevice {
            reason: "it counts none".to_owned(),
        }),
        n_devices => Ok(n_devices as usize),
    }
}

/// The CUDA version that the driver supports; call after [`count_devices`].
pub(super) fn cuda_version() -> Result<(u32, u32)> {
    let mut version = 0;
    // SAFETY: the library is loaded, and the pointer is to a local.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }
        .result()
        .map_err(|error| failed("asking for the driver's version", error))?;
    Ok((version as u32 / 1000, version as u32 % 1000 / 10))
}

/// Describes a GPU without opening it; call after [`count_devices`].
pub(super) fn describe_device(ordinal: usize) -> Result<(sys::CUdevice, DeviceInfo)> {
    use sys::CUdevice_attribute as Attribute;
    let ask = |error| failed("describing the GPU", error);
    let device = result::device::get(ordinal as i32).map_err(ask)?;
    let attribute = |attribute| {
        // SAFETY: the device was returned by the driver.
        unsafe { result::device::get_attribute(device, attribute) }
            .map(|value| value as u32)
            .map_err(ask)
    };
    let info = DeviceInfo {
        name: result::device::get_name(device).map_err(ask)?,
        capability: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        n_multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        // SAFETY: the device was returned by the driver.
        total_bytes: unsafe { result::device::total_mem(device) }.map_err(ask)? as u64,
        cuda_version: cuda_version()?,
    };
    Ok((device, info))
}

/// Says why a GPU cannot run the kernels, if it cannot.
pub(super) fn check_device(info: &DeviceInfo) -> Result<()> {
    if info.capability < NEEDED_CAPABILITY {
        return Err(CudaExecError::ComputeCapability {
            name: info.name.clone(),
            found: info.capability,
        });
    }
    if info.cuda_version < NEEDED_CUDA {
        return Err(CudaExecError::DriverTooOld {
            found: info.cuda_version,
            needed: NEEDED_CUDA,
            reason: "its version is lower".to_owned(),
        });
    }
    Ok(())
}

/// Bytes free on a GPU, which is opened for the question if it is not open yet.
pub(super) fn free_bytes_of(ordinal: usize) -> Result<u64> {
    CudaDriver::open(ordinal)?.free_bytes()
}

impl CudaDriver {
    pub(super) fn open(ordinal: usize) -> Result<Self> {
        let n_devices = count_devices()?;
        if ordinal >= n_devices {
            return Err(CudaExecError::NoSuchDevice { ordinal, n_devices });
        }
        let (device, info) = describe_device(ordinal)?;
        check_device(&info)?;
        let open = |error| failed("opening the GPU", error);
        // SAFETY: the device was returned by the driver; the context is released when this value is dropped.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(open)?;
        let mut driver = Self {
            info,
            device,
            context: context as Handle,
            streams: [0; 2],
            poison: Poison::default(),
        };
        driver.enter("opening the GPU")?;
        for stream in Stream::ALL {
            let created = result::stream::create(result::stream::StreamKind::NonBlocking).map_err(open)?;
            driver.streams[stream as usize] = created as Handle;
        }
        Ok(driver)
    }

    fn stream(&self, stream: Stream) -> sys::CUstream {
        self.streams[stream as usize] as sys::CUstream
    }

    /// Makes the context current on this thread.
    fn enter(&self, operation: &'static str) -> Result<()> {
        self.poison.check()?;
        // SAFETY: the context is retained for as long as this value lives.
        let entered = unsafe { result::ctx::set_current(self.context as sys::CUcontext) };
        self.check(operation, entered)
    }

    fn check<T>(&self, operation: &'static str, outcome: std::result::Result<T, DriverError>) -> Result<T> {
        outcome.map_err(|error| {
            if is_sticky(error) {
                self.poison.set(operation, describe(error))
            } else {
                failed(operation, error)
            }
        })
    }
}

impl Drop for CudaDriver {
    fn drop(&mut self) {
        // Errors during exit cannot be reported: the process ends or the device is lost.
        if self.enter("closing the GPU").is_ok() {
            for &stream in self.streams.iter().filter(|&&stream| stream != 0) {
                // SAFETY: the stream was created by this value and is destroyed once.
                let _ = unsafe { result::stream::destroy(stream as sys::CUstream) };
            }
        }
        // SAFETY: the context was retained once in `open`.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// Errors after which a context does nothing any more.
fn is_sticky(error: DriverError) -> bool {
    use sys::CUresult as Code;
    matches!(
        error.0,
        Code::CUDA_ERROR_ILLEGAL_ADDRESS
            | Code::CUDA_ERROR_MISALIGNED_ADDRESS
            | Code::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | Code::CUDA_ERROR_INVALID_PC
            | Code::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | Code::CUDA_ERROR_HARDWARE_STACK_ERROR
            | Code::CUDA_ERROR_LAUNCH_FAILED
            | Code::CUDA_ERROR_LAUNCH_TIMEOUT
            | Code::CUDA_ERROR_ASSERT
            | Code::CUDA_ERROR_ECC_UNCORRECTABLE
            | Code::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | Code::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | Code::CUDA_ERROR_DEINITIALIZED
            | Code::CUDA_ERROR_EXTERNAL_DEVICE
            | Code::CUDA_ERROR_UNKNOWN
    )
}

fn failed(operation: &'static str, error: DriverError) -> CudaExecError {
    CudaExecError::Failed {
        operation,
        reason: describe(error),
    }
}

fn describe(error: DriverError) -> String {
    match (error.error_name(), error.error_string()) {
        (Ok(name), Ok(text)) => format!("{}: {}", name.to_string_lossy(), text.to_string_lossy()),
        _ => format!("error {}", error.0 as u32),
    }
}

impl Driver for CudaDriver {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn free_bytes(&self) -> Result<u64> {
        self.enter("asking for free memory")?;
        let (free, _) = self.check("asking for free memory", result::mem_get_info())?;
        Ok(free as u64)
    }

    fn allocates_apart(&self) -> bool {
        false
    }

    fn alloc(&self, n_bytes: usize) -> Result<u64> {
        self.enter("allocating")?;
        // SAFETY: the memory is plain and is written before it is read.
        match unsafe { result::malloc_sync(n_bytes) } {
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => Err(CudaExecError::OutOfMemory {
                purpose: "a buffer",
                needed_bytes: n_bytes as u64,
                free_bytes: self.free_bytes()?,
            }),
            outcome => self.check("allocating", outcome),
        }
    }

    fn free(&self, address: u64) {
        if self.enter("freeing").is_ok() {
            // SAFETY: the address came from `alloc` and is freed once; the driver waits for work that uses it.
            let _ = unsafe { result::free_sync(address) };
        }
    }

    fn alloc_pinned(&self, n_bytes: usize) -> Result<NonNull<u8>> {
        self.enter("pinning memory")?;
        // SAFETY: the memory is zeroed below before anyone reads it.
        let memory = match unsafe { result::malloc_host(n_bytes, 0) } {
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                return Err(CudaExecError::OutOfMemory {
                    purpose: "pinned host memory",
                    needed_bytes: n_bytes as u64,
                    free_bytes: 0,
                });
            }
            outcome => self.check("pinning memory", outcome)?,
        };
        // SAFETY: the driver gave `n_bytes` at this address.
        unsafe { std::ptr::write_bytes(memory.cast::<u8>(), 0, n_bytes) };
        NonNull::new(memory.cast()).ok_or(CudaExecError::Failed {
            operation: "pinning memory",
            reason: "the driver gave no address".to_owned(),
        })
    }

    unsafe fn free_pinned(&self, memory: NonNull<u8>, _: usize) {
        if self.enter("freeing pinned memory").is_ok() {
            // SAFETY: the caller gives back what `alloc_pinned` gave.
            let _ = unsafe { result::free_host(memory.as_ptr().cast()) };
        }
    }

    fn load_module(&self, name: &'static str, ptx: &str) -> Result<Handle> {
        self.enter("loading kernels")?;
        let text = CString::new(ptx).map_err(|_| CudaExecError::Failed {
            operation: "loading kernels",
            reason: format!("module `{name}` holds a zero byte"),
        })?;
        // SAFETY: the image is PTX text that ends with a zero byte.
        match unsafe { result::module::load_data(text.as_ptr().cast()) } {
            Ok(module) => Ok(module as Handle),
            Err(
                error @ DriverError(
                    sys::CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION
                    | sys::CUresult::CUDA_ERROR_INVALID_PTX
                    | sys::CUresult::CUDA_ERROR_JIT_COMPILER_NOT_FOUND
                    | sys::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU,
                ),
            ) => Err(CudaExecError::DriverTooOld {
                found: self.info.cuda_version,
                needed: NEEDED_CUDA,
                reason: format!("module `{name}`: {}", describe(error)),
            }),
            Err(error) => self.check("loading kernels", Err(error)),
        }
    }

    fn function(&self, module: Handle, name: &str) -> Result<Option<Handle>> {
        self.enter("finding a kernel")?;
        let Ok(name) = CString::new(name) else {
            return Ok(None);
        };
        // SAFETY: the module came from `load_module` and is never unloaded.
        match unsafe { result::module::get_function(module as sys::CUmodule, name) } {
            Ok(function) => Ok(Some(function as Handle)),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_FOUND)) => Ok(None),
            Err(error) => self.check("finding a kernel", Err(error)),
        }
    }

    fn allow_shared_bytes(&self, function: Handle, n_bytes: usize) -> Result<()> {
        self.enter("preparing a kernel")?;
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function is of this context.
        let allowed = unsafe {
            sys::cuFuncSetAttribute(function as sys::CUfunction, attribute, n_bytes as i32).result()
        };
        self.check("preparing a kernel", allowed)
    }

    fn launch(&self, stream: Stream, function: Handle, shape: LaunchShape, args: &Args<'_>) -> Result<()> {
        self.enter("launching a kernel")?;
        let [x, y, z] = shape.grid;
        let mut pointers = args.pointers();
        // SAFETY: the function is of this context; the pointers are to values that live until the call returns, which
        // copies them; what a kernel may touch is said at the top of the seam.
        let launched = unsafe {
            result::launch_kernel(
                function as sys::CUfunction,
                (x, y, z),
                (shape.n_threads, 1, 1),
                shape.shared_bytes,
                self.stream(stream),
                &mut pointers,
            )
        };
        self.check("launching a kernel", launched)
    }

    unsafe fn upload(&self, stream: Stream, from: NonNull<u8>, to: u64, n_bytes: usize) -> Result<()> {
        self.enter("copying to the device")?;
        // SAFETY: the caller vouches for the memory until the copy is done.
        let copied = unsafe {
            sys::cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast(), n_bytes, self.stream(stream)).result()
        };
        self.check("copying to the device", copied)
    }

    unsafe fn download(&self, stream: Stream, from: u64, to: NonNull<u8>, n_bytes: usize) -> Result<()> {
        self.enter("copying to the host")?;
        // SAFETY: the caller vouches for the memory until the copy is done.
        let copied = unsafe {
            sys::cuMemcpyDtoHAsync_v2(to.as_ptr().cast(), from, n_bytes, self.stream(stream)).result()
        };
        self.check("copying to the host", copied)
    }

    fn copy(&self, stream: Stream, from: u64, to: u64, n_bytes: usize) -> Result<()> {
        self.enter("copying within the device")?;
        // SAFETY: both ranges are inside buffers of this device.
        let copied = unsafe { result::memcpy_dtod_async(to, from, n_bytes, self.stream(stream)) };
        self.check("copying within the device", copied)
    }

    fn fill(&self, stream: Stream, address: u64, byte: u8, n_bytes: usize) -> Result<()> {
        self.enter("clearing memory")?;
        // SAFETY: the range is inside a buffer of this device.
        let filled = unsafe { result::memset_d8_async(address, byte, n_bytes, self.stream(stream)) };
        self.check("clearing memory", filled)
    }

    fn create_event(&self) -> Result<Handle> {
        self.enter("making an event")?;
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT);
        Ok(self.check("making an event", event)? as Handle)
    }

    fn destroy_event(&self, event: Handle) {
        if self.enter("destroying an event").is_ok() {
            // SAFETY: the event came from `create_event` and is destroyed once.
            let _ = unsafe { result::event::destroy(event as sys::CUevent) };
        }
    }

    fn record(&self, stream: Stream, event: Handle) -> Result<()> {
        self.enter("recording an event")?;
        // SAFETY: event and stream are of this context.
        let recorded = unsafe { result::event::record(event as sys::CUevent, self.stream(stream)) };
        self.check("recording an event", recorded)
    }

    fn wait(&self, stream: Stream, event: Handle) -> Result<()> {
        self.enter("ordering streams")?;
        // SAFETY: event and stream are of this context.
        let queued = unsafe {
            result::stream::wait_event(
                self.stream(stream),
                event as sys::CUevent,
                sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT,
            )
        };
        self.check("ordering streams", queued)
    }

    fn synchronize(&self, event: Handle) -> Result<()> {
        self.enter("waiting for the device")?;
        // SAFETY: the event is of this context.
        let reached = unsafe { result::event::synchronize(event as sys::CUevent) };
        self.check("waiting for the device", reached)
    }

    fn elapsed_ms(&self, start: Handle, end: Handle) -> Result<f32> {
        self.enter("reading a time")?;
        // SAFETY: both events are of this context.
        let elapsed = unsafe { result::event::elapsed(start as sys::CUevent, end as sys::CUevent) };
        self.check("reading a time", elapsed)
    }

    fn begin_capture(&self, stream: Stream) -> Result<()> {
        self.enter("capturing")?;
        // Thread-local: what other threads do on other devices must not end this capture.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is of this context.
        let begun = unsafe { result::stream::begin_capture(self.stream(stream), mode) };
        self.check("capturing", begun)
    }

    fn end_capture(&self, stream: Stream) -> Result<Handle> {
        self.enter("capturing")?;
        // SAFETY: the stream is of this context.
        let graph = unsafe { result::stream::end_capture(self.stream(stream)) };
        let graph = self.check("capturing", graph)?;
        if graph.is_null() {
            return Err(CudaExecError::Failed {
                operation: "capturing",
                reason: "the driver recorded nothing".to_owned(),
            });
        }
        // SAFETY: the graph was made above.
        let executable = unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) };
        // SAFETY: the graph was made above; what was instantiated from it does not need it.
        let _ = unsafe { result::graph::destroy(graph) };
        Ok(self.check("capturing", executable)? as Handle)
    }

    fn launch_graph(&self, stream: Stream, graph: Handle) -> Result<()> {
        self.enter("replaying")?;
        // SAFETY: the graph is of this context, and `Graph::replay` takes it exclusively.
        let launched = unsafe { result::graph::launch(graph as sys::CUgraphExec, self.stream(stream)) };
        self.check("replaying", launched)
    }

    fn destroy_graph(&self, graph: Handle) {
        if self.enter("destroying a graph").is_ok() {
            // SAFETY: the graph came from `end_capture` and is destroyed once; the driver lets a replay in progress end.
            let _ = unsafe { result::graph::exec_destroy(graph as sys::CUgraphExec) };
        }
    }
}
