//! The keys under which files have what a descriptor's checks speak of.
//!
//! Separate from the checks, which know no file. Invariant: only names that mean one key are here; an error about another is passed on as
//! it is.

use crate::LoadError;

/// What a check calls it, its key in GGUF files behind the architecture's name, and in Hugging Face configurations.
const KEYS: &[(&str, &str, &str)] = &[
    ("embedding length", "embedding_length", "hidden_size"),
    ("context length", "context_length", "max_position_embeddings"),
    ("vocabulary size", "vocab_size", "vocab_size"),
    ("layer count", "block_count", "num_hidden_layers"),
    (
        "count of layers that predict further tokens",
        "nextn_predict_layers",
        "num_nextn_predict_layers",
    ),
    ("head count", "attention.head_count", "num_attention_heads"),
    ("KV head count", "attention.head_count_kv", "num_key_value_heads"),
    ("feed-forward length", "feed_forward_length", "intermediate_size"),
    (
        "feed-forward length of the experts",
        "expert_feed_forward_length",
        "moe_intermediate_size",
    ),
    ("number of experts", "expert_count", "num_experts"),
    (
        "number of experts that a token goes to",
        "expert_used_count",
        "num_experts_per_tok",
    ),
    ("number of groups of experts", "expert_group_count", "n_group"),
    (
        "number of groups that a token chooses from",
        "expert_group_used_count",
        "topk_group",
    ),
    (
        "count of dense layers that come first",
        "leading_dense_block_count",
        "first_k_dense_replace",
    ),
    ("sliding window", "attention.sliding_window", "sliding_window"),
    (
        "sliding window pattern",
        "attention.sliding_window_pattern",
        "layer_types",
    ),
    (
        "rope dimension count",
        "rope.dimension_count",
        "partial_rotary_factor",
    ),
    ("rope base", "rope.freq_base", "rope_theta"),
    (
        "rope scaling factor",
        "rope.scaling.factor",
        "rope_scaling.factor",
    ),
    (
        "original context length of the rope scaling",
        "rope.scaling.original_context_length",
        "rope_scaling.original_max_position_embeddings",
    ),
    (
        "attention softcap",
        "attn_logit_softcapping",
        "attn_logit_softcapping",
    ),
    (
        "logit softcap",
        "final_logit_softcapping",
        "final_logit_softcapping",
    ),
    ("head width", "attention.key_length", "head_dim"),
    ("value head width", "attention.value_length", "head_dim"),
    (
        "width of latent values",
        "attention.value_length_mla",
        "v_head_dim",
    ),
    ("rank of latent queries", "attention.q_lora_rank", "q_lora_rank"),
    (
        "rank of latent keys and values",
        "attention.kv_lora_rank",
        "kv_lora_rank",
    ),
    (
        "width of the keys without positions",
        "attention.key_length_mla",
        "qk_nope_head_dim",
    ),
    ("state space state width", "ssm.state_size", "ssm_state_size"),
    ("state space group count", "ssm.group_count", "n_groups"),
    ("state space width", "ssm.inner_size", "intermediate_size"),
    (
        "state space rank of step sizes",
        "ssm.time_step_rank",
        "time_step_rank",
    ),
];

/// A kind of file.
#[derive(Clone, Copy)]
pub(super) enum Form<'a> {
    /// GGUF, of this architecture.
    Gguf(&'a str),
    /// A Hugging Face configuration.
    Folder,
}

/// The error with the key of the value that it is about.
pub(super) fn with_key(error: LoadError, form: Form<'_>) -> LoadError {
    let LoadError::BadValue { what, .. } = &error else {
        return error;
    };
    let Some((_, gguf, folder)) = KEYS.iter().find(|(name, ..)| name == what) else {
        return error;
    };
    LoadError::BadKey {
        key: match form {
            Form::Gguf(arch) => format!("{arch}.{gguf}"),
            Form::Folder => (*folder).to_owned(),
        },
        source: Box::new(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_key_of_its_file() {
        let error = |what| LoadError::BadValue {
            what,
            found: "0".to_owned(),
            expected: "at least 1",
        };
        let gguf = with_key(error("head count"), Form::Gguf("llama"));
        assert_eq!(
            gguf.to_string(),
            "the model's head count is 0, expected at least 1 (key `llama.attention.head_count`)"
        );
        let folder = with_key(error("head count"), Form::Folder);
        assert!(folder.to_string().ends_with("(key `num_attention_heads`)"));
        let other = with_key(error("number of streams"), Form::Folder);
        assert_eq!(
            other.to_string(),
            "the model's number of streams is 0, expected at least 1"
        );
    }
}
