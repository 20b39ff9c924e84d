//! Barriers in shared memory that count arrivals and bytes (`mbarrier`), and the bulk copies that report to them.
//!
//! (The barriers in [`barrier`](crate::exec::barrier) have no memory.) A barrier's phase is done when all its expected arrivals and
//! bytes have come. Invariant: the bytes of a bulk copy arrive when the phase is done and not before, and only for warps that waited
//! for it. Copies complete as late as possible, when no warp can continue without them, so that a missing wait is found.

use super::{NO_COPY, SharedState, cells_of};
use crate::{
    FindingKind,
    exec::{BlockRunner, Stop, Warp, lanes_of, memory::WarpAccess},
    lanes::LANES,
    op::{Address, Order},
    types::Space,
};

/// Largest number of barriers of one thread block: each has a column of the clocks.
pub(super) const MAX_BARRIERS: usize = 96;
/// Bytes of a barrier.
const BARRIER_BYTES: u32 = 8;
/// The largest count of arrivals. Source: PTX ISA, `mbarrier`.
const MAX_COUNT: u32 = (1 << 20) - 1;
/// Unit of bulk copies, in bytes.
const BULK_UNIT: u32 = 16;

/// One barrier.
#[derive(Debug)]
struct Phases {
    address: u32,
    count: u32,
    /// Arrivals that the phase still needs.
    left: u32,
    /// Bytes still expected; negative if they came before they were expected.
    bytes: i64,
    /// Phases that are done.
    n_done: u32,
    /// Whether asynchronous operations see its initialization.
    is_fenced: bool,
    made_by: u32,
    /// Joined vector clocks of the threads that arrived in this phase or before: of their accesses, and of their fences.
    arriving: [Vec<u32>; 2],
    done: [Vec<u32>; 2],
    /// Copies of this phase that have completed.
    come: Vec<BulkCopy>,
}

#[derive(Clone, Copy, Debug)]
struct BulkCopy {
    barrier: usize,
    to: u32,
    from: u64,
    bytes: u32,
    pc: u32,
    warp: u32,
}

/// The barriers of a thread block and its unfinished copies.
#[derive(Debug, Default)]
pub(super) struct Barriers {
    all: Vec<Phases>,
    on_their_way: Vec<BulkCopy>,
}

impl Barriers {
    pub(super) fn reset(&mut self) {
        self.all.clear();
        self.on_their_way.clear();
    }
}

fn raise(to: &mut [u32], from: &[u32]) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to = (*to).max(from);
    }
}

impl SharedState {
    pub(super) fn row(&self, warp: u32) -> std::ops::Range<usize> {
        let first = warp as usize * self.n_columns;
        first..first + self.n_columns
    }

    pub(super) fn tick(&mut self, warp: u32) {
        self.clocks[warp as usize * (self.n_columns + 1)] += 1;
    }

    /// Makes everything that the warp knows of visible to later asynchronous operations.
    pub(in crate::exec) fn fence_proxy(&mut self, warp: u32) {
        let row = self.row(warp);
        let Self { clocks, fences, .. } = self;
        raise(&mut fences[row.clone()], &clocks[row]);
        self.tick(warp);
        self.fence_barriers(warp);
    }

    pub(in crate::exec) fn fence_barriers(&mut self, warp: u32) {
        for barrier in &mut self.barriers.all {
            barrier.is_fenced |= barrier.made_by == warp;
        }
    }

    /// Ends the phase if nothing is missing; the bytes of its copies are visible from now on.
    fn end_phase(&mut self, index: usize, word_at: impl Fn(u64) -> u32) {
        let column = self.n_warps + index;
        let barrier = &mut self.barriers.all[index];
        if barrier.left > 0 || barrier.bytes != 0 {
            return;
        }
        barrier.left = barrier.count;
        barrier.n_done += 1;
        barrier.done = barrier.arriving.clone();
        barrier.done[0][column] = barrier.n_done;
        for copy in std::mem::take(&mut barrier.come) {
            for word in 0..copy.bytes / 4 {
                let at = (copy.to / 4 + word) as usize;
                self.words[at] = word_at(copy.from + u64::from(4 * word));
                self.cells[at].copy_pc = NO_COPY;
            }
        }
    }
}

impl BlockRunner<'_> {
    fn misuse(&mut self, warp: &Warp, lane: usize, pc: u32, address: u64, problem: &'static str) -> Stop {
        self.find(
            warp.index,
            lane as u32,
            pc,
            FindingKind::BarrierMisuse { address, problem },
        );
        Stop
    }

    /// Returns the eight bytes of a barrier as an access of each lane.
    fn barrier_access<'a>(
        &mut self,
        warp: &Warp,
        addresses: &'a [u64; LANES],
        mask: u32,
        pc: u32,
    ) -> Result<WarpAccess<'a>, Stop> {
        let access = WarpAccess {
            addresses,
            mask,
            element_bytes: 4,
            n: BARRIER_BYTES / 4,
            order: Order::Strong,
            pc,
        };
        self.check_alignment(warp, Space::Shared, &access)?;
        self.check_shared_bounds(warp, &access)?;
        Ok(access)
    }

    fn barrier_at(&mut self, warp: &Warp, access: &WarpAccess<'_>, lane: usize) -> Result<usize, Stop> {
        let address = access.addresses[lane];
        let found = (self.shared.barriers.all.iter())
            .position(|barrier| u64::from(barrier.address) == address && barrier.count > 0);
        let Some(index) = found else {
            return Err(self.misuse(warp, lane, access.pc, address, "no barrier was made here"));
        };
        self.note_read(warp.index, lane, address as usize, BARRIER_BYTES, access);
        Ok(index)
    }

    pub(in crate::exec) fn make_barrier(
        &mut self,
        warp: &Warp,
        at: Address,
        count: u16,
        mask: u32,
        pc: u32,
    ) -> Result<(), Stop> {
        let addresses = warp.addresses(at);
        let counts = *warp.r32(count);
        let access = self.barrier_access(warp, &addresses, mask, pc)?;
        let access = WarpAccess {
            order: Order::Weak,
            ..access
        };
        for lane in lanes_of(mask) {
            let address = addresses[lane];
            self.note_write(warp.index, lane, address as usize, BARRIER_BYTES, &access);
            let count = counts[lane];
            if count == 0 || count > MAX_COUNT {
                return Err(self.misuse(warp, lane, pc, address, "a phase needs 1 to 1048575 arrivals"));
            }
            let n_columns = self.shared.n_columns;
            let barriers = &mut self.shared.barriers.all;
            let same = barriers
                .iter()
                .position(|barrier| u64::from(barrier.address) == address);
            let index = match same {
                Some(index) if barriers[index].count > 0 => {
                    return Err(self.misuse(warp, lane, pc, address, "a barrier is made where one is"));
                }
                Some(index) => index,
                None => barriers.len(),
            };
            if index == MAX_BARRIERS {
                return Err(self.misuse(
                    warp,
                    lane,
                    pc,
                    address,
                    "the thread block has more than 96 barriers",
                ));
            }
            let n_done = barriers
                .get(index)
                .map_or(0, |barrier| barrier.n_done.next_multiple_of(2));
            let fresh = Phases {
                address: address as u32,
                count,
                left: count,
                bytes: 0,
                n_done,
                is_fenced: false,
                made_by: warp.index,
                arriving: [vec![0; n_columns], vec![0; n_columns]],
                done: [vec![0; n_columns], vec![0; n_columns]],
                come: Vec::new(),
            };
            if index == barriers.len() {
                barriers.push(fresh);
            } else {
                barriers[index] = fresh;
            }
        }
        Ok(())
    }

    pub(in crate::exec) fn end_barrier(
        &mut self,
        warp: &Warp,
        at: Address,
        mask: u32,
        pc: u32,
    ) -> Result<(), Stop> {
        let addresses = warp.addresses(at);
        let access = self.barrier_access(warp, &addresses, mask, pc)?;
        for lane in lanes_of(mask) {
            let index = self.barrier_at(warp, &access, lane)?;
            self.note_write(warp.index, lane, addresses[lane] as usize, BARRIER_BYTES, &access);
            self.shared.barriers.all[index].count = 0;
        }
        Ok(())
    }

    /// Counts arrivals of threads, and expected bytes.
    pub(in crate::exec) fn arrive(
        &mut self,
        warp: &Warp,
        at: Address,
        arrives: bool,
        (count, expected_bytes): (Option<u16>, Option<u16>),
        mask: u32,
        pc: u32,
    ) -> Result<(), Stop> {
        let addresses = warp.addresses(at);
        let access = self.barrier_access(warp, &addresses, mask, pc)?;
        for lane in lanes_of(mask) {
            let index = self.barrier_at(warp, &access, lane)?;
            let n = count.map_or(1, |count| warp.r32(count)[lane]);
            let bytes = expected_bytes.map_or(0, |bytes| warp.r32(bytes)[lane]);
            let row = self.shared.row(warp.index);
            let SharedState {
                clocks,
                fences,
                barriers,
                ..
            } = &mut self.shared;
            let barrier = &mut barriers.all[index];
            barrier.bytes += i64::from(bytes);
            if let Some(trace) = &mut self.trace {
                trace.mark(index as u32, barrier.n_done, arrives);
            }
            if !arrives {
                continue;
            }
            if n == 0 || n > barrier.left {
                let problem = "more threads arrive than the phase still needs";
                return Err(self.misuse(warp, lane, pc, addresses[lane], problem));
            }
            barrier.left -= n;
            raise(&mut barrier.arriving[0], &clocks[row.clone()]);
            raise(&mut barrier.arriving[1], &fences[row]);
            self.end_phase(index);
        }
        // This arrival does not release the warp's later accesses, so its clock advances.
        self.shared.tick(warp.index);
        Ok(())
    }

    fn end_phase(&mut self, index: usize) {
        let memory = self.context.memory;
        self.shared.end_phase(index, |address| {
            let found = memory
                .find(address, 0)
                .expect("the source was checked when the copy began");
            let allocation = memory.allocation(found);
            allocation.word((address - allocation.address) as usize)
        });
    }

    /// Returns whether all lanes may pass a wait for the phase of a parity. If so, they learn what the arrived threads knew.
    pub(in crate::exec) fn try_wait(
        &mut self,
        warp: &Warp,
        at: Address,
        parity: u16,
        mask: u32,
        pc: u32,
    ) -> Result<bool, Stop> {
        let addresses = warp.addresses(at);
        let parities = *warp.r32(parity);
        let access = self.barrier_access(warp, &addresses, mask, pc)?;
        for lane in lanes_of(mask) {
            let index = self.barrier_at(warp, &access, lane)?;
            if self.shared.barriers.all[index].n_done & 1 == parities[lane] & 1 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Passes on the knowledge of a wait that was passed.
    pub(in crate::exec) fn pass_wait(&mut self, warp: &Warp, at: Address, mask: u32) {
        let addresses = warp.addresses(at);
        for lane in lanes_of(mask) {
            let row = self.shared.row(warp.index);
            let SharedState {
                clocks,
                fences,
                barriers,
                ..
            } = &mut self.shared;
            let found = (barriers.all.iter().enumerate())
                .find(|(_, barrier)| u64::from(barrier.address) == addresses[lane]);
            let Some((index, barrier)) = found else {
                continue;
            };
            raise(&mut clocks[row.clone()], &barrier.done[0]);
            raise(&mut fences[row], &barrier.done[1]);
            if let (Some(trace), Some(phase)) = (&mut self.trace, barrier.n_done.checked_sub(1)) {
                trace.mark(index as u32, phase, false);
            }
        }
    }

    /// Begins a bulk copy of each active lane.
    pub(in crate::exec) fn bulk_copy(
        &mut self,
        warp: &Warp,
        (to, from, barrier): (Address, Address, Address),
        bytes: u16,
        mask: u32,
        pc: u32,
    ) -> Result<(), Stop> {
        let (to, from) = (warp.addresses(to), warp.addresses(from));
        let barriers = warp.addresses(barrier);
        let counts = *warp.r32(bytes);
        let barrier_access = self.barrier_access(warp, &barriers, mask, pc)?;
        for lane in lanes_of(mask) {
            let index = self.barrier_at(warp, &barrier_access, lane)?;
            let bytes = counts[lane];
            if bytes == 0 || !bytes.is_multiple_of(BULK_UNIT) {
                let problem = "a bulk copy has a multiple of 16 bytes";
                return Err(self.misuse(warp, lane, pc, barriers[lane], problem));
            }
            if self.context.checks.shared_races && !self.shared.barriers.all[index].is_fenced {
                let address = barriers[lane];
                self.find(
                    warp.index,
                    lane as u32,
                    pc,
                    FindingKind::MissingProxyFence { address },
                );
            }
            let phase = self.shared.barriers.all[index].n_done;
            if let Some(trace) = &mut self.trace {
                trace.mark(index as u32, phase, true);
            }
            for first in (0..bytes).step_by(LANES * BULK_UNIT as usize) {
                let n = ((bytes - first) / BULK_UNIT).min(LANES as u32);
                let part =
                    |start: u64| std::array::from_fn(|lane| start + u64::from(first) + 16 * lane as u64);
                let (to, from): ([u64; LANES], [u64; LANES]) = (part(to[lane]), part(from[lane]));
                let target = WarpAccess {
                    addresses: &to,
                    mask: u32::MAX >> (LANES as u32 - n),
                    element_bytes: 4,
                    n: BULK_UNIT / 4,
                    order: Order::Weak,
                    pc,
                };
                let source = WarpAccess {
                    addresses: &from,
                    ..target
                };
                self.check_alignment(warp, Space::Shared, &target)?;
                self.check_shared_bounds(warp, &target)?;
                self.check_alignment(warp, Space::Global, &source)?;
                self.note_copy_source(warp, &source)?;
                for part in lanes_of(target.mask) {
                    self.note_write(warp.index, lane, to[part] as usize, BULK_UNIT, &target);
                    for (word, _) in cells_of(to[part] as usize, BULK_UNIT) {
                        let cell = &mut self.shared.cells[word];
                        cell.copy_pc = pc;
                        cell.is_async = true;
                        cell.write_warp = (self.shared.n_warps + index) as u8;
                        cell.write_clock = phase + 1;
                    }
                }
            }
            self.shared.barriers.on_their_way.push(BulkCopy {
                barrier: index,
                to: to[lane] as u32,
                from: from[lane],
                bytes,
                pc,
                warp: warp.index,
            });
        }
        Ok(())
    }

    /// Completes the oldest copy; returns whether there was one.
    pub(in crate::exec) fn let_copy_come(&mut self) -> bool {
        if self.shared.barriers.on_their_way.is_empty() {
            return false;
        }
        let copy = self.shared.barriers.on_their_way.remove(0);
        let barrier = &mut self.shared.barriers.all[copy.barrier];
        barrier.bytes -= i64::from(copy.bytes);
        barrier.come.push(copy);
        self.end_phase(copy.barrier);
        true
    }

    /// Reports a copy for which the thread block did not wait before it ended.
    pub(in crate::exec) fn check_copies_left(&mut self) {
        let Barriers { all, on_their_way } = &self.shared.barriers;
        let come = all.iter().flat_map(|barrier| &barrier.come);
        let left = on_their_way.iter().chain(come).next().copied();
        let unread = left.map(|copy| (copy, self.place(copy.pc)));
        if let Some((copy, place)) = unread {
            let kind = FindingKind::UnfinishedCopy {
                address: copy.to.into(),
                copy: place,
            };
            self.find(copy.warp, 0, copy.pc, kind);
        }
    }

    /// Reports the first wait that nothing will end.
    pub(in crate::exec) fn report_endless_wait(&mut self, at: Address, warp: usize, pc: u32, mask: u32) {
        let lane = mask.trailing_zeros() as usize % LANES;
        let address = self.warps[warp].addresses(at)[lane];
        let barrier = (self.shared.barriers.all.iter()).find(|barrier| u64::from(barrier.address) == address);
        let kind = FindingKind::EndlessWait {
            address,
            arrivals_left: barrier.map_or(0, |barrier| barrier.left),
            bytes_left: barrier.map_or(0, |barrier| barrier.bytes),
        };
        self.find(warp as u32, lane as u32, pc, kind);
    }
}
