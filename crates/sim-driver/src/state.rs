//! [`State`]: memory, modules, events and graphs of the simulated GPU.
//!
//! Separate from the C interface so that everything but pointers is safe code. Invariant: after a fault every call fails with
//! the same code, as after a real one.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    time::Instant,
};

use tokenmill_ptx_sim::{Arguments, DeviceMemory, DevicePtr, LaunchConfig, MemoryError, Module, launch};

use crate::machine::Machine;

/// The driver's codes, as its header numbers them.
pub(crate) mod code {
    pub(crate) const SUCCESS: i32 = 0;
    pub(crate) const INVALID_VALUE: i32 = 1;
    pub(crate) const OUT_OF_MEMORY: i32 = 2;
    pub(crate) const NO_DEVICE: i32 = 100;
    pub(crate) const INVALID_DEVICE: i32 = 101;
    pub(crate) const INVALID_PTX: i32 = 218;
    pub(crate) const UNSUPPORTED_PTX_VERSION: i32 = 222;
    pub(crate) const NOT_FOUND: i32 = 500;
    pub(crate) const ILLEGAL_ADDRESS: i32 = 700;
    pub(crate) const STREAM_CAPTURE_UNSUPPORTED: i32 = 900;
    pub(crate) const STREAM_CAPTURE_INVALIDATED: i32 = 901;
}

/// Name and description of a code.
pub(crate) fn describe(code: i32) -> Option<(&'static std::ffi::CStr, &'static std::ffi::CStr)> {
    Some(match code {
        code::SUCCESS => (c"CUDA_SUCCESS", c"no error"),
        code::INVALID_VALUE => (c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
        code::OUT_OF_MEMORY => (c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
        code::NO_DEVICE => (c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
        code::INVALID_DEVICE => (c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
        code::INVALID_PTX => (c"CUDA_ERROR_INVALID_PTX", c"a PTX JIT compilation failed"),
        code::UNSUPPORTED_PTX_VERSION => (
            c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
            c"the provided PTX was compiled with an unsupported toolchain",
        ),
        code::NOT_FOUND => (c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
        code::ILLEGAL_ADDRESS => (
            c"CUDA_ERROR_ILLEGAL_ADDRESS",
            c"an illegal memory access was encountered",
        ),
        code::STREAM_CAPTURE_UNSUPPORTED => (
            c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
            c"operation not permitted when stream is capturing",
        ),
        code::STREAM_CAPTURE_INVALIDATED => (
            c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
            c"operation failed due to a previous error during capture",
        ),
        _ => return None,
    })
}

/// What a call gives: nothing, or a code.
pub(crate) type Outcome = Result<(), i32>;

/// The dynamic shared memory a kernel has without asking for more.
const SHARED_BYTES_UNASKED: u32 = 48 << 10;

/// A kernel of a module.
#[derive(Debug)]
struct Function {
    module: usize,
    name: String,
    param_bytes: Vec<usize>,
    max_shared_bytes: u32,
}

/// Work as a capture records it.
#[derive(Debug, Clone)]
enum Operation {
    Launch {
        function: usize,
        config: LaunchConfig,
        arguments: Arguments,
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
}

/// The simulated GPU.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) machine: Machine,
    memory: DeviceMemory,
    modules: Vec<Module>,
    functions: Vec<Function>,
    events: HashMap<u64, Option<Instant>>,
    graphs: HashMap<u64, Vec<Operation>>,
    /// The stream being captured and what it recorded.
    capture: Option<(u64, Vec<Operation>)>,
    pinned: HashMap<u64, usize>,
    n_handles: u64,
    n_launches: u64,
    fault: Option<i32>,
}

/// The one GPU of the process.
pub(crate) fn state() -> MutexGuard<'static, State> {
    static STATE: OnceLock<Mutex<State>> = OnceLock::new();
    (STATE
        .get_or_init(|| Mutex::new(State::new(Machine::from_env())))
        .lock())
    .unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn new(machine: Machine) -> Self {
        Self {
            memory: DeviceMemory::with_capacity(machine.total_bytes),
            machine,
            modules: Vec::new(),
            functions: Vec::new(),
            events: HashMap::new(),
            graphs: HashMap::new(),
            capture: None,
            pinned: HashMap::new(),
            n_handles: 0,
            n_launches: 0,
            fault: None,
        }
    }

    /// Fails where the device has faulted.
    pub(crate) fn check(&self) -> Outcome {
        self.fault.map_or(Ok(()), Err)
    }

    pub(crate) fn handle(&mut self) -> u64 {
        self.n_handles += 1;
        self.n_handles
    }

    pub(crate) fn memory_info(&self) -> (usize, usize) {
        let total = self.memory.capacity_bytes();
        ((total - self.memory.used_bytes()) as usize, total as usize)
    }

    /// Calls that wait for the device end a capture.
    fn refuse_in_capture(&self) -> Outcome {
        if self.capture.is_some() {
            return Err(code::STREAM_CAPTURE_UNSUPPORTED);
        }
        Ok(())
    }

    pub(crate) fn alloc(&mut self, n_bytes: usize) -> Result<u64, i32> {
        self.check()?;
        self.refuse_in_capture()?;
        match self.memory.alloc(n_bytes as u64) {
            Ok(address) => Ok(address.0),
            Err(MemoryError::OutOfMemory { .. }) => Err(code::OUT_OF_MEMORY),
            Err(_) => Err(code::INVALID_VALUE),
        }
    }

    pub(crate) fn free(&mut self, address: u64) -> Outcome {
        self.refuse_in_capture()?;
        self.memory
            .free(DevicePtr(address))
            .map_err(|_| code::INVALID_VALUE)
    }

    pub(crate) fn note_pinned(&mut self, address: u64, n_bytes: usize) {
        self.pinned.insert(address, n_bytes);
    }

    pub(crate) fn forget_pinned(&mut self, address: u64) -> Option<usize> {
        self.pinned.remove(&address)
    }

    pub(crate) fn load_module(&mut self, ptx: &str) -> Result<u64, i32> {
        self.check()?;
        if !self.machine.takes_ptx {
            return Err(code::UNSUPPORTED_PTX_VERSION);
        }
        match Module::load(ptx, &mut self.memory) {
            Ok(module) => {
                self.modules.push(module);
                Ok(self.modules.len() as u64)
            }
            Err(error) => {
                eprintln!("simulated driver: {error}");
                Err(code::INVALID_PTX)
            }
        }
    }

    pub(crate) fn function(&mut self, module: u64, name: &str) -> Result<u64, i32> {
        self.check()?;
        let index = (module as usize).wrapping_sub(1);
        let module = self.modules.get(index).ok_or(code::INVALID_VALUE)?;
        let kernel = module.kernel(name).map_err(|_| code::NOT_FOUND)?;
        self.functions.push(Function {
            module: index,
            name: name.to_owned(),
            param_bytes: kernel.param_bytes(),
            max_shared_bytes: SHARED_BYTES_UNASKED,
        });
        Ok(self.functions.len() as u64)
    }

    pub(crate) fn allow_shared_bytes(&mut self, function: u64, n_bytes: u32) -> Outcome {
        let function = self.functions.get_mut((function as usize).wrapping_sub(1));
        function.ok_or(code::INVALID_VALUE)?.max_shared_bytes = n_bytes;
        Ok(())
    }

    /// Bytes of each parameter of a kernel.
    pub(crate) fn param_bytes(&self, function: u64) -> Result<&[usize], i32> {
        let function = self.functions.get((function as usize).wrapping_sub(1));
        Ok(&function.ok_or(code::INVALID_VALUE)?.param_bytes)
    }

    pub(crate) fn launch(
        &mut self,
        stream: u64,
        function: u64,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        arguments: Arguments,
    ) -> Outcome {
        self.check()?;
        let index = (function as usize).wrapping_sub(1);
        let found = self.functions.get(index).ok_or(code::INVALID_VALUE)?;
        if shared_bytes > found.max_shared_bytes {
            return Err(code::INVALID_VALUE);
        }
        let mut config = LaunchConfig::new(grid, block);
        config.shared_bytes = shared_bytes;
        self.queue(
            stream,
            Operation::Launch {
                function: index,
                config,
                arguments,
            },
        )
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

    pub(crate) fn upload(&mut self, stream: u64, bytes: &[u8], to: u64) -> Outcome {
        self.check()?;
        self.refuse_on_captured(stream)?;
        let written = self.memory.write(DevicePtr(to), bytes);
        self.note(written.map_err(|error| error.to_string()))
    }

    pub(crate) fn download(&mut self, stream: u64, from: u64, bytes: &mut [u8]) -> Outcome {
        self.check()?;
        self.refuse_on_captured(stream)?;
        let read = self.memory.read(DevicePtr(from), bytes);
        self.note(read.map_err(|error| error.to_string()))
    }

    /// Copies from and to the host would be frozen into a graph; nothing here means that.
    fn refuse_on_captured(&self, stream: u64) -> Outcome {
        match self.capture {
            Some((captured, _)) if captured == stream => Err(code::STREAM_CAPTURE_UNSUPPORTED),
            _ => Ok(()),
        }
    }

    fn queue(&mut self, stream: u64, operation: Operation) -> Outcome {
        self.check()?;
        match &mut self.capture {
            Some((captured, recorded)) if *captured == stream => {
                recorded.push(operation);
                Ok(())
            }
            _ => self.run(&operation),
        }
    }

    fn run(&mut self, operation: &Operation) -> Outcome {
        let outcome = match operation {
            Operation::Launch {
                function,
                config,
                arguments,
            } => self.run_kernel(*function, config, arguments),
            &Operation::Copy { from, to, n_bytes } => {
                (self.memory.copy(DevicePtr(from), DevicePtr(to), n_bytes)).map_err(|error| error.to_string())
            }
            &Operation::Fill {
                address,
                byte,
                n_bytes,
            } => (self.memory.fill(DevicePtr(address), byte, n_bytes)).map_err(|error| error.to_string()),
        };
        self.note(outcome)
    }

    fn run_kernel(
        &mut self,
        function: usize,
        config: &LaunchConfig,
        arguments: &Arguments,
    ) -> Result<(), String> {
        let nth = self.n_launches;
        self.n_launches += 1;
        if self.machine.lost_launch == Some(nth) {
            return Err(format!("launch {nth} was made to fault"));
        }
        let Function { module, name, .. } = &self.functions[function];
        let kernel = (self.modules[*module].kernel(name)).map_err(|error| error.to_string())?;
        let report = launch(kernel, &self.memory, config, arguments).map_err(|error| error.to_string())?;
        match report.findings.first() {
            Some(finding) => Err(finding.to_string()),
            None => Ok(()),
        }
    }

    /// Takes note of a fault.
    fn note(&mut self, outcome: Result<(), String>) -> Outcome {
        outcome.map_err(|reason| {
            eprintln!("simulated driver: {reason}");
            self.fault = Some(code::ILLEGAL_ADDRESS);
            code::ILLEGAL_ADDRESS
        })
    }

    pub(crate) fn create_event(&mut self) -> u64 {
        let event = self.handle();
        self.events.insert(event, None);
        event
    }

    pub(crate) fn destroy_event(&mut self, event: u64) -> Outcome {
        self.events.remove(&event).map(|_| ()).ok_or(code::INVALID_VALUE)
    }

    pub(crate) fn record(&mut self, event: u64) -> Outcome {
        self.check()?;
        let event = self.events.get_mut(&event).ok_or(code::INVALID_VALUE)?;
        *event = Some(Instant::now());
        Ok(())
    }

    /// Everything queued is done, so there is nothing to wait for.
    pub(crate) fn wait(&self, event: u64) -> Outcome {
        self.check()?;
        self.events.get(&event).map(|_| ()).ok_or(code::INVALID_VALUE)
    }

    pub(crate) fn elapsed_ms(&self, start: u64, end: u64) -> Result<f32, i32> {
        let moment = |event| {
            self.events
                .get(&event)
                .copied()
                .flatten()
                .ok_or(code::INVALID_VALUE)
        };
        let elapsed = moment(end)?.saturating_duration_since(moment(start)?);
        Ok(elapsed.as_secs_f32() * 1e3)
    }

    pub(crate) fn begin_capture(&mut self, stream: u64) -> Outcome {
        self.check()?;
        self.refuse_in_capture()?;
        if !self.machine.captures {
            return Err(code::STREAM_CAPTURE_UNSUPPORTED);
        }
        self.capture = Some((stream, Vec::new()));
        Ok(())
    }

    pub(crate) fn end_capture(&mut self, stream: u64) -> Result<u64, i32> {
        self.check()?;
        match self.capture.take() {
            Some((captured, recorded)) if captured == stream => {
                let graph = self.handle();
                self.graphs.insert(graph, recorded);
                Ok(graph)
            }
            _ => Err(code::STREAM_CAPTURE_INVALIDATED),
        }
    }

    /// What is launched stays when what it was made from is destroyed.
    pub(crate) fn instantiate(&mut self, graph: u64) -> Result<u64, i32> {
        let recorded = self.graphs.get(&graph).cloned().ok_or(code::INVALID_VALUE)?;
        let executable = self.handle();
        self.graphs.insert(executable, recorded);
        Ok(executable)
    }

    pub(crate) fn destroy_graph(&mut self, graph: u64) -> Outcome {
        self.graphs.remove(&graph).map(|_| ()).ok_or(code::INVALID_VALUE)
    }

    pub(crate) fn launch_graph(&mut self, graph: u64) -> Outcome {
        self.check()?;
        let operations = self.graphs.get(&graph).cloned().ok_or(code::INVALID_VALUE)?;
        operations.iter().try_for_each(|operation| self.run(operation))
    }
}
