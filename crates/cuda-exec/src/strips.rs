//! [`FewRows`]: the thread blocks and the shared memory of products by few rows.
//!
//! The kernels of K-quants copy their weights in strips of 16 rows through shared memory, and those of other types read rows by warps.
//! Launches, tests and benches all use these sizes. Invariant: they equal those in `kernels/strips.cuh`.

use tokenmill_gguf::TensorType;

/// Numbers of rows that products of few rows are compiled for.
const VARIANTS: [usize; 4] = [1, 2, 4, 8];
/// Bytes of a superblock's nibbles in a strip, and of the additional bytes of a group, over all groups.
const NIBBLE_BYTES: usize = 2048;
const GROUPS: usize = 8 * 16;
/// A superblock of a row of x, with its scales.
const X_BYTES: usize = 320;
/// Per-superblock bytes of a strip's rows, for two superblocks.
const TAIL_BYTES: usize = 512;
/// Smallest number of rows of a tall matrix, such as an output head: 2,048 strips, about two for each warp of its thread blocks.
const TALL_ROWS: usize = 32_768;
/// Numbers of columns of a tall matrix: the three superblocks that a warp copies first belong to one strip, and in Q6_K one copy of 16
/// bytes by each lane brings a strip's scales.
const TALL_COLUMNS: std::ops::RangeInclusive<usize> = 768..=4096;
/// Strips of a tall matrix that a thread block takes at a time: one for each of its warps.
const STRIPS_OF_TALL: usize = 4;
/// Largest number of thread blocks of a tall matrix: two on each of 132 multiprocessors. Each takes its share of the strips one after the
/// other.
const TALL_BLOCKS: usize = 264;
/// Two tables of the scales of a strip of a tall matrix in Q6_K, for each warp.
const TALL_TABLE_BYTES: usize = STRIPS_OF_TALL * 2 * 16 * 16 * 2;

/// Describes how weights of a type are multiplied by few rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FewRows {
    /// Bytes of a group beyond its nibbles, for types in strips.
    high_bytes: Option<usize>,
    has_table: bool,
}

impl FewRows {
    /// Rows of a strip, which a thread block of `matvec_m16` takes.
    pub const STRIP_ROWS: usize = 16;

    /// Returns the description of a type.
    pub fn of(ty: TensorType) -> Self {
        let high_bytes = match ty {
            TensorType::Q4_K => Some(0),
            TensorType::Q5_K => Some(4),
            TensorType::Q6_K => Some(8),
            _ => None,
        };
        Self {
            high_bytes,
            has_table: ty == TensorType::Q6_K,
        }
    }

    /// Returns the number of rows of a matrix `[n_out, n_in]` that a thread block of `matvec` takes. In strips it is one strip, or several
    /// for each warp of a tall matrix.
    pub fn block_rows(self, n_out: usize, n_in: usize) -> usize {
        match self.high_bytes {
            Some(_) if n_out >= TALL_ROWS && TALL_COLUMNS.contains(&n_in) => {
                let at_once = Self::STRIP_ROWS * STRIPS_OF_TALL;
                at_once * n_out.div_ceil(at_once * TALL_BLOCKS)
            }
            Some(_) => Self::STRIP_ROWS,
            None => 8,
        }
    }

    /// Returns the dynamic shared memory of `matvec_m` with this many rows of x.
    pub fn shared_bytes(self, n_rows: usize) -> usize {
        let tables = table_bytes(64).max(TALL_TABLE_BYTES);
        self.room(VARIANTS[variant_of(n_rows)], 4, 4, tables)
    }

    /// Returns whether there is a kernel for 16 rows of x at a time, `matvec_m16`.
    pub fn takes_sixteen(self) -> bool {
        self.high_bytes.is_some()
    }

    /// Returns the dynamic shared memory of that kernel.
    pub fn sixteen_shared_bytes(self) -> usize {
        self.room(16, 2, 4, table_bytes(64))
    }

    /// Returns the threads of a thread block of `matvec_gated_m`.
    pub fn gated_threads(self) -> u32 {
        if self.high_bytes.is_some() { 128 } else { 256 }
    }

    /// Returns the dynamic shared memory of `matvec_gated_m` with this many rows of x.
    pub fn gated_shared_bytes(self, n_rows: usize) -> usize {
        let n_stages = if self.high_bytes == Some(0) && n_rows <= 2 {
            4
        } else {
            2
        };
        let variant = VARIANTS[variant_of(n_rows)];
        self.room(variant, n_stages, 4, 4 * table_bytes(64))
    }

    /// Largest number of columns of a row that thread blocks norm themselves (`kernels/normed_row.cuh`).
    pub const NORMED_COLUMNS: usize = 2048;

    /// Returns the dynamic shared memory of `matvec_normed_m1` for a row of `n_in` columns.
    pub fn normed_shared_bytes(self, n_in: usize) -> usize {
        self.room(0, 4, 4, table_bytes(64)) + n_in / 256 * X_BYTES
    }

    /// Returns the same for `matvec_gated_normed_m1`.
    pub fn gated_normed_shared_bytes(self, n_in: usize) -> usize {
        let n_stages = if self.high_bytes == Some(0) { 8 } else { 4 };
        self.room(0, n_stages, 4, 4 * table_bytes(64)) + n_in / 256 * X_BYTES
    }

    fn room(self, variant: usize, n_stages: usize, n_warps: usize, table_bytes: usize) -> usize {
        let Some(high_bytes) = self.high_bytes else {
            return 0;
        };
        let stage = NIBBLE_BYTES + GROUPS * high_bytes + X_BYTES * variant;
        let table = if self.has_table { table_bytes } else { 0 };
        n_warps * (n_stages * stage + (n_stages / 2 + 1) * TAIL_BYTES) + table
    }
}

/// Returns the bytes of the scales of a strip of Q6_K: 16 rows of `n_supers` superblocks, with padding.
fn table_bytes(n_supers: usize) -> usize {
    16 * 2 * (n_supers + 2)
}

/// Returns the index of the kernel, of those for 1, 2, 4 and 8 rows, that takes `n_rows`.
pub(crate) fn variant_of(n_rows: usize) -> usize {
    VARIANTS
        .iter()
        .position(|&rows| n_rows <= rows)
        .unwrap_or(VARIANTS.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_product_of_few_rows_fits_the_smallest_multiprocessor() {
        // A thread block may request 99 KiB on compute capability 8.6 and 8.9.
        for ty in [
            TensorType::Q4_K,
            TensorType::Q5_K,
            TensorType::Q6_K,
            TensorType::Q8_0,
        ] {
            for n_rows in VARIANTS {
                let few = FewRows::of(ty);
                assert!(few.shared_bytes(n_rows) <= 99 << 10, "{ty:?} by {n_rows}");
                assert!(
                    few.gated_shared_bytes(n_rows) <= 99 << 10,
                    "{ty:?} gated by {n_rows}"
                );
            }
            let few = FewRows::of(ty);
            let widest = FewRows::NORMED_COLUMNS;
            assert!(few.normed_shared_bytes(widest) <= 99 << 10, "{ty:?} normed");
            assert!(few.gated_normed_shared_bytes(widest) <= 99 << 10, "{ty:?} normed");
        }
        assert_eq!(FewRows::of(TensorType::Q8_0).shared_bytes(8), 0);
        assert_eq!(
            FewRows::of(TensorType::Q4_K).shared_bytes(1),
            4 * (4 * 2368 + 3 * 512)
        );
    }
}
