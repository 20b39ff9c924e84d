//! Tests each metadata key of each architecture: a key that changes a network is followed or refused by name, and the default values that
//! llama.cpp saves change nothing.
//!
//! These headers are those of the reference files (`tests/data/headers.jsonl`); the files of `contradictions` are made up.

mod header;
mod parts;

use tokenmill_backend::{Pooling, RopeStyle};
use tokenmill_gguf::{Array, Value};

use header::{Header, headers};
use parts::Parts;

/// Lists other values of a key.
fn others(value: &Value) -> Vec<Value> {
    match value {
        Value::U32(number) => [number + 1, number * 2, number.saturating_sub(1)]
            .into_iter()
            .filter(|other| other != number)
            .map(Value::U32)
            .collect(),
        Value::I32(number) => vec![Value::I32(number + 1)],
        Value::U64(number) => vec![Value::U64(number + 1)],
        Value::F32(number) => vec![Value::F32(number * 1.5 + 0.25)],
        Value::Bool(claim) => vec![Value::Bool(!claim)],
        Value::String(_) => vec!["another".into()],
        Value::Array(Array::U32(numbers)) => vec![numbers.iter().map(|n| n + 1).collect::<Vec<_>>().into()],
        Value::Array(Array::I32(numbers)) => vec![numbers.iter().map(|n| n + 1).collect::<Vec<_>>().into()],
        Value::Array(Array::F32(numbers)) => {
            vec![numbers.iter().map(|n| n * 1.5 + 0.25).collect::<Vec<_>>().into()]
        }
        Value::Array(Array::Bool(claims)) => {
            vec![claims.iter().map(|claim| !claim).collect::<Vec<_>>().into()]
        }
        other => panic!("no other value than {other:?} is known here"),
    }
}

/// Lists llama.cpp's keys with values that change the networks that have such a part. A list has one entry for each layer.
fn added(n_layers: usize) -> Vec<(&'static str, Value)> {
    let each = |number: f32| Value::from(vec![number; n_layers]);
    vec![
        ("attention.causal", false.into()),
        ("attention.clamp_kqv", 1.0_f32.into()),
        ("attention.max_alibi_bias", 4.0_f32.into()),
        ("attention.scale", 0.37_f32.into()),
        ("attention.sliding_window", 7_u32.into()),
        ("attention.temperature_scale", 0.5_f32.into()),
        ("attention.output_scale", 0.5_f32.into()),
        ("attention.value_scale", 0.5_f32.into()),
        ("attention.key_length_swa", 3_u32.into()),
        ("attention.value_length_swa", 3_u32.into()),
        ("attention.rope_pattern", vec![0_u32; n_layers].into()),
        ("attention.shared_kv_layers", 1_u32.into()),
        ("attention.layer_norm_epsilon", 0.5_f32.into()),
        ("attention.layer_norm_rms_epsilon", 0.5_f32.into()),
        ("attn_logit_softcapping", 9.0_f32.into()),
        ("router_logit_softcapping", 9.0_f32.into()),
        ("final_logit_softcapping", 9.0_f32.into()),
        ("logit_scale", 0.37_f32.into()),
        ("residual_scale", 0.37_f32.into()),
        ("embedding_scale", 0.37_f32.into()),
        ("decision.block_count", 1_u32.into()),
        ("expert_gating_func", 1_u32.into()),
        ("expert_gating_func", 2_u32.into()),
        ("expert_gating_func", 3_u32.into()),
        ("expert_gating_func", 4_u32.into()),
        ("expert_weights_scale", 3.0_f32.into()),
        ("expert_weights_norm", true.into()),
        ("expert_weights_norm", false.into()),
        // A step beyond the last layer selects no layer.
        ("interleave_moe_layer_step", (n_layers as u32 + 1).into()),
        ("leading_dense_block_count", 1_u32.into()),
        ("moe_latent_size", 8_u32.into()),
        ("nextn_predict_layers", 1_u32.into()),
        ("swiglu_clamp_exp", each(7.0)),
        ("swiglu_clamp_shexp", each(7.0)),
        ("rope.freq_base", 777.0_f32.into()),
        ("rope.freq_base_swa", 777.0_f32.into()),
        ("rope.dimension_count", 2_u32.into()),
        ("rope.dimension_count_swa", 2_u32.into()),
        ("rope.scaling.alpha", 50.0_f32.into()),
        ("rope.dimension_sections", vec![1_u32; 4].into()),
        ("rope.scaling.attn_factor", 3.0_f32.into()),
        ("rope.scaling.yarn_attn_factor", 3.0_f32.into()),
        ("rope.scaling.yarn_log_multiplier", 0.3_f32.into()),
        ("rope.scaling.yarn_beta_fast", 7.0_f32.into()),
        ("rope.scaling.yarn_beta_slow", 3.0_f32.into()),
        ("rope.scaling.factor", 4.0_f32.into()),
        ("rope.scaling.type", "yarn".into()),
    ]
}

#[test]
fn every_architecture_has_a_header_that_opens() {
    let headers = headers();
    for arch in tokenmill_model::architectures() {
        assert!(headers.iter().any(|header| header.arch == arch), "{arch}");
    }
    for header in headers {
        header
            .open()
            .unwrap_or_else(|error| panic!("{}: {error}", header.name));
    }
}

#[test]
fn a_key_that_changes_a_network_is_followed_or_refused() {
    let mut passed_over = Vec::new();
    for header in headers() {
        let network = header.open().unwrap();
        let parts = Parts {
            network: &network,
            header: &header,
        };
        let mut check = |key: &str, value: Value| {
            let name = key.strip_prefix(&format!("{}.", header.arch)).unwrap_or(key);
            if parts.exception(name, &value).is_none()
                && header.with(key, value.clone()).open().as_ref() == Ok(&network)
            {
                passed_over.push(format!("{}: {key} = {value:?}", header.name));
            }
        };
        for (key, value) in &header.keys {
            for other in others(value) {
                check(key, other);
            }
        }
        for (name, value) in added(network.layers.len()) {
            if header.get(name).is_none() {
                check(&header.key(name), value);
            }
        }
    }
    assert!(
        passed_over.is_empty(),
        "{}:\n{}",
        passed_over.len(),
        passed_over.join("\n")
    );
}

/// Lists the keys that llama.cpp saves for every network, with their default values.
fn unset(n_layers: usize) -> Vec<(&'static str, Value)> {
    let zeros = || Value::from(vec![0.0_f32; n_layers]);
    vec![
        ("leading_dense_block_count", 0_u32.into()),
        ("expert_feed_forward_length", 0_u32.into()),
        ("expert_latent_length", 0_u32.into()),
        ("expert_shared_feed_forward_length", 0_u32.into()),
        ("expert_chunk_feed_forward_length", 0_u32.into()),
        ("swiglu_clamp_exp", zeros()),
        ("swiglu_clamp_shexp", zeros()),
        ("use_parallel_residual", false.into()),
        ("expert_count", 0_u32.into()),
        ("expert_used_count", 0_u32.into()),
        ("expert_shared_count", 0_u32.into()),
        ("expert_group_count", 0_u32.into()),
        ("expert_group_used_count", 0_u32.into()),
        ("expert_weights_scale", 0.0_f32.into()),
        ("expert_weights_norm", false.into()),
        ("expert_gating_func", 0_u32.into()),
        ("expert_group_scale", 0.05_f32.into()),
        ("experts_per_group", 0_u32.into()),
        ("moe_every_n_layers", 0_u32.into()),
        ("nextn_predict_layers", 0_u32.into()),
        ("n_deepstack_layers", 0_u32.into()),
        ("deepstack_mapping", vec![-1_i32; 512].into()),
        ("pooling_type", u32::MAX.into()),
        ("logit_scale", 0.0_f32.into()),
        ("decoder_start_token_id", (-1_i32).into()),
        ("decoder_block_count", 0_u32.into()),
        ("attn_logit_softcapping", 50.0_f32.into()),
        ("router_logit_softcapping", 30.0_f32.into()),
        ("final_logit_softcapping", 30.0_f32.into()),
        ("swin_norm", false.into()),
        ("residual_scale", 0.0_f32.into()),
        ("embedding_scale", 0.0_f32.into()),
        ("token_shift_count", 2_u32.into()),
        ("interleave_moe_layer_step", 0_u32.into()),
        ("attention.max_alibi_bias", 0.0_f32.into()),
        ("attention.clamp_kqv", 0.0_f32.into()),
        ("attention.key_length", 0_u32.into()),
        ("attention.value_length", 0_u32.into()),
        ("attention.layer_norm_epsilon", 0.0_f32.into()),
        ("attention.layer_norm_rms_epsilon", 0.0_f32.into()),
        ("attention.group_norm_epsilon", 0.0_f32.into()),
        ("attention.group_norm_groups", 0_u32.into()),
        ("attention.causal", true.into()),
        ("attention.q_lora_rank", 0_u32.into()),
        ("attention.kv_lora_rank", 0_u32.into()),
        ("attention.relative_buckets_count", 0_u32.into()),
        ("attention.rope_pattern", 1_u32.into()),
        ("attention.sliding_window", 0_u32.into()),
        ("attention.scale", 0.0_f32.into()),
        ("attention.output_scale", 0.0_f32.into()),
        ("attention.value_scale", 0.0_f32.into()),
        ("attention.temperature_length", 0_u32.into()),
        ("attention.temperature_scale", 0.0_f32.into()),
        ("attention.key_length_mla", 0_u32.into()),
        ("attention.value_length_mla", 0_u32.into()),
        ("rope.dimension_sections", vec![0_i32; 4].into()),
        ("rope.scaling.factor", 0.0_f32.into()),
        ("rope.scaling.attn_factor", 1.0_f32.into()),
        ("rope.scaling.finetuned", false.into()),
        ("rope.scaling.yarn_log_multiplier", 0.0_f32.into()),
        ("rope.scaling.yarn_ext_factor", (-1.0_f32).into()),
        ("rope.scaling.yarn_attn_factor", 1.0_f32.into()),
        ("rope.scaling.yarn_beta_fast", 32.0_f32.into()),
        ("rope.scaling.yarn_beta_slow", 1.0_f32.into()),
        ("ssm.inner_size", 0_u32.into()),
        ("ssm.conv_kernel", 0_u32.into()),
        ("ssm.state_size", 0_u32.into()),
        ("ssm.time_step_rank", 0_u32.into()),
        ("ssm.group_count", 0_u32.into()),
        ("ssm.dt_b_c_rms", false.into()),
        ("kda.head_dim", 0_u32.into()),
        ("kda.safe_gate", false.into()),
        ("shortconv.l_cache", 0_u32.into()),
        ("wkv.head_size", 0_u32.into()),
    ]
}

/// Turns the booleans of a list into integers, as llama.cpp saves them.
fn as_integers(value: &Value) -> Value {
    match value {
        Value::Array(Array::Bool(claims)) => claims
            .iter()
            .map(|&claim| u32::from(claim))
            .collect::<Vec<_>>()
            .into(),
        other => other.clone(),
    }
}

#[test]
fn files_that_llama_cpp_saves_are_the_files_that_it_read() {
    for header in headers() {
        let network = header.open().unwrap();
        let n_layers = network.layers.len();
        let mut saved = header.clone();
        for (_, value) in &mut saved.keys {
            *value = as_integers(value);
        }
        // Only architectures whose reader takes these numbers from elsewhere.
        let sets_itself = |name: &str| match header.arch.as_str() {
            "gemma3" => name == "final_logit_softcapping",
            "gemma-embedding" => ["final_logit_softcapping", "attention.causal"].contains(&name),
            "granite" | "granitehybrid" => name == "rope.scaling.finetuned",
            "minicpm" => ["logit_scale", "residual_scale", "embedding_scale"].contains(&name),
            "llama4" => ["attention.sliding_window", "attention.temperature_scale"].contains(&name),
            _ => false,
        };
        for (name, value) in unset(n_layers) {
            if header.get(name).is_none() && !sets_itself(name) {
                saved = saved.with(&header.key(name), value);
            }
        }
        // llama.cpp saves layer by layer which layers are recurrent.
        if let Some(Value::U32(interval)) = header.get("full_attention_interval") {
            let n_blocks = n_layers as u32;
            let layers: Vec<u32> = (1..=n_blocks)
                .map(|layer| u32::from(layer % interval != 0))
                .collect();
            saved = saved
                .without("full_attention_interval")
                .with(&header.key("attention.recurrent_layers"), layers.into());
        }
        let found = saved
            .open()
            .unwrap_or_else(|error| panic!("{}: {error}", header.name));
        assert_eq!(found, network, "{}", header.name);
    }
}

#[test]
fn sections_of_rope_turn_the_pairs_of_halves() {
    let of_text = headers()
        .into_iter()
        .filter(|header| header.arch == "glm4")
        .collect::<Vec<_>>();
    assert!(!of_text.is_empty());
    for header in of_text {
        let that_sees = header.with("glm4.rope.dimension_sections", vec![2_u32, 4, 2, 0].into());
        assert_eq!(header.open().unwrap().ropes[0].style, RopeStyle::Norm);
        assert_eq!(that_sees.open().unwrap().ropes[0].style, RopeStyle::Neox);
    }
}

#[test]
fn a_correction_of_the_choice_of_experts_stands_for_sigmoids() {
    let has_correction =
        |header: &Header| (header.tensors.iter()).any(|(name, _)| name.ends_with("exp_probs_b.bias"));
    let mut n_compared = 0;
    for header in headers().into_iter().filter(|header| header.arch == "deepseek2") {
        let score = u32::from(has_correction(&header)) + 1;
        let said = header.with("deepseek2.expert_gating_func", score.into());
        assert_eq!(
            header.without("expert_gating_func").open(),
            said.open(),
            "{}",
            header.name
        );
        n_compared += usize::from(has_correction(&header));
    }
    assert!(n_compared > 0);
}

#[test]
fn modern_bert_classifier_pools_by_its_key_or_the_mean() {
    let mut header = headers()
        .into_iter()
        .find(|header| header.arch == "modern-bert")
        .unwrap()
        .with("modern-bert.pooling_type", 4_u32.into());
    header.tensors.extend([
        ("cls.weight".to_owned(), vec![64, 64]),
        ("cls.norm.weight".to_owned(), vec![64]),
        ("cls.output.weight".to_owned(), vec![64, 2]),
    ]);
    let kind = |header: Header| header.open().unwrap().pooling.unwrap().kind;
    let said = |code: u32| header.with("modern-bert.classifier.pooling_type", code.into());
    assert_eq!(kind(said(2)), Pooling::First);
    assert_eq!(kind(said(1)), Pooling::Mean);
    assert_eq!(kind(header.without("classifier.pooling_type")), Pooling::Mean);
}
