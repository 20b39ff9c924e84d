//! [`Workspace`]: the memory that operations need while they run, kept from step to step.
//!
//! Unlike [`Host`], it is mutable. Invariant: it only grows, so that nothing is allocated after the largest
//! step, or from the start if [`Workspace::reserve`] was called with that step's sizes; no value in it
//! outlives an operation.

use tokenmill_backend::{AttentionShape, ExpertsShape};
use tokenmill_cpu_kernels::{ActivationBlock, n_spans};

use crate::{
    CpuExecError, Host,
    attention::AttentionScratch,
    experts::ExpertScratch,
    thread_scratch::{SUMS_LEN, ThreadScratch},
};

/// Scratch memory for [`linear`](crate::linear), [`attention`](crate::attention) and the like.
pub struct Workspace {
    /// Activations with a scale for each 32 columns.
    pub(crate) sub_blocks: Vec<ActivationBlock>,
    /// Activations with a scale for each 256 columns.
    pub(crate) span_blocks: Vec<ActivationBlock>,
    /// The pieces of work of an attention, and their parts to be folded together.
    pub(crate) attention: AttentionScratch,
    /// The inputs of the experts, and the pieces of their work.
    pub(crate) experts: ExpertScratch,
    /// The scratch memory of each thread.
    pub(crate) per_thread: Vec<ThreadScratch>,
}

/// The size of the largest step.
#[derive(Clone, Copy, Debug)]
pub struct StepSizes {
    /// The maximum number of tokens of all sequences.
    pub max_tokens: usize,
    /// The maximum number of sequences.
    pub max_seqs: usize,
    /// The maximum number of positions of a sequence.
    pub n_ctx: usize,
}

/// The lengths of a workspace's buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkspaceSizes {
    pub(crate) activation_blocks: usize,
    pub(crate) expert_blocks: usize,
    pub(crate) expert_values: usize,
    pub(crate) expert_items: usize,
    pub(crate) attention_items: usize,
    pub(crate) attention_parts: usize,
    pub(crate) thread_values: usize,
}

impl WorkspaceSizes {
    /// Returns the sizes that matrices of up to `n_cols` columns need, of any type.
    pub fn of_matrices(step: &StepSizes, n_cols: usize) -> Self {
        Self {
            activation_blocks: step.max_tokens.saturating_mul(n_spans(n_cols)),
            ..Self::default()
        }
    }

    /// Returns the sizes that the attention of a layer needs.
    ///
    /// # Panics
    /// If there are no KV heads.
    pub fn of_attention(step: &StepSizes, attention: &AttentionShape) -> Self {
        let AttentionShape {
            n_heads,
            n_kv_heads,
            head_dim_k,
            head_dim_v,
        } = *attention;
        AttentionScratch::sizes(step, n_heads, n_kv_heads, head_dim_k, head_dim_v)
    }

    /// Returns the sizes that the experts of a layer need; the first matrices have `n_embd` columns, the last
    /// have the expert's inner width.
    pub fn of_experts(step: &StepSizes, n_embd: usize, experts: &ExpertsShape) -> Self {
        let n_choices = step.max_tokens.saturating_mul(experts.n_used);
        Self {
            activation_blocks: n_choices.saturating_mul(n_spans(experts.n_ff)),
            ..ExpertScratch::sizes(n_choices, n_embd, experts)
        }
    }

    /// Returns the sizes that are enough for both.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            activation_blocks: self.activation_blocks.max(other.activation_blocks),
            expert_blocks: self.expert_blocks.max(other.expert_blocks),
            expert_values: self.expert_values.max(other.expert_values),
            expert_items: self.expert_items.max(other.expert_items),
            attention_items: self.attention_items.max(other.attention_items),
            attention_parts: self.attention_parts.max(other.attention_parts),
            thread_values: self.thread_values.max(other.thread_values),
        }
    }

    /// Returns the number of bytes that a workspace of these sizes takes for a pool of `n_threads`;
    /// `usize::MAX` if the sum overflows.
    pub fn n_bytes(&self, n_threads: usize) -> usize {
        [
            (self.activation_blocks, 2 * size_of::<ActivationBlock>()),
            (self.expert_blocks, 2 * size_of::<ActivationBlock>()),
            (self.expert_values, size_of::<f32>()),
            (self.expert_items, ExpertScratch::ITEM_BYTES),
            (self.attention_items, AttentionScratch::ITEM_BYTES),
            (self.attention_parts, size_of::<f32>()),
            (self.thread_values.saturating_mul(n_threads), size_of::<f32>()),
            (n_threads, SUMS_LEN * size_of::<f32>()),
        ]
        .into_iter()
        .map(|(len, n_bytes)| len.saturating_mul(n_bytes))
        .fold(0, usize::saturating_add)
    }
}

impl Workspace {
    /// Creates an empty workspace for operations on `host`.
    pub fn new(host: &Host) -> Self {
        let mut per_thread = Vec::new();
        per_thread.resize_with(host.pool().n_threads(), ThreadScratch::default);
        Self {
            sub_blocks: Vec::new(),
            span_blocks: Vec::new(),
            attention: AttentionScratch::default(),
            experts: ExpertScratch::default(),
            per_thread,
        }
    }

    /// Reserves memory for operations of these sizes, so that none of them allocates. On a system that
    /// provides pages on demand, memory costs nothing until it is written.
    ///
    /// # Errors
    /// [`CpuExecError::OutOfMemory`].
    pub fn reserve(&mut self, sizes: &WorkspaceSizes) -> Result<(), CpuExecError> {
        for blocks in [&mut self.sub_blocks, &mut self.span_blocks] {
            reserve(blocks, sizes.activation_blocks)?;
        }
        self.attention.reserve(sizes)?;
        self.experts.reserve(sizes)?;
        for thread in &mut self.per_thread {
            reserve(&mut thread.values, sizes.thread_values)?;
            reserve(&mut thread.sums, SUMS_LEN)?;
        }
        Ok(())
    }

    /// Returns the number of bytes reserved.
    pub fn n_bytes(&self) -> usize {
        let n_values: usize = (self.per_thread.iter())
            .map(|thread| thread.values.capacity() + thread.sums.capacity())
            .sum();
        (self.sub_blocks.capacity() + self.span_blocks.capacity()) * size_of::<ActivationBlock>()
            + self.attention.n_bytes()
            + self.experts.n_bytes()
            + n_values * size_of::<f32>()
    }
}

impl std::fmt::Debug for Workspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workspace").finish_non_exhaustive()
    }
}

/// Reserves memory for `len` items in all.
pub(crate) fn reserve<T>(buffer: &mut Vec<T>, len: usize) -> Result<(), CpuExecError> {
    let n_more = len.saturating_sub(buffer.len());
    buffer
        .try_reserve_exact(n_more)
        .map_err(|_| CpuExecError::OutOfMemory {
            what: "the workspace of a step",
            n_bytes: n_more.saturating_mul(size_of::<T>()),
        })
}
