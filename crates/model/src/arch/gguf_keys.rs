//! [`GgufKeys`]: collects the keys of a folder, as the GGUF file made from it has them.
//!
//! The rules of the architectures say what differs from [`GgufKeys::usual`]. Invariant: a key without a basis
//! in the configuration is not written; a number that does not fit its type is an error.
//!
//! Source: llama.cpp, `convert_hf_to_gguf.py`, for the names of keys and the origin of their values.

use serde_json::Value as Json;
use tokenmill_backend::{ExpertScore, Pooling};
use tokenmill_gguf::{Metadata, Value};

use crate::{LoadError, RopeScaling};

use super::{
    Architecture, HfConfig,
    folder_facts::{FolderFacts, RouterFacts},
    hf_sizes::HfSizes,
};

/// The collected keys, in the order of the file.
pub(crate) struct GgufKeys<'a> {
    /// Name of the architecture: the prefix of its keys.
    pub(super) arch: &'static str,
    pub(super) config: &'a HfConfig,
    pub(super) sizes: HfSizes,
    /// Whether the multiplier of values that YaRN rotates is stated as a key, where two numbers determine it.
    pub(super) states_yarn_magnitude: bool,
    /// Properties that no key states.
    pub(super) facts: FolderFacts,
    entries: Vec<(String, Value)>,
}

/// The context length that converters write for networks without positions.
pub(super) const UNBOUNDED: u32 = 1 << 20;

/// A function that collects the keys of an architecture.
pub(super) type Rule = fn(&mut GgufKeys<'_>) -> Result<(), LoadError>;

/// Configuration keys of the rope base, the most specific first.
const ROPE_BASES: &[&str] = &["global_rope_theta", "rope_theta", "rotary_emb_base"];
/// Configuration keys of the rope base of layers with a window.
const LOCAL_ROPE_BASES: &[&str] = &["local_rope_theta", "rope_local_base_freq", "swa_rope_theta"];

impl<'a> GgufKeys<'a> {
    pub(super) fn new(row: &Architecture, config: &'a HfConfig) -> Result<Self, LoadError> {
        let sizes = HfSizes::of(config)?;
        let mut facts = FolderFacts::of(config, &sizes)?;
        let own = row.hf_layout.own_activation;
        if own.is_none_or(|own| config.get("hidden_act").is_none_or(|found| found != own)) {
            facts.activation = Some(config.activation()?);
        }
        Ok(Self {
            arch: row.name,
            config,
            sizes,
            states_yarn_magnitude: true,
            facts,
            entries: Vec::new(),
        })
    }

    /// Adds the keys to a file's metadata. Returns the properties that they do not state.
    pub(super) fn write(self, metadata: &mut Metadata) -> Result<FolderFacts, LoadError> {
        for (key, value) in self.entries {
            metadata.insert(key, value)?;
        }
        Ok(self.facts)
    }

    /// Sets a key of the architecture, replacing an earlier value.
    pub(super) fn set(&mut self, name: &str, value: impl Into<Value>) {
        let key = format!("{}.{name}", self.arch);
        let value = value.into();
        match self.entries.iter_mut().find(|(known, _)| *known == key) {
            Some((_, known)) => *known = value,
            None => self.entries.push((key, value)),
        }
    }

    /// Removes a key.
    pub(super) fn remove(&mut self, name: &str) {
        let key = format!("{}.{name}", self.arch);
        self.entries.retain(|(known, _)| *known != key);
    }

    /// Sets a count.
    pub(super) fn set_count(&mut self, name: &str, count: usize) -> Result<(), LoadError> {
        self.set(name, Self::number::<u32>(count)?);
        Ok(())
    }

    /// Sets a count for each layer, as one number if all are equal.
    pub(super) fn set_counts(&mut self, name: &str, counts: &[usize]) -> Result<(), LoadError> {
        match counts {
            [first, rest @ ..] if rest.iter().all(|count| count == first) => self.set_count(name, *first),
            _ => self.set_count_list(name, counts),
        }
    }

    /// Sets a list of counts.
    pub(super) fn set_count_list(&mut self, name: &str, counts: &[usize]) -> Result<(), LoadError> {
        let counts: Result<Vec<i32>, _> = counts.iter().map(|&count| Self::number(count)).collect();
        self.set(name, counts?);
        Ok(())
    }

    /// Copies a count from the first of these configuration keys that exists, if any.
    pub(super) fn copy_count(&mut self, name: &str, keys: &[&str]) -> Result<(), LoadError> {
        if let Some(count) = self.config.opt_first_usize(keys)? {
            self.set_count(name, count)?;
        }
        Ok(())
    }

    /// Copies a number from the first of these configuration keys that exists, if any.
    pub(super) fn copy_number(&mut self, name: &str, keys: &[&str]) -> Result<(), LoadError> {
        if let Some(number) = self.config.first_f32(keys)? {
            self.set(name, number);
        }
        Ok(())
    }

    fn number<T: TryFrom<usize>>(count: usize) -> Result<T, LoadError> {
        T::try_from(count).map_err(|_| LoadError::BadValue {
            what: "count in config.json",
            found: count.to_string(),
            expected: "a count of 32 bits",
        })
    }

    /// Sets the keys that most architectures have.
    pub(super) fn usual(&mut self) -> Result<(), LoadError> {
        self.sizes()?;
        self.heads()?;
        self.rope()?;
        self.norm_eps()?;
        self.experts()?;
        self.head_widths()
    }

    /// Sets the numbers of layers and positions, and the widths.
    pub(super) fn sizes(&mut self) -> Result<(), LoadError> {
        self.set_count("block_count", self.sizes.n_layers)?;
        self.set_count("context_length", self.sizes.n_ctx_train)?;
        self.set_count("embedding_length", self.sizes.n_embd)?;
        for key in ["intermediate_size", "n_inner", "hidden_dim"] {
            match self.config.get(key) {
                Some(Json::Array(_)) => {
                    let counts = self.config.counts(key)?.unwrap_or_default();
                    return self.set_count_list("feed_forward_length", &counts);
                }
                Some(_) => return self.copy_count("feed_forward_length", &[key]),
                None => {}
            }
        }
        Ok(())
    }

    /// Sets the numbers of heads.
    pub(super) fn heads(&mut self) -> Result<(), LoadError> {
        self.copy_count(
            "attention.head_count",
            &["num_attention_heads", "n_head", "n_heads"],
        )?;
        self.copy_count("attention.head_count_kv", &["num_key_value_heads", "n_kv_heads"])
    }

    /// Sets the keys of rope and its scaling.
    pub(super) fn rope(&mut self) -> Result<(), LoadError> {
        let parameters = self.config.rope_parameters()?;
        let global = if parameters.get("full_attention").is_some() {
            parameters.object("full_attention")?
        } else {
            parameters.clone()
        };
        self.rope_scaling(&global)?;
        if let Some(sections) = parameters.counts("mrope_section")? {
            let sections: Vec<usize> = sections.into_iter().chain([0; 4]).take(4).collect();
            self.set_count_list("rope.dimension_sections", &sections)?;
        }
        let base = match global.opt_f32("rope_theta")? {
            Some(base) => Some(base),
            None => self.config.first_f32(ROPE_BASES)?,
        };
        // If the configuration omits the base, the class default applies.
        let base = base.or(self.facts.rope.as_ref().map(|rope| rope.base));
        if let Some(base) = base {
            self.set("rope.freq_base", base);
        }
        let local = parameters.object("sliding_attention")?.opt_f32("rope_theta")?;
        let local = match local {
            Some(base) => Some(base),
            None => self.config.first_f32(LOCAL_ROPE_BASES)?,
        };
        if let Some(base) = local {
            self.set("rope.freq_base_swa", base);
        }
        Ok(())
    }

    /// Sets the rope base, unless it is the one that readers assume.
    pub(super) fn unusual_rope_base(&mut self) {
        if self.sizes.rope.base != 10_000.0 {
            self.set("rope.freq_base", self.sizes.rope.base);
        }
    }

    fn rope_scaling(&mut self, parameters: &HfConfig) -> Result<(), LoadError> {
        let kind = parameters.get("rope_type").or(parameters.get("type"));
        let factor = parameters.opt_f32("factor")?;
        match (kind.and_then(Json::as_str), factor) {
            (Some("linear"), Some(factor)) => {
                self.set("rope.scaling.type", "linear");
                self.set("rope.scaling.factor", factor);
            }
            (Some("yarn"), Some(factor)) => {
                self.set("rope.scaling.type", "yarn");
                self.set("rope.scaling.factor", factor);
                let key = "original_max_position_embeddings";
                let original = parameters.opt_usize(key)?;
                self.set_count(
                    "rope.scaling.original_context_length",
                    original.unwrap_or(self.sizes.n_ctx_train),
                )?;
                for (name, keys) in [
                    ("ext_factor", &["extrapolation_factor"][..]),
                    ("attn_factor", &["attention_factor", "attn_factor"]),
                    ("beta_fast", &["beta_fast"]),
                    ("beta_slow", &["beta_slow"]),
                ] {
                    if let Some(number) = parameters.first_f32(keys)? {
                        self.set(&format!("rope.scaling.yarn_{name}"), number);
                    }
                }
                self.yarn_multipliers(parameters)?;
            }
            // Other scalings are tensors of factors, or folded into the base.
            _ => {}
        }
        Ok(())
    }

    /// Sets YaRN's multiplier of rotated values, if two multipliers of its logarithm determine it.
    fn yarn_multipliers(&mut self, parameters: &HfConfig) -> Result<(), LoadError> {
        let has_pair = parameters.opt_f32("mscale")?.unwrap_or(0.0) != 0.0
            && parameters.opt_f32("mscale_all_dim")?.unwrap_or(0.0) != 0.0;
        let magnitude = self.facts.rope.as_ref().and_then(|rope| match rope.scaling {
            RopeScaling::Yarn { magnitude, .. } => magnitude,
            _ => None,
        });
        if let Some(magnitude) = magnitude.filter(|_| has_pair && self.states_yarn_magnitude) {
            self.set("rope.scaling.yarn_attn_factor", magnitude);
        }
        Ok(())
    }

    /// Sets the epsilon of norms, under the key for their kind.
    pub(super) fn norm_eps(&mut self) -> Result<(), LoadError> {
        self.copy_number("attention.layer_norm_rms_epsilon", &["rms_norm_eps", "norm_eps"])?;
        self.copy_number(
            "attention.layer_norm_epsilon",
            &["layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"],
        )
    }

    /// Sets the keys of experts, under the names that most configurations use.
    pub(super) fn experts(&mut self) -> Result<(), LoadError> {
        // A class may have a default number of experts for models without any.
        if !self.facts.has_experts {
            return Ok(());
        }
        self.copy_count("expert_count", &["num_local_experts", "num_experts"])?;
        self.copy_count(
            "expert_used_count",
            &["num_experts_per_tok", "num_experts_per_token", "top_k_experts"],
        )?;
        self.copy_count("expert_group_count", &["n_group"])?;
        self.copy_count("expert_group_used_count", &["topk_group"])?;
        match self.config.expert_score()? {
            Some(ExpertScore::Softmax) => self.set("expert_gating_func", 1_u32),
            Some(ExpertScore::Sigmoid) => self.score_by_sigmoid(),
            None => {}
        }
        Ok(())
    }

    /// Sets the width of a head if the configuration has it.
    pub(super) fn head_widths(&mut self) -> Result<(), LoadError> {
        if let Some(width) = self.config.opt_usize("head_dim")? {
            self.set_head_width(width)?;
        }
        Ok(())
    }

    /// Sets the width of a head.
    pub(super) fn set_head_width(&mut self, width: usize) -> Result<(), LoadError> {
        self.set_count("attention.key_length", width)?;
        self.set_count("attention.value_length", width)
    }

    /// Sets the size of the vocabulary.
    pub(super) fn vocab_size(&mut self) -> Result<(), LoadError> {
        self.set_count("vocab_size", self.sizes.n_vocab)
    }

    /// Sets the number of rotated values per head.
    pub(super) fn rope_width(&mut self) -> Result<(), LoadError> {
        self.set_count("rope.dimension_count", self.sizes.rope.n_dims)
    }

    /// Reads the window of each layer: from `layer_types`, or else from `is_sliding`, called with its index.
    pub(super) fn find_windows(&mut self, is_sliding: impl Fn(usize) -> bool) -> Result<(), LoadError> {
        self.facts.windows = self.config.windows(self.sizes.n_layers, is_sliding)?;
        Ok(())
    }

    /// Reads the window of each layer: from `layer_types`, or else all layers but every n-th have one, where
    /// `sliding_window_pattern` is n or has n letters.
    pub(super) fn find_windows_by_period(&mut self, default: usize) -> Result<(), LoadError> {
        let key = "sliding_window_pattern";
        let period = match self.config.get(key).and_then(Json::as_str) {
            Some(letters) => letters.len(),
            None => self.config.opt_usize(key)?.unwrap_or(default),
        };
        self.find_windows(|layer_idx| !(layer_idx + 1).is_multiple_of(period.max(1)))
    }

    /// Reads the window of each layer, for configurations that must enable windows and give the first layer
    /// that has one.
    pub(super) fn find_windows_if_used(&mut self) -> Result<(), LoadError> {
        if !self.config.uses_windows(self.sizes.n_layers)? {
            return Ok(());
        }
        let first_layer = self.config.opt_usize("max_window_layers")?.unwrap_or(0);
        self.find_windows(|layer_idx| layer_idx >= first_layer)
    }

    /// Reads the rope of layers with a window.
    pub(super) fn find_local_rope(&mut self) -> Result<(), LoadError> {
        self.facts.local_rope = Some(self.config.rope("sliding_attention", self.sizes.head_dim)?);
        Ok(())
    }

    /// Reads whether attention has biases.
    pub(super) fn find_attention_bias(&mut self, key: &str) -> Result<(), LoadError> {
        self.facts.qkv_bias = Some(self.config.presence(key)?);
        self.facts.output_bias = self.facts.qkv_bias;
        Ok(())
    }

    /// Reads which biases attention and the dense network have.
    pub(super) fn find_biases(&mut self, [attention, dense]: [&str; 2]) -> Result<(), LoadError> {
        self.find_attention_bias(attention)?;
        self.facts.ffn_bias = Some(self.config.presence(dense)?);
        Ok(())
    }

    /// Reads how routers weigh experts; `is_normalized` applies if the configuration does not state it.
    pub(super) fn find_router(&mut self, is_normalized: bool) -> Result<&mut RouterFacts, LoadError> {
        self.facts.has_experts = true;
        Ok(self.facts.router.insert(self.config.router(is_normalized)?))
    }

    /// Reads experts after some dense layers, and next to a shared network of a number of experts.
    pub(super) fn find_experts_behind_dense(
        &mut self,
        is_normalized: bool,
        n_shared: &[&str],
    ) -> Result<(), LoadError> {
        self.find_router(is_normalized)?;
        self.find_shared_experts(n_shared)?;
        self.facts.expert_layers = Some(self.config.expert_layers_behind_dense(self.sizes.n_layers)?);
        Ok(())
    }

    /// Reads experts in every n-th layer.
    pub(super) fn find_experts_by_step(
        &mut self,
        is_normalized: bool,
    ) -> Result<&mut RouterFacts, LoadError> {
        self.facts.expert_layers = Some(self.config.expert_layers_by_step(self.sizes.n_layers)?);
        self.find_router(is_normalized)
    }

    /// Reads the width of the experts' shared network, which is that of a number of experts.
    pub(super) fn find_shared_experts(&mut self, keys: &[&str]) -> Result<(), LoadError> {
        let n_ff = self.config.expert_width()?;
        self.facts.n_shared_ff = Some(self.config.first_usize(keys)?.saturating_mul(n_ff));
        Ok(())
    }

    /// Reads the width by which scores are scaled, if it is not that of a head.
    pub(super) fn find_score_scale(&mut self) -> Result<(), LoadError> {
        if let Some(width) = self.config.opt_f32("query_pre_attn_scalar")? {
            self.facts.score_scales = Some(vec![1.0 / width.sqrt(); self.sizes.n_layers]);
        }
        Ok(())
    }

    /// Sets the window of the layers that have one.
    pub(super) fn window(&mut self) -> Result<(), LoadError> {
        if let Some(window) = self.config.opt_usize("sliding_window")? {
            self.set_count("attention.sliding_window", window)?;
        }
        Ok(())
    }

    /// Sets which layers have the window.
    pub(super) fn window_pattern(&mut self) {
        let pattern: Vec<bool> = self.facts.windows.iter().map(Option::is_some).collect();
        self.set("attention.sliding_window_pattern", pattern);
    }

    /// Sets the widths of the experts and of the shared expert.
    pub(super) fn expert_widths(&mut self) -> Result<(), LoadError> {
        self.copy_count("expert_feed_forward_length", &["moe_intermediate_size"])?;
        self.copy_count(
            "expert_shared_feed_forward_length",
            &["shared_expert_intermediate_size"],
        )
    }

    /// Sets the scale of a router's weights, and whether they are normalized.
    pub(super) fn router(&mut self) -> Result<(), LoadError> {
        self.copy_number("expert_weights_scale", &["routed_scaling_factor"])?;
        // Readers of some architectures normalize the weights if the key is missing.
        if let Some(is_normalized) = self.config.opt_bool("norm_topk_prob")? {
            self.set("expert_weights_norm", is_normalized);
        }
        Ok(())
    }

    /// Sets the sigmoid as the function that turns a router's logits into scores.
    pub(super) fn score_by_sigmoid(&mut self) {
        self.set("expert_gating_func", 2_u32);
    }

    /// Sets the pooling type, from sentence-transformers' files or a classifier's labels.
    pub(super) fn pooling(&mut self) -> Result<(), LoadError> {
        if let Some(pooling) = self.config.sentence_pooling()? {
            let code: u32 = match pooling.kind {
                Pooling::Mean => 1,
                Pooling::First => 2,
                Pooling::Last => 3,
            };
            self.set("pooling_type", code);
        }
        Ok(())
    }
}
