//! [`simulate`]: time on one multiprocessor that runs its share of a grid.
//!
//! All multiprocessors behave alike, so one is simulated, with its share of the bandwidths of L2 and device memory. A warp issues in order:
//! an instruction waits for its code and its operands, for a slot of its scheduler and for its unit. A memory request waits in the queue of
//! each level that it passes, then for the level's latency. Invariant: nothing here knows a kernel; all times follow from the executed
//! instructions.

mod asynchronous;
mod fetch;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, VecDeque},
    hash::BuildHasherDefault,
};

use super::{
    cost::{Cost, N_SCHEDULERS, Unit, uses_memory_unit},
    mix::{Mix, mix},
    work::{Outcome, Work},
};
use crate::{
    counters::SECTOR_BYTES,
    kernel::Constant,
    op::{Op, Register},
    trace::Executed,
    types::Space,
};

/// Clocks of work that may be queued for the unit of loads, stores and shuffles before a warp that adds to it has to wait. An assumption.
const QUEUE_CLOCKS: f64 = 32.0;
/// Named barriers of a thread block.
const N_BARRIERS: usize = 16;

/// A warp on the multiprocessor.
struct Warp {
    trace: usize,
    /// Index among the trace's warps.
    index: usize,
    slot: usize,
    scheduler: usize,
    /// Index of its thread block.
    instance: usize,
    next: usize,
    /// Earliest time at which its next instruction may be issued, apart from operands.
    earliest: f64,
    /// Time at which each register's value is ready.
    ready: Vec<f64>,
    /// Time at which the stores so far have arrived.
    stored: f64,
    /// Time at which the asynchronous copies since the last commit have arrived, and those of each group.
    open_copies: f64,
    copy_groups: Vec<f64>,
    groups: asynchronous::Groups,
    waits_at: Option<usize>,
}

/// A thread block on the multiprocessor.
#[derive(Clone, Default)]
struct Slot {
    n_left: usize,
    /// Time at which it first let later launches begin.
    lets_next: Option<f64>,
    /// Warps that wait at each barrier.
    waiting: Vec<Vec<usize>>,
    last_arrival: f64,
    phases: asynchronous::Phases,
}

struct Multiprocessor<'a> {
    work: &'a Work<'a>,
    costs: Vec<Cost>,
    /// Indices of registers by file.
    first64: usize,
    first_pred: usize,
    n_registers: usize,
    warps: Vec<Warp>,
    slots: Vec<Slot>,
    queue: BinaryHeap<Reverse<(u64, usize)>>,
    n_started: usize,
    scheduler_free: [f64; N_SCHEDULERS],
    unit_free: [[f64; Unit::COUNT]; N_SCHEDULERS],
    unit_clocks: [f64; Unit::COUNT],
    memory_free: f64,
    l2_free: f64,
    dram_free: f64,
    /// Arrival time of each sector in L1.
    l1: HashMap<u64, f64, BuildHasherDefault<Mix>>,
    l1_order: VecDeque<u64>,
    fetch: fetch::Fetch,
    events: Vec<(f64, f64)>,
    outcome: Outcome,
}

/// Runs the work and returns how long it took.
pub(super) fn simulate(work: &Work<'_>) -> Outcome {
    let kernel = work.kernel;
    let mut machine = Multiprocessor {
        work,
        costs: (kernel.code.iter())
            .map(|instruction| Cost::of(&instruction.op, work.device))
            .collect(),
        first64: kernel.n_regs32,
        first_pred: kernel.n_regs32 + kernel.n_regs64,
        n_registers: kernel.n_regs32 + kernel.n_regs64 + kernel.n_preds,
        warps: Vec::new(),
        slots: vec![Slot::default(); work.n_resident.min(work.blocks.len())],
        queue: BinaryHeap::new(),
        n_started: 0,
        scheduler_free: [0.0; N_SCHEDULERS],
        unit_free: [[0.0; Unit::COUNT]; N_SCHEDULERS],
        unit_clocks: [0.0; Unit::COUNT],
        memory_free: 0.0,
        l2_free: 0.0,
        dram_free: 0.0,
        l1: HashMap::default(),
        l1_order: VecDeque::new(),
        fetch: fetch::Fetch::of(work),
        events: Vec::new(),
        outcome: Outcome::default(),
    };
    for slot in 0..machine.slots.len() {
        let is_early = slot < work.n_early;
        machine.start_block(slot, if is_early { 0.0 } else { work.release });
    }
    machine.run();
    machine.finish()
}

impl Multiprocessor<'_> {
    fn start_block(&mut self, slot: usize, at: f64) {
        let Some(&trace) = self.work.blocks.get(self.n_started) else {
            return;
        };
        let instance = self.n_started;
        self.n_started += 1;
        let n_warps = self.work.traces[trace].warps.len();
        self.slots[slot] = Slot {
            n_left: n_warps,
            waiting: vec![Vec::new(); N_BARRIERS],
            last_arrival: at,
            ..Slot::default()
        };
        for warp in 0..n_warps {
            let fresh = Warp {
                trace,
                index: warp,
                slot,
                scheduler: (slot * n_warps + warp) % N_SCHEDULERS,
                instance,
                next: 0,
                earliest: at,
                ready: vec![0.0; self.n_registers],
                stored: 0.0,
                open_copies: 0.0,
                copy_groups: Vec::new(),
                groups: asynchronous::Groups::default(),
                waits_at: None,
            };
            // Another takes the place of a finished warp.
            let is_done = |warp: &Warp| warp.next == usize::MAX;
            let index = if at > self.work.release {
                self.warps.iter().position(is_done)
            } else {
                None
            };
            let index = index.unwrap_or(self.warps.len());
            if index == self.warps.len() {
                self.warps.push(fresh);
            } else {
                self.warps[index] = fresh;
            }
            self.enqueue(index, at);
        }
    }

    fn enqueue(&mut self, warp: usize, at: f64) {
        // Times are not negative, so that their bits have the same order.
        self.queue.push(Reverse((at.max(0.0).to_bits(), warp)));
    }

    fn index(&self, register: Register) -> usize {
        match register {
            Register::R32(index) => usize::from(index),
            Register::R64(index) => self.first64 + usize::from(index),
            Register::Pred(index) => self.first_pred + usize::from(index),
        }
    }

    fn run(&mut self) {
        while let Some(Reverse((at, warp))) = self.queue.pop() {
            let now = f64::from_bits(at);
            let Some(executed) = self.next_of(warp) else {
                self.end_warp(warp, now);
                continue;
            };
            let is_there = self.fetch.arrives(executed.pc, now);
            let at = self.earliest(warp, &executed).max(is_there).max(now);
            if at > now {
                self.enqueue(warp, at);
                continue;
            }
            self.issue(warp, &executed, now);
            if self.warps[warp].waits_at.is_none() {
                let next = self.warps[warp].earliest.max(now);
                self.enqueue(warp, next);
            }
        }
    }

    /// Returns the next instruction that takes a slot. An instruction without cost only passes on the time at which its operands are ready.
    fn next_of(&mut self, warp: usize) -> Option<Executed> {
        let kernel = self.work.kernel;
        loop {
            let state = &self.warps[warp];
            let executed = *self.work.traces[state.trace].warps[state.index].get(state.next)?;
            if self.costs[executed.pc as usize].slots > 0.0 {
                return Some(executed);
            }
            if executed.n_lanes > 0 {
                let instruction = &kernel.code[executed.pc as usize];
                let mut when = 0.0f64;
                instruction.reads(|register| {
                    when = when.max(state.ready[self.index(register)]);
                });
                let mut written = Vec::with_capacity(1);
                instruction.writes(|register| written.push(self.index(register)));
                for register in written {
                    self.warps[warp].ready[register] = when;
                }
            }
            self.warps[warp].next += 1;
        }
    }

    /// Returns the time at which an instruction can be issued.
    fn earliest(&self, warp: usize, executed: &Executed) -> f64 {
        let state = &self.warps[warp];
        let instruction = &self.work.kernel.code[executed.pc as usize];
        let cost = &self.costs[executed.pc as usize];
        let mut at = state.earliest.max(self.scheduler_free[state.scheduler]);
        if executed.n_lanes == 0 {
            if let Some((guard, _)) = instruction.guard {
                at = at.max(state.ready[self.index(Register::Pred(guard))]);
            }
            return at;
        }
        let wait = |register| at = at.max(state.ready[self.index(register)]);
        instruction.reads(wait);
        instruction.writes(|register| at = at.max(state.ready[self.index(register)]));
        at = at.max(self.unit_free[state.scheduler][self.unit(state.scheduler, cost.unit)]);
        if uses_memory_unit(&instruction.op) {
            at = at.max(self.memory_free - QUEUE_CLOCKS);
        }
        at
    }

    /// Returns the unit that an instruction uses.
    fn unit(&self, scheduler: usize, unit: Unit) -> usize {
        let free = &self.unit_free[scheduler];
        match unit {
            Unit::FloatOrInteger if free[Unit::Float as usize] < free[Unit::Integer as usize] => {
                Unit::Float as usize
            }
            Unit::FloatOrInteger => Unit::Integer as usize,
            unit => unit as usize,
        }
    }

    fn issue(&mut self, warp: usize, executed: &Executed, now: f64) {
        let kernel = self.work.kernel;
        let latency = &self.work.device.latency;
        let instruction = &kernel.code[executed.pc as usize];
        let cost = self.costs[executed.pc as usize];
        let scheduler = self.warps[warp].scheduler;
        self.warps[warp].next += 1;
        let slots = if executed.n_lanes == 0 { 1.0 } else { cost.slots };
        self.scheduler_free[scheduler] = now + slots;
        self.outcome.slots += slots;
        self.warps[warp].earliest = now + slots;
        if executed.n_lanes == 0 {
            return;
        }
        if cost.unit != Unit::None {
            let unit = self.unit(scheduler, cost.unit);
            self.unit_free[scheduler][unit] = now + cost.unit_clocks;
            self.unit_clocks[unit] += cost.unit_clocks;
        }
        let ready = match &instruction.op {
            Op::Load { at, order, .. } if at.space != Space::Shared && at.space != Space::Local => {
                let begun = self.pass_memory_unit(now, executed);
                if executed.n_sectors == 0 {
                    begun + latency.shared
                } else {
                    self.request(warp, executed, begun, !order.is_strong_everywhere())
                }
            }
            Op::Load { at, .. } if at.space == Space::Local => {
                self.pass_memory_unit(now, executed) + latency.l1
            }
            Op::Load { .. } | Op::LoadMatrix { .. } => {
                let begun = self.pass_memory_unit(now, executed);
                begun + f64::from(executed.n_passes.max(1)) - 1.0 + latency.shared
            }
            Op::Store { .. } => {
                let begun = self.pass_memory_unit(now, executed);
                let arrives = self.write(executed, begun);
                let stored = &mut self.warps[warp].stored;
                *stored = stored.max(arrives);
                begun
            }
            Op::Atomic { at, .. } => {
                let begun = self.pass_memory_unit(now, executed);
                if at.space == Space::Shared || executed.n_sectors == 0 {
                    begun + f64::from(executed.n_passes.max(1)) - 1.0 + latency.shared
                } else {
                    let arrives = self.write(executed, begun);
                    let stored = &mut self.warps[warp].stored;
                    *stored = stored.max(arrives);
                    arrives
                }
            }
            Op::CopyAsync { .. } => {
                let begun = self.pass_memory_unit(now, executed);
                let arrives = self.request(warp, executed, begun, true);
                let open = &mut self.warps[warp].open_copies;
                *open = open.max(arrives);
                now
            }
            Op::CopyCommit => {
                let arrives = std::mem::take(&mut self.warps[warp].open_copies);
                self.warps[warp].copy_groups.push(arrives);
                now
            }
            Op::CopyWait { pending } => {
                let state = &mut self.warps[warp];
                let n_done = state
                    .copy_groups
                    .len()
                    .saturating_sub(pending.unwrap_or(0) as usize);
                let mut until = state.copy_groups[..n_done].iter().copied().fold(0.0, f64::max);
                if pending.is_none() {
                    until = until.max(state.open_copies);
                }
                state.earliest = state.earliest.max(until);
                now
            }
            Op::AwaitEarlier => {
                let state = &mut self.warps[warp];
                state.earliest = state.earliest.max(self.work.release);
                now
            }
            Op::LetNextBegin => {
                let slot = self.warps[warp].slot;
                self.slots[slot].lets_next.get_or_insert(now);
                now
            }
            Op::Fence { .. } => {
                let state = &mut self.warps[warp];
                state.earliest = state.earliest.max(state.stored).max(now + latency.l2);
                now
            }
            Op::Barrier { id, threads, .. } => {
                self.arrive(warp, *id, *threads, now);
                now + latency.barrier
            }
            Op::Branch { .. } | Op::BranchTable { .. } => {
                let state = &self.warps[warp];
                let following = self.work.traces[state.trace].warps[state.index].get(state.next);
                if following.is_some_and(|following| following.pc != executed.pc + 1) {
                    self.warps[warp].earliest = now + latency.branch;
                }
                now
            }
            Op::Async(op) => self.issue_async(warp, op, executed, now),
            Op::Shuffle { .. } => self.pass_memory_unit(now, executed) + cost.latency,
            _ => now + cost.latency,
        };
        let mut written = [usize::MAX; 4];
        let mut n_written = 0;
        instruction.writes(|register| {
            if n_written < written.len() {
                written[n_written] = self.index(register);
                n_written += 1;
            }
        });
        for &register in &written[..n_written] {
            self.warps[warp].ready[register] = ready;
        }
    }

    /// Goes through the unit of loads, stores and shuffles: 128 bytes, a pass over the banks, or a warp's shuffle a clock. Returns the time
    /// at which the last part begins.
    fn pass_memory_unit(&mut self, now: f64, executed: &Executed) -> f64 {
        let lines = (f64::from(executed.n_sectors) / 4.0).ceil();
        let clocks = lines.max(f64::from(executed.n_passes)).max(1.0);
        let begun = self.memory_free.max(now);
        self.memory_free = begun + clocks;
        self.outcome.memory_clocks += clocks;
        // The warp that waits counts passes over the banks.
        if executed.n_passes > 0 {
            begun
        } else {
            begun + clocks - 1.0
        }
    }

    /// Returns the time at which the sectors of a load have arrived.
    fn request(&mut self, warp: usize, executed: &Executed, begun: f64, uses_l1: bool) -> f64 {
        let work = self.work;
        let latency = &work.device.latency;
        let (trace, instance) = (self.warps[warp].trace, self.warps[warp].instance);
        let first = executed.first_sector as usize;
        let sectors = work.traces[trace].sectors_of(executed);
        let mut arrives = begun + latency.l1;
        let mut missed = 0.0;
        for (&sector, source) in sectors.iter().zip(&work.sources[trace][first..]) {
            // A trace represents several thread blocks. A sector that only one of them reads has another address in each.
            let key = if source.is_common {
                sector
            } else {
                sector | (instance as u64 + 1) << 44
            };
            if uses_l1 && let Some(&when) = self.l1.get(&key) {
                arrives = arrives.max(when);
                continue;
            }
            let bytes = SECTOR_BYTES as f64;
            let chance = (mix(key) >> 40) as f64 / (1u64 << 24) as f64;
            let misses = if source.is_common {
                // All multiprocessors request it at once when they begin, and one of them pays.
                source.miss_share > 0.0 && instance < work.n_resident
            } else {
                chance < source.miss_share
            };
            let paid = if source.is_common {
                source.miss_share * bytes
            } else {
                bytes
            };
            self.l2_free = self.l2_free.max(begun) + bytes / work.l2_bytes_per_clock;
            self.outcome.l2_bytes += bytes;
            let mut when = self.l2_free + latency.l2;
            if misses {
                self.dram_free = self.dram_free.max(begun);
                self.dram_free += paid / self.dram_rate(self.dram_free);
                self.outcome.dram_bytes += paid;
                when = self.dram_free.max(self.l2_free) + latency.dram;
            }
            missed += bytes;
            arrives = arrives.max(when);
            if uses_l1 {
                self.l1.insert(key, when);
                self.l1_order.push_back(key);
                if self.l1_order.len() > work.l1_sectors
                    && let Some(oldest) = self.l1_order.pop_front()
                {
                    self.l1.remove(&oldest);
                }
            }
        }
        if missed > 0.0 {
            self.events.push((begun, missed));
            self.events.push((arrives, -missed));
        }
        arrives
    }

    /// Returns the bytes a clock from device memory at a moment.
    fn dram_rate(&self, at: f64) -> f64 {
        let work = self.work;
        // A small rate always remains, so that every request completes eventually.
        let share = if at < work.release {
            work.early_share.max(0.01)
        } else {
            1.0
        };
        work.dram_bytes_per_clock * share
    }

    /// Returns the time at which the sectors of a store are in L2.
    fn write(&mut self, executed: &Executed, begun: f64) -> f64 {
        let bytes = f64::from(executed.n_sectors) * SECTOR_BYTES as f64;
        self.l2_free = self.l2_free.max(begun) + bytes / self.work.l2_bytes_per_clock;
        self.outcome.l2_bytes += bytes;
        // Evicted bytes queue for device memory; the store does not wait for them.
        let evicted = bytes * self.work.write_back;
        if evicted > 0.0 {
            self.dram_free = self.dram_free.max(self.l2_free);
            self.dram_free += evicted / self.dram_rate(self.dram_free);
            self.outcome.dram_bytes += evicted;
        }
        self.l2_free + self.work.device.latency.l2
    }

    fn arrive(&mut self, warp: usize, id: u16, threads: Option<u16>, now: f64) {
        let id = self.constant(id).unwrap_or(0) as usize % N_BARRIERS;
        let slot = self.warps[warp].slot;
        self.warps[warp].waits_at = Some(id);
        self.slots[slot].waiting[id].push(warp);
        self.slots[slot].last_arrival = now;
        let needed = threads.and_then(|threads| self.constant(threads));
        self.release(slot, id, needed, now);
    }

    fn constant(&self, register: u16) -> Option<u32> {
        let constants = &self.work.kernel.constants32;
        constants.iter().find_map(|(found, constant)| match constant {
            Constant::Immediate(value) if *found == register => Some(*value as u32),
            _ => None,
        })
    }

    fn release(&mut self, slot: usize, id: usize, threads: Option<u32>, now: f64) {
        let needed = threads.map_or(self.slots[slot].n_left, |threads| threads.div_ceil(32) as usize);
        if self.slots[slot].waiting[id].is_empty() || self.slots[slot].waiting[id].len() < needed {
            return;
        }
        let after = now + self.work.device.latency.barrier;
        for warp in std::mem::take(&mut self.slots[slot].waiting[id]) {
            self.warps[warp].waits_at = None;
            self.warps[warp].earliest = self.warps[warp].earliest.max(after);
            self.enqueue(warp, after);
        }
    }

    fn end_warp(&mut self, warp: usize, now: f64) {
        if self.warps[warp].next == usize::MAX {
            return;
        }
        self.warps[warp].next = usize::MAX;
        self.warps[warp].ready = Vec::new();
        let slot = self.warps[warp].slot;
        self.slots[slot].n_left -= 1;
        let since_release = now - self.work.release;
        self.outcome.clocks = self.outcome.clocks.max(since_release);
        if self.slots[slot].n_left == 0 {
            let lets_next = self.slots[slot].lets_next.unwrap_or(now) - self.work.release;
            self.outcome.lets_next = self.outcome.lets_next.max(lets_next);
            self.start_block(slot, now + self.work.device.latency.block);
        } else {
            for id in 0..N_BARRIERS {
                self.release(slot, id, None, now);
            }
        }
    }

    fn finish(mut self) -> Outcome {
        self.events
            .sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let (mut now, mut bytes, mut area, mut peak) = (0.0, 0.0f64, 0.0, 0.0f64);
        for &(at, change) in &self.events {
            area += bytes * (at - now);
            now = at;
            bytes += change;
            peak = peak.max(bytes);
        }
        // The last results and stores count as work too.
        self.outcome.unit_clocks = self.unit_clocks.iter().copied().fold(0.0, f64::max);
        self.outcome.in_flight = area / (self.outcome.clocks + self.work.release).max(1.0);
        self.outcome.in_flight_peak = peak;
        self.outcome
    }
}
