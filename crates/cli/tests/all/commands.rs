//! Each command does its work.

use std::{fs, path::Path};

use serde_json::{Value, json};
use tokenmill_testkit::Comparisons;

use crate::support::{DEMO_GGUF, Outcome, arg, command, tokenmill, tokenmill_with};

#[test]
fn inspect_lists_metadata_tensors_types_and_memory() {
    let text = tokenmill(["inspect", "demo", "-t", "1"]).ok();
    // How weights are packed, and so their size in memory, depends on the machine.
    let (listing, memory) = text.split_once("\nMemory with").expect("a plan of the memory");
    insta::assert_snapshot!("inspect_demo", listing);
    for what in ["weights", "keys and values  512.0 KiB", "activations", "in all"] {
        assert!(memory.contains(what), "{memory}");
    }
}

#[test]
fn inspect_prints_the_networks_operations() {
    let text = tokenmill(["inspect", "demo", "--program"]).ok();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "-- Input");
    assert!(lines[1].starts_with("x0 = embed(token_embd"), "{}", lines[1]);
    let last = lines.last().unwrap();
    assert!(last.starts_with("sample(x"), "{last}");
    let attends = |line: &&&str| line.contains("= attention(") && line.contains("kv.0");
    assert_eq!(lines.iter().filter(attends).count(), 1, "{text}");
}

#[test]
fn inspect_gives_json_in_full() {
    let text = tokenmill(["inspect", "demo", "--json", "-c", "128"]).ok();
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["metadata"]["general.architecture"], "llama");
    assert_eq!(
        json["metadata"]["tokenizer.ggml.tokens"]
            .as_array()
            .unwrap()
            .len(),
        2048
    );
    let bytes = |row: &Value| row["bytes"].as_u64().unwrap();
    let of_tensors: u64 = json["tensors"].as_array().unwrap().iter().map(bytes).sum();
    let of_types: u64 = json["types"].as_array().unwrap().iter().map(bytes).sum();
    assert_eq!(of_tensors, of_types);
    assert_eq!(json["memory"]["n_ctx"], 128);
    // 4 layers, keys and values of 2 heads of 32 numbers of 2 bytes, 128 positions: computed from the metadata.
    let metadata = &json["metadata"];
    let number = |key: &str| metadata[key].as_u64().unwrap();
    let head_dim = number("llama.embedding_length") / number("llama.attention.head_count");
    let kv_bytes =
        number("llama.block_count") * 2 * number("llama.attention.head_count_kv") * head_dim * 2 * 128;
    assert_eq!(json["memory"]["kv_bytes"], kv_bytes);
}

#[test]
fn the_parts_of_a_memory_plan_add_up() {
    // One with recurrent layers, one without.
    let recurrent = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/networks/kimi_heads/hf");
    for (model, has_states) in [("demo", false), (arg(&recurrent), true)] {
        let text = tokenmill(["inspect", model, "--json", "-c", "128"]).ok();
        let memory = &serde_json::from_str::<Value>(&text).unwrap()["memory"];
        let bytes = |part: &str| memory[format!("{part}_bytes")].as_u64().unwrap();
        let parts = ["weights", "kv", "states", "activations", "workspace"];
        assert_eq!(parts.map(bytes).iter().sum::<u64>(), bytes("total"), "{memory}");
        assert_eq!(bytes("states") > 0, has_states, "{memory}");
        let text = tokenmill(["inspect", model, "--summary", "-c", "128"]).ok();
        assert_eq!(text.contains("\n  states "), has_states, "{text}");
    }
}

#[test]
fn inspect_says_what_a_file_is_for_that_is_no_model() {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/parity2/quantize/imatrix-llama.gguf");
    let text = tokenmill(["inspect", arg(&file), "--summary"]).ok();
    let expected = "This file cannot be run: this file is an importance matrix, not a model; `quantize` and `convert` take it";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn inspect_shows_a_file_that_cannot_be_run() {
    let mut comparisons = Comparisons::of("inspect of a vocabulary");
    let Some(file) = comparisons.find("vocab/ggml-vocab-qwen2.gguf") else {
        return;
    };
    let text = tokenmill(["inspect", arg(&file), "--summary"]).ok();
    assert!(text.contains("0 tensors"), "{text}");
    assert!(text.contains("This file cannot be run: "), "{text}");
    comparisons.compared(1);
}

#[test]
fn tokenize_prints_ids_and_pieces() {
    assert_eq!(
        tokenmill(["tokenize", "demo", "Once upon a time", "--ids"]).ok(),
        "0 618 656 261 458\n"
    );
    assert_eq!(
        tokenmill_with(&["tokenize", "demo", "--ids", "--no-bos"], "Once upon a time").ok(),
        "618 656 261 458\n"
    );
    insta::assert_snapshot!(
        tokenmill(["tokenize", "demo", "Hé\n<|end|>"]).ok(),
        @r#"
          0  "<|bos|>"
         44  "H"
        132  "�"
        107  "�"
        203  "\n"
         32  "<"
         96  "|"
        404  "end"
         96  "|"
         34  ">"
    "#
    );
    assert_eq!(
        tokenmill(["tokenize", "demo", "<|end|>", "--ids", "--no-bos", "--special"]).ok(),
        "1\n"
    );
}

#[test]
fn detokenize_is_the_way_back() {
    let text = "Once upon a time";
    let ids = tokenmill(["tokenize", "demo", text, "--ids", "--no-bos"]).ok();
    assert_eq!(
        tokenmill_with(&["detokenize", "demo"], &ids).ok(),
        format!("{text}\n")
    );
    assert_eq!(
        tokenmill(["detokenize", "demo", "618", "656,261"]).ok(),
        "Once upon a\n"
    );
    let json = tokenmill(["tokenize", "demo", "Once upon", "--json"]).ok();
    let found: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(found["ids"], serde_json::json!([0, 618, 656]));
    assert_eq!(found["pieces"][1], "Once");
    let json = tokenmill(["detokenize", "demo", "[0, 618]", "--json", "--skip-special"]).ok();
    let found: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(found, serde_json::json!({"ids": [0, 618], "text": "Once"}));
    for (ids, reason) in [
        ("1x", "`1x` is not a token id"),
        ("-1", "-1"),
        ("99999", "99999 is not in the vocabulary"),
    ] {
        let outcome = tokenmill_with(&["detokenize", "demo"], ids);
        assert_eq!(outcome.code, 3, "{ids}");
        assert!(outcome.stderr.contains(reason), "{}", outcome.stderr);
    }
}

#[test]
fn tokenize_takes_vocabularies_and_tokenizer_json() {
    let mut comparisons = Comparisons::of("the program's ids of text");
    let Some(vocab) = comparisons.find("vocab") else {
        return;
    };
    let folder = vocab.join("expected-llamacpp");
    let text = folder.join("mixed.txt");
    for name in ["llama-spm", "llama-bpe", "falcon", "gpt-2", "phi-3", "starcoder"] {
        let vocab = vocab.join(format!("ggml-vocab-{name}.gguf"));
        let expected = fs::read_to_string(folder.join(format!("ggml-vocab-{name}.ids"))).unwrap();
        let args = [
            "tokenize",
            arg(&vocab),
            "--file",
            arg(&text),
            "--ids",
            "--no-bos",
            "--special",
        ];
        let found = tokenmill(args).ok();
        let [expected, found] = [&expected, &found].map(|ids| {
            let ids = ids.split(|c: char| !c.is_ascii_digit());
            ids.filter(|id| !id.is_empty()).collect::<Vec<_>>()
        });
        assert!(
            found == expected,
            "{name}: {} ids, expected {}",
            found.len(),
            expected.len()
        );
        comparisons.compared(1);
    }
    let Some(json) = comparisons.find("../demo-model/hf/tokenizer.json") else {
        return;
    };
    assert_eq!(
        tokenmill(["tokenize", arg(&json), "Once upon a time", "--ids", "--no-bos"]).ok(),
        "618 656 261 458\n"
    );
}

/// A folder of one layer, whose matrices are in FP8 with a scale each. All numbers are 0.
fn fp8_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 32, "intermediate_size": 32,
        "max_position_embeddings": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "rms_norm_eps": 1e-5,
        "vocab_size": 4, "tie_word_embeddings": true, "quantization_config": {"quant_method": "fp8"},
    });
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    let mut add = |name: &str, dtype: &str, shape: Value, n_bytes: usize| {
        let row = json!({"dtype": dtype, "shape": shape, "data_offsets": [end, end + n_bytes]});
        header.insert(format!("model.{name}"), row);
        end += n_bytes;
    };
    add("embed_tokens.weight", "F32", json!([4, 32]), 512);
    add("norm.weight", "F32", json!([32]), 128);
    for name in ["input_layernorm", "post_attention_layernorm"] {
        add(&format!("layers.0.{name}.weight"), "F32", json!([32]), 128);
    }
    for name in [
        "self_attn.q",
        "self_attn.k",
        "self_attn.v",
        "self_attn.o",
        "mlp.gate",
        "mlp.up",
        "mlp.down",
    ] {
        let name = format!("layers.0.{name}_proj.weight");
        add(&name, "F8_E4M3", json!([32, 32]), 1024);
        add(&format!("{name}_scale"), "F32", json!([]), 4);
    }
    let header = Value::Object(header).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + end, 0);
    fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    folder
}

#[test]
fn inspect_says_that_a_model_without_a_template_is_a_base_model() {
    const KEY: &[u8] = b"tokenizer.chat_template";
    let mut bytes = DEMO_GGUF.to_vec();
    let at = bytes.windows(KEY.len()).position(|window| window == KEY);
    // A name that means nothing.
    bytes[at.expect("the demo has one") + KEY.len() - 1] = b'x';
    let file = tempfile::Builder::new().suffix(".gguf").tempfile().unwrap();
    fs::write(file.path(), bytes).unwrap();
    let text = tokenmill(["inspect", arg(file.path()), "--summary"]).ok();
    assert_eq!(
        text.lines().nth(1),
        Some("base model: it has no chat template, continues texts (`run`) and cannot chat")
    );
    for (model, kind) in [(arg(file.path()), "base"), ("demo", "chat")] {
        let json = tokenmill(["inspect", model, "--json"]).ok();
        let json: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["kind"], kind);
    }
}

#[test]
fn inspect_tells_the_type_in_the_files_from_the_one_that_is_loaded() {
    let folder = fp8_folder();
    let text = tokenmill(["inspect", arg(folder.path()), "--summary"]).ok();
    let row = text
        .lines()
        .find(|line| line.contains("F8_E4M3"))
        .unwrap_or_default();
    assert!(
        row.contains("7 tensors") && row.ends_with("8.03 bits each, loaded as BF16"),
        "{text}"
    );
    let json = tokenmill(["inspect", arg(folder.path()), "--json"]).ok();
    let json: Value = serde_json::from_str(&json).unwrap();
    let of_type = |ty: &str| {
        json["types"]
            .as_array()
            .unwrap()
            .iter()
            .find(|row| row["type"] == ty)
            .unwrap()
    };
    assert_eq!(of_type("F8_E4M3")["bytes"], 7 * 1028);
    assert_eq!(of_type("F8_E4M3")["loaded_as"], "BF16");
    assert_eq!(of_type("F32").get("loaded_as"), None);
    assert_eq!(json["file_bytes"], 7 * 1028 + 512 + 3 * 128);
    assert!(
        json["memory"]["weights_bytes"].as_u64().unwrap() >= 7 * 2048,
        "{json}"
    );
}

#[test]
fn a_hugging_face_folder_is_a_model() {
    let mut comparisons = Comparisons::of("commands on a folder");
    let Some(folder) = comparisons.find("parity/qwen2/hf") else {
        return;
    };
    let folder = arg(&folder);
    let text = tempfile::NamedTempFile::new().unwrap();
    fs::write(text.path(), "Once upon a time there was a bear. ".repeat(8)).unwrap();
    for args in [
        &["run", "--raw", folder, "Hello", "-n", "2"][..],
        &["inspect", folder, "--summary"],
        &["tokenize", folder, "Hello"],
        &["perplexity", folder, arg(text.path()), "-c", "8", "--chunks", "2"],
        &["bench", folder, "-p", "4", "-n", "2", "-r", "1"],
        &["doctor", folder],
    ] {
        assert!(!tokenmill(args).ok().is_empty(), "{args:?}");
        comparisons.compared(1);
    }
    assert!(
        !tokenmill_with(&["chat", folder, "-n", "2"], "Hello\n")
            .ok()
            .is_empty()
    );
}

#[test]
fn apply_template_renders_a_models_template() {
    let context = r#"{"messages": [{"role": "user", "content": "Hello"}]}"#;
    assert_eq!(
        tokenmill(["apply-template", "demo", "--context", context]).ok(),
        "<|bos|><|user|>\nHello<|end|>\n<|assistant|>\n"
    );
}

#[test]
fn apply_template_renders_files_at_a_given_time() {
    let folder = tempfile::tempdir().unwrap();
    let (template, context) = (folder.path().join("t.jinja"), folder.path().join("c.json"));
    fs::write(&template, "{{ strftime_now('%d %b %Y') }} {{ x | tojson }}\n").unwrap();
    fs::write(&context, r#"{"x": {"b": "<é>", "a": 1}}"#).unwrap();
    let args = [
        "apply-template",
        "--template",
        arg(&template),
        "--context",
        arg(&context),
        "--now",
        "2024-07-26",
    ];
    assert_eq!(tokenmill(args).ok(), "26 Jul 2024 {\"b\": \"<é>\", \"a\": 1}");
}

#[test]
fn run_reads_its_prompt_from_where_it_is_told() {
    let expected = tokenmill([
        "run",
        "--raw",
        "demo",
        "Once upon a time",
        "--temp",
        "0",
        "-n",
        "8",
    ])
    .ok();
    assert!(expected.starts_with("Once upon a time,"), "{expected}");
    let piped = tokenmill_with(
        &["run", "--raw", "demo", "--temp", "0", "-n", "8"],
        "Once upon a time",
    );
    assert_eq!(piped.ok(), expected);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompt.txt");
    fs::write(&file, "Once upon a time").unwrap();
    let args = [
        "run",
        "--raw",
        "-m",
        "demo",
        "-f",
        arg(&file),
        "--temp",
        "0",
        "-n",
        "8",
        "--no-echo",
    ];
    assert_eq!(format!("Once upon a time{}", tokenmill(args).ok()), expected);
}

#[test]
fn run_reports_timings_and_obeys_length_stop_and_seed() {
    let run = |extra: &[&str]| -> Value {
        let args = [&["run", "--raw", "demo", "Once upon a time", "--json"], extra].concat();
        let outcome = tokenmill(args);
        assert!(
            outcome.stderr.starts_with("[prompt 5 tokens"),
            "{}",
            outcome.stderr
        );
        serde_json::from_str(&outcome.ok()).unwrap()
    };
    let greedy = run(&["--temp", "0", "-n", "8"]);
    assert_eq!(greedy["finish_reason"], "length");
    assert_eq!(greedy["ids"].as_array().unwrap().len(), 8);
    assert_eq!(greedy["timings"]["predicted_n"], 8);

    let stopped = run(&["--temp", "0", "--stop", " hungry pig"]);
    assert_eq!(stopped["finish_reason"], "stop");
    assert_eq!(stopped["text"], ", there was a");

    let seeded = run(&["-s", "7", "-n", "30"]);
    assert_eq!(
        seeded["text"],
        run(&["--seed", "7", "-n", "30", "-t", "1", "-ub", "3"])["text"]
    );
    assert_ne!(seeded["text"], run(&["--seed", "8", "-n", "30"])["text"]);
    assert_eq!(seeded["seed"], 7);

    let none = run(&["-n", "0"]);
    assert_eq!(
        (&none["text"], &none["finish_reason"]),
        (&json!(""), &json!("length"))
    );

    let forbidden = run(&["--temp", "0", "-n", "1", "-l", "16-inf"]);
    assert_ne!(forbidden["ids"], json!([16]));
}

#[test]
fn run_generates_samples_side_by_side_that_equal_runs_of_their_own() {
    let run = |extra: &[&str]| {
        let args = [&["run", "--raw", "demo", "Once upon a time", "-n", "12"], extra].concat();
        tokenmill(args)
    };
    let json = run(&["-np", "3", "--seed", "5", "--json"]).ok();
    let json: Value = serde_json::from_str(&json).unwrap();
    let samples = json["samples"].as_array().unwrap();
    assert_eq!(samples.len(), 3);
    for (seed, sample) in (5..).zip(samples) {
        let alone = run(&["--seed", &format!("{seed}"), "--json"]).ok();
        let alone: Value = serde_json::from_str(&alone).unwrap();
        assert_eq!(sample["seed"], seed);
        for field in ["text", "ids", "finish_reason"] {
            assert_eq!(
                sample[field], alone[field],
                "{field} of the sample with seed {seed}"
            );
        }
    }
    let shown = run(&["--parallel", "2", "--temp", "0"]);
    assert!(
        shown.stderr.starts_with("[2 samples, 24 tokens, "),
        "{}",
        shown.stderr
    );
    let shown = shown.ok();
    let (first, second) = shown.split_once("--- 2 of 2\n").unwrap();
    assert_eq!(first, format!("--- 1 of 2\n{second}"), "greedy samples are equal");
    assert!(second.starts_with("Once upon a time, there was a"), "{second}");
}

#[test]
fn run_stores_keys_and_values_as_it_is_told() {
    for types in [["f32", "f32"], ["q8_0", "q8_0"], ["q8_0", "f16"]] {
        let args = [
            "run",
            "--raw",
            "demo",
            "Once upon a time",
            "--temp",
            "0",
            "-n",
            "4",
            "-ctk",
            types[0],
            "-ctv",
            types[1],
        ];
        assert!(
            tokenmill(args).ok().starts_with("Once upon a time, there was a"),
            "{types:?}"
        );
    }
}

#[test]
fn devices_and_completions_print() {
    assert!(tokenmill(["devices"]).ok().starts_with("CPU: "));
    let json: Value = serde_json::from_str(&tokenmill(["devices", "--json"]).ok()).unwrap();
    assert!(json[0]["threads"].as_u64().unwrap() >= 1);
    for shell in ["bash", "zsh", "fish"] {
        assert!(
            tokenmill(["completions", shell]).ok().contains("apply-template"),
            "{shell}"
        );
        // Types by their names: of files, of tensors, of keys.
        for ty in ["iq3_xxs", "mxfp4_moe", "q6_k", "q4_0"] {
            assert!(
                tokenmill(["completions", shell]).ok().contains(ty),
                "{shell} {ty}"
            );
        }
    }
}

#[test]
fn the_manual_has_a_page_for_each_command() {
    let folder = tempfile::tempdir().unwrap();
    let man = folder.path().join("man/man1");
    let written = tokenmill(["man", arg(&man)]).ok();
    let n_pages = fs::read_dir(&man).unwrap().count();
    assert!(
        written.starts_with(&format!("{n_pages} pages written to")),
        "{written}"
    );
    for (page, text) in [
        ("tokenmill.1", "tokenmill\\-apply\\-template(1)"),
        ("tokenmill-run.1", "\\-\\-top\\-p"),
        ("tokenmill-quantize.1", "mxfp4_moe"),
        ("tokenmill-convert.1", "iq3_xxs"),
        ("tokenmill-run.1", "iq4_nl"),
        ("tokenmill-man.1", "Write the manual pages to a folder"),
    ] {
        let found = fs::read_to_string(man.join(page)).unwrap();
        assert!(
            found.starts_with(".ie") && found.contains(text),
            "{page}: {found}"
        );
    }
    let page = fs::read_to_string(man.join("tokenmill-run.1")).unwrap();
    let at = |heading: &str| {
        page.find(heading)
            .unwrap_or_else(|| panic!("{heading} in {page}"))
    };
    assert!(at("SAMPLING") < at("ADVANCED") && at("MODELS BY NAME") < at("ADVANCED"));
    fs::write(folder.path().join("file"), "").unwrap();
    let line = tokenmill(["man", arg(&folder.path().join("file"))]).failed(4);
    assert!(line.contains("cannot write to"), "{line}");
}

#[test]
fn doctor_fails_for_a_model_that_no_device_has_room_for() {
    let args = ["doctor", "demo", "--device", "cpu", "-c", "1000000000"];
    for json in [&[][..], &["--json"]] {
        let outcome = tokenmill([&args[..], json].concat());
        assert_eq!(outcome.code, 3, "{}", outcome.stdout);
        assert!(
            outcome.stderr.contains("error: the model needs ") && outcome.stderr.contains("(hint: "),
            "{}",
            outcome.stderr
        );
        if json.is_empty() {
            assert!(
                outcome.stdout.contains("verdict    problem  the model cannot be"),
                "{}",
                outcome.stdout
            );
        }
    }
    let text = tokenmill(["doctor", "demo", "--device", "cpu", "-c", "64"]).ok();
    assert!(text.contains("verdict    ok "), "{text}");
}

#[test]
fn doctor_says_what_to_do_about_a_problem() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    // Nothing can be put below a file.
    let run = |json: &[&str]| {
        let output = command([&["doctor"][..], json].concat())
            .env("HF_HOME", &file)
            .output();
        Outcome::of(&output.expect("the program starts")).ok()
    };
    let text = run(&[]);
    assert!(
        text.contains("models     problem  downloads cannot go to"),
        "{text}"
    );
    assert!(
        text.contains("           to fix   let HF_HOME name a folder that you can write to"),
        "{text}"
    );
    let json: Value = serde_json::from_str(&run(&["--json"])).unwrap();
    assert_eq!(json["problems"][0]["what"], "models", "{json}");
    assert!(
        tokenmill(["doctor"]).ok().contains("memory     ok"),
        "there is memory here"
    );
}
