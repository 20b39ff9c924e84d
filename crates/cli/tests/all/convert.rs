//! `convert`: a folder becomes a file that runs as the folder does; a refused folder leaves no file.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use tokenmill_gguf::{GgufFile, TensorType};

use crate::support::{arg, tokenmill};

/// A folder of the core set.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/parity/qwen2/hf")
}

/// The built-in model's file.
const DEMO: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../tokenmill/assets/tokenmill-demo-Q8_0.gguf"
);

#[test]
fn a_converted_folder_runs_as_the_folder_does() {
    let folder = folder();
    let target = tempfile::tempdir().unwrap();
    let output = target.path().join("out.gguf");
    let text = tokenmill(["convert", arg(&folder), arg(&output), "--type", "f32", "-t", "2"]).ok();
    let expected = format!("wrote {}: qwen2, ", output.display());
    assert!(
        text.starts_with(&expected) && text.contains("\nF32 takes "),
        "{text}"
    );
    let run = |model: &str| {
        tokenmill([
            "run", "--raw", model, "It was", "-n", "16", "--temp", "0", "--device", "cpu",
        ])
        .ok()
    };
    assert_eq!(run(arg(&output)), run(arg(&folder)));

    // A preset, without an importance matrix; nothing is left next to the files.
    let smaller = target.path().join("small.gguf");
    tokenmill(["convert", arg(&folder), arg(&smaller), "--type", "q4_k_m"]).ok();
    let file = GgufFile::open(&smaller).unwrap();
    assert!(
        file.tensors().any(|info| info.ty == TensorType::Q5_0),
        "rows of 64 are no blocks of Q4_K"
    );
    let dry = tokenmill([
        "convert",
        arg(&folder),
        arg(&target.path().join("no.gguf")),
        "--dry-run",
    ])
    .ok();
    assert!(dry.starts_with("auto would be "), "{dry}");
    assert_eq!(fs::read_dir(target.path()).unwrap().count(), 2);
}

#[test]
fn what_convert_refuses_leaves_nothing() {
    let target = tempfile::tempdir().unwrap();
    let output = target.path().join("out.gguf");
    let line = tokenmill(["convert", "demo", arg(&output)]).failed(3);
    assert!(
        line.starts_with("error: demo is the model built into the program, and no folder (hint: FOLDER is")
            && !line.contains("quantize"),
        "{line}"
    );
    let line = tokenmill(["convert", "nofolder", arg(&output)]).failed(3);
    assert!(
        line.starts_with(
            "error: there is no folder nofolder (hint: FOLDER is a Hugging Face folder, with config.json"
        ),
        "{line}"
    );
    let line = tokenmill(["convert", arg(target.path()), arg(&output)]).failed(3);
    assert!(
        line.contains("holds neither a .gguf file nor a config.json"),
        "{line}"
    );
    let outcome = tokenmill(["convert", arg(&folder()), arg(&output), "--type", "q9"]);
    assert!(
        outcome.stderr.contains("`q9` is not a file type"),
        "{}",
        outcome.stderr
    );
    assert_eq!(fs::read_dir(target.path()).unwrap().count(), 0);
}

/// An importance matrix of one tensor, in the older form of such files.
fn importance(tensor: &str, n_columns: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in [1, tensor.len() as i32] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(tensor.as_bytes());
    bytes.extend(1_i32.to_le_bytes());
    bytes.extend((n_columns as i32).to_le_bytes());
    bytes.extend((0..n_columns).flat_map(|column| (column as f32).to_le_bytes()));
    bytes
}

#[test]
fn a_folder_is_converted_with_an_importance_matrix_of_its_own() {
    let target = tempfile::tempdir().unwrap();
    let [output, own, other] = ["out.gguf", "own.dat", "other.dat"].map(|name| target.path().join(name));
    fs::write(&own, importance("blk.0.attn_q.weight", 64)).unwrap();
    fs::write(&other, importance("blk.0.attn_q.weight", 32)).unwrap();
    let convert = |ty: &str, matrix: &Path, extra: &[&str]| {
        let folder = folder();
        let args = [
            "convert",
            arg(&folder),
            arg(&output),
            "--type",
            ty,
            "--imatrix",
            arg(matrix),
            "--overwrite",
        ];
        tokenmill([&args[..], extra].concat())
    };
    let line = convert("q4_k_m", &other, &[]).failed(3);
    assert!(
        line.contains("the importance matrix belongs to another model"),
        "{line}"
    );
    let line = convert("f16", &own, &[]).failed(2);
    assert!(
        line.contains("an importance matrix changes nothing in F16"),
        "{line}"
    );
    // One that lacks most tensors is not of this model, unless that is said.
    let line = convert("q4_k_m", &own, &[]).failed(3);
    assert!(
        line.contains("it has nothing for any `attn_k.weight`, ") && line.contains("--allow-partial-imatrix"),
        "{line}"
    );
    let text = target.path().join("text.txt");
    fs::write(&text, "once there was a cat. ".repeat(40)).unwrap();
    let line = convert("q4_k_m", &text, &[]).failed(3);
    assert!(
        line.contains("it starts with `once` and looks like text"),
        "{line}"
    );
    assert!(!output.exists());
    let measured = target.path().join("measured.gguf");
    let said = tokenmill([
        "imatrix",
        arg(&folder()),
        arg(&text),
        arg(&measured),
        "-c",
        "32",
        "--chunks",
        "1",
    ])
    .ok();
    assert!(said.contains("measured on 1 chunk of 32 tokens"), "{said}");
    let outcome = convert("q4_k_m", &measured, &[]);
    assert!(
        !outcome.stderr.contains("importance matrix"),
        "{}",
        outcome.stderr
    );
    outcome.ok();
    let line = tokenmill(["run", "--raw", arg(&measured), "x"]).failed(3);
    assert!(
        line.contains("this file is an importance matrix, not a model") && line.contains("--imatrix FILE"),
        "{line}"
    );
    let outcome = convert("q4_k_m", &own, &["--allow-partial-imatrix"]);
    assert!(
        outcome
            .stderr
            .contains("the importance matrix has no entries for"),
        "{}",
        outcome.stderr
    );
    let file = GgufFile::open(&output).unwrap();
    assert_eq!(
        file.metadata().usize("quantize.imatrix.entries_count").unwrap(),
        1
    );
}

#[test]
fn what_files_cannot_say_is_refused_by_its_field() {
    let refusal = |changes: &[(&str, Value)]| {
        let target = tempfile::tempdir().unwrap();
        let changed = target.path().join("changed");
        copy_files(&folder(), &changed);
        let path = changed.join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        for (key, value) in changes {
            config[key] = value.clone();
        }
        fs::write(path, config.to_string()).unwrap();
        let output = target.path().join("out.gguf");
        let line = tokenmill(["convert", arg(&changed), arg(&output)]).failed(3);
        assert!(!output.exists());
        line
    };
    let activation = "`layers[0].ffn.activation` is GeluErf in the folder, and readers of the file take Silu; config.json says it with \
                      hidden_act";
    let rounding = "`layers[0].mixer.rope.scaling.rounding` is none in the folder, and readers of the file take Outwards; config.json \
                    says it with rope_scaling.truncate";
    let check = |changes: &[(&str, Value)], expected: &str| {
        let line = refusal(changes);
        let expected = format!("error: a GGUF file of `qwen2` cannot describe this folder: {expected}");
        assert_eq!(line, expected);
    };
    let gelu = ("hidden_act", json!("gelu"));
    // The attention factor follows from YaRN's formula, and the file states it as a number: no difference.
    let yarn = |more: &[(&str, Value)]| {
        let mut yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128});
        for (key, value) in more {
            yarn[key] = value.clone();
        }
        ("rope_scaling", yarn)
    };
    check(std::slice::from_ref(&gelu), activation);
    let truncate = ("truncate", json!(false));
    check(&[yarn(std::slice::from_ref(&truncate))], rounding);
    check(
        &[yarn(&[
            truncate.clone(),
            ("attention_factor", json!(1.138_629_4)),
        ])],
        rounding,
    );
    check(
        &[yarn(&[truncate]), gelu],
        &format!("{activation}; besides, {rounding}"),
    );
    // Without the difference it is written.
    let target = tempfile::tempdir().unwrap();
    let changed = target.path().join("changed");
    copy_files(&folder(), &changed);
    let path = changed.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["rope_scaling"] = yarn(&[]).1;
    fs::write(path, config.to_string()).unwrap();
    tokenmill(["convert", arg(&changed), arg(&target.path().join("out.gguf"))]).ok();
}

/// Copies the files of a folder into one that is made.
fn copy_files(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
    }
}

#[test]
fn what_is_no_folder_to_convert_is_told_from_one() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
    let target = tempfile::tempdir().unwrap();
    let output = target.path().join("out.gguf");
    // Files of a model, next to the folder that they were made of.
    let line = tokenmill(["convert", arg(&data.join("parity/qwen2")), arg(&output)]).failed(3);
    assert!(
        line.contains("qwen2 holds GGUF files, but no safetensors with config.json (hint: ")
            && line.ends_with("hf has them)"),
        "{line}"
    );
    let files = target.path().join("files");
    fs::create_dir(&files).unwrap();
    for name in ["a.gguf", "b.gguf"] {
        fs::copy(DEMO, files.join(name)).unwrap();
    }
    let line = tokenmill(["convert", arg(&files), arg(&output)]).failed(3);
    assert!(
        line.ends_with("(hint: `tokenmill quantize` gives it another type, of these: a.gguf, b.gguf)"),
        "{line}"
    );
    let adapter = data.join("parity2/lora/qwen3-a");
    for args in [
        &["convert", arg(&adapter), arg(&output)][..],
        &["run", arg(&adapter), "x"],
    ] {
        let line = tokenmill(args).failed(3);
        assert!(
            line.contains("this file is an adapter, not a model (hint: give it with `--lora FILE`"),
            "{line}"
        );
    }
    let encoder = data.join("vision/gemma3/mmproj-model.gguf");
    for args in [
        &["run", arg(&encoder), "x"][..],
        &["bench", arg(&encoder), "-p", "4", "-n", "0"],
    ] {
        let line = tokenmill(args).failed(3);
        assert!(
            line.ends_with(
                "this file is an image encoder, not a model (hint: give it with `--mmproj FILE` and the file of its model)"
            ),
            "{line}"
        );
    }
    let line = tokenmill([
        "quantize",
        arg(&adapter.join("adapter-F32.gguf")),
        arg(&output),
        "q8_0",
    ])
    .failed(3);
    assert!(line.contains("this file is an adapter"), "{line}");
    assert!(!output.exists());
    // A file that was made of a folder may lie in it.
    let own = target.path().join("own");
    copy_files(&folder(), &own);
    let inside = own.join("out.gguf");
    tokenmill(["convert", arg(&own), arg(&inside)]).ok();
    tokenmill(["convert", arg(&own), arg(&inside), "--overwrite"]).ok();
    let line = tokenmill(["convert", arg(&own), arg(&inside)]).failed(2);
    assert!(
        line.ends_with("out.gguf already exists (hint: `--overwrite` replaces it; or give another name)"),
        "{line}"
    );
}

#[test]
fn texts_that_the_file_cuts_otherwise_are_named() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/networks/jina_v3/hf");
    let target = tempfile::tempdir().unwrap();
    let outcome = tokenmill(["convert", arg(&folder), arg(&target.path().join("out.gguf"))]);
    assert!(
        outcome.stderr.contains(
            "splits texts with a space at their end, several spaces in a row differently from that of the folder (hint: files"
        ),
        "{}",
        outcome.stderr
    );
    outcome.ok();
    let outcome = tokenmill([
        "convert",
        arg(&self::folder()),
        arg(&target.path().join("other.gguf")),
    ]);
    assert!(!outcome.stderr.contains("splits texts"), "{}", outcome.stderr);
}

#[test]
fn a_model_is_compared_with_its_own_logits_and_with_those_of_a_smaller_file() {
    let target = tempfile::tempdir().unwrap();
    let [text, base] = ["text.txt", "base.logits"].map(|name| target.path().join(name));
    fs::write(
        &text,
        "Once upon a time there was a little girl who liked to read. ".repeat(40),
    )
    .unwrap();
    let common = ["-c", "64", "--chunks", "3", "--device", "cpu"];
    let saved = tokenmill(
        [
            &["perplexity", "demo", arg(&text), "--save-logits", arg(&base)][..],
            &common,
        ]
        .concat(),
    )
    .ok();
    assert!(saved.starts_with("perplexity "), "{saved}");
    let json = tokenmill([
        "perplexity",
        "demo",
        "--kl-base",
        arg(&base),
        "--json",
        "--device",
        "cpu",
    ])
    .ok();
    let report: Value = serde_json::from_str(&json).unwrap();
    // 16 bits keep a log-probability to some 1e-4.
    assert!(report["kl"]["mean"].as_f64().unwrap().abs() < 1e-4, "{json}");
    assert!(report["same_top"].as_f64().unwrap() > 0.98, "{json}");
    assert!(report["base_perplexity"].as_f64().unwrap() > 1.0, "{json}");
    assert_eq!(report["n_chunks"], 3);
    let both = tokenmill([&["compare", "demo", "demo", arg(&text), "--json"][..], &common].concat()).ok();
    let report: Value = serde_json::from_str(&both).unwrap();
    assert_eq!(report["same_top"], 1.0, "{both}");
    assert!(report["kl"]["max"].as_f64().unwrap().abs() < 1e-6, "{both}");
    assert_eq!(
        report["models"][0]["perplexity"], report["models"][1]["perplexity"],
        "{both}"
    );
    let svg = text.with_file_name("along.svg");
    tokenmill(
        [
            &["compare", "demo", "demo", arg(&text), "--svg", arg(&svg)][..],
            &common,
        ]
        .concat(),
    )
    .ok();
    let drawn = std::fs::read_to_string(&svg).unwrap();
    assert!(
        drawn.contains("demo against demo") && drawn.contains("KL divergence"),
        "{drawn}"
    );
    let piped = tokenmill(
        [
            &["compare", "demo", "demo", arg(&text), "--svg", "-"][..],
            &common,
        ]
        .concat(),
    );
    assert!(piped.stderr.contains("KL divergence"), "{}", piped.stderr);
    assert_eq!(piped.ok(), drawn);
    let refused =
        |extra: &[&str]| tokenmill([&["compare", "demo", "demo", arg(&text)], extra].concat()).failed(2);
    assert!(refused(&["--svg", "-", "--json"]).contains("both write to standard output"));
    assert!(refused(&["--chunks", "0"]).contains("`--chunks 0` leaves nothing to compare"));
    // A drawing does not take the place of what is read.
    let before = std::fs::read(&text).unwrap();
    let copy = text.with_file_name("copy.gguf");
    std::fs::copy(DEMO, &copy).unwrap();
    for over in [&text, &copy] {
        let line = tokenmill(["compare", "demo", arg(&copy), arg(&text), "--svg", arg(over)]).failed(2);
        assert!(line.contains("is the input"), "{line}");
    }
    assert_eq!(std::fs::read(&text).unwrap(), before);
    let line = tokenmill(["perplexity", "demo", "--kl-base", arg(&text)]).failed(3);
    assert!(line.contains("this is not a file of logits"), "{line}");
}
