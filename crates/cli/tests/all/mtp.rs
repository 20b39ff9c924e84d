//! `--spec mtp`: the model's own layer guesses, the answer stays as it is, and a model without one is refused in a line.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value as Json;
use tokenmill::{LoadOptions, load::ModelSource, speculation::Speculation};
use tokenmill_gguf::{GgufFile, GgufWriter, Metadata, StringArray, TensorType, Value};
use tokenmill_testkit::test_data;

use crate::support::{arg, tokenmill};

const PROMPT: &str = "Once upon a time";

/// The file of the built-in model.
pub(crate) const DEMO: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../tokenmill/assets/tokenmill-demo-Q8_0.gguf"
);

/// The layer whose copy is to guess; no training makes it good at it.
const COPIED: usize = 3;

/// The built-in model as a file with a layer behind its last that guesses further tokens, less the tensor `without`.
pub(crate) fn with_layer(folder: &Path, without: &str) -> PathBuf {
    let path = folder.join("with-layer.gguf");
    write_with_layer(&path, |name| !name.ends_with(without));
    path
}

/// Writes the tensors of that file whose names are kept.
fn write_with_layer(path: &Path, is_kept: impl Fn(&str) -> bool) {
    write(path, COPIED + 1, &[], is_kept);
}

/// The layer alone, as a converter writes it: with the model's metadata, and its embedding, last norm and head once more.
pub(crate) fn write_layer_alone(path: &Path, changes: &[(&str, Value)]) {
    let own = format!("blk.{}.", COPIED + 1);
    write(path, COPIED + 1, changes, |name| {
        name.starts_with(&own) || !name.starts_with("blk.")
    });
}

/// Writes the tensors of the built-in model and a layer behind its last whose names are kept, with other metadata; the layer is counted as
/// number `layer_idx`.
fn write(path: &Path, layer_idx: usize, changes: &[(&str, Value)], is_kept: impl Fn(&str) -> bool) {
    let file = GgufFile::open(DEMO).unwrap();
    let mut keys: BTreeMap<String, Value> = (file.metadata().iter())
        .map(|(key, value)| (key.to_owned(), value.clone()))
        .collect();
    keys.insert("llama.block_count".to_owned(), (layer_idx as u32 + 1).into());
    keys.insert("llama.nextn_predict_layers".to_owned(), 1_u32.into());
    keys.extend(
        changes
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.clone())),
    );
    let mut metadata = Metadata::new();
    for (key, value) in keys {
        metadata.insert(key, value).unwrap();
    }
    let mut tensors: Vec<(String, TensorType, Vec<u64>, Vec<u8>)> = Vec::new();
    for info in file.tensors() {
        let view = file.tensor(&info.name).unwrap();
        let mut bytes = Vec::new();
        let bytes = view.bytes.read(0..view.bytes.len(), &mut bytes).unwrap().to_vec();
        let dims: Vec<u64> = info.dims.iter().map(|&dim| dim as u64).collect();
        if let Some(part) = info.name.strip_prefix(&format!("blk.{COPIED}.")) {
            let name = format!("blk.{layer_idx}.{part}");
            tensors.push((name, info.ty, dims.clone(), bytes.clone()));
        }
        tensors.push((info.name.clone(), info.ty, dims, bytes));
    }
    let mut add = |part: &str, dims: &[u64], values: Vec<f32>| {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let name = format!("blk.{layer_idx}.nextn.{part}.weight");
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
    let path = folder.path().join("mtp-demo-Q8_0.gguf");
    write_layer_alone(&path, &[]);
    let output = folder.path().join("out.gguf");
    for args in [
        &["run", "--raw", arg(&path), PROMPT][..],
        &["run", "--raw", "demo", PROMPT, "--draft", arg(&path)],
        &["quantize", arg(&path), arg(&output), "q4_0"],
    ] {
        let line = tokenmill(args).failed(3);
        assert!(line.contains("MTP layers alone, not the model (hint: "), "{line}");
    }
    let text = tokenmill(["inspect", arg(&path), "--summary"]).ok();
    assert!(text.contains("MTP layers alone"), "{text}");
    // Next to its model it is not a candidate.
    fs::copy(DEMO, folder.path().join("demo-Q8_0.gguf")).unwrap();
    let run = [
        "run",
        "--raw",
        arg(folder.path()),
        PROMPT,
        "-n",
        "4",
        "--temp",
        "0",
    ];
    assert_eq!(
        tokenmill(run).ok(),
        tokenmill(["run", "--raw", "demo", PROMPT, "-n", "4", "--temp", "0"]).ok()
    );
}

fn run(model: &str, extra: &[&str]) -> Json {
    let base = [
        "run", "--raw", model, PROMPT, "-n", "60", "--seed", "3", "--json", "-c", "256",
    ];
    serde_json::from_str(&tokenmill([&base, extra].concat()).ok()).unwrap()
}

#[test]
fn the_models_own_layer_guesses_and_the_answer_stays() {
    let folder = tempfile::tempdir().unwrap();
    let file = with_layer(folder.path(), "nothing is left out");
    let greedy = ["--temp", "0"];
    let demo = run("demo", &[&greedy[..], &["--spec", "off"]].concat());
    let plain = run(arg(&file), &[&greedy[..], &["--spec", "off"]].concat());
    assert_eq!(plain["ids"], demo["ids"], "the layer is none of decoding's");
    assert_eq!(plain["timings"]["draft_n"], 0);
    for spec in [
        &["--spec", "mtp", "--spec-max", "4"][..],
        &["--spec", "mtp"],
        &["--spec", "auto"],
    ] {
        let guessed = run(arg(&file), &[&greedy[..], spec].concat());
        assert_eq!(guessed["ids"], plain["ids"], "{spec:?}");
        let n_drafted = guessed["timings"]["draft_n"].as_u64().unwrap();
        assert!(spec[1] == "auto" || n_drafted > 0, "{guessed}");
    }
}

/// Returns an answer's ids, which must not depend on the guesses, and its counts of drafted and accepted
/// tokens.
fn guesses(answer: &Json) -> (Json, [u64; 2]) {
    let count = |name: &str| answer["timings"][name].as_u64().unwrap();
    (
        answer["ids"].clone(),
        [count("draft_n"), count("draft_n_accepted")],
    )
}

/// A folder with the model and a file of its layer that holds what is kept of the whole.
fn beside(is_kept: impl Fn(&str) -> bool) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("demo-Q8_0.gguf");
    fs::copy(DEMO, &model).unwrap();
    write_with_layer(&folder.path().join("mtp-demo-Q4_K_M.gguf"), is_kept);
    (folder, model)
}

#[test]
fn a_layer_in_a_file_of_its_own_guesses_as_one_in_the_models() {
    let own = format!("blk.{}.", COPIED + 1);
    let folder = tempfile::tempdir().unwrap();
    let inside = with_layer(folder.path(), "nothing is left out");
    // As a converter writes it, without the copies of the model's tensors, and as a file of the whole model.
    let (converted_folder, converted) = beside(|name| name.starts_with(&own) || !name.starts_with("blk."));
    let (_alone_folder, alone) = beside(|name| name.starts_with(&own));
    let (_whole_folder, whole) = beside(|_| true);
    let of = |model: &str, extra: &[&str]| run(model, &[&["--temp", "0"], extra].concat());
    let spec = ["--spec", "mtp", "--spec-max", "4"];
    let expected = guesses(&of(arg(&inside), &spec));
    assert!(expected.1[0] > 0 && expected.1[1] > 0, "{expected:?}");
    assert_eq!(expected.0, of("demo", &["--spec", "off"])["ids"]);
    for model in [&converted, &alone, &whole] {
        assert_eq!(guesses(&of(arg(model), &spec)), expected, "{}", model.display());
    }
    let file = converted_folder.path().join("mtp-demo-Q4_K_M.gguf");
    let named = of("demo", &[&spec[..], &["--mtp", arg(&file)]].concat());
    assert_eq!(guesses(&named), expected);
    for extra in [&["--spec", "auto"][..], &["--mtp", arg(&file)]] {
        assert_eq!(of(arg(&converted), extra)["ids"], expected.0, "{extra:?}");
    }
    let off = guesses(&of(arg(&converted), &["--spec", "off"]));
    assert_eq!(off, (expected.0, [0, 0]));
}

#[test]
fn the_memory_of_a_layer_beside_is_counted() {
    let inside_folder = tempfile::tempdir().unwrap();
    let inside_path = with_layer(inside_folder.path(), "nothing is left out");
    let (folder, model) = beside(|name| name.starts_with(&format!("blk.{}.", COPIED + 1)));
    let json = |args: &[&str]| -> Json { serde_json::from_str(&tokenmill(args).ok()).unwrap() };
    let inside = json(&["inspect", arg(&inside_path), "--json"]);
    let inspected = json(&["inspect", arg(&model), "--json"]);
    let n_bytes = inspected["mtp"]["total_bytes"].as_u64();
    assert_eq!(n_bytes, inside["mtp"]["total_bytes"].as_u64());
    assert!(inside["mtp"]["file"].is_null());
    let file = folder.path().join("mtp-demo-Q4_K_M.gguf");
    assert_eq!(inspected["mtp"]["file"], arg(&file));
    let text = tokenmill(["inspect", arg(&model), "--summary"]).ok();
    assert!(
        text.contains("(--spec mtp), from mtp-demo-Q4_K_M.gguf\n"),
        "{text}"
    );
    let doctor = tokenmill(["doctor", arg(&model), "--device", "cpu"]).ok();
    let row = doctor.lines().find(|line| line.starts_with("MTP layer")).unwrap();
    assert!(
        row.contains("mtp-demo-Q4_K_M.gguf is next to the model"),
        "{doctor}"
    );
    let needed = |model: &Path, options: LoadOptions| {
        let source = ModelSource::find(model).unwrap();
        let network = options.open_network(&source).unwrap();
        options.needed_bytes(&source, &network).unwrap()
    };
    let off = || LoadOptions::default().speculation(Speculation::Off);
    let (with, off_beside) = (needed(&model, LoadOptions::default()), needed(&model, off()));
    assert_eq!(with, needed(&inside_path, LoadOptions::default()));
    let named = LoadOptions::default().mtp(&file);
    assert_eq!(with, needed(Path::new("demo"), named));
    fs::remove_file(&file).unwrap();
    assert!(with > needed(&model, LoadOptions::default()) + 4_000_000);
    assert_eq!(off_beside, needed(&model, off()));
}

#[test]
fn a_file_of_another_model_is_refused_or_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("demo-Q8_0.gguf");
    fs::copy(DEMO, &model).unwrap();
    let file = folder.path().join("mtp-demo-Q8_0.gguf");
    let plain = run("demo", &["--temp", "0", "--spec", "off"])["ids"].clone();
    let check = |expected: &str| {
        let named = ["run", "--raw", "demo", PROMPT, "-n", "1", "--mtp", arg(&file)];
        let line = tokenmill(named).failed(3);
        assert!(
            line.contains("mtp-demo-Q8_0.gguf: ") && line.contains(expected),
            "{line}"
        );
        // Next to the model it is as if it were not there.
        let line = tokenmill(["run", "--raw", arg(&model), PROMPT, "-n", "1", "--spec", "mtp"]).failed(2);
        assert!(line.contains("no file next to it has one that fits"), "{line}");
        assert_eq!(run(arg(&model), &["--temp", "0"])["ids"], plain);
    };
    write_layer_alone(
        &file,
        &[
            ("general.architecture", "qwen3".into()),
            ("qwen3.block_count", (COPIED as u32 + 2).into()),
            ("qwen3.nextn_predict_layers", 1_u32.into()),
        ],
    );
    check("its architecture is qwen3, and the model's llama (hint: take the file");
    write_layer_alone(&file, &[("llama.embedding_length", 128_u32.into())]);
    check("its width is 128, and the model's 256");
    let own = format!("blk.{}.", COPIED + 3);
    write(&file, COPIED + 3, &[], |name| name.starts_with(&own));
    check("its layer count is 6, and the model's 4");
    let demo = GgufFile::open(DEMO).unwrap();
    let tokens = demo.metadata().string_array("tokenizer.ggml.tokens").unwrap();
    // No other token is made of the one that ends a text.
    let end = demo.metadata().usize("tokenizer.ggml.eos_token_id").unwrap();
    let mut others = StringArray::new();
    for (id, token) in tokens.iter().enumerate() {
        others.push(if id == end { "<another>" } else { token });
    }
    write_layer_alone(&file, &[("tokenizer.ggml.tokens", others.into())]);
    check(&format!(
        "its vocabulary is not the model's: its token {end} is `<another>`, and the model's "
    ));
    write_with_layer(&file, |name| {
        name == "token_embd.weight" || name.starts_with("blk.0.")
    });
    check("no MTP layer (hint: ");
    write_layer_alone(&file, &[]);
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() - 100]).unwrap();
    check("");
    fs::write(&file, &whole[..1000]).unwrap();
    check("");
    // One that is called otherwise is not looked at.
    fs::write(folder.path().join("guess.gguf"), &whole).unwrap();
    let rest = folder.path().join("rest");
    fs::create_dir(&rest).unwrap();
    fs::rename(&file, rest.join("mtp-demo-Q8_0.gguf")).unwrap();
    tokenmill(["run", "--raw", arg(&model), PROMPT, "-n", "1", "--spec", "mtp"]).failed(2);
}

#[test]
fn a_file_that_would_not_guess_is_refused() {
    for (args, expected) in [
        (&["--spec", "off"][..], "`--mtp` does nothing with `--spec off`"),
        (&["--spec", "ngram"], "`--mtp` does nothing with `--spec ngram`"),
        (&["--draft", "demo"], "`--mtp` cannot be used with `--draft`"),
        (&["-tp", "2"], "--device cpu"),
    ] {
        let base = ["run", "--raw", "demo", PROMPT, "-n", "1", "--mtp", "mtp-x.gguf"];
        let outcome = tokenmill([&base, args].concat());
        assert_eq!(outcome.code, 2, "{args:?}");
        assert!(outcome.stderr.contains(expected), "{}", outcome.stderr);
    }
    let missing = tokenmill(["run", "--raw", "demo", PROMPT, "--mtp", "mtp-nothing.gguf"]).failed(3);
    assert!(missing.contains("mtp-nothing.gguf"), "{missing}");
}

#[test]
fn the_layer_and_its_memory_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = with_layer(folder.path(), "nothing is left out");
    let text = tokenmill(["inspect", arg(&file), "--summary"]).ok();
    let line = text.lines().find(|line| line.contains("MTP layer")).unwrap();
    assert!(line.contains("MiB more") && line.contains("--spec mtp"), "{text}");
    let json = |args: &[&str]| -> Json { serde_json::from_str(&tokenmill(args).ok()).unwrap() };
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
        text.contains("MTP layer       cannot be used: ") && text.contains("nextn.enorm"),
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
            let json: Json =
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
        let line = tokenmill(
            [
                &["run", "--raw", model, PROMPT, "-n", "1", "--spec", "mtp"],
                extra,
            ]
            .concat(),
        )
        .failed(code);
        assert!(line.contains(expected), "{line}");
    };
    refused("demo", &[], 2, "no MTP layer");
    refused("demo", &["--draft", "demo"], 2, "does nothing");
    refused("demo", &["-tp", "2"], 2, "--device cpu");
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
