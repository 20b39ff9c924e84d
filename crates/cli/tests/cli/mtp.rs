//! `--spec mtp`: the model's own layer guesses, the answer stays as it is, and a model without one is refused in a line.

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::Value;
use tokenmill_gguf::{GgufFile, GgufWriter, Metadata, TensorType};
use tokenmill_testkit::test_data;

use crate::support::{arg, tokenmill};

const PROMPT: &str = "Once upon a time";

const DEMO: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../tokenmill/assets/tokenmill-demo-Q8_0.gguf"
);

/// The layer whose copy is to guess; no training makes it good at it.
const COPIED: usize = 3;

/// The built-in model as a file with a layer behind its last that guesses further tokens, less the tensor `without`.
fn with_layer(folder: &Path, without: &str) -> std::path::PathBuf {
    let path = folder.join("with-layer.gguf");
    write_with_layer(&path, |name| !name.ends_with(without));
    path
}

/// Writes the tensors of that file whose names are kept.
fn write_with_layer(path: &Path, is_kept: impl Fn(&str) -> bool) {
    let file = GgufFile::open(DEMO).unwrap();
    let mut metadata = Metadata::new();
    for (key, value) in file.metadata().iter() {
        let value = if key == "llama.block_count" {
            (COPIED as u32 + 2).into()
        } else {
            value.clone()
        };
        metadata.insert(key, value).unwrap();
    }
    metadata.insert("llama.nextn_predict_layers", 1_u32).unwrap();
    let mut tensors: Vec<(String, TensorType, Vec<u64>, Vec<u8>)> = Vec::new();
    for info in file.tensors() {
        let view = file.tensor(&info.name).unwrap();
        let mut bytes = Vec::new();
        let bytes = view.bytes.read(0..view.bytes.len(), &mut bytes).unwrap().to_vec();
        let dims: Vec<u64> = info.dims.iter().map(|&dim| dim as u64).collect();
        if let Some(part) = info.name.strip_prefix(&format!("blk.{COPIED}.")) {
            let name = format!("blk.{}.{part}", COPIED + 1);
            tensors.push((name, info.ty, dims.clone(), bytes.clone()));
        }
        tensors.push((info.name.clone(), info.ty, dims, bytes));
    }
    let mut add = |part: &str, dims: &[u64], values: Vec<f32>| {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let name = format!("blk.{}.nextn.{part}.weight", COPIED + 1);
        tensors.push((name, TensorType::F32, dims.to_vec(), bytes));
    };
    for norm in ["enorm", "hnorm"] {
        add(norm, &[256], vec![1.0; 256]);
    }
    // The state of the token before, and a little of the embedding.
    let row = |row: usize| {
        (0..512).map(move |column| match column {
            _ if column == row => 0.2,
            _ if column == 256 + row => 1.0,
            _ => 0.0,
        })
    };
    add("eh_proj", &[512, 256], (0..256).flat_map(row).collect());
    tensors.retain(|(name, ..)| is_kept(name));
    let mut writer = GgufWriter::with_metadata(metadata);
    for (name, ty, dims, _) in &tensors {
        writer.add_tensor(name, *ty, dims).unwrap();
    }
    let mut out = writer.write_header(fs::File::create(path).unwrap()).unwrap();
    for (.., bytes) in &tensors {
        out.write(bytes).unwrap();
    }
    out.finish().unwrap();
}

#[test]
fn a_file_with_that_layer_alone_says_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let own = format!("blk.{}.", COPIED + 1);
    let path = folder.path().join("mtp-demo-Q8_0.gguf");
    write_with_layer(&path, |name| name.starts_with(&own) || !name.starts_with("blk."));
    let output = folder.path().join("out.gguf");
    for args in [
        &["run", arg(&path), PROMPT][..],
        &["run", "demo", PROMPT, "--draft", arg(&path)],
        &["quantize", arg(&path), arg(&output), "q4_0"],
    ] {
        let line = tokenmill(args).failed(3);
        assert!(
            line.contains("layers for further tokens (MTP) alone, not the model (hint: "),
            "{line}"
        );
    }
    let text = tokenmill(["inspect", arg(&path), "--summary"]).ok();
    assert!(text.contains("(MTP) alone"), "{text}");
    // Next to its model it is none to choose from.
    fs::copy(DEMO, folder.path().join("demo-Q8_0.gguf")).unwrap();
    let run = ["run", arg(folder.path()), PROMPT, "-n", "4", "--temp", "0"];
    assert_eq!(
        tokenmill(run).ok(),
        tokenmill(["run", "demo", PROMPT, "-n", "4", "--temp", "0"]).ok()
    );
}

fn run(model: &str, extra: &[&str]) -> Value {
    let base = [
        "run", model, PROMPT, "-n", "60", "--seed", "3", "--json", "-c", "256",
    ];
    serde_json::from_str(&tokenmill([&base, extra].concat()).ok()).unwrap()
}

#[test]
fn the_models_own_layer_guesses_and_the_answer_stays() {
    let folder = tempfile::tempdir().unwrap();
    let file = with_layer(folder.path(), "nothing is left out");
    for sampling in [&["--temp", "0"][..], &["--temp", "0.7"]] {
        let demo = run("demo", &[sampling, &["--spec", "off"]].concat());
        let plain = run(arg(&file), &[sampling, &["--spec", "off"]].concat());
        assert_eq!(plain["ids"], demo["ids"], "the layer is none of decoding's");
        assert_eq!(plain["timings"]["draft_n"], 0);
        for spec in [
            &["--spec", "mtp", "--spec-max", "4"][..],
            &["--spec", "mtp"],
            &["--spec", "auto"],
        ] {
            let guessed = run(arg(&file), &[sampling, spec].concat());
            assert_eq!(guessed["ids"], plain["ids"], "{spec:?}");
            let n_drafted = guessed["timings"]["draft_n"].as_u64().unwrap();
            assert!(spec[1] == "auto" || n_drafted > 0, "{guessed}");
        }
    }
}

#[test]
fn the_layer_and_its_memory_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = with_layer(folder.path(), "nothing is left out");
    let text = tokenmill(["inspect", arg(&file), "--summary"]).ok();
    let line = text.lines().find(|line| line.contains("MTP layer")).unwrap();
    assert!(line.contains("MiB more") && line.contains("--spec mtp"), "{text}");
    let json = |args: &[&str]| -> Value { serde_json::from_str(&tokenmill(args).ok()).unwrap() };
    let inspected = json(&["inspect", arg(&file), "--json"]);
    let n_bytes = inspected["mtp"]["total_bytes"].as_u64().unwrap();
    assert!(
        n_bytes > inspected["mtp"]["weights_bytes"].as_u64().unwrap(),
        "{n_bytes}"
    );
    let doctor = tokenmill(["doctor", arg(&file), "--device", "cpu"]).ok();
    let row = doctor.lines().find(|line| line.starts_with("MTP layer")).unwrap();
    assert!(row.contains(" ok ") && row.contains("MiB more"), "{doctor}");
    let examined = json(&["doctor", arg(&file), "--device", "cpu", "--json"]);
    assert_eq!(examined["model"]["mtp"], inspected["mtp"]);
    assert!(!tokenmill(["inspect", "demo", "--summary"]).ok().contains("MTP"));
    let broken = with_layer(folder.path(), "nextn.enorm.weight");
    let text = tokenmill(["inspect", arg(&broken), "--summary"]).ok();
    assert!(
        text.contains("MTP layer    cannot be used: ") && text.contains("nextn.enorm"),
        "{text}"
    );
    // The model runs without it.
    let doctor = tokenmill(["doctor", arg(&broken), "--device", "cpu"]).ok();
    let row = doctor.lines().find(|line| line.starts_with("MTP layer")).unwrap();
    assert!(row.contains(" none ") && row.contains("nextn.enorm"), "{doctor}");
    let examined = json(&["doctor", arg(&broken), "--device", "cpu", "--json"]);
    let problems = examined["problems"].as_array().unwrap();
    assert!(
        problems.iter().all(|problem| problem["what"] != "MTP layer"),
        "{examined}"
    );
}

#[test]
fn the_tensors_of_a_folders_layer_are_listed_as_those_of_its_file() {
    let Some(data) = test_data("tensors of layers that guess, in folders") else {
        return;
    };
    let target = tempfile::tempdir().unwrap();
    for name in ["glm4_moe_mtp", "qwen3_5_mtp"] {
        let folder = data.join("parity2").join(name).join("hf");
        let file = target.path().join(name).with_extension("gguf");
        tokenmill(["convert", arg(&folder), arg(&file)]).ok();
        let tensors = |model: &Path| {
            let json: Value =
                serde_json::from_str(&tokenmill(["inspect", arg(model), "--json"]).ok()).unwrap();
            let tensors = json["tensors"].as_array().unwrap().iter();
            let names: Vec<&str> = tensors.map(|tensor| tensor["name"].as_str().unwrap()).collect();
            let first = names
                .iter()
                .find(|name| name.contains(".nextn."))
                .expect("the layer has tensors of its own");
            let layer = first.split_once("nextn").unwrap().0;
            // Some norms of other layers have other names in folders.
            let of_layer = names
                .iter()
                .filter(|name| name.starts_with(layer))
                .map(|name| (*name).to_owned());
            (
                of_layer.collect::<BTreeSet<_>>(),
                names.len(),
                json["parameters"].clone(),
            )
        };
        assert_eq!(tensors(&folder), tensors(&file), "{name}");
    }
}

#[test]
fn what_cannot_guess_is_refused_in_a_line() {
    let refused = |model: &str, extra: &[&str], code: i32, expected: &str| {
        let line =
            tokenmill([&["run", model, PROMPT, "-n", "1", "--spec", "mtp"], extra].concat()).failed(code);
        assert!(line.contains(expected), "{line}");
    };
    refused("demo", &[], 2, "no layer that guesses further tokens");
    refused("demo", &["--draft", "demo"], 2, "does nothing");
    refused("demo", &["--device", "cuda"], 2, "--device cpu");
    let folder = tempfile::tempdir().unwrap();
    let broken = with_layer(folder.path(), "nextn.enorm.weight");
    refused(arg(&broken), &[], 3, "nextn.enorm");
    // The layer is not asked there.
    let plain = run(arg(&broken), &["--temp", "0"]);
    assert_eq!(
        plain["ids"],
        run("demo", &["--temp", "0", "--spec", "off"])["ids"]
    );
}
