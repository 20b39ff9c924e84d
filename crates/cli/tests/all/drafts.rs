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
        "run", "--raw", "demo", PROMPT, "-n", "60", "--seed", "3", "--json", "-c", "256",
    ];
    serde_json::from_str(&tokenmill([&base, extra].concat()).ok()).unwrap()
}

#[test]
fn a_draft_model_guesses_what_the_model_says() {
    let sampled = ["--temp", "0.7"];
    let plain = run(&[&sampled[..], &["--spec", "off"]].concat());
    for spec in [&["--spec", "draft", "--spec-max", "4"][..], &["--spec", "auto"]] {
        let drafted = run(&[&sampled[..], spec, &["--draft", "demo"]].concat());
        assert_eq!(drafted["ids"], plain["ids"], "{spec:?}");
        let count = |name: &str| drafted["timings"][name].as_u64().unwrap();
        if spec[1] == "draft" {
            // The model knows what it will say itself.
            assert!(count("draft_n") >= 40, "{drafted}");
            assert_eq!(count("draft_n"), count("draft_n_accepted"));
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
        let line = tokenmill(["run", "--raw", "demo", PROMPT, "-n", "1", "--draft", draft]).failed(3);
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
    // llama.cpp's option of this name takes a number of tokens.
    let line = tokenmill(["run", "--raw", "demo", PROMPT, "--draft", "8"]).failed(2);
    assert!(line.contains("--spec-max 8"), "{line}");
    for (spec, expected) in [("ngram", "does nothing"), ("off", "does nothing")] {
        let line = tokenmill(["run", "--raw", "demo", PROMPT, "--spec", spec, "--draft", "demo"]).failed(2);
        assert!(line.contains(expected), "{line}");
    }
    let line = tokenmill(["run", "--raw", "demo", PROMPT, "--spec", "draft"]).failed(2);
    assert!(line.contains("--draft MODEL"), "{line}");
    let line = tokenmill(["inspect", "demo", "--draft", "demo"]).failed(2);
    assert!(line.contains("`batch` and `bench` take it"), "{line}");
}

/// Writes a text of lines for `bench --follow`.
fn text_of(folder: &Path, lines: impl Iterator<Item = String>) -> std::path::PathBuf {
    let path = folder.join("text.txt");
    fs::write(&path, lines.collect::<Vec<_>>().join("\n")).unwrap();
    path
}

#[test]
fn bench_follows_a_text_and_says_which_guesses_came_out() {
    let folder = tempfile::tempdir().unwrap();
    let text = text_of(
        folder.path(),
        (0..40).map(|_| "The bear sat down and ate the cake with his friend.".to_owned()),
    );
    let run = |extra: &[&str]| {
        let base = [
            "bench",
            "demo",
            "--follow",
            arg(&text),
            "-p",
            "100",
            "-n",
            "60",
            "-r",
            "2",
        ];
        tokenmill([&base, extra].concat())
    };
    let json: Value = serde_json::from_str(
        &run(&[
            "--batch",
            "1,3",
            "--spec",
            "off,ngram,auto,draft",
            "--draft",
            "demo",
            "-o",
            "json",
        ])
        .ok(),
    )
    .unwrap();
    let rows = json.as_array().unwrap();
    assert_eq!(rows.len(), 8);
    for (row, (spec, n_seqs)) in rows.iter().zip(
        ["off", "ngram", "auto", "draft"]
            .into_iter()
            .flat_map(|spec| [1, 3].map(|n_seqs| (spec, n_seqs))),
    ) {
        assert_eq!((&row["spec"], &row["n_seqs"]), (&spec.into(), &n_seqs.into()));
        assert_eq!(row["test"], format!("tg60x{n_seqs} @ p100"));
        assert!(row["avg_ts"].as_f64().unwrap() > 0.0 && row["over_off"].as_f64().unwrap() > 0.0);
        assert_eq!(row["samples_ts"].as_array().unwrap().len(), 2);
        let [n_drafted, n_accepted] = ["n_drafted", "n_accepted"].map(|name| row[name].as_u64().unwrap());
        match spec {
            "off" => assert_eq!(n_drafted, 0),
            // All but a few tokens of each answer were guessed: the text is one line again and again.
            "ngram" => {
                assert!(n_accepted >= 2 * n_seqs * 45, "{row}");
                assert!(n_accepted <= 2 * n_seqs * 59, "{row}");
            }
            _ => assert!(n_accepted <= n_drafted, "{row}"),
        }
    }
    let table = run(&["--spec", "off,ngram"]).ok();
    let cells: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    assert_eq!(
        cells[0][6..11],
        ["test", "drafts", "t/s", "over off", "accepted of drafted"]
    );
    assert_eq!(
        (cells[2][7], cells[2][9], cells[2][10]),
        ("off", "1.00x", "0 of 0")
    );
    assert_eq!(run(&["-o", "csv"]).ok().lines().count(), 3);
}

#[test]
fn a_text_that_cannot_be_followed_is_refused_in_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let text = text_of(folder.path(), (0..3).map(|n| format!("line {n}")));
    let refused = |extra: &[&str], code| {
        let base = ["bench", "demo", "--follow", arg(&text)];
        tokenmill([&base, extra].concat()).failed(code)
    };
    let line = refused(&["-p", "100", "-n", "60", "--batch", "1,8"], 3);
    assert!(line.contains("need 167"), "{line}");
    let line = refused(&["-p", "1,2"], 2);
    assert!(line.contains("one length of prompts"), "{line}");
    let line = refused(&["-p", "4", "-n", "1"], 2);
    assert!(line.contains("2 tokens or more"), "{line}");
    let line = refused(&["-p", "4", "-n", "2", "--spec", "draft"], 2);
    assert!(line.contains("--draft MODEL"), "{line}");
    let line = tokenmill(["bench", "demo", "--spec", "ngram"]).failed(2);
    assert!(line.contains("--follow"), "{line}");
    let line = tokenmill(["bench", "demo", "--batch", "2", "-p", "4"]).failed(2);
    assert!(line.contains("`-p` does nothing with `--batch`"), "{line}");
}
