//! Folders that files of their architecture can or cannot say: no folder is refused without need, and no file says something else.

use serde_json::{Value as Json, json};
use tokenmill_backend::KvType;
use tokenmill_model::{Model, ModelOptions};
use tokenmill_testkit::{cases, engines, generate::all_logits};

use super::*;

/// Folders of the reference data that files cannot say, and the field.
const REFUSED: &[(&str, &str)] = &[
    ("afmoe_plain", "embedding_scale"),
    ("gpt2_scores", "scale_attn_by_inverse_layer_idx"),
    ("llama4_chunked", "mixer.temperature.interval"),
];

#[test]
fn folders_are_refused_for_a_reason_alone() {
    let mut comparisons = Comparisons::of("folders that files can say");
    let mut found = Vec::new();
    for folder in comparisons.networks() {
        let hf = folder.join("hf");
        if !hf.join("model.safetensors").is_file() {
            comparisons.skip("no folder of this network");
            continue;
        }
        let network = folder.file_name().unwrap().to_str().unwrap();
        let expected = REFUSED.iter().find(|(name, _)| *name == network);
        match (Conversion::open(&hf, None), expected) {
            (Ok(_), None) if folder.parent().unwrap().ends_with("networks") => {
                // Files of the other networks are compared with the reference's.
                let is_writer = Model::open(&hf).unwrap().descriptor().pooling.is_none();
                if is_writer {
                    let (_temporary, path, _) = convert(&hf, OutType::F32).unwrap();
                    let difference = largest_difference(&hf, &path, &mut Random::named(1, network));
                    if difference >= SAME {
                        found.push(format!("{network}: the file gives {difference} more or less"));
                    }
                }
                comparisons.compared(1);
            }
            (Ok(_), None) => comparisons.compared(1),
            (Ok(_), Some((_, field))) => found.push(format!("{network}: expected {field} to be refused")),
            (Err(error), Some((_, field))) if error.to_string().contains(field) => comparisons.compared(1),
            (Err(error), _) => found.push(format!("{network}: {error}")),
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// A folder's copy whose configuration tests change.
struct Changed {
    folder: tempfile::TempDir,
    config: serde_json::Map<String, Json>,
}

impl Changed {
    fn of(folder: &Path) -> Self {
        let text = fs::read_to_string(folder.join("config.json")).unwrap();
        Self {
            folder: copy(folder),
            config: serde_json::from_str(&text).unwrap(),
        }
    }

    /// Writes the configuration with other values.
    fn write(&self, edits: &[(&str, Json)]) {
        let mut config = self.config.clone();
        for (key, value) in edits {
            config.insert((*key).to_owned(), value.clone());
        }
        let text = serde_json::to_string(&config).unwrap();
        fs::write(self.folder.path().join("config.json"), text).unwrap();
    }

    fn convert(&self) -> Result<(tempfile::TempDir, PathBuf, QuantizeSummary), Error> {
        convert(self.folder.path(), OutType::F32)
    }
}

fn logits(path: &Path, tokens: &[u32]) -> Vec<f32> {
    let options = ModelOptions {
        n_ctx: Some(tokens.len()),
        max_batch_tokens: tokens.len(),
        max_batch_seqs: 1,
        max_logit_rows: tokens.len(),
        kv_type: KvType::F32,
        ..Default::default()
    };
    let backend = engines::cpu(1);
    let model = Model::open(path).unwrap();
    let mut executor = engines::load(&model, backend, &options).unwrap();
    all_logits(&mut executor, tokens).unwrap()
}

/// The largest difference between the logits of a folder and those of the file made of it.
fn largest_difference(folder: &Path, file: &Path, random: &mut Random) -> f32 {
    let tokens: Vec<u32> = (0..48).map(|_| random.below(500) as u32).collect();
    let (of_folder, of_file) = (logits(folder, &tokens), logits(file, &tokens));
    furthest(&of_folder, &of_file)
}

/// The largest difference of two rows of numbers; it is infinite where one is not finite, or they have other lengths.
fn furthest(a: &[f32], b: &[f32]) -> f32 {
    let all_finite = a.iter().chain(b).all(|x| x.is_finite());
    if a.len() != b.len() || !all_finite {
        return f32::INFINITY;
    }
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, f32::max)
}

#[test]
fn what_is_no_number_is_a_difference() {
    assert_eq!(furthest(&[1.0, 2.0], &[1.0, 4.5]), 2.5);
    for (a, b) in [
        (&[1.0, f32::NAN][..], &[1.0, f32::NAN][..]),
        (&[f32::NAN], &[0.0]),
        (&[1.0], &[1.0, 2.0]),
    ] {
        assert_eq!(furthest(a, b), f32::INFINITY);
    }
}

/// Summands in another order, and numbers of keys that were rounded; what a variant changes is some hundred times as much.
const SAME: f32 = 2e-3;

/// A key of a configuration, and another value.
type Edit<'a> = (&'a str, Json);

/// Result of a change of a configuration.
enum Outcome {
    /// A file with this key.
    Key(&'static str),
    /// An error that names this.
    Refusal(&'static str),
}

#[test]
fn variants_are_written_or_refused_by_name() {
    use Outcome::{Key, Refusal};

    let yarn = |more: Json| {
        let mut rope = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64});
        for (key, value) in more.as_object().unwrap() {
            rope[key] = value.clone();
        }
        rope
    };
    let windows = json!(["sliding_attention", "full_attention"]);
    let four = |kinds: [&str; 4]| json!(kinds.map(|kind| format!("{kind}_attention")));
    let cases: &[(&str, &[Edit<'_>], Outcome)] = &[
        (
            "qwen2",
            &[
                ("use_sliding_window", json!(true)),
                ("sliding_window", json!(9)),
                ("max_window_layers", json!(1)),
                ("layer_types", json!(null)),
            ],
            Key("qwen2.attention.sliding_window_pattern"),
        ),
        (
            "qwen3",
            &[
                ("use_sliding_window", json!(true)),
                ("sliding_window", json!(9)),
                ("layer_types", windows),
            ],
            Key("qwen3.attention.sliding_window_pattern"),
        ),
        (
            "starcoder2",
            &[("sliding_window", json!(9))],
            Key("starcoder2.attention.sliding_window"),
        ),
        (
            "gemma2",
            &[("layer_types", four(["full", "sliding", "sliding", "full"]))],
            Key("gemma2.attention.sliding_window_pattern"),
        ),
        (
            "cohere2",
            &[("layer_types", four(["full", "sliding", "full", "sliding"]))],
            Key("cohere2.attention.sliding_window_pattern"),
        ),
        (
            "smollm3",
            &[("no_rope_layers", json!([1, 0, 1, 1]))],
            Refusal("`layers[1].mixer.rope` is none in the folder"),
        ),
        (
            "smollm3",
            &[
                ("no_rope_layers", json!(null)),
                ("no_rope_layer_interval", json!(2)),
            ],
            Refusal("mixer.rope"),
        ),
        (
            "gemma2",
            &[("query_pre_attn_scalar", json!(144))],
            Refusal("mixer.scale"),
        ),
        (
            "gemma2",
            &[("attn_logit_softcapping", json!(null))],
            Refusal("mixer.softcap"),
        ),
        (
            "gemma2",
            &[("final_logit_softcapping", json!(7.0))],
            Key("gemma2.final_logit_softcapping"),
        ),
        (
            "gemma3",
            &[("query_pre_attn_scalar", json!(144))],
            Refusal("mixer.scale"),
        ),
        (
            "llama4",
            &[("attn_scale", json!(0.4))],
            Refusal("mixer.temperature"),
        ),
        (
            "deepseek_v3",
            &[("rope_interleave", json!(false))],
            Refusal("style` is Neox in the folder"),
        ),
        (
            "deepseek_v3",
            &[(
                "rope_scaling",
                yarn(json!({"mscale": 0.7, "mscale_all_dim": 1.0})),
            )],
            Refusal("scaling"),
        ),
        (
            "deepseek_v3",
            &[(
                "rope_scaling",
                yarn(json!({"mscale": 1.0, "mscale_all_dim": 1.0})),
            )],
            Key("deepseek2.rope.scaling.yarn_log_multiplier"),
        ),
        (
            "llama",
            &[("rope_scaling", yarn(json!({"truncate": false})))],
            Refusal("scaling"),
        ),
        (
            "llama",
            &[("rope_scaling", yarn(json!({})))],
            Key("llama.rope.scaling.factor"),
        ),
        ("qwen2", &[("hidden_act", json!("gelu"))], Refusal("activation")),
        ("bert", &[("hidden_act", json!("relu"))], Refusal("activation")),
        (
            "gpt2",
            &[("scale_attn_weights", json!(false))],
            Refusal("scale_attn_weights"),
        ),
        (
            "nemotron",
            &[("rms_norm_eps", json!(0.02)), ("norm_eps", json!(0.02))],
            Key("nemotron.attention.layer_norm_epsilon"),
        ),
        // Readers of these normalize the experts' weights if the file does not say.
        (
            "nemotron_latent",
            &[("norm_topk_prob", json!(false))],
            Key("nemotron_h_moe.expert_weights_norm"),
        ),
        (
            "glm4_moe",
            &[("norm_topk_prob", json!(false))],
            Key("glm4moe.expert_weights_norm"),
        ),
    ];
    let mut comparisons = Comparisons::of("variants of folders");
    let mut random = Random::new(54);
    for (network, edits, outcome) in cases {
        let Some(folder) = any_folder(&mut comparisons, network) else {
            comparisons.skip("no folder of this network");
            continue;
        };
        let changed = Changed::of(&folder);
        changed.write(edits);
        match (changed.convert(), outcome) {
            (Ok((_temporary, path, _)), Key(key)) => {
                let found = GgufFile::open(&path).unwrap();
                assert!(found.metadata().get(key).is_some(), "{network}: {edits:?}: {key}");
                let difference = largest_difference(changed.folder.path(), &path, &mut random);
                assert!(difference < SAME, "{network}: {edits:?}: {difference}");
            }
            (Err(error), Refusal(expected)) => {
                let message = error.to_string();
                assert!(
                    message.contains(expected) && !message.contains('\n'),
                    "{network}: {edits:?}: {message}"
                );
            }
            (Ok(_), Refusal(expected)) => panic!("{network}: {edits:?} is converted, expected `{expected}`"),
            (Err(error), Key(key)) => panic!("{network}: {edits:?}: {error}, expected {key}"),
        }
        comparisons.compared(1);
    }
}

/// Returns a random value for a key of a configuration with this many layers; `None` for keys that stay.
fn random_value(key: &str, n_layers: usize, random: &mut Random) -> Option<Json> {
    let mut layers =
        |values: &[Json]| -> Json { (0..n_layers).map(|_| random.pick(values).clone()).collect() };
    let values = match key {
        "layer_types" => return Some(layers(&[json!("full_attention"), json!("sliding_attention")])),
        "no_rope_layers" => return Some(layers(&[json!(0), json!(1)])),
        "sliding_window" => json!([null, 3, 7, 20]),
        "use_sliding_window"
        | "norm_topk_prob"
        | "rope_interleave"
        | "use_parallel_residual"
        | "attn_temperature_tuning"
        | "use_qk_norm"
        | "tie_word_embeddings" => json!([true, false]),
        "max_window_layers" => json!([0, 1, 2]),
        "no_rope_layer_interval" | "sliding_window_pattern" => json!([1, 2, 3, 4]),
        "attn_logit_softcapping" | "final_logit_softcapping" => json!([null, 3.0, 30.0]),
        "query_pre_attn_scalar" => json!([16, 64, 100]),
        "rope_theta" | "rope_local_base_freq" => json!([1000.0, 10000.0, 50000.0]),
        "partial_rotary_factor" | "rotary_pct" => json!([0.25, 0.5, 1.0]),
        "attention_chunk_size" | "floor_scale" => json!([5, 16, 8192]),
        "attn_scale" => json!([0.1, 0.3]),
        "attention_multiplier"
        | "residual_multiplier"
        | "embedding_multiplier"
        | "logits_scaling"
        | "logit_scale"
        | "routed_scaling_factor"
        | "lm_head_multiplier"
        | "key_multiplier"
        | "attention_in_multiplier"
        | "output_multiplier"
        | "qk_scale_factor" => json!([0.5, 1.0, 1.7]),
        "hidden_act" | "hidden_activation" | "activation" | "activation_function" => {
            json!(["silu", "gelu", "gelu_pytorch_tanh", "relu", "relu2"])
        }
        "rms_norm_eps" | "layer_norm_eps" | "layer_norm_epsilon" | "norm_eps" | "norm_epsilon"
        | "post_norm_eps" => {
            json!([1e-6, 1e-5, 1e-2])
        }
        "scoring_func" => json!(["softmax", "sigmoid"]),
        "n_group" | "topk_group" | "num_experts_per_tok" | "moe_k" | "moe_topk" | "top_k_experts" => {
            json!([1, 2])
        }
        "position_embedding_type" => json!(["rope", "nope"]),
        "max_position_embeddings" => json!([128, 512, 4096]),
        "rope_scaling" => json!([
            null,
            {"rope_type": "linear", "factor": 2.0},
            {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 16},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "truncate": false},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "attention_factor": 1.3},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "mscale": 0.7, "mscale_all_dim": 1.0},
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
             "original_max_position_embeddings": 32},
        ]),
        _ => return None,
    };
    Some(random.pick(values.as_array()?).clone())
}

/// Folders with random values in their configurations are refused, or their files give what they give.
#[test]
fn random_variants_are_refused_or_the_same() {
    const N_VARIANTS: usize = 32;

    let mut comparisons = Comparisons::of("random variants of folders");
    let (mut n_written, mut n_refused) = (0, 0);
    for folder in comparisons.networks() {
        let hf = folder.join("hf");
        let is_writer = hf.join("model.safetensors").is_file()
            && Model::open(&hf).is_ok_and(|model| model.descriptor().pooling.is_none());
        if !is_writer {
            comparisons.skip("no folder of a network that writes");
            continue;
        }
        let network = folder.file_name().unwrap().to_str().unwrap();
        let changed = Changed::of(&hf);
        let n_layers = changed.config.get("num_hidden_layers").and_then(Json::as_u64);
        let n_layers = n_layers.map_or(0, |n| n as usize);
        let keys: Vec<&String> = changed.config.keys().collect();
        for variant in cases(&format!("variants of {network}"), N_VARIANTS) {
            let mut random = Random::named(variant as u64, network);
            // Most keys of a configuration change nothing.
            let picked: Vec<&str> = (0..24).map(|_| random.pick(&keys).as_str()).collect();
            let edits: Vec<(&str, Json)> = (picked.into_iter())
                .filter_map(|key| Some((key, random_value(key, n_layers, &mut random)?)))
                .take(2)
                .collect();
            changed.write(&edits);
            match changed.convert() {
                Err(_) => n_refused += 1,
                Ok((_temporary, path, _)) => {
                    let difference = largest_difference(changed.folder.path(), &path, &mut random);
                    assert!(difference < SAME, "{network}: {edits:?}: {difference}");
                    n_written += 1;
                }
            }
            comparisons.compared(1);
        }
    }
    assert!(
        n_written > 0 && n_refused > 0,
        "{n_written} written, {n_refused} refused"
    );
}
