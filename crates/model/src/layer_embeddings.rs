//! [`LayerEmbeddings`]: token embeddings that each layer has of its own.
//!
//! ```text
//! all = (sqrt(width) * table[token] + norm(W hidden / sqrt(n_embd))) / sqrt(2)      [T, n_layers * width], before the layers
//! hidden += norm(W_up (f(W_gate hidden) * all[layer]))                              at the end of each layer
//! ```
//!
//! Few networks have them, so they write their own operations.
//!
//! Source: transformers, `models/gemma4/modeling_gemma4.py`.

use std::f32::consts::FRAC_1_SQRT_2;

use tokenmill_backend::{
    Activation, MatrixUsage,
    program::{LinearId, MatrixId, NormId, Op, Program, Value},
};

use crate::{
    Descriptor, LayerEmbeddingsDescriptor, LoadError, Presence,
    loader::{LayerPlace, Loader},
};

/// The weights that all layers share.
pub(crate) struct LayerEmbeddings {
    table: MatrixId,
    projection: LinearId,
    /// Norm of the embedding of each layer separately.
    norm: NormId,
}

/// The weights with which a layer uses its embedding.
pub(crate) struct LayerEmbedding {
    layer_idx: usize,
    activation: Activation,
    gate: LinearId,
    up: LinearId,
    post_norm: NormId,
}

impl LayerEmbeddings {
    pub(crate) fn load(
        embeddings: &LayerEmbeddingsDescriptor,
        loader: &mut Loader<'_>,
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

impl LayerEmbedding {
    pub(crate) fn load(
        place: LayerPlace,
        embeddings: &LayerEmbeddingsDescriptor,
        loader: &mut Loader<'_>,
    ) -> Result<Self, LoadError> {
        let (n_embd, width) = (loader.descriptor.n_embd, embeddings.width);
        Ok(Self {
            layer_idx: place.layer_idx,
            activation: embeddings.activation,
            gate: loader.linear(&place.name("inp_gate"), width, n_embd, Presence::Absent)?,
            up: loader.linear(&place.name("proj"), n_embd, width, Presence::Absent)?,
            post_norm: loader.norm(&place.name("post_norm"), n_embd, loader.descriptor.rms_norm())?,
        })
    }
}

impl LayerEmbeddings {
    /// Writes the embeddings of all layers, from the step's tokens and their stream.
    pub(crate) fn write(&self, program: &mut Program, hidden: Value) -> Value {
        let (table, scale) = (self.table, (self.norm.width as f32).sqrt());
        let all = program.push(|y| Op::Embed { table, scale, y });
        let projected = program.linear(self.projection, hidden);
        let projected = program.scale(1.0 / (self.projection.n_in as f32).sqrt(), projected);
        let projected = program.norm(self.norm, projected);
        let sum = program.add(1.0, all, projected);
        program.scale(FRAC_1_SQRT_2, sum)
    }
}

impl LayerEmbedding {
    /// Writes the layer's contribution to the stream, from the embeddings of `all` layers.
    pub(crate) fn write(&self, program: &mut Program, all: Value, hidden: Value) -> Value {
        let width = self.gate.n_out;
        let own = program.take_columns(all, self.layer_idx * width, width);
        let gate = program.linear(self.gate, hidden);
        let gate = program.gated(self.activation, gate, own);
        let up = program.linear(self.up, gate);
        program.norm(self.post_norm, up)
    }
}
