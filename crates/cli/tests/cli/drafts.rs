//! `--draft MODEL`: a second model guesses, the answer stays as it is, and one that cannot guess is refused in a line.

use std::{fs, path::Path};

use serde_json::Value;

use crate::support::{arg, tokenmill};

const PROMPT: &str = "Once upon a time";

const DEMO: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../tokenmill/assets/tokenmill-demo-Q8_0.gguf"
);

fn run(extra: &[&str]) -> Value {
    let base = [
        "run", "demo", PROMPT, "-n", "60", "--seed", "3", "--json", "-c", "256",
    ];
    serde_json::from_str(&tokenmill([&base, extra].concat()).ok()).unwrap()
}

#[test]
fn a_draft_model_guesses_what_the_model_says() {
    for sampling in [&["--temp", "0"][..], &["--temp", "0.7"]] {
        let plain = run(&[sampling, &["--spec", "off"]].concat());
        for spec in [&["--spec", "draft", "--spec-max", "4"][..], &["--spec", "auto"]] {
            let drafted = run(&[sampling, spec, &["--draft", "demo"]].concat());
            assert_eq!(drafted["ids"], plain["ids"], "{spec:?}");
            let count = |name: &str| drafted["timings"][name].as_u64().unwrap();
            if spec[1] == "draft" {
                // The model knows what it will say itself.
                assert!(count("draft_n") >= 40, "{drafted}");
                assert_eq!(count("draft_n"), count("draft_n_accepted"));
            }
        }
    }
    // The names that llama.cpp has for it.
    for name in ["-md", "--model-draft"] {
        let drafted = run(&["--temp", "0", "--spec", "draft", name, DEMO]);
        assert!(drafted["timings"]["draft_n_accepted"].as_u64().unwrap() >= 30);
    }
}

/// The built-in model as a file in which one token has another text.
fn with_another_token(folder: &Path) -> std::path::PathBuf {
    let mut bytes = fs::read(DEMO).unwrap();
    let find = |bytes: &[u8], what: &[u8], from: usize| {
        from + bytes[from..]
            .windows(what.len())
            .position(|at| at == what)
            .unwrap()
    };
    let tokens = find(&bytes, b"tokenizer.ggml.tokens", 0);
    let token = find(&bytes, b"<|user|>", tokens);
    bytes[token..token + 8].copy_from_slice(b"<|uses|>");
    let path = folder.join("other.gguf");
    fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn a_draft_model_that_cannot_guess_is_refused_in_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let other = with_another_token(folder.path());
    let encoder = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/data/encoders/nomic_bert/model-Q4_K_M.gguf"
    );
    let refused = |draft: &str| {
        let line = tokenmill(["run", "demo", PROMPT, "-n", "1", "--draft", draft]).failed(3);
        assert!(line.contains("draft model"), "{line}");
        line
    };
    let line = refused(arg(&other));
    assert!(
        line.contains("its token 2 is `<|uses|>`, and the model's `<|user|>`"),
        "{line}"
    );
    let line = refused(encoder);
    assert!(line.contains("it is an encoder"), "{line}");
    let line = refused("no-such-draft.gguf");
    assert!(line.contains("no-such-draft.gguf"), "{line}");
    // What llama.cpp's option of this name takes.
    let line = tokenmill(["run", "demo", PROMPT, "--draft", "8"]).failed(2);
    assert!(line.contains("--spec-max 8"), "{line}");
    for (spec, expected) in [("ngram", "does nothing"), ("off", "does nothing")] {
        let line = tokenmill(["run", "demo", PROMPT, "--spec", spec, "--draft", "demo"]).failed(2);
        assert!(line.contains(expected), "{line}");
    }
    let line = tokenmill(["run", "demo", PROMPT, "--spec", "draft"]).failed(2);
    assert!(line.contains("--draft MODEL"), "{line}");
    let line = tokenmill(["inspect", "demo", "--draft", "demo"]).failed(2);
    assert!(line.contains("`serve` and `batch` take it"), "{line}");
}

#[test]
fn a_draft_model_works_next_to_the_cpu_only() {
    let line = tokenmill(["run", "demo", PROMPT, "--device", "cuda", "--draft", "demo"]).failed(2);
    assert!(line.contains("--device cpu"), "{line}");
}
