//! [`ThreadScratch`]: the scratch memory of one thread while it computes a chunk.
//!
//! The products and the changes of adapters use it and know nothing of the rest of the
//! [`Workspace`](crate::Workspace), which has one per thread. Invariant: no value in it outlives a chunk.

use tokenmill_cpu_kernels::PAIR_ROWS;

/// The scratch memory of one thread; see the module.
#[derive(Debug, Default)]
pub(crate) struct ThreadScratch {
    /// The queries and scores of an attention.
    pub(crate) values: Vec<f32>,
    /// The products of some tokens with two tiles, of one or two matrices.
    pub(crate) sums: Vec<f32>,
}

/// The number of rows of activations that are multiplied with a tile while its unpacked columns are in the
/// first-level cache.
pub(crate) const TOKEN_BLOCK: usize = 96;

/// The length of the sums of a thread.
pub(crate) const SUMS_LEN: usize = 2 * TOKEN_BLOCK * PAIR_ROWS;

/// Returns the first `len` items of a buffer, which grows if necessary.
pub(crate) fn grown<T: Clone + Default>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
    &mut buffer[..len]
}
