//! [`Activations`]: the buffers that a forward pass works in.
//!
//! Both a load and its memory plan use this list: the load allocates the buffers, the plan counts their
//! bytes. Invariant: both go through [`Activations::alloc`], so the plan covers every buffer.

use tokenmill_backend::{BackendError, ExecutorLimits, Memory, NetworkPart, Norm};

use crate::{
    Descriptor, HeadPart, MixerDescriptor, OutputHead,
    alt_up::{AltUpBuffers, StreamRows},
    ffn::FfnBuffers,
    layer_embeddings::LayerEmbeddingBuffers,
    mixers::MixerBuffers,
    nextn::NextnBuffers,
    pooler::PoolBuffers,
};

/// The buffers of a network. They are allocated once and never move.
pub(crate) struct Activations<T, R> {
    /// The rows of all tokens of a step.
    pub(crate) tokens: Rows<T>,
    /// The rows that the last layer outputs.
    pub(crate) outputs: Rows<T>,
    pub(crate) mixers: MixerBuffers<T>,
    pub(crate) ffns: FfnBuffers<T, R>,
    /// The output of half a layer, before it is added to the stream.
    pub(crate) delta: T,
    /// The rows whose logits are requested, if they are not all output rows.
    pub(crate) head_input: T,
    pub(crate) logits: T,
    /// The logits' parts, if the head is divided among ranks.
    pub(crate) head_parts: Option<HeadParts<T>>,
    pub(crate) pooled: Option<PoolBuffers<T>>,
    pub(crate) layer_embeddings: Option<LayerEmbeddingBuffers<T>>,
    pub(crate) alt_up: Option<AltUpBuffers<T>>,
    pub(crate) nextn: Option<NextnBuffers<T>>,
    /// Copies of the stream after some layers of a tower.
    pub(crate) taps: Vec<Tap<T>>,
}

/// Logits of some tokens, as the ranks of a group exchange them.
pub(crate) struct HeadParts<T> {
    /// Number of tokens of each rank.
    pub(crate) n_each: usize,
    /// This rank's logits, `[L, n_each]`.
    pub(crate) own: T,
    /// The logits of all ranks, concatenated in rank order.
    pub(crate) all: T,
}

/// A copy of the stream after one layer, read separately from the network's result.
pub(crate) struct Tap<T> {
    pub(crate) layer_idx: usize,
    /// `[T, n_embd]`.
    pub(crate) hidden: T,
}

/// The per-row buffers of a layer.
pub(crate) struct Rows<T> {
    /// The residual stream.
    pub(crate) hidden: T,
    /// The stream after the norm at the start of the next half of a layer.
    pub(crate) normed: T,
    /// The mixer's output, which its projection reads.
    pub(crate) mixed: T,
    /// The second mixer's output, if a layer has two mixers.
    pub(crate) mixed_beside: Option<T>,
    /// The other streams, if the network has several.
    pub(crate) streams: Option<StreamRows<T>>,
}

impl<T> Rows<T> {
    /// Returns the input of half a layer: the normed stream, or the stream itself if the half has no norm
    /// before it.
    pub(crate) fn input<V>(&self, norm: Option<&Norm<V>>) -> &T {
        match norm {
            Some(_) => &self.normed,
            None => &self.hidden,
        }
    }
}

impl<T, R> Activations<T, R> {
    /// Allocates the buffers for the largest step.
    ///
    /// # Errors
    /// A device error.
    pub(crate) fn alloc<M: Memory<Buffer = T, Routes = R>>(
        descriptor: &Descriptor,
        limits: &ExecutorLimits,
        memory: &mut M,
    ) -> Result<Self, BackendError> {
        let n_embd = descriptor.n_embd;
        let widths = (descriptor.layers.iter()).map(|layer| layer.mixer.output_width());
        let mixed = widths.max().unwrap_or(0);
        let beside = (descriptor.layers.iter()).filter_map(|layer| match &layer.mixer {
            MixerDescriptor::Both { ssm, .. } => Some(ssm.inner_width()),
            _ => None,
        });
        let beside = beside.max();
        let n_logit_rows = if descriptor.head == OutputHead::None {
            1
        } else {
            limits.max_logit_rows
        };
        memory.enter(NetworkPart::Common);
        let mut rows = || {
            let mut of_tokens = |width| memory.alloc(limits.max_batch_tokens, width);
            Ok::<_, BackendError>(Rows {
                hidden: of_tokens(n_embd)?,
                normed: of_tokens(n_embd)?,
                mixed: of_tokens(mixed)?,
                mixed_beside: beside.map(&mut of_tokens).transpose()?,
                streams: StreamRows::alloc(descriptor, limits, memory)?,
            })
        };
        Ok(Self {
            tokens: rows()?,
            outputs: rows()?,
            mixers: MixerBuffers::alloc(descriptor, limits, memory)?,
            ffns: FfnBuffers::alloc(descriptor, limits, memory)?,
            delta: memory.alloc(limits.max_batch_tokens, n_embd)?,
            head_input: memory.alloc(n_logit_rows, n_embd)?,
            logits: {
                memory.enter(NetworkPart::Output);
                memory.alloc(n_logit_rows, descriptor.n_vocab)?
            },
            head_parts: match descriptor.head {
                OutputHead::Part(HeadPart { n_each, n_ranks, .. }) => Some(HeadParts {
                    n_each,
                    own: memory.alloc(n_logit_rows, n_each)?,
                    all: memory.alloc(n_logit_rows, n_ranks * n_each)?,
                }),
                _ => None,
            },
            pooled: {
                memory.enter(NetworkPart::Common);
                PoolBuffers::alloc(descriptor, limits, memory)?
            },
            layer_embeddings: LayerEmbeddingBuffers::alloc(descriptor, limits, memory)?,
            alt_up: AltUpBuffers::alloc(descriptor, limits, memory)?,
            nextn: NextnBuffers::alloc(descriptor, limits, memory)?,
            taps: (descriptor.tower.iter().flat_map(|tower| &tower.taps))
                .map(|&layer_idx| {
                    let hidden = memory.alloc(limits.max_batch_tokens, n_embd)?;
                    Ok(Tap { layer_idx, hidden })
                })
                .collect::<Result<_, BackendError>>()?,
        })
    }
}
