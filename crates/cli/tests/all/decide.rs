//! `decide` on the built-in model.

use std::fs;

use serde_json::{Value, json};

use crate::support::{arg, tokenmill, tokenmill_with};

const STATE: &str = "The cat sat on the mat, and the dog was sad.\n";

#[test]
fn decide_prints_bars_and_json() {
    let folder = tempfile::tempdir().unwrap();
    let [state, questions, bad] =
        ["state.txt", "questions.json", "bad.json"].map(|name| folder.path().join(name));
    fs::write(&state, STATE).unwrap();
    let asked = json!({
        "sad": { "type": "noul", "instructions": "Was the dog sad?" },
        "who": { "type": "choice", "instructions": "Who sat?", "criteria": { "cat": "an animal", "dog": null } },
        "mood": { "type": "score", "instructions": "How happy is the dog?", "criteria": ["sad", "calm", "happy"] },
    });
    fs::write(&questions, asked.to_string()).unwrap();
    let ask = |state: &str, more: &[&str]| {
        let args = ["decide", "demo", "--state", state, "--questions", arg(&questions)];
        tokenmill_with(&[&args[..], more].concat(), STATE).ok()
    };
    let text = ask(arg(&state), &[]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3 + 7 + 2, "{text}");
    for (line, begin) in [
        (0, "sad: yes with 0."),
        (1, "  yes  0."),
        (4, "who: "),
        (5, "  cat  0."),
        (8, "mood: "),
        (11, "  2 happy  0."),
    ] {
        assert!(lines[line].starts_with(begin), "{text}");
    }
    assert!(text.contains('█') && text.contains("label mass"), "{text}");
    let whole = ask("-", &["--json"]);
    let json: Value = serde_json::from_str(&whole).unwrap();
    let noul = json["answers"]["sad"]["noul"].as_f64().unwrap();
    assert!(
        lines[0].contains(&format!("yes with {noul:.3}")),
        "{noul} in {text}"
    );
    let sum: f64 = ["0", "1", "2"]
        .iter()
        .map(|level| json["answers"]["mood"]["probabilities"][level].as_f64().unwrap())
        .sum();
    assert!((sum - 1.0).abs() < 1e-12, "{sum}");
    assert!(json["usage"]["input_tokens"].as_u64() > Some(60), "{json}");
    // Whether questions of a short text find each other's pages depends on when they begin, so the tokens are not compared.
    let answers = |text: &str| serde_json::from_str::<Value>(text).unwrap()["answers"].clone();
    let one_thread = ask(arg(&state), &["--json", "-t", "1"]);
    assert_eq!(answers(&whole), answers(&one_thread), "threads change nothing");
    let both = ask(arg(&state), &["--json", "--permutations", "2"]);
    assert_ne!(answers(&whole), answers(&both));

    fs::write(&bad, r#"{"sad": {"type": "box"}}"#).unwrap();
    let refused = tokenmill(["decide", "demo", "--state", arg(&state), "--questions", arg(&bad)]).failed(3);
    assert!(
        refused.contains("`questions.sad.type`: expected `noul`"),
        "{refused}"
    );
    let reasoning = ["--questions", arg(&questions), "--reasoning", "on"];
    let args = [&["decide", "demo", "--state", arg(&state)][..], &reasoning[..]].concat();
    let refused = tokenmill(args).failed(2);
    assert!(refused.contains("without reasoning"), "{refused}");
    let none = ["--questions", arg(&questions), "--permutations", "0"];
    // The model is not looked for.
    let args = [&["decide", "nowhere.gguf", "--state", arg(&state)][..], &none[..]].concat();
    let refused = tokenmill(args).failed(3);
    assert!(refused.contains("0 orders"), "{refused}");
    fs::write(&bad, r#"{"who.sat": {"type": "choice", "criteria": {}}}"#).unwrap();
    let args = [
        "decide",
        "nowhere.gguf",
        "--state",
        arg(&state),
        "--questions",
        arg(&bad),
    ];
    let refused = tokenmill(args).failed(3);
    assert!(refused.contains("question `who.sat`: 0 options"), "{refused}");
}

/// The tiny OpenJev is random, so which answers are right does not matter; the fit only has to be better than none.
#[test]
fn calibrate_writes_temperatures_that_the_next_call_finds() {
    let folder = tempfile::tempdir().unwrap();
    let [model, state, questions, known] =
        ["model.gguf", "state.txt", "questions.json", "known.jsonl"].map(|name| folder.path().join(name));
    let fixture = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/data/decisions/openjev.gguf"
    );
    fs::copy(fixture, &model).unwrap();
    fs::write(&state, STATE).unwrap();
    let asked = json!({ "sad": { "type": "noul", "instructions": "Was the dog sad?" } });
    fs::write(&questions, asked.to_string()).unwrap();
    let lines = (0..24).map(|idx| {
        let line = json!({
            "state": format!("{idx}: {STATE}"),
            "questions": {
                "sad": { "type": "noul", "instructions": format!("Was dog {idx} sad?") },
                "who": { "type": "choice", "instructions": "Who sat?", "criteria": { "cat": null, "dog": null, "cow": null } },
            },
            "answers": { "sad": idx % 3 == 0, "who": (["cat", "dog", "cow"])[idx % 3] },
        });
        format!("{line}\n")
    });
    fs::write(&known, lines.collect::<String>()).unwrap();
    let ask = || {
        let args = ["--state", arg(&state), "--questions", arg(&questions), "--json"];
        let text = tokenmill([&["decide", arg(&model)][..], &args[..]].concat()).ok();
        serde_json::from_str::<Value>(&text).unwrap()["answers"]["sad"]["noul"]
            .as_f64()
            .unwrap()
    };
    let before = ask();
    let text = tokenmill(["decide", arg(&model), "--calibrate", arg(&known)]).ok();
    let rows: Vec<&str> = text.lines().collect();
    assert!(
        rows[0].starts_with("noul    24 answers, temperature ") && rows[1].starts_with("choice  24 answers"),
        "{text}"
    );
    assert!(rows[2].starts_with("written to ") && rows.len() == 3, "{text}");
    let file: Value =
        serde_json::from_str(&fs::read_to_string(folder.path().join("model.gguf.decisions.json")).unwrap())
            .unwrap();
    let temperature = file["noul"].as_f64().unwrap();
    assert_eq!(file["score"], 1.0);
    let logit = |p: f64| (p / (1.0 - p)).ln();
    let after = ask();
    assert!(
        (logit(after) * temperature - logit(before)).abs() < 1e-6,
        "{before}, then {after} at {temperature}"
    );
    // A fit begins with what the model itself says.
    let again = tokenmill(["decide", arg(&model), "--calibrate", arg(&known)]).ok();
    assert_eq!(again, text);

    let demo = tokenmill(["decide", "demo", "--calibrate", arg(&known)]).failed(2);
    assert!(demo.contains("built-in model"), "{demo}");
    fs::write(&known, "{\"state\": \"a\", \"questions\": {}}\n").unwrap();
    let refused = tokenmill(["decide", arg(&model), "--calibrate", arg(&known)]).failed(3);
    assert!(
        refused.contains("known.jsonl:1: `answers` is not an object"),
        "{refused}"
    );
}
