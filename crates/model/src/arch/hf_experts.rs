//! Reads experts from a Hugging Face `config.json`. The same property has several names in these files.

use tokenmill_backend::ExpertScore;

use crate::{LoadError, error::check};

use super::{HfConfig, folder_facts::RouterFacts, hf_layout::Names, hf_sizes::Fields};

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

/// The names of fields of experts; the first that a configuration has counts.
pub(super) const N_EXPERTS: Fields = &[
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "moe_num_experts",
];
pub(super) const N_USED: Fields = &[
    "num_experts_per_tok",
    "num_experts_per_token",
    "moe_k",
    "moe_topk",
    "top_k_experts",
];
/// Fields of the function that turns a router's logits into scores.
pub(super) const SCORE: Fields = &["score_function", "scoring_func", "moe_router_activation_func"];

impl HfConfig {
    /// Returns the score of an expert, if the configuration names it.
    pub(super) fn expert_score(&self) -> Result<Option<ExpertScore>, LoadError> {
        let Some(key) = SCORE.iter().find(|key| self.get(key).is_some()) else {
            return Ok(None);
        };
        match self.get(key).and_then(|value| value.as_str()) {
            Some("softmax") => Ok(Some(ExpertScore::Softmax)),
            // dots.llm1's files name the selection method here. It uses sigmoids.
            Some("sigmoid" | "noaux_tc") => Ok(Some(ExpertScore::Sigmoid)),
            _ => Err(self.wrong(key, "softmax or sigmoid")),
        }
    }

    /// Returns the width of an expert.
    pub(super) fn expert_width(&self) -> Result<usize, LoadError> {
        self.first_usize(&["moe_intermediate_size", "intermediate_size"])
    }

    /// Reads how routers weigh experts; `is_normalized` applies if the configuration does not state it.
    pub(super) fn router(&self, is_normalized: bool) -> Result<RouterFacts, LoadError> {
        self.first_usize(N_USED)?;
        // A reader of keys takes 0 for a missing one.
        let (n_experts, n_ff) = (self.first_usize(N_EXPERTS)?, self.expert_width()?);
        for (what, count, expected) in [
            ("number of experts", n_experts, "between 1 and 65536"),
            ("feed-forward length of the experts", n_ff, "between 1 and 2^24"),
        ] {
            check(what, count, count > 0, expected)?;
        }
        let claims = [
            self.opt_bool("norm_topk_prob")?,
            self.opt_bool("moe_renormalize")?,
        ];
        Ok(RouterFacts {
            score: self.expert_score()?,
            is_normalized: claims[0].or(claims[1]).unwrap_or(is_normalized),
            scale: self.opt_f32("routed_scaling_factor")?.unwrap_or(1.0),
        })
    }
}
