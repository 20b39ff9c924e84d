//! [`ThreadScratch`]: what one thread writes to while it computes a chunk.
//!
//! Separate from the [`Workspace`](crate::Workspace) that has one for each thread, because products and what adapters add to them use it
//! and know nothing of the rest. Invariant: no value in it outlives a chunk.

use tokenmill_cpu_kernels::PAIR_ROWS;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct ThreadScratch {
    /// Queries and scores of an attention.
    pub(crate) values: Vec<f32>,
    /// Products of some tokens with two tiles, of one or two matrices.
    pub(crate) sums: Vec<f32>,
}

/// Rows of activations that pass a tile while its unpacked columns are in the first-level cache.
pub(crate) const TOKEN_BLOCK: usize = 96;

/// Length of the sums of a thread.
pub(crate) const SUMS_LEN: usize = 2 * TOKEN_BLOCK * PAIR_ROWS;

/// The first `len` items of a buffer that grows when it must.
pub(crate) fn grown<T: Clone + Default>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
    &mut buffer[..len]
}
