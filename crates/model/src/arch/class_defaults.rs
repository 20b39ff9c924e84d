//! Default values that the configuration classes of transformers use for fields missing from a `config.json`.
//!
//! The table is generated from transformers by `class_defaults.py`: published files omit fields that equal
//! the class default (Gemma 3's even the number of heads). Invariant: a field that a file contains keeps the
//! file's value, even if it is null or stands under an alias that the class knows.
//!
//! Source: transformers 5.24.0, `models/*/configuration_*.py`.

use std::sync::OnceLock;

use serde_json::{Map, Value};

use super::{
    HfConfig,
    hf_experts::{N_EXPERTS, N_USED},
    hf_sizes::{ACTIVATION, Fields, N_CTX, N_EMBD, N_FF, N_HEADS, N_LAYERS, NORM_EPS},
};

/// Key of the alias table of a class.
const ALIASES: &str = "aliases";

/// Groups of equivalent fields: if a file has one of a group, the class default of the others does not apply.
const SAME: &[Fields] = &[
    N_EXPERTS,
    N_USED,
    N_EMBD,
    N_LAYERS,
    N_HEADS,
    N_FF,
    N_CTX,
    NORM_EPS,
    ACTIVATION,
    &["norm_topk_prob", "moe_renormalize"],
    &["n_group", "num_expert_group"],
    &["n_shared_experts", "num_shared_experts"],
];

/// Values that networks have by their code, which configuration classes have no field for. Here null means missing. A width
/// of 0 leaves the dense networks to the rule of the architecture.
const IN_CODE: &str = r#"{
 "BloomForCausalLM": {"seq_length": 2048, "hidden_act": "gelu_pytorch_tanh", "ffn_hidden_size": 0},
 "DeepseekV3ForCausalLM": {"num_nextn_predict_layers": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
 "FalconForCausalLM": {"ffn_hidden_size": 0},
 "GPT2LMHeadModel": {"ffn_hidden_size": 0},
 "Glm4MoeLiteForCausalLM": {"first_k_dense_replace": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
 "HYV3ForCausalLM": {"first_k_dense_replace": 1},
 "KimiLinearForCausalLM": {"first_k_dense_replace": 1},
 "Lfm2ForCausalLM": {"hidden_act": "silu"},
 "Lfm2MoeForCausalLM": {"hidden_act": "silu"},
 "Mamba2ForCausalLM": {"num_attention_heads": 1, "max_position_embeddings": 1048576, "ffn_hidden_size": 0},
 "MambaForCausalLM": {"num_attention_heads": 1, "max_position_embeddings": 1048576, "ffn_hidden_size": 0},
 "Qwen3_5MoeForCausalLM": {"ffn_hidden_size": 0},
 "Qwen3_5MoeForConditionalGeneration": {"ffn_hidden_size": 0}
}"#;

/// Returns a configuration with its class's defaults for missing fields.
pub(super) fn filled(class: &str, config: &HfConfig) -> HfConfig {
    let mut filled = config.clone();
    fill(class, filled.values_mut());
    filled
}

/// Adds the default fields of a class; none if nothing is known about it.
fn fill(class: &str, values: &mut Map<String, Value>) {
    fill_declared(class, values);
    fill_in_code(class, values);
}

/// Adds the values of a class from the table of transformers' classes.
fn fill_declared(class: &str, values: &mut Map<String, Value>) {
    static TABLE: OnceLock<Map<String, Value>> = OnceLock::new();
    let Some(fields) = fields_of(class, &TABLE, include_str!("class_defaults.json")) else {
        return;
    };
    let aliases = fields.get(ALIASES).and_then(Value::as_object);
    let has_alias = |values: &Map<String, Value>, field: &str| {
        let mut aliases = aliases.into_iter().flatten();
        aliases.any(|(alias, meant)| meant == field && values.contains_key(alias))
    };
    let has_same = |values: &Map<String, Value>, field: &str| {
        let same = SAME.iter().find(|same| same.contains(&field));
        same.is_some_and(|same| same.iter().any(|other| values.contains_key(*other)))
    };
    // A default must not override a value of the file.
    let said = values.clone();
    let has_rope = ["rope_parameters", "rope_scaling"]
        .iter()
        .any(|field| values.get(*field).is_some_and(|rope| !rope.is_null()));
    for (field, value) in fields {
        let is_said = match field.as_str() {
            // Here null means the class default.
            "rope_parameters" => has_rope,
            // The newer layout has these inside `rope_parameters`.
            "local_rope_theta" | "rope_local_base_freq" => {
                values.contains_key(field) || values.contains_key("rope_parameters")
            }
            ALIASES => true,
            _ => said.contains_key(field) || has_alias(&said, field) || has_same(&said, field),
        };
        if !is_said {
            values.insert(field.clone(), value.clone());
        }
    }
}

/// Adds the values of a class from [`IN_CODE`].
fn fill_in_code(class: &str, values: &mut Map<String, Value>) {
    static TABLE: OnceLock<Map<String, Value>> = OnceLock::new();
    for (field, value) in fields_of(class, &TABLE, IN_CODE).into_iter().flatten() {
        let same = SAME.iter().find(|same| same.contains(&field.as_str())).copied();
        let mut names = same.unwrap_or_default().iter().copied().chain([field.as_str()]);
        if !names.any(|name| values.get(name).is_some_and(|value| !value.is_null())) {
            values.insert(field.clone(), value.clone());
        }
    }
}

/// Returns the fields of a class in a table.
fn fields_of(
    class: &str,
    table: &'static OnceLock<Map<String, Value>>,
    json: &str,
) -> Option<&'static Map<String, Value>> {
    let table = table.get_or_init(|| serde_json::from_str(json).expect("a test reads the whole table"));
    table.get(class)?.as_object()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::hf_rope::ROPE_BASE;

    use super::*;

    #[test]
    fn a_field_keeps_what_the_file_says_under_any_name() {
        let filled = |class: &str, values: Value| {
            let Value::Object(mut values) = values else {
                panic!("an object")
            };
            fill(class, &mut values);
            values
        };
        assert_eq!(filled("FalconForCausalLM", json!({}))["ffn_hidden_size"], 0);
        let mixtral = filled(
            "MixtralForCausalLM",
            json!({ "num_experts": 4, "sliding_window": null }),
        );
        assert_eq!(mixtral.get("num_local_experts"), None);
        assert_eq!(mixtral["num_experts"], 4);
        assert_eq!(mixtral["sliding_window"], Value::Null);
        assert_eq!(mixtral["num_experts_per_tok"], 2);
        assert_eq!(mixtral[ROPE_BASE], 1e6);
        let gemma = filled("Gemma3ForConditionalGeneration", json!({ "hidden_size": 2560 }));
        assert_eq!(gemma["hidden_size"], 2560);
        assert_eq!(gemma["num_attention_heads"], 8);
        assert_eq!(gemma["vocab_size"], 262_208);
        assert!(filled("NoClass", json!({})).is_empty());
    }
}
