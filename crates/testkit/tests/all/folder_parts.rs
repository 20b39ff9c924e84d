//! A small Hugging Face folder and pieces of its two formats, for mutations.

use serde_json::{Value, json};

/// Returns a `config.json` of one layer.
pub(crate) fn config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 8, "intermediate_size": 8,
        "max_position_embeddings": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "rms_norm_eps": 1e-5,
        "vocab_size": 4, "tie_word_embeddings": true,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8},
    })
}

/// Returns the header of its safetensors file; the tensors are stored one after the other.
pub(crate) fn header() -> Value {
    let mut header = serde_json::Map::new();
    let mut start = 0;
    let layer = "model.layers.0";
    let square = [
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
    ];
    let square = square
        .iter()
        .chain(&["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]);
    let mut names: Vec<(String, Vec<usize>)> = square
        .map(|name| (format!("{layer}.{name}.weight"), vec![8, 8]))
        .collect();
    names.push(("model.embed_tokens.weight".to_owned(), vec![4, 8]));
    for name in ["input_layernorm", "post_attention_layernorm"] {
        names.push((format!("{layer}.{name}.weight"), vec![8]));
    }
    names.push(("model.norm.weight".to_owned(), vec![8]));
    for (name, shape) in names {
        let end = start + 4 * shape.iter().product::<usize>();
        header.insert(
            name,
            json!({"dtype": "F32", "shape": shape, "data_offsets": [start, end]}),
        );
        start = end;
    }
    header.into()
}

/// Pieces of both formats.
pub(crate) fn parts() -> Vec<Value> {
    vec![
        json!("Qwen2ForCausalLM"),
        json!("Gemma2ForCausalLM"),
        json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4, "beta_fast": 32}),
        json!({"type": "linear", "factor": 0.0}),
        json!(["sliding_attention", "full_attention"]),
        json!({"dtype": "F16", "shape": [2, 8], "data_offsets": [0, 32]}),
        json!({"dtype": "BF16", "shape": [], "data_offsets": [8, 10]}),
        json!({"dtype": "F4", "shape": [3], "data_offsets": [0, 1]}),
        json!({"dtype": "F32", "shape": [18_446_744_073_709_551_615_u64, 2], "data_offsets": [0, 18_446_744_073_709_551_615_u64]}),
        json!("gelu_pytorch_tanh"),
        json!([8, 8]),
    ]
}

/// Returns a safetensors file of a header and zeros.
pub(crate) fn safetensors(header: &str, n_data_bytes: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + n_data_bytes, 0);
    bytes
}

/// Bytes of the data that [`header`] describes.
pub(crate) const N_DATA_BYTES: usize = 4 * (7 * 64 + 32 + 3 * 8);
