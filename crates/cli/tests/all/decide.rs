//! `decide` on the built-in model.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};

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

/// The tiny OpenJev, alone in a folder.
fn openjev(folder: &Path) -> PathBuf {
    let model = folder.join("model.gguf");
    let fixture = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/data/decisions/openjev.gguf"
    );
    fs::copy(fixture, &model).unwrap();
    model
}

/// A model of random weights is right as often as the test says: three of four answers are those that the model gives, so that the best
/// temperature is between the bounds.
#[test]
fn calibrate_writes_temperatures_that_the_next_call_finds() {
    let folder = tempfile::tempdir().unwrap();
    let [state, questions, many, known] =
        ["state.txt", "questions.json", "many.json", "known.jsonl"].map(|name| folder.path().join(name));
    let model = openjev(folder.path());
    fs::write(&state, STATE).unwrap();
    let sad = |idx: usize| json!({ "type": "noul", "instructions": format!("Was dog {idx} sad?") });
    let who = |idx: usize| {
        json!({ "type": "choice", "instructions": format!("Who sat on mat {idx}?"),
            "criteria": { "cat": null, "dog": null, "cow": null } })
    };
    fs::write(&questions, json!({ "sad": sad(0) }).to_string()).unwrap();
    let all: Map<String, Value> = (0..24)
        .flat_map(|idx| [(format!("sad{idx}"), sad(idx)), (format!("who{idx}"), who(idx))])
        .collect();
    fs::write(&many, Value::from(all).to_string()).unwrap();
    let answers = |questions: &Path| {
        let args = ["--state", arg(&state), "--questions", arg(questions), "--json"];
        let text = tokenmill([&["decide", arg(&model)][..], &args[..]].concat()).ok();
        serde_json::from_str::<Value>(&text).unwrap()["answers"].clone()
    };
    let said = answers(&many);
    let lines = (0..24).map(|idx| {
        let is_right = idx % 4 != 3;
        let says_yes = said[format!("sad{idx}")]["noul"].as_f64().unwrap() >= 0.5;
        let choice = said[format!("who{idx}")]["choice"].as_str().unwrap();
        let other = ["cat", "dog", "cow"].into_iter().find(|&name| name != choice);
        let line = json!({
            "state": STATE.trim_end(),
            "questions": { "sad": sad(idx), "who": who(idx) },
            "answers": { "sad": says_yes == is_right, "who": if is_right { Some(choice) } else { other } },
        });
        format!("{line}\n")
    });
    fs::write(&known, lines.collect::<String>()).unwrap();
    let ask = || answers(&questions)["sad"]["noul"].as_f64().unwrap();
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
    // Parameters and lines are checked before the model is looked for.
    let none = ["--permutations", "0"];
    let args = [
        &["decide", "nowhere.gguf", "--calibrate", arg(&known)][..],
        &none[..],
    ]
    .concat();
    let refused = tokenmill(args).failed(3);
    assert!(
        refused.contains("known.jsonl:1: ") && refused.contains("0 orders"),
        "{refused}"
    );
    let line =
        json!({ "state": "a", "questions": { "q": { "type": "choice", "criteria": {} } }, "answers": {} });
    fs::write(&known, format!("\n{line}\n")).unwrap();
    let refused = tokenmill(["decide", "nowhere.gguf", "--calibrate", arg(&known)]).failed(3);
    assert!(
        refused.contains("known.jsonl:2: `answers.q` is missing"),
        "{refused}"
    );
    fs::write(&known, "{\"state\": \"a\", \"questions\": {}}\n").unwrap();
    let refused = tokenmill(["decide", arg(&model), "--calibrate", arg(&known)]).failed(3);
    assert!(
        refused.contains("known.jsonl:1: `answers` is not an object"),
        "{refused}"
    );
}

#[test]
fn calibrate_writes_no_temperature_at_a_bound() {
    let folder = tempfile::tempdir().unwrap();
    let [state, questions, known] =
        ["state.txt", "questions.json", "known.jsonl"].map(|name| folder.path().join(name));
    let model = openjev(folder.path());
    fs::write(&state, STATE).unwrap();
    let sad = json!({ "sad": { "type": "noul", "instructions": "Was the dog sad?" } });
    fs::write(&questions, sad.to_string()).unwrap();
    let args = ["--state", arg(&state), "--questions", arg(&questions), "--json"];
    let text = tokenmill([&["decide", arg(&model)][..], &args[..]].concat()).ok();
    let said: Value = serde_json::from_str(&text).unwrap();
    // Always right: the lowest temperature would be the best.
    let says_yes = said["answers"]["sad"]["noul"].as_f64().unwrap() >= 0.5;
    let line = json!({ "state": STATE.trim_end(), "questions": sad, "answers": { "sad": says_yes } });
    fs::write(&known, format!("{line}\n").repeat(12)).unwrap();
    let text = tokenmill(["decide", arg(&model), "--calibrate", arg(&known)]).ok();
    assert!(
        text.starts_with("noul    12 answers, temperature 1.000")
            && text.contains("no temperature between 0.05 and 20 is best: not fitted")
            && text.ends_with("nothing was fitted, so no file was written\n"),
        "{text}"
    );
    assert!(!folder.path().join("model.gguf.decisions.json").exists());
    let args = ["decide", arg(&model), "--calibrate", arg(&known), "--json"];
    let json: Value = serde_json::from_str(&tokenmill(args).ok()).unwrap();
    assert_eq!(
        (&json["file"], &json["types"]["noul"]["fitted"]),
        (&Value::Null, &json!(false))
    );
}

#[test]
fn a_template_for_chats_is_refused_where_a_model_has_its_own_for_decisions() {
    let folder = tempfile::tempdir().unwrap();
    let [state, questions] = ["state.txt", "questions.json"].map(|name| folder.path().join(name));
    let model = openjev(folder.path());
    fs::write(&state, STATE).unwrap();
    fs::write(
        &questions,
        r#"{"sad": {"type": "noul", "instructions": "Is it?"}}"#,
    )
    .unwrap();
    let asked = ["--state", arg(&state), "--questions", arg(&questions)];
    let ask = |model: &str, more: &[&str]| tokenmill([&["decide", model][..], &asked[..], more].concat());
    let template = ["--chat-template", "chatml"];
    let refused = ask(arg(&model), &template).failed(2);
    assert!(
        refused.contains("`--chat-template` does nothing here") && refused.contains("`openjev`"),
        "{refused}"
    );
    let variables = ["--chat-template-kwargs", "{}"];
    assert!(
        ask(arg(&model), &variables)
            .failed(2)
            .contains("`--chat-template-kwargs`")
    );
    ask(arg(&model), &["--reasoning", "off"]).ok();
    // A chat model reads it.
    let turns = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}\
                 {% if add_generation_prompt %}<|assistant|>{% endif %}";
    ask("demo", &["--chat-template", turns]).ok();
}
