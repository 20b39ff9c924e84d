//! Decisions of models that were trained for them: tiny ones, compared with a computation of the published formulas in float64.

mod types;

use std::{fs, path::PathBuf};

use serde_json::{Map, Value};
use tokenmill::{
    Device, Error, Model, TextParams,
    decide::{
        DecideError, DecideParams, DecisionTemperatures, Question, State, SystemOneQuestions, state_of,
    },
};

/// Attention rounds keys and values to 16 bits; the probabilities differ by less.
const TOLERANCE: f64 = 2e-3;

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/decisions"))
}

fn load(family: &str, n_threads: usize) -> Model {
    let options = Model::options().context(1024).sequences(4).threads(n_threads);
    (options
        .device(Device::Cpu)
        .load(folder().join(format!("{family}.gguf"))))
    .unwrap()
}

/// Loads a copy of the tiny OpenJev with other bytes, and with temperatures next to it.
fn load_changed(change: impl Fn(&mut Vec<u8>), temperatures: Option<&str>) -> Result<Model, Error> {
    let copy = tempfile::tempdir().unwrap();
    let path = copy.path().join("model.gguf");
    let mut bytes = fs::read(folder().join("openjev.gguf")).unwrap();
    change(&mut bytes);
    fs::write(&path, bytes).unwrap();
    if let Some(text) = temperatures {
        fs::write(copy.path().join("model.gguf.decisions.json"), text).unwrap();
    }
    Model::options()
        .context(512)
        .threads(1)
        .device(Device::Cpu)
        .load(path)
}

/// Replaces a text by one of the same length.
fn replace(bytes: &mut [u8], from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let places: Vec<usize> = (0..bytes.len() - from.len())
        .filter(|&at| bytes[at..].starts_with(from.as_bytes()))
        .collect();
    assert!(!places.is_empty(), "the file has `{from}`");
    for at in places {
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    }
}

/// A request with the answers that its model should give.
struct Case {
    family: String,
    state: State,
    asked: SystemOneQuestions,
    probabilities: Vec<Vec<f64>>,
    n_prompt_tokens: u64,
}

fn cases() -> Vec<Case> {
    let text = fs::read_to_string(folder().join("ref.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_str(&text).unwrap();
    let read = |case: &Value| {
        let asked = SystemOneQuestions::parse(case["questions"].as_object().unwrap()).unwrap();
        let numbers = |value: &Value| {
            value
                .as_array()
                .unwrap()
                .iter()
                .map(|p| p.as_f64().unwrap())
                .collect()
        };
        let probabilities: &Map<String, Value> = case["probabilities"].as_object().unwrap();
        Case {
            family: case["family"].as_str().unwrap().to_owned(),
            state: state_of(&case["state"]).unwrap(),
            asked,
            probabilities: probabilities.values().map(numbers).collect(),
            n_prompt_tokens: case["n_prompt_tokens"].as_u64().unwrap(),
        }
    };
    cases.iter().map(read).collect()
}

fn params(asked: &SystemOneQuestions) -> DecideParams {
    DecideParams {
        names: asked.names().to_vec(),
        ..DecideParams::default()
    }
}

#[test]
fn probabilities_are_those_of_the_published_formulas() {
    let cases = cases();
    let (mut worst, mut found_families) = (0.0_f64, Vec::new());
    for case in &cases {
        let model = load(&case.family, 1);
        let mut answers = model
            .start_deciding(case.state.clone(), case.asked.questions(), &params(&case.asked))
            .unwrap();
        let decisions: Vec<_> = answers.by_ref().collect::<Result<_, _>>().unwrap();
        for ((name, expected), found) in case.asked.names().iter().zip(&case.probabilities).zip(&decisions) {
            assert_eq!(found.probabilities.len(), expected.len());
            for (found, expected) in found.probabilities.iter().zip(expected) {
                worst = worst.max((found - expected).abs());
                assert!(
                    (found - expected).abs() < TOLERANCE,
                    "{} {name}: {found}, expected {expected}",
                    case.family
                );
            }
        }
        assert_eq!(
            answers.n_prompt_tokens() as u64,
            case.n_prompt_tokens,
            "{}",
            case.family
        );
        if !found_families.contains(&case.family) {
            found_families.push(case.family.clone());
        }
    }
    assert_eq!(found_families, ["laya", "openjev", "lev", "nimble", "kev"]);
    println!("largest difference {worst:.2e}");
}

#[test]
fn a_question_has_the_same_bits_alone_in_company_and_with_other_threads() {
    for case in cases().iter().filter(|case| case.asked.names().len() > 1) {
        let bits = |model: &Model, questions: &[Question], names: &[String]| -> Vec<Vec<u64>> {
            let params = DecideParams {
                names: names.to_vec(),
                ..DecideParams::default()
            };
            let answers = model
                .start_deciding(case.state.clone(), questions, &params)
                .unwrap();
            let decisions = answers.map(|decision| decision.unwrap());
            let bits = decisions.map(|decision| decision.probabilities.iter().map(|p| p.to_bits()).collect());
            bits.collect()
        };
        let (questions, names) = (case.asked.questions(), case.asked.names());
        let model = load(&case.family, 1);
        let together = bits(&model, questions, names);
        assert_eq!(bits(&model, questions, names), together, "{} again", case.family);
        let other = load(&case.family, 2);
        assert_eq!(
            bits(&other, questions, names),
            together,
            "{} on two threads",
            case.family
        );
        if case.family == "nimble" {
            // Each of its prompts lists all questions.
            continue;
        }
        for idx in 0..questions.len() {
            other.engine().forget_cache();
            let alone = bits(&other, &questions[idx..=idx], &names[idx..=idx]);
            assert_eq!(alone[0], together[idx], "{} {}", case.family, names[idx]);
        }
    }
}

#[test]
fn a_head_answers_questions_and_does_nothing_else() {
    let model = load("laya", 1);
    assert!(matches!(model.embed(&["text"]), Err(Error::MakesNoEmbeddings)));
    assert!(matches!(
        model.rerank("text", &["text"]),
        Err(Error::RanksNothing)
    ));
    assert!(model.complete("text", &TextParams::default()).is_err());
    let long = "text ".repeat(400);
    let refused = model.decide(&long, &[Question::predicate("Is it?")]);
    assert!(matches!(refused, Err(Error::Engine(_))), "{refused:?}");
    // More options than labels are refused before anything is computed.
    let names: Vec<String> = (0..60).map(|idx| format!("n{idx}")).collect();
    let many = Question::choice("Which?", names.iter().map(String::as_str));
    assert!(model.decide("text", std::slice::from_ref(&many)).is_ok());
    let refused = load("openjev", 1).decide("text", &[many]);
    assert!(
        matches!(
            &refused,
            Err(Error::Decide(DecideError::OptionCount {
                found: 60,
                maximum: 52,
                ..
            }))
        ),
        "{refused:?}"
    );
}

#[test]
fn states_that_grow_much_in_a_template_are_refused() {
    let question = [Question::predicate("Is it?")];
    // 400 KB, whose lines are indented by 62 spaces.
    let wide = format!("{}{}1{}", "[".repeat(32), "1,".repeat(200_000), "]".repeat(32));
    for family in ["kev", "openjev"] {
        let model = load(family, 1);
        let refused = model.decide(&wide, &question).unwrap_err();
        assert!(
            matches!(
                &refused,
                Error::Decide(DecideError::IndentedTooLong {
                    question_idx: None,
                    ..
                })
            ),
            "{family}: {refused:?}"
        );
        let long = "x".repeat((1 << 20) + 1);
        let refused = model.decide(&long, &question).unwrap_err();
        assert!(
            matches!(&refused, Error::Decide(DecideError::StateTooLong { .. })),
            "{family}: {refused:?}"
        );
    }
}

#[test]
fn control_tokens_in_a_text_are_text() {
    let model = load("laya", 1);
    let question = [Question::choice("Which [MASK] [SEP]?", ["[MASK]", "[SEP] b"])];
    assert!(model.decide("[SEP] [CLS] [MASK]", &question).is_ok());
}

#[test]
fn faults_of_a_file_are_named_and_leave_its_texts() {
    let question = [Question::predicate("Is it?")];
    let fault = |from: &str, to: &str| {
        let model = load_changed(|bytes| replace(bytes, from, to), None).unwrap();
        let refused = model.decide("text", &question).unwrap_err();
        assert!(model.complete("text", &TextParams::new().max_tokens(1)).is_ok());
        refused.to_string()
    };
    let unknown = fault("openjev", "unknown");
    assert!(
        unknown.contains("`unknown`") && unknown.contains("kev, laya, lev, nimble, openjev"),
        "{unknown}"
    );
    let missing = fault("chat_template.systemone", "chat_template.systemtwo");
    assert!(missing.contains("chat_template.systemone"), "{missing}");
    let broken = fault("{% for o", "{% fxr o");
    assert!(broken.contains("template for decisions"), "{broken}");
    let negative = load_changed(
        |bytes| {
            let key = b"decision.temperature.noul";
            let at = bytes.windows(key.len()).position(|part| part == key).unwrap() + key.len() + 4;
            bytes[at..at + 4].copy_from_slice(&(-1f32).to_le_bytes());
        },
        None,
    );
    let refused = negative
        .unwrap()
        .decide("text", &question)
        .unwrap_err()
        .to_string();
    assert!(refused.contains("qwen3.decision.temperature.noul"), "{refused}");
}

#[test]
fn temperatures_next_to_a_model_are_applied() {
    let question = [
        Question::predicate("Is it?"),
        Question::choice("Which?", ["a", "b", "c"]),
    ];
    let plain = load_changed(|_| {}, None)
        .unwrap()
        .decide("text", &question)
        .unwrap();
    let file = r#"{"noul": 2.0, "choice": 1.0, "score": 3.0}"#;
    let model = load_changed(|_| {}, Some(file)).unwrap();
    let fitted = DecisionTemperatures {
        noul: 2.0,
        choice: 1.0,
        score: 3.0,
    };
    assert_eq!(model.words().decision_temperatures().unwrap(), &fitted);
    let warm = model.decide("text", &question).unwrap();
    assert_eq!(warm[1], plain[1]);
    let logit =
        |decision: &tokenmill::decide::Decision| (decision.probabilities[0] / decision.probabilities[1]).ln();
    assert!(
        (2.0 * logit(&warm[0]) - logit(&plain[0])).abs() < 1e-9,
        "{warm:?}, {plain:?}"
    );
    let params = DecideParams {
        applies_fitted: false,
        ..DecideParams::default()
    };
    let unfitted: Result<Vec<_>, _> = model
        .start_deciding("text", &question, &params)
        .unwrap()
        .collect();
    assert_eq!(unfitted.unwrap(), plain);
    let broken = load_changed(|_| {}, Some(r#"{"noul": 0}"#)).unwrap();
    let Err(Error::Decide(DecideError::TemperatureFile { reason, .. })) = broken.decide("text", &question)
    else {
        panic!("a temperature of 0 is accepted");
    };
    assert_eq!(reason, "`noul` is not a positive number");
    // A new calibration and texts do not need the file.
    assert!(broken.start_deciding("text", &question, &params).is_ok());
    assert!(broken.complete("text", &TextParams::new().max_tokens(1)).is_ok());
}
