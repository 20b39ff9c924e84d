//! [`Activations`]: the buffers that a forward pass works in.
//!
//! Separate because their list is needed twice: a load allocates them, and the plan of its memory weighs them. Invariant:
//! both run through [`Activations::alloc`], so the plan knows every buffer there is.

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
    /// All tokens of a step.
    pub(crate) tokens: Rows<T>,
    /// The output rows among them, in the last layer.
    pub(crate) outputs: Rows<T>,
    pub(crate) mixers: MixerBuffers<T>,
    pub(crate) ffns: FfnBuffers<T, R>,
    /// What a half of a layer adds to the stream.
    pub(crate) delta: T,
    /// The rows whose logits are wanted, where they are not all output rows.
    pub(crate) head_input: T,
    pub(crate) logits: T,
    /// Where the head is divided among ranks.
    pub(crate) head_parts: Option<HeadParts<T>>,
    pub(crate) pooled: Option<PoolBuffers<T>>,
    pub(crate) layer_embeddings: Option<LayerEmbeddingBuffers<T>>,
    pub(crate) alt_up: Option<AltUpBuffers<T>>,
    pub(crate) nextn: Option<NextnBuffers<T>>,
    /// The stream behind some layers of a tower.
    pub(crate) taps: Vec<Tap<T>>,
}

/// Logits of some tokens, as the ranks of a group give them to each other.
pub(crate) struct HeadParts<T> {
    /// Tokens of each rank.
    pub(crate) n_each: usize,
    /// The rank's own, `[L, n_each]`.
    pub(crate) own: T,
    /// Those of all ranks, one behind the other.
    pub(crate) all: T,
}

/// The stream behind a layer, which is read apart from the network's result.
pub(crate) struct Tap<T> {
    pub(crate) layer_idx: usize,
    /// `[T, n_embd]`.
    pub(crate) hidden: T,
}

/// What a layer knows of each row.
pub(crate) struct Rows<T> {
    /// The residual stream.
    pub(crate) hidden: T,
    /// The stream after the norm that the next half of a layer begins with.
    pub(crate) normed: T,
    /// What a mixer gives to its projection.
    pub(crate) mixed: T,
    /// What the second of two mixers gives to its own, where a layer has two.
    pub(crate) mixed_beside: Option<T>,
    /// The other streams, where there are several.
    pub(crate) streams: Option<StreamRows<T>>,
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
