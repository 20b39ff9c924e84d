//! [`Driver`]: one GPU through the driver's functions.
//!
//! Modules and copies have files of their own. Invariants: the primary context is current on the calling thread in every call; an error after which
//! the context is unusable is remembered, and no call is made any more. Everything except memory, modules and events is queued on a stream and in
//! order there.

mod copies;
mod kernels;
mod waits;

use std::{
    ffi::{CStr, c_char},
    ptr::{self, NonNull},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use cudarc::driver::sys::{
    self, CUdevice_attribute as Attribute, CUevent_flags, CUstream_flags, CUstreamCaptureMode,
};

use super::{
    Api, Args, Buffers, DeviceInfo, EARLY_CAPABILITY, EARLY_CUDA, Handle, Kernel, LaunchShape,
    NEEDED_CAPABILITY, NEEDED_CUDA, Poison, Recording, Stream,
    api::{Code, LaunchWithAttributes, Pointer, is_present, version_from},
    codes::{self, Meaning},
    extents::Extents,
};
use crate::{CudaExecError, error::Result};
pub(super) use copies::{RowPlace, RowStart};
pub(super) use waits::Watch;

/// A GPU of a driver. Handles and addresses passed in must be its own and not yet destroyed.
#[derive(Debug)]
pub(super) struct Driver {
    api: Api,
    info: DeviceInfo,
    device: i32,
    context: Handle,
    streams: [Handle; Stream::ALL.len()],
    buffers: Buffers,
    /// For each stream, whether the last queued work is a launch.
    follows_launch: [AtomicBool; Stream::ALL.len()],
    poison: Poison,
    /// Bytes of device memory allocated here.
    allocated_bytes: AtomicU64,
    /// Sum of free and allocated bytes at the first call of [`Self::taken_by_itself`].
    first_seen_bytes: OnceLock<u64>,
    /// Watch of a device whose work may wait for other devices; it knows whether they will arrive.
    watch: OnceLock<Arc<dyn Watch>>,
    /// Limit of a wait for the device, in milliseconds; 0 sets no limit.
    wait_limit_ms: AtomicU64,
    /// Whether the device exceeded the limit; closing it would wait too.
    is_abandoned: AtomicBool,
    /// Whether launches run in order even if they could begin early.
    is_in_order: AtomicBool,
    /// The buffers' places, if launches can be recorded.
    extents: Option<Extents>,
}

fn pointer(handle: Handle) -> Pointer {
    ptr::with_exposed_provenance_mut(handle as usize)
}

fn handle(pointer: Pointer) -> Handle {
    pointer.expose_provenance() as Handle
}

/// Starts a driver and counts its GPUs.
pub(super) fn count_devices(api: &Api) -> Result<usize> {
    let check = |code| match code {
        0 => Ok(()),
        code => Err(CudaExecError::NoDevice {
            reason: describe(api, code),
        }),
    };
    // SAFETY: this may be called at any time.
    check(unsafe { (api.init)(0) })?;
    let mut n_devices = 0;
    // SAFETY: the pointer is to a local.
    check(unsafe { (api.device_count)(&raw mut n_devices) })?;
    if n_devices <= 0 {
        return Err(CudaExecError::NoDevice {
            reason: "it counts none".to_owned(),
        });
    }
    Ok(n_devices as usize)
}

/// Returns the CUDA version that a driver supports.
pub(super) fn cuda_version(api: &Api) -> Result<(u32, u32)> {
    let mut version = 0;
    // SAFETY: the pointer is to a local.
    let code = unsafe { (api.driver_version)(&raw mut version) };
    done(api, "asking for the driver's version", code)?;
    Ok(version_from(version))
}

/// Describes a GPU without opening it; call after [`count_devices`].
pub(super) fn describe_device(api: &Api, ordinal: usize) -> Result<(i32, DeviceInfo)> {
    let check = |code| done(api, "describing the GPU", code);
    let mut device = 0;
    // SAFETY: the pointer is to a local.
    check(unsafe { (api.device)(&raw mut device, ordinal as i32) })?;
    let attribute = |attribute: Attribute| -> Result<u32> {
        let mut value = 0;
        // SAFETY: the device was given by the driver, the pointer is to a local.
        check(unsafe { (api.device_attribute)(&raw mut value, attribute as i32, device) })?;
        Ok(value as u32)
    };
    let mut name = [0u8; 128];
    // SAFETY: the buffer has the length that is passed.
    check(unsafe { (api.device_name)(name.as_mut_ptr().cast(), name.len() as i32, device) })?;
    let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
    let mut total_bytes = 0;
    // SAFETY: the device was given by the driver, the pointer is to a local.
    check(unsafe { (api.device_total_bytes)(&raw mut total_bytes, device) })?;
    let uuid = api.device_uuid.and_then(|device_uuid| {
        let mut uuid = [0; 16];
        // SAFETY: the device was given by the driver, the pointer is to a local of 16 bytes.
        let code = unsafe { device_uuid(&raw mut uuid, device) };
        (code == 0).then_some(uuid)
    });
    let info = DeviceInfo {
        name: name.to_string_lossy().into_owned(),
        uuid,
        capability: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        n_multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        multiprocessor_shared_bytes: attribute(
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
        )?,
        total_bytes: total_bytes as u64,
        cuda_version: cuda_version(api)?,
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

/// Returns the bytes free on a GPU, and opens the GPU for the query if it is not open yet.
pub(super) fn free_bytes_of(api: &Api, ordinal: usize) -> Result<u64> {
    Driver::open(api, ordinal, Buffers::Together, Recording::Off)?.free_bytes()
}

/// Returns whether a driver exists, without starting it.
pub(super) fn has_driver() -> bool {
    is_present()
}

fn done(api: &Api, operation: &'static str, code: Code) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    Err(CudaExecError::Failed {
        operation,
        reason: describe(api, code),
    })
}

fn describe(api: &Api, code: Code) -> String {
    let ask = |ask: unsafe extern "C" fn(Code, *mut *const c_char) -> Code| {
        let mut text = ptr::null();
        // SAFETY: the pointer is to a local.
        let found = unsafe { ask(code, &raw mut text) } == 0 && !text.is_null();
        // SAFETY: the driver gives a static text that ends with a zero byte.
        found.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    };
    match (ask(api.error_name), ask(api.error_text)) {
        (Some(name), Some(text)) => format!("{name}: {text}"),
        _ => format!("error {code}"),
    }
}

impl Driver {
    /// Opens a GPU by its number among those that the driver shows.
    pub(super) fn open(api: &Api, ordinal: usize, buffers: Buffers, recording: Recording) -> Result<Self> {
        let n_devices = count_devices(api)?;
        if ordinal >= n_devices {
            return Err(CudaExecError::NoSuchDevice { ordinal, n_devices });
        }
        let (device, info) = describe_device(api, ordinal)?;
        check_device(&info)?;
        let mut context = ptr::null_mut();
        // SAFETY: the device was given by the driver; the context is released when this value is dropped.
        let code = unsafe { (api.retain_context)(&raw mut context, device) };
        done(api, "opening the GPU", code)?;
        let mut driver = Self {
            api: *api,
            info,
            device,
            context: handle(context),
            streams: [0; Stream::ALL.len()],
            buffers,
            follows_launch: Default::default(),
            poison: Poison::default(),
            allocated_bytes: AtomicU64::new(0),
            first_seen_bytes: OnceLock::new(),
            watch: OnceLock::new(),
            wait_limit_ms: AtomicU64::new(0),
            is_abandoned: AtomicBool::new(false),
            is_in_order: AtomicBool::new(false),
            extents: (recording == Recording::On).then(Extents::default),
        };
        driver.enter("opening the GPU")?;
        for stream in Stream::ALL {
            let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            let mut created = ptr::null_mut();
            // SAFETY: the context is current, the pointer is to a local.
            let code = unsafe { (api.create_stream)(&raw mut created, flags) };
            driver.check("opening the GPU", code)?;
            driver.streams[stream as usize] = handle(created);
        }
        Ok(driver)
    }

    pub(super) fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Returns the layout of the device's buffers in its memory.
    pub(super) fn buffers(&self) -> Buffers {
        self.buffers
    }

    /// Returns the places of the buffers in the device's memory; `None` on a device that records nothing.
    pub(super) fn extents(&self) -> Option<&Extents> {
        self.extents.as_ref()
    }

    /// Returns a stream on which something other than a launch is to be queued.
    fn stream(&self, stream: Stream) -> Pointer {
        self.follows_launch[stream as usize].store(false, Relaxed);
        pointer(self.streams[stream as usize])
    }

    /// Returns whether launches of kernels that wait may begin before earlier launches are done.
    pub(super) fn can_begin_early(&self) -> bool {
        self.api.launch_with_attributes.is_some()
            && self.info.capability >= EARLY_CAPABILITY
            && self.info.cuda_version >= EARLY_CUDA
    }

    /// Makes the context current on this thread.
    fn enter(&self, operation: &'static str) -> Result<()> {
        self.poison.check()?;
        // SAFETY: the context is retained for as long as this value lives.
        let code = unsafe { (self.api.set_context)(pointer(self.context)) };
        self.check(operation, code)
    }

    fn check(&self, operation: &'static str, code: Code) -> Result<()> {
        let is_lost = match codes::meaning_of(code) {
            Meaning::Lost => true,
            // The code is in no list: a context that is still good finishes its work without an error.
            // SAFETY: the context is current, since every operation enters it first.
            Meaning::Unexpected => codes::says_lost(unsafe { (self.api.synchronize_context)() }),
            Meaning::Refused => false,
        };
        if is_lost {
            return Err(self.poison.set(operation, describe(&self.api, code)));
        }
        done(&self.api, operation, code)
    }

    pub(super) fn free_bytes(&self) -> Result<u64> {
        self.enter("asking for free memory")?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the context is current, the pointers are to locals.
        let code = unsafe { (self.api.memory_info)(&raw mut free, &raw mut total) };
        self.check("asking for free memory", code)?;
        Ok(free as u64)
    }

    pub(super) fn alloc(&self, n_bytes: usize) -> Result<u64> {
        self.enter("allocating")?;
        let mut address = 0;
        // SAFETY: the context is current, the pointer is to a local.
        let code = unsafe { (self.api.alloc)(&raw mut address, n_bytes) };
        if code == codes::OUT_OF_MEMORY {
            return Err(CudaExecError::OutOfMemory {
                purpose: "a buffer",
                needed_bytes: n_bytes as u64,
                free_bytes: self.free_bytes()?,
            });
        }
        self.check("allocating", code)?;
        self.allocated_bytes.fetch_add(n_bytes as u64, Relaxed);
        Ok(address)
    }

    /// Returns the bytes of device memory that are neither free nor allocated here, and were one or the other at the first call. The driver (for
    /// modules and graphs) and other programs have taken them since.
    pub(super) fn taken_by_itself(&self) -> Result<u64> {
        let seen_bytes = self.free_bytes()? + self.allocated_bytes.load(Relaxed);
        let first_bytes = *self.first_seen_bytes.get_or_init(|| seen_bytes);
        Ok(first_bytes.saturating_sub(seen_bytes))
    }

    pub(super) fn free(&self, address: u64, n_bytes: usize) {
        self.allocated_bytes.fetch_sub(n_bytes as u64, Relaxed);
        if self.enter("freeing").is_ok() {
            // SAFETY: the address came from `alloc` and is freed once; the driver waits for work that uses it.
            let code = unsafe { (self.api.free)(address) };
            // Freeing reports no error; the next call to a lost device does.
            let _ = self.check("freeing", code);
        }
    }

    /// Allocates zeroed host memory that the device can copy from and to directly.
    pub(super) fn alloc_pinned(&self, n_bytes: usize) -> Result<NonNull<u8>> {
        self.enter("pinning memory")?;
        let mut memory = ptr::null_mut();
        // SAFETY: the context is current, the pointer is to a local.
        let code = unsafe { (self.api.alloc_host)(&raw mut memory, n_bytes, 0) };
        if code == codes::OUT_OF_MEMORY {
            return Err(CudaExecError::OutOfMemory {
                purpose: "pinned host memory",
                needed_bytes: n_bytes as u64,
                free_bytes: 0,
            });
        }
        self.check("pinning memory", code)?;
        let memory = NonNull::new(memory.cast::<u8>()).ok_or(CudaExecError::Failed {
            operation: "pinning memory",
            reason: "the driver gave no address".to_owned(),
        })?;
        // SAFETY: the driver gave `n_bytes` at this address.
        unsafe { ptr::write_bytes(memory.as_ptr(), 0, n_bytes) };
        Ok(memory)
    }

    /// # Safety
    /// `memory` came from [`Self::alloc_pinned`], no queued copy uses it, and none will again.
    pub(super) unsafe fn free_pinned(&self, memory: NonNull<u8>) {
        if self.enter("freeing pinned memory").is_ok() {
            // SAFETY: the caller returns memory from `alloc_pinned`.
            let _ = unsafe { (self.api.free_host)(memory.as_ptr().cast()) };
        }
    }

    pub(super) fn launch(
        &self,
        stream: Stream,
        kernel: Kernel,
        shape: LaunchShape,
        args: &Args<'_>,
    ) -> Result<()> {
        self.enter("launching a kernel")?;
        let mut pointers = args.pointers();
        let follows_launch = &self.follows_launch[stream as usize];
        // Only a launch allows the next launch to begin early and wait.
        let is_early =
            kernel.awaits_earlier && follows_launch.load(Relaxed) && !self.is_in_order.load(Relaxed);
        let code = match self.api.launch_with_attributes {
            Some(launch) if is_early => self.launch_early(launch, stream, kernel, shape, &mut pointers),
            _ => self.launch_in_order(stream, kernel, shape, &mut pointers),
        };
        follows_launch.store(code == 0, Relaxed);
        self.check("launching a kernel", code)
    }

    fn launch_in_order(
        &self,
        stream: Stream,
        kernel: Kernel,
        shape: LaunchShape,
        pointers: &mut [Pointer],
    ) -> Code {
        let [x, y, z] = shape.grid;
        // SAFETY: the function is of this context; the pointers are to values that live until the call returns, which
        // copies them; the top of this folder's `mod.rs` says why a launch is safe.
        unsafe {
            (self.api.launch)(
                pointer(kernel.function),
                x,
                y,
                z,
                shape.n_threads,
                1,
                1,
                shape.shared_bytes,
                pointer(self.streams[stream as usize]),
                pointers.as_mut_ptr(),
                ptr::null_mut(),
            )
        }
    }

    /// Launches with the attribute of programmatic stream serialization.
    fn launch_early(
        &self,
        launch: LaunchWithAttributes,
        stream: Stream,
        kernel: Kernel,
        shape: LaunchShape,
        pointers: &mut [Pointer],
    ) -> Code {
        let [x, y, z] = shape.grid;
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { pad: [0; 64] },
        };
        attribute.value.programmaticStreamSerializationAllowed = 1;
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: shape.n_threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shape.shared_bytes,
            hStream: pointer(self.streams[stream as usize]).cast(),
            attrs: &raw mut attribute,
            numAttrs: 1,
        };
        // SAFETY: as in `launch_in_order`; configuration and attribute live until the call returns.
        unsafe {
            launch(
                &raw const config,
                pointer(kernel.function),
                pointers.as_mut_ptr(),
                ptr::null_mut(),
            )
        }
    }

    /// Creates an event; streams wait for it at a lower cost if it has no times.
    pub(super) fn create_event(&self, has_time: bool) -> Result<Handle> {
        self.enter("making an event")?;
        let flags = if has_time {
            CUevent_flags::CU_EVENT_DEFAULT
        } else {
            CUevent_flags::CU_EVENT_DISABLE_TIMING
        };
        let mut event = ptr::null_mut();
        // SAFETY: the context is current, the pointer is to a local.
        let code = unsafe { (self.api.create_event)(&raw mut event, flags as u32) };
        self.check("making an event", code)?;
        Ok(handle(event))
    }

    pub(super) fn destroy_event(&self, event: Handle) {
        if self.enter("destroying an event").is_ok() {
            // SAFETY: the event came from `create_event` and is destroyed once.
            let _ = unsafe { (self.api.destroy_event)(pointer(event)) };
        }
    }

    pub(super) fn record(&self, stream: Stream, event: Handle) -> Result<()> {
        self.enter("recording an event")?;
        // SAFETY: event and stream are of this context.
        let code = unsafe { (self.api.record_event)(pointer(event), self.stream(stream)) };
        self.check("recording an event", code)
    }

    /// Makes `stream` wait for the work before the last recording of `event`.
    pub(super) fn wait(&self, stream: Stream, event: Handle) -> Result<()> {
        self.enter("ordering streams")?;
        // SAFETY: event and stream are of this context.
        let code = unsafe { (self.api.wait_event)(self.stream(stream), pointer(event), 0) };
        self.check("ordering streams", code)
    }

    /// Passes a stream's handle to another NVIDIA library that queues work on it, with the context current.
    pub(super) fn queue_foreign<T>(
        &self,
        operation: &'static str,
        stream: Stream,
        queue: impl FnOnce(Pointer) -> Result<T>,
    ) -> Result<T> {
        self.enter(operation)?;
        queue(self.stream(stream))
    }

    /// Makes the context current on this thread for another NVIDIA library.
    pub(super) fn enter_for(&self, operation: &'static str) -> Result<()> {
        self.enter(operation)
    }

    /// Milliseconds between two events that have happened.
    pub(super) fn elapsed_ms(&self, start: Handle, end: Handle) -> Result<f32> {
        self.enter("reading a time")?;
        let mut ms = 0.0;
        // SAFETY: both events are of this context, the pointer is to a local.
        let code = unsafe { (self.api.elapsed_ms)(&raw mut ms, pointer(start), pointer(end)) };
        self.check("reading a time", code)?;
        Ok(ms)
    }

    pub(super) fn begin_capture(&self, stream: Stream) -> Result<()> {
        self.enter("capturing")?;
        // Thread-local: calls of other threads on other devices must not end this capture.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as i32;
        // SAFETY: the stream is of this context.
        let code = unsafe { (self.api.begin_capture)(self.stream(stream), mode) };
        self.check("capturing", code)
    }

    pub(super) fn end_capture(&self, stream: Stream) -> Result<Handle> {
        self.enter("capturing")?;
        let mut graph = ptr::null_mut();
        // SAFETY: the stream is of this context, the pointer is to a local.
        let code = unsafe { (self.api.end_capture)(self.stream(stream), &raw mut graph) };
        self.check("capturing", code)?;
        if graph.is_null() {
            return Err(CudaExecError::Failed {
                operation: "capturing",
                reason: "the driver recorded nothing".to_owned(),
            });
        }
        let mut executable = ptr::null_mut();
        // SAFETY: the graph was made above, the pointer is to a local.
        let code = unsafe { (self.api.instantiate_graph)(&raw mut executable, graph, 0) };
        // SAFETY: the graph was made above; its instance does not need it.
        let _ = unsafe { (self.api.destroy_graph)(graph) };
        self.check("capturing", code)?;
        Ok(handle(executable))
    }

    pub(super) fn launch_graph(&self, stream: Stream, graph: Handle) -> Result<()> {
        self.enter("replaying")?;
        // SAFETY: the graph is of this context, and `Graph::replay` takes it exclusively.
        let code = unsafe { (self.api.launch_graph)(pointer(graph), self.stream(stream)) };
        self.check("replaying", code)
    }

    pub(super) fn destroy_graph(&self, graph: Handle) {
        if self.enter("destroying a graph").is_ok() {
            // SAFETY: the graph came from `end_capture` and is destroyed once; the driver lets a replay in progress end.
            let _ = unsafe { (self.api.destroy_executable)(pointer(graph)) };
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if self.is_abandoned.load(Relaxed) {
            return;
        }
        // Errors while closing are not reported: the process ends or the device is lost.
        if self.enter("closing the GPU").is_ok() {
            for &stream in self.streams.iter().filter(|&&stream| stream != 0) {
                // SAFETY: the stream was created by this value and is destroyed once.
                let _ = unsafe { (self.api.destroy_stream)(pointer(stream)) };
            }
        }
        // SAFETY: the context was retained once in `open`.
        let _ = unsafe { (self.api.release_context)(self.device) };
    }
}
