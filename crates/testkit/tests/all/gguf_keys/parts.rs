//! [`Parts`] finds the keys that may change nothing, from the parts of a network.
//!
//! All other keys must be followed or refused. Invariant: a reason comes from the file's network or from another of its keys, never from
//! the name of an architecture.

use tokenmill_backend::{ExpertScore, NormKind};
use tokenmill_gguf::Value;
use tokenmill_model::{
    AttentionDescriptor, Descriptor, FfnDescriptor, PooledOutput, RopeScaling, RouterDescriptor,
};

use super::header::Header;

/// Describes a file's network, as far as keys depend on it.
pub(super) struct Parts<'d> {
    pub(super) network: &'d Descriptor,
    pub(super) header: &'d Header,
}

impl Parts<'_> {
    fn attentions(&self) -> impl Iterator<Item = &AttentionDescriptor> {
        (self.network.layers.iter()).filter_map(|layer| layer.mixer.attention())
    }

    fn has_latents(&self) -> bool {
        let mut layers = self.network.layers.iter();
        layers.any(|layer| layer.mixer.latent().is_some())
    }

    /// Returns whether a layer turns queries and keys.
    fn has_rope(&self) -> bool {
        let latents = self
            .network
            .layers
            .iter()
            .filter_map(|layer| layer.mixer.latent());
        let mut ropes = latents
            .map(|latent| latent.rope)
            .chain(self.attentions().map(|attention| attention.rope));
        ropes.any(|rope| rope.is_some())
    }

    /// Returns whether the file rules out scaling, so that no factor counts.
    fn denies_scaling(&self) -> bool {
        self.header.get("rope.scaling.type") == Some(&"none".into())
    }

    fn has_original_context(&self) -> bool {
        (self.network.ropes.iter()).any(|rope| {
            !matches!(
                rope.scaling,
                RopeScaling::None | RopeScaling::Linear { .. } | RopeScaling::Proportional { .. }
            )
        })
    }

    fn has_yarn(&self) -> bool {
        (self.network.ropes.iter()).any(|rope| matches!(rope.scaling, RopeScaling::Yarn { .. }))
    }

    fn routers(&self) -> impl Iterator<Item = &RouterDescriptor> {
        (self.network.layers.iter()).filter_map(|layer| Some(&layer.ffn.moe()?.router))
    }

    fn has_windows(&self) -> bool {
        self.attentions().any(|attention| attention.window.is_some())
    }

    /// Returns whether a layer has a dense network, or experts have the dense width.
    fn has_dense_width(&self) -> bool {
        let mut layers = self.network.layers.iter();
        let is_width_of_experts =
            self.routers().next().is_some() && self.header.get("expert_feed_forward_length").is_none();
        is_width_of_experts
            || layers.any(|layer| matches!(layer.ffn, FfnDescriptor::Dense(_) | FfnDescriptor::Beside(_)))
    }

    fn classifies(&self) -> bool {
        let pooling = self.network.pooling.as_ref();
        pooling.is_some_and(|pooling| pooling.output == PooledOutput::Rank)
    }

    /// Returns whether the layers with experts are those that the keys would select.
    fn same_layers_have_experts(&self, name: &str, value: &Value) -> bool {
        let number = |key: &str| match (key == name).then_some(value).or(self.header.get(key)) {
            Some(Value::U32(number)) => *number as usize,
            _ => 0,
        };
        let n_dense = number("leading_dense_block_count");
        let step = number("interleave_moe_layer_step").max(1);
        (self.network.layers.iter().enumerate()).all(|(layer_idx, layer)| {
            let is_named = layer_idx >= n_dense && (layer_idx + 1).is_multiple_of(step);
            is_named == layer.ffn.moe().is_some()
        })
    }

    /// Returns the reason why a key may change nothing here; `None` if it must change the network or be refused.
    pub(super) fn exception(&self, name: &str, value: &Value) -> Option<&'static str> {
        self.absent(name).or_else(|| self.same(name, value))
    }

    /// Returns the reason if the network lacks the part that a key concerns.
    fn absent(&self, name: &str) -> Option<&'static str> {
        let has_attention = self.attentions().next().is_some();
        let is_norm = name.starts_with("attention.layer_norm");
        let is_width = ["attention.key_length", "attention.value_length"].contains(&name);
        let parts = [
            (name.starts_with("rope."), self.has_rope(), "there is no rope"),
            (
                name == "attention.rope_pattern" || name == "rope.scaling.finetuned",
                self.has_rope(),
                "there is no rope",
            ),
            (
                name == "rope.scaling.factor" || name == "rope.scaling.original_context_length",
                !self.denies_scaling(),
                "the file says that nothing is scaled",
            ),
            (
                name == "rope.scaling.original_context_length",
                self.has_original_context(),
                "no scaling begins at a context",
            ),
            (
                name.starts_with("rope.scaling.yarn_"),
                self.has_yarn(),
                "there is no YaRN",
            ),
            (
                name.starts_with("expert_")
                    || name == "moe_latent_size"
                    || name == "leading_dense_block_count"
                    || name == "interleave_moe_layer_step",
                self.routers().next().is_some(),
                "there are no experts",
            ),
            (
                name == "expert_shared_count",
                self.header.get("expert_shared_feed_forward_length").is_none(),
                "the file has the width of the network that the count would give",
            ),
            (
                name == "attention.sliding_window_pattern" || name.ends_with("_swa"),
                self.has_windows(),
                "no layer has a window",
            ),
            (
                name == "attention.layer_norm_epsilon",
                self.network.norm.kind == NormKind::Layer,
                "there is no layer norm",
            ),
            (
                name == "attention.layer_norm_rms_epsilon",
                self.network.norm.kind == NormKind::Rms,
                "there is no RMS norm",
            ),
            (
                name.starts_with("attention.") && !is_norm,
                has_attention || self.has_latents(),
                "there is no attention",
            ),
            (
                is_width || name == "attention.head_count_kv" && !self.has_recurrent_layers(),
                has_attention || !self.has_latents(),
                "keys and values are latents, which have widths of their own and no heads",
            ),
            (
                name == "feed_forward_length",
                self.has_dense_width(),
                "there is no dense feed-forward network",
            ),
            (
                name == "classifier.pooling_type",
                self.classifies(),
                "there is no classification head",
            ),
        ];
        parts
            .into_iter()
            .find(|(is_about, is_there, _)| *is_about && !is_there)
            .map(|(.., reason)| reason)
    }

    /// Returns the reason if a value equals the setting that the network has anyway.
    fn same(&self, name: &str, value: &Value) -> Option<&'static str> {
        let all_routers = |holds: fn(&RouterDescriptor) -> bool| self.routers().all(holds);
        match (name, value) {
            ("vocab_size", _) => Some("the table of embeddings has as many rows as there are words"),
            ("tensor_data_layout", _) => Some("a note of the converter's, which no reader reads"),
            ("expert_gating_func" | "interleave_moe_layer_step", Value::U32(0)) => {
                Some("0 stands for a key that nothing set")
            }
            ("expert_weights_norm", Value::Bool(false)) => {
                Some("false stands for a key that nothing set where the weights always add up to 1")
            }
            ("expert_weights_norm", Value::Bool(true)) => {
                all_routers(|router| router.is_normalized).then_some("the weights add up to 1")
            }
            ("expert_gating_func", Value::U32(1)) => {
                all_routers(|router| router.score == ExpertScore::Softmax).then_some("it is a softmax")
            }
            ("expert_gating_func", Value::U32(2)) => {
                all_routers(|router| router.score == ExpertScore::Sigmoid).then_some("it is a sigmoid")
            }
            ("expert_gating_func", Value::U32(3)) => {
                all_routers(|router| router.score == ExpertScore::Softmax && router.is_normalized)
                    .then_some("it is a softmax over the chosen")
            }
            ("expert_group_count" | "expert_group_used_count", Value::U32(0)) => {
                all_routers(|router| router.groups.is_none()).then_some("one group is none")
            }
            ("leading_dense_block_count" | "interleave_moe_layer_step", _) => self
                .same_layers_have_experts(name, value)
                .then_some("the same layers have experts"),
            ("attention.causal", Value::Bool(false)) => {
                (self.network.is_encoder()).then_some("tokens see what comes after them")
            }
            ("attention.sliding_window", Value::U32(width)) => {
                let window = *width as usize / 2 + 1;
                let mut with_window = self.attentions().filter(|attention| attention.window.is_some());
                (self.network.is_encoder() && with_window.all(|attention| attention.window == Some(window)))
                    .then_some("half of the window lies on either side")
            }
            _ => None,
        }
    }

    fn has_recurrent_layers(&self) -> bool {
        let mut layers = self.network.layers.iter();
        layers.any(|layer| {
            !layer.mixer.is_none() && layer.mixer.attention().is_none() && layer.mixer.latent().is_none()
        })
    }
}
