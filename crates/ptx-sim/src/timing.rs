//! [`estimate`]: how long a launch would take on a GPU, without the GPU.
//!
//! The simulator runs the thread blocks of a grid, or a sample of them if there are many, and records the instructions they execute. It then
//! plays one multiprocessor's share of the grid in time. Register dependences, addresses and trip counts come from the run; the figures of the
//! GPU come from a [`DeviceProfile`]. A kernel's own figures are its registers and the bytes of its code, which comes line by line if it is in
//! no instruction cache. The model leaves out caches of constants, address translation, conflicts in device memory, the order in which a real
//! scheduler picks warps, and the time to start and drain a launch beyond [`DeviceProfile::launch_us`].
//!
//! An estimate runs without the checks of [`launch`](crate::launch()) and runs only some thread blocks of a large grid. Memory does not
//! hold the launch's results afterwards, and a kernel whose work depends on values sees stale memory.

mod code;
mod cost;
mod device;
mod mix;
mod multiprocessor;
mod residency;
mod schedule;
mod start;
mod traffic;
mod work;

use std::{collections::BTreeMap, fmt, sync::atomic::AtomicU64};

pub use self::{
    code::Assembled,
    device::{DeviceProfile, Lanes, Latencies},
    residency::Residency,
    start::Start,
};
use self::{
    multiprocessor::simulate,
    schedule::Schedule,
    start::Room,
    traffic::Traffic,
    work::{Outcome, Work},
};
use crate::{
    Arguments, Checks, DeviceMemory, DevicePtr, Kernel, LaunchConfig, LaunchError,
    counters::SECTOR_BYTES,
    exec::{BlockRunner, LaunchContext},
    launch::{check_sizes, lay_out, uniform_registers},
    residents,
    trace::{BlockTrace, Executed},
};

/// Largest number of instructions kept over all thread blocks that are run.
const MAX_EXECUTED: usize = 4 << 20;
/// Largest grid that is run whole, if its thread blocks are short enough.
const WHOLE_GRID: u64 = 192;
/// Number of thread blocks that are run of a larger grid, besides the first two and the last.
const N_SAMPLES: u64 = 16;
/// Number of rounds of resident thread blocks that are played in time; further rounds are extrapolated.
const MAX_ROUNDS: usize = 6;
/// Share of a limit from which on it counts as the limit.
const IS_LIMIT: f64 = 0.7;

/// The limit that keeps a launch from being faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Limiter {
    /// The launch takes less time than launching it.
    Launch,
    /// Slots of the schedulers.
    Issue,
    /// An arithmetic unit.
    Arithmetic,
    /// The unit of loads, stores and shuffles: L1 and shared memory.
    Shared,
    /// The bandwidth of L2.
    L2,
    /// The bandwidth of device memory.
    Dram,
    /// Fewer thread blocks work than there are multiprocessors.
    Blocks,
    /// The last round of thread blocks leaves most multiprocessors idle.
    Tail,
    /// The launch waits for results, and nothing else is busy.
    Latency,
}

impl Limiter {
    /// Returns the name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Launch => "launch",
            Self::Issue => "issue",
            Self::Arithmetic => "arithmetic",
            Self::Shared => "shared",
            Self::L2 => "l2",
            Self::Dram => "dram",
            Self::Blocks => "few thread blocks",
            Self::Tail => "tail",
            Self::Latency => "latency",
        }
    }
}

impl fmt::Display for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The estimated time of a launch, and how it uses the device.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Estimate {
    /// Microseconds from its first instruction to its last; if it begins early, from the first after its wait.
    pub us: f64,
    /// Microseconds between the previous launch and that moment.
    pub gap_us: f64,
    /// Time at which it lets later launches begin, in microseconds from that moment: all its thread blocks are on multiprocessors and have
    /// signalled.
    pub lets_next_us: f64,
    /// Thread blocks of the grid.
    pub thread_blocks: u64,
    /// Thread blocks that do at least an eighth of the work of the longest.
    pub working_blocks: u64,
    /// Thread blocks of a multiprocessor at a time.
    pub resident_blocks: u32,
    /// Rounds of resident thread blocks on all multiprocessors.
    pub rounds: f64,
    /// Bytes from device memory.
    pub dram_bytes: f64,
    /// Bytes requested from L2.
    pub l2_bytes: f64,
    /// Average bytes of loads in flight, on the multiprocessor that was played.
    pub in_flight: f64,
    /// The maximum of the same.
    pub in_flight_peak: f64,
    /// Used slots of the schedulers, of 1.
    pub issue_share: f64,
    /// Used bandwidth of device memory, of 1.
    pub dram_share: f64,
    /// The limit that keeps it from being faster.
    pub limiter: Limiter,
    /// Different bytes of each allocation that it touches.
    pub touched: BTreeMap<DevicePtr, u64>,
    /// Bytes of its code that were in no instruction cache.
    pub cold_code_bytes: u32,
    /// Room on a multiprocessor that its thread blocks leave.
    room: Room,
}

/// Estimates the time of a launch of `kernel`, which is `assembled` for the device, and notes in `residency` which memory and code it leaves
/// in the caches. `start` is how it begins. Runs some thread blocks of the grid on `memory`.
///
/// # Errors
/// [`LaunchError`] if a device would refuse the launch, or if a thread block has a fault that stops a device.
pub fn estimate(
    kernel: &Kernel,
    memory: &DeviceMemory,
    config: &LaunchConfig,
    arguments: &Arguments,
    assembled: &Assembled,
    device: &DeviceProfile,
    residency: &mut Residency,
    start: &Start,
) -> Result<Estimate, LaunchError> {
    check_sizes(kernel, config)?;
    let n_threads = config.block.iter().product::<u32>();
    let shared_bytes = kernel.shared_bytes + config.shared_bytes;
    let n_registers = assembled.n_registers;
    let n_resident = device.resident_blocks(n_threads, n_registers, shared_bytes);
    if n_resident == 0 {
        return Err(LaunchError::Size {
            kernel: kernel.name.clone(),
            what: "registers of a thread block",
            found: u64::from(n_registers) * u64::from(n_threads),
            maximum: device.n_registers.into(),
        });
    }
    let schedule = Schedule::of(kernel, device);
    let n_resident_in_all = u64::from(n_resident) * u64::from(device.n_multiprocessors);
    let mut traces = run_samples(kernel, memory, config, arguments, n_resident_in_all)?;
    for warp in traces.iter_mut().flat_map(|trace| &mut trace.warps) {
        reorder(warp, &schedule);
    }
    let n_blocks: u64 = config.grid.iter().map(|&n| u64::from(n)).product();
    let traffic = Traffic::of(kernel, memory, &traces, n_blocks, device, residency);
    let blocks = blocks_of_one(&traces, n_blocks, device);
    let n_of_one = blocks.len();

    let bytes_of_one =
        |level: usize| -> f64 { blocks.iter().map(|&trace| traffic.bytes[trace][level]).sum() };
    let n_multiprocessors = f64::from(device.n_multiprocessors);
    let share = |level: usize, bandwidth: f64| {
        let share = bytes_of_one(level) / traffic.total[level].max(1.0);
        (bandwidth * share.clamp(1.0 / n_multiprocessors, 1.0)).min(device.l2_port_bytes_per_clock)
    };
    let l1_bytes = u64::from(device.l1_bytes.saturating_sub(n_resident * shared_bytes));
    let n_played = n_of_one.min(n_resident as usize * MAX_ROUNDS);
    let work = Work {
        kernel,
        device,
        traces: &traces,
        sources: &traffic.sources,
        blocks: blocks[..n_played].to_vec(),
        n_resident: n_resident as usize,
        l1_sectors: (l1_bytes / SECTOR_BYTES) as usize,
        l2_bytes_per_clock: share(0, device.l2_bytes_per_clock),
        dram_bytes_per_clock: share(1, device.dram_bytes_per_clock()),
        release: start.lead_us * device.clock_ghz * 1e3,
        n_early: start.room.blocks(n_threads, n_registers, shared_bytes) as usize,
        early_share: 1.0 - start.busy_share,
        write_back: traffic.write_back,
        cold_code_bytes: residency.cold_code_bytes(kernel, assembled, device),
    };
    let outcome = simulate(&work);
    // Only the first round waits for code.
    let once_clocks = if n_played < n_of_one && work.cold_code_bytes > 0 {
        let warm = Work {
            cold_code_bytes: 0,
            blocks: work.blocks.clone(),
            ..work
        };
        outcome.clocks - simulate(&warm).clocks
    } else {
        0.0
    };
    for (&allocation, &bytes) in &traffic.touched {
        residency.touch(allocation, bytes, device);
    }
    residency.run(kernel, assembled, device);

    let longest = traces.iter().map(BlockTrace::n_executed).max().unwrap_or(0);
    let n_working = traces
        .iter()
        .filter(|trace| trace.n_executed() * 8 >= longest)
        .count();
    let working_blocks = n_working as f64 * n_blocks as f64 / traces.len() as f64;
    let rounds = n_blocks as f64 / (f64::from(n_resident) * n_multiprocessors);
    let of_rounds = (outcome.clocks - once_clocks) * n_of_one as f64 / n_played.max(1) as f64;
    let clocks = of_rounds + once_clocks;
    let us_of = |clocks: f64| clocks / device.clock_ghz / 1e3;
    let us = us_of(clocks);
    let n_last = u64::from(n_resident).min(n_blocks.div_ceil(u64::from(device.n_multiprocessors)));
    let all_dram = device.dram_bytes_per_clock();
    Ok(Estimate {
        us,
        gap_us: start.gap_us,
        lets_next_us: (us - us_of(outcome.clocks - outcome.lets_next)).max(0.0),
        room: Room::beside(n_last as u32, n_threads, n_registers, shared_bytes, device),
        thread_blocks: n_blocks,
        working_blocks: working_blocks.round() as u64,
        resident_blocks: n_resident,
        rounds,
        dram_bytes: traffic.total[1],
        l2_bytes: traffic.total[0],
        in_flight: outcome.in_flight,
        in_flight_peak: outcome.in_flight_peak,
        issue_share: outcome.slots / (4.0 * outcome.clocks).max(1.0),
        dram_share: traffic.total[1] / (all_dram * clocks).max(1.0),
        limiter: limiter(&work, &outcome, us, working_blocks, rounds),
        touched: traffic.touched,
        cold_code_bytes: work.cold_code_bytes,
    })
}

fn limiter(work: &Work<'_>, outcome: &Outcome, us: f64, working_blocks: f64, rounds: f64) -> Limiter {
    let device = work.device;
    let clocks = outcome.clocks.max(1.0);
    let shares = [
        (
            Limiter::Dram,
            outcome.dram_bytes / work.dram_bytes_per_clock / clocks,
        ),
        (Limiter::L2, outcome.l2_bytes / work.l2_bytes_per_clock / clocks),
        (Limiter::Issue, outcome.slots / 4.0 / clocks),
        (Limiter::Arithmetic, outcome.unit_clocks / 4.0 / clocks),
        (Limiter::Shared, outcome.memory_clocks / clocks),
    ];
    let (top, share) = shares
        .into_iter()
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .expect("the list is not empty");
    if us < device.launch_us {
        Limiter::Launch
    } else if share >= IS_LIMIT {
        top
    } else if working_blocks < f64::from(device.n_multiprocessors) {
        Limiter::Blocks
    } else if rounds < 8.0 && rounds.ceil() / rounds.max(0.01) > 1.3 && rounds > 1.0 {
        Limiter::Tail
    } else {
        Limiter::Latency
    }
}

/// Runs thread blocks of the grid: all of a small one; otherwise the first two, the last, and some between.
fn run_samples(
    kernel: &Kernel,
    memory: &DeviceMemory,
    config: &LaunchConfig,
    arguments: &Arguments,
    n_resident: u64,
) -> Result<Vec<BlockTrace>, LaunchError> {
    let params = lay_out(kernel, arguments)?;
    let (uniform32, uniform64) = uniform_registers(kernel, config, &params);
    let context = LaunchContext {
        kernel,
        memory,
        grid: config.grid,
        block: config.block,
        dynamic_shared_bytes: config.shared_bytes,
        checks: Checks::NONE,
        instruction_limit: config.instruction_limit,
        uniform32: &uniform32,
        uniform64: &uniform64,
        early: None,
        n_events: AtomicU64::new(0),
    };
    let n_blocks: u64 = config.grid.iter().map(|&n| u64::from(n)).product();
    if kernel.is_order_dependent {
        return run_all(&context, n_blocks, n_resident);
    }
    let mut runner = BlockRunner::new(&context);
    let mut traces: Vec<BlockTrace> = Vec::new();
    let mut keep = |index: u64| -> Result<BlockTrace, LaunchError> {
        runner.begin(index, residents::position(config.grid, index), true);
        let is_stopped = runner.resume().is_err();
        let end = runner.take_end(index, is_stopped);
        check(end.findings)?;
        Ok(end.trace.unwrap_or_default())
    };
    traces.push(keep(0)?);
    let room = (MAX_EXECUTED / traces[0].n_executed().max(1)) as u64;
    for index in samples(n_blocks, room).into_iter().filter(|&index| index > 0) {
        traces.push(keep(index)?);
    }
    Ok(traces)
}

/// Runs all thread blocks, since some wait for others' results, and keeps samples.
fn run_all(
    context: &LaunchContext<'_>,
    n_blocks: u64,
    n_resident: u64,
) -> Result<Vec<BlockTrace>, LaunchError> {
    // The first to end shows how many can be kept; if it waits for the others, a few are.
    let room = std::cell::Cell::new(N_SAMPLES);
    let mut wanted: Option<Vec<u64>> = None;
    let is_traced = |index: u64| {
        index == 0
            || (wanted.get_or_insert_with(|| samples(n_blocks, room.get())))
                .binary_search(&index)
                .is_ok()
    };
    let mut traces: Vec<BlockTrace> = Vec::new();
    let mut findings = Vec::new();
    residents::run(context, n_resident, is_traced, |end| {
        findings.extend(end.findings);
        traces.extend(end.trace);
        if end.index == 0 {
            room.set((MAX_EXECUTED / traces.last().map_or(1, |trace| trace.n_executed().max(1))) as u64);
        }
    });
    check(findings)?;
    traces.sort_unstable_by_key(|trace| trace.index);
    Ok(traces)
}

/// Refuses faults that would stop a device.
fn check(findings: Vec<crate::Finding>) -> Result<(), LaunchError> {
    match findings.into_iter().find(|finding| finding.kind.is_fatal()) {
        None => Ok(()),
        Some(finding) => Err(LaunchError::Fault {
            finding: Box::new(finding),
        }),
    }
}

/// Returns the thread blocks to run, in order, if about `room` of them can be kept.
fn samples(n_blocks: u64, room: u64) -> Vec<u64> {
    if n_blocks <= WHOLE_GRID && n_blocks <= room {
        return (0..n_blocks).collect();
    }
    let n = N_SAMPLES.min(room).max(1);
    let mut wanted: Vec<u64> = (0..n).map(|sample| sample * n_blocks / n).collect();
    wanted.extend([0, 1.min(n_blocks - 1), n_blocks - 1]);
    wanted.sort_unstable();
    wanted.dedup();
    wanted
}

/// Returns the thread blocks of the multiprocessor with most work, each as the index of the nearest trace in the grid.
fn blocks_of_one(traces: &[BlockTrace], n_blocks: u64, device: &DeviceProfile) -> Vec<usize> {
    let n_multiprocessors = u64::from(device.n_multiprocessors);
    let nearest = |index: u64| -> usize {
        let after = traces.partition_point(|trace| trace.index < index);
        match traces.get(after) {
            Some(trace) if after == 0 || trace.index - index <= index - traces[after - 1].index => after,
            _ => after - 1,
        }
    };
    (0..n_multiprocessors.min(n_blocks))
        .map(|first| {
            let blocks: Vec<usize> = (first..n_blocks)
                .step_by(n_multiprocessors as usize)
                .map(nearest)
                .collect();
            let work: usize = blocks.iter().map(|&trace| traces[trace].n_executed()).sum();
            (work, blocks)
        })
        // The first of equals counts.
        .reduce(|best, next| if next.0 > best.0 { next } else { best })
        .map(|(_, blocks)| blocks)
        .unwrap_or_default()
}

/// Puts a warp's executed instructions in the order in which the assembler would have them, basic block by basic block.
fn reorder(executed: &mut [Executed], schedule: &Schedule) {
    let mut at = 0;
    while at < executed.len() {
        let first = executed[at].pc;
        let Some(order) = schedule.block(first) else {
            at += 1;
            continue;
        };
        let n = order.len();
        let is_whole = (executed.get(at..at + n))
            .is_some_and(|run| run.iter().zip(first..).all(|(one, pc)| one.pc == pc));
        if is_whole {
            let run = executed[at..at + n].to_vec();
            for (to, &pc) in executed[at..at + n].iter_mut().zip(order) {
                *to = run[(pc - first) as usize];
            }
            at += n;
        } else {
            at += 1;
        }
    }
}
