//! The variables with which a family's template writes a prompt.

use serde_json::{Map, Value, json};

use super::super::question::{Question, QuestionKind};
use crate::decide_error::DecideError;

/// Deepest object or list that is given to a template as such. Templates indent, so a deeper one grows by its depth with each line.
const MAX_DEPTH: usize = 32;

/// Most bytes of a state, and of a question's texts, with each entry of their objects and lists on a line of its own.
const MAX_INDENTED_BYTES: usize = 8 << 20;

/// Returns the type of a question as files and templates name it.
pub(super) fn type_name(question: &Question) -> &'static str {
    match question.kind {
        QuestionKind::Predicate { .. } => "noul",
        QuestionKind::Choice(_) => "choice",
        QuestionKind::Score(_) => "score",
    }
}

/// Returns the index of a question's type among the scores of a decision head.
pub(super) fn column(question: &Question) -> usize {
    match question.kind {
        QuestionKind::Choice(_) => 0,
        QuestionKind::Score(_) => 1,
        QuestionKind::Predicate { .. } => 2,
    }
}

/// Inserts the variables of a question whose options are shown in this order, with labels by place.
pub(super) fn insert_question(
    variables: &mut Map<String, Value>,
    question: &Question,
    name: String,
    order: &[usize],
    labels: Option<&[String]>,
) {
    let options = order.iter().enumerate().map(|(place, &option_idx)| {
        let (key, description) = match &question.kind {
            QuestionKind::Predicate { yes, no } => {
                let (key, text) = [("true", yes), ("false", no)][option_idx];
                (key.to_owned(), text)
            }
            QuestionKind::Choice(options) => {
                let option = &options[option_idx];
                (option.name.clone(), &option.description)
            }
            QuestionKind::Score(levels) => (option_idx.to_string(), &levels[option_idx]),
        };
        let description = match description.as_str() {
            "" => Value::Null,
            text => json_or_text(text),
        };
        let mut option = Map::from_iter([
            ("key".to_owned(), key.into()),
            ("description".to_owned(), description),
        ]);
        if let Some(labels) = labels {
            option.insert("label".to_owned(), labels[place].as_str().into());
        }
        Value::Object(option)
    });
    let options = options.collect();
    variables.insert("id".to_owned(), name.into());
    variables.insert("type".to_owned(), type_name(question).into());
    variables.insert("instructions".to_owned(), json_or_text(&question.instructions));
    variables.insert("options".to_owned(), options);
}

/// Returns an object or a list where the text is one as compact JSON, as requests' objects and lists are given, and otherwise the text.
/// Each family's template writes them in its own form.
pub(super) fn json_or_text(text: &str) -> Value {
    if text.starts_with(['{', '['])
        && let Ok(value) = serde_json::from_str::<Value>(text)
        && depth(&value) <= MAX_DEPTH
    {
        let written = value.to_string();
        if written == text {
            return value;
        }
    }
    json!(text)
}

/// Checks the bytes of values in the form in which a template may write them: those of a question, or of the state.
pub(super) fn check_bytes<'v>(
    values: impl IntoIterator<Item = &'v Value>,
    question_idx: Option<usize>,
) -> Result<(), DecideError> {
    let bytes = values.into_iter().map(|value| indented_bytes(value, 0));
    let found_bytes: usize = bytes.sum();
    if found_bytes > MAX_INDENTED_BYTES {
        return Err(DecideError::IndentedTooLong {
            question_idx,
            found_bytes,
            maximum_bytes: MAX_INDENTED_BYTES,
        });
    }
    Ok(())
}

/// Returns how many bytes a value takes at most where each entry is a line, indented by two spaces a level; marks of escaped letters apart.
fn indented_bytes(value: &Value, depth: usize) -> usize {
    // Around an entry: its indent, a comma and a line break.
    let line = 2 * depth + 4;
    match value {
        Value::Null | Value::Bool(_) => 5,
        Value::Number(number) => number.to_string().len(),
        Value::String(text) => text.len() + 2,
        Value::Array(items) => {
            let items = items.iter().map(|item| line + indented_bytes(item, depth + 1));
            line + items.sum::<usize>()
        }
        Value::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(key, value)| line + 4 + key.len() + indented_bytes(value, depth + 1));
            line + fields.sum::<usize>()
        }
    }
}

/// Returns how deeply objects and lists stand in each other.
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// Sorts the keys of all objects.
pub(super) fn sort_keys(value: &mut Value) {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = std::mem::take(map).into_iter().collect();
            entries.sort_by(|(a, _), (b, _)| a.cmp(b));
            map.extend(entries);
            map.values_mut().for_each(sort_keys);
        }
        Value::Array(items) => items.iter_mut().for_each(sort_keys),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compact_json_is_an_object_and_other_text_is_text() {
        assert_eq!(json_or_text(r#"{"b":[1,2.5]}"#), json!({ "b": [1, 2.5] }));
        for text in ["plain", "", "{", r#"{"a": 1}"#, "[1", "3"] {
            assert_eq!(json_or_text(text), json!(text));
        }
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(json_or_text(&nested(MAX_DEPTH)).is_array());
        assert!(json_or_text(&nested(MAX_DEPTH + 1)).is_string());
    }

    #[test]
    fn values_that_grow_much_by_their_indents_are_refused() {
        let nested = |n_values: usize| {
            let mut value = Value::from(vec![1; n_values]);
            for _ in 1..MAX_DEPTH {
                value = Value::Array(vec![value]);
            }
            value
        };
        assert_eq!(check_bytes([&nested(1000)], None), Ok(()));
        // 400 KB as compact JSON, and each number has an indent of 62.
        let wide = nested(200_000);
        let Err(DecideError::IndentedTooLong {
            question_idx,
            found_bytes,
            maximum_bytes,
        }) = check_bytes([&wide], Some(3))
        else {
            panic!("it is accepted");
        };
        let written = serde_json::to_string_pretty(&wide).unwrap().len();
        assert_eq!((question_idx, maximum_bytes), (Some(3), MAX_INDENTED_BYTES));
        assert!(
            (written..written + written / 8).contains(&found_bytes),
            "{found_bytes}, written {written}"
        );
        let texts = vec![json!("x".repeat(1 << 20)); 9];
        assert!(check_bytes(&texts[..7], None).is_ok() && check_bytes(&texts, None).is_err());
    }

    #[test]
    fn keys_are_sorted_at_every_depth() {
        let mut value = json!({ "b": [{ "d": 1, "c": 2 }], "a": null });
        sort_keys(&mut value);
        assert_eq!(value.to_string(), r#"{"a":null,"b":[{"c":2,"d":1}]}"#);
    }
}
