//! Running one thread block: warps, their divergence, and the loop that executes decoded instructions.
//!
//! A warp's lanes at the same instruction form a *split*. The split with the lowest instruction index runs; splits that
//! meet merge. An instruction that needs several lanes together makes its split wait until all have arrived, so
//! reconvergence needs no hints. A warp runs until it exits or waits at a barrier; that order does not hide races,
//! because they are found from recorded accesses, not from values.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

mod asynchronous;
mod atomic;
mod barrier;
mod compute;
mod convert;
mod early;
mod global;
mod groups;
mod local;
mod matrix;
mod memory;
mod register_files;
mod shared;
#[cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "the island: an instruction set chosen at run time")
)]
mod simd;
mod spin;
mod warp;
mod warp_ops;

pub(crate) use self::early::Early;
use self::{
    barrier::{BarrierWait, N_BARRIERS},
    global::GlobalState,
    shared::SharedState,
    warp::{Split, Warp, branch, merge_lanes, regroup},
};
use crate::{
    Checks, Counters, DeviceMemory, Finding, FindingKind, Kernel,
    access_log::AccessLog,
    lanes::LANES,
    op::{AsyncOp, Op},
    report::{InstructionPlace, Location},
    trace::BlockTrace,
    types::Space,
};

/// All lanes.
const FULL: u32 = u32::MAX;
/// Largest number of findings that one thread block reports.
const MAX_FINDINGS: usize = 32;

/// Stops the launch; a finding says why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stop;

/// Says how far a thread block has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Done,
    /// All its warps wait for writes of other thread blocks.
    Spins,
}

/// Results of one thread block.
pub(crate) struct BlockEnd {
    pub(crate) index: u64,
    /// Whether a device would have stopped at its end.
    pub(crate) is_stopped: bool,
    pub(crate) findings: Vec<Finding>,
    pub(crate) log: AccessLog,
    /// The executed instructions, if a trace was requested.
    pub(crate) trace: Option<BlockTrace>,
}

/// State that all thread blocks of a launch share.
pub(crate) struct LaunchContext<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) memory: &'a DeviceMemory,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) dynamic_shared_bytes: u32,
    pub(crate) checks: Checks,
    pub(crate) instruction_limit: u64,
    /// Register values that are the same for all threads of the launch, by register.
    pub(crate) uniform32: &'a [(u16, u32)],
    pub(crate) uniform64: &'a [(u16, u64)],
    /// Set if the launch may begin before earlier ones are done.
    pub(crate) early: Option<Early<'a>>,
    /// Accesses so far that may order thread blocks.
    pub(crate) n_events: AtomicU64,
}

impl LaunchContext<'_> {
    /// Returns the place of an access that may order thread blocks, among all of the launch.
    fn next_event(&self) -> u64 {
        self.n_events.fetch_add(1, Relaxed)
    }
}

/// Runs thread blocks one after the other; each host thread has one and reuses its memory.
pub(crate) struct BlockRunner<'a> {
    context: &'a LaunchContext<'a>,
    block_index: [u32; 3],
    warps: Vec<Warp>,
    shared: SharedState,
    global: GlobalState,
    log: AccessLog,
    /// Executions of each instruction.
    executions: Vec<u64>,
    counters: Counters,
    findings: Vec<Finding>,
    /// The executed instructions of the thread block, if a trace is requested.
    trace: Option<BlockTrace>,
    /// The matrix operations of each warpgroup; empty if the kernel has none.
    group_shapes: Vec<Vec<groups::Shape>>,
    simd: simd::Simd,
}

/// Iterates over the set bits of a mask.
fn lanes_of(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (mask != 0).then(|| {
            let lane = mask.trailing_zeros() as usize;
            mask &= mask - 1;
            lane
        })
    })
}

impl<'a> BlockRunner<'a> {
    pub(crate) fn new(context: &'a LaunchContext<'a>) -> Self {
        let kernel = context.kernel;
        let n_threads = context.block.iter().product::<u32>();
        let n_warps = n_threads.div_ceil(LANES as u32);
        let files = register_files::take(n_warps as usize, kernel, context.uniform32, context.uniform64);
        let warps = (0..n_warps)
            .zip(files)
            .map(|(index, registers)| Warp {
                index,
                registers,
                preds: vec![0; kernel.n_preds],
                splits: Vec::with_capacity(LANES),
                local: local::LocalState::new(kernel.local_bytes),
                ..Warp::vacant()
            })
            .collect();
        let dynamic_start = kernel.shared_bytes.next_multiple_of(16);
        let shared_bytes = if context.dynamic_shared_bytes == 0 {
            kernel.shared_bytes
        } else {
            dynamic_start + context.dynamic_shared_bytes
        };
        let has_async = (kernel.code.iter()).any(|instruction| matches!(instruction.op, Op::Async(_)));
        let n_groups = if groups::has_groups(kernel) {
            n_warps.div_ceil(4)
        } else {
            0
        };
        Self {
            context,
            block_index: [0; 3],
            warps,
            shared: SharedState::new(shared_bytes as usize, n_warps as usize, has_async),
            global: GlobalState::new(kernel.code.len(), context.memory.n_allocations()),
            log: AccessLog::default(),
            executions: vec![0; kernel.code.len()],
            counters: Counters::default(),
            findings: Vec::new(),
            trace: None,
            group_shapes: vec![Vec::new(); n_groups as usize],
            simd: simd::Simd::detect(),
        }
    }

    /// Begins a thread block; its executed instructions are kept if a trace is requested.
    pub(crate) fn begin(&mut self, index: u64, block_index: [u32; 3], is_traced: bool) {
        self.trace = is_traced.then(|| BlockTrace::new(index, self.warps.len()));
        self.block_index = block_index;
        self.counters.thread_blocks += 1;
        self.reset();
    }

    /// Runs the thread block until it ends, or until it can only wait for other thread blocks.
    pub(crate) fn resume(&mut self) -> Result<Progress, Stop> {
        self.run_warps()
    }

    /// Takes the results of the thread block that ran last: its findings, its log of global accesses and its trace. The
    /// counters accumulate.
    pub(crate) fn take_end(&mut self, index: u64, is_stopped: bool) -> BlockEnd {
        BlockEnd {
            index,
            is_stopped,
            findings: std::mem::take(&mut self.findings),
            log: std::mem::take(&mut self.log).finish(),
            trace: self.trace.take(),
        }
    }

    /// Returns the counters of all thread blocks run so far, and those of the buffers by allocation index.
    pub(crate) fn finish(mut self) -> Counters {
        for (instruction, &count) in self.context.kernel.code.iter().zip(&self.executions) {
            if count > 0 {
                *self
                    .counters
                    .instructions
                    .entry(instruction.op.class())
                    .or_default() += count;
            }
        }
        self.global.add_buffers(self.context.memory, &mut self.counters);
        register_files::give_back(self.warps.into_iter().map(|warp| warp.registers));
        self.counters
    }

    fn reset(&mut self) {
        let context = self.context;
        let kernel = context.kernel;
        let n_threads = context.block.iter().product::<u32>();
        self.shared.reset();
        for warp in &mut self.warps {
            for &register in &kernel.read_first.regs32 {
                warp.registers.regs32[usize::from(register)] = [0; LANES];
            }
            for &register in &kernel.read_first.regs64 {
                warp.registers.regs64[usize::from(register)] = [0; LANES];
            }
            warp.preds.fill(0);
            for &(register, value) in &kernel.constant_preds {
                warp.preds[usize::from(register)] = if value { FULL } else { 0 };
            }
            let first_thread = warp.index * LANES as u32;
            for (register, constant) in &kernel.constants32 {
                if let crate::kernel::Constant::Special(special) = constant
                    && let Some(lanes) = special.of_warp(context.block, self.block_index, first_thread)
                {
                    warp.registers.regs32[usize::from(*register)] = lanes;
                }
            }
            let n_lanes = (n_threads - first_thread).min(LANES as u32);
            warp.alive = if n_lanes == 32 { FULL } else { (1 << n_lanes) - 1 };
            warp.splits.clear();
            warp.splits.push(Split {
                pc: 0,
                mask: warp.alive,
                is_waiting: false,
            });
            warp.waiting = None;
            warp.executed = 0;
            warp.local.reset();
            warp.copies.reset();
            warp.has_waited = 0;
            warp.awaits_phase = false;
            warp.awaits_write = false;
            warp.polls = spin::Polls::default();
            if !self.group_shapes.is_empty() {
                warp.groups.reset(kernel);
            }
        }
        self.group_shapes.iter_mut().for_each(Vec::clear);
    }

    fn run_warps(&mut self) -> Result<Progress, Stop> {
        loop {
            let mut is_any_done = false;
            for index in 0..self.warps.len() {
                if self.warps[index].alive == 0 || self.warps[index].waiting.is_some() {
                    continue;
                }
                // The warp is taken out while it runs, so that the rest of the thread block can be borrowed.
                let mut warp = std::mem::replace(&mut self.warps[index], Warp::vacant());
                let before = warp.executed;
                if std::mem::take(&mut warp.awaits_phase) | std::mem::take(&mut warp.awaits_write) {
                    warp.splits.iter_mut().for_each(|split| split.is_waiting = false);
                }
                let result = self.run_warp(&mut warp);
                is_any_done |= warp.executed != before && !warp.awaits_write;
                self.warps[index] = warp;
                result?;
            }
            if self.warps.iter().all(|warp| warp.alive == 0) {
                self.check_copies_left();
                return Ok(Progress::Done);
            }
            if self.warps.iter().any(|warp| warp.awaits_write) {
                if !is_any_done && !self.release_ready() && !self.let_copy_come() {
                    return Ok(Progress::Spins);
                }
            } else if !self.warps.iter().any(|warp| warp.awaits_phase) {
                self.release_barriers()?;
            } else if !is_any_done {
                self.unblock()?;
            }
        }
    }

    fn find(&mut self, warp: u32, lane: u32, pc: u32, kind: FindingKind) {
        let instruction: InstructionPlace = (&self.context.kernel.places[pc as usize]).into();
        let is_known = self.findings.iter().any(|finding| {
            finding.location.instruction == instruction
                && std::mem::discriminant(&finding.kind) == std::mem::discriminant(&kind)
        });
        if is_known || (self.findings.len() >= MAX_FINDINGS && !kind.is_fatal()) {
            return;
        }
        self.findings.push(Finding {
            location: Location {
                kernel: self.context.kernel.name.clone(),
                block: self.block_index,
                warp,
                lane,
                instruction,
            },
            kind,
        });
    }

    fn place(&self, pc: u32) -> InstructionPlace {
        (&self.context.kernel.places[pc as usize]).into()
    }

    /// Runs a warp until it exits or waits at a barrier.
    fn run_warp(&mut self, warp: &mut Warp) -> Result<(), Stop> {
        loop {
            let ready = (0..warp.splits.len())
                .filter(|&index| !warp.splits[index].is_waiting)
                .min_by_key(|&index| warp.splits[index].pc);
            let Some(index) = ready else {
                return match warp.splits.first() {
                    None => Ok(()),
                    Some(_) if warp.awaits_phase || warp.awaits_write => Ok(()),
                    Some(&split) => self.report_divergence(warp, split),
                };
            };
            let split = warp.splits.swap_remove(index);
            if self.run_split(warp, split)? == SplitEnd::Barrier {
                return Ok(());
            }
        }
    }

    /// Runs a split until it ends, waits, or is no longer the first of its warp, with the instruction set of the function that this is
    /// inlined into.
    #[inline(always)]
    fn run_split_any(&mut self, warp: &mut Warp, mut split: Split) -> Result<SplitEnd, Stop> {
        loop {
            match self.step(warp, &mut split)? {
                Flow::Next => {}
                Flow::Gone => return Ok(SplitEnd::Other),
                Flow::Wait => {
                    split.is_waiting = true;
                    warp.splits.push(split);
                    return Ok(SplitEnd::Other);
                }
                Flow::Barrier => {
                    warp.splits.push(split);
                    return Ok(SplitEnd::Barrier);
                }
            }
            if !warp.splits.is_empty() && regroup(&mut warp.splits, split) {
                return Ok(SplitEnd::Other);
            }
        }
    }

    fn report_divergence(&mut self, warp: &Warp, split: Split) -> Result<(), Stop> {
        let instruction = &self.context.kernel.code[split.pc as usize];
        let kind = match &instruction.op {
            Op::Barrier { .. } => FindingKind::DivergentBarrier {
                reached: split.mask,
                alive: warp.alive,
            },
            op => FindingKind::DivergentExchange {
                reached: split.mask,
                members: members_of(op, warp, split.mask).unwrap_or(warp.alive),
            },
        };
        self.find(warp.index, split.mask.trailing_zeros(), split.pc, kind);
        Err(Stop)
    }

    /// Executes one instruction of a split.
    #[inline(always)]
    fn step(&mut self, warp: &mut Warp, split: &mut Split) -> Result<Flow, Stop> {
        let context = self.context;
        let pc = split.pc;
        let instruction = &context.kernel.code[pc as usize];
        let mask = match instruction.guard {
            None => split.mask,
            Some((guard, is_negated)) => {
                let holds = warp.pred(guard);
                split.mask & if is_negated { !holds } else { holds }
            }
        };
        if !instruction.is_plain
            && let Some(members) = needs_together(&instruction.op, warp, mask)
            && mask != 0
            && split.mask & members != members & warp.alive
        {
            return Ok(Flow::Wait);
        }
        if !instruction.is_plain
            && let Op::Async(AsyncOp::TryWait { at, parity, .. }) = &instruction.op
            && mask != 0
            && !self.try_wait(warp, *at, *parity, mask, pc)?
        {
            warp.awaits_phase = true;
            return Ok(Flow::Wait);
        }
        warp.executed += 1;
        if warp.executed > context.instruction_limit {
            let kind = FindingKind::InstructionLimit {
                limit: context.instruction_limit,
            };
            self.find(warp.index, split.mask.trailing_zeros(), pc, kind);
            return Err(Stop);
        }
        self.executions[pc as usize] += 1;
        if let Some(trace) = &mut self.trace {
            trace.begin(warp.index, pc, mask);
        }
        split.pc = pc + 1;
        if mask == 0 {
            return Ok(Flow::Next);
        }
        if !self.group_shapes.is_empty() && context.checks.shared_races {
            self.note_registers(warp, instruction, mask, pc);
        }
        if !instruction.is_plain
            && let Some(flow) = self.change_flow(warp, split, &instruction.op, mask, pc)?
        {
            return Ok(flow);
        }
        self.execute(warp, &instruction.op, mask, pc)?;
        let may_poll = matches!(instruction.op, Op::Load { .. } | Op::Atomic { .. });
        if may_poll && warp.polls.take_stuck() {
            warp.awaits_write = true;
            return Ok(Flow::Wait);
        }
        Ok(Flow::Next)
    }

    /// Executes an instruction that changes the flow, on lanes that are not none; `None` if it is another.
    fn change_flow(
        &mut self,
        warp: &mut Warp,
        split: &mut Split,
        op: &Op,
        mask: u32,
        pc: u32,
    ) -> Result<Option<Flow>, Stop> {
        let flow = match op {
            Op::Branch { to } => {
                branch(warp, split, mask, *to);
                Flow::Next
            }
            Op::BranchTable { targets, index } => {
                let index = *warp.r32(*index);
                for (entry, &to) in targets.iter().enumerate() {
                    let taken = lanes_of(mask)
                        .filter(|&lane| index[lane] as usize == entry)
                        .fold(0, |taken, lane| taken | 1 << lane);
                    if taken != 0 {
                        split.mask &= !taken;
                        warp.splits.push(Split {
                            pc: to,
                            mask: taken,
                            is_waiting: false,
                        });
                    }
                }
                if split.mask == 0 { Flow::Gone } else { Flow::Next }
            }
            Op::Exit => {
                warp.alive &= !mask;
                split.mask &= !mask;
                // Splits that waited for the exited lanes can continue.
                for other in &mut warp.splits {
                    other.is_waiting = false;
                }
                if split.mask == 0 { Flow::Gone } else { Flow::Next }
            }
            Op::Trap => {
                self.find(warp.index, mask.trailing_zeros(), pc, FindingKind::Trap);
                return Err(Stop);
            }
            Op::Barrier { id, threads, reduce } => {
                let lane = mask.trailing_zeros() as usize;
                let id = warp.r32(*id)[lane] as usize % N_BARRIERS;
                let threads = threads.map(|threads| warp.r32(threads)[lane]);
                let reduce = reduce.map(|reduce| {
                    let answers = warp.pred(reduce.a);
                    (reduce, if reduce.negated { !answers } else { answers })
                });
                if mask != warp.alive {
                    let kind = FindingKind::DivergentBarrier {
                        reached: mask,
                        alive: warp.alive,
                    };
                    self.find(warp.index, lane as u32, pc, kind);
                    return Err(Stop);
                }
                warp.waiting = Some(BarrierWait {
                    id,
                    threads,
                    reduce,
                    mask,
                });
                Flow::Barrier
            }
            _ => return Ok(None),
        };
        Ok(Some(flow))
    }

    fn out_of_bounds(
        &mut self,
        warp: u32,
        lane: usize,
        pc: u32,
        space: Space,
        address: u64,
        bytes: u32,
    ) -> Stop {
        let nearest = match space {
            Space::Shared => format!("the thread block has {} bytes", self.shared.bytes()),
            Space::Local => format!("the thread has {} bytes", self.context.kernel.local_bytes),
            _ => self.context.memory.describe(address),
        };
        let kind = FindingKind::OutOfBounds {
            space,
            address,
            bytes,
            nearest,
        };
        self.find(warp, lane as u32, pc, kind);
        Stop
    }
}

/// The next action of a split after an instruction.
enum Flow {
    /// Continues at its instruction index.
    Next,
    /// The split has no lanes left.
    Gone,
    /// Waits for other lanes.
    Wait,
    /// Waits at a barrier of the thread block.
    Barrier,
}

/// Says why a split stopped running.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SplitEnd {
    /// Its warp waits at a barrier of the thread block.
    Barrier,
    /// Another split of the warp may run.
    Other,
}

/// Returns the lanes that must execute an instruction together; `None` if each lane executes it separately.
#[inline]
fn needs_together(op: &Op, warp: &Warp, mask: u32) -> Option<u32> {
    match op {
        Op::Barrier { .. }
        | Op::WarpBarrier { .. }
        | Op::Shuffle { .. }
        | Op::Vote { .. }
        | Op::Match { .. }
        | Op::Reduce { .. }
        | Op::LoadMatrix { .. }
        | Op::Matrix { .. }
        | Op::Async(
            AsyncOp::Elect { .. }
            | AsyncOp::SetRegisters
            | AsyncOp::GroupFence
            | AsyncOp::GroupCommit
            | AsyncOp::GroupWait { .. }
            | AsyncOp::GroupMultiply(_),
        ) => members_of(op, warp, mask),
        _ => None,
    }
}

fn members_of(op: &Op, warp: &Warp, mask: u32) -> Option<u32> {
    let members = match op {
        Op::WarpBarrier { members }
        | Op::Shuffle { members, .. }
        | Op::Vote { members, .. }
        | Op::Match { members, .. }
        | Op::Reduce { members, .. }
        | Op::Async(AsyncOp::Elect { members, .. }) => *members,
        _ => return Some(warp.alive),
    };
    let lane = mask.trailing_zeros() as usize;
    warp.r32(members).get(lane).copied()
}
