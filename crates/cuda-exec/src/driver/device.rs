//! [`Device`]: an opened GPU, its memory, its kernels and its streams.
//!
//! Invariants: a module is loaded once, and several threads can load several modules at the same time; clones are one device.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use bytemuck::Pod;
use rayon::prelude::*;

use super::{
    Api, Args, Buffer, Carveout, DeviceInfo, DeviceOptions, Handle, Kernel, KernelResources, LaunchShape,
    Launches, Pinned, Recording, Stream, UNASKED_SHARED_BYTES, View, ViewMut, WideProducts,
    cuda::Driver,
    memory::Arena,
    notes::{NotedLaunch, Notes},
    recording::{Recorder, Turn},
};
use crate::{
    CudaExecError,
    error::Result,
    modules::{self, ModuleText, Target},
};

/// An opened GPU. Clones are handles of the same one.
#[derive(Clone, Debug)]
pub struct Device {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    ordinal: usize,
    driver: Arc<Driver>,
    timelines: Arc<Timelines>,
    arena: Mutex<Arena>,
    options: DeviceOptions,
    modules: Mutex<HashMap<&'static str, Arc<Module>>>,
    n_launches: AtomicU64,
    notes: Notes,
    /// Present on a device that can record launches.
    recorder: Option<Recorder>,
    /// Nanoseconds that the driver took for modules and kernels.
    loading_ns: AtomicU64,
}

/// Holds a module once it is loaded.
type Module = OnceLock<Result<LoadedModule>>;

/// A module of the driver.
#[derive(Clone, Debug)]
struct LoadedModule {
    handle: Handle,
    /// Log of the driver's compiler.
    log: String,
    /// Whether the code was compiled ahead.
    is_ahead: bool,
    /// Time that the driver took to load it.
    took: Duration,
    /// Kernels that wait for earlier launches themselves.
    waiting: BTreeSet<String>,
}

/// Tracks the known progress of each stream, so that finished work is not waited for.
#[derive(Debug, Default)]
pub(super) struct Timelines {
    issued: [AtomicU64; Stream::ALL.len()],
    done: [AtomicU64; Stream::ALL.len()],
    n_waits: AtomicU64,
}

impl Timelines {
    /// Returns the next moment of a stream.
    pub(super) fn next(&self, stream: Stream) -> u64 {
        self.issued[stream as usize].fetch_add(1, SeqCst) + 1
    }

    pub(super) fn is_done(&self, stream: Stream, moment: u64) -> bool {
        self.done[stream as usize].load(SeqCst) >= moment
    }

    /// Notes that a wait for a moment has returned.
    pub(super) fn set_done(&self, stream: Stream, moment: u64) {
        self.n_waits.fetch_add(1, SeqCst);
        self.done[stream as usize].fetch_max(moment, SeqCst);
    }
}

impl Device {
    /// Opens a GPU by its number among those that the driver shows.
    ///
    /// # Errors
    /// [`CudaExecError::NoDriver`], [`CudaExecError::NoDevice`], [`CudaExecError::NoSuchDevice`] or
    /// [`CudaExecError::ComputeCapability`].
    pub fn open(ordinal: usize) -> Result<Self> {
        Self::open_as(ordinal, DeviceOptions::default())
    }

    /// Opens a GPU of the system with options.
    ///
    /// # Errors
    /// Returns the errors of [`Self::open`].
    pub fn open_as(ordinal: usize, options: DeviceOptions) -> Result<Self> {
        Self::open_with(&Api::of_system()?, ordinal, options)
    }

    /// Opens a GPU by its number among the GPUs of another driver than the system's.
    ///
    /// # Errors
    /// Returns the errors of [`Self::open`].
    pub fn open_with(api: &Api, ordinal: usize, options: DeviceOptions) -> Result<Self> {
        Ok(Self {
            shared: Arc::new(Shared {
                driver: Arc::new(Driver::open(api, ordinal, options.buffers, options.recording)?),
                ordinal,
                recorder: (options.recording == Recording::On).then(Recorder::default),
                options,
                timelines: Arc::default(),
                arena: Mutex::default(),
                modules: Mutex::default(),
                n_launches: AtomicU64::new(0),
                notes: Notes::default(),
                loading_ns: AtomicU64::new(0),
            }),
        })
    }

    pub(super) fn driver(&self) -> &Arc<Driver> {
        &self.shared.driver
    }

    pub(super) fn recorder(&self) -> Option<&Recorder> {
        self.shared.recorder.as_ref()
    }

    pub(super) fn notes(&self) -> &Notes {
        &self.shared.notes
    }

    /// Returns its number among those that the driver shows.
    pub fn ordinal(&self) -> usize {
        self.shared.ordinal
    }

    /// Describes the device.
    pub fn info(&self) -> &DeviceInfo {
        self.shared.driver.info()
    }

    /// Bytes of its memory that are free.
    ///
    /// # Errors
    /// The driver's.
    pub fn free_bytes(&self) -> Result<u64> {
        self.shared.driver.free_bytes()
    }

    /// Returns the bytes of its memory that the driver has taken for modules and graphs since the first call
    /// of this function.
    ///
    /// # Errors
    /// The driver's.
    pub fn taken_by_driver(&self) -> Result<u64> {
        self.shared.driver.taken_by_itself()
    }

    /// Reserves device memory, from which the next buffers are taken.
    ///
    /// # Errors
    /// [`CudaExecError::OutOfMemory`].
    pub fn reserve(&self, purpose: &'static str, n_bytes: usize) -> Result<()> {
        lock(&self.shared.arena).reserve(&self.shared.driver, purpose, n_bytes)
    }

    /// Returns the bytes of the newest reservation, and the bytes that buffers have taken since, both with the buffers' padding.
    pub fn reserved_and_taken_bytes(&self) -> [usize; 2] {
        lock(&self.shared.arena).reserved_and_taken_bytes()
    }

    /// Allocates a buffer, whose elements have no value yet.
    ///
    /// # Errors
    /// [`CudaExecError::OutOfMemory`].
    pub fn alloc<T: Pod>(&self, purpose: &'static str, len: usize) -> Result<Buffer<T>> {
        let buffer = lock(&self.shared.arena).alloc(&self.shared.driver, purpose, len)?;
        self.clear_if_recording(buffer)
    }

    /// Allocates pinned host memory.
    ///
    /// # Errors
    /// [`CudaExecError::OutOfMemory`].
    pub fn alloc_pinned<T: Pod>(&self, len: usize) -> Result<Pinned<T>> {
        Pinned::new(&self.shared.driver, &self.shared.timelines, len)
    }

    /// Makes a buffer of values and waits until they are copied; for load time.
    ///
    /// # Errors
    /// [`CudaExecError::OutOfMemory`], or the driver's.
    pub fn upload<T: Pod>(&self, purpose: &'static str, values: &[T]) -> Result<Buffer<T>> {
        let mut buffer = self.alloc(purpose, values.len())?;
        self.upload_to(values, &buffer.view_mut())?;
        Ok(buffer)
    }

    /// Copies values to a view and waits until they are copied.
    ///
    /// # Errors
    /// [`CudaExecError::Bounds`], or the driver's.
    pub fn upload_to<T: Pod>(&self, values: &[T], to: &ViewMut<'_, T>) -> Result<()> {
        let mut staging = self.alloc_pinned(values.len())?;
        staging.host()?.copy_from_slice(values);
        staging.upload(Stream::Compute, 0..values.len(), to)?;
        staging.host()?;
        Ok(())
    }

    /// Copies a view to the host after all work queued on the compute stream.
    ///
    /// # Errors
    /// The driver's.
    pub fn download<T: Pod>(&self, from: View<'_, T>) -> Result<Vec<T>> {
        let mut staging = self.alloc_pinned(from.len())?;
        staging.download(Stream::Compute, from, 0..from.len())?;
        Ok(staging.host()?.to_vec())
    }

    /// Queues a copy within the device.
    ///
    /// # Errors
    /// [`CudaExecError::Bounds`] if the lengths differ, or the driver's.
    pub fn copy<T: Pod>(&self, stream: Stream, from: View<'_, T>, to: &ViewMut<'_, T>) -> Result<()> {
        if from.len() != to.len() {
            return Err(CudaExecError::Bounds {
                range: 0..from.len(),
                len: to.len(),
            });
        }
        let n_bytes = from.len() * size_of::<T>();
        self.shared
            .driver
            .copy(stream, from.address(), to.address(), n_bytes)
    }

    /// Queues setting every byte to zero.
    ///
    /// # Errors
    /// The driver's.
    pub fn zero<T: Pod>(&self, stream: Stream, view: &ViewMut<'_, T>) -> Result<()> {
        let n_bytes = view.len() * size_of::<T>();
        self.shared.driver.fill(stream, view.address(), 0, n_bytes)
    }

    /// Returns the options that the device was opened with.
    pub fn options(&self) -> &DeviceOptions {
        &self.shared.options
    }

    /// Returns the reason why modules for these GPUs are not loaded, by the device, its driver and the
    /// options; `None` if they are.
    pub(crate) fn refusal(&self, target: Target) -> Option<String> {
        let info = self.info();
        let off = || {
            let is_off = target == Target::Hopper && self.options().wide == WideProducts::Never;
            is_off.then(|| "they are turned off (TOKENMILL_CUDA_NO_WIDE=1)".to_owned())
        };
        (target.refusal(info.capability, info.cuda_version)).or_else(off)
    }

    /// Returns whether modules for these GPUs can be loaded, as far as the device, its driver and the options decide it.
    pub fn takes(&self, target: Target) -> bool {
        self.refusal(target).is_none()
    }

    /// Loads a module if that was not done yet; the driver compiles it for the GPU then.
    ///
    /// # Errors
    /// [`CudaExecError::DriverTooOld`], [`CudaExecError::NoJitCompiler`] or [`CudaExecError::NoKernel`].
    pub fn load_module(&self, module: &str) -> Result<()> {
        self.timed(|| self.module(module, "").map(|_| ()))
    }

    /// Loads modules at the same time, since a driver compiles one on the calling thread.
    ///
    /// # Errors
    /// Returns the errors of [`Self::load_module`].
    pub fn load_modules(&self, modules: &[&str]) -> Result<()> {
        self.timed(|| (modules.par_iter()).try_for_each(|module| self.module(module, "").map(|_| ())))
    }

    /// Returns the compiler's log of a module; `None` if it was not loaded.
    pub fn module_log(&self, module: &str) -> Option<String> {
        let loaded = Arc::clone(lock(&self.shared.modules).get(module)?);
        let loaded = loaded.get()?.as_ref().ok()?;
        Some(loaded.log.clone())
    }

    /// Returns the driver's time for each loaded module, and whether it was compiled ahead.
    pub fn module_times(&self) -> Vec<(&'static str, Duration, bool)> {
        let modules = lock(&self.shared.modules);
        let loaded = modules.iter().filter_map(|(&name, module)| {
            let module = module.get()?.as_ref().ok()?;
            Some((name, module.took, module.is_ahead))
        });
        let mut loaded: Vec<_> = loaded.collect();
        loaded.sort_unstable();
        loaded
    }

    /// Returns how many modules were loaded from code that was compiled ahead.
    pub fn n_ahead(&self) -> usize {
        let modules = lock(&self.shared.modules);
        let is_ahead = |module: &&Arc<Module>| matches!(module.get(), Some(Ok(module)) if module.is_ahead);
        modules.values().filter(is_ahead).count()
    }

    /// Returns a kernel's resources on a multiprocessor, as the driver compiled it.
    ///
    /// # Errors
    /// The driver's.
    pub fn resources(&self, kernel: Kernel) -> Result<KernelResources> {
        self.shared.driver.resources(kernel.function)
    }

    /// Finds a kernel, and loads its module if that was not done yet.
    ///
    /// # Errors
    /// [`CudaExecError::DriverTooOld`] or [`CudaExecError::NoKernel`].
    pub fn kernel(&self, module: &str, kernel: &str) -> Result<Kernel> {
        // A lazy driver loads a kernel only now.
        let (function, awaits_earlier) = self.timed(|| {
            let (handle, awaits_earlier) = self.module(module, kernel)?;
            Ok((self.shared.driver.function(handle, kernel)?, awaits_earlier))
        })?;
        let function = function.ok_or_else(|| no_kernel(module, kernel))?;
        if self.options().carveout == Carveout::Shared {
            self.shared.driver.prefer_shared_memory(function)?;
        }
        self.shared.notes.name(function, module, kernel);
        Ok(Kernel {
            function,
            awaits_earlier,
        })
    }

    /// Runs a function, and returns its result with the launches that were queued meanwhile, including those of other threads.
    pub fn launches_of<T>(&self, run: impl FnOnce() -> T) -> (T, Vec<NotedLaunch>) {
        self.shared.notes.of(run)
    }

    /// Finds a kernel that is launched with up to `n_bytes` of dynamic shared memory.
    ///
    /// # Errors
    /// Returns the errors of [`Self::kernel`], or the driver's error if the device has less.
    pub fn kernel_with_shared_bytes(&self, module: &str, kernel: &str, n_bytes: usize) -> Result<Kernel> {
        let found = self.kernel(module, kernel)?;
        let own_bytes = self.shared.driver.static_shared_bytes(found.function)?;
        if n_bytes + own_bytes > UNASKED_SHARED_BYTES {
            self.shared.driver.allow_shared_bytes(found.function, n_bytes)?;
        }
        Ok(found)
    }

    /// Returns the number of modules loaded so far, and the time that callers waited for them and their kernels. The driver compiles a
    /// module when a machine loads it for the first time.
    pub fn module_loads(&self) -> (usize, Duration) {
        let took = Duration::from_nanos(self.shared.loading_ns.load(SeqCst));
        let modules = lock(&self.shared.modules);
        let n_loaded = (modules.values())
            .filter(|module| module.get().is_some_and(Result::is_ok))
            .count();
        (n_loaded, took)
    }

    /// Returns the number of thread blocks of a kernel that a multiprocessor runs at a time, each with this
    /// number of threads and this much dynamic shared memory.
    ///
    /// # Errors
    /// The driver's.
    pub fn blocks_per_multiprocessor(
        &self,
        kernel: Kernel,
        n_threads: u32,
        shared_bytes: usize,
    ) -> Result<u32> {
        (self.shared.driver).blocks_per_multiprocessor(kernel.function, n_threads, shared_bytes)
    }

    /// Sets or removes the limit of further waits for the device. A device that exceeds it is lost, and is not closed, because closing
    /// would wait too.
    pub fn limit_waits(&self, limit: Option<Duration>) {
        self.shared.driver.limit_waits(limit);
    }

    /// Returns whether the device exceeded the limit of a wait.
    pub fn is_abandoned(&self) -> bool {
        self.shared.driver.is_abandoned()
    }

    /// Sets when further launches begin, for kernels that were loaded for early launches. Graphs keep their captured mode.
    pub fn set_launches(&self, launches: Launches) {
        self.shared.driver.set_in_order(launches == Launches::InOrder);
    }

    fn timed<T>(&self, load: impl FnOnce() -> Result<T>) -> Result<T> {
        let started = Instant::now();
        let loaded = load();
        let took = started.elapsed().as_nanos() as u64;
        self.shared.loading_ns.fetch_add(took, SeqCst);
        loaded
    }

    /// Returns whether launches may begin before earlier ones are done.
    pub(crate) fn begins_early(&self) -> bool {
        self.shared.options.launches == Launches::Early && self.shared.driver.can_begin_early()
    }

    /// Returns a module, which is loaded if that was not done yet, and whether a kernel of it waits for earlier launches.
    fn module(&self, module: &str, kernel: &str) -> Result<(Handle, bool)> {
        let found = modules::entry(module).ok_or_else(|| no_kernel(module, kernel))?;
        // Only the table is locked while a module is compiled, so that others can be compiled at the same time.
        let slot = Arc::clone(lock(&self.shared.modules).entry(found.name).or_default());
        let loaded = slot.get_or_init(|| {
            let capability = self.info().capability;
            // Code for these GPUs waits too, but the driver may be too old for early launches.
            let is_early = self.begins_early() && capability >= modules::EARLY_CAPABILITY;
            let text = match &self.shared.options.texts {
                Some(texts) => texts.text(&found, is_early),
                None => Arc::new(ModuleText::unpack(&found, is_early)),
            };
            let driver = &self.shared.driver;
            let cubins = self.shared.options.cubins.as_ref();
            let exact =
                cubins.and_then(|cubins| cubins.find_exact(capability, self.info().cuda_version, found.name));
            let begun = Instant::now();
            let loaded = exact.map(|code| driver.load_module(found.name, &code));
            let ((handle, log), is_ahead) = match loaded {
                Some(Ok(loaded)) => (loaded, true),
                Some(Err(lost @ CudaExecError::Lost { .. })) => return Err(lost),
                // There is no code, or the driver refuses it: compile the PTX.
                _ => match driver.load_module(found.name, text.ptx.as_bytes()) {
                    Err(
                        refused @ (CudaExecError::NoJitCompiler { .. } | CudaExecError::DriverTooOld { .. }),
                    ) => {
                        let code = cubins.and_then(|cubins| cubins.find(capability, found.name));
                        (driver.load_module(found.name, &code.ok_or(refused)?)?, true)
                    }
                    loaded => (loaded?, false),
                },
            };
            Ok(LoadedModule {
                handle,
                log,
                is_ahead,
                took: begun.elapsed(),
                waiting: text.waiting.clone(),
            })
        });
        match loaded {
            Ok(module) => Ok((module.handle, module.waiting.contains(kernel))),
            Err(error) => Err(error.clone()),
        }
    }

    /// Queues a launch on the compute stream. A grid without thread blocks launches nothing.
    ///
    /// # Errors
    /// The driver's.
    pub fn launch(&self, kernel: Kernel, shape: LaunchShape, args: &Args<'_>) -> Result<()> {
        if shape.grid.contains(&0) {
            return Ok(());
        }
        args.check()?;
        self.shared.n_launches.fetch_add(1, SeqCst);
        self.shared.notes.launch(kernel, shape);
        let turn = self.shared.recorder.as_ref().map(Recorder::turn);
        match turn.unwrap_or(Turn::Launched) {
            Turn::Launched => self.shared.driver.launch(Stream::Compute, kernel, shape, args),
            Turn::Recorded => self.launch_recorded(kernel, shape, args),
            Turn::LeftOut => Ok(()),
        }
    }

    /// Makes `later` wait for all work that is queued on `earlier` now.
    ///
    /// # Errors
    /// The driver's.
    pub fn order(&self, earlier: Stream, later: Stream, fence: &Fence) -> Result<()> {
        self.shared.driver.record(earlier, fence.event)?;
        self.shared.driver.wait(later, fence.event)
    }

    /// Makes a fence.
    ///
    /// # Errors
    /// The driver's.
    pub fn fence(&self) -> Result<Fence> {
        self.make_fence(false)
    }

    /// Makes a fence with a time, for [`Fence::elapsed_ms`]. Streams wait longer for such a fence.
    ///
    /// # Errors
    /// The driver's.
    pub fn timed_fence(&self) -> Result<Fence> {
        self.make_fence(true)
    }

    fn make_fence(&self, has_time: bool) -> Result<Fence> {
        Ok(Fence {
            event: self.shared.driver.create_event(has_time)?,
            driver: Arc::clone(&self.shared.driver),
        })
    }

    /// Returns the number of launches since the device was opened, including those recorded by captures and excluding replays.
    pub fn n_launches(&self) -> u64 {
        self.shared.n_launches.load(SeqCst)
    }

    /// Returns how often the host waited for the device.
    pub fn n_waits(&self) -> u64 {
        self.shared.timelines.n_waits.load(SeqCst)
    }
}

/// A point in a stream's work that another stream or the host can wait for.
#[derive(Debug)]
pub struct Fence {
    driver: Arc<Driver>,
    event: Handle,
}

impl Fence {
    /// Sets the point after all work that is queued on a stream now.
    ///
    /// # Errors
    /// The driver's.
    pub fn record(&self, stream: Stream) -> Result<()> {
        self.driver.record(stream, self.event)
    }

    /// Milliseconds from this point to a later one, both waited for and made by [`Device::timed_fence`].
    ///
    /// # Errors
    /// The driver's.
    pub fn elapsed_ms(&self, later: &Self) -> Result<f32> {
        self.driver.elapsed_ms(self.event, later.event)
    }

    /// Waits until the point is reached.
    ///
    /// # Errors
    /// Returns the device's error during the wait.
    pub fn synchronize(&self) -> Result<()> {
        self.driver.synchronize(self.event)
    }

    /// Makes a stream wait until the point is reached.
    ///
    /// # Errors
    /// The driver's.
    pub fn hold(&self, stream: Stream) -> Result<()> {
        self.driver.wait(stream, self.event)
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        self.driver.destroy_event(self.event);
    }
}

/// Locks a mutex. The guarded data is consistent at every moment, so a panic elsewhere leaves it usable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn no_kernel(module: &str, kernel: &str) -> CudaExecError {
    CudaExecError::NoKernel {
        module: module.to_owned(),
        kernel: kernel.to_owned(),
    }
}
