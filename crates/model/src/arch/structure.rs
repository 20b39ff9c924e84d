//! Differences from a plain decoder that several architectures have, as changes of a [`Descriptor`].
//!
//! The description of an architecture is a chain of its differences. Invariant: every layer has attention and a dense
//! network, until mixers and experts replace them.

use tokenmill_backend::{Activation, NormKind};

use crate::{
    Descriptor, FfnDescriptor, LayerDescriptor, MoeDescriptor, NormPlacement, Presence, QkNorm, Residual,
    RopeDescriptor,
};

use super::GgufConfig;

impl Descriptor {
    /// Changes each layer, which the function gets with its index.
    pub(super) fn with_layers(mut self, mut change: impl FnMut(usize, &mut LayerDescriptor)) -> Self {
        for (layer_idx, layer) in self.layers.iter_mut().enumerate() {
            change(layer_idx, layer);
        }
        self
    }

    /// Makes all norms layer norms.
    pub(super) fn with_layer_norms(mut self, bias: Presence) -> Self {
        self.norm.kind = NormKind::Layer;
        self.norm.bias = bias;
        self
    }

    /// Gives attention biases.
    pub(super) fn with_attention_biases(self, bias: Presence) -> Self {
        self.with_layers(|_, layer| {
            let attention = layer.attention_mut();
            (attention.qkv_bias, attention.output_bias) = (bias, bias);
        })
    }

    /// Gives attention and the dense networks biases.
    pub(super) fn with_biases(self, bias: Presence) -> Self {
        (self.with_attention_biases(bias)).with_layers(|_, layer| layer.dense_mut().bias = bias)
    }

    /// Sets the activation of the dense networks.
    pub(super) fn with_activation(self, activation: Activation) -> Self {
        self.with_layers(|_, layer| layer.dense_mut().activation = activation)
    }

    /// Removes the gates of the dense networks.
    pub(super) fn without_gate(self, activation: Activation) -> Self {
        (self.with_activation(activation)).with_layers(|_, layer| layer.dense_mut().is_gated = false)
    }

    /// Norms queries and keys.
    pub(super) fn with_qk_norm(self, norm: impl Into<Option<QkNorm>>) -> Self {
        let norm = norm.into();
        self.with_layers(|_, layer| layer.attention_mut().qk_norm = norm)
    }

    /// Sets the positions of the norms of each layer.
    pub(super) fn with_norms(self, norms: NormPlacement) -> Self {
        self.with_layers(|_, layer| layer.norms = norms)
    }

    /// Sets the order of each layer's halves.
    pub(super) fn with_residual(self, residual: Residual) -> Self {
        self.with_layers(|_, layer| layer.residual = residual)
    }

    /// Removes rope from a network with other positions, or none.
    pub(super) fn without_rope(mut self) -> Self {
        self.ropes.clear();
        self.with_layers(|_, layer| layer.attention_mut().rope = None)
    }

    /// Removes the positions of the layers without a window.
    pub(super) fn with_rope_in_windows(self) -> Self {
        self.with_layers(|_, layer| {
            let attention = layer.attention_mut();
            attention.rope = attention.rope.filter(|_| attention.window.is_some());
        })
    }

    /// Replaces the dense networks of some layers with experts.
    pub(super) fn with_experts(self, moe: &MoeDescriptor, has_experts: impl Fn(usize) -> bool) -> Self {
        self.with_layers(|layer_idx, layer| {
            if has_experts(layer_idx) {
                layer.ffn = FfnDescriptor::Moe(moe.clone());
            }
        })
    }

    /// Gives layers with a window their own rope: that of a folder, or else `local`.
    pub(super) fn with_local_rope(mut self, config: &GgufConfig<'_>, local: RopeDescriptor) -> Self {
        let of_folder = config.facts.and_then(|facts| facts.local_rope.clone());
        self.ropes.push(of_folder.unwrap_or(local));
        self.with_layers(|_, layer| {
            let attention = layer.attention_mut();
            attention.rope = Some(usize::from(attention.window.is_some()));
        })
    }
}
