//! Answers in a shape, on the built-in model at a temperature at which it babbles.

use std::{collections::BTreeMap, fs, path::PathBuf, sync::Mutex, thread};

use serde_json::{Value, json};
use tokenmill::{Answer, Constraint, Device, Error, FinishReason, Model, SamplingParams, TextParams};
use tokenmill_testkit::Comparisons;

fn model(n_ctx: usize) -> Model {
    let options = Model::options().context(n_ctx).sequences(16).threads(2);
    options.device(Device::Cpu).load("demo").unwrap()
}

fn babbling(constraint: Constraint, seed: u64) -> TextParams {
    TextParams {
        sampling: SamplingParams {
            temperature: 2.0,
            seed,
            ..SamplingParams::default()
        },
        max_tokens: Some(200),
        constraint: Some(constraint),
        ..TextParams::default()
    }
}

fn answers(model: &Model, constraint: Constraint) -> Vec<Answer> {
    let params = TextParams {
        n: 4,
        ..babbling(constraint, 1)
    };
    model.samples("Once upon a time", &params).unwrap()
}

#[test]
fn a_part_of_a_shape_is_not_whole() {
    let model = model(64);
    let words = model.words();
    let is_whole = |constraint: &Constraint, text: &str| {
        let mut ids = words.encode_text(text, false);
        let found = words.is_whole(constraint, &ids).unwrap();
        // The token that ends an answer makes nothing whole.
        ids.push(words.end_ids()[0]);
        assert_eq!(words.is_whole(constraint, &ids).unwrap(), found, "{text}");
        found
    };
    let schema = Constraint::json_schema(json!({"type": "object", "properties": {"n": {"type": "integer"}},
        "required": ["n"], "additionalProperties": false}));
    for (text, expected) in [
        ("{\"n\": 12}", true),
        ("{\"n\": 12", false),
        ("{", false),
        ("{\"m\": 12}", false),
        ("no", false),
    ] {
        assert_eq!(is_whole(&schema, text), expected, "{text}");
    }
    let open = Constraint::regex("ab*");
    for (text, expected) in [("a", true), ("abb", true), ("b", false), ("", false)] {
        assert_eq!(is_whole(&open, text), expected, "{text}");
    }
}

#[test]
fn every_sample_has_the_shape() {
    let model = model(512);
    let schema = json!({
        "type": "object",
        "properties": {"tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}, "n": {"type": "integer"}},
        "required": ["tags", "n"],
        "additionalProperties": false,
    });
    let validator = jsonschema::validator_for(&schema).unwrap();
    for answer in answers(&model, Constraint::json_schema(&schema)) {
        assert_eq!(answer.finish, FinishReason::Stop);
        let value: Value = serde_json::from_str(&answer.text).unwrap();
        assert!(validator.is_valid(&value), "{value}");
    }
    for answer in answers(&model, Constraint::choice(["yes", "no"])) {
        assert!(["yes", "no"].contains(&answer.text.as_str()));
    }
    for answer in answers(&model, Constraint::gbnf("root ::= \"<\" [a-f]{3,5} \">\"")) {
        assert!(
            answer.text.starts_with('<') && answer.text.ends_with('>'),
            "{}",
            answer.text
        );
        assert!((5..=7).contains(&answer.text.len()), "{}", answer.text);
    }
}

#[test]
fn a_constraint_may_begin_after_a_marker_and_ends_like_any_text() {
    let model = model(512);
    let tokenizer = model.words().tokenizer();
    // A sign that one token alone has, so that no token completes the marker and carries more text.
    let (marker, marker_id) = (b'!'..=b'~')
        .filter(u8::is_ascii_punctuation)
        .find_map(|sign| {
            let bytes_of = |id: &u32| tokenizer.token_bytes(*id).unwrap_or_default();
            let mut ids = (0..tokenizer.n_vocab() as u32).filter(|id| bytes_of(id).contains(&sign));
            let id = ids.next()?;
            (ids.next().is_none() && bytes_of(&id) == [sign]).then(|| (char::from(sign), id))
        })
        .expect("a rare sign");
    let mut params = babbling(Constraint::regex("[0-9]{3}").begins_after(marker), 5);
    params.ignore_eos = true;
    params.sampling.logit_bias = [(marker_id, 20.0)].into();
    let answer = model.complete("Once upon a time", &params).unwrap();
    let (thoughts, number) = answer.text.rsplit_once(marker).unwrap();
    assert!(
        number.len() == 3 && number.bytes().all(|byte| byte.is_ascii_digit()),
        "{thoughts:?} {number:?}"
    );
    assert_eq!(answer.finish, FinishReason::Stop);
}

#[test]
fn a_constraint_that_cannot_be_enforced_is_refused_before_anything_is_generated() {
    let refused = model(256).complete("Once", &babbling(Constraint::regex("("), 1));
    assert!(matches!(refused, Err(Error::Constraint(_))), "{refused:?}");
}

/// A greedy answer that has the shape anyway is the same with the constraint and without.
#[test]
fn a_mask_that_allows_everything_changes_nothing() {
    let model = model(512);
    let params = TextParams {
        max_tokens: Some(24),
        ..TextParams::default()
    };
    let plain = model.complete("Once upon a time", &params).unwrap();
    let any = TextParams {
        constraint: Some(Constraint::regex("(?s).*")),
        ..params
    };
    assert_eq!(model.complete("Once upon a time", &any).unwrap().text, plain.text);
}

#[derive(Debug, Default)]
struct Tally {
    n_refused: usize,
    n_complete: usize,
    n_cut: usize,
    refusals: BTreeMap<String, usize>,
}

fn answer_one(model: &Model, seed: u64, path: &PathBuf, tally: &Mutex<Tally>) {
    let file: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let schema = &file["schema"];
    let mut params = babbling(Constraint::json_schema(schema), seed);
    params.max_tokens = Some(400);
    let answer = match model.complete("{", &params) {
        Ok(answer) => answer,
        Err(Error::Constraint(error)) => {
            let mut tally = tally.lock().unwrap();
            tally.n_refused += 1;
            *tally
                .refusals
                .entry(error.to_string().chars().take(70).collect())
                .or_default() += 1;
            return;
        }
        Err(error) => panic!("{}: {error}", path.display()),
    };
    if answer.finish == FinishReason::Length {
        tally.lock().unwrap().n_cut += 1;
        return;
    }
    let value: Value = serde_json::from_str(&answer.text)
        .unwrap_or_else(|error| panic!("{}: {error}: {}", path.display(), answer.text));
    let validator = jsonschema::validator_for(schema).unwrap();
    if let Err(error) = validator.validate(&value) {
        panic!("{}: {error}: {}", path.display(), answer.text);
    }
    tally.lock().unwrap().n_complete += 1;
}

#[test]
fn complete_answers_to_real_schemas_are_valid() {
    let mut comparisons = Comparisons::of("JSON schemas, answers");
    let Some(folder) = comparisons.find("schemas/maskbench") else {
        return;
    };
    let mut paths: Vec<_> = (fs::read_dir(folder).unwrap().flatten())
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    paths.sort();
    let (model, tally) = (model(512), Mutex::new(Tally::default()));
    thread::scope(|scope| {
        for part in paths.chunks(paths.len().div_ceil(16)) {
            let (model, tally) = (model.clone(), &tally);
            scope.spawn(move || {
                for (seed, path) in (0..).zip(part) {
                    answer_one(&model, seed, path, tally);
                }
            });
        }
    });
    let tally = tally.into_inner().unwrap();
    println!("{tally:#?}");
    comparisons.compared(tally.n_complete);
    assert!(tally.n_refused <= 50, "{tally:?}");
    assert!(tally.n_complete > 0, "{tally:?}");
}
