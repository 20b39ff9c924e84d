//! [`State`]: what a simulated device holds, and the work that is queued on it.
//!
//! Separate from the driver's functions, which only queue. Invariant: work runs when somebody waits for it, in the order of its
//! stream, and as late as events allow.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    ptr::NonNull,
    sync::Arc,
};

use tokenmill_ptx_sim::{
    Arguments, Counters, DeviceMemory, DevicePtr, LaunchConfig, MemoryError, Module, launch,
};

use super::{Fault, SimOptions};
use crate::driver::{Handle, LaunchShape};

#[derive(Debug)]
pub(super) struct State {
    pub(super) memory: DeviceMemory,
    pub(super) modules: Vec<Module>,
    pub(super) functions: Vec<Function>,
    pub(super) queues: [VecDeque<Operation>; 2],
    pub(super) events: HashMap<Handle, Event>,
    pub(super) graphs: HashMap<Handle, Arc<[Operation]>>,
    pub(super) capture: Option<Vec<Operation>>,
    pub(super) n_handles: Handle,
    /// A warp instruction takes a nanosecond and a copied byte a tenth of one: the same on every machine, and no measurement.
    pub(super) clock_ms: f64,
    pub(super) n_downloaded_bytes: u64,
    pub(super) counters: BTreeMap<String, (u64, Counters)>,
    pub(super) fault: Option<Fault>,
    pub(super) n_captured: u64,
    pub(super) n_replayed: u64,
    pub(super) n_uploads: u64,
    pub(super) n_downloads: u64,
}

#[derive(Debug)]
pub(super) struct Function {
    pub(super) module: usize,
    pub(super) name: String,
    pub(super) max_shared_bytes: usize,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Event {
    pub(super) n_recorded: u64,
    pub(super) n_reached: u64,
    /// When it was reached, by the simulated clock.
    pub(super) at_ms: f64,
}

/// The address of pinned memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostAddress(pub(super) NonNull<u8>);

// SAFETY: the address is used only inside a copy, while its caller vouches for the memory.
unsafe impl Send for HostAddress {}
// SAFETY: as above.
unsafe impl Sync for HostAddress {}

#[derive(Clone, Debug)]
pub(super) enum Operation {
    Launch {
        function: usize,
        shape: LaunchShape,
        arguments: Arguments,
        is_fatal: bool,
    },
    Upload {
        from: HostAddress,
        to: u64,
        n_bytes: usize,
    },
    Download {
        from: u64,
        to: HostAddress,
        n_bytes: usize,
    },
    Copy {
        from: u64,
        to: u64,
        n_bytes: usize,
    },
    Fill {
        address: u64,
        byte: u8,
        n_bytes: usize,
    },
    Record {
        event: Handle,
        nth: u64,
    },
    Wait {
        event: Handle,
        nth: u64,
    },
    Replay(Arc<[Operation]>),
}

impl State {
    pub(super) fn new(options: &SimOptions) -> Self {
        Self {
            memory: DeviceMemory::with_capacity(options.total_bytes),
            modules: Vec::new(),
            functions: Vec::new(),
            queues: Default::default(),
            events: HashMap::new(),
            graphs: HashMap::new(),
            capture: None,
            n_handles: 0,
            clock_ms: 0.0,
            n_downloaded_bytes: 0,
            counters: BTreeMap::new(),
            fault: None,
            n_captured: 0,
            n_replayed: 0,
            n_uploads: 0,
            n_downloads: 0,
        }
    }

    pub(super) fn next_handle(&mut self) -> Handle {
        self.n_handles += 1;
        self.n_handles
    }

    /// Runs a stream's work until an event was recorded for the `nth` time.
    pub(super) fn run_until(&mut self, event: Handle, nth: u64) -> std::result::Result<(), String> {
        let is_reached = |state: &Self| (state.events.get(&event)).is_none_or(|found| found.n_reached >= nth);
        while !is_reached(self) {
            let is_here = |operation: &Operation| matches!(operation, Operation::Record { event: found, .. } if *found == event);
            let queue = (0..self.queues.len()).find(|&queue| self.queues[queue].iter().any(is_here));
            let Some(queue) = queue else {
                return Err("an event is waited for that no stream will reach".to_owned());
            };
            self.run_next(queue)?;
        }
        Ok(())
    }

    pub(super) fn run_next(&mut self, queue: usize) -> std::result::Result<(), String> {
        if let Some(&Operation::Wait { event, nth }) = self.queues[queue].front() {
            self.run_until(event, nth)?;
        }
        match self.queues[queue].pop_front() {
            Some(operation) => self.run(&operation),
            None => Ok(()),
        }
    }

    pub(super) fn run(&mut self, operation: &Operation) -> std::result::Result<(), String> {
        let text = |error: MemoryError| error.to_string();
        match operation {
            Operation::Launch {
                function,
                shape,
                arguments,
                is_fatal,
            } => self.run_kernel(*function, *shape, arguments, *is_fatal),
            &Operation::Upload { from, to, n_bytes } => {
                // SAFETY: whoever queued the copy vouches for the memory until it is done.
                let bytes = unsafe { std::slice::from_raw_parts(from.0.as_ptr(), n_bytes) };
                self.clock_ms += n_bytes as f64 * 1e-7;
                self.memory.write(DevicePtr(to), bytes).map_err(text)
            }
            &Operation::Download { from, to, n_bytes } => {
                // SAFETY: whoever queued the copy vouches for the memory until it is done.
                let bytes = unsafe { std::slice::from_raw_parts_mut(to.0.as_ptr(), n_bytes) };
                self.clock_ms += n_bytes as f64 * 1e-7;
                self.n_downloaded_bytes += n_bytes as u64;
                self.memory.read(DevicePtr(from), bytes).map_err(text)
            }
            &Operation::Copy { from, to, n_bytes } => {
                (self.memory.copy(DevicePtr(from), DevicePtr(to), n_bytes)).map_err(text)
            }
            &Operation::Fill {
                address,
                byte,
                n_bytes,
            } => (self.memory.fill(DevicePtr(address), byte, n_bytes)).map_err(text),
            &Operation::Record { event, nth } => {
                if let Some(event) = self.events.get_mut(&event) {
                    event.n_reached = nth;
                    event.at_ms = self.clock_ms;
                }
                Ok(())
            }
            Operation::Wait { .. } => Ok(()),
            Operation::Replay(operations) => operations.iter().try_for_each(|operation| self.run(operation)),
        }
    }

    pub(super) fn run_kernel(
        &mut self,
        function: usize,
        shape: LaunchShape,
        arguments: &Arguments,
        is_fatal: bool,
    ) -> std::result::Result<(), String> {
        let Function { module, name, .. } = &self.functions[function];
        if is_fatal {
            return Err(format!("kernel `{name}` was made to fault"));
        }
        let kernel = (self.modules[*module].kernel(name)).map_err(|error| error.to_string())?;
        let mut config = LaunchConfig::new(shape.grid, [shape.n_threads, 1, 1]);
        config.shared_bytes = shape.shared_bytes;
        let report = launch(kernel, &self.memory, &config, arguments).map_err(|error| error.to_string())?;
        if let Some(finding) = report.findings.first() {
            return Err(finding.to_string());
        }
        let total = self.counters.entry(name.clone()).or_default();
        total.0 += 1;
        total.1.add(&report.counters);
        self.clock_ms += report.counters.warp_instructions() as f64 * 1e-6;
        Ok(())
    }
}
