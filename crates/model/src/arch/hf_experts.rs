//! Reads experts from a Hugging Face `config.json`. The same property has several names in these files.

use tokenmill_backend::{ExpertGroups, ExpertScore, GroupMeasure};

use crate::{LoadError, MoeDescriptor, Presence, RouterDescriptor};

use super::{HfConfig, hf_layout::Names};

/// Tensor names of experts in most checkpoints: one tensor per expert, or one for all with gate and up
/// joined.
pub(super) const EXPERTS: Names = &[
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.experts.*.gate_proj", "ffn_gate_exps"),
    ("mlp.experts.*.up_proj", "ffn_up_exps"),
    ("mlp.experts.*.down_proj", "ffn_down_exps"),
    ("mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight"),
    ("mlp.experts.down_proj", "ffn_down_exps.weight"),
    ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
    ("mlp.e_score_correction_bias", "exp_probs_b.bias"),
    ("mlp.moe_statics.e_score_correction_bias", "exp_probs_b.bias"),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    ("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_experts.up_proj", "ffn_up_shexp"),
    ("mlp.shared_experts.down_proj", "ffn_down_shexp"),
];

/// Tensor names of experts in Mixtral and checkpoints that follow it.
pub(super) const MIXTRAL_EXPERTS: Names = &[
    ("block_sparse_moe.gate", "ffn_gate_inp"),
    ("block_sparse_moe.experts.*.w1", "ffn_gate_exps"),
    ("block_sparse_moe.experts.*.w3", "ffn_up_exps"),
    ("block_sparse_moe.experts.*.w2", "ffn_down_exps"),
    ("block_sparse_moe.e_score_correction_bias", "exp_probs_b.bias"),
];

impl HfConfig {
    /// Returns the count under the first of some keys that exists.
    pub(super) fn first_usize(&self, keys: &[&str]) -> Result<usize, LoadError> {
        for key in keys {
            // Some configurations have a list with a value per layer.
            if let Some(values) = self.get(key).and_then(|value| value.as_array()) {
                let same = values.windows(2).all(|pair| pair[0] == pair[1]);
                let first = values.first().and_then(serde_json::Value::as_u64);
                return (first
                    .filter(|_| same)
                    .and_then(|value| usize::try_from(value).ok()))
                .ok_or_else(|| self.wrong(key, "one count for all layers"));
            }
            if let Some(value) = self.opt_usize(key)? {
                return Ok(value);
            }
        }
        Err(self.wrong(keys[0], "a count"))
    }

    /// Returns the score of an expert, if the configuration names it.
    pub(super) fn expert_score(&self) -> Result<Option<ExpertScore>, LoadError> {
        let keys = ["scoring_func", "moe_router_activation_func"];
        let Some(key) = keys.into_iter().find(|key| self.get(key).is_some()) else {
            return Ok(None);
        };
        match self.get(key).and_then(|value| value.as_str()) {
            Some("softmax") => Ok(Some(ExpertScore::Softmax)),
            // dots.llm1's files name the selection method here. It uses sigmoids.
            Some("sigmoid" | "noaux_tc") => Ok(Some(ExpertScore::Sigmoid)),
            _ => Err(self.wrong(key, "softmax or sigmoid")),
        }
    }

    /// Describes experts, as the GGUF twin does; `is_normalized` is the default if the file does not state
    /// it.
    pub(super) fn moe(&self, is_normalized: bool) -> Result<MoeDescriptor, LoadError> {
        let n_groups = match self.opt_usize("n_group")? {
            Some(n_groups) => n_groups,
            None => self.opt_usize("num_expert_group")?.unwrap_or(1),
        };
        let n_used_groups = self.opt_usize("topk_group")?.unwrap_or(n_groups);
        if n_used_groups > n_groups.max(1) {
            return Err(LoadError::BadValue {
                what: "number of groups that a token chooses from",
                found: n_used_groups.to_string(),
                expected: "at most the number of groups",
            });
        }
        let score = self.expert_score()?.unwrap_or(ExpertScore::Softmax);
        Ok(MoeDescriptor {
            router: RouterDescriptor {
                n_experts: self.first_usize(&[
                    "num_local_experts",
                    "num_experts",
                    "n_routed_experts",
                    "moe_num_experts",
                ])?,
                n_used: self.first_usize(&[
                    "num_experts_per_tok",
                    "num_experts_per_token",
                    "moe_k",
                    "moe_topk",
                    "top_k_experts",
                ])?,
                score,
                bias: Presence::Absent,
                choice_bias: Presence::Absent,
                groups: (n_groups > 1 && n_used_groups < n_groups).then_some(ExpertGroups {
                    n_groups,
                    n_used: n_used_groups,
                    measure: GroupMeasure::TwoBest,
                }),
                is_normalized: match self.opt_bool("norm_topk_prob")? {
                    Some(claim) => claim,
                    None => self.opt_bool("moe_renormalize")?.unwrap_or(is_normalized),
                },
                scale: self.opt_f32("routed_scaling_factor")?.unwrap_or(1.0),
                expert_scales: Presence::Absent,
            },
            n_ff: self.first_usize(&["moe_intermediate_size", "intermediate_size"])?,
            activation: self.activation()?,
            is_gated: true,
            bias: Presence::Absent,
            weighs_input: false,
            latent: None,
            shared: None,
        })
    }

    /// Returns whether each layer has experts: all after the first `first_k_dense_replace`.
    pub(super) fn expert_layers_behind_dense(&self, n_layers: usize) -> Result<Vec<bool>, LoadError> {
        let n_dense = self.opt_usize("first_k_dense_replace")?.unwrap_or(0);
        Ok((0..n_layers).map(|layer_idx| layer_idx >= n_dense).collect())
    }

    /// Does the same as [`Self::expert_layers_behind_dense`], unless `mlp_layer_types` lists the kind of each layer.
    pub(super) fn expert_layers_by_kind(&self, n_layers: usize) -> Result<Vec<bool>, LoadError> {
        let key = "mlp_layer_types";
        let Some(kinds) = self.layer_kinds(&[key])? else {
            return self.expert_layers_behind_dense(n_layers);
        };
        self.check_kinds(key, kinds.len(), n_layers)?;
        if !kinds.iter().all(|kind| matches!(*kind, "dense" | "sparse")) {
            return Err(self.wrong(key, "`dense` or `sparse` for each layer"));
        }
        Ok(kinds.into_iter().map(|kind| kind == "sparse").collect())
    }

    /// Returns whether each layer has experts, as `decoder_sparse_step` and `mlp_only_layers` say.
    pub(super) fn expert_layers_by_step(&self, n_layers: usize) -> Result<Vec<bool>, LoadError> {
        let step = self.opt_usize("decoder_sparse_step")?.unwrap_or(1);
        if step == 0 {
            return Err(self.wrong("decoder_sparse_step", "a count above 0"));
        }
        let dense = self.counts("mlp_only_layers")?.unwrap_or_default();
        Ok((0..n_layers)
            .map(|layer_idx| !dense.contains(&layer_idx) && (layer_idx + 1).is_multiple_of(step))
            .collect())
    }

    /// Reads an optional list of counts, such as layer indices.
    pub(super) fn counts(&self, key: &str) -> Result<Option<Vec<usize>>, LoadError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let count = |value: &serde_json::Value| value.as_u64().and_then(|count| usize::try_from(count).ok());
        let counts = value.as_array().and_then(|list| list.iter().map(count).collect());
        counts
            .map(Some)
            .ok_or_else(|| self.wrong(key, "a list of counts"))
    }
}
