//! `batch` answers each line once, whatever happens to it.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::Path,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::support::{DEMO_GGUF, arg, command, tokenmill};

/// A greedy completion as a line.
fn completion(custom_id: &str, prompt: &str, max_tokens: usize) -> String {
    let body = json!({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true});
    json!({"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}).to_string()
}

/// Results by the number of their line.
fn results(path: &Path) -> BTreeMap<usize, Value> {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.ends_with('\n'), "the last result is whole");
    let mut results = BTreeMap::new();
    for line in text.lines() {
        let result: Value = serde_json::from_str(line).unwrap();
        let id = result["id"].as_str().unwrap().strip_prefix("batch_req_").unwrap();
        let id: usize = id.parse().unwrap();
        assert!(results.insert(id, result).is_none(), "line {id} has two results");
    }
    results
}

fn answered_text(result: &Value) -> &str {
    assert_eq!(result["response"]["status_code"], 200, "{result}");
    assert_eq!(result["error"], Value::Null);
    result["response"]["body"]["choices"][0]["text"].as_str().unwrap()
}

#[test]
#[cfg(target_os = "linux")]
fn batch_writes_files_only_and_reads_lines_with_an_end() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("in.jsonl");
    fs::write(&file, completion("a", "Hi", 1)).unwrap();
    let line = tokenmill(["batch", "demo", arg(&file), "/dev/full"]).failed(3);
    assert!(line.starts_with("error: /dev/full is not a file"), "{line}");
    fs::File::create(&file).unwrap().set_len(40 << 20).unwrap();
    let line = tokenmill(["batch", "demo", arg(&file), "out.jsonl"]).failed(3);
    assert!(
        line.contains("line 1 of ") && line.contains(" is longer than "),
        "{line}"
    );
}

#[test]
fn a_file_without_a_request_is_no_batch() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in"), folder.path().join("out.jsonl"));
    for (text, fault) in [
        (
            "name,age\nAnn,7\n",
            ": line 1: expected ident at column 2 (hint: ",
        ),
        (
            "\n{\"prompt\": \"Hi\"}\n",
            ": line 2: `custom_id` is missing or not a string (hint: ",
        ),
        ("[]", ": line 1: the line is not a JSON object (hint: "),
        (" \n\n", " (hint: "),
        ("", " (hint: "),
    ] {
        fs::write(&input, text).unwrap();
        let line = tokenmill(["batch", "demo", arg(&input), arg(&output)]).failed(3);
        let begin = format!(
            "error: {} holds no request of a batch{fault}a line is {{\"custom_id\": ",
            input.display()
        );
        assert!(line.starts_with(&begin), "{line}");
    }
    fs::write(&input, DEMO_GGUF).unwrap();
    let line = tokenmill(["batch", "demo", arg(&input), arg(&output)]).failed(3);
    assert!(line.contains("is a GGUF file; a text is expected here"), "{line}");
    assert!(!output.exists(), "no file is begun");
}

#[test]
fn batch_answers_good_lines_and_says_what_is_wrong_with_bad_ones() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in.jsonl"), folder.path().join("out.jsonl"));
    let chat = json!({
        "custom_id": "chat", "method": "POST", "url": "/v1/chat/completions",
        "body": {"messages": [{"role": "user", "content": "What is 3 + 4?"}], "temperature": 0},
    });
    let refused = json!({
        "custom_id": "refused", "method": "POST", "url": "/v1/completions",
        "body": {"prompt": "Hi", "temperature": -1},
    });
    let lines = [
        completion("text", "Once upon a time", 6),
        "{not json".to_owned(),
        chat.to_string(),
        String::new(),
        completion("text", "A second with its id", 6),
        refused.to_string(),
        r#"{"custom_id": "lost", "method": "POST", "url": "/nowhere", "body": {}}"#.to_owned(),
    ];
    fs::write(&input, lines.join("\n")).unwrap();
    let batch = || tokenmill(["batch", "demo", arg(&input), arg(&output), "--max-num-seqs", "2"]);
    let first = batch();
    assert!(
        first.stderr.contains("[2 answered, 4 refused; ")
            && first
                .stderr
                .contains(&format!("; {} has the reasons]", arg(&output))),
        "{}",
        first.stderr
    );
    assert_eq!(first.ok(), "");
    let found = results(&output);
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), [1, 2, 3, 5, 6, 7]);
    assert_eq!(answered_text(&found[&1]), ", there was a hungry pig");
    assert_eq!(found[&1]["custom_id"], "text");
    assert!(found[&1]["response"]["request_id"].is_string());
    let reply = &found[&3]["response"]["body"];
    assert_eq!(reply["choices"][0]["message"]["content"], "3 + 4 = 7.");
    for (line, code, custom_id) in [
        (2, "invalid_json_line", Value::Null),
        (5, "duplicate_custom_id", json!("text")),
        (7, "invalid_url", json!("lost")),
    ] {
        assert_eq!(found[&line]["error"]["code"], code);
        assert_eq!(found[&line]["custom_id"], custom_id);
        assert_eq!(found[&line]["response"], Value::Null);
    }
    let message = found[&2]["error"]["message"].as_str().unwrap();
    let begin = format!("line 2 of {}: ", arg(&input));
    assert!(
        message.starts_with(&begin) && message.ends_with(" at column 2"),
        "{message}"
    );
    assert_eq!(found[&6]["response"]["status_code"], 400);
    let message = found[&6]["response"]["body"]["error"]["message"]
        .as_str()
        .unwrap();
    assert!(message.contains("temperature"), "{message}");

    let other = output.with_extension("other");
    // Also where the refusals are those of an earlier run.
    for _ in 0..2 {
        let strict = tokenmill(["batch", "demo", arg(&input), arg(&other), "--fail-on-error"]);
        assert_eq!(strict.code, 1);
        assert!(
            strict.stderr.contains("4 of the requests were refused"),
            "{}",
            strict.stderr
        );
    }
    assert_eq!(results(&other).len(), 6);

    // All is done, so nothing changes; and another input is not mixed in.
    let before = fs::read_to_string(&output).unwrap();
    let again = batch();
    assert!(
        again
            .stderr
            .contains("[0 answered, 0 refused, 6 had their result already, 4 of them a refusal;"),
        "{}",
        again.stderr
    );
    assert_eq!(fs::read_to_string(&output).unwrap(), before);
    fs::write(&input, completion("other", "Hi", 2)).unwrap();
    let stderr = batch().stderr;
    assert!(stderr.contains("belongs to another input"), "{stderr}");
    assert_eq!(fs::read_to_string(&output).unwrap(), before);
}

#[test]
#[cfg(unix)]
fn batch_that_was_killed_goes_on_without_repeating_or_losing_a_line() {
    const N_LINES: usize = 40;
    let folder = tempfile::tempdir().unwrap();
    let (input, output, whole) = (
        folder.path().join("in.jsonl"),
        folder.path().join("out.jsonl"),
        folder.path().join("whole.jsonl"),
    );
    let mut lines = String::new();
    for line in 0..N_LINES {
        let prompt = format!("Once upon a time there were {line}");
        writeln!(
            lines,
            "{}",
            completion(&format!("id {line}"), &prompt, 100 + line % 7)
        )
        .unwrap();
    }
    fs::write(&input, lines).unwrap();
    let args = |output| {
        [
            "batch",
            "demo",
            arg(&input),
            output,
            "--max-num-seqs",
            "3",
            "-t",
            "1",
        ]
        .map(str::to_owned)
    };
    tokenmill(args(arg(&whole))).ok();

    let n_results = || fs::read_to_string(&output).map_or(0, |text| text.lines().count());
    let mut n_kills = 0;
    for n_before_kill in [2, 12] {
        let mut child = command(args(arg(&output)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let started = Instant::now();
        while n_results() < n_before_kill && started.elapsed() < Duration::from_mins(1) {
            thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        n_kills += usize::from(!child.wait().unwrap().success());
        // A kill in the middle of a write is rare, so half a result is put there by hand.
        let mut text = fs::read_to_string(&output).unwrap();
        text.push_str("{\"id\":\"batch_req_39\",\"custom_id\":\"id 3");
        fs::write(&output, text).unwrap();
    }
    assert!(n_kills > 0, "at least one was killed before its end");
    tokenmill(args(arg(&output))).ok();

    let (found, expected) = (results(&output), results(&whole));
    assert_eq!(
        found.keys().copied().collect::<Vec<_>>(),
        (1..=N_LINES).collect::<Vec<_>>()
    );
    for (line, result) in &found {
        assert_eq!(result["custom_id"], format!("id {}", line - 1));
        assert_eq!(
            answered_text(result),
            answered_text(&expected[line]),
            "line {line}"
        );
    }
}

#[test]
fn images_are_files_of_the_folder_that_is_given() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/vision/gemma3");
    let eye = data.join("model.gguf");
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in.jsonl");
    // More than a body of a server has: decoders leave what stands behind the image.
    let mut png = fs::read(data.join("0.png")).unwrap();
    png.resize(9 << 20, 0);
    fs::write(folder.path().join("a.png"), png).unwrap();
    let image = json!({ "type": "image_url", "image_url": { "url": "file://a.png" } });
    let request = json!({
        "custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
        "body": { "messages": [{ "role": "user", "content": [image] }], "max_tokens": 1 },
    });
    fs::write(&input, request.to_string()).unwrap();
    let answer = |name: &str, more: &[&str]| {
        let output = folder.path().join(name);
        tokenmill([&["batch", arg(&eye), arg(&input), arg(&output)], more].concat()).ok();
        results(&output)[&1]["response"].clone()
    };
    let with = answer("with.jsonl", &["--media-path", arg(folder.path())]);
    assert_eq!(with["status_code"], 200, "{with}");
    let large = fs::File::options()
        .write(true)
        .open(folder.path().join("a.png"))
        .unwrap();
    large.set_len((64 << 20) + 3).unwrap();
    let larger = answer("larger.jsonl", &["--media-path", arg(folder.path())]);
    assert!(
        larger
            .to_string()
            .contains("have more than the 89478488 bytes, in base64"),
        "{larger}"
    );
    let without = answer("without.jsonl", &[]);
    assert_eq!(without["status_code"], 400, "{without}");
    assert!(
        without
            .to_string()
            .contains("`--media-path DIR` of `serve` and `batch`"),
        "{without}"
    );
    let output = folder.path().join("wrong.jsonl");
    let wrong = [
        "batch",
        "demo",
        arg(&input),
        arg(&output),
        "--media-path",
        arg(&input),
    ];
    let line = tokenmill(wrong).failed(2);
    assert!(line.contains("is not a folder"), "{line}");
    assert!(!output.exists(), "no file is begun");
}
