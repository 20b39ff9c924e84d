//! Tests `--session FILE`: the next start restores the computed tokens, and an unusable file does not change.

use std::{fs, path::Path};

use serde_json::Value;

use crate::support::{DEMO_GGUF, Outcome, arg, tokenmill, tokenmill_with};

const STORY: &str =
    "Once upon a time there was a little girl who lived in a small house near the forest with her mother";

fn run(prompt: &str, n: &str, session: Option<&Path>, extra: &[&str]) -> Outcome {
    let base = ["run", "--raw", "demo", prompt, "--temp", "0", "-n", n, "--json"];
    let session = session.map_or_else(Vec::new, |path| vec!["--session", arg(path)]);
    tokenmill([&base[..], &session, extra].concat())
}

fn json(outcome: Outcome) -> Value {
    serde_json::from_str(&outcome.ok()).unwrap()
}

#[test]
fn a_run_goes_on_from_its_session() {
    let folder = tempfile::tempdir().unwrap();
    let session = folder.path().join("story.tms");
    let first = json(run(STORY, "40", Some(&session), &[]));
    assert_eq!(first["timings"]["cache_n"], 0);
    let longer = format!("{STORY}{} The next day", first["text"].as_str().unwrap());
    let again = run(&longer, "30", Some(&session), &[]);
    assert!(again.stderr.contains("tokens restored from"), "{}", again.stderr);
    let again = json(again);
    assert!(again["timings"]["cache_n"].as_u64().unwrap() >= 48, "{again}");
    let computed = json(run(&longer, "30", None, &[]));
    assert_eq!(
        (&again["ids"], &again["text"]),
        (&computed["ids"], &computed["text"])
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);

    // Another model's memory, or another form of it: computed, and the file stays.
    let kept = fs::read(&session).unwrap();
    let other = run(
        &longer,
        "30",
        Some(&session),
        &["--cache-type-k", "f32", "--cache-type-v", "f32"],
    );
    assert!(
        other
            .stderr
            .contains("its keys and values are f16 and f16, and those of this load are f32 and f32"),
        "{}",
        other.stderr
    );
    assert_eq!(json(other)["timings"]["cache_n"], 0);
    assert_eq!(fs::read(&session).unwrap(), kept);
}

#[test]
fn a_file_that_is_no_session_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let session = folder.path().join("file");
    let expected = json(run(STORY, "8", None, &[]))["text"].clone();
    json(run(STORY, "8", Some(&session), &[]));
    let whole = fs::read(&session).unwrap();
    for (bytes, reason) in [
        (
            &b"a letter to a friend, and nothing else"[..],
            "not a session of this program",
        ),
        (&whole[..whole.len() - 9], "it was cut"),
        (&whole[..20], "it was cut"),
        (&b""[..], "not a session of this program"),
        (
            &b"tmllsess\x01\0\0\0\x08\0\0\0 a header"[..],
            "an older version of this program wrote it",
        ),
    ] {
        fs::write(&session, bytes).unwrap();
        let outcome = run(STORY, "8", Some(&session), &[]);
        assert!(outcome.stderr.contains(reason), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("stays as it is"), "{}", outcome.stderr);
        assert_eq!(outcome.stderr.lines().count(), 2, "{}", outcome.stderr);
        assert_eq!(json(outcome)["text"], expected);
        assert_eq!(fs::read(&session).unwrap(), bytes);
    }
    let nowhere = folder.path().join("no/such/file");
    let line = run(STORY, "8", Some(&nowhere), &[]).failed(4);
    assert!(line.contains("create it first"), "{line}");
    let line = run(STORY, "8", Some(&session), &["--parallel", "2"]).failed(2);
    assert!(line.contains("--session"), "{line}");
    let adapter = ["--lora", "poet=poet.gguf"];
    let of_chat = [&["chat", "demo", "--session", arg(&session)], &adapter[..]].concat();
    for outcome in [run(STORY, "8", Some(&session), &adapter), tokenmill(of_chat)] {
        let line = outcome.failed(2);
        assert!(line.contains("does not go with `--lora`"), "{line}");
    }
}

/// The contents of the messages of a session.
fn messages(session: &Path) -> (Vec<String>, String) {
    let outcome = tokenmill_with(
        &["chat", "demo", "--temp", "0", "--session", arg(session)],
        "/show messages\n",
    );
    let stderr = outcome.stderr.clone();
    let shown: Vec<Value> = serde_json::from_str(&outcome.ok()).unwrap();
    let contents = shown
        .iter()
        .map(|message| message["content"].as_str().unwrap().to_owned());
    (contents.collect(), stderr)
}

#[test]
fn a_chat_goes_on_where_it_ended() {
    let folder = tempfile::tempdir().unwrap();
    let session = folder.path().join("talk");
    let chat = |input: &str| {
        let args = ["chat", "demo", "--temp", "0", "--session", arg(&session)];
        tokenmill_with(&args, input).ok()
    };
    chat("What is 3 + 4?\n");
    chat("What is 2 + 2?\n");
    let both = ["What is 3 + 4?", "3 + 4 = 7.", "What is 2 + 2?", "2 + 2 is 4."];
    let (contents, stderr) = messages(&session);
    assert_eq!(contents, both);
    assert!(stderr.contains("tokens restored from"), "{stderr}");
    assert!(stderr.contains("exchanges so far: 2"), "{stderr}");
    chat("/undo\n");
    assert_eq!(messages(&session).0, both[..2]);
    // A model whose memory is of another form continues with the messages.
    let args = [
        "chat",
        "demo",
        "--temp",
        "0",
        "--cache-type-k",
        "f32",
        "--cache-type-v",
        "f32",
        "--session",
    ];
    let other = tokenmill_with(&[&args[..], &[arg(&session)]].concat(), "/show messages\n");
    assert!(other.stderr.contains("computed again"), "{}", other.stderr);
    assert!(other.ok().contains("3 + 4 = 7."));
    let run = run(STORY, "4", Some(&session), &[]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert_eq!(messages(&session).0, both[..2], "a run keeps the notes");
}

#[test]
fn a_chat_with_another_model_names_both() {
    let folder = tempfile::tempdir().unwrap();
    let [demo, other, session] = ["demo.gguf", "other.gguf", "talk"].map(|name| folder.path().join(name));
    fs::write(&demo, DEMO_GGUF).unwrap();
    tokenmill(["quantize", arg(&demo), arg(&other), "q4_0", "--allow-requantize"]).ok();
    let chat = |model: &Path, input: &str| {
        let args = [
            "chat",
            arg(model),
            "--temp",
            "0",
            "-n",
            "40",
            "--session",
            arg(&session),
        ];
        let outcome = tokenmill_with(&args, input);
        assert_eq!(outcome.code, 0, "{}", outcome.stderr);
        outcome
    };
    let continues = |of: &str, with: &str| {
        let path = session.display();
        format!(
            "[the last answer in {path} is of the model {of}; the conversation continues with {with} and is computed again]"
        )
    };
    chat(&demo, "What is 3 + 4?\n");
    let kept = fs::read(&session).unwrap();
    let looked = chat(&other, "/show messages\n");
    assert!(
        looked.stderr.contains(&continues("demo.gguf", "other.gguf")),
        "{}",
        looked.stderr
    );
    assert!(looked.stdout.contains("3 + 4 = 7."), "{}", looked.stdout);
    assert_eq!(fs::read(&session).unwrap(), kept, "nothing was said");
    chat(&other, "Hi\n");
    let back = chat(&demo, "/show messages\n").stderr;
    assert!(back.contains(&continues("other.gguf", "demo.gguf")), "{back}");
    // The model of the last answer needs no word.
    let again = chat(&other, "/show messages\n").stderr;
    assert!(
        again.contains("tokens restored from") && !again.contains("the last answer"),
        "{again}"
    );
}

#[test]
fn a_text_of_run_is_no_conversation() {
    let folder = tempfile::tempdir().unwrap();
    let session = folder.path().join("story.tms");
    json(run(STORY, "4", Some(&session), &[]));
    let kept = fs::read(&session).unwrap();
    let line = tokenmill_with(&["chat", "demo", "--session", arg(&session)], "Hi\n").failed(3);
    assert!(
        line.contains("not a conversation") && line.contains("name another file"),
        "{line}"
    );
    assert_eq!(fs::read(&session).unwrap(), kept);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_one_line_and_the_older_session_stays() {
    let Some(disk) = tokenmill_testkit::SmallDisk::mount(2 << 20) else {
        return;
    };
    let session = disk.path().join("story.tms");
    let first = json(run(STORY, "20", Some(&session), &[]));
    let longer = format!("{STORY}{} The next day", first["text"].as_str().unwrap());
    let kept = fs::read(&session).unwrap();
    let filler = disk.fill();
    let outcome = run(&longer, "20", Some(&session), &[]);
    assert_eq!(outcome.code, 4, "{}", outcome.stderr);
    let errors: Vec<&str> = outcome
        .stderr
        .lines()
        .filter(|line| line.starts_with("error: "))
        .collect();
    let [line] = errors[..] else {
        panic!("{}", outcome.stderr)
    };
    assert!(
        line.contains("cannot write to") && line.contains("story.tms"),
        "{line}"
    );
    assert_eq!(fs::read(&session).unwrap(), kept);
    assert_eq!(
        disk.names(),
        ["filler", "story.tms"],
        "nothing half-written is left"
    );
    // A chat says it after each answer or at its end, and continues.
    let talk = disk.path().join("talk");
    let args = ["chat", "demo", "--temp", "0", "-n", "8", "--session", arg(&talk)];
    let outcome = tokenmill_with(&args, "What is 3 + 4?\n");
    assert!(outcome.stderr.contains("cannot write to"), "{}", outcome.stderr);
    assert_eq!(disk.names(), ["filler", "story.tms"]);
    fs::remove_file(filler).unwrap();
    // The older one is found, and replaced now.
    let again = run(&longer, "20", Some(&session), &[]);
    assert!(again.stderr.contains("tokens restored from"), "{}", again.stderr);
    assert_eq!(again.code, 0, "{}", again.stderr);
    assert_ne!(fs::read(&session).unwrap(), kept);
}

#[cfg(target_os = "linux")]
#[test]
fn one_server_at_a_time_keeps_sessions_in_a_folder() {
    use crate::server::Server;

    let folder = tempfile::tempdir().unwrap();
    let options = ["demo", "--session-dir", arg(folder.path())];
    let first = Server::start(&options);
    // The second server must not remove the first one's half-written files.
    let unfinished = folder.path().join(".talk.incomplete");
    fs::write(&unfinished, "x").unwrap();
    let second = tokenmill([&["serve", "--port", "0"][..], &options].concat());
    assert_ne!(second.code, 0);
    assert!(second.stderr.contains("is in use"), "{}", second.stderr);
    assert!(unfinished.exists());
    first.end();
    Server::start(&options).end();
}

/// A session is saved after every answer; whenever the program is killed, the file is one of those saves.
#[cfg(unix)]
#[test]
fn a_program_that_is_killed_loses_nothing_older() {
    use std::{
        io::Write as _,
        process::Stdio,
        thread,
        time::{Duration, Instant},
    };

    use crate::support::command;

    let folder = tempfile::tempdir().unwrap();
    let session = folder.path().join("talk");
    let args = [
        "chat",
        "demo",
        "--temp",
        "0",
        "-n",
        "2",
        "--session",
        arg(&session),
    ];
    tokenmill_with(&args, "What is 3 + 4?\n").ok();
    let first = fs::read(&session).unwrap();
    let (first_messages, _) = messages(&session);
    for round in 0..5 {
        // Each round begins with one exchange, so that there is room for many saves.
        fs::write(&session, &first).unwrap();
        let began = Instant::now();
        let mut child = command(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all("What is 2 + 2?\n".repeat(20).as_bytes()).unwrap();
        // Killed some time after its first save.
        while fs::read(&session).unwrap() == first {
            assert!(
                began.elapsed() < Duration::from_mins(2),
                "round {round}: nothing was saved"
            );
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(round * 14));
        child.kill().unwrap();
        child.wait().unwrap();
        drop(input);
        let (contents, stderr) = messages(&session);
        assert!(stderr.contains("tokens restored from"), "round {round}: {stderr}");
        assert!(contents.starts_with(&first_messages), "round {round}");
        assert!(contents.len() > first_messages.len(), "round {round}");
    }
}
