//! Real JSON schemas and the official suite of JSON Schema: a constraint must never allow an invalid instance,
//! and must allow most valid ones.
//!
//! The instances are fed byte by byte, so the test needs neither a model nor a trained vocabulary.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::Value;
use tokenmill_gguf::{Metadata, StringArray};
use tokenmill_testkit::Comparisons;
use tokenmill_text::{
    Tokenizer,
    constraint::{Constraint, ConstraintCompiler, ConstraintError, ConstraintLimits, ConstraintMatcher},
};

const END: u32 = 256;

/// All bytes, then the end of a text.
fn bytes_tokenizer() -> Tokenizer {
    let bytes = (0..256).map(|byte| format!("<0x{byte:02X}>"));
    let tokens: StringArray = bytes.chain(["<end>".to_owned(), "<unk>".to_owned()]).collect();
    let mut metadata = Metadata::new();
    metadata.insert("tokenizer.ggml.model", "llama").unwrap();
    metadata.insert("tokenizer.ggml.tokens", tokens).unwrap();
    metadata.insert("tokenizer.ggml.scores", vec![0f32; 258]).unwrap();
    let kinds = [vec![6; 256], vec![3, 2]].concat();
    metadata.insert("tokenizer.ggml.token_type", kinds).unwrap();
    metadata.insert("tokenizer.ggml.eos_token_id", END).unwrap();
    metadata
        .insert("tokenizer.ggml.unknown_token_id", END + 1)
        .unwrap();
    Tokenizer::from_gguf(&metadata).unwrap()
}

/// Returns whether the constraint allows `text` as a whole.
fn admits(matcher: &mut ConstraintMatcher, text: &str) -> bool {
    if text.bytes().any(|byte| matcher.commit(u32::from(byte)).is_err()) {
        return false;
    }
    let mut mask = [0u32; 9];
    matcher.mask(&mut mask).is_ok() && mask[END as usize / 32] >> (END % 32) & 1 == 1
}

#[test]
fn between_the_parts_of_json_are_few_blanks() {
    let compiler = ConstraintCompiler::new(&bytes_tokenizer()).unwrap();
    let schema = serde_json::json!({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}},
        "required": ["a"], "additionalProperties": false});
    let compiled = compiler.compile(&Constraint::json_schema(&schema)).unwrap();
    let check = |text: &str, expected: bool| {
        let found = admits(&mut compiled.matcher(&[END]), text);
        assert_eq!(found, expected, "{text:?}");
    };
    for space in [
        "",
        " ",
        "\n",
        "\n\n",
        "\n    ",
        "\n\t\t",
        &format!("\n{}", " ".repeat(20)),
    ] {
        for text in ["{_\"a\":[1]}", "{\"a\"_:_[1]}", "{\"a\":[_1,_2_]_}"] {
            check(&text.replace('_', space), true);
        }
    }
    for space in [
        "  ",
        "\t",
        "\n\n\n",
        " \n",
        "\r\n",
        &format!("\n{}", " ".repeat(21)),
    ] {
        check(&"{_\"a\":[1]}".replace('_', space), false);
        check(&"{\"a\":[1,_2]}".replace('_', space), false);
    }
}

#[derive(Debug, Default)]
struct Tally {
    n_compiled: usize,
    n_refused: usize,
    n_valid_admitted: usize,
    n_valid_refused: usize,
    n_invalid_refused: usize,
    /// Schemas that were refused for each reason, shortened.
    reasons: BTreeMap<String, usize>,
}

/// Checks a group: a schema, and instances that say whether they are valid.
fn check(compiler: &ConstraintCompiler, name: &str, group: &Value, tally: &mut Tally) {
    let compiled = match compiler.compile(&Constraint::json_schema(&group["schema"])) {
        Ok(compiled) => compiled,
        Err(error) => {
            let is_clean = matches!(
                error,
                ConstraintError::Refused { .. }
                    | ConstraintError::Nothing { .. }
                    | ConstraintError::TooSlow { .. }
            );
            assert!(is_clean, "{name}: {error:?}");
            tally.n_refused += 1;
            *tally
                .reasons
                .entry(error.to_string().chars().take(70).collect())
                .or_default() += 1;
            return;
        }
    };
    tally.n_compiled += 1;
    for test in group["tests"].as_array().into_iter().flatten() {
        let text = test["data"].to_string();
        let is_admitted = admits(&mut compiled.matcher(&[END]), &text);
        match (test["valid"] == true, is_admitted) {
            (true, true) => tally.n_valid_admitted += 1,
            (true, false) => tally.n_valid_refused += 1,
            (false, false) => tally.n_invalid_refused += 1,
            (false, true) => panic!(
                "{name}: {}: {text} is invalid and is admitted",
                test["description"]
            ),
        }
    }
}

fn json_files(folder: &Path) -> Vec<(String, Value)> {
    let mut files: Vec<_> = (fs::read_dir(folder).unwrap().flatten())
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    files.sort();
    (files.iter())
        .map(|path| {
            let text = fs::read_to_string(path).unwrap();
            (
                path.file_name().unwrap().display().to_string(),
                serde_json::from_str(&text).unwrap(),
            )
        })
        .collect()
}

#[test]
fn no_constraint_admits_an_invalid_instance() {
    let mut comparisons = Comparisons::of("JSON schemas, instances");
    let limits = ConstraintLimits {
        compile_time: std::time::Duration::from_secs(20),
        longest_wait: std::time::Duration::from_mins(2),
        ..ConstraintLimits::default()
    };
    let compiler = ConstraintCompiler::with_limits(&bytes_tokenizer(), limits).unwrap();
    if let Some(folder) = comparisons.find("schemas/maskbench") {
        let mut tally = Tally::default();
        for (name, file) in json_files(&folder) {
            check(&compiler, &name, &file, &mut tally);
            comparisons.compared(1);
        }
        println!("real schemas: {tally:#?}");
        assert!(tally.n_compiled >= 250, "{tally:?}");
        assert!(
            tally.n_valid_admitted * 20 >= 19 * (tally.n_valid_admitted + tally.n_valid_refused),
            "{tally:?}"
        );
    }
    if let Some(folder) = comparisons.find("schemas/json-schema-test-suite-2020-12") {
        let mut tally = Tally::default();
        for (name, file) in json_files(&folder) {
            for group in file.as_array().unwrap() {
                check(
                    &compiler,
                    &format!("{name}, {}", group["description"]),
                    group,
                    &mut tally,
                );
            }
            comparisons.compared(1);
        }
        println!("official suite: {tally:#?}");
    }
}
