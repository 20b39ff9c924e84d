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

/// A model of a set of fixtures: the larger set has more of them, and each in several types.
fn model(name: &str, ty: &str) -> String {
    format!("{name}/model-{ty}.gguf")
}

#[test]
fn files_of_an_encoder_are_compared_by_their_vectors() {
    let mut comparisons = Comparisons::of("vectors of encoders");
    let folder = tempfile::tempdir().unwrap();
    let text = text(folder.path());
    for name in [
        "encoders/nomic_bert",
        "parity2/bert",
        "parity2/nomic_bert",
        "parity2/qwen3_embed",
    ] {
        let Some(small) = comparisons.find(&model(name, "Q4_K_M")) else {
            continue;
        };
        let same = compare(&small, &small, &text);
        assert_eq!(same["n_texts"], 9, "{same}");
        assert_eq!(same["largest_difference"]["value"], 0.0, "{same}");
        comparisons.compared(1);
        let Some(base) = comparisons.find(&model(name, "F32")) else {
            continue;
        };
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
    let (Some(encoder), Some(ranks)) = (
        comparisons.find(&model("encoders/nomic_bert", "Q4_K_M")),
        comparisons.find(&model("encoders/xlmr_rerank", "Q4_K_M")),
    ) else {
        return;
    };
    let two = [
        "compare",
        arg(&encoder),
        arg(&encoder),
        arg(&text),
        "--chunks",
        "2",
    ];
    let shown = tokenmill(two).ok();
    assert!(
        shown.contains("cosine of the vectors of 2 texts: mean 1.000000") && shown.lines().count() == 4,
        "{shown}"
    );
    for (args, code, said) in [
        (
            vec!["compare", "demo", arg(&encoder), arg(&text)],
            3,
            "one of the two makes vectors",
        ),
        (
            vec!["compare", arg(&ranks), arg(&ranks), arg(&text)],
            3,
            "ranks documents",
        ),
        (
            vec!["compare", arg(&encoder), arg(&encoder), arg(&text), "--svg", "-"],
            2,
            "`--svg` draws divergences",
        ),
        (
            vec!["perplexity", arg(&encoder), arg(&text)],
            3,
            "is an encoder: it predicts no tokens",
        ),
    ] {
        let line = tokenmill(args).failed(code);
        assert!(line.contains(said), "{line}");
        comparisons.compared(1);
    }
}

#[test]
fn the_importance_of_an_encoders_weights_is_measured() {
    let mut comparisons = Comparisons::of("importance for encoders");
    let folder = tempfile::tempdir().unwrap();
    let text = text(folder.path());
    for (name, ty) in [
        ("encoders/nomic_bert", "Q4_K_M"),
        ("parity2/bert", "F32"),
        ("parity2/nomic_bert", "F32"),
        ("parity2/modernbert", "F32"),
    ] {
        let Some(model) = comparisons.find(&model(name, ty)) else {
            continue;
        };
        let [matrix, with, without] = ["imatrix", "with", "without"].map(|end| folder.path().join(end));
        let said = tokenmill([
            "imatrix",
            arg(&model),
            arg(&text),
            arg(&matrix),
            "-c",
            "64",
            "--overwrite",
        ])
        .ok();
        assert!(said.contains("of 64 tokens"), "{said}");
        comparisons.compared(1);
        // An already quantized model is not quantized again.
        if ty != "F32" {
            continue;
        }
        let quantize = |out: &Path, more: &[&str]| {
            tokenmill(
                [
                    &["quantize", arg(&model), arg(out), "q4_k_m", "--overwrite"],
                    more,
                ]
                .concat(),
            )
            .ok();
            fs::read(out).unwrap()
        };
        let weighed = quantize(&with, &["--imatrix", arg(&matrix)]);
        assert_ne!(weighed, quantize(&without, &[]), "{name}");
        let differs = compare(&model, &with, &text);
        assert!(differs["cosine"]["mean"].as_f64().unwrap() > 0.95, "{differs}");
        comparisons.compared(1);
    }
}
