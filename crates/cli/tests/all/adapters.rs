//! `--lora` of the commands: an adapter changes the generated text, and a bad one is a one-line error.

use std::{fs, path::PathBuf};

use serde_json::{Value, json};
use tokenmill_gguf::{GgufWriter, TensorType};
use tokenmill_testkit::Comparisons;

use crate::support::{arg, tokenmill};

/// A tiny model and its two adapters, as a file and as a folder.
fn files() -> [PathBuf; 3] {
    let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
    [
        "parity/qwen3/model-F32.gguf",
        "parity2/lora/qwen3-a/adapter-F32.gguf",
        "parity2/lora/qwen3-b",
    ]
    .map(|path| data.join(path))
}

fn generated(extra: &[&str]) -> Value {
    let [model, ..] = files();
    let args = [
        "run",
        "--raw",
        arg(&model),
        "once",
        "--temp",
        "0",
        "-n",
        "16",
        "--json",
        "--device",
        "cpu",
    ];
    let json: Value = serde_json::from_str(&tokenmill([&args[..], extra].concat()).ok()).unwrap();
    json["ids"].clone()
}

#[test]
fn an_adapter_changes_what_is_generated_by_its_scale() {
    let [_, file, folder] = files();
    let lora = |source: String| generated(&["--lora", &source]);
    let base = generated(&[]);
    assert!(base.is_array(), "{base}");
    let with = lora(format!("a={}", arg(&file)));
    assert_ne!(with, base);
    assert_eq!(lora(format!("a={}:0", arg(&file))), base);
    // A folder is the same adapter in another form.
    let same = file.parent().unwrap();
    assert_eq!(lora(format!("a={}", arg(same))), with);
    assert_ne!(lora(format!("b={}", arg(&folder))), with);
}

#[test]
fn perplexity_is_that_of_the_adapter() {
    let [model, file, _] = files();
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.txt");
    fs::write(&text, "the quick brown fox jumps over the lazy dog. ".repeat(20)).unwrap();
    let perplexity = |extra: &[&str]| {
        let args = [
            "perplexity",
            arg(&model),
            arg(&text),
            "-c",
            "32",
            "--json",
            "--device",
            "cpu",
        ];
        let json: Value = serde_json::from_str(&tokenmill([&args[..], extra].concat()).ok()).unwrap();
        json["perplexity"].as_f64().unwrap()
    };
    let source = |scale: &str| format!("a={}{scale}", arg(&file));
    assert_ne!(perplexity(&[]), perplexity(&["--lora", &source("")]));
    assert_eq!(perplexity(&[]), perplexity(&["--lora", &source(":0")]));
}

#[test]
fn requests_of_a_batch_choose_their_adapters() {
    let [model, file, other] = files();
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in.jsonl"), folder.path().join("out.jsonl"));
    let line = |id: &str, model: Option<&str>| {
        let mut body = json!({"prompt": "once", "max_tokens": 12, "temperature": 0, "ignore_eos": true});
        if let Some(model) = model {
            body["model"] = model.into();
        }
        json!({"custom_id": id, "method": "POST", "url": "/v1/completions", "body": body}).to_string()
    };
    let models = [None, Some("a"), Some("b"), Some("model-F32:a"), Some("c")];
    let lines: Vec<String> = (models.iter().enumerate())
        .map(|(i, model)| line(&i.to_string(), *model))
        .collect();
    fs::write(&input, lines.join("\n")).unwrap();
    let [a, b] = [format!("a={}", arg(&file)), format!("b={}", arg(&other))];
    tokenmill([
        "batch",
        arg(&model),
        arg(&input),
        arg(&output),
        "--lora",
        &a,
        "--lora",
        &b,
        "--device",
        "cpu",
    ])
    .ok();
    let mut answers = vec![Value::Null; models.len()];
    for line in fs::read_to_string(&output).unwrap().lines() {
        let result: Value = serde_json::from_str(line).unwrap();
        let id: usize = result["custom_id"].as_str().unwrap().parse().unwrap();
        answers[id] = result["response"].clone();
    }
    let text = |i: usize| &answers[i]["body"]["choices"][0]["text"];
    assert!(
        text(0) != text(1) && text(1) != text(2) && text(0) != text(2),
        "{answers:?}"
    );
    assert_eq!(text(1), text(3));
    assert_eq!(answers[3]["body"]["model"], "model-F32:a");
    assert_eq!(answers[4]["status_code"], 404);
}

#[test]
fn a_bad_adapter_is_one_line() {
    let [model, file, folder] = files();
    let fails = |sources: &[&str], code: i32, part: &str| {
        let mut args = vec!["run", "--raw", arg(&model), "once", "--device", "cpu"];
        for source in sources {
            args.extend(["--lora", source]);
        }
        let line = tokenmill(args).failed(code);
        assert!(line.contains(part), "{line}");
    };
    let source = |path: &str| format!("a={path}");
    fails(&[&source("no/such.gguf")], 3, "no/such.gguf");
    fails(
        &[&source(arg(&model))],
        3,
        "`general.type` is model, expected adapter",
    );
    fails(
        &[&source(arg(folder.parent().unwrap()))],
        3,
        "adapter_config.json",
    );
    let both = [source(arg(&file)), format!("b={}", arg(&folder))];
    fails(&[&both[0], &both[1]], 2, "given more than once");
    let outcome = tokenmill(["run", "--raw", arg(&model), "once", "--lora", "a b=c"]);
    assert_eq!(outcome.code, 2);
    assert!(outcome.stderr.contains("space"), "{}", outcome.stderr);
    let mut comparisons = Comparisons::of("adapters of another architecture");
    if let Some(other) = comparisons.find("parity2/lora/llama-a/adapter-F32.gguf") {
        fails(&[&source(arg(&other))], 3, "made for architecture llama");
        comparisons.compared(1);
    }
}

#[test]
fn a_control_vector_steers_by_its_scale_and_its_layers() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("control.gguf");
    let mut writer = GgufWriter::new();
    writer
        .metadata_mut()
        .insert("general.architecture", "controlvector")
        .unwrap();
    writer.add_tensor("direction.1", TensorType::F32, &[64]).unwrap();
    let mut writer = writer.write_header(Vec::new()).unwrap();
    let values = (0..64).map(|i| if i % 3 == 0 { 1.0_f32 } else { -0.5 });
    writer
        .write(&values.flat_map(f32::to_le_bytes).collect::<Vec<_>>())
        .unwrap();
    fs::write(&file, writer.finish().unwrap()).unwrap();
    let with = |scale: &str, extra: &[&str]| {
        let source = format!("{}{scale}", arg(&file));
        generated(&[&["--control-vector", &source], extra].concat())
    };
    let base = generated(&[]);
    assert_ne!(with(":4", &[]), base);
    assert_eq!(with(":0", &[]), base);
    assert_eq!(with(":4", &["--control-vector-layer-range", "0", "0"]), base);
    let [model, adapter, _] = files();
    let source = format!("{}:x", arg(&adapter));
    let line = tokenmill([
        "run",
        "--raw",
        arg(&model),
        "once",
        "--control-vector",
        &source,
        "--device",
        "cpu",
    ])
    .failed(3);
    assert!(line.contains(":x"), "{line}");
    let line = tokenmill([
        "run",
        "--raw",
        arg(&model),
        "once",
        "--control-vector",
        arg(&adapter),
        "--device",
        "cpu",
    ])
    .failed(3);
    assert!(line.contains("expected controlvector"), "{line}");
}

#[test]
fn an_adapter_that_is_missing_is_told_from_a_model() {
    let line = tokenmill(["run", "--raw", "demo", "Hi", "--lora", "poet=/no/such/poet.gguf"]).failed(3);
    assert!(
        line.starts_with("error: adapter `poet`: cannot open /no/such/poet.gguf"),
        "{line}"
    );
    assert!(
        line.contains("(hint: an adapter is a .gguf file, or a folder"),
        "{line}"
    );
}
