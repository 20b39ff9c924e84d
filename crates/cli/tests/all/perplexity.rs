//! Perplexities compare with llama.cpp's, within 0.1 %.

use std::{fs, path::Path};

use serde_json::Value;
use tokenmill_testkit::Comparisons;

use crate::support::{DEMO_GGUF, arg, tokenmill};

/// Largest relative difference. Both programs round activations to 8 bits, and keys and values to 16, in their own order.
const TOLERANCE: f64 = 1e-3;

fn perplexity(model: &Path, text: &Path, extra: &[&str]) -> f64 {
    let args = [&["perplexity", arg(model), arg(text), "--json"], extra].concat();
    let json: Value = serde_json::from_str(&tokenmill(args).ok()).unwrap();
    json["perplexity"].as_f64().unwrap()
}

#[test]
fn trained_models_are_as_surprised_as_in_llama_cpp() {
    let mut comparisons = Comparisons::of("perplexity");
    let Some(models) = comparisons.find("models") else {
        return;
    };
    let reference = fs::read_to_string(models.join("ppl-llamacpp.txt")).unwrap();
    let expected = |name: &str| -> f64 {
        let line = reference
            .lines()
            .find(|line| line.starts_with(&format!("{name} ")));
        let figure = line.and_then(|line| line.split("PPL = ").nth(1)?.split(' ').next());
        figure
            .unwrap_or_else(|| panic!("no figure for {name}"))
            .parse()
            .unwrap()
    };
    let text = models.join("../text/heldout.txt");
    let mut differences = Vec::new();
    for (folder, types) in [
        (
            "wp4m",
            &[
                "f16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0", "Q3_K_M", "Q2_K",
            ][..],
        ),
        ("stories260K", &["f16", "Q8_0", "Q4_0"]),
    ] {
        for ty in types {
            let name = format!("{folder}-{ty}");
            let model = models.join(folder).join(format!("{name}.gguf"));
            let mut options = vec!["-c", "256", "--chunks", "64"];
            // This model is 64 wide, and its answers hang on the rounding of activations to 8 bits: with the same
            // weights in f32 it has llama.cpp's figure to 0.01 %, rounded it wanders by 0.1 % with the KV type.
            if name == "stories260K-Q8_0" {
                options.extend(["-ctk", "f32", "-ctv", "f32"]);
            }
            let (found, expected) = (perplexity(&model, &text, &options), expected(&name));
            eprintln!("{name}: {found:.4}, llama.cpp {expected:.4}");
            if (found / expected - 1.0).abs() > TOLERANCE {
                differences.push((name, found, expected));
            }
            comparisons.compared(1);
        }
    }
    assert!(differences.is_empty(), "{differences:?}");
}

#[test]
fn demo_model_is_as_surprised_as_in_llama_cpp() {
    let mut comparisons = Comparisons::of("perplexity of the demo model");
    let Some(text) = comparisons.find("../demo-model/heldout.txt") else {
        return;
    };
    let reference: Value = serde_json::from_str(include_str!("../data/demo-reference.json")).unwrap();
    let expected = reference["perplexity"]["Q8_0"]["ppl"].as_f64().unwrap();
    let found = perplexity(Path::new("demo"), &text, &[]);
    assert!((found / expected - 1.0).abs() < TOLERANCE, "{found} {expected}");
    comparisons.compared(1);
}

#[test]
fn logits_are_not_written_over_what_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let [model, text] = ["model.gguf", "text.txt"].map(|name| folder.path().join(name));
    fs::write(&model, DEMO_GGUF).unwrap();
    fs::write(&text, "Once upon a time there was a bear. ".repeat(20)).unwrap();
    let before = fs::read(&text).unwrap();
    for output in [&model, &text] {
        let args = [
            "perplexity",
            arg(&model),
            arg(&text),
            "-c",
            "32",
            "--save-logits",
            arg(output),
        ];
        let line = tokenmill(args).failed(2);
        assert!(line.contains("is the input"), "{line}");
    }
    assert!(fs::read(&model).unwrap() == DEMO_GGUF && fs::read(&text).unwrap() == before);
    // A file of another name is there when it is whole; a text that is too short leaves none.
    let logits = folder.path().join("logits");
    let args = [
        "perplexity",
        arg(&model),
        arg(&text),
        "--save-logits",
        arg(&logits),
        "-c",
    ];
    tokenmill([&args[..], &["4096"]].concat()).failed(3);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    tokenmill([&args[..], &["32", "--chunks", "2"]].concat()).ok();
    assert!(fs::read(&logits).unwrap().starts_with(b"_logits_"));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}

#[test]
fn a_text_too_short_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("short.txt");
    fs::write(&text, "Once upon a time").unwrap();
    let line = tokenmill(["perplexity", "demo", arg(&text)]).failed(3);
    insta::assert_snapshot!(line, @"error: the text has 5 tokens, but two chunks of 512 are needed (hint: give a longer text, or shorter chunks with -c)");
}

#[test]
fn a_text_that_is_missing_is_named_with_what_can_stand_for_it() {
    let line = tokenmill(["perplexity", "demo"]).failed(2);
    let usage = "`tokenmill perplexity MODEL FILE`, or `--kl-base FILE` in place of the text";
    assert!(
        line.starts_with("error: FILE is missing") && line.contains(usage),
        "{line}"
    );
    let help = tokenmill(["perplexity", "--help"]).ok();
    assert!(
        help.contains("<MODEL> <FILE>") && help.contains("<MODEL> --kl-base <FILE>"),
        "{help}"
    );
}
