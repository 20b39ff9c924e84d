//! Generates files that refer to themselves, nest deeply or claim too much: the table of models of `serve`, and the headers and indexes of
//! folders with safetensors. Each is refused in a line, or read, in bounded time and memory.
//!
//! `TOKENMILL_TEST_SECONDS` and `TOKENMILL_TEST_SEED` try more.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use serde_json::{Map, Value, json};
use tokenmill_testkit::{Random, rounds};

use crate::support::{Outcome, arg, command};

/// Far above the time on a busy machine without optimisation.
const LIMIT: Duration = Duration::from_secs(30);

/// Runs the program with 4 GB of address space.
fn bounded(what: &str, args: &[&str]) -> Outcome {
    let program = command::<&str>([]);
    let begun = Instant::now();
    let mut shell = std::process::Command::new("sh");
    shell
        .args(["-c", "ulimit -v 4000000; exec \"$@\"", "sh"])
        .arg(program.get_program())
        .args(args)
        .envs(
            program
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .stdin(std::process::Stdio::null());
    let outcome = Outcome::of(&shell.output().expect("the program starts"));
    let took = begun.elapsed();
    assert!(took < LIMIT, "{what}: {took:?}");
    assert!(
        (0..=4).contains(&outcome.code),
        "{what}: ended with {}: {}",
        outcome.code,
        outcome.stderr
    );
    // A name of the file may be part of the message.
    assert!(
        outcome.stderr.len() < 4 << 20,
        "{what}: {} bytes of errors",
        outcome.stderr.len()
    );
    outcome
}

/// Joins the texts of the numbers below `n`.
fn joined(n: usize, text: impl FnMut(usize) -> String) -> String {
    (0..n).map(text).collect::<Vec<_>>().concat()
}

/// Writes a table of models that must be refused.
fn toml(random: &mut Random) -> String {
    let n = 1 << (random.below(17) + 1);
    let key = *random.pick(&[
        "a",
        "models",
        "defaults",
        "models.a.alias",
        "\"x\"",
        "memory-budget",
    ]);
    let mut text = match random.below(12) {
        0 => format!("{key} = {}1{}", "[".repeat(n), "]".repeat(n)),
        1 => format!("{key} = {}", "[".repeat(n)),
        2 => format!("{key} = {}1{}", "{a=".repeat(n), "}".repeat(n)),
        3 => format!("{key}{} = 1", ".a".repeat(n)),
        4 => format!("[{key}{}]", ".a".repeat(n)),
        5 => format!("[[{key}{}]]", ".a".repeat(n)),
        6 => joined(n, |idx| format!("[models.m{idx}]\nmodel = \"m\"\n")),
        7 => format!("[models.a]\nmodel = \"a\"\nalias = [{}]", "\"b\",".repeat(n)),
        8 => format!("[models.{}]\nctx-size = {}", "x".repeat(n), "9".repeat(n)),
        9 => joined(n, |idx| format!("{key}.k{}.j = {idx}\n", random.below(n))),
        10 => format!("{key} = \"\"\"{}", "\\\n".repeat(n)),
        _ => (0..n.min(4000))
            .map(|_| {
                *random.pick(&[
                    "[", "]", "{", "}", "=", ".", "a", "\"", "'", "\n", "#", ",", "1", "\\u",
                ])
            })
            .collect(),
    };
    // Without it a file with a model would be served.
    text += "\n[models.without]\npin = true\n";
    text
}

#[test]
fn a_table_of_models_is_refused_in_bounded_time_whatever_nests_in_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("models.toml");
    for seed in rounds("tables of models", 40) {
        let text = toml(&mut Random::new(seed));
        fs::write(&path, &text).expect("a file");
        let what = format!(
            "seed {seed}, {} bytes: {}",
            text.len(),
            text.chars().take(40).collect::<String>()
        );
        let outcome = bounded(&what, &["serve", "--models", arg(&path), "--port", "0"]);
        assert!(outcome.code > 0, "{what} was taken");
    }
}

/// Changes the header of a file of safetensors.
fn change_header(header: &mut Map<String, Value>, random: &mut Random) {
    let name = header
        .keys()
        .nth(random.below(header.len()))
        .cloned()
        .expect("a tensor");
    let n = 1 << random.below(17);
    let huge = *random.pick(&[0, 1, 7, u64::MAX, 1 << 63, 1 << 32]);
    match random.below(9) {
        0 => header[&name]["data_offsets"] = json!([huge, huge]),
        1 => header[&name]["data_offsets"] = json!([random.below(100), huge]),
        2 => header[&name]["shape"] = json!([huge, huge]),
        3 => header[&name]["shape"] = json!(vec![1; n]),
        4 => header[&name]["dtype"] = json!(*random.pick(&["F4", "F8_E8M0", "BOOL", "", "I64", "U8"])),
        5 => {
            let tensor = header[&name].clone();
            header.extend((0..n).map(|idx| (format!("{name}.{idx}"), tensor.clone())));
        }
        6 => {
            let empty = json!({ "dtype": "F32", "shape": [0], "data_offsets": [0, 0] });
            header.extend((0..n).map(|idx| (format!("empty.{idx}"), empty.clone())));
        }
        7 => {
            let tensor = header.remove(&name).expect("it is there");
            header.insert(name.repeat(1 + n / name.len()), tensor);
        }
        _ => {
            let pairs = (0..n).map(|idx| (idx.to_string(), json!("x")));
            header.insert("__metadata__".to_owned(), Value::Object(pairs.collect()));
        }
    }
}

/// Writes a header as a file begins with it, also in forms that no JSON writer has.
fn header_bytes(header: &Map<String, Value>, random: &mut Random) -> Vec<u8> {
    let mut text = Value::Object(header.clone()).to_string();
    let n = 1 << random.below(18);
    match random.below(12) {
        0 => text += &" ".repeat(n * 100),
        // Names that are there twice.
        1 => text = format!("{},{}", &text[..text.len() - 1], &text[1..]),
        2 => {
            let deep = format!("{}1{}", "[".repeat(n), "]".repeat(n));
            text = format!("{{\"deep\":{deep},{}", &text[1..]);
        }
        3 => {
            let deep = format!("{}1{}", "{\"a\":".repeat(n), "}".repeat(n));
            text = format!("{{\"__metadata__\":{deep},{}", &text[1..]);
        }
        4 => text = "{".repeat(n),
        _ => {}
    }
    let length = match random.below(20) {
        0 => *random.pick(&[0, 1, u64::MAX, 1 << 40, 100_000_000]),
        _ => text.len() as u64,
    };
    [&length.to_le_bytes()[..], text.as_bytes()].concat()
}

/// Writes an index of a folder's parts.
fn index(random: &mut Random) -> String {
    let n = 1 << random.below(17);
    let file = *random.pick(&[
        "model.safetensors",
        "model.safetensors.index.json",
        "../model.safetensors",
        "/dev/zero",
        "",
        ".",
        "model-00001-of-99999.safetensors",
    ]);
    let map = |pairs: Vec<(String, Value)>| {
        json!({ "weight_map": Value::Object(pairs.into_iter().collect()) }).to_string()
    };
    match random.below(6) {
        0 => map((0..n).map(|idx| (format!("t{idx}"), json!(file))).collect()),
        1 => map((0..n.min(4096))
            .map(|idx| (format!("t{idx}"), json!(format!("{idx}.safetensors"))))
            .collect()),
        2 => format!("{{\"weight_map\":{}1{}}}", "{\"a\":".repeat(n), "}".repeat(n)),
        3 => format!("{}{}", "[".repeat(n), "]".repeat(n)),
        4 => map(vec![
            ("t".to_owned(), json!([file])),
            ("u".repeat(n), json!("v".repeat(n))),
        ]),
        _ => format!(
            "{{\"weight_map\":{{{}\"a\":\"{file}\"}}}}",
            format!("\"a\":\"{file}\",").repeat(n.min(20_000))
        ),
    }
}

#[test]
fn folders_whose_headers_and_indexes_lie_are_read_or_refused_in_bounded_time() {
    let original = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/parity/qwen2/hf");
    let folder = tempfile::tempdir().expect("a folder");
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    for entry in fs::read_dir(original).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .expect("a name")
            .to_owned();
        files.push((name, fs::read(&path).expect("a file")));
    }
    let model = files.iter().find(|(name, _)| name == "model.safetensors");
    let (_, model) = model.expect("the folder has weights");
    let length = u64::from_le_bytes(model[..8].try_into().expect("eight bytes")) as usize;
    let header: Map<String, Value> = serde_json::from_slice(&model[8..8 + length]).expect("a header");
    let data = &model[8 + length..];
    let put = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).expect("a file");
    for (name, bytes) in &files {
        put(name, bytes);
    }
    let args: [&[&str]; 2] = [
        &["run", "--raw", arg(folder.path()), "x", "-n", "1", "-t", "1"],
        &["inspect", arg(folder.path())],
    ];
    let mut n_refused = 0;
    for seed in rounds("safetensors", 60) {
        let mut random = Random::new(seed);
        let index_path: &Path = &folder.path().join("model.safetensors.index.json");
        let _ = fs::remove_file(index_path);
        if random.below(3) == 0 {
            put("model.safetensors", model);
            fs::write(index_path, index(&mut random)).expect("a file");
        } else {
            let mut header = header.clone();
            for _ in 0..random.below(3) {
                change_header(&mut header, &mut random);
            }
            let bytes = [header_bytes(&header, &mut random), data.to_vec()].concat();
            put("model.safetensors", &bytes);
        }
        let outcome = bounded(&format!("seed {seed}"), args[random.below(4) / 3]);
        n_refused += u32::from(outcome.code > 0);
    }
    assert!(n_refused > 0);
}

/// Editors on Windows begin files with a byte-order mark.
#[test]
fn a_byte_order_mark_before_a_schema_a_grammar_or_a_batch_is_passed_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let put = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, format!("\u{feff}{text}")).expect("a file");
        path
    };
    let schema = put("s.json", r#"{"type":"boolean"}"#);
    let grammar = put("g.gbnf", "root ::= \"yes\" | \"no\"\n");
    for (option, path) in [("--json-schema-file", &schema), ("--grammar-file", &grammar)] {
        let run = [
            "run", "--raw", "demo", "Once", "-n", "20", "--temp", "0", "-t", "1",
        ];
        let outcome = crate::support::tokenmill([&run[..], &[option, arg(path)]].concat());
        assert_eq!(outcome.code, 0, "{option}: {}", outcome.stderr);
    }
    let line = json!({ "custom_id": "1", "method": "POST", "url": "/v1/completions", "body":
        { "prompt": "Once", "max_tokens": 2 } });
    let batch = put("b.jsonl", &format!("{line}\r\n"));
    let out = folder.path().join("out.jsonl");
    crate::support::tokenmill(["batch", "demo", arg(&batch), arg(&out)]).ok();
    let out = fs::read_to_string(&out).expect("an output");
    assert!(out.contains("\"status_code\":200"), "{out}");
}
