//! Asynchronous copies from global to shared memory.
//!
//! Invariant: the bytes of a copy arrive at the wait for its group and not before, so that a missing wait is found.

use super::{NO_COPY, cells_of};
use crate::{
    access_log::AccessKind,
    exec::{BlockRunner, Stop, Warp, lanes_of, memory::WarpAccess},
    lanes::LANES,
    op::{Address, Order},
    types::Space,
};

/// An asynchronous copy of one lane.
#[derive(Clone, Copy)]
struct Copy {
    lane: u8,
    bytes: u8,
    /// Bytes that come from memory; the rest are zeroed.
    source_bytes: u8,
    group: u32,
    to: u32,
    from: u64,
    pc: u32,
}

/// The unfinished asynchronous copies of a warp.
#[derive(Default)]
pub(in crate::exec) struct Copies {
    pending: Vec<Copy>,
    /// Groups that each lane has committed.
    committed: [u32; LANES],
}

impl Copies {
    pub(in crate::exec) fn reset(&mut self) {
        self.pending.clear();
        self.committed = [0; LANES];
    }

    pub(in crate::exec) fn commit(&mut self, mask: u32) {
        for lane in lanes_of(mask) {
            self.committed[lane] += 1;
        }
    }
}

impl BlockRunner<'_> {
    /// Starts an asynchronous copy: for races its bytes count as written now, but they arrive at the wait.
    pub(in crate::exec) fn copy_async(
        &mut self,
        warp: &mut Warp,
        to: Address,
        from: Address,
        bytes: u8,
        source_bytes: Option<u16>,
        mask: u32,
        pc: u32,
    ) -> Result<(), Stop> {
        let (to, from) = (warp.addresses(to), warp.addresses(from));
        let target = WarpAccess {
            addresses: &to,
            mask,
            element_bytes: 4,
            n: u32::from(bytes) / 4,
            order: Order::Weak,
            pc,
        };
        self.check_alignment(warp, Space::Shared, &target)?;
        self.check_shared_bounds(warp, &target)?;
        let counts = source_bytes.map(|count| *warp.r32(count));
        let count_of = |lane: usize| counts.map_or(u32::from(bytes), |counts| counts[lane].min(bytes.into()));
        let reading = lanes_of(mask)
            .filter(|&lane| count_of(lane) > 0)
            .fold(0, |reading, lane| reading | 1 << lane);
        if reading != 0 {
            let source = WarpAccess {
                addresses: &from,
                mask: reading,
                ..target
            };
            self.check_alignment(warp, Space::Global, &source)?;
            self.touch_global(warp, &source, &count_of)?;
        }
        self.count_wavefronts(&target);
        for lane in lanes_of(mask) {
            self.note_write(warp.index, lane, to[lane] as usize, bytes.into(), &target);
            for (word, _) in cells_of(to[lane] as usize, bytes.into()) {
                self.shared.cells[word].copy_pc = pc;
            }
            warp.copies.pending.push(Copy {
                lane: lane as u8,
                bytes,
                source_bytes: count_of(lane) as u8,
                group: warp.copies.committed[lane],
                to: to[lane] as u32,
                from: from[lane],
                pc,
            });
        }
        Ok(())
    }

    /// Checks and counts the source of an asynchronous copy. A lane that copies fewer bytes reads only those.
    fn touch_global(
        &mut self,
        warp: &Warp,
        source: &WarpAccess<'_>,
        count_of: &dyn Fn(usize) -> u32,
    ) -> Result<(), Stop> {
        let mut rest = source.mask;
        while rest != 0 {
            let bytes = count_of(rest.trailing_zeros() as usize);
            let mask = lanes_of(rest)
                .filter(|&lane| count_of(lane) == bytes)
                .fold(0, |mask, lane| mask | 1 << lane);
            let part = WarpAccess {
                mask,
                element_bytes: if bytes.is_multiple_of(4) { 4 } else { 1 },
                n: if bytes.is_multiple_of(4) { bytes / 4 } else { bytes },
                ..*source
            };
            self.note_copy_source(warp, &part)?;
            rest &= !mask;
        }
        Ok(())
    }

    /// Finishes the copies of groups that a thread waits for.
    pub(in crate::exec) fn copy_wait(&mut self, warp: &mut Warp, pending: Option<u32>, mask: u32) {
        let committed = warp.copies.committed;
        let copies = std::mem::take(&mut warp.copies.pending);
        let (done, left): (Vec<Copy>, Vec<Copy>) = copies.into_iter().partition(|copy| {
            let lane = usize::from(copy.lane);
            let is_waited_for = pending.is_none_or(|pending| copy.group + pending < committed[lane]);
            mask >> lane & 1 == 1 && is_waited_for
        });
        warp.copies.pending = left;
        for copy in done {
            self.finish_copy(warp.index, copy);
        }
    }

    fn finish_copy(&mut self, warp: u32, copy: Copy) {
        let clock = self.shared.clock(warp);
        let memory = self.context.memory;
        let index = memory.find(copy.from, 0);
        for word in 0..usize::from(copy.bytes) / 4 {
            let n_bytes = usize::from(copy.source_bytes).saturating_sub(4 * word).min(4);
            let mut value = 0;
            if n_bytes > 0 {
                let allocation =
                    memory.allocation(index.expect("the source was checked when the copy began"));
                let offset = (copy.from - allocation.address) as usize + 4 * word;
                let field = u32::MAX >> (32 - 8 * n_bytes);
                value = allocation.word(offset) & field;
            }
            let at = copy.to as usize / 4 + word;
            self.shared.words[at] = value;
            let cell = &mut self.shared.cells[at];
            cell.copy_pc = NO_COPY;
            cell.write_clock = clock;
            cell.write_warp = warp as u8;
            cell.write_pc = copy.pc;
            cell.is_async = false;
        }
    }

    pub(super) fn note_copy_source(&mut self, warp: &Warp, access: &WarpAccess<'_>) -> Result<(), Stop> {
        self.by_allocation(warp, access, |runner, index, mask| {
            let access = &WarpAccess { mask, ..*access };
            runner.note_global(warp, access, AccessKind::Read, index);
            runner.check_written(warp, access, index);
            runner.check_early_read(warp, access);
        })
    }
}
