//! Global memory as a warp sees it: bounds, initialization, traffic and the access log.

#![expect(clippy::needless_range_loop, reason = "elements and lanes are indexed alike")]

use super::{BlockRunner, FULL, Stop, Warp, lanes_of, memory::LaneWords, memory::WarpAccess};
use crate::{
    Counters, DeviceMemory, DevicePtr, FindingKind,
    access_log::{Access, AccessKind},
    counters::{BufferTraffic, SECTOR_BYTES, Traffic},
    lanes::LANES,
    op::Order,
    order::EventKind,
    types::Space,
};

/// State that a host thread keeps between accesses.
pub(super) struct GlobalState {
    /// Allocation that each instruction touched last.
    hints: Vec<u32>,
    /// Sectors loaded and stored, by allocation.
    sectors: Vec<[u64; 2]>,
}

impl GlobalState {
    pub(super) fn new(n_instructions: usize, n_allocations: usize) -> Self {
        Self {
            hints: vec![0; n_instructions],
            sectors: vec![[0; 2]; n_allocations],
        }
    }

    pub(super) fn add_buffers(&self, memory: &DeviceMemory, counters: &mut Counters) {
        for (index, &[loaded, stored]) in self.sectors.iter().enumerate() {
            if loaded + stored > 0 {
                let address = DevicePtr(memory.allocation(index).address);
                let buffer: &mut BufferTraffic = counters.buffers.entry(address).or_default();
                buffer.loaded_sectors += loaded;
                buffer.stored_sectors += stored;
            }
        }
    }
}

/// Arrangement of a warp's addresses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pattern {
    /// All 32 lanes, one after the other.
    Contiguous,
    /// All active lanes at one address.
    Uniform,
    Scattered,
}

pub(super) fn pattern(access: &WarpAccess<'_>) -> Pattern {
    let bytes = u64::from(access.bytes());
    let addresses = access.addresses;
    if access.mask == FULL {
        let mut is_contiguous = true;
        for lane in 1..LANES {
            is_contiguous &= addresses[lane] == addresses[lane - 1].wrapping_add(bytes);
        }
        if is_contiguous {
            return Pattern::Contiguous;
        }
    }
    let first = addresses[access.mask.trailing_zeros() as usize];
    if lanes_of(access.mask).all(|lane| addresses[lane] == first) {
        Pattern::Uniform
    } else {
        Pattern::Scattered
    }
}

impl BlockRunner<'_> {
    /// Checks bounds and returns the allocation. All lanes of one instruction use the same allocation, unless a
    /// lane is at fault or the kernel selects between buffers, which the callers handle lane by lane.
    fn locate(&mut self, warp: &Warp, access: &WarpAccess<'_>) -> Result<Option<usize>, Stop> {
        let bytes = u64::from(access.bytes());
        let (mut low, mut high) = (u64::MAX, 0);
        for lane in lanes_of(access.mask) {
            low = low.min(access.addresses[lane]);
            high = high.max(access.addresses[lane]);
        }
        let memory = self.context.memory;
        let hint = self.global.hints[access.pc as usize] as usize;
        if let Some(index) = memory.find(low, hint)
            && memory.allocation(index).contains(low, high - low + bytes)
        {
            self.global.hints[access.pc as usize] = index as u32;
            return Ok(Some(index));
        }
        for lane in lanes_of(access.mask) {
            let address = access.addresses[lane];
            let is_inside = memory
                .find(address, hint)
                .is_some_and(|index| memory.allocation(index).contains(address, bytes));
            if !is_inside {
                return Err(self.out_of_bounds(
                    warp.index,
                    lane,
                    access.pc,
                    Space::Global,
                    address,
                    bytes as u32,
                ));
            }
        }
        Ok(None)
    }

    /// Runs `f` for groups of lanes that share an allocation.
    pub(super) fn by_allocation(
        &mut self,
        warp: &Warp,
        access: &WarpAccess<'_>,
        mut f: impl FnMut(&mut Self, usize, u32),
    ) -> Result<(), Stop> {
        if let Some(index) = self.locate(warp, access)? {
            f(self, index, access.mask);
            return Ok(());
        }
        let mut rest = access.mask;
        while rest != 0 {
            let first = access.addresses[rest.trailing_zeros() as usize];
            let memory = self.context.memory;
            let index = memory
                .find(first, 0)
                .expect("every lane was found inside an allocation");
            let mask = lanes_of(rest)
                .filter(|&lane| memory.allocation(index).contains(access.addresses[lane], 1))
                .fold(0, |mask, lane| mask | 1 << lane);
            f(self, index, mask);
            rest &= !mask;
        }
        Ok(())
    }

    pub(super) fn load_global(
        &mut self,
        warp: &Warp,
        access: &WarpAccess<'_>,
        words: &mut LaneWords,
    ) -> Result<(), Stop> {
        let kind = if access.order.is_strong_everywhere() {
            AccessKind::StrongRead
        } else {
            AccessKind::Read
        };
        self.by_allocation(warp, access, |runner, index, mask| {
            let access = &WarpAccess { mask, ..*access };
            runner.note_global(warp, access, kind, index);
            runner.check_written(warp, access, index);
            let poisoned = runner.check_early_read(warp, access);
            let allocation = runner.context.memory.allocation(index);
            let base = allocation.address;
            if access.element_bytes >= 4 {
                let n_words = (access.bytes() / 4) as usize;
                for lane in lanes_of(mask) {
                    let offset = (access.addresses[lane] - base) as usize;
                    for (index, word) in words[..n_words].iter_mut().enumerate() {
                        word[lane] = allocation.word(offset + 4 * index);
                    }
                }
            } else {
                let field = (1u32 << (8 * access.element_bytes)) - 1;
                for lane in lanes_of(mask) {
                    let offset = (access.addresses[lane] - base) as usize;
                    for element in 0..access.n as usize {
                        let at = offset + element * access.element_bytes as usize;
                        words[element][lane] = allocation.word(at) >> (8 * (at % 4)) & field;
                    }
                }
            }
            Self::poison(words, poisoned);
        })?;
        if access.order.is_strong_everywhere() {
            let is_ordered = access.order == Order::Ordered;
            let sequence = self.context.next_event();
            let mut last = None;
            for lane in lanes_of(access.mask) {
                let address = access.addresses[lane];
                if last.replace(address) != Some(address) {
                    self.log.load_strongly(address, access.pc, is_ordered, sequence);
                }
            }
        }
        Ok(())
    }

    pub(super) fn store_global(
        &mut self,
        warp: &Warp,
        access: &WarpAccess<'_>,
        words: &LaneWords,
    ) -> Result<(), Stop> {
        let kind = if access.order.is_strong_everywhere() {
            AccessKind::Atomic
        } else {
            AccessKind::Write
        };
        let is_ordered = access.order == Order::Ordered;
        if is_ordered {
            self.log.begin_release();
        }
        self.by_allocation(warp, access, |runner, index, mask| {
            let access = &WarpAccess { mask, ..*access };
            runner.note_global(warp, access, kind, index);
            runner.check_early_write(warp, access);
            let allocation = runner.context.memory.allocation(index);
            let bytes = access.bytes() as usize;
            for lane in lanes_of(mask) {
                let offset = (access.addresses[lane] - allocation.address) as usize;
                if access.element_bytes >= 4 {
                    for (index, word) in words[..bytes / 4].iter().enumerate() {
                        allocation.store_word(offset + 4 * index, word[lane]);
                    }
                } else {
                    let field = (1u32 << (8 * access.element_bytes)) - 1;
                    for element in 0..access.n as usize {
                        let at = offset + element * access.element_bytes as usize;
                        let shift = 8 * (at % 4);
                        allocation.store_bits(at, words[element][lane] << shift, field << shift);
                    }
                }
                allocation.mark_written_small(offset, bytes);
            }
        })?;
        if access.order.is_strong_everywhere() {
            let addresses = lanes_of(access.mask).map(|lane| access.addresses[lane]);
            let sequence = self.context.next_event();
            if is_ordered {
                self.log.store_release(addresses, sequence);
            } else {
                self.log.release(addresses, EventKind::Store, sequence);
            }
        }
        Ok(())
    }

    /// Returns the word of each lane before `f` replaced it, one lane after the other.
    pub(super) fn update_global(
        &mut self,
        warp: &Warp,
        access: &WarpAccess<'_>,
        mut f: impl FnMut(usize, u64) -> u64,
    ) -> Result<[u64; LANES], Stop> {
        let mut old = [0; LANES];
        self.by_allocation(warp, access, |runner, index, mask| {
            let access = &WarpAccess { mask, ..*access };
            runner.note_global(warp, access, AccessKind::Atomic, index);
            runner.check_written(warp, access, index);
            runner.check_early_write(warp, access);
            runner.counters.global_atomics += u64::from(mask.count_ones());
            let memory = runner.context.memory;
            let allocation = memory.allocation(index);
            for lane in lanes_of(mask) {
                let offset = (access.addresses[lane] - allocation.address) as usize;
                if access.element_bytes == 8 {
                    let guard = memory.wide_atomics.lock();
                    let value =
                        u64::from(allocation.word(offset + 4)) << 32 | u64::from(allocation.word(offset));
                    let new = f(lane, value);
                    allocation.store_word(offset, new as u32);
                    allocation.store_word(offset + 4, (new >> 32) as u32);
                    drop(guard);
                    old[lane] = value;
                } else {
                    let f = std::cell::RefCell::new(&mut f);
                    let update = |word: u32| (f.borrow_mut())(lane, u64::from(word)) as u32;
                    old[lane] = u64::from(allocation.update(offset, update));
                }
                allocation.mark_written_small(offset, access.element_bytes as usize);
            }
        })?;
        Ok(old)
    }

    /// Counts sectors and, on request, logs the bytes.
    pub(super) fn note_global(
        &mut self,
        warp: &Warp,
        access: &WarpAccess<'_>,
        kind: AccessKind,
        index: usize,
    ) {
        let bytes = u64::from(access.bytes());
        let pattern = pattern(access);
        let first_lane = access.mask.trailing_zeros() as usize;
        let first = access.addresses[first_lane];
        let (sectors, necessary) = match pattern {
            Pattern::Contiguous => {
                let end = first + bytes * LANES as u64;
                (end.div_ceil(SECTOR_BYTES) - first / SECTOR_BYTES, bytes)
            }
            Pattern::Uniform => (1, 1),
            Pattern::Scattered => scattered_sectors(access),
        };
        if let Some(trace) = &mut self.trace {
            trace.add_accesses(lanes_of(access.mask).map(|lane| access.addresses[lane]), bytes);
        }
        let is_store = kind != AccessKind::Read;
        let traffic = Traffic {
            requests: 1,
            sectors,
            necessary_sectors: necessary,
        };
        let total = if is_store {
            &mut self.counters.stores
        } else {
            &mut self.counters.loads
        };
        total.requests += traffic.requests;
        total.sectors += traffic.sectors;
        total.necessary_sectors += traffic.necessary_sectors;
        if !self.context.checks.global_races {
            return;
        }
        self.global.sectors[index][usize::from(is_store)] += sectors;
        let mut entry = Access {
            start: first,
            end: first + bytes,
            kind,
            pc: access.pc,
            warp: warp.index as u16,
            lane: first_lane as u8,
            lane_bytes: bytes as u8,
            phase: 0,
        };
        match pattern {
            Pattern::Contiguous => {
                entry.end = first + bytes * LANES as u64;
                self.log.push(entry);
            }
            Pattern::Uniform => self.log.push(entry),
            Pattern::Scattered => {
                let mut next_lane = first_lane + 1;
                for lane in lanes_of(access.mask & (access.mask - 1)) {
                    let address = access.addresses[lane];
                    if address == entry.end && lane == next_lane {
                        entry.end += bytes;
                    } else {
                        self.log.push(entry);
                        entry = Access {
                            start: address,
                            end: address + bytes,
                            lane: lane as u8,
                            ..entry
                        };
                    }
                    next_lane = lane + 1;
                }
                self.log.push(entry);
            }
        }
    }

    pub(super) fn check_written(&mut self, warp: &Warp, access: &WarpAccess<'_>, index: usize) {
        let allocation = self.context.memory.allocation(index);
        if !self.context.checks.uninitialized || allocation.is_whole() {
            return;
        }
        let bytes = access.bytes();
        for lane in lanes_of(access.mask) {
            let address = access.addresses[lane];
            if !allocation.is_written_small((address - allocation.address) as usize, bytes as usize) {
                let kind = FindingKind::UninitializedRead {
                    space: Space::Global,
                    address,
                    bytes,
                };
                self.find(warp.index, lane as u32, access.pc, kind);
                return;
            }
        }
    }
}

/// Returns the number of different sectors, and the fewest that as many different bytes could take.
fn scattered_sectors(access: &WarpAccess<'_>) -> (u64, u64) {
    let bytes = u64::from(access.bytes());
    let mut addresses = [u64::MAX; LANES];
    let mut n = 0;
    for lane in lanes_of(access.mask) {
        addresses[n] = access.addresses[lane];
        n += 1;
    }
    let addresses = &mut addresses[..n];
    addresses.sort_unstable();
    let (mut sectors, mut different, mut last_sector, mut last) = (0, 0, u64::MAX, u64::MAX);
    for &mut address in addresses {
        different += u64::from(address != last);
        sectors += u64::from(address / SECTOR_BYTES != last_sector);
        last = address;
        last_sector = address / SECTOR_BYTES;
    }
    (sectors, (different * bytes).div_ceil(SECTOR_BYTES))
}
