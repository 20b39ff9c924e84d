//! Maps the names that a descriptor's checks use to keys of a file.
//!
//! The checks know no file format. Invariant: only names that correspond to one key are listed; errors about
//! other names are passed on unchanged.

use crate::LoadError;

use super::{GgufConfig, HfConfig};

/// A line for each value: the name that a check uses, the key in GGUF files after the architecture prefix, and the key in
/// Hugging Face configurations. Alternatives are separated by bars; the first that the file has counts.
const KEYS: &str = "\
embedding length: embedding_length = hidden_size
context length: context_length = max_position_embeddings
vocabulary size: vocab_size = vocab_size
layer count: block_count = num_hidden_layers
count of layers that predict further tokens: nextn_predict_layers = num_nextn_predict_layers
head count: attention.head_count = num_attention_heads
KV head count: attention.head_count_kv = num_key_value_heads
feed-forward length: feed_forward_length = intermediate_size
feed-forward length of the experts: expert_feed_forward_length = moe_intermediate_size
feed-forward length of the shared network: expert_shared_feed_forward_length|expert_shared_count = moe_num_shared_experts
number of experts: expert_count = num_experts|num_local_experts|n_routed_experts|moe_num_experts
number of experts that a token goes to: expert_used_count = num_experts_per_tok
number of groups of experts: expert_group_count = n_group
number of groups that a token chooses from: expert_group_used_count = topk_group
count of dense layers that come first: leading_dense_block_count = first_k_dense_replace
step between layers with experts: interleave_moe_layer_step = interleave_moe_layer_step|moe_layer_interval
scale of the experts' weights: expert_weights_scale = routed_scaling_factor
norm epsilon: attention.layer_norm_rms_epsilon|attention.layer_norm_epsilon = rms_norm_eps|layer_norm_eps|layer_norm_epsilon|norm_eps|norm_epsilon
logit scale: logit_scale = logit_scale|logits_scaling
embedding scale: embedding_scale = embedding_multiplier
residual scale: residual_scale = residual_multiplier
attention scale: attention.scale = query_pre_attn_scalar|attention_multiplier
layer whose keys and values another reads: attention.shared_kv_layers = num_kv_shared_layers
convolution kernel: ssm.conv_kernel = linear_conv_kernel_dim|conv_kernel|mamba_d_conv|d_conv
short convolution's kernel: shortconv.l_cache = conv_L_cache
delta net key heads: ssm.group_count = linear_num_key_heads
delta net value head count: ssm.time_step_rank = linear_num_value_heads
width of the delta net's key heads: ssm.state_size = linear_key_head_dim
width of the delta net's value heads: ssm.inner_size = linear_value_head_dim
width of all the delta net's values: ssm.inner_size = linear_value_head_dim
state space head count: ssm.time_step_rank = num_heads|mamba_num_heads|mamba_n_heads
width of latent keys: attention.key_length_mla|attention.key_length = qk_nope_head_dim
attention in one direction: attention.causal = is_decoder
clamp of queries, keys and values: attention.clamp_kqv = clip_qkv
largest ALiBi bias: attention.max_alibi_bias = alibi
factor of the rope's magnitude: rope.scaling.attn_factor = rope_scaling.attention_factor
list of recurrent layers: attention.recurrent_layers = layer_types
step between layers with attention: full_attention_interval = full_attention_interval
sliding window: attention.sliding_window = sliding_window
sliding window pattern: attention.sliding_window_pattern = layer_types
rope dimension count: rope.dimension_count = partial_rotary_factor
rope base: rope.freq_base = rope_theta
rope scaling factor: rope.scaling.factor = rope_scaling.factor
extrapolation factor of the rope scaling: rope.scaling.yarn_ext_factor = rope_scaling.extrapolation_factor
original context length of the rope scaling: rope.scaling.original_context_length = rope_scaling.original_max_position_embeddings
attention softcap: attn_logit_softcapping = attn_logit_softcapping
logit softcap: final_logit_softcapping = final_logit_softcapping
head width: attention.key_length = head_dim
value head width: attention.value_length = head_dim
width of latent values: attention.value_length_mla = v_head_dim
rank of latent queries: attention.q_lora_rank = q_lora_rank
rank of latent keys and values: attention.kv_lora_rank = kv_lora_rank
width of the keys without positions: attention.key_length_mla = qk_nope_head_dim
state space state width: ssm.state_size = ssm_state_size
state space group count: ssm.group_count = n_groups
state space width: ssm.inner_size = intermediate_size
state space rank of step sizes: ssm.time_step_rank = time_step_rank
";

/// The file that an error is about.
#[derive(Clone, Copy)]
pub(super) enum Form<'a> {
    /// A GGUF file.
    Gguf(&'a GgufConfig<'a>),
    /// A Hugging Face configuration.
    Folder(&'a HfConfig),
}

impl Form<'_> {
    /// Returns the full name of the first of some keys that the file has, or else of the first.
    fn key(self, keys: &str) -> String {
        let has = |key: &&str| match self {
            Self::Gguf(config) => config.value(key).is_some(),
            Self::Folder(config) => config.get(key).is_some(),
        };
        let key = keys.split('|').find(has).or_else(|| keys.split('|').next());
        let key = key.unwrap_or(keys);
        match self {
            Self::Gguf(config) => config.key(key),
            Self::Folder(_) => key.to_owned(),
        }
    }
}

/// Adds to an error the key of the value that it is about.
pub(super) fn with_key(error: LoadError, form: Form<'_>) -> LoadError {
    let LoadError::BadValue { what, .. } = &error else {
        return error;
    };
    let found = KEYS
        .lines()
        .find_map(|line| line.strip_prefix(*what)?.strip_prefix(": "));
    let Some((gguf, folder)) = found.and_then(|keys| keys.split_once(" = ")) else {
        return error;
    };
    let key = form.key(match form {
        Form::Gguf(_) => gguf,
        Form::Folder(_) => folder,
    });
    let source = Box::new(error);
    LoadError::BadKey { key, source }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tokenmill_gguf::Metadata;

    use super::*;

    #[test]
    fn an_error_names_the_key_of_its_file() {
        let error = |what| LoadError::BadValue {
            what,
            found: "0".to_owned(),
            expected: "at least 1",
        };
        let mut metadata = Metadata::default();
        metadata
            .insert("llama.attention.layer_norm_epsilon", 0.0_f32)
            .expect("a key");
        let file = GgufConfig::of("llama", 1, &metadata, BTreeMap::new());
        let gguf = with_key(error("head count"), Form::Gguf(&file));
        assert_eq!(
            gguf.to_string(),
            "the model's head count is 0, expected at least 1 (key `llama.attention.head_count`)"
        );
        let epsilon = with_key(error("norm epsilon"), Form::Gguf(&file)).to_string();
        assert!(
            epsilon.ends_with("(key `llama.attention.layer_norm_epsilon`)"),
            "{epsilon}"
        );
        let other = with_key(error("number of streams"), Form::Gguf(&file));
        assert_eq!(
            other.to_string(),
            "the model's number of streams is 0, expected at least 1"
        );
    }
}
