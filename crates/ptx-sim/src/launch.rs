//! [`launch`]: runs a kernel over a grid on all cores of the host.
//!
//! Thread blocks are claimed in index order by one host thread per core. Results do not depend on the number of host threads: if the outcome of a
//! kernel depends on the order of its thread blocks (it uses the result of a global atomic, adds floats atomically, or polls memory), they run one
//! after the other, and take turns if they wait for each other. Invariant: the same launch on the same memory gives the same memory, counters and
//! findings.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use crate::{
    Counters, DeviceMemory, DevicePtr, Finding, FindingKind, Kernel, LaunchError,
    access_log::{self, Access, AccessLog},
    exec::{BlockEnd, BlockRunner, Early, LaunchContext},
    kernel::{Constant, Special},
    occupancy::Multiprocessor,
    report::Location,
    residents,
    types::Ty,
    written::Written,
};

/// Largest shared memory of a thread block on any device.
const MAX_SHARED_BYTES: u32 = 227 * 1024;
/// Largest number of findings of a launch.
const MAX_FINDINGS: usize = 64;

/// Selects the checks besides those that a device makes itself (bounds, alignment, divergence).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checks {
    /// Reads of uninitialized bytes.
    pub uninitialized: bool,
    /// Races between warps on shared memory.
    pub shared_races: bool,
    /// Races between thread blocks on global memory, and traffic by buffer.
    pub global_races: bool,
}

impl Checks {
    /// Every check.
    pub const ALL: Self = Self {
        uninitialized: true,
        shared_races: true,
        global_races: true,
    };
    /// Only the checks that a device makes too.
    pub const NONE: Self = Self {
        uninitialized: false,
        shared_races: false,
        global_races: false,
    };
}

/// Describes a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Thread blocks.
    pub grid: [u32; 3],
    /// Threads of a thread block.
    pub block: [u32; 3],
    /// Dynamic shared memory of a thread block.
    pub shared_bytes: u32,
    /// Checks to make.
    pub checks: Checks,
    /// Limit of a warp's instructions, after which it counts as endless.
    pub instruction_limit: u64,
    /// Number of thread blocks that the device holds at once, for kernels whose blocks wait for each other; 0 means as many as an H200 holds by
    /// threads and shared memory.
    pub resident_blocks: u64,
    /// Host threads; 0 means one per core.
    pub host_threads: usize,
    /// Bytes that earlier launches write, if this one may begin before they are done (the driver's attribute of programmatic stream serialization).
    /// Its threads must then wait before they read those bytes, and before they write anything.
    pub in_flight: Option<Arc<Written>>,
    /// Whether the report lists the written bytes; only with the check for races between thread blocks.
    pub reports_written: bool,
}

impl LaunchConfig {
    /// Makes a launch with every check and no dynamic shared memory.
    pub fn new(grid: [u32; 3], block: [u32; 3]) -> Self {
        Self {
            grid,
            block,
            shared_bytes: 0,
            checks: Checks::ALL,
            instruction_limit: 1 << 32,
            resident_blocks: 0,
            host_threads: 0,
            in_flight: None,
            reports_written: false,
        }
    }
}

/// The arguments of a kernel, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments(Vec<Vec<u8>>);

impl Arguments {
    /// Makes an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the bytes of each argument, in order.
    pub fn values(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(Vec::as_slice)
    }

    /// Appends an address.
    #[must_use]
    pub fn ptr(self, value: DevicePtr) -> Self {
        self.bytes(&value.0.to_le_bytes())
    }

    /// Appends an integer.
    #[must_use]
    pub fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Appends an integer.
    #[must_use]
    pub fn i32(self, value: i32) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Appends an integer.
    #[must_use]
    pub fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Appends a float.
    #[must_use]
    pub fn f32(self, value: f32) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Appends the bytes of a value of any type, in the layout of the device.
    #[must_use]
    pub fn bytes(mut self, value: &[u8]) -> Self {
        self.0.push(value.to_vec());
        self
    }
}

/// Counts and findings of a launch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaunchReport {
    /// Instructions and traffic.
    pub counters: Counters,
    /// Faults and undefined behaviour, by thread block; at most one for a pair of instructions.
    pub findings: Vec<Finding>,
    /// The bytes that it wrote, if they were requested.
    pub written: Written,
}

struct BlockResult {
    findings: Vec<Finding>,
    log: AccessLog,
}

/// Runs `kernel` over the grid and returns when it is done.
///
/// # Errors
/// [`LaunchError`] if a device would refuse the launch. Faults of the kernel are in the report.
pub fn launch(
    kernel: &Kernel,
    memory: &DeviceMemory,
    config: &LaunchConfig,
    arguments: &Arguments,
) -> Result<LaunchReport, LaunchError> {
    check_sizes(kernel, config)?;
    let params = lay_out(kernel, arguments)?;
    let (uniform32, uniform64) = uniform_registers(kernel, config, &params);
    let has_waited = AtomicBool::new(false);
    let context = LaunchContext {
        kernel,
        memory,
        grid: config.grid,
        block: config.block,
        dynamic_shared_bytes: config.shared_bytes,
        checks: config.checks,
        instruction_limit: config.instruction_limit,
        uniform32: &uniform32,
        uniform64: &uniform64,
        early: config.in_flight.as_deref().map(|in_flight| Early {
            in_flight,
            has_waited: &has_waited,
        }),
        n_events: AtomicU64::new(0),
    };
    let n_blocks: u64 = config.grid.iter().map(|&n| u64::from(n)).product();
    let run = if kernel.is_order_dependent {
        let n_resident = match config.resident_blocks {
            0 => {
                let n_threads = config.block.iter().product();
                let shared_bytes = kernel.shared_bytes + config.shared_bytes;
                let n_of_one = Multiprocessor::OF_H200.resident_blocks(n_threads, 1, shared_bytes);
                u64::from(n_of_one * Multiprocessor::N_OF_H200)
            }
            n => n,
        };
        run_in_turns(&context, n_resident)
    } else {
        run_at_once(&context, n_blocks, config.host_threads)
    };
    Ok(conclude(&context, run, config.reports_written))
}

/// Results of a launch's thread blocks.
struct Run {
    /// By thread block.
    results: BTreeMap<u64, BlockResult>,
    /// The first thread block that was stopped.
    stopped_at: u64,
    counters: Counters,
    /// Whether thread blocks waited for each other.
    has_waited: bool,
}

fn run_in_turns(context: &LaunchContext<'_>, n_resident: u64) -> Run {
    let mut results = BTreeMap::new();
    let mut stopped_at = u64::MAX;
    let end = |end: BlockEnd| {
        // Several blocks may stop together; all of them are reported.
        if end.is_stopped {
            stopped_at = if stopped_at == u64::MAX {
                end.index
            } else {
                stopped_at.max(end.index)
            };
        }
        results.insert(
            end.index,
            BlockResult {
                findings: end.findings,
                log: end.log,
            },
        );
    };
    let (has_waited, counters) = residents::run(context, n_resident, |_| false, end);
    Run {
        results,
        stopped_at,
        counters,
        has_waited,
    }
}

fn run_at_once(context: &LaunchContext<'_>, n_blocks: u64, host_threads: usize) -> Run {
    let available = match host_threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        n => n,
    };
    let n_threads = available.min(n_blocks as usize);
    let next_block = AtomicU64::new(0);
    // Thread blocks after the first stopped one are not begun; those before it run to their end.
    let stopped_at = AtomicU64::new(u64::MAX);
    let results: Mutex<BTreeMap<u64, BlockResult>> = Mutex::new(BTreeMap::new());
    let total = Mutex::new(Counters::default());
    let work = || {
        let mut runner = BlockRunner::new(context);
        loop {
            let index = next_block.fetch_add(1, Relaxed);
            if index >= n_blocks || index > stopped_at.load(Relaxed) {
                break;
            }
            runner.begin(index, residents::position(context.grid, index), false);
            let is_stopped = runner.resume().is_err();
            if is_stopped {
                stopped_at.fetch_min(index, Relaxed);
            }
            let BlockEnd { findings, log, .. } = runner.take_end(index, is_stopped);
            let mut results = results
                .lock()
                .expect("no host thread panics while it holds the lock");
            results.insert(index, BlockResult { findings, log });
        }
        let counters = runner.finish();
        total
            .lock()
            .expect("no host thread panics while it holds the lock")
            .add(&counters);
    };
    if n_threads == 1 {
        work();
    } else {
        std::thread::scope(|scope| {
            let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, work);
            // If some threads do not start, the others do their work.
            if (0..n_threads).map_while(|thread| spawn(thread).ok()).count() == 0 {
                work();
            }
        });
    }
    Run {
        results: results.into_inner().expect("the host threads are done"),
        stopped_at: stopped_at.into_inner(),
        counters: total.into_inner().expect("the host threads are done"),
        has_waited: false,
    }
}

fn conclude(context: &LaunchContext<'_>, run: Run, reports_written: bool) -> LaunchReport {
    let Run {
        results,
        stopped_at,
        mut counters,
        has_waited,
    } = run;
    let mut findings: Vec<Finding> = Vec::new();
    let mut logs = Vec::with_capacity(results.len());
    for (index, result) in results {
        if index > stopped_at {
            break;
        }
        for finding in result.findings {
            let is_known = findings.iter().any(|known| {
                known.location.instruction == finding.location.instruction
                    && std::mem::discriminant(&known.kind) == std::mem::discriminant(&finding.kind)
            });
            if !is_known && (findings.len() < MAX_FINDINGS || finding.kind.is_fatal()) {
                findings.push(finding);
            }
        }
        logs.push((index, result.log));
    }
    if context.checks.global_races {
        access_log::unique_sectors(&logs, context.memory, &mut counters.buffers);
        let limit = MAX_FINDINGS.saturating_sub(findings.len());
        for race in access_log::races(&logs, has_waited, limit) {
            let other = location(context, race.first);
            findings.push(Finding {
                location: location(context, race.second),
                kind: FindingKind::GlobalRace {
                    address: race.address,
                    conflict: race.conflict,
                    other: Box::new(other),
                },
            });
        }
    }
    let last = context.kernel.places.last();
    if let (Some(early), Some(last)) = (context.early, last)
        && !early.has_waited.load(Relaxed)
    {
        findings.push(Finding {
            location: Location {
                kernel: context.kernel.name.clone(),
                block: [0; 3],
                warp: 0,
                lane: 0,
                instruction: last.into(),
            },
            kind: FindingKind::NoWait,
        });
    }
    let written = if reports_written {
        Written::of(&logs)
    } else {
        Written::default()
    };
    LaunchReport {
        counters,
        findings,
        written,
    }
}

fn location(context: &LaunchContext<'_>, (index, access, lane): (u64, Access, u32)) -> Location {
    Location {
        kernel: context.kernel.name.clone(),
        block: residents::position(context.grid, index),
        warp: u32::from(access.warp),
        lane,
        instruction: (&context.kernel.places[access.pc as usize]).into(),
    }
}

pub(crate) fn check_sizes(kernel: &Kernel, config: &LaunchConfig) -> Result<(), LaunchError> {
    let check = |what, found: u64, minimum: u64, maximum: u64| {
        if (minimum..=maximum).contains(&found) {
            Ok(())
        } else {
            Err(LaunchError::Size {
                kernel: kernel.name.clone(),
                what,
                found,
                maximum,
            })
        }
    };
    let [x, y, z] = config.grid.map(u64::from);
    check("grid.x", x, 1, i32::MAX as u64)?;
    check("grid.y", y, 1, u16::MAX.into())?;
    check("grid.z", z, 1, u16::MAX.into())?;
    let [x, y, z] = config.block.map(u64::from);
    check("block.x", x, 1, 1024)?;
    check("block.y", y, 1, 1024)?;
    check("block.z", z, 1, 64)?;
    check(
        "threads of a thread block",
        x * y * z,
        1,
        kernel.max_threads.into(),
    )?;
    let shared = u64::from(kernel.shared_bytes) + u64::from(config.shared_bytes);
    check("shared memory", shared, 0, MAX_SHARED_BYTES.into())
}

pub(crate) fn lay_out(kernel: &Kernel, arguments: &Arguments) -> Result<Vec<u8>, LaunchError> {
    let arguments = &arguments.0;
    if arguments.len() != kernel.params.len() {
        return Err(LaunchError::ArgumentCount {
            kernel: kernel.name.clone(),
            expected: kernel.params.len(),
            found: arguments.len(),
        });
    }
    let bytes = kernel.params.last().map_or(0, |param| param.offset + param.bytes);
    let mut params = vec![0; bytes as usize];
    for (index, (param, argument)) in kernel.params.iter().zip(arguments).enumerate() {
        if argument.len() != param.bytes as usize {
            return Err(LaunchError::ArgumentSize {
                kernel: kernel.name.clone(),
                index,
                expected: param.bytes as usize,
                found: argument.len(),
            });
        }
        params[param.offset as usize..][..argument.len()].copy_from_slice(argument);
    }
    Ok(params)
}

pub(crate) type Uniform = (Vec<(u16, u32)>, Vec<(u16, u64)>);

/// Returns the values of the constant registers that all threads share.
pub(crate) fn uniform_registers(kernel: &Kernel, config: &LaunchConfig, params: &[u8]) -> Uniform {
    let value = |constant: &Constant| match *constant {
        Constant::Immediate(value) => Some(value),
        Constant::Param { offset, ty } => {
            let mut bytes = [0; 8];
            let n = ty.bytes() as usize;
            bytes[..n].copy_from_slice(&params[offset as usize..][..n]);
            let bits = u64::from_le_bytes(bytes);
            Some(match ty {
                Ty::S8 => bits as i8 as u64,
                Ty::S16 => bits as i16 as u64,
                Ty::S32 => bits as i32 as u64,
                _ => bits,
            })
        }
        Constant::DynamicShared => Some(u64::from(kernel.shared_bytes.next_multiple_of(16))),
        Constant::Special(Special::Ntid(axis)) => Some(config.block[usize::from(axis)].into()),
        Constant::Special(Special::Nctaid(axis)) => Some(config.grid[usize::from(axis)].into()),
        Constant::Special(Special::DynamicSharedBytes) => Some(config.shared_bytes.into()),
        Constant::Special(_) => None,
    };
    let narrow = kernel
        .constants32
        .iter()
        .filter_map(|(register, constant)| Some((*register, value(constant)? as u32)));
    let wide = kernel
        .constants64
        .iter()
        .filter_map(|(register, constant)| Some((*register, value(constant)?)));
    (narrow.collect(), wide.collect())
}
