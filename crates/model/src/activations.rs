//! [`Activations`]: the buffers that a forward pass works in.
//!
//! Separate because their list is needed twice: a load allocates them, and the plan of its memory weighs them. Invariant:
//! both run through [`Activations::alloc`], so the plan knows every buffer there is.

use tokenmill_backend::{BackendError, ExecutorLimits, Memory, Norm};

use crate::{Descriptor, LayerDescriptor};

/// The buffers of a network. They are allocated once and never move.
pub(crate) struct Activations<T> {
    /// All tokens of a step.
    pub(crate) tokens: Rows<T>,
    /// The output rows among them, in the last layer.
    pub(crate) outputs: Rows<T>,
    pub(crate) heads: Heads<T>,
    pub(crate) scratch: Scratch<T>,
    /// The rows whose logits are wanted, where they are not all output rows.
    pub(crate) head_input: T,
    pub(crate) logits: T,
}

/// What a layer knows of each row.
pub(crate) struct Rows<T> {
    /// The residual stream.
    pub(crate) hidden: T,
    /// The stream after the norm that the next half of a layer begins with.
    pub(crate) normed: T,
    /// The output of attention, all heads.
    pub(crate) attn: T,
}

/// Queries, keys and values of all heads.
pub(crate) struct Heads<T> {
    pub(crate) q: T,
    pub(crate) k: T,
    pub(crate) v: T,
}

/// What the halves of a layer write.
pub(crate) struct Scratch<T> {
    pub(crate) gate: T,
    pub(crate) up: T,
    /// What a half adds to the stream.
    pub(crate) delta: T,
}

impl<T> Rows<T> {
    /// What a half of a layer reads: the normed stream, or the stream itself where the half begins without a norm.
    pub(crate) fn input<V>(&self, norm: Option<&Norm<V>>) -> &T {
        match norm {
            Some(_) => &self.normed,
            None => &self.hidden,
        }
    }
}

impl<T> Activations<T> {
    /// Allocates the buffers for the largest step.
    ///
    /// # Errors
    /// A device error.
    pub(crate) fn alloc<M: Memory<Buffer = T>>(
        descriptor: &Descriptor,
        limits: &ExecutorLimits,
        memory: &mut M,
    ) -> Result<Self, BackendError> {
        let widest = |width: &dyn Fn(&LayerDescriptor) -> usize| {
            descriptor.layers.iter().map(width).max().unwrap_or(0)
        };
        let n_embd = descriptor.n_embd;
        let q = widest(&|layer| layer.attention.n_heads * layer.attention.head_dim_k);
        let k = widest(&|layer| layer.attention.n_kv_heads * layer.attention.head_dim_k);
        let v = widest(&|layer| layer.attention.n_kv_heads * layer.attention.head_dim_v);
        let attn = widest(&|layer| layer.attention.n_heads * layer.attention.head_dim_v);
        let n_ff = widest(&|layer| layer.ffn.n_ff);
        let mut of_tokens = |width| memory.alloc(limits.max_batch_tokens, width);
        Ok(Self {
            tokens: Rows {
                hidden: of_tokens(n_embd)?,
                normed: of_tokens(n_embd)?,
                attn: of_tokens(attn)?,
            },
            outputs: Rows {
                hidden: of_tokens(n_embd)?,
                normed: of_tokens(n_embd)?,
                attn: of_tokens(attn)?,
            },
            heads: Heads {
                q: of_tokens(q)?,
                k: of_tokens(k)?,
                v: of_tokens(v)?,
            },
            scratch: Scratch {
                gate: of_tokens(n_ff)?,
                up: of_tokens(n_ff)?,
                delta: of_tokens(n_embd)?,
            },
            head_input: memory.alloc(limits.max_logit_rows, n_embd)?,
            logits: memory.alloc(limits.max_logit_rows, descriptor.n_vocab)?,
        })
    }
}
