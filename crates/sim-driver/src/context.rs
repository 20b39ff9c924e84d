//! [`Context`]: memory, modules, streams, events and graphs of an opened GPU, and the work that is queued on it.
//!
//! It is as lazy as a driver is allowed to be: work runs when someone waits for it, in the order of its stream, and the streams
//! run as far apart as their events allow. So a missing wait shows as a wrong result, every time. Invariants: a kernel's fault
//! (a race, an access out of bounds, a read of uninitialized memory) loses the device; after a fault every call fails with the
//! same code, as after a real one.

mod captures;
mod copies;
mod functions;
mod run;

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use tokenmill_ptx_sim::{Arguments, DeviceMemory, DevicePtr, LaunchConfig, MemoryError, Written};

use crate::{
    card::{Bounds, Card},
    code::{self, Outcome},
    counts::Counts,
    fault::{Defect, Fault},
    host_memory::HostMemory,
    loaded::Loaded,
    machine::GpuSpec,
    nccl::{Call, RankEnd},
    rows::Rows,
    timing::Timing,
};

/// A kernel of a module.
#[derive(Debug)]
struct Function {
    module: usize,
    name: String,
    param_bytes: Vec<usize>,
    static_shared_bytes: u32,
    bounds: Bounds,
    /// Dynamic shared memory that a launch may use in addition to the kernel's static part.
    max_shared_bytes: u32,
    /// Preferred shared memory carveout in percent; `None` leaves it to the driver.
    carveout: Option<i32>,
}

/// A point in a stream's work.
#[derive(Clone, Copy, Debug, Default)]
struct Event {
    n_recorded: u64,
    n_reached: u64,
    has_time: bool,
    /// Time at which it was reached, by the simulated clock.
    at_ms: f64,
}

/// A stream that records the work queued on it.
#[derive(Debug)]
struct Capture {
    stream: u64,
    recorded: Vec<Operation>,
    /// Whether a call was made on the stream that cannot be captured.
    is_invalid: bool,
}

/// Work on a stream.
#[derive(Clone, Debug)]
enum Operation {
    Launch {
        function: usize,
        config: LaunchConfig,
        arguments: Arguments,
        /// Whether it may begin before the previous launch is done.
        is_early: bool,
        /// Whether the launch belongs to a graph.
        is_replayed: bool,
    },
    Upload {
        from: HostMemory,
        to: u64,
    },
    Download {
        from: u64,
        to: HostMemory,
    },
    Copy {
        from: u64,
        to: u64,
        n_bytes: usize,
    },
    Rows(Rows),
    Fill {
        address: u64,
        byte: u8,
        n_bytes: usize,
    },
    Record {
        event: u64,
        nth: u64,
    },
    Wait {
        event: u64,
        nth: u64,
    },
    Replay(Arc<[Operation]>),
    /// The end of a replay, after its operations.
    Replayed,
    /// A collective operation of a communicator's ranks.
    Collective {
        end: Arc<RankEnd>,
        from: u64,
        to: u64,
        call: Call,
    },
}

/// Selects whether to wait for work that waits for another GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    /// Wait, for as long as a test may take.
    Here,
    /// Return [`code::NOT_READY`] if it is not done.
    Elsewhere,
}

/// An opened GPU.
#[derive(Debug)]
pub(crate) struct Context {
    memory: DeviceMemory,
    takes_ptx: bool,
    has_compiler: bool,
    capability: (i32, i32),
    modules: Vec<Loaded>,
    /// Kernels are decoded when they are used.
    decodes_late: bool,
    /// Memory that the driver takes for each.
    module_bytes: u64,
    card: Card,
    /// The PTX of each module, by its hash, if launches are estimated.
    texts: Vec<u64>,
    functions: HashMap<u64, Function>,
    streams: HashMap<u64, VecDeque<Operation>>,
    /// By stream: the bytes written by launches since the last other operation or the last launch that waited for all before it.
    in_flight: HashMap<u64, Arc<Written>>,
    events: HashMap<u64, Event>,
    graphs: HashMap<u64, Arc<[Operation]>>,
    capture: Option<Capture>,
    pinned: HashMap<u64, HostMemory>,
    /// Current carveout of the multiprocessors: the preference of the last kernel, or one that follows from its shared memory.
    division: Option<i64>,
    /// Simulated clock. A warp instruction takes a nanosecond and a copied byte a tenth of one: the same on every machine, and
    /// no measurement.
    clock_ms: f64,
    lost: Option<i32>,
}

/// Holds the mutable state of a GPU.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) context: Context,
    pub(crate) counts: Counts,
    /// Next fault to inject.
    pub(crate) fault: Option<Fault>,
    /// Permanent faults.
    pub(crate) defects: Vec<Defect>,
    /// Estimates launches instead of running them.
    pub(crate) timing: Option<Timing>,
    pub(crate) n_retained: usize,
}

/// Returns the next handle. Handles are unique in the process, so a handle of another context is not found.
fn handle() -> u64 {
    static N_HANDLES: AtomicU64 = AtomicU64::new(1);
    N_HANDLES.fetch_add(1, Relaxed)
}

impl Context {
    pub(crate) fn new(spec: &GpuSpec) -> Self {
        Self {
            memory: if spec.is_sparse {
                DeviceMemory::sparse(spec.total_bytes)
            } else {
                DeviceMemory::with_capacity(spec.total_bytes)
            },
            takes_ptx: spec.takes_ptx,
            has_compiler: spec.has_compiler,
            capability: spec.capability,
            modules: Vec::new(),
            // A test of this process shares decoded modules, and finds unsupported code as it loads them.
            decodes_late: !spec.is_added,
            module_bytes: spec.module_bytes,
            card: spec.card(),
            texts: Vec::new(),
            functions: HashMap::new(),
            streams: HashMap::new(),
            in_flight: HashMap::new(),
            events: HashMap::new(),
            graphs: HashMap::new(),
            capture: None,
            pinned: HashMap::new(),
            division: None,
            clock_ms: 0.0,
            lost: None,
        }
    }

    /// Fails if the device has faulted.
    pub(crate) fn check(&self) -> Outcome {
        self.lost.map_or(Ok(()), Err)
    }

    pub(crate) fn is_capturing(&self) -> bool {
        self.capture.is_some()
    }

    pub(crate) fn memory_info(&self) -> (usize, usize) {
        let total = self.memory.capacity_bytes();
        let used = self.memory.used_bytes() + self.module_bytes * self.modules.len() as u64;
        (total.saturating_sub(used) as usize, total as usize)
    }

    /// Calls that wait for the device or change it end a capture.
    fn refuse_in_capture(&mut self) -> Outcome {
        match &mut self.capture {
            Some(capture) => {
                capture.is_invalid = true;
                Err(code::STREAM_CAPTURE_UNSUPPORTED)
            }
            None => Ok(()),
        }
    }

    /// Ends the capture of a stream on a call that cannot be captured.
    fn refuse_on_captured(&mut self, stream: u64, code: i32) -> Outcome {
        match &mut self.capture {
            Some(capture) if capture.stream == stream => {
                capture.is_invalid = true;
                Err(code)
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn alloc(&mut self, n_bytes: usize) -> Outcome<u64> {
        self.check()?;
        self.refuse_in_capture()?;
        if n_bytes > self.memory_info().0 {
            return Err(code::OUT_OF_MEMORY);
        }
        match self.memory.alloc(n_bytes as u64) {
            Ok(address) => Ok(address.0),
            Err(MemoryError::OutOfMemory { .. }) => Err(code::OUT_OF_MEMORY),
            Err(_) => Err(code::INVALID_VALUE),
        }
    }

    /// Keeps pinned memory until it is freed.
    pub(crate) fn keep_pinned(&mut self, memory: HostMemory) -> Outcome {
        self.check()?;
        self.refuse_in_capture()?;
        self.pinned.insert(memory.address(), memory);
        Ok(())
    }

    /// Returns the bytes of pinned memory that are kept.
    pub(crate) fn pinned_bytes(&self) -> usize {
        self.pinned.values().map(HostMemory::n_bytes).sum()
    }

    /// Releases pinned memory, unless a queued copy uses it.
    pub(crate) fn forget_pinned(&mut self, address: u64) -> Outcome<HostMemory> {
        let memory = *self.pinned.get(&address).ok_or(code::INVALID_VALUE)?;
        let uses = |operation: &Operation| match operation {
            Operation::Upload { from, .. } => from.overlaps(&memory),
            Operation::Download { to, .. } => to.overlaps(&memory),
            Operation::Rows(rows) => rows.on_host().any(|part| part.overlaps(&memory)),
            _ => false,
        };
        if self.streams.values().flatten().any(uses) {
            self.lose("pinned memory is freed while a queued copy uses it");
            return Err(code::ILLEGAL_ADDRESS);
        }
        self.pinned.remove(&address);
        Ok(memory)
    }

    /// Returns the bytes of each parameter of a kernel.
    pub(crate) fn param_bytes(&self, function: u64) -> Outcome<&[usize]> {
        let function = self.functions.get(&function).ok_or(code::INVALID_HANDLE)?;
        Ok(&function.param_bytes)
    }

    /// Queues a collective operation of a communicator's ranks.
    pub(crate) fn queue_collective(
        &mut self,
        stream: u64,
        end: Arc<RankEnd>,
        places: [u64; 2],
        call: Call,
    ) -> Outcome {
        let [from, to] = places;
        self.queue(stream, Operation::Collective { end, from, to, call })
    }

    pub(crate) fn copy(&mut self, stream: u64, from: u64, to: u64, n_bytes: usize) -> Outcome {
        self.queue(stream, Operation::Copy { from, to, n_bytes })
    }

    pub(crate) fn fill(&mut self, stream: u64, address: u64, byte: u8, n_bytes: usize) -> Outcome {
        self.queue(
            stream,
            Operation::Fill {
                address,
                byte,
                n_bytes,
            },
        )
    }

    /// Queues work, or records it if the stream is captured.
    fn queue(&mut self, stream: u64, operation: Operation) -> Outcome {
        self.check()?;
        let queue = self.streams.get_mut(&stream).ok_or(code::INVALID_HANDLE)?;
        match &mut self.capture {
            Some(capture) if capture.stream == stream => capture.recorded.push(operation),
            _ => queue.push_back(operation),
        }
        Ok(())
    }

    pub(crate) fn create_stream(&mut self) -> Outcome<u64> {
        self.check()?;
        let stream = handle();
        self.streams.insert(stream, VecDeque::new());
        Ok(stream)
    }

    pub(crate) fn create_event(&mut self, has_time: bool) -> Outcome<u64> {
        self.check()?;
        let event = handle();
        let made = Event {
            has_time,
            ..Event::default()
        };
        self.events.insert(event, made);
        Ok(event)
    }

    pub(crate) fn destroy_event(&mut self, event: u64) -> Outcome {
        self.events.remove(&event).map(|_| ()).ok_or(code::INVALID_HANDLE)
    }

    pub(crate) fn record(&mut self, event: u64, stream: u64) -> Outcome {
        self.check()?;
        self.refuse_on_captured(stream, code::STREAM_CAPTURE_UNSUPPORTED)?;
        let found = self.events.get_mut(&event).ok_or(code::INVALID_HANDLE)?;
        found.n_recorded += 1;
        let nth = found.n_recorded;
        self.queue(stream, Operation::Record { event, nth })
    }

    /// Lets a stream wait for the newest record of an event.
    pub(crate) fn wait(&mut self, stream: u64, event: u64) -> Outcome {
        self.check()?;
        self.refuse_on_captured(stream, code::STREAM_CAPTURE_ISOLATION)?;
        let nth = self.events.get(&event).ok_or(code::INVALID_HANDLE)?.n_recorded;
        self.queue(stream, Operation::Wait { event, nth })
    }

    /// Returns the milliseconds between two events that have happened.
    pub(crate) fn elapsed_ms(&self, start: u64, end: u64) -> Outcome<f32> {
        self.check()?;
        let moment = |event| match self.events.get(&event) {
            Some(event) if event.n_recorded == 0 || !event.has_time => Err(code::INVALID_HANDLE),
            Some(event) if event.n_reached == event.n_recorded => Ok(event.at_ms),
            Some(_) => Err(code::NOT_READY),
            None => Err(code::INVALID_HANDLE),
        };
        Ok((moment(end)? - moment(start)?) as f32)
    }

    /// Instantiates a graph, whose launches remain valid when their source is destroyed.
    pub(crate) fn instantiate(&mut self, graph: u64) -> Outcome<u64> {
        let recorded = self.graphs.get(&graph).cloned().ok_or(code::INVALID_HANDLE)?;
        let executable = handle();
        self.graphs.insert(executable, recorded);
        Ok(executable)
    }

    pub(crate) fn destroy_graph(&mut self, graph: u64) -> Outcome {
        self.graphs.remove(&graph).map(|_| ()).ok_or(code::INVALID_HANDLE)
    }

    /// Records a fault: no queued work will run any more.
    fn lose(&mut self, reason: &str) {
        eprintln!("simulated driver: {reason}");
        self.lost = Some(code::ILLEGAL_ADDRESS);
        self.streams.values_mut().for_each(VecDeque::clear);
    }
}

/// Operations that need counts or faults as well as the context.
impl State {
    pub(crate) fn launch(
        &mut self,
        stream: u64,
        function: u64,
        mut config: LaunchConfig,
        shared_bytes: u32,
        arguments: Arguments,
        is_early: bool,
    ) -> Outcome {
        self.context.check()?;
        if is_early && self.context.architecture() < 90 {
            return Err(code::NOT_SUPPORTED);
        }
        let found = self.context.functions.get(&function);
        if shared_bytes > found.ok_or(code::INVALID_HANDLE)?.max_shared_bytes {
            return Err(code::INVALID_VALUE);
        }
        let name = self.context.functions[&function].name.as_str();
        if let Some((code, is_lost)) = self.defects.iter().find_map(|defect| defect.refusal(name)) {
            if is_lost {
                self.context.lost = Some(code);
            }
            return Err(code);
        }
        config.shared_bytes = shared_bytes;
        match &mut self.fault {
            Some(Fault::Launch { after } | Fault::LaunchCode { after, .. }) if *after > 0 => *after -= 1,
            Some(Fault::Launch { .. }) => {
                self.fault = None;
                return Err(code::LAUNCH_OUT_OF_RESOURCES);
            }
            &mut Some(Fault::LaunchCode { code, is_lost, .. }) => {
                self.fault = None;
                if is_lost {
                    self.context.lost = Some(code);
                }
                return Err(code);
            }
            _ => {}
        }
        self.context.queue(
            stream,
            Operation::Launch {
                function: function as usize,
                config,
                arguments,
                is_early,
                is_replayed: false,
            },
        )
    }

    pub(crate) fn record(&mut self, event: u64, stream: u64) -> Outcome {
        self.context.record(event, stream)?;
        self.counts.n_recorded += 1;
        Ok(())
    }

    /// Runs all queued work.
    pub(crate) fn synchronize_all(&mut self) -> Outcome {
        self.context.check()?;
        self.context.refuse_in_capture()?;
        self.run_all()
    }

    /// Frees device memory. As in a driver, work that may use it ends first.
    pub(crate) fn free(&mut self, address: u64) -> Outcome {
        self.context.check()?;
        self.context.refuse_in_capture()?;
        self.run_all()?;
        self.context
            .memory
            .free(DevicePtr(address))
            .map_err(|_| code::INVALID_VALUE)
    }

    /// Destroys a stream with its queued work.
    pub(crate) fn destroy_stream(&mut self, stream: u64) -> Outcome {
        self.context.check()?;
        while !self.queue_of(stream)?.is_empty() {
            self.run_next(stream, Waits::Here)?;
        }
        self.context.streams.remove(&stream);
        Ok(())
    }

    /// Runs the work before the newest record of an event.
    pub(crate) fn synchronize(&mut self, event: u64) -> Outcome {
        self.context.check()?;
        self.context.refuse_in_capture()?;
        let event_now = self.context.events.get(&event).ok_or(code::INVALID_HANDLE)?;
        self.run_until(event, event_now.n_recorded, Waits::Here)
    }

    /// Returns whether an event was reached since its last record; first runs all work that can run without other GPUs.
    pub(crate) fn query(&mut self, event: u64) -> Outcome {
        self.context.check()?;
        self.context.refuse_in_capture()?;
        let event_now = self.context.events.get(&event).ok_or(code::INVALID_HANDLE)?;
        self.run_until(event, event_now.n_recorded, Waits::Elsewhere)
    }

    fn queue_of(&self, stream: u64) -> Outcome<&VecDeque<Operation>> {
        self.context.streams.get(&stream).ok_or(code::INVALID_HANDLE)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // The context has no user any more: no queued work will run, and no caller has its memory.
        self.pinned.drain().for_each(|(_, memory)| memory.free());
    }
}
