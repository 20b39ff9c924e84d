//! Matrices in shared memory as the matrix operations of warpgroups read them: descriptors and swizzles.
//!
//! They are read through the asynchronous proxy: writes of threads are visible only after `fence.proxy.async`. Source of the layouts: PTX ISA,
//! "Asynchronous warpgroup-level matrix shared memory layout". In "K-major" matrices the rows of A and the columns of B are contiguous, in
//! transposed ("MN-major") matrices the elements of one k. Eight rows of 16 bytes are a core matrix. Without a swizzle a core matrix is 128
//! contiguous bytes; with one, rows are 32, 64 or 128 bytes apart and the 16-byte parts of a row are permuted by the row's address.

use super::{NO_COPY, cells_of};
use crate::{
    FindingKind,
    exec::{BlockRunner, Stop, Warp, memory::WarpAccess},
    lanes::LANES,
    op::Order,
    report::Conflict,
    types::Space,
};

/// Elements of a row that one operation reads, and their bytes.
pub(in crate::exec) const TILE_K: usize = 16;
/// Bytes of a row of a core matrix.
const PART_BYTES: u32 = 16;

/// Rows of a matrix in shared memory.
#[derive(Clone, Copy, Debug)]
pub(in crate::exec) struct Tile {
    start: u32,
    /// Bytes between core matrices along k, and along rows.
    leading: u32,
    stride: u32,
    /// Bytes of a row of the swizzled pattern; 16 without a swizzle.
    row_bytes: u32,
    first_row: u32,
    n_rows: u32,
    is_transposed: bool,
}

/// The place of a matrix in shared memory.
#[derive(Clone, Copy, Debug)]
pub(in crate::exec) struct Place {
    pub(in crate::exec) descriptor: u64,
    pub(in crate::exec) is_transposed: bool,
}

impl Tile {
    /// Reads a descriptor; an error names its fault.
    pub(in crate::exec) fn new(place: Place, first_row: usize, n_rows: usize) -> Result<Self, &'static str> {
        let Place {
            descriptor,
            is_transposed,
        } = place;
        let field = |first: u32| (descriptor >> first & 0x3fff) as u32 * 16;
        if descriptor >> 49 & 7 != 0 {
            return Err("a matrix whose pattern does not begin at a multiple of its size (base offset)");
        }
        let row_bytes = match descriptor >> 62 {
            0 => PART_BYTES,
            1 => 128,
            2 => 64,
            _ => 32,
        };
        Ok(Self {
            start: field(0),
            leading: field(16),
            stride: field(32),
            row_bytes,
            first_row: first_row as u32,
            n_rows: n_rows as u32,
            is_transposed,
        })
    }

    /// Returns the address of the half `part` of a row: eight elements.
    fn address(&self, row: u32, part: u32) -> u32 {
        let row = row + self.first_row;
        let core = self.start + row / 8 * self.stride + row % 8 * self.row_bytes;
        if self.row_bytes == PART_BYTES {
            return core + part * self.leading;
        }
        self.swizzled(core + part * PART_BYTES)
    }

    /// Returns the address of the elements at `k` of eight rows in a transposed matrix; the first row is a multiple of eight.
    fn address_of_k(&self, k: u32, first: u32) -> u32 {
        let part = (first + self.first_row) / 8;
        let core = self.start + k % 8 * self.row_bytes;
        if self.row_bytes == PART_BYTES {
            return core + part * self.stride + k / 8 * self.leading;
        }
        let parts = self.row_bytes / PART_BYTES;
        let core = core + part / parts * self.leading + k / 8 * self.stride;
        self.swizzled(core + part % parts * PART_BYTES)
    }

    fn swizzled(&self, plain: u32) -> u32 {
        let mask = self.row_bytes / PART_BYTES - 1;
        plain ^ (plain >> 7 & mask) << 4
    }

    /// Lists the first row and k of every part, and its address: along k, or along rows in a transposed matrix.
    fn parts(self) -> impl Iterator<Item = ([usize; 2], u32)> {
        let n_parts = self.n_rows * 2;
        (0..n_parts).map(move |index| {
            let (row, k, address) = if self.is_transposed {
                let (k, row) = (index % TILE_K as u32, index / TILE_K as u32 * 8);
                (row, k, self.address_of_k(k, row))
            } else {
                let (row, part) = (index / 2, index % 2);
                (row, 8 * part, self.address(row, part))
            };
            ([row as usize, k as usize], address)
        })
    }
}

impl BlockRunner<'_> {
    /// Returns the rows of a matrix, checked as reads of the asynchronous proxy.
    pub(in crate::exec) fn read_tile(
        &mut self,
        warp: &Warp,
        tile: Tile,
        value: fn(u16) -> f32,
        pc: u32,
    ) -> Result<Vec<[f32; TILE_K]>, Stop> {
        let mut rows = vec![[0.0; TILE_K]; tile.n_rows as usize];
        for ([row, k], address) in tile.parts() {
            if !self.shared.contains(address.into(), PART_BYTES) {
                return Err(self.out_of_bounds(warp.index, 0, pc, Space::Shared, address.into(), PART_BYTES));
            }
            self.begin_read_of_part(warp, address, pc);
            for element in 0..8usize {
                let word = self.shared.words[address as usize / 4 + element / 2];
                let [row, k] = if tile.is_transposed {
                    [row + element, k]
                } else {
                    [row, k + element]
                };
                rows[row][k] = value((word >> (16 * (element % 2))) as u16);
            }
        }
        Ok(rows)
    }

    /// Begins an operation of a warp: returns the clocks that the warp knows of, and counts its later accesses separately.
    pub(in crate::exec) fn known_at_begin(&mut self, warp: &Warp) -> Vec<u32> {
        let known = self.shared.clocks[self.shared.row(warp.index)].to_vec();
        self.shared.tick(warp.index);
        known
    }

    /// Notes that a matrix was being read from when the warp knew of `known` until now. Reports writes in between.
    pub(in crate::exec) fn end_read_of_tile(&mut self, warp: &Warp, tile: Tile, known: &[u32], pc: u32) {
        let access = WarpAccess {
            addresses: &[0; LANES],
            mask: 1,
            element_bytes: 4,
            n: PART_BYTES / 4,
            order: Order::Weak,
            pc,
        };
        for (_, address) in tile.parts() {
            for (word, _) in cells_of(address as usize, PART_BYTES) {
                let cell = self.shared.cells[word];
                let writer = u32::from(cell.write_warp);
                let is_later = cell.write_clock > known[writer as usize];
                if is_later && self.context.checks.shared_races {
                    let conflict = Conflict::ReadWrite;
                    self.find_race(warp.index, 0, 4 * word, pc, conflict, writer, cell.write_pc);
                }
            }
            self.note_read(warp.index, 0, address as usize, PART_BYTES, &access);
        }
    }

    fn begin_read_of_part(&mut self, warp: &Warp, address: u32, pc: u32) {
        let checks = self.context.checks;
        for (word, touched) in cells_of(address as usize, PART_BYTES) {
            let cell = self.shared.cells[word];
            let at = 4 * word;
            if cell.copy_pc != NO_COPY {
                self.find_unfinished(warp.index, 0, at, pc, cell.copy_pc);
                continue;
            }
            if checks.uninitialized && cell.written & touched != touched {
                let kind = FindingKind::UninitializedRead {
                    space: Space::Shared,
                    address: at as u64,
                    bytes: 4,
                };
                self.find(warp.index, 0, pc, kind);
            }
            if !checks.shared_races || cell.write_clock == 0 {
                continue;
            }
            let writer = u32::from(cell.write_warp);
            let knows = self.shared.knows(warp.index, writer, cell.write_clock);
            if !knows && cell.is_async {
                self.find_unfinished(warp.index, 0, at, pc, cell.write_pc);
            } else if !knows && writer != warp.index {
                self.find_race(warp.index, 0, at, pc, Conflict::WriteRead, writer, cell.write_pc);
            } else if !cell.is_async && !self.shared.is_fenced(warp.index, writer, cell.write_clock) {
                let kind = FindingKind::MissingProxyFence { address: at as u64 };
                self.find(warp.index, 0, pc, kind);
            }
        }
    }
}
