//! [`Workspace`]: memory that operations need while they run, kept from step to step.
//!
//! Separate from [`Host`] because it is written to. Invariant: it only grows, so that after the largest step nothing is
//! allocated any more; no value in it outlives an operation.

use crate::{
    Host,
    attention::AttentionScratch,
    simd::activations::{ActivationBlock, n_spans},
};

/// Scratch memory for [`linear`](crate::linear), [`attention`](crate::attention) and the like.
pub struct Workspace {
    /// Activations with a scale for each 32 columns.
    pub(crate) sub_blocks: Vec<ActivationBlock>,
    /// Activations with a scale for each 256 columns.
    pub(crate) span_blocks: Vec<ActivationBlock>,
    /// The pieces of work of an attention, and what they leave to be folded together.
    pub(crate) attention: AttentionScratch,
    /// One area for each thread.
    pub(crate) per_thread: Vec<Vec<f32>>,
}

impl Workspace {
    /// An empty workspace for operations on `host`.
    pub fn new(host: &Host) -> Self {
        Self {
            sub_blocks: Vec::new(),
            span_blocks: Vec::new(),
            attention: AttentionScratch::default(),
            per_thread: vec![Vec::new(); host.pool().n_threads()],
        }
    }

    /// Bytes that quantized activations of `n_tokens` rows of `n_cols` take, for matrices of all types.
    pub fn activation_bytes(n_tokens: usize, n_cols: usize) -> usize {
        2 * n_tokens * n_spans(n_cols) * size_of::<ActivationBlock>()
    }
}

impl std::fmt::Debug for Workspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workspace").finish_non_exhaustive()
    }
}

/// The first `len` items of a buffer that grows when it must.
pub(crate) fn grown<T: Clone + Default>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
    &mut buffer[..len]
}
