//! Reads the metadata of experts from GGUF files.
//!
//! Invariant: each key that converters omit has exactly one default, and it is here.

use tokenmill_backend::{Activation, ExpertGroups, ExpertScore, GroupMeasure};

use crate::{
    DenseDescriptor, Descriptor, LoadError, MoeDescriptor, Presence, RouterDescriptor, SharedDescriptor,
};

use super::{GgufConfig, folder_facts::RouterFacts};

/// An architecture's defaults for experts.
#[derive(Clone, Copy)]
pub(super) struct MoeDefaults {
    /// Score by which experts are chosen.
    pub(super) score: ExpertScore,
    /// Whether the weights of the chosen experts are normalized to a sum of 1.
    pub(super) is_normalized: bool,
    /// Whether `false` in a file is meaningful. For the other architectures llama.cpp saves `false` for an
    /// unset key.
    pub(super) reads_false: bool,
}

impl MoeDefaults {
    /// Softmax over all experts, normalized over the chosen ones.
    pub(super) const NORMALIZED: Self = Self {
        score: ExpertScore::Softmax,
        is_normalized: true,
        reads_false: false,
    };
    /// Softmax over all experts, not normalized.
    pub(super) const PLAIN: Self = Self {
        is_normalized: false,
        ..Self::NORMALIZED
    };
    /// Sigmoid of each expert's logit.
    pub(super) const SIGMOID: Self = Self {
        score: ExpertScore::Sigmoid,
        is_normalized: true,
        reads_false: true,
    };
}

impl GgufConfig<'_> {
    /// Returns the number of experts; 0 if the file does not mention any.
    pub(super) fn n_experts(&self) -> Result<usize, LoadError> {
        Ok(self.opt_usize("expert_count")?.unwrap_or(0))
    }

    /// Describes the most common form of experts, SiLU-gated and without biases.
    pub(super) fn moe(&self, defaults: MoeDefaults) -> Result<MoeDescriptor, LoadError> {
        let n_used = self.usize("expert_used_count")?;
        let n_ff = match self.opt_count("expert_feed_forward_length")? {
            Some(n_ff) => n_ff,
            None => self.usize("feed_forward_length")?,
        };
        let n_groups = self.opt_usize("expert_group_count")?.unwrap_or(1);
        let n_used_groups = self.opt_usize("expert_group_used_count")?.unwrap_or(n_groups);
        if n_used_groups > n_groups.max(1) {
            return Err(LoadError::BadValue {
                what: "number of groups that a token chooses from",
                found: n_used_groups.to_string(),
                expected: "at most the number of groups",
            });
        }
        let is_normalized = match self.opt_bool("expert_weights_norm")? {
            Some(true) => true,
            Some(false) if defaults.reads_false => false,
            _ => defaults.is_normalized,
        };
        let gating = self.opt_count("expert_gating_func")?;
        // A softmax over the chosen logits equals a normalized softmax over all.
        let is_normalized = is_normalized || gating == Some(3);
        let score = match gating {
            None => defaults.score,
            Some(1 | 3) => ExpertScore::Softmax,
            Some(2) => ExpertScore::Sigmoid,
            Some(other) => {
                return Err(self.unsupported(format!(
                    "expert gating function {other} (key `{}`; supported are 1, softmax; 2, sigmoid; and 3, softmax over the chosen)",
                    self.key("expert_gating_func")
                )));
            }
        };
        let router = RouterFacts {
            score: Some(score),
            is_normalized,
            scale: self.opt_positive("expert_weights_scale")?.unwrap_or(1.0),
        };
        let router = self.facts.and_then(|facts| facts.router).unwrap_or(router);
        Ok(MoeDescriptor {
            router: RouterDescriptor {
                n_experts: self.usize("expert_count")?,
                n_used,
                score: router.score.unwrap_or(score),
                bias: Presence::Absent,
                choice_bias: Presence::Absent,
                groups: (n_groups > 1 && n_used_groups < n_groups).then_some(ExpertGroups {
                    n_groups,
                    n_used: n_used_groups,
                    measure: GroupMeasure::TwoBest,
                }),
                is_normalized: router.is_normalized,
                scale: router.scale,
                expert_scales: Presence::Absent,
            },
            n_ff,
            activation: Activation::Silu,
            is_gated: true,
            bias: Presence::Absent,
            weighs_input: false,
            latent: None,
            shared: None,
        })
    }

    /// Describes experts next to a shared network; their choice may have a bias.
    pub(super) fn moe_with_shared(
        &self,
        defaults: MoeDefaults,
        choice_bias: Presence,
    ) -> Result<MoeDescriptor, LoadError> {
        let mut moe = self.moe(defaults)?;
        moe.router.choice_bias = choice_bias;
        moe.shared = self.shared_experts(&moe)?;
        Ok(moe)
    }

    /// Replaces feed-forward networks with experts: after the leading dense layers, in the last layer of each
    /// group.
    pub(super) fn with_experts(
        &self,
        descriptor: Descriptor,
        moe: &MoeDescriptor,
    ) -> Result<Descriptor, LoadError> {
        if let Some(listed) = self.facts.and_then(|facts| facts.expert_layers.as_ref()) {
            return Ok(descriptor.with_experts(moe, |layer_idx| listed[layer_idx]));
        }
        let n_dense = self.opt_usize("leading_dense_block_count")?.unwrap_or(0);
        let step = self.opt_count("interleave_moe_layer_step")?.unwrap_or(1);
        Ok(descriptor.with_experts(moe, |layer_idx| {
            layer_idx >= n_dense && (layer_idx + 1).is_multiple_of(step) && !self.is_dense(layer_idx)
        }))
    }

    /// Returns whether a layer has the tensors of a dense network and no router. In some networks no key
    /// states which layers have experts.
    fn is_dense(&self, layer_idx: usize) -> bool {
        let has = |part: &str| self.has_tensor(&format!("blk.{layer_idx}.{part}.weight"));
        has("ffn_up") && !has("ffn_gate_inp")
    }

    /// Describes the shared network, with the biases that the file contains. Its width is that of `n_shared`
    /// experts, or the value of a key.
    pub(super) fn shared_experts(&self, moe: &MoeDescriptor) -> Result<Option<SharedDescriptor>, LoadError> {
        let n_shared = self.opt_usize("expert_shared_count")?.unwrap_or(0);
        let named = self.opt_count("expert_shared_feed_forward_length")?;
        let n_ff = (self.facts.and_then(|facts| facts.n_shared_ff).or(named))
            .unwrap_or_else(|| n_shared.saturating_mul(moe.n_ff));
        Ok((n_ff > 0).then_some(SharedDescriptor {
            dense: DenseDescriptor {
                is_gated: moe.is_gated,
                bias: self.facts.map_or(Presence::Optional, |facts| facts.shared_bias),
                ..DenseDescriptor::gated(n_ff, moe.activation)
            },
            has_gate: false,
        }))
    }
}
