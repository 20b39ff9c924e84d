//! `--json-schema`, `--regex` and `--grammar`.

use std::fs;

use serde_json::{Value, json};

use crate::support::{arg, tokenmill, tokenmill_with};

const SCHEMA: &str = r#"{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false}"#;

#[test]
fn answers_have_the_shape_that_an_option_asks_for() {
    let folder = tempfile::tempdir().unwrap();
    let (schema, grammar) = (folder.path().join("schema.json"), folder.path().join("word.gbnf"));
    fs::write(&schema, SCHEMA).unwrap();
    fs::write(&grammar, "root ::= \"<\" [a-f]{2} \">\"").unwrap();
    let run = |option: &str, value: &str| {
        let args = [
            "run",
            "--raw",
            "demo",
            "Once",
            "--temp",
            "2",
            "-s",
            "1",
            "--no-echo",
            "-t",
            "1",
            option,
            value,
        ];
        tokenmill(args).ok().trim_end().to_owned()
    };
    for given in [SCHEMA, arg(&schema)] {
        let answer: Value = serde_json::from_str(&run("--json-schema", given)).unwrap();
        assert!(answer["n"].is_i64() || answer["n"].is_number(), "{answer}");
    }
    let year = run("--regex", "1[0-9]{3}");
    assert!(year.len() == 4 && year.starts_with('1'), "{year}");
    let word = run("--grammar", arg(&grammar));
    assert!(
        word.len() == 4 && word.starts_with('<') && word.ends_with('>'),
        "{word}"
    );
    let said = tokenmill_with(&["chat", "demo", "-t", "1", "--regex", "yes|no"], "Is it?\n").ok();
    assert!(["yes", "no"].contains(&said.trim()), "{said}");
}

#[test]
fn a_shape_that_a_limit_cuts_has_an_exit_code_of_its_own() {
    let run = |more: &[&str]| {
        let args = ["run", "--raw", "demo", "Once", "--temp", "0", "-t", "1"];
        let outcome = tokenmill([&args[..], more].concat());
        (outcome.code, outcome.stdout, outcome.stderr)
    };
    let text =
        r#"{"type": "object", "properties": {"a": {"type": "string", "minLength": 200}}, "required": ["a"]}"#;
    let (code, shown, said) = run(&["--json-schema", text, "-n", "8"]);
    assert!(code == 7 && shown.starts_with("Once{"), "{code} {shown}");
    assert!(
        said.contains("error: the answer was cut before its shape was complete (hint: a larger `-n`"),
        "{said}"
    );
    let (code, _, said) = run(&["--json-schema", text, "-c", "16"]);
    assert!(code == 7 && said.contains("a larger `-c`"), "{code} {said}");
    let (code, shown, _) = run(&["--json-schema", text, "-n", "8", "--json"]);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert!(code == 7 && shown["finish_reason"] == "length", "{shown}");
    let (code, _, said) = run(&["--regex", "[a-z ]{80}", "-n", "4", "--parallel", "2"]);
    assert!(
        code == 7 && said.contains("2 of 2 answers were cut"),
        "{code} {said}"
    );
    // An answer that may end where it was cut is complete, and so is an answer without a shape.
    assert_eq!(run(&["--regex", "[a-z ]*", "-n", "4"]).0, 0);
    assert_eq!(run(&["-n", "4"]).0, 0);
    assert_eq!(run(&["--regex", "[a-z]{4}"]).0, 0);
    let chat = tokenmill([
        "run",
        "demo",
        "Once",
        "--temp",
        "0",
        "--regex",
        "[a-z ]{80}",
        "-n",
        "4",
    ]);
    assert_eq!(chat.code, 7);
}

#[test]
fn a_shape_that_cannot_be_had_is_said_in_one_line() {
    for (option, value, said) in [
        ("--json-schema", "{\"a\"", "`--json-schema` is not JSON"),
        (
            "--json-schema",
            "{\"type\": \"nonsense\"}",
            "the JSON schema cannot be enforced",
        ),
        ("--regex", "(", "the regular expression cannot be enforced"),
        (
            "--grammar",
            "root ::= root",
            "no finite text satisfies the GBNF grammar",
        ),
        ("--grammar", "no/such/file", "no/such/file"),
    ] {
        let error = tokenmill(["run", "--raw", "demo", "x", "-t", "1", option, value]).failed(3);
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn a_batch_takes_shapes_in_its_lines() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in.jsonl"), folder.path().join("out.jsonl"));
    let line = json!({"custom_id": "1", "method": "POST", "url": "/v1/completions",
        "body": {"prompt": "Hi", "guided_choice": ["red", "green"]}});
    fs::write(&input, format!("{line}\n")).unwrap();
    tokenmill(["batch", "demo", arg(&input), arg(&output), "-t", "1"]).ok();
    let result: Value = serde_json::from_str(&fs::read_to_string(&output).unwrap()).unwrap();
    let text = &result["response"]["body"]["choices"][0]["text"];
    assert!(text == "red" || text == "green", "{result}");
}
