//! [`Role`]: the function of a tensor, as far as the choice of its type depends on it; and whether it is
//! quantized at all.
//!
//! Both depend only on a tensor's name. Invariant: the names are those of GGUF files.
//!
//! Source: ggml-org/llama.cpp, `src/llama-quant.cpp` (`tensor_get_category`, `tensor_allows_quantization`).

/// The function of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Token embeddings.
    Embedding,
    /// The projection to logits.
    Output,
    /// Queries of attention.
    Query,
    /// Keys of attention.
    Key,
    /// Values of attention, alone or with queries and keys: they are the most sensitive to few bits.
    Value,
    /// The output projection of attention.
    AttentionOutput,
    /// The gate of a feed-forward network, including that of experts.
    Gate,
    /// The up projection of a feed-forward network.
    Up,
    /// The down projection of a feed-forward network.
    Down,
    /// Anything else.
    Other,
}

impl Role {
    /// Returns the role of a tensor with this name.
    pub(crate) fn of(name: &str) -> Self {
        const PARTS: [(&str, Role); 9] = [
            ("attn_qkv.weight", Role::Value),
            ("attn_kv_b.weight", Role::Value),
            ("attn_v.weight", Role::Value),
            ("attn_k.weight", Role::Key),
            ("attn_q.weight", Role::Query),
            ("attn_output.weight", Role::AttentionOutput),
            ("ffn_up", Role::Up),
            ("ffn_gate", Role::Gate),
            ("ffn_down", Role::Down),
        ];
        match name {
            "output.weight" => Self::Output,
            "token_embd.weight" | "per_layer_token_embd.weight" => Self::Embedding,
            _ => (PARTS.iter())
                .find(|(part, _)| name.contains(part))
                .map_or(Self::Other, |&(_, role)| role),
        }
    }
}

/// Parts of the names of tensors that are not quantized: small ones, and those sensitive to any loss.
const KEPT: [&str; 29] = [
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "time_mix_first.weight",
    "time_mix_w",
    "time_mix_v0.weight",
    "time_mix_v1.weight",
    "time_mix_v2.weight",
    "time_mix_a",
    "time_mix_g1.weight",
    "time_mix_g2.weight",
    "time_mix_decay_w",
    "time_mix_lerp_fused.weight",
    "attn_rel_b.weight",
    ".position_embd",
    "sam.pos_embd",
    "sam.neck.",
    "sam.net_",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
    "a.rvq.codebook",
];

/// Returns whether a tensor with this name and number of dimensions is quantized.
pub(crate) fn is_quantized(name: &str, n_dims: usize) -> bool {
    const EMBEDDINGS: [&str; 2] = ["position_embd.weight", "token_types.weight"];
    n_dims >= 2
        && name.ends_with("weight")
        && !EMBEDDINGS.contains(&name)
        && !KEPT.iter().any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_roles() {
        for (name, role) in [
            ("output.weight", Role::Output),
            ("token_embd.weight", Role::Embedding),
            ("blk.3.attn_qkv.weight", Role::Value),
            ("blk.3.attn_output.weight", Role::AttentionOutput),
            ("blk.3.ffn_down_exps.weight", Role::Down),
            ("blk.3.ffn_gate_up_exps.weight", Role::Gate),
            ("blk.3.ssm_in.weight", Role::Other),
        ] {
            assert_eq!(Role::of(name), role, "{name}");
        }
    }

    #[test]
    fn norms_routers_and_vectors_stay() {
        for (name, n_dims, expected) in [
            ("blk.0.attn_q.weight", 2, true),
            ("blk.0.attn_q.bias", 2, false),
            ("blk.0.attn_norm.weight", 1, false),
            ("blk.0.attn_q_norm.weight", 2, false),
            ("blk.0.ffn_gate_inp.weight", 2, false),
            ("blk.0.ffn_gate_exps.weight", 3, true),
            ("blk.0.ssm_conv1d.weight", 2, false),
            ("position_embd.weight", 2, false),
        ] {
            assert_eq!(is_quantized(name, n_dims), expected, "{name}");
        }
    }
}
