//! [`Simulator`]: the driver seam over the PTX interpreter.
//!
//! Separate because it is for tests and development only. It is as lazy as a driver is allowed to be: what is queued on a
//! stream runs when somebody waits for it, and the streams run as far apart as their events allow; so a missing wait shows
//! as a wrong result, every time. Invariant: whatever a kernel does wrong (a race, an access out of bounds, a read of what
//! uninitialized memory) loses the device, so no test passes over it.

mod state;

use std::{
    alloc::Layout,
    collections::{BTreeMap, VecDeque},
    ptr::NonNull,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokenmill_ptx_sim::{Arguments, Counters, DevicePtr, MemoryError, Module};

use self::state::{Event, Function, HostAddress, Operation, State};
use super::{Args, Device, DeviceInfo, Driver, Handle, LaunchShape, Poison, SHARED_BYTES_UNASKED, Stream};
use crate::{CudaExecError, error::Result};

/// What a simulated device is like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimOptions {
    /// Its memory.
    pub total_bytes: u64,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self { total_bytes: 8 << 30 }
    }
}

/// Something to go wrong once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Beginning a capture fails.
    BeginCapture,
    /// Ending a capture fails, after the stream has left it.
    EndCapture,
    /// The launch after this many others fails; the device remains usable.
    Launch {
        /// Launches that succeed before.
        after: u64,
    },
    /// The launch after this many others faults, which loses the device.
    Lose {
        /// Launches that succeed before.
        after: u64,
    },
}

/// The test's end of a simulated device.
#[derive(Clone, Debug)]
pub struct Simulator {
    driver: Arc<SimDriver>,
}

impl Simulator {
    /// How its device calls itself, and the one of the simulated driver library too.
    pub const DEVICE_NAME: &str = "simulated GPU";

    /// Makes a device.
    pub fn new(options: &SimOptions) -> Self {
        Self {
            driver: Arc::new(SimDriver {
                info: DeviceInfo {
                    name: Self::DEVICE_NAME.to_owned(),
                    capability: (8, 0),
                    n_multiprocessors: 108,
                    total_bytes: options.total_bytes,
                    cuda_version: super::NEEDED_CUDA,
                },
                state: Mutex::new(State::new(options)),
                poison: Poison::default(),
            }),
        }
    }

    /// The device, as everything else sees it.
    pub fn device(&self) -> Device {
        Device::new(Arc::clone(&self.driver) as Arc<dyn Driver>)
    }

    /// Lets something go wrong once.
    pub fn inject(&self, fault: Fault) {
        self.driver.lock().fault = Some(fault);
    }

    /// Whether the compute stream is being captured.
    pub fn is_capturing(&self) -> bool {
        self.driver.lock().capture.is_some()
    }

    /// Launches and counters of each kernel so far, replays included.
    pub fn counters(&self) -> BTreeMap<String, (u64, Counters)> {
        self.driver.lock().counters.clone()
    }

    /// Graphs made and graphs replayed so far.
    pub fn graph_counts(&self) -> (u64, u64) {
        let state = self.driver.lock();
        (state.n_captured, state.n_replayed)
    }

    /// Copies queued so far: to the device, and to the host.
    pub fn copy_counts(&self) -> (u64, u64) {
        let state = self.driver.lock();
        (state.n_uploads, state.n_downloads)
    }

    /// Bytes copied to the host so far.
    pub fn downloaded_bytes(&self) -> u64 {
        self.driver.lock().n_downloaded_bytes
    }
}

#[derive(Debug)]
struct SimDriver {
    info: DeviceInfo,
    state: Mutex<State>,
    poison: Poison,
}

impl SimDriver {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self) -> Result<MutexGuard<'_, State>> {
        self.poison.check()?;
        Ok(self.lock())
    }

    /// Queues work, or records it where the stream is captured.
    fn push(&self, stream: Stream, operation: Operation) -> Result<()> {
        let mut state = self.enter()?;
        match &mut state.capture {
            Some(recorded) if stream == Stream::Compute => match operation {
                Operation::Upload { .. } | Operation::Download { .. } | Operation::Replay(_) => {
                    return Err(not_in_capture("a copy to or from the host"));
                }
                operation => recorded.push(operation),
            },
            _ => state.queues[stream as usize].push_back(operation),
        }
        Ok(())
    }
}

fn not_in_capture(what: &str) -> CudaExecError {
    CudaExecError::Failed {
        operation: "capturing",
        reason: format!("{what} inside a capture"),
    }
}

impl Driver for SimDriver {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn free_bytes(&self) -> Result<u64> {
        let state = self.enter()?;
        Ok(state.memory.capacity_bytes() - state.memory.used_bytes())
    }

    fn allocates_apart(&self) -> bool {
        true
    }

    fn alloc(&self, n_bytes: usize) -> Result<u64> {
        let mut state = self.enter()?;
        if state.capture.is_some() {
            return Err(not_in_capture("an allocation"));
        }
        match state.memory.alloc(n_bytes as u64) {
            Ok(address) => Ok(address.0),
            Err(error) => Err(match error {
                MemoryError::OutOfMemory { bytes, available, .. } => CudaExecError::OutOfMemory {
                    purpose: "a buffer",
                    needed_bytes: bytes,
                    free_bytes: available,
                },
                other => CudaExecError::Failed {
                    operation: "allocating",
                    reason: other.to_string(),
                },
            }),
        }
    }

    fn free(&self, address: u64) {
        let mut state = self.lock();
        // As a driver does, first end what may use the memory.
        for queue in 0..state.queues.len() {
            while !state.queues[queue].is_empty() {
                if let Err(reason) = state.run_next(queue) {
                    state.queues[queue].clear();
                    self.poison.set("freeing", reason);
                }
            }
        }
        let _ = state.memory.free(DevicePtr(address));
    }

    fn alloc_pinned(&self, n_bytes: usize) -> Result<NonNull<u8>> {
        let state = self.enter()?;
        if state.capture.is_some() {
            return Err(not_in_capture("an allocation"));
        }
        // SAFETY: the layout has a size, since buffers take at least a byte.
        let memory = unsafe { std::alloc::alloc_zeroed(pinned_layout(n_bytes)) };
        NonNull::new(memory).ok_or(CudaExecError::OutOfMemory {
            purpose: "pinned host memory",
            needed_bytes: n_bytes as u64,
            free_bytes: 0,
        })
    }

    unsafe fn free_pinned(&self, memory: NonNull<u8>, n_bytes: usize) {
        // SAFETY: the caller gives back what `alloc_pinned` gave.
        unsafe { std::alloc::dealloc(memory.as_ptr(), pinned_layout(n_bytes)) };
    }

    fn load_module(&self, name: &'static str, ptx: &str) -> Result<Handle> {
        let mut state = self.enter()?;
        if state.capture.is_some() {
            return Err(not_in_capture("loading a module"));
        }
        let module = Module::load(ptx, &mut state.memory).map_err(|error| CudaExecError::Failed {
            operation: "loading kernels",
            reason: format!("module `{name}`: {error}"),
        })?;
        state.modules.push(module);
        Ok(state.modules.len() as Handle - 1)
    }

    fn function(&self, module: Handle, name: &str) -> Result<Option<Handle>> {
        let mut state = self.enter()?;
        if state.modules[module as usize].kernel(name).is_err() {
            return Ok(None);
        }
        state.functions.push(Function {
            module: module as usize,
            name: name.to_owned(),
            max_shared_bytes: SHARED_BYTES_UNASKED,
        });
        Ok(Some(state.functions.len() as Handle - 1))
    }

    fn allow_shared_bytes(&self, function: Handle, n_bytes: usize) -> Result<()> {
        self.enter()?.functions[function as usize].max_shared_bytes = n_bytes;
        Ok(())
    }

    fn launch(&self, stream: Stream, function: Handle, shape: LaunchShape, args: &Args<'_>) -> Result<()> {
        let mut state = self.enter()?;
        if shape.shared_bytes as usize > state.functions[function as usize].max_shared_bytes {
            return Err(CudaExecError::Failed {
                operation: "launching a kernel",
                reason: format!("{} bytes of shared memory were not asked for", shape.shared_bytes),
            });
        }
        let mut is_fatal = false;
        match &mut state.fault {
            Some(Fault::Launch { after } | Fault::Lose { after }) if *after > 0 => *after -= 1,
            Some(Fault::Launch { .. }) => {
                state.fault = None;
                return Err(CudaExecError::Failed {
                    operation: "launching a kernel",
                    reason: "it was made to fail".to_owned(),
                });
            }
            Some(Fault::Lose { .. }) => {
                state.fault = None;
                is_fatal = true;
            }
            _ => {}
        }
        drop(state);
        let arguments = args.iter().fold(Arguments::new(), |arguments, (value, n_bytes)| {
            arguments.bytes(&value.to_le_bytes()[..n_bytes])
        });
        self.push(
            stream,
            Operation::Launch {
                function: function as usize,
                shape,
                arguments,
                is_fatal,
            },
        )
    }

    unsafe fn upload(&self, stream: Stream, from: NonNull<u8>, to: u64, n_bytes: usize) -> Result<()> {
        self.push(
            stream,
            Operation::Upload {
                from: HostAddress(from),
                to,
                n_bytes,
            },
        )?;
        self.lock().n_uploads += 1;
        Ok(())
    }

    unsafe fn download(&self, stream: Stream, from: u64, to: NonNull<u8>, n_bytes: usize) -> Result<()> {
        self.push(
            stream,
            Operation::Download {
                from,
                to: HostAddress(to),
                n_bytes,
            },
        )?;
        self.lock().n_downloads += 1;
        Ok(())
    }

    fn copy(&self, stream: Stream, from: u64, to: u64, n_bytes: usize) -> Result<()> {
        self.push(stream, Operation::Copy { from, to, n_bytes })
    }

    fn fill(&self, stream: Stream, address: u64, byte: u8, n_bytes: usize) -> Result<()> {
        self.push(
            stream,
            Operation::Fill {
                address,
                byte,
                n_bytes,
            },
        )
    }

    fn create_event(&self) -> Result<Handle> {
        let mut state = self.enter()?;
        let event = state.next_handle();
        state.events.insert(event, Event::default());
        Ok(event)
    }

    fn destroy_event(&self, event: Handle) {
        self.lock().events.remove(&event);
    }

    fn record(&self, stream: Stream, event: Handle) -> Result<()> {
        let mut state = self.enter()?;
        if state.capture.is_some() && stream == Stream::Compute {
            return Err(not_in_capture("an event"));
        }
        let nth = match state.events.get_mut(&event) {
            Some(event) => {
                event.n_recorded += 1;
                event.n_recorded
            }
            None => 0,
        };
        drop(state);
        self.push(stream, Operation::Record { event, nth })
    }

    fn wait(&self, stream: Stream, event: Handle) -> Result<()> {
        let state = self.enter()?;
        let nth = state.events.get(&event).map_or(0, |event| event.n_recorded);
        drop(state);
        self.push(stream, Operation::Wait { event, nth })
    }

    fn synchronize(&self, event: Handle) -> Result<()> {
        let mut state = self.enter()?;
        let nth = state.events.get(&event).map_or(0, |event| event.n_recorded);
        state.run_until(event, nth).map_err(|reason| {
            // Nothing that is queued will run any more.
            state.queues.iter_mut().for_each(VecDeque::clear);
            self.poison.set("waiting for the device", reason)
        })
    }

    fn elapsed_ms(&self, start: Handle, end: Handle) -> Result<f32> {
        let state = self.enter()?;
        let moment = |event| match state.events.get(&event) {
            Some(event) if event.n_recorded > 0 && event.n_reached == event.n_recorded => Ok(event.at_ms),
            _ => Err(CudaExecError::Failed {
                operation: "reading a time",
                reason: "an event has not happened".to_owned(),
            }),
        };
        Ok((moment(end)? - moment(start)?) as f32)
    }

    fn begin_capture(&self, _: Stream) -> Result<()> {
        let mut state = self.enter()?;
        if state.fault == Some(Fault::BeginCapture) {
            state.fault = None;
            return Err(not_in_capture("a failure made on purpose"));
        }
        if state.capture.is_some() {
            return Err(not_in_capture("a second capture"));
        }
        state.capture = Some(Vec::new());
        Ok(())
    }

    fn end_capture(&self, _: Stream) -> Result<Handle> {
        let mut state = self.enter()?;
        let recorded = state.capture.take().ok_or_else(|| CudaExecError::Failed {
            operation: "capturing",
            reason: "no capture has begun".to_owned(),
        })?;
        if state.fault == Some(Fault::EndCapture) {
            state.fault = None;
            return Err(not_in_capture("a failure made on purpose"));
        }
        let graph = state.next_handle();
        state.n_captured += 1;
        state.graphs.insert(graph, recorded.into());
        Ok(graph)
    }

    fn launch_graph(&self, stream: Stream, graph: Handle) -> Result<()> {
        let mut state = self.enter()?;
        let operations = state.graphs.get(&graph).cloned().unwrap_or_default();
        state.n_replayed += 1;
        drop(state);
        self.push(stream, Operation::Replay(operations))
    }

    fn destroy_graph(&self, graph: Handle) {
        self.lock().graphs.remove(&graph);
    }
}

/// Pinned memory comes in pages.
fn pinned_layout(n_bytes: usize) -> Layout {
    Layout::from_size_align(n_bytes, 4096).expect("a page is a power of two")
}
