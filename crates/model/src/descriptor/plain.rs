//! The plain decoder, of which most networks are variations: RMS norms before each half, rope, causal attention, a
//! SiLU gate, no biases.
//!
//! Descriptions set only their differences. Invariant: each default of a description is here.

use tokenmill_backend::{Activation, NormKind, RopeAxes, RopeStyle};

use crate::{RopeDescriptor, RopeScaling};

use super::{
    AttentionDescriptor, DenseDescriptor, Descriptor, FfnDescriptor, GateUpOrder, LayerDescriptor,
    MixerDescriptor, NormDescriptor, NormPlacement, OutputHead, Presence, Residual,
};

impl Descriptor {
    /// Returns a decoder of these layers, without a name.
    pub fn plain(
        [n_vocab, n_embd, n_ctx_train]: [usize; 3],
        rope: RopeDescriptor,
        layers: Vec<LayerDescriptor>,
    ) -> Self {
        Self {
            arch: String::new(),
            n_vocab,
            n_embd,
            n_ctx_train,
            embedding_scale: 1.0,
            reads_hidden: false,
            token_types: Presence::Absent,
            n_learned_positions: None,
            embedding_norm: None,
            norm: NormDescriptor {
                kind: NormKind::Rms,
                eps: 1e-5,
                bias: Presence::Absent,
            },
            post_norm_eps: None,
            layer_embeddings: None,
            alt_up: None,
            ropes: vec![rope],
            layers,
            tensor_names: &[],
            residual_scale: 1.0,
            has_output_norm: true,
            pooling: None,
            decision: None,
            n_ranks: 1,
            head: OutputHead::OwnIfPresent,
            head_bias: Presence::Absent,
            logit_scale: 1.0,
            logit_softcap: None,
            row_factors: Vec::new(),
            n_deep_inputs: 0,
            tower: None,
            control: Vec::new(),
            ignorable: Vec::new(),
        }
    }
}

impl LayerDescriptor {
    /// Returns a layer with this attention and a dense network of width `n_ff`.
    pub fn plain(attention: AttentionDescriptor, n_ff: usize) -> Self {
        Self {
            mixer: MixerDescriptor::Attention(attention),
            ffn: FfnDescriptor::Dense(DenseDescriptor::gated(n_ff, Activation::Silu)),
            norms: NormPlacement::Pre,
            residual: Residual::Sequential,
            has_output_scale: false,
        }
    }
}

impl AttentionDescriptor {
    /// Returns causal attention with the first rope.
    pub fn plain(n_heads: usize, n_kv_heads: usize, [head_dim_k, head_dim_v]: [usize; 2]) -> Self {
        Self {
            n_heads,
            n_kv_heads,
            head_dim_k,
            head_dim_v,
            scale: 1.0 / (head_dim_k as f32).sqrt(),
            rope: Some(0),
            is_causal: true,
            window: None,
            is_chunked: false,
            softcap: None,
            has_sinks: false,
            alibi: None,
            temperature: None,
            qk_norm: None,
            is_normed_after_rope: false,
            takes_keys_as_values: false,
            has_v_norm: false,
            shares_kv_of: None,
            output_gate: None,
            qkv_bias: Presence::Absent,
            output_bias: Presence::Absent,
        }
    }
}

impl DenseDescriptor {
    /// Returns a network with a gate.
    pub fn gated(n_ff: usize, activation: Activation) -> Self {
        Self {
            n_ff,
            activation,
            xielu: None,
            cutoff: None,
            joined: GateUpOrder::GateFirst,
            is_gated: true,
            bias: Presence::Absent,
        }
    }
}

impl RopeDescriptor {
    /// Returns a rope that rotates whole heads.
    pub fn plain(style: RopeStyle, head_dim: usize, base: f32) -> Self {
        Self {
            style,
            head_dim,
            n_dims: head_dim,
            base,
            scaling: RopeScaling::None,
            has_freq_factors: false,
            axes: RopeAxes::One,
        }
    }
}
