//! `decide --calibrate`: fits the temperatures of a model's answers to questions whose answers are known.
//!
//! Invariants: every line is read and checked before the model is loaded; the file next to the model is written only after every line was
//! answered, and has no temperature at a bound of the search.

use std::{fmt::Write as _, path::Path};

use serde_json::{Map, Value, json};
use tokenmill::{
    Error,
    decide::{
        DecideError, DecideParams, DecisionTemperatures, KnownAnswers, Question, QuestionKind, State,
        SystemOneQuestions, inner_path, state_of,
    },
    load::ModelSource,
};
use tokenmill_server::near_names;

use super::{Args, MAX_SEQS, open};
use crate::{failure::Failure, input::read_text, output, visible::visible};

/// Answers that a type of question needs at least; others keep the temperature 1.
const LEAST_ANSWERS: usize = 10;

/// Fields of a line.
const FIELDS: [&str; 3] = ["state", "questions", "answers"];

/// A line of the file.
struct Example {
    /// Its number, counted from 1.
    line: usize,
    state: State,
    asked: SystemOneQuestions,
    /// The option that is right of each question.
    right: Vec<usize>,
}

pub(super) fn run(args: &Args, path: &Path) -> Result<(), Failure> {
    let examples = read_examples(path)?;
    let params = |example: &Example| DecideParams {
        permutations: args.permutations,
        names: example.asked.names().to_vec(),
        applies_fitted: false,
        ..DecideParams::default()
    };
    for example in &examples {
        let checked = params(example).check(&example.state, example.asked.questions());
        checked.map_err(|fault| fault_in(path, example, &fault.into()))?;
    }
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
    for example in &examples {
        let questions = example.asked.questions();
        let in_line = |error: Error| fault_in(path, example, &error);
        let answers = model
            .start_deciding(example.state.clone(), questions, &params(example))
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
    let mut is_any_fitted = false;
    for ((name, kind), known) in types.iter().zip(&known) {
        if known.is_empty() {
            continue;
        }
        let fitted = if known.len() < LEAST_ANSWERS {
            Err("fewer than 10 answers: not fitted")
        } else {
            known
                .fit()
                .ok_or("no temperature between 0.05 and 20 is best: not fitted")
        };
        if let Ok(temperature) = fitted {
            temperatures.set(kind, temperature);
            is_any_fitted = true;
        }
        let temperature = temperatures.of(kind);
        let [before, after] = [1.0, temperature].map(|temperature| known.calibration_error(temperature));
        let _ = write!(
            table,
            "{name:6}  {} answers, temperature {temperature:.3}, expected calibration error {before:.4} before, {after:.4} after",
            known.len()
        );
        table += &fitted.map_or_else(|reason| format!(" ({reason})\n"), |_| "\n".to_owned());
        let row = json!({
            "answers": known.len(),
            "fitted": fitted.is_ok(),
            "temperature": temperature,
            "calibration_error": { "before": before, "after": after },
        });
        rows.insert((*name).to_owned(), row);
    }
    let written = is_any_fitted.then(|| target.display().to_string());
    if is_any_fitted {
        temperatures.write(&target)?;
    }
    if args.json {
        return output::print_json(&json!({ "file": written, "types": rows }));
    }
    let end = match written {
        Some(file) => format!("written to {file}"),
        None => "nothing was fitted, so no file was written".to_owned(),
    };
    output::print(&format!("{table}{end}\n"))
}

/// Makes the failure of a line.
fn fault_in(path: &Path, example: &Example, error: &Error) -> Failure {
    let question = match error {
        Error::Decide(fault) => fault.question_idx(),
        _ => None,
    };
    let question = question.map(|idx| format!("question `{}`: ", visible(&example.asked.names()[idx])));
    Failure::input(format!(
        "{}:{}: {}{error}",
        path.display(),
        example.line,
        question.unwrap_or_default()
    ))
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
        read_example(line_idx + 1, line)
            .map_err(|reason| Failure::input(format!("{}:{}: {reason}", path.display(), line_idx + 1)))
    });
    let examples: Vec<Example> = examples.collect::<Result<_, _>>()?;
    if examples.is_empty() {
        return Err(Failure::input(format!("{} has no line", path.display())));
    }
    Ok(examples)
}

/// Reads a line; the error is its fault.
fn read_example(number: usize, line: &str) -> Result<Example, String> {
    let value: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let fields = value.as_object().ok_or("expected an object")?;
    if let Some(name) = fields.keys().find(|name| !FIELDS.contains(&name.as_str())) {
        return Err(format!(
            "unknown field `{}`{}",
            visible(name),
            near(name, &FIELDS)
        ));
    }
    let map = |name: &str| {
        let found = fields.get(name).and_then(Value::as_object);
        found.ok_or_else(|| format!("`{name}` is not an object"))
    };
    let fault = |error: DecideError| error.to_string();
    let state = state_of(fields.get("state").unwrap_or(&Value::Null)).map_err(fault)?;
    let (questions, answers) = (map("questions")?, map("answers")?);
    let asked = SystemOneQuestions::parse(questions).map_err(fault)?;
    if let Some(name) = answers.keys().find(|&name| !questions.contains_key(name)) {
        let names: Vec<&str> = asked.names().iter().map(String::as_str).collect();
        let path = inner_path("answers", name);
        return Err(format!(
            "`{path}` answers no question of this line{}",
            near(name, &names)
        ));
    }
    let right = asked
        .names()
        .iter()
        .zip(asked.questions())
        .map(|(name, question)| {
            let path = || inner_path("answers", name);
            let answer = answers
                .get(name)
                .ok_or_else(|| format!("`{}` is missing", path()))?;
            right_option(question, answer).ok_or_else(|| format!("`{}` is none of the options", path()))
        });
    Ok(Example {
        line: number,
        state,
        right: right.collect::<Result<_, String>>()?,
        asked,
    })
}

/// Names what is near a name, if anything is.
fn near(name: &str, known: &[&str]) -> String {
    let near = near_names(name, known.iter().copied());
    if near.is_empty() {
        return String::new();
    }
    format!("; near it: `{}`", visible(&near.join("`, `")))
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
        let example = read_example(7, line).unwrap();
        assert_eq!(
            (example.state.as_text().unwrap(), &example.right[..]),
            (r#"{"a":1}"#, &[1, 1, 1][..])
        );
        let check = |from: &str, to: &str, expected: &str| {
            let fault = read_example(7, &line.replace(from, to)).err().unwrap();
            assert!(fault.contains(expected), "{fault}");
        };
        check(
            "\"loans\", \"f\"",
            "\"boats\", \"f\"",
            "`answers.t` is none of the options",
        );
        check("\"r\": 1", "\"r\": 2", "`answers.r` is none of the options");
        check(", \"f\": false", "", "`answers.f` is missing");
        check(
            "\"f\": false",
            "\"f\": false, \"t.x\": 1",
            "`answers[\"t.x\"]` answers no question of this line",
        );
        check(
            "\"answers\"",
            "\"answer\"",
            "unknown field `answer`; near it: `answers`",
        );
        check(
            "\"answers\": {",
            "\"answers\": 3, \"state\": {",
            "`answers` is not an object",
        );
        check(
            "{\"state\"",
            "{\"weight\": 1, \"state\"",
            "unknown field `weight`",
        );
        assert!(read_example(7, "{").is_err() && read_example(7, "[]").is_err());
    }
}
