//! [`LayerEmbeddings`]: token embeddings that each layer has of its own.
//!
//! ```text
//! all = (sqrt(width) * table[token] + norm(W hidden / sqrt(n_embd))) / sqrt(2)      [T, n_layers * width], before the layers
//! hidden += norm(W_up (f(W_gate hidden) * all[layer]))                              at the end of each layer
//! ```
//!
//! Few networks have them, so they are not part of the forward pass. Invariant: at the end of a layer, only
//! requested rows are computed.
//!
//! Source: transformers, `models/gemma4/modeling_gemma4.py`.

use tokenmill_backend::{
    Activation, Backend, BackendError, Columns, ExecutorLimits, Linear, MatrixUsage, Memory, Norm, RowSet,
    StepShape,
};

use crate::{
    Descriptor, LayerEmbeddingsDescriptor, LoadError, Presence,
    loader::{LayerPlace, Loader},
};

/// The weights that all layers share.
pub(crate) struct LayerEmbeddings<M: Memory> {
    table: M::Matrix,
    projection: Linear<M::Matrix, M::Vector>,
    /// Norm of the embedding of each layer separately.
    norm: Norm<M::Vector>,
}

/// The weights with which a layer uses its embedding.
pub(crate) struct LayerEmbedding<M: Memory> {
    layer_idx: usize,
    n_layers: usize,
    activation: Activation,
    gate: Linear<M::Matrix, M::Vector>,
    up: Linear<M::Matrix, M::Vector>,
    post_norm: Norm<M::Vector>,
}

/// The embeddings of a step.
pub(crate) struct LayerEmbeddingBuffers<T> {
    /// `[T, n_layers * width]`.
    all: T,
    /// Same width: first the projections, in the last layer the embeddings of the output rows.
    other: T,
    /// `[T, width]`: the embeddings of the current layer.
    own: T,
    /// `[T, width]`.
    gate: T,
}

impl<M: Memory> LayerEmbeddings<M> {
    pub(crate) fn load(
        embeddings: &LayerEmbeddingsDescriptor,
        loader: &mut Loader<'_, M>,
    ) -> Result<Self, LoadError> {
        let Descriptor { n_vocab, n_embd, .. } = *loader.descriptor;
        let all = loader.descriptor.layers.len() * embeddings.width;
        Ok(Self {
            table: loader.matrix(
                "per_layer_token_embd.weight",
                n_vocab,
                all,
                MatrixUsage::Embedding,
            )?,
            projection: loader.linear("per_layer_model_proj", all, n_embd, Presence::Absent)?,
            norm: loader.norm(
                "per_layer_proj_norm",
                embeddings.width,
                loader.descriptor.rms_norm(),
            )?,
        })
    }
}

impl<M: Memory> LayerEmbedding<M> {
    pub(crate) fn load(
        place: LayerPlace,
        embeddings: &LayerEmbeddingsDescriptor,
        loader: &mut Loader<'_, M>,
    ) -> Result<Self, LoadError> {
        let (n_embd, width) = (loader.descriptor.n_embd, embeddings.width);
        Ok(Self {
            layer_idx: place.layer_idx,
            n_layers: loader.descriptor.layers.len(),
            activation: embeddings.activation,
            gate: loader.linear(&place.name("inp_gate"), width, n_embd, Presence::Absent)?,
            up: loader.linear(&place.name("proj"), n_embd, width, Presence::Absent)?,
            post_norm: loader.norm(&place.name("post_norm"), n_embd, loader.descriptor.rms_norm())?,
        })
    }
}

impl<B: Backend> LayerEmbeddings<B> {
    /// Computes the embeddings of all layers from the step's tokens and their stream.
    pub(crate) fn prepare(
        &self,
        backend: &mut B,
        n_tokens: usize,
        hidden: &B::Buffer,
        buffers: &mut LayerEmbeddingBuffers<B::Buffer>,
    ) -> Result<(), BackendError> {
        let LayerEmbeddingBuffers { all, other, .. } = buffers;
        let width = self.projection.n_out;
        backend.embed(&self.table, (self.norm.width as f32).sqrt(), n_tokens, all)?;
        backend.linear(&self.projection, hidden, n_tokens, other)?;
        let scale = 1.0 / (self.projection.n_in as f32).sqrt();
        backend.scale_logits(scale, None, n_tokens, width, other)?;
        backend.norm_in_place(&self.norm, n_tokens, width, other)?;
        backend.add(1.0, n_tokens, width, all, other)?;
        backend.scale_logits(std::f32::consts::FRAC_1_SQRT_2, None, n_tokens, width, all)
    }
}

impl<B: Backend> LayerEmbedding<B> {
    /// Copies the layer's embeddings of all tokens, or only those of the output rows.
    pub(crate) fn take(
        &self,
        backend: &mut B,
        shape: &StepShape,
        of_outputs: bool,
        buffers: &mut LayerEmbeddingBuffers<B::Buffer>,
    ) -> Result<(), BackendError> {
        let LayerEmbeddingBuffers { all, other, own, .. } = buffers;
        let width = self.gate.n_out;
        let row_width = width * self.n_layers;
        let (rows, n_rows) = if of_outputs {
            backend.gather(RowSet::Outputs, shape, row_width, all, other)?;
            (&*other, shape.n_outputs)
        } else {
            (&*all, shape.n_tokens)
        };
        let columns = Columns {
            rows,
            row_width,
            first: self.layer_idx * width,
        };
        backend.take_columns(columns, n_rows, width, own)
    }

    /// Computes the layer's contribution to the stream into `delta`.
    pub(crate) fn run(
        &self,
        backend: &mut B,
        hidden: &B::Buffer,
        n_rows: usize,
        buffers: &mut LayerEmbeddingBuffers<B::Buffer>,
        delta: &mut B::Buffer,
    ) -> Result<(), BackendError> {
        let LayerEmbeddingBuffers { own, gate, .. } = buffers;
        backend.linear(&self.gate, hidden, n_rows, gate)?;
        backend.activation(self.activation, n_rows, self.gate.n_out, gate, Some(own))?;
        backend.linear(&self.up, gate, n_rows, delta)?;
        backend.norm_in_place(&self.post_norm, n_rows, self.up.n_out, delta)
    }
}

impl<T> LayerEmbeddingBuffers<T> {
    pub(crate) fn alloc<M: Memory<Buffer = T>>(
        descriptor: &Descriptor,
        limits: &ExecutorLimits,
        memory: &mut M,
    ) -> Result<Option<Self>, BackendError> {
        let Some(embeddings) = &descriptor.layer_embeddings else {
            return Ok(None);
        };
        let all = descriptor.layers.len() * embeddings.width;
        let mut of_tokens = |width| memory.alloc(limits.max_batch_tokens, width);
        Ok(Some(Self {
            all: of_tokens(all)?,
            other: of_tokens(all)?,
            own: of_tokens(embeddings.width)?,
            gate: of_tokens(embeddings.width)?,
        }))
    }
}
