//! Shared memory as a warp sees it: bounds, initialization, bank conflicts, races between warps, asynchronous copies.
//!
//! Order between warps is tracked by vector clocks: each warp counts its own barriers and knows the counts of the others
//! at the last barrier that they shared. A cell of four bytes remembers its last writer and its last readers with their
//! clocks; an access races if it touches the same bytes and does not know the other's clock yet.

#![expect(clippy::needless_range_loop, reason = "elements and lanes are indexed alike")]

mod copies;
mod phases;
mod tiles;

use self::phases::{Barriers, MAX_BARRIERS};
pub(super) use self::{
    copies::Copies,
    tiles::{Place, TILE_K, Tile},
};

use super::{
    BlockRunner, FULL, Stop, Warp,
    global::{Pattern, pattern},
    lanes_of,
    memory::{LaneWords, WarpAccess},
};
use crate::{
    FindingKind,
    lanes::{LANES, Lanes64},
    op::{Address, Order},
    report::Conflict,
    types::Space,
};

/// Banks of shared memory.
const N_BANKS: usize = 32;
/// Marks a cell without an unfinished copy.
const NO_COPY: u32 = u32::MAX;

/// State of four bytes of shared memory.
#[derive(Clone, Copy)]
struct Cell {
    /// Bytes written since the thread block began.
    written: u8,
    /// Bytes of the last write, its warp, clock and instruction; clock 0 means none.
    write_bytes: u8,
    write_is_atomic: bool,
    write_warp: u8,
    write_clock: u32,
    write_pc: u32,
    /// Bytes of the last reads, the warps that made them at this clock, and the last one's instruction.
    read_bytes: u8,
    read_clock: u32,
    read_warps: u32,
    read_pc: u32,
    /// The asynchronous copy that fills these bytes, until a wait for it.
    copy_pc: u32,
    /// Whether the last write came from the asynchronous proxy.
    is_async: bool,
}

const EMPTY: Cell = Cell {
    written: 0,
    write_bytes: 0,
    write_is_atomic: false,
    write_warp: 0,
    write_clock: 0,
    write_pc: 0,
    read_bytes: 0,
    read_clock: 0,
    read_warps: 0,
    read_pc: 0,
    copy_pc: NO_COPY,
    is_async: false,
};

pub(super) struct SharedState {
    bytes: usize,
    words: Vec<u32>,
    cells: Vec<Cell>,
    n_warps: usize,
    /// The warps and, if a kernel has them, the barriers in shared memory, whose clocks are their phases.
    n_columns: usize,
    /// `clocks[w * n_columns + v]`: barriers of warp `v` that warp `w` knows of.
    clocks: Vec<u32>,
    /// The same for asynchronous operations; empty if a kernel has none.
    fences: Vec<u32>,
    barriers: Barriers,
}

impl SharedState {
    pub(super) fn new(bytes: usize, n_warps: usize, has_async: bool) -> Self {
        let n_words = bytes.div_ceil(4);
        let n_columns = if has_async {
            n_warps + MAX_BARRIERS
        } else {
            n_warps
        };
        Self {
            bytes,
            words: vec![0; n_words],
            cells: vec![EMPTY; n_words],
            n_warps,
            n_columns,
            clocks: vec![0; n_warps * n_columns],
            fences: if has_async {
                vec![0; n_warps * n_columns]
            } else {
                Vec::new()
            },
            barriers: Barriers::default(),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn reset(&mut self) {
        self.words.fill(0);
        self.cells.fill(EMPTY);
        self.clocks.fill(0);
        for warp in 0..self.n_warps {
            self.clocks[warp * self.n_columns + warp] = 1;
        }
        self.fences.fill(0);
        self.barriers.reset();
    }

    /// Orders all accesses of the warps before a barrier before all of their accesses after it.
    pub(super) fn join_clocks(&mut self, warps: &[usize]) {
        let n_columns = self.n_columns;
        for rows in [&mut self.clocks, &mut self.fences] {
            for other in 0..if rows.is_empty() { 0 } else { n_columns } {
                let latest = warps.iter().map(|&warp| rows[warp * n_columns + other]).max();
                for &warp in warps {
                    rows[warp * n_columns + other] = latest.unwrap_or(0);
                }
            }
        }
        for &warp in warps {
            self.clocks[warp * n_columns + warp] += 1;
        }
    }

    fn clock(&self, warp: u32) -> u32 {
        self.clocks[warp as usize * (self.n_columns + 1)]
    }

    fn knows(&self, warp: u32, other: u32, clock: u32) -> bool {
        clock <= self.clocks[warp as usize * self.n_columns + other as usize]
    }

    /// Returns whether asynchronous operations of a warp see another warp's writes.
    fn is_fenced(&self, warp: u32, other: u32, clock: u32) -> bool {
        (self.fences.get(warp as usize * self.n_columns + other as usize))
            .is_some_and(|&known| clock <= known)
    }

    fn contains(&self, address: u64, bytes: u32) -> bool {
        address
            .checked_add(u64::from(bytes))
            .is_some_and(|end| end <= self.bytes as u64)
    }

    fn store_element(&mut self, at: usize, bytes: u32, value: u32) {
        if bytes >= 4 {
            self.words[at / 4] = value;
        } else {
            let shift = 8 * (at % 4);
            let field = ((1u32 << (8 * bytes)) - 1) << shift;
            let word = &mut self.words[at / 4];
            *word = (*word & !field) | (value << shift & field);
        }
    }
}

impl BlockRunner<'_> {
    fn check_shared_bounds(&mut self, warp: &Warp, access: &WarpAccess<'_>) -> Result<(), Stop> {
        let bytes = access.bytes();
        let outside =
            lanes_of(access.mask).find(|&lane| !self.shared.contains(access.addresses[lane], bytes));
        match outside {
            None => Ok(()),
            Some(lane) => {
                let address = access.addresses[lane];
                Err(self.out_of_bounds(warp.index, lane, access.pc, Space::Shared, address, bytes))
            }
        }
    }

    pub(super) fn load_shared(
        &mut self,
        warp: &Warp,
        access: &WarpAccess<'_>,
        words: &mut LaneWords,
    ) -> Result<(), Stop> {
        self.check_shared_bounds(warp, access)?;
        self.count_wavefronts(access);
        let bytes = access.bytes();
        let mut noted = None;
        for lane in lanes_of(access.mask) {
            let address = access.addresses[lane] as usize;
            // Lanes often read the same bytes, and a second read of a warp changes nothing.
            if noted.replace(address) != Some(address) {
                self.note_read(warp.index, lane, address, bytes, access);
            }
            if access.element_bytes >= 4 {
                for (index, word) in words[..(bytes / 4) as usize].iter_mut().enumerate() {
                    word[lane] = self.shared.words[address / 4 + index];
                }
            } else {
                let field = (1u32 << (8 * access.element_bytes)) - 1;
                for element in 0..access.n as usize {
                    let at = address + element * access.element_bytes as usize;
                    words[element][lane] = self.shared.words[at / 4] >> (8 * (at % 4)) & field;
                }
            }
        }
        Ok(())
    }

    pub(super) fn store_shared(
        &mut self,
        warp: &Warp,
        access: &WarpAccess<'_>,
        words: &LaneWords,
    ) -> Result<(), Stop> {
        self.check_shared_bounds(warp, access)?;
        self.count_wavefronts(access);
        let bytes = access.bytes();
        for lane in lanes_of(access.mask) {
            let address = access.addresses[lane] as usize;
            self.note_write(warp.index, lane, address, bytes, access);
            if access.element_bytes >= 4 {
                for (index, word) in words[..(bytes / 4) as usize].iter().enumerate() {
                    self.shared.words[address / 4 + index] = word[lane];
                }
            } else {
                for element in 0..access.n as usize {
                    let at = address + element * access.element_bytes as usize;
                    self.shared
                        .store_element(at, access.element_bytes, words[element][lane]);
                }
            }
        }
        Ok(())
    }

    pub(super) fn update_shared(
        &mut self,
        warp: &Warp,
        access: &WarpAccess<'_>,
        mut f: impl FnMut(usize, u64) -> u64,
    ) -> Result<Lanes64, Stop> {
        self.check_shared_bounds(warp, access)?;
        self.count_wavefronts(access);
        self.counters.shared_atomics += u64::from(access.mask.count_ones());
        let mut old = [0; LANES];
        for lane in lanes_of(access.mask) {
            let address = access.addresses[lane] as usize;
            self.check_shared_written(warp.index, lane, address, access.bytes(), access.pc);
            self.note_write(warp.index, lane, address, access.bytes(), access);
            let word = address / 4;
            let low = self.shared.words[word];
            let value = if access.element_bytes == 8 {
                u64::from(self.shared.words[word + 1]) << 32 | u64::from(low)
            } else {
                u64::from(low)
            };
            let new = f(lane, value);
            self.shared.words[word] = new as u32;
            if access.element_bytes == 8 {
                self.shared.words[word + 1] = (new >> 32) as u32;
            }
            old[lane] = value;
        }
        Ok(old)
    }

    /// Counts passes over the banks: a quarter, half or all of the warp at a time for 16, 8 and 4 bytes, and each time
    /// as many as there are different words in the most used bank.
    fn count_wavefronts(&mut self, access: &WarpAccess<'_>) {
        let bytes = access.bytes();
        let lanes_per_pass = match bytes {
            16 => 8,
            8 => 16,
            _ => 32,
        };
        self.counters.shared.requests += 1;
        let is_free_of_conflicts = match pattern(access) {
            Pattern::Contiguous => matches!(bytes, 4 | 8 | 16),
            Pattern::Uniform => access.mask == FULL,
            Pattern::Scattered => false,
        };
        if is_free_of_conflicts {
            let n_passes = (LANES / lanes_per_pass) as u64;
            self.counters.shared.wavefronts += n_passes;
            self.counters.shared.ideal_wavefronts += n_passes;
            if let Some(trace) = &mut self.trace {
                (0..n_passes).for_each(|_| trace.add_passes(1));
            }
            return;
        }
        for first in (0..LANES).step_by(lanes_per_pass) {
            let pass = (u32::MAX >> (LANES - lanes_per_pass)) << first;
            let active = access.mask & pass;
            if active == 0 {
                continue;
            }
            // Distinct words of each bank; most banks have one or none.
            let mut first_word = [u32::MAX; N_BANKS];
            let mut n_words = [0u32; N_BANKS];
            let mut others: Vec<u32> = Vec::new();
            for lane in lanes_of(active) {
                let word = (access.addresses[lane] / 4) as u32;
                for word in word..word + bytes.div_ceil(4) {
                    let bank = word as usize % N_BANKS;
                    if n_words[bank] == 0 {
                        first_word[bank] = word;
                        n_words[bank] = 1;
                    } else if first_word[bank] != word && !others.contains(&word) {
                        others.push(word);
                        n_words[bank] += 1;
                    }
                }
            }
            let wavefronts = n_words.iter().copied().max().unwrap_or(0);
            self.counters.shared.wavefronts += u64::from(wavefronts);
            if let Some(trace) = &mut self.trace {
                trace.add_passes(wavefronts.into());
            }
            self.counters.shared.ideal_wavefronts += 1;
        }
    }

    fn check_shared_written(&mut self, warp: u32, lane: usize, address: usize, bytes: u32, pc: u32) {
        if !self.context.checks.uninitialized {
            return;
        }
        for (word, touched) in cells_of(address, bytes) {
            if self.shared.cells[word].written & touched != touched {
                let kind = FindingKind::UninitializedRead {
                    space: Space::Shared,
                    address: address as u64,
                    bytes,
                };
                self.find(warp, lane as u32, pc, kind);
                return;
            }
        }
    }

    #[inline]
    fn note_read(&mut self, warp: u32, lane: usize, address: usize, bytes: u32, access: &WarpAccess<'_>) {
        let checks = self.context.checks;
        let row = self.shared.row(warp);
        let clock = self.shared.clock(warp);
        for (word, touched) in cells_of(address, bytes) {
            let known = &self.shared.clocks[row.clone()];
            let cell = &mut self.shared.cells[word];
            let writer = usize::from(cell.write_warp);
            let is_quiet = cell.copy_pc == NO_COPY
                && cell.written & touched == touched
                && (cell.write_clock <= known[writer] || writer == warp as usize);
            if checks.shared_races {
                let warp_bit = 1 << warp;
                let is_same = cell.read_clock == clock && cell.read_bytes == touched;
                cell.read_warps = if is_same {
                    cell.read_warps | warp_bit
                } else {
                    warp_bit
                };
                cell.read_clock = clock;
                cell.read_bytes = touched;
                cell.read_pc = access.pc;
            }
            if !is_quiet {
                self.check_read(warp, lane, address, (bytes, touched), access, word);
            }
        }
    }

    /// Reports what is wrong with a read of a cell.
    #[cold]
    fn check_read(
        &mut self,
        warp: u32,
        lane: usize,
        address: usize,
        (bytes, touched): (u32, u8),
        access: &WarpAccess<'_>,
        word: usize,
    ) {
        let checks = self.context.checks;
        let cell = self.shared.cells[word];
        if cell.copy_pc != NO_COPY {
            self.find_unfinished(warp, lane, address, access.pc, cell.copy_pc);
        } else if checks.uninitialized && cell.written & touched != touched {
            let kind = FindingKind::UninitializedRead {
                space: Space::Shared,
                address: address as u64,
                bytes,
            };
            self.find(warp, lane as u32, access.pc, kind);
        }
        let other = u32::from(cell.write_warp);
        let is_race = checks.shared_races
            && cell.write_clock > 0
            && other != warp
            && cell.write_bytes & touched != 0
            && !(access.order.is_strong() && cell.write_is_atomic)
            && !self.shared.knows(warp, other, cell.write_clock);
        if is_race {
            let conflict = Conflict::WriteRead;
            self.find_race(warp, lane, address, access.pc, conflict, other, cell.write_pc);
        }
    }

    #[inline]
    fn note_write(&mut self, warp: u32, lane: usize, address: usize, bytes: u32, access: &WarpAccess<'_>) {
        let row = self.shared.row(warp);
        let clock = self.shared.clock(warp);
        let is_strong = access.order.is_strong();
        for (word, touched) in cells_of(address, bytes) {
            let known = &self.shared.clocks[row.clone()];
            let cell = &self.shared.cells[word];
            let writer = usize::from(cell.write_warp);
            let is_quiet = cell.copy_pc == NO_COPY
                && (cell.write_clock <= known[writer] || writer == warp as usize)
                && (cell.read_bytes & touched == 0 || cell.read_warps & !(1 << warp) == 0);
            if !is_quiet {
                self.check_write(warp, lane, address, (touched, is_strong), access.pc, word);
            }
            let cell = &mut self.shared.cells[word];
            cell.written |= touched;
            cell.write_bytes = touched;
            cell.write_is_atomic = is_strong;
            cell.write_warp = warp as u8;
            cell.write_clock = clock;
            cell.write_pc = access.pc;
            cell.is_async = false;
        }
    }

    /// Reports a race of a write of a cell, or an unfinished copy to it.
    fn check_write(
        &mut self,
        warp: u32,
        lane: usize,
        address: usize,
        (touched, is_strong): (u8, bool),
        pc: u32,
        word: usize,
    ) {
        let cell = self.shared.cells[word];
        if cell.copy_pc != NO_COPY {
            self.find_unfinished(warp, lane, address, pc, cell.copy_pc);
        }
        if !self.context.checks.shared_races {
            return;
        }
        let writer = u32::from(cell.write_warp);
        let races_with_write = cell.write_clock > 0
            && writer != warp
            && cell.write_bytes & touched != 0
            && !(is_strong && cell.write_is_atomic)
            && !self.shared.knows(warp, writer, cell.write_clock);
        if races_with_write {
            self.find_race(
                warp,
                lane,
                address,
                pc,
                Conflict::WriteWrite,
                writer,
                cell.write_pc,
            );
        }
        if cell.read_bytes & touched == 0 {
            return;
        }
        let reader = lanes_of(cell.read_warps & !(1 << warp))
            .map(|reader| reader as u32)
            .find(|&reader| !self.shared.knows(warp, reader, cell.read_clock));
        if let Some(reader) = reader {
            self.find_race(warp, lane, address, pc, Conflict::ReadWrite, reader, cell.read_pc);
        }
    }

    fn find_race(
        &mut self,
        warp: u32,
        lane: usize,
        address: usize,
        pc: u32,
        conflict: Conflict,
        other_warp: u32,
        other_pc: u32,
    ) {
        if other_warp as usize >= self.shared.n_warps {
            self.find_unfinished(warp, lane, address, pc, other_pc);
            return;
        }
        let kind = FindingKind::SharedRace {
            address: address as u64,
            conflict,
            other_warp,
            other: self.place(other_pc),
        };
        self.find(warp, lane as u32, pc, kind);
    }

    fn find_unfinished(&mut self, warp: u32, lane: usize, address: usize, pc: u32, copy_pc: u32) {
        let kind = FindingKind::UnfinishedCopy {
            address: address as u64,
            copy: self.place(copy_pc),
        };
        self.find(warp, lane as u32, pc, kind);
    }

    /// Loads 8 by 8 matrices of 16-bit elements; lanes `8i .. 8i + 8` give the rows of matrix `i`.
    pub(super) fn load_matrix(
        &mut self,
        warp: &mut Warp,
        at: Address,
        n: u8,
        transposed: bool,
        d: [u16; 4],
        pc: u32,
    ) -> Result<(), Stop> {
        let addresses = warp.addresses(at);
        let n = usize::from(n);
        let mask = if n == 4 { u32::MAX } else { (1 << (8 * n)) - 1 };
        let access = WarpAccess {
            addresses: &addresses,
            mask,
            element_bytes: 4,
            n: 4,
            order: Order::Weak,
            pc,
        };
        self.check_alignment(warp, Space::Shared, &access)?;
        let mut words: LaneWords = [[0; LANES]; 4];
        self.load_shared(warp, &access, &mut words)?;
        // Returns element (row, column) of matrix `i`, as 16 bits.
        let element = |i: usize, row: usize, column: usize| {
            let word = words[column / 2][8 * i + row];
            word >> (16 * (column % 2)) & 0xffff
        };
        for (i, register) in d[..n].iter().enumerate() {
            let value = std::array::from_fn(|lane| {
                let (row, column) = (lane / 4, 2 * (lane % 4));
                if transposed {
                    element(i, column, row) | element(i, column + 1, row) << 16
                } else {
                    element(i, row, column) | element(i, row, column + 1) << 16
                }
            });
            warp.set32(*register, &value, u32::MAX);
        }
        Ok(())
    }
}

/// Returns the cells that a range of bytes touches, each with a bit for each of its bytes.
fn cells_of(address: usize, bytes: u32) -> impl Iterator<Item = (usize, u8)> {
    let end = address + bytes as usize;
    (address / 4..end.div_ceil(4)).map(move |word| {
        let from = address.saturating_sub(4 * word);
        let to = (end - 4 * word).min(4);
        (word, ((1u8 << to) - 1) & !((1u8 << from) - 1))
    })
}
