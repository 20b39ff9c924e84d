//! [`SystemOneQuestions`]: questions and answers as the JSON of the System One API has them.
//!
//! The server and the command line both read them. Invariant: answers have the names and the order of the questions; a field that
//! changes nothing is refused by its path.

use serde_json::{Map, Value, json};

use super::{
    decision::Decision,
    question::{ChoiceOption, MAX_QUESTIONS, Question, QuestionKind},
};
use crate::decide_error::DecideError;

/// Fields of a question.
const FIELDS: [&str; 3] = ["type", "instructions", "criteria"];

/// Parts of messages that are images.
const IMAGES: [&str; 3] = ["image_url", "input_image", "image"];

/// Questions with names.
#[derive(Clone, Debug, Default)]
pub struct SystemOneQuestions {
    names: Vec<String>,
    questions: Vec<Question>,
    /// The levels of each score as the request has them.
    legends: Vec<Vec<Value>>,
}

impl SystemOneQuestions {
    /// Reads the questions of a map from names to questions.
    ///
    /// # Errors
    /// [`DecideError::Json`] with the path below `questions`, and [`DecideError::QuestionCount`].
    pub fn parse(map: &Map<String, Value>) -> Result<Self, DecideError> {
        if map.len() > MAX_QUESTIONS {
            return Err(DecideError::QuestionCount {
                found: map.len(),
                maximum: MAX_QUESTIONS,
            });
        }
        let mut parsed = Self::default();
        for (name, value) in map {
            let (question, legend) = question(&format!("questions.{name}"), value)?;
            parsed.names.push(name.clone());
            parsed.questions.push(question);
            parsed.legends.push(legend);
        }
        Ok(parsed)
    }

    /// Returns the questions, for [`Model::start_deciding`](crate::Model::start_deciding).
    pub fn questions(&self) -> &[Question] {
        &self.questions
    }

    /// Returns the names of the questions.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Writes the answers: a map from the questions' names.
    pub fn answers(&self, decisions: &[Decision]) -> Map<String, Value> {
        let asked = self.names.iter().zip(&self.questions).zip(&self.legends);
        let answers = asked
            .zip(decisions)
            .map(|(((name, question), legend), decision)| (name.clone(), answer(question, legend, decision)));
        answers.collect()
    }
}

/// Returns the text of a state: a text itself, an object or a list as compact JSON.
///
/// # Errors
/// [`DecideError::Json`] for other values, and for messages with images.
pub fn state_text(state: &Value) -> Result<String, DecideError> {
    let messages = state.as_array().into_iter().flatten();
    let parts = messages
        .filter_map(|message| message.get("content")?.as_array())
        .flatten();
    let mut kinds = parts.filter_map(|part| part.get("type")?.as_str());
    if kinds.any(|kind| IMAGES.contains(&kind)) {
        return Err(fault("state", "images are not supported in decisions"));
    }
    match state {
        Value::Null => Err(fault("state", "this field is required")),
        state => text("state", state),
    }
}

fn fault(path: &str, reason: impl Into<String>) -> DecideError {
    DecideError::Json {
        path: path.to_owned(),
        reason: reason.into(),
    }
}

/// Reads a text, which may be written as JSON; nothing is an empty one.
fn text(path: &str, value: &Value) -> Result<String, DecideError> {
    match value {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        Value::Object(_) | Value::Array(_) => Ok(value.to_string()),
        Value::Bool(_) | Value::Number(_) => Err(fault(path, "expected a text, an object or a list")),
    }
}

/// Reads a question, and the levels of a score.
fn question(path: &str, value: &Value) -> Result<(Question, Vec<Value>), DecideError> {
    let object = (value.as_object()).ok_or_else(|| fault(path, "expected an object with `type`"))?;
    refuse_others(path, object, &FIELDS)?;
    let inner = |name: &str| format!("{path}.{name}");
    let instructions = text(
        &inner("instructions"),
        object.get("instructions").unwrap_or(&Value::Null),
    )?;
    let criteria = (object.get("criteria"), inner("criteria"));
    let mut legend = Vec::new();
    let kind = match object.get("type").and_then(Value::as_str) {
        Some("noul") => predicate(criteria.0, &criteria.1)?,
        Some("choice") => choice(criteria.0, &criteria.1)?,
        Some("score") => {
            legend = (criteria.0.and_then(Value::as_array).cloned())
                .ok_or_else(|| fault(&criteria.1, "expected a list of levels"))?;
            let levels = (legend.iter().enumerate()).map(|(idx, level)| match level {
                Value::Null => Err(fault(
                    &format!("{}[{idx}]", criteria.1),
                    "expected a text, an object or a list",
                )),
                level => text(&format!("{}[{idx}]", criteria.1), level),
            });
            QuestionKind::Score(levels.collect::<Result<_, _>>()?)
        }
        _ => return Err(fault(&inner("type"), "expected `noul`, `choice` or `score`")),
    };
    Ok((Question { instructions, kind }, legend))
}

fn refuse_others(path: &str, object: &Map<String, Value>, known: &[&str]) -> Result<(), DecideError> {
    match object.keys().find(|name| !known.contains(&name.as_str())) {
        Some(name) => Err(fault(&format!("{path}.{name}"), "unknown field")),
        None => Ok(()),
    }
}

fn predicate(criteria: Option<&Value>, path: &str) -> Result<QuestionKind, DecideError> {
    let empty = Map::new();
    let criteria = match criteria {
        None | Some(Value::Null) => &empty,
        Some(Value::Object(criteria)) => criteria,
        Some(_) => return Err(fault(path, "expected an object with `true` and `false`")),
    };
    refuse_others(path, criteria, &["true", "false"])?;
    let of = |name: &str| {
        let value = criteria.get(name).unwrap_or(&Value::Null);
        text(&format!("{path}.{name}"), value)
    };
    Ok(QuestionKind::Predicate {
        yes: of("true")?,
        no: of("false")?,
    })
}

fn choice(criteria: Option<&Value>, path: &str) -> Result<QuestionKind, DecideError> {
    let criteria = (criteria.and_then(Value::as_object))
        .ok_or_else(|| fault(path, "expected an object from names to descriptions"))?;
    let option = |(name, description): (&String, &Value)| {
        Ok(ChoiceOption {
            name: name.clone(),
            description: text(&format!("{path}.{name}"), description)?,
        })
    };
    Ok(QuestionKind::Choice(
        criteria.iter().map(option).collect::<Result<_, DecideError>>()?,
    ))
}

/// Writes an answer.
fn answer(question: &Question, legend: &[Value], decision: &Decision) -> Value {
    let mass = decision.label_mass;
    match &question.kind {
        QuestionKind::Predicate { .. } => {
            json!({ "type": "noul", "noul": decision.probabilities[0], "x_label_mass": mass })
        }
        QuestionKind::Choice(options) => {
            let names = options.iter().map(|option| option.name.clone());
            json!({
                "type": "choice",
                "choice": options[decision.likeliest()].name,
                "confidence": decision.choice_confidence(),
                "probabilities": map(names, &decision.probabilities),
                "x_label_mass": mass,
            })
        }
        QuestionKind::Score(levels) => {
            let numbers = || (0..levels.len()).map(|level| level.to_string());
            json!({
                "type": "score",
                "score": decision.expected_level(),
                "confidence": decision.score_confidence(),
                "legend": numbers().zip(legend.iter().cloned()).collect::<Map<_, _>>(),
                "probabilities": map(numbers(), &decision.probabilities),
                "x_label_mass": mass,
            })
        }
    }
}

fn map(names: impl Iterator<Item = String>, probabilities: &[f64]) -> Map<String, Value> {
    let values = probabilities.iter().map(|&probability| Value::from(probability));
    names.zip(values).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(questions: &Value) -> Result<SystemOneQuestions, DecideError> {
        SystemOneQuestions::parse(questions.as_object().unwrap())
    }

    #[test]
    fn questions_of_every_type_are_read_and_answered_in_their_order() {
        let asked = json!({
            "team": { "type": "choice", "instructions": { "task": "Who?" }, "criteria": { "loans": null, "cards": "card desk" } },
            "fraud": { "type": "noul", "criteria": { "true": "a thief" } },
            "risk": { "type": "score", "instructions": "How urgent?", "criteria": ["can wait", { "now": true }] },
        });
        let parsed = parse(&asked).unwrap();
        assert_eq!(parsed.names(), ["team", "fraud", "risk"]);
        assert_eq!(
            parsed.questions()[0],
            Question::choice(r#"{"task":"Who?"}"#, [("loans", ""), ("cards", "card desk")])
        );
        let QuestionKind::Predicate { yes, no } = &parsed.questions()[1].kind else {
            panic!("{parsed:?}");
        };
        assert_eq!((yes.as_str(), no.as_str()), ("a thief", ""));
        assert_eq!(
            parsed.questions()[2],
            Question::score("How urgent?", ["can wait", r#"{"now":true}"#])
        );
        let decision = |probabilities: &[f64]| Decision {
            probabilities: probabilities.to_vec(),
            label_mass: 0.5,
        };
        let decisions = [&[0.25, 0.75], &[1.0, 0.0], &[0.0, 1.0]].map(|row| decision(row));
        let expected = json!({
            "team": { "type": "choice", "choice": "cards", "confidence": 0.5,
                "probabilities": { "loans": 0.25, "cards": 0.75 }, "x_label_mass": 0.5 },
            "fraud": { "type": "noul", "noul": 1.0, "x_label_mass": 0.5 },
            "risk": { "type": "score", "score": 1.0, "confidence": 1.0, "legend": { "0": "can wait", "1": { "now": true } },
                "probabilities": { "0": 0.0, "1": 1.0 }, "x_label_mass": 0.5 },
        });
        assert_eq!(
            Value::from(parsed.answers(&decisions)).to_string(),
            expected.to_string()
        );
    }

    #[test]
    fn a_fault_has_its_path() {
        for (question, path) in [
            (json!("Is it?"), "questions.a"),
            (json!({ "instructions": "Is it?" }), "questions.a.type"),
            (json!({ "type": "box" }), "questions.a.type"),
            (
                json!({ "type": "noul", "instruction": "Is it?" }),
                "questions.a.instruction",
            ),
            (
                json!({ "type": "noul", "instructions": 3 }),
                "questions.a.instructions",
            ),
            (
                json!({ "type": "noul", "criteria": ["x"] }),
                "questions.a.criteria",
            ),
            (
                json!({ "type": "noul", "criteria": { "yes": "x" } }),
                "questions.a.criteria.yes",
            ),
            (json!({ "type": "choice" }), "questions.a.criteria"),
            (
                json!({ "type": "choice", "criteria": ["x"] }),
                "questions.a.criteria",
            ),
            (
                json!({ "type": "choice", "criteria": { "x": 1 } }),
                "questions.a.criteria.x",
            ),
            (
                json!({ "type": "score", "criteria": { "x": "y" } }),
                "questions.a.criteria",
            ),
            (
                json!({ "type": "score", "criteria": [1] }),
                "questions.a.criteria[0]",
            ),
            (
                json!({ "type": "score", "criteria": ["low", null] }),
                "questions.a.criteria[1]",
            ),
        ] {
            let error = parse(&json!({ "a": question })).unwrap_err();
            assert!(
                matches!(&error, DecideError::Json { path: found, .. } if found == path),
                "{error}"
            );
        }
        let many: Map<String, Value> = (0..10_000).map(|idx| (idx.to_string(), json!(null))).collect();
        let error = SystemOneQuestions::parse(&many).unwrap_err();
        assert!(
            matches!(error, DecideError::QuestionCount { found: 10_000, .. }),
            "{error}"
        );
    }

    #[test]
    fn a_state_is_a_text_or_compact_json() {
        assert_eq!(state_text(&json!("as it is\n")).unwrap(), "as it is\n");
        assert_eq!(
            state_text(&json!({ "b": [1, 2.0], "a": null })).unwrap(),
            r#"{"b":[1,2.0],"a":null}"#
        );
        let image = json!([{ "role": "user", "content": [{ "type": "image_url" }] }]);
        for state in [json!(null), json!(3), json!(true), image] {
            assert!(state_text(&state).is_err(), "{state}");
        }
    }
}
