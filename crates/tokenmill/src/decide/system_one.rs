//! [`SystemOneQuestions`]: questions and answers as the JSON of the System One API has them.
//!
//! The server and the command line both read them. Invariant: answers have the names and the order of the questions; a field that
//! changes nothing is refused by its path.

use serde_json::{Map, Value, json};

use super::{
    json_object::{JsonObject, inner_path, text_of},
    state::State,
};
use crate::{
    decide_error::DecideError,
    decision::{
        answer::Decision,
        question::{ChoiceOption, Question, QuestionKind, check_count},
    },
    images::image_of_url,
};

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
        check_count(map.len())?;
        let mut parsed = Self::default();
        for (name, value) in map {
            let (question, legend) = question(inner_path("questions", name), value)?;
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

/// Returns a state: a text itself, an object or a list as compact JSON. Where it is a list of chat messages, images stand in the places of
/// their parts.
///
/// # Errors
/// [`DecideError::Json`] for other values, and for images that cannot be read.
pub fn state_of(state: &Value) -> Result<State, DecideError> {
    match state {
        Value::Null => Err(DecideError::json("state", "this field is required")),
        Value::Array(messages) if messages.iter().any(has_images) => {
            let messages = messages.iter().enumerate();
            list_of(messages.map(|(idx, message)| message_of(&format!("state[{idx}]"), message)))
        }
        state => Ok(text_of("state", state)?.into()),
    }
}

/// Returns the images of `data:` URLs.
///
/// # Errors
/// [`DecideError::Json`] for URLs that cannot be read.
pub fn images_of(path: &str, urls: &[String]) -> Result<State, DecideError> {
    let mut state = State::default();
    for (idx, url) in urls.iter().enumerate() {
        state = state.image(image_of(format!("{path}[{idx}]"), url)?);
    }
    Ok(state)
}

/// Returns the file of an image that is a part of a message in OpenAI's APIs: `image_url` is its URL, or an object with it.
///
/// # Errors
/// [`DecideError::Json`] for URLs that cannot be read.
pub fn image_of_part(part: &JsonObject<'_>) -> Result<Vec<u8>, DecideError> {
    match part.get("image_url") {
        Some(Value::String(url)) => image_of(part.inner("image_url"), url),
        _ => match part.object_if("image_url", "a URL, or an object with one")? {
            Some(object) => image_of(object.inner("url"), object.string("url")?),
            None => part.invalid("image_url", "this field is required"),
        },
    }
}

fn image_of(path: String, url: &str) -> Result<Vec<u8>, DecideError> {
    match image_of_url(url) {
        Ok(file) if file.is_empty() => Err(DecideError::json(path, "the image is empty")),
        Ok(file) => Ok(file),
        Err(reason) => Err(DecideError::json(path, reason)),
    }
}

fn is_image(part: &Value) -> bool {
    let kind = part.get("type").and_then(Value::as_str);
    kind.is_some_and(|kind| IMAGES.contains(&kind))
}

fn has_images(message: &Value) -> bool {
    let parts = message.get("content").and_then(Value::as_array);
    parts.is_some_and(|parts| parts.iter().any(is_image))
}

/// Writes a message as compact JSON, with images in the places of their parts.
fn message_of(path: &str, message: &Value) -> Result<State, DecideError> {
    let Some(fields) = message.as_object().filter(|_| has_images(message)) else {
        return Ok(message.to_string().into());
    };
    let mut written = State::default();
    for (name, value) in fields {
        let begin = if written.is_empty() { "{" } else { "," };
        written = written.text(&format!("{begin}{}:", Value::from(name.as_str())));
        written = match value {
            Value::Array(parts) if name == "content" => {
                let parts = parts
                    .iter()
                    .enumerate()
                    .map(|(idx, part)| -> Result<State, DecideError> {
                        if !is_image(part) {
                            return Ok(part.to_string().into());
                        }
                        let part = JsonObject::of(format!("{path}.content[{idx}]"), part)?;
                        part.refuse_others(&["type", "image_url", "detail"])?;
                        Ok(State::default().image(image_of_part(&part)?))
                    });
                written.then(list_of(parts)?)
            }
            value => written.text(&value.to_string()),
        };
    }
    Ok(written.text("}"))
}

/// Writes a list in compact JSON.
fn list_of(values: impl Iterator<Item = Result<State, DecideError>>) -> Result<State, DecideError> {
    let mut written = State::from("[");
    for (idx, value) in values.enumerate() {
        let begin = if idx == 0 { "" } else { "," };
        written = written.text(begin).then(value?);
    }
    Ok(written.text("]"))
}

/// Reads a question, and the levels of a score.
fn question(path: String, value: &Value) -> Result<(Question, Vec<Value>), DecideError> {
    let object = JsonObject::of(path, value)?;
    object.refuse_others(&FIELDS)?;
    let instructions = object.text("instructions")?;
    let mut legend = Vec::new();
    let kind = match object.get("type").and_then(Value::as_str) {
        Some("noul") => predicate(&object)?,
        Some("choice") => choice(&object)?,
        Some("score") => {
            let Some(Value::Array(values)) = object.get("criteria") else {
                return object.invalid("criteria", "expected a list of levels");
            };
            legend.clone_from(values);
            let levels = values.iter().enumerate();
            let level = |(idx, value)| text_of(format!("{}[{idx}]", object.inner("criteria")), value);
            QuestionKind::Score(levels.map(level).collect::<Result<_, _>>()?)
        }
        _ => return object.invalid("type", "expected `noul`, `choice` or `score`"),
    };
    Ok((Question { instructions, kind }, legend))
}

fn predicate(question: &JsonObject<'_>) -> Result<QuestionKind, DecideError> {
    let criteria = question.object_if("criteria", "an object with `true` and `false`")?;
    let (yes, no) = match criteria {
        None => (String::new(), String::new()),
        Some(criteria) => {
            criteria.refuse_others(&["true", "false"])?;
            (criteria.text("true")?, criteria.text("false")?)
        }
    };
    Ok(QuestionKind::Predicate { yes, no })
}

fn choice(question: &JsonObject<'_>) -> Result<QuestionKind, DecideError> {
    const EXPECTED: &str = "an object from names to descriptions";
    let Some(criteria) = question.object_if("criteria", EXPECTED)? else {
        return question.invalid("criteria", format!("expected {EXPECTED}"));
    };
    let option = |name: &str| {
        Ok(ChoiceOption {
            name: name.to_owned(),
            description: criteria.text(name)?,
        })
    };
    let options = criteria.names().map(option);
    Ok(QuestionKind::Choice(options.collect::<Result<_, DecideError>>()?))
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
                json!({ "type": "choice", "criteria": { "x.y": 1 } }),
                r#"questions.a.criteria["x.y"]"#,
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
            let (DecideError::Json { path: found, .. } | DecideError::UnknownField { path: found, .. }) =
                &error
            else {
                panic!("{error}");
            };
            assert_eq!(found, path, "{error}");
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
        let text = |state: Value| state_of(&state).unwrap().as_text().map(str::to_owned);
        assert_eq!(text(json!("as it is\n")).as_deref(), Some("as it is\n"));
        assert_eq!(
            text(json!({ "b": [1, 2.0], "a": null })).as_deref(),
            Some(r#"{"b":[1,2.0],"a":null}"#)
        );
        for state in [json!(null), json!(3), json!(true)] {
            assert!(state_of(&state).is_err(), "{state}");
        }
    }

    #[test]
    fn images_stand_in_the_places_of_their_parts() {
        const URL: &str = "data:image/png;base64,aGk=";
        let messages = json!([
            { "role": "system", "content": "Be kind." },
            { "role": "user", "content": [
                { "type": "text", "text": "What is it?" },
                { "type": "image_url", "image_url": { "url": URL, "detail": "low" } },
                { "type": "input_image", "image_url": URL },
            ], "name": "a" },
        ]);
        let state = state_of(&messages).unwrap();
        let expected = State::from(
            r#"[{"role":"system","content":"Be kind."},{"role":"user","content":[{"type":"text","text":"What is it?"},"#,
        );
        let image = &b"hi"[..];
        let expected = expected
            .image(image)
            .text(",")
            .image(image)
            .text(r#"],"name":"a"}]"#);
        assert_eq!(state, expected);
        assert_eq!(
            images_of("images", &[URL.to_owned(), URL.to_owned()]).unwrap(),
            State::default().image(image).image(image)
        );
        let part = |part: Value| json!([{ "role": "user", "content": [part] }]);
        for (state, path) in [
            (
                part(json!({ "type": "image_url" })),
                "state[0].content[0].image_url",
            ),
            (
                part(json!({ "type": "image_url", "image_url": { "url": "https://example.org/a.png" } })),
                "state[0].content[0].image_url.url",
            ),
            (
                part(json!({ "type": "image", "image_url": URL, "source": 1 })),
                "state[0].content[0].source",
            ),
            (
                part(json!({ "type": "image_url", "image_url": "data:;base64," })),
                "state[0].content[0].image_url",
            ),
        ] {
            let error = state_of(&state).unwrap_err();
            assert!(
                error.to_string().contains(&format!("`{path}`")),
                "{error}, expected {path}"
            );
        }
        assert!(images_of("images", &["a.png".to_owned()]).is_err());
    }
}
