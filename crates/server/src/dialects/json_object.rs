//! [`JsonObject`]: an object in a request whose fields are read one by one, with the path of each for its refusal.
//!
//! For objects of which several kinds stand in one list. Invariant: a field that no reader knows is refused by its path.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::ApiError;

/// An object and its path in the request.
#[derive(Clone, Debug)]
pub(super) struct JsonObject<'a> {
    pub(super) path: String,
    object: &'a Map<String, Value>,
}

impl<'a> JsonObject<'a> {
    /// Takes a value that must be an object.
    pub(super) fn of(path: String, value: &'a Value) -> Result<Self, ApiError> {
        match value.as_object() {
            Some(object) => Ok(Self { path, object }),
            None => Err(ApiError::invalid(path, "expected an object")),
        }
    }

    /// Returns the path of a field.
    pub(super) fn inner(&self, name: &str) -> String {
        format!("{}.{name}", self.path)
    }

    /// Returns a field; `None` where it is null.
    pub(super) fn get(&self, name: &str) -> Option<&'a Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    /// Refuses fields that are not in `known`.
    pub(super) fn refuse_others(&self, known: &[&str]) -> Result<(), ApiError> {
        let is_other =
            |(name, value): &(&String, &Value)| !known.contains(&name.as_str()) && !value.is_null();
        match self.object.iter().find(is_other) {
            Some((name, _)) => Err(ApiError::unknown_field(
                self.inner(name),
                name,
                known.iter().copied(),
            )),
            None => Ok(()),
        }
    }

    fn invalid<T>(&self, name: &str, reason: &str) -> Result<T, ApiError> {
        Err(ApiError::invalid(self.inner(name), reason))
    }

    /// Reads a field that is a text.
    pub(super) fn string(&self, name: &str) -> Result<&'a str, ApiError> {
        match self.get(name) {
            Some(Value::String(text)) => Ok(text),
            Some(_) => self.invalid(name, "expected a text"),
            None => self.invalid(name, "this field is required"),
        }
    }

    /// Reads a field that may be a text.
    pub(super) fn string_if(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        self.get(name).map(|_| self.string(name)).transpose()
    }

    /// Reads a text that may be written as JSON; empty where there is none.
    pub(super) fn text(&self, name: &str) -> Result<String, ApiError> {
        match self.get(name) {
            None => Ok(String::new()),
            Some(value) => text_of(self.inner(name), value),
        }
    }

    /// Reads such a text, which must say something.
    pub(super) fn required_text(&self, name: &str) -> Result<String, ApiError> {
        let text = self.text(name)?;
        if text.trim().is_empty() {
            return self.invalid(name, "expected a text that is not empty");
        }
        Ok(text)
    }

    /// Reads a list of so many values.
    pub(super) fn list(&self, name: &str, lengths: RangeInclusive<usize>) -> Result<&'a [Value], ApiError> {
        let Some(Value::Array(values)) = self.get(name) else {
            return self.invalid(name, "expected a list");
        };
        if lengths.contains(&values.len()) {
            return Ok(values);
        }
        let (least, most) = (lengths.start(), lengths.end());
        self.invalid(
            name,
            &format!("{} values, expected {least} to {most}", values.len()),
        )
    }
}

/// Returns a text itself, and an object or a list as compact JSON.
pub(super) fn text_of(path: impl Into<String>, value: &Value) -> Result<String, ApiError> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Object(_) | Value::Array(_) => Ok(value.to_string()),
        _ => Err(ApiError::invalid(path, "expected a text, an object or a list")),
    }
}
