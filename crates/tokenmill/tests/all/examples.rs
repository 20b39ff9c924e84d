//! Every example runs on the built-in model and says what it should.

use std::{
    env,
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
};

/// Runs an example that `cargo test` has built, with lines to read.
fn run(name: &str, input: &str) -> String {
    let mut command = example(name);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{name}: {error}; `cargo test -p tokenmill` builds the examples"));
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(input.as_bytes()).expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{name}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// Returns the command of an example.
fn example(name: &str) -> Command {
    let mut path: PathBuf = env::current_exe().expect("a test has a path");
    path.pop();
    path.pop();
    path.extend(["examples", name]);
    path.set_extension(env::consts::EXE_EXTENSION);
    Command::new(path)
}

/// The Hub's cache has one named model; the error for the other one names it.
#[cfg(feature = "hub")]
#[test]
fn generate_takes_the_name_of_a_model() {
    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
    let home = tempfile::tempdir().unwrap();
    let repository = home.path().join("hub/models--org--demo-GGUF");
    let snapshot = repository.join("snapshots").join(COMMIT);
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir(repository.join("refs")).unwrap();
    std::fs::write(repository.join("refs/main"), COMMIT).unwrap();
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/tokenmill-demo-Q8_0.gguf");
    std::fs::copy(demo, snapshot.join("demo-Q8_0.gguf")).unwrap();
    let generate = |model: &str| {
        let mut command = example("generate");
        for variable in ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN"] {
            command.env_remove(variable);
        }
        let command = command
            .arg(model)
            .env("HF_HOME", home.path())
            .env("HF_HUB_OFFLINE", "1");
        command.output().expect("`cargo test` builds the examples")
    };
    let output = generate("org/demo-GGUF");
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(out.starts_with("demo-Q8_0.gguf computes on "), "{output:?}");
    let output = generate("org/other-GGUF");
    assert!(!output.status.success());
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("org/other-GGUF"), "{told}");
}

#[test]
fn generate_says_where_it_computes_and_what_it_took() {
    let out = run("generate", "");
    assert!(out.starts_with("demo computes on "), "{out}");
    assert!(out.contains("\nOnce upon a time"), "{out}");
    assert!(out.contains(" tokens read, "), "{out}");
}

#[test]
fn stream_shows_the_text_that_complete_gives() {
    let out = run("stream", "");
    let model = tokenmill::Model::open("demo").unwrap();
    let params = tokenmill::TextParams::new().max_tokens(48);
    let whole = model.complete("Once upon a time", &params).unwrap().text;
    assert_eq!(out, format!("Once upon a time{whole}\n"));
}

#[test]
fn async_stream_answers_both_questions() {
    let out = run("async_stream", "");
    let lines: Vec<&str> = out.lines().collect();
    assert!(
        lines[0].starts_with("What is 3 + 4? ") && lines[0].contains('7'),
        "{out}"
    );
    assert!(out.contains("What is 2 + 2? "), "{out}");
}

#[test]
fn chat_answers_each_line() {
    let out = run("chat", "What is 3 + 4?\nWhat is 2 + 2?\n");
    assert!(out.starts_with("> What is 3 + 4?\n"), "{out}");
    assert!(out.contains('7'), "{out}");
    assert!(out.contains("\n> What is 2 + 2?\n"), "{out}");
}

#[test]
fn embeddings_find_the_closer_text() {
    let out = run("embeddings", "");
    let cosines: Vec<f32> = out
        .lines()
        .skip(1)
        .map(|line| line.split(' ').next().unwrap().parse().unwrap())
        .collect();
    assert!(cosines.len() == 2 && cosines[0] > cosines[1], "{out}");
}

#[test]
fn batch_answers_in_the_order_of_the_prompts() {
    let out = run("batch", "");
    for (n, line) in (1..=20).zip(out.lines()) {
        assert!(line.starts_with(&format!("{n} + 1 = ")), "{out}");
    }
    assert!(out.ends_with(" tokens generated]\n"), "{out}");
}

#[test]
fn own_backend_computes_the_same_text() {
    let out = run("own_backend", "");
    assert!(
        out.starts_with("demo computes on a backend of the caller's own\n"),
        "{out}"
    );
    assert!(out.ends_with("the shipped backend says the same\n"), "{out}");
}

#[test]
fn tools_answers_from_the_result_of_a_call() {
    let out = run("tools", "");
    let (call, answer) = out.split_once('\n').unwrap_or_default();
    assert!(
        call.starts_with("add_numbers({") && call.ends_with(" = 7"),
        "{out}"
    );
    assert!(answer.contains('7'), "{out}");
}

#[test]
fn schema_gives_json_that_the_schema_describes() {
    let out = run("schema", "");
    let value: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert!(value["sum"].is_i64() && value["even"].is_boolean(), "{out}");
    assert_eq!(value.as_object().expect("an object").len(), 2, "{out}");
}
