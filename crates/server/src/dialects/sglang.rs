//! SGLang's shape of `POST /v1/decisions`: questions with ids, answers in a map.
//!
//! It shares its path with OpenAI's, from which its questions differ. Invariant: a request of both shapes is refused.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use tokenmill::decide::{
    ChoiceOption, DECISION_PROMPT_VERSION, DecideError, Decision, JsonObject, MAX_LEVELS, MAX_OPTIONS,
    Question, QuestionKind, text_of,
};

/// Questions with ids.
#[derive(Clone, Debug)]
pub(crate) struct Questions {
    ids: Vec<String>,
    pub(crate) asked: Vec<Question>,
}

/// Returns whether a question has this shape.
pub(crate) fn is_own(question: &Value) -> bool {
    question.get("id").is_some() || question.get("question").is_some()
}

/// Returns the text of an input.
///
/// # Errors
/// An empty text, and a value other than a text, an object or a list.
pub(crate) fn input_text(input: &Value) -> Result<String, DecideError> {
    let text = text_of("input", input)?;
    if text.trim().is_empty() {
        return Err(DecideError::json("input", "expected a text that is not empty"));
    }
    Ok(text)
}

impl Questions {
    /// Reads the questions of a request.
    ///
    /// # Errors
    /// The first fault, with its path.
    pub(crate) fn parse(values: &[Value]) -> Result<Self, DecideError> {
        let mut parsed = Self {
            ids: Vec::new(),
            asked: Vec::new(),
        };
        let mut seen = BTreeSet::new();
        for object in JsonObject::questions(values)? {
            let id = object.string("id")?;
            if id.trim().is_empty() || !seen.insert(id) {
                return object.invalid("id", "expected a text that no other question has");
            }
            parsed.ids.push(id.to_owned());
            parsed.asked.push(question(&object)?);
        }
        Ok(parsed)
    }

    /// Writes the answers: a map from the questions' ids.
    pub(crate) fn answers(&self, decisions: &[Decision]) -> Map<String, Value> {
        let asked = self.ids.iter().zip(&self.asked).zip(decisions);
        asked
            .map(|((id, question), decision)| (id.clone(), answer(question, decision)))
            .collect()
    }
}

/// Checks the version of the prompts that a request asks for.
///
/// # Errors
/// Another version than this server's.
pub(crate) fn check_version(version: Option<u32>) -> Result<(), DecideError> {
    match version {
        Some(version) if version != DECISION_PROMPT_VERSION => Err(DecideError::json(
            "prompt_format_version",
            format!("{version} is not served; this server's prompts have version {DECISION_PROMPT_VERSION}"),
        )),
        _ => Ok(()),
    }
}

fn question(object: &JsonObject<'_>) -> Result<Question, DecideError> {
    let kind = match object.string("type")? {
        "choice" => {
            object.refuse_others(&["id", "type", "question", "options"])?;
            let option = |option: Result<JsonObject<'_>, DecideError>| {
                let option = option?;
                option.refuse_others(&["name", "description"])?;
                let name = option.string("name")?;
                if name.trim().is_empty() {
                    return option.invalid("name", "is empty");
                }
                Ok(ChoiceOption {
                    name: name.to_owned(),
                    description: option.text("description")?,
                })
            };
            let options = object.objects("options", 2..=MAX_OPTIONS)?.map(option);
            let options: Vec<ChoiceOption> = options.collect::<Result<_, DecideError>>()?;
            let mut names = BTreeSet::new();
            if let Some(idx) = options.iter().position(|option| !names.insert(&option.name)) {
                let path = format!("{}[{idx}].name", object.inner("options"));
                return Err(DecideError::json(path, "another option has this name"));
            }
            QuestionKind::Choice(options)
        }
        "score" => {
            object.refuse_others(&["id", "type", "question", "levels"])?;
            let levels = object.list("levels", 2..=MAX_LEVELS)?.iter().enumerate();
            let level = |(idx, value)| text_of(format!("{}[{idx}]", object.inner("levels")), value);
            QuestionKind::Score(levels.map(level).collect::<Result<_, _>>()?)
        }
        "yes_no" => {
            object.refuse_others(&["id", "type", "question", "yes", "no"])?;
            QuestionKind::Predicate {
                yes: object.text("yes")?,
                no: object.text("no")?,
            }
        }
        _ => return object.invalid("type", "expected `choice`, `score` or `yes_no`"),
    };
    Ok(Question {
        instructions: object.required_text("question")?,
        kind,
    })
}

fn answer(question: &Question, decision: &Decision) -> Value {
    let (kind, names) = match &question.kind {
        QuestionKind::Predicate { .. } => ("yes_no", vec!["yes".to_owned(), "no".to_owned()]),
        QuestionKind::Choice(options) => {
            let names = options.iter().map(|option| option.name.clone());
            ("choice", names.collect())
        }
        QuestionKind::Score(levels) => {
            let numbers = (0..levels.len()).map(|level| level.to_string());
            ("score", numbers.collect())
        }
    };
    let likeliest = names[decision.likeliest()].clone();
    let values = decision.probabilities.iter().map(|&value| Value::from(value));
    let mut answer = json!({
        "type": kind,
        "probabilities": names.into_iter().zip(values).collect::<Map<_, _>>(),
        "label_mass": decision.label_mass,
    });
    match kind {
        "choice" => answer["choice"] = likeliest.into(),
        "score" => answer["score"] = decision.expected_level().into(),
        _ => {}
    }
    answer
}
