//! Hugging Face folders: both layouts of the configuration, and possible faults of the files.

use std::path::Path;

use tokenmill_backend::{ExpertScore, KvType};
use tokenmill_cpu_exec::CpuBackend;
use tokenmill_model::{Descriptor, LayerDescriptor, Model, ModelOptions, MoeDescriptor};
use tokenmill_quant::CpuFeatures;
use tokenmill_testkit::{
    Comparisons, NaiveBackend, Random, Reference, cases, engines, json_mutation::mutate_json, parity::compare,
};

use crate::folder_parts;

#[test]
fn both_layouts_of_the_configuration_give_the_reference() {
    let mut comparisons = Comparisons::of("logits, Hugging Face folders");
    for folder in comparisons.networks() {
        let hf = folder.join("hf");
        let reference = Reference::open(&folder).unwrap();
        for config in ["config.json", "config.v5.json"] {
            if !hf.join(config).is_file() {
                comparisons.skip("the core set has no folder of this network");
                continue;
            }
            let Some(model) = comparisons.open(Model::from_hf(&hf, &hf.join(config))) else {
                continue;
            };
            let comparison = compare(
                &reference,
                reference.folder_type(),
                &model,
                &engines::CPU,
                KvType::F32,
            )
            .unwrap();
            assert!(
                comparison.failures.is_empty(),
                "{} {config}: {comparison:?}",
                folder.display()
            );
            comparisons.compared(1);
        }
    }
}

const CONFIG: &str = r#"{"architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 8,
    "intermediate_size": 8, "max_position_embeddings": 16, "num_attention_heads": 2, "num_hidden_layers": 1,
    "rms_norm_eps": 1e-5, "vocab_size": 4}"#;

/// [`CONFIG`] with a class of Gemma's family, and its activation.
fn gemma_config(class: &str) -> String {
    CONFIG
        .replace("LlamaForCausalLM", class)
        .replace("silu", "gelu_pytorch_tanh")
}

/// Returns the error message of opening and loading a folder with these two files.
fn message(config: &str, weights: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), weights).unwrap();
    let load = |path: &Path| {
        let backend = CpuBackend::new(Some(1), CpuFeatures::detect())?;
        engines::load(&Model::open(path)?, backend, &ModelOptions::default()).map(drop)
    };
    let text = load(folder.path()).unwrap_err().to_string();
    text.replace(&format!("{}/", folder.path().display()), "")
}

fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

#[test]
fn adapters_of_tasks_beside_the_weights_are_refused_by_their_key() {
    let config = r#"{"architectures": ["XLMRobertaModel"], "position_embedding_type": "rotary", "hidden_act": "gelu",
        "hidden_size": 8, "intermediate_size": 8, "max_position_embeddings": 16, "num_attention_heads": 2,
        "num_hidden_layers": 1, "layer_norm_eps": 1e-5, "vocab_size": 4, "lora_adaptations": ["retrieval.query"]}"#;
    let found = message(config, &safetensors("{}", &[]));
    assert!(
        found.starts_with(
            "config.json: `lora_adaptations` is [\"retrieval.query\"], expected a folder without adapters of tasks"
        ),
        "{found}"
    );
}

#[test]
fn a_broken_configuration_is_named() {
    let weights = safetensors("{}", &[]);
    let check = |from: &str, to: &str, expected: &str| {
        assert_eq!(message(&CONFIG.replace(from, to), &weights), expected);
    };
    check(
        "\"hidden_size\": 8",
        "\"hidden_size\": -8",
        "config.json: `hidden_size` is -8, expected a count",
    );
    // Transformers has no class of this name, and so no default for a missing value.
    let config = CONFIG.replace("LlamaForCausalLM", "MiniCPMForCausalLM");
    assert_eq!(
        message(&config.replace("vocab_size", "vocab"), &weights),
        "config.json: `vocab_size` is missing, expected a count"
    );
    check(
        "silu",
        "snake",
        "config.json: `hidden_act` is \"snake\", expected one of silu, swish, swiglu, gelu, gelu_pytorch_tanh, \
         gelu_new, gelu_fast, relu, relu2",
    );
    check(
        "\"hidden_act\": \"silu\"",
        "\"hidden_act\": \"xielu\", \"model_type\": \"apertus\"",
        "config.json: `hidden_act` is \"xielu\", expected one of silu, swish, swiglu, gelu, gelu_pytorch_tanh, \
         gelu_new, gelu_fast, relu, relu2",
    );
    check(
        "LlamaForCausalLM",
        "ApertusForCausalLM",
        "config.json: `hidden_act` is \"silu\", expected xielu",
    );
    check(
        "\"vocab_size\": 4",
        "\"vocab_size\": 4, \"rope_theta\": NaN",
        "config.json: `rope_theta` is \"NaN\", expected a number",
    );
    check(
        "\"vocab_size\": 4",
        "\"vocab_size\": 4, \"rope_scaling\": {\"rope_type\": \"proportional\", \"factor\": 8.0}",
        "config.json: `factor` is 8.0, expected 1 with the rope type `proportional`",
    );
    let unknown = message(&CONFIG.replace("LlamaForCausalLM", "RwkvForCausalLM"), &weights);
    let start = "architecture `RwkvForCausalLM` is not supported; supported are ";
    assert!(
        unknown.starts_with(start) && unknown.contains("LlamaForCausalLM, "),
        "{unknown}"
    );
    check(
        "\"num_hidden_layers\": 1",
        "\"num_hidden_layers\": 99999999999",
        "config.json: `num_hidden_layers` is 99999999999, expected a count of layers",
    );
}

#[test]
fn heads_of_other_widths_than_their_rope_are_refused() {
    let config = gemma_config("Gemma4ForCausalLM").replace(
        "\"num_hidden_layers\": 1",
        r#""num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 4, "sliding_window": 4, "layer_types": ["full_attention", "full_attention"],
            "per_layer_config": {"1": {"head_dim": 16}}"#,
    );
    assert_eq!(
        message(&config, &safetensors("{}", &[])),
        "the model's head width is 16, expected the width that the layer's rope was made for (key `head_dim`)"
    );
}

#[test]
fn a_size_of_the_vocabulary_beyond_the_weights_allocates_nothing() {
    let header = r#"{"model.embed_tokens_per_layer.weight": {"dtype": "BF16", "shape": [1, 1], "data_offsets": [0, 2]}}"#;
    for n_vocab in ["4000000000000000000", "100000000000"] {
        let config = gemma_config("Gemma3nForCausalLM").replace(
            "\"vocab_size\": 4",
            &format!("\"num_kv_shared_layers\": 0, \"vocab_size\": {n_vocab}"),
        );
        assert_eq!(
            message(&config, &safetensors(header, &[0; 2])),
            "tensor `token_embd.weight` is missing (`embed_tokens.weight` in the folder)"
        );
    }
}

/// Returns the network of a folder without weights, whose configuration has this instead of the count of
/// layers.
fn network(class: &str, more: &str) -> Descriptor {
    let folder = tempfile::tempdir().unwrap();
    let config = match class {
        "Gemma3nForCausalLM" => gemma_config(class),
        _ => CONFIG.replace("LlamaForCausalLM", class),
    };
    let config = config.replace("\"num_hidden_layers\": 1", more);
    let config_path = folder.path().join("config.json");
    std::fs::write(&config_path, config).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), safetensors("{}", &[])).unwrap();
    let model = Model::from_hf(folder.path(), &config_path).unwrap();
    model.descriptor().clone()
}

#[test]
fn gemma3n_has_the_defaults_of_its_class() {
    let class = "Gemma3nForCausalLM";
    let attention = |layer: &LayerDescriptor| layer.mixer.attention().unwrap().clone();
    let default = network(class, "\"num_hidden_layers\": 20");
    let sharing: Vec<bool> = (default.layers.iter().map(attention))
        .map(|attention| attention.shares_kv_of.is_some())
        .collect();
    assert_eq!(sharing, [[false; 5], [true; 5], [true; 5], [true; 5]].concat());
    let windows: Vec<_> = (default.layers.iter().map(attention))
        .map(|attention| attention.window)
        .collect();
    assert_eq!(windows[..5], [Some(512), Some(512), Some(512), Some(512), None]);
    let first = attention(&default.layers[0]);
    assert_eq!((first.n_kv_heads, first.head_dim_k), (2, 256));
    assert_eq!(
        [&default.ropes[0], &default.ropes[1]].map(|rope| rope.base),
        [1e6, 1e4]
    );
    let said = network(
        class,
        r#""num_hidden_layers": 20, "num_kv_shared_layers": 15, "sliding_window": 512, "num_key_value_heads": 2, "head_dim": 256,
            "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0"#,
    );
    assert_eq!(said, default);
    let other = network(
        class,
        r#""num_hidden_layers": 5, "num_kv_shared_layers": 0, "sliding_window": 64, "num_key_value_heads": 1"#,
    );
    let first = attention(&other.layers[0]);
    assert_eq!(
        (first.shares_kv_of, first.window, first.n_kv_heads),
        (None, Some(64), 1)
    );
}

#[test]
fn llama4_may_have_no_experts() {
    let layers = r#""num_hidden_layers": 4, "num_key_value_heads": 2, "intermediate_size_mlp": 24, "no_rope_layers": [1, 1, 1, 1], "num_local_experts": 0"#;
    for no_layer in ["\"moe_layers\": []", "\"interleave_moe_layer_step\": 0"] {
        let dense = network("Llama4ForCausalLM", &format!("{layers}, {no_layer}"));
        let widths: Vec<_> = (dense.layers.iter())
            .map(|layer| {
                (
                    layer.ffn.moe().is_none(),
                    layer.ffn.dense().map(|dense| dense.n_ff),
                )
            })
            .collect();
        assert_eq!(widths, [(true, Some(24)); 4], "{no_layer}");
    }
}

/// Returns the network of a folder of latent attention and experts, whose configuration has this in addition.
fn latent_network(class: &str, more: &str) -> Descriptor {
    let folder = tempfile::tempdir().unwrap();
    let config = CONFIG
        .replace("LlamaForCausalLM", class)
        .replace("\"num_hidden_layers\": 1", "\"num_hidden_layers\": 5")
        .replace(
            "\"vocab_size\"",
            &format!(
                r#""qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "kv_lora_rank": 4, "q_lora_rank": null, "v_head_dim": 4, "n_routed_experts": 16,
                "num_experts_per_tok": 2, "moe_intermediate_size": 8, {more} "vocab_size""#
            ),
        );
    let config_path = folder.path().join("config.json");
    std::fs::write(&config_path, config).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), safetensors("{}", &[])).unwrap();
    let model = Model::from_hf(folder.path(), &config_path).unwrap();
    model.descriptor().clone()
}

#[test]
fn classes_of_latent_attention_have_their_own_defaults() {
    let of_last = |descriptor: &Descriptor| descriptor.layers[4].ffn.moe().unwrap().clone();
    let n_dense = |descriptor: &Descriptor| {
        let is_dense = |layer: &&LayerDescriptor| layer.ffn.moe().is_none();
        descriptor.layers.iter().take_while(is_dense).count()
    };
    let v2 = latent_network("DeepseekV2ForCausalLM", "");
    let v3 = latent_network("DeepseekV3ForCausalLM", "");
    let flash = latent_network("Glm4MoeLiteForCausalLM", "");
    assert_eq!([&v2, &v3, &flash].map(n_dense), [0, 3, 1]);
    let [v2, v3, flash] = [v2, v3, flash].map(|descriptor| of_last(&descriptor));
    assert_eq!(
        [&v2, &v3, &flash].map(|moe| (moe.router.score, moe.router.is_normalized, moe.router.scale)),
        [
            (ExpertScore::Softmax, false, 1.0),
            (ExpertScore::Sigmoid, true, 2.5),
            (ExpertScore::Sigmoid, true, 1.8)
        ]
    );
    let groups = v3.router.groups.unwrap();
    assert_eq!((groups.n_groups, groups.n_used), (8, 4));
    assert_eq!((v2.router.groups, flash.router.groups), (None, None));
    let n_shared_ff = |moe: &MoeDescriptor| moe.shared.unwrap().dense.n_ff;
    assert_eq!([&v2, &v3, &flash].map(n_shared_ff), [16, 8, 8]);
}

#[test]
fn a_configuration_that_says_everything_means_the_same_in_each_class() {
    let more = r#""n_group": 4, "topk_group": 2, "n_shared_experts": 1, "first_k_dense_replace": 2, "routed_scaling_factor": 1.5,
        "norm_topk_prob": true, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "num_nextn_predict_layers": 0,"#;
    let v3 = latent_network("DeepseekV3ForCausalLM", more);
    assert_eq!(latent_network("Glm4MoeLiteForCausalLM", more), v3);
    let kinds = format!(r#"{more} "mlp_layer_types": ["dense", "dense", "sparse", "sparse", "sparse"],"#);
    assert_eq!(latent_network("Glm4MoeLiteForCausalLM", &kinds), v3);
    // A missing field does not get the default of another class.
    let default = latent_network("DeepseekV3ForCausalLM", "\"n_group\": 4,");
    assert_ne!(default, v3);
}

#[test]
fn layers_that_predict_further_tokens_are_not_read() {
    let header = r#"{"model.layers.1.enorm.weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}"#;
    let weights = safetensors(header, &[0; 4]);
    let with_layers = |count: &str| {
        let key = format!("\"num_nextn_predict_layers\": {count}, \"vocab_size\"");
        message(&CONFIG.replace("\"vocab_size\"", &key), &weights)
    };
    let unknown = with_layers("0");
    assert!(
        unknown.contains("`model.layers.1.enorm.weight` has an unknown name"),
        "{unknown}"
    );
    let ignored = with_layers("1");
    assert!(ignored.contains("`token_embd.weight`"), "{ignored}");
}

#[test]
fn folders_without_layers_are_refused() {
    let weights = safetensors("{}", &[]);
    let check = |class: &str, more: &str| {
        let config = CONFIG.replace("LlamaForCausalLM", class);
        let config = config.replace(
            "\"num_hidden_layers\": 1",
            &format!("\"num_hidden_layers\": 0, {more}"),
        );
        let found = message(&config, &weights);
        assert!(
            found.starts_with("the model's layer count is 0"),
            "{class}: {found}"
        );
    };
    let mamba = "\"mamba_n_heads\": 2, \"mamba_d_head\": 8, \"mamba_n_groups\": 1, \"mamba_d_state\": 4, \"mamba_d_conv\": 4";
    check("Lfm2ForCausalLM", "\"conv_L_cache\": 3, \"layer_types\": []");
    check("FalconH1ForCausalLM", mamba);
}

#[test]
fn broken_weights_are_named() {
    let check = |weights: &[u8], expected: &str| {
        let found = message(CONFIG, weights);
        assert!(found.starts_with(expected), "{found}");
    };
    check(
        b"short",
        "model.safetensors: a file of 5 bytes has no header; fetch it again",
    );
    check(
        &[0xFF; 64],
        "model.safetensors: a header of 18446744073709551615 bytes does not fit the file",
    );
    check(&safetensors("{", &[]), "model.safetensors: ");
    check(&safetensors("{}", &[]), "tensor `token_embd.weight` is missing");
    let header = r#"{"model.norm.weight": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}}"#;
    check(
        &safetensors(header, &[0; 31]),
        "model.safetensors: tensor `model.norm.weight` ends behind the end of the file",
    );
    check(
        &safetensors(&header.replace("F32", "I8").replace("32]", "8]"), &[0; 8]),
        "model.safetensors: tensor `model.norm.weight` has type I8, expected F32, F16 or BF16",
    );
    check(
        &safetensors(&header.replace("model.norm", "model.abnorm"), &[0; 32]),
        "model.safetensors: tensor `model.abnorm.weight` has an unknown name",
    );
    check(
        &safetensors(&header.replace("[8]", "[9]"), &[0; 32]),
        "model.safetensors: ",
    );
    check(
        &safetensors(&header.replace("[8]", "[0, 8]").replace("32]", "0]"), &[]),
        "model.safetensors: tensor `model.norm.weight` has shape [0, 8], which holds nothing",
    );
}

#[test]
fn a_file_that_shrinks_is_an_error_that_names_the_tensor() {
    let header = folder_parts::header().to_string();
    let bytes = folder_parts::safetensors(&header, folder_parts::N_DATA_BYTES);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    std::fs::write(
        folder.path().join("config.json"),
        folder_parts::config().to_string(),
    )
    .unwrap();
    std::fs::write(&path, &bytes).unwrap();
    let model = Model::open(folder.path()).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(bytes.len() as u64 - 1).unwrap();
    let error = engines::load(&model, engines::cpu(1), &ModelOptions::default()).map(drop);
    assert_eq!(
        error.unwrap_err().to_string(),
        format!(
            "cannot read tensor `output_norm.weight`: {} was opened with {} bytes and has become shorter; leave the \
             file alone while it is read (`model.norm.weight` in the folder)",
            path.display(),
            bytes.len()
        )
    );
}

#[test]
#[cfg(unix)]
fn a_pipe_in_the_place_of_a_file_is_refused_without_waiting() {
    for name in ["model.safetensors", "config.json"] {
        let folder = tempfile::tempdir().unwrap();
        if name != "config.json" {
            std::fs::write(folder.path().join("config.json"), CONFIG).unwrap();
        }
        let path = folder.path().join(name);
        let status = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(status.success());
        let Err(error) = Model::open(folder.path()) else {
            panic!("{name} is a pipe");
        };
        assert_eq!(
            error.to_string(),
            format!(
                "cannot read {}: it is a pipe, a device or a socket, expected a regular file",
                path.display()
            )
        );
    }
}

/// Configurations and headers with parts moved, repeated, exchanged and changed.
#[test]
fn mutated_folders_are_refused_or_load() {
    let folder = tempfile::tempdir().unwrap();
    let parts = folder_parts::parts();
    let options = ModelOptions {
        n_ctx: Some(16),
        max_batch_tokens: 4,
        ..ModelOptions::default()
    };
    let load = |config: &serde_json::Value, header: &serde_json::Value| {
        let weights = folder_parts::safetensors(&header.to_string(), folder_parts::N_DATA_BYTES);
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        std::fs::write(folder.path().join("model.safetensors"), weights).unwrap();
        engines::load(&Model::open(folder.path())?, NaiveBackend::new(), &options).map(drop)
    };
    load(&folder_parts::config(), &folder_parts::header()).unwrap();
    let (mut n_refused, mut n_loaded) = (0, 0);
    let mut n_tried = 0;
    for case in cases("mutated folders", 3000) {
        n_tried += 1;
        let mut random = Random::named(7, &case.to_string());
        let (mut config, mut header) = (folder_parts::config(), folder_parts::header());
        for _ in 0..=random.below(3) {
            let json = if random.below(2) == 0 {
                &mut config
            } else {
                &mut header
            };
            mutate_json(json, &parts, &mut |n| random.below(n));
        }
        match load(&config, &header) {
            Ok(()) => n_loaded += 1,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                n_refused += 1;
            }
        }
    }
    assert!(
        n_refused > n_tried / 6 && n_loaded > n_tried / 60,
        "{n_refused} refused, {n_loaded} loaded"
    );
}
