//! Models that make vectors: compared, measured and quantized as those that continue texts are.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;
use tokenmill_testkit::Comparisons;

use crate::support::{arg, tokenmill};

/// Ten lines, of which one is blank and one longer than the fixtures' contexts.
fn text(folder: &Path) -> PathBuf {
    let path = folder.join("text.txt");
    let lines = (0..8).map(|n| format!("Line {n} tells of {n} bears and a river.\n"));
    let long = "and so on ".repeat(200);
    fs::write(&path, format!("{}\n{long}\n", lines.collect::<String>())).unwrap();
    path
}

fn compare(base: &Path, other: &Path, text: &Path) -> Value {
    let args = ["compare", arg(base), arg(other), arg(text), "--json"];
    serde_json::from_str(&tokenmill(args).ok()).unwrap()
}

#[test]
fn files_of_an_encoder_are_compared_by_their_vectors() {
    let mut comparisons = Comparisons::of("vectors of encoders");
    let folder = tempfile::tempdir().unwrap();
    let text = text(folder.path());
    for name in ["bert", "nomic_bert", "qwen3_embed"] {
        let [base, small] = ["F32", "Q4_K_M"].map(|ty| format!("parity2/{name}/model-{ty}.gguf"));
        let (Some(base), Some(small)) = (comparisons.find(&base), comparisons.find(&small)) else {
            return;
        };
        let same = compare(&base, &base, &text);
        assert_eq!(same["n_texts"], 9, "{same}");
        assert_eq!(same["largest_difference"]["value"], 0.0, "{same}");
        let differs = compare(&base, &small, &text);
        let cosine = |figure: &str| differs["cosine"][figure].as_f64().unwrap();
        let (mean, least) = (cosine("mean"), cosine("least"));
        assert!(0.9 < mean && mean < 1.0 && least <= mean, "{name}: {differs}");
        assert!(
            differs["largest_difference"]["value"].as_f64().unwrap() > 0.0,
            "{differs}"
        );
        comparisons.compared(1);
    }
    let (Some(bert), Some(ranks)) = (
        comparisons.find("parity2/bert/model-F32.gguf"),
        comparisons.find("parity2/bert_rerank/model-F32.gguf"),
    ) else {
        return;
    };
    let shown = tokenmill(["compare", arg(&bert), arg(&bert), arg(&text), "--chunks", "2"]).ok();
    assert!(
        shown.contains("cosine of the vectors of 2 texts mean 1.000000") && shown.lines().count() == 4,
        "{shown}"
    );
    for (args, code, said) in [
        (
            vec!["compare", "demo", arg(&bert), arg(&text)],
            3,
            "one of the two makes vectors",
        ),
        (
            vec!["compare", arg(&ranks), arg(&ranks), arg(&text)],
            3,
            "ranks documents",
        ),
        (
            vec!["compare", arg(&bert), arg(&bert), arg(&text), "--svg", "-"],
            2,
            "`--svg` draws divergences",
        ),
        (
            vec!["perplexity", arg(&bert), arg(&text)],
            3,
            "is an encoder and predicts no tokens",
        ),
    ] {
        let line = tokenmill(args).failed(code);
        assert!(line.contains(said), "{line}");
    }
}

#[test]
fn the_importance_of_an_encoders_weights_is_measured() {
    let mut comparisons = Comparisons::of("importance for encoders");
    let folder = tempfile::tempdir().unwrap();
    let text = text(folder.path());
    for name in ["bert", "nomic_bert", "modernbert"] {
        let Some(model) = comparisons.find(&format!("parity2/{name}/model-F32.gguf")) else {
            return;
        };
        let [matrix, with, without] = ["imatrix", "with", "without"].map(|end| folder.path().join(end));
        let said = tokenmill(["imatrix", arg(&model), arg(&text), arg(&matrix), "-c", "64"]).ok();
        assert!(said.contains("of 64 tokens"), "{said}");
        let quantize = |out: &Path, more: &[&str]| {
            tokenmill([&["quantize", arg(&model), arg(out), "q4_k_m"], more].concat()).ok();
            fs::read(out).unwrap()
        };
        let weighed = quantize(&with, &["--imatrix", arg(&matrix)]);
        assert_ne!(weighed, quantize(&without, &[]), "{name}");
        let differs = compare(&model, &with, &text);
        assert!(differs["cosine"]["mean"].as_f64().unwrap() > 0.95, "{differs}");
        comparisons.compared(1);
    }
}
