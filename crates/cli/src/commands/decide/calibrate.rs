//! `decide --calibrate`: fits the temperatures of a model's answers to questions whose answers are known.
//!
//! Invariant: the file next to the model is written only after every line was read and answered.

use std::{fmt::Write as _, path::Path};

use serde_json::{Map, Value, json};
use tokenmill::{
    decide::{
        DecideParams, DecisionTemperatures, KnownAnswers, Question, QuestionKind, State, SystemOneQuestions,
        state_of,
    },
    load::ModelSource,
};

use super::{Args, MAX_SEQS, open};
use crate::{failure::Failure, input::read_text, output};

/// Answers that a type of question needs at least; others keep the temperature 1.
const LEAST_ANSWERS: usize = 10;

/// A line of the file.
struct Example {
    state: State,
    asked: SystemOneQuestions,
    /// The option that is right of each question.
    right: Vec<usize>,
}

pub(super) fn run(args: &Args, path: &Path) -> Result<(), Failure> {
    let examples = read_examples(path)?;
    let model_path = args.load.fetch.resolve(&args.model)?;
    let source = ModelSource::find(&model_path)?;
    let target = DecisionTemperatures::path_of(&source)
        .ok_or_else(|| Failure::usage("the built-in model has no place next to it for temperatures"))?;
    let model = open(args, &model_path, MAX_SEQS)?;
    let types = [
        ("noul", Question::predicate("").kind),
        ("choice", QuestionKind::Choice(Vec::new())),
        ("score", QuestionKind::Score(Vec::new())),
    ];
    let mut known = [const { KnownAnswers::new() }; 3];
    for (line_idx, example) in examples.iter().enumerate() {
        let params = DecideParams {
            permutations: args.permutations,
            names: example.asked.names().to_vec(),
            applies_fitted: false,
            ..DecideParams::default()
        };
        let questions = example.asked.questions();
        let in_line =
            |error: tokenmill::Error| Failure::input(format!("{}:{}: {error}", path.display(), line_idx + 1));
        let answers = model
            .start_deciding(example.state.clone(), questions, &params)
            .map_err(in_line)?;
        for ((answer, question), &right) in answers.zip(questions).zip(&example.right) {
            let type_idx = types
                .iter()
                .position(|(_, kind)| is_same_type(kind, &question.kind));
            known[type_idx.expect("there are three types")].push(answer.map_err(in_line)?, right);
        }
    }
    let mut temperatures = DecisionTemperatures::default();
    let (mut table, mut rows) = (String::new(), Map::new());
    for ((name, kind), known) in types.iter().zip(&known) {
        if known.is_empty() {
            continue;
        }
        if known.len() >= LEAST_ANSWERS {
            temperatures.set(kind, known.fit());
        }
        let temperature = temperatures.of(kind);
        let [before, after] = [1.0, temperature].map(|temperature| known.calibration_error(temperature));
        let _ = write!(
            table,
            "{name:6}  {} answers, temperature {temperature:.3}, expected calibration error {before:.4} before, {after:.4} after",
            known.len()
        );
        table += if known.len() < LEAST_ANSWERS {
            " (fewer than 10 answers: not fitted)\n"
        } else {
            "\n"
        };
        let row = json!({
            "answers": known.len(),
            "temperature": temperature,
            "calibration_error": { "before": before, "after": after },
        });
        rows.insert((*name).to_owned(), row);
    }
    temperatures.write(&target)?;
    if args.json {
        return output::print_json(&json!({ "file": target.display().to_string(), "types": rows }));
    }
    output::print(&format!("{table}written to {}\n", target.display()))
}

fn is_same_type(a: &QuestionKind, b: &QuestionKind) -> bool {
    std::mem::discriminant(a) == std::mem::discriminant(b)
}

fn read_examples(path: &Path) -> Result<Vec<Example>, Failure> {
    let text = read_text(path)?;
    let lines = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty());
    let examples = lines.map(|(line_idx, line)| {
        read_example(line)
            .map_err(|reason| Failure::input(format!("{}:{}: {reason}", path.display(), line_idx + 1)))
    });
    let examples: Vec<Example> = examples.collect::<Result<_, _>>()?;
    if examples.is_empty() {
        return Err(Failure::input(format!("{} has no line", path.display())));
    }
    Ok(examples)
}

/// Reads a line; the error is its fault.
fn read_example(line: &str) -> Result<Example, String> {
    let value: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let map = |name: &str| {
        let found = value.get(name).and_then(Value::as_object);
        found.ok_or_else(|| format!("`{name}` is not an object"))
    };
    let fault = |error: tokenmill::decide::DecideError| error.to_string();
    let state = state_of(value.get("state").unwrap_or(&Value::Null)).map_err(fault)?;
    let (questions, answers) = (map("questions")?, map("answers")?);
    let asked = SystemOneQuestions::parse(questions).map_err(fault)?;
    let right = asked
        .names()
        .iter()
        .zip(asked.questions())
        .map(|(name, question)| {
            let answer = answers
                .get(name)
                .ok_or_else(|| format!("`answers.{name}` is missing"))?;
            right_option(question, answer).ok_or_else(|| format!("`answers.{name}` is none of the options"))
        });
    Ok(Example {
        state,
        right: right.collect::<Result<_, _>>()?,
        asked,
    })
}

/// Returns the index of the option that an answer names: true or false, the name of an option, or the number of a level.
fn right_option(question: &Question, answer: &Value) -> Option<usize> {
    match &question.kind {
        QuestionKind::Predicate { .. } => answer.as_bool().map(|is_true| usize::from(!is_true)),
        QuestionKind::Choice(options) => {
            let name = answer.as_str()?;
            options.iter().position(|option| option.name == name)
        }
        QuestionKind::Score(levels) => {
            let level = usize::try_from(answer.as_u64()?).ok()?;
            (level < levels.len()).then_some(level)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_the_right_options() {
        let line = r#"{"state": {"a": 1}, "questions": {"f": {"type": "noul", "instructions": "Is it?"},
            "t": {"type": "choice", "criteria": {"cards": null, "loans": null}}, "r": {"type": "score", "criteria": ["low", "high"]}},
            "answers": {"r": 1, "t": "loans", "f": false}}"#;
        let example = read_example(line).unwrap();
        assert_eq!(
            (example.state.as_text().unwrap(), &example.right[..]),
            (r#"{"a":1}"#, &[1, 1, 1][..])
        );
        let check = |from: &str, to: &str, expected: &str| {
            let fault = read_example(&line.replace(from, to)).err().unwrap();
            assert!(fault.contains(expected), "{fault}");
        };
        check(
            "\"loans\", \"f\"",
            "\"boats\", \"f\"",
            "`answers.t` is none of the options",
        );
        check("\"r\": 1", "\"r\": 2", "`answers.r` is none of the options");
        check("\"f\": false", "\"g\": false", "`answers.f` is missing");
        check("\"answers\"", "\"answer\"", "`answers` is not an object");
        assert!(read_example("{").is_err());
    }
}
