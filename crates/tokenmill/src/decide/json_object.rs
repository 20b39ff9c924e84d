//! [`JsonObject`]: an object of a request for decisions whose fields are read one by one, with the path of each for its refusal.
//!
//! The dialects of the server and the questions of the command line are read with it. Invariants: a field that no reader knows is
//! refused by its path; a path tells names of a client apart from its own marks.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::{decide_error::DecideError, decision::question::check_count};

/// An object and its path in the request.
#[derive(Clone, Debug)]
pub struct JsonObject<'a> {
    path: String,
    object: &'a Map<String, Value>,
}

/// Returns the path of a field or an entry: `outer.name`, or `outer["name"]` where the name is no plain word.
pub fn inner_path(outer: &str, name: &str) -> String {
    let is_word = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && (name.chars()).all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-'));
    if is_word {
        format!("{outer}.{name}")
    } else {
        format!("{outer}[{}]", Value::from(name))
    }
}

impl<'a> JsonObject<'a> {
    /// Takes a value that must be an object.
    ///
    /// # Errors
    /// [`DecideError::Json`] for other values.
    pub fn of(path: impl Into<String>, value: &'a Value) -> Result<Self, DecideError> {
        let path = path.into();
        match value.as_object() {
            Some(object) => Ok(Self { path, object }),
            None => Err(DecideError::json(path, "expected an object")),
        }
    }

    /// Takes the values of a list, which must be objects.
    ///
    /// # Errors
    /// [`DecideError::Json`] for other values.
    pub fn each(
        path: impl Into<String>,
        values: &'a [Value],
    ) -> impl Iterator<Item = Result<Self, DecideError>> {
        let path = path.into();
        let values = values.iter().enumerate();
        values.map(move |(idx, value)| Self::of(format!("{path}[{idx}]"), value))
    }

    /// Takes the questions of a request that has them in a list.
    ///
    /// # Errors
    /// [`DecideError::QuestionCount`], and [`DecideError::Json`] for questions that are no objects.
    pub fn questions(values: &'a [Value]) -> Result<Vec<Self>, DecideError> {
        check_count(values.len())?;
        Self::each("questions", values).collect()
    }

    /// Returns its path.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the path of a field.
    pub fn inner(&self, name: &str) -> String {
        inner_path(&self.path, name)
    }

    /// Returns a field; `None` where it is null.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    /// Lists the names of its fields.
    pub fn names(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.object.keys().map(String::as_str)
    }

    /// Refuses fields that are not in `known`.
    ///
    /// # Errors
    /// [`DecideError::UnknownField`].
    pub fn refuse_others(&self, known: &[&str]) -> Result<(), DecideError> {
        let is_other =
            |(name, value): &(&String, &Value)| !known.contains(&name.as_str()) && !value.is_null();
        match self.object.iter().find(is_other) {
            Some((name, _)) => Err(DecideError::UnknownField {
                path: self.inner(name),
                name: name.clone(),
                known: known.iter().map(|&name| name.to_owned()).collect(),
            }),
            None => Ok(()),
        }
    }

    /// Makes the refusal of a field.
    ///
    /// # Errors
    /// [`DecideError::Json`] in any case.
    pub fn invalid<T>(&self, name: &str, reason: impl Into<String>) -> Result<T, DecideError> {
        Err(DecideError::json(self.inner(name), reason))
    }

    /// Reads a field that is a text.
    ///
    /// # Errors
    /// [`DecideError::Json`] for other values, and where there is none.
    pub fn string(&self, name: &str) -> Result<&'a str, DecideError> {
        match self.get(name) {
            Some(Value::String(text)) => Ok(text),
            Some(_) => self.invalid(name, "expected a text"),
            None => self.invalid(name, "this field is required"),
        }
    }

    /// Reads a field that may be a text.
    ///
    /// # Errors
    /// [`DecideError::Json`] for other values.
    pub fn string_if(&self, name: &str) -> Result<Option<&'a str>, DecideError> {
        self.get(name).map(|_| self.string(name)).transpose()
    }

    /// Reads a field that may be an object. `expected` describes it.
    ///
    /// # Errors
    /// [`DecideError::Json`] for other values.
    pub fn object_if(&self, name: &str, expected: &str) -> Result<Option<Self>, DecideError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(Self {
                path: self.inner(name),
                object,
            })),
            Some(_) => self.invalid(name, format!("expected {expected}")),
        }
    }

    /// Reads a text that may be written as JSON; empty where there is none.
    ///
    /// # Errors
    /// [`DecideError::Json`] for numbers and booleans.
    pub fn text(&self, name: &str) -> Result<String, DecideError> {
        match self.get(name) {
            None => Ok(String::new()),
            Some(value) => text_of(self.inner(name), value),
        }
    }

    /// Reads such a text, which must say something.
    ///
    /// # Errors
    /// [`DecideError::Json`] for numbers, booleans and white space.
    pub fn required_text(&self, name: &str) -> Result<String, DecideError> {
        let text = self.text(name)?;
        if text.trim().is_empty() {
            return self.invalid(name, "expected a text that is not empty");
        }
        Ok(text)
    }

    /// Reads a list of so many values.
    ///
    /// # Errors
    /// [`DecideError::Json`] for other values, and for more or fewer.
    pub fn list(&self, name: &str, lengths: RangeInclusive<usize>) -> Result<&'a [Value], DecideError> {
        let Some(Value::Array(values)) = self.get(name) else {
            return self.invalid(name, "expected a list");
        };
        if lengths.contains(&values.len()) {
            return Ok(values);
        }
        let (least, most) = (lengths.start(), lengths.end());
        self.invalid(
            name,
            format!("{} values, expected {least} to {most}", values.len()),
        )
    }

    /// Reads a list of so many objects.
    ///
    /// # Errors
    /// Returns the errors of [`Self::list`]; each element, [`DecideError::Json`] for other values.
    pub fn objects(
        &self,
        name: &str,
        lengths: RangeInclusive<usize>,
    ) -> Result<impl Iterator<Item = Result<Self, DecideError>>, DecideError> {
        Ok(Self::each(self.inner(name), self.list(name, lengths)?))
    }
}

/// Returns a text itself, and an object or a list as compact JSON.
///
/// # Errors
/// [`DecideError::Json`] for other values.
pub fn text_of(path: impl Into<String>, value: &Value) -> Result<String, DecideError> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Object(_) | Value::Array(_) => Ok(value.to_string()),
        _ => Err(DecideError::json(path, "expected a text, an object or a list")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_marks_names_that_are_no_words() {
        for (name, expected) in [
            ("team", "questions.team"),
            ("_is-it_2", "questions._is-it_2"),
            ("a.b", r#"questions["a.b"]"#),
            ("a[0]", r#"questions["a[0]"]"#),
            ("3", r#"questions["3"]"#),
            ("", r#"questions[""]"#),
            ("say \"it\"", r#"questions["say \"it\""]"#),
            ("größe", r#"questions["größe"]"#),
        ] {
            assert_eq!(inner_path("questions", name), expected);
        }
    }

    #[test]
    fn null_is_no_value() {
        let value = json!({ "a": null, "b": "text", "c": { "d": [1] }, "e": 3 });
        let object = JsonObject::of("x", &value).unwrap();
        assert_eq!(object.get("a"), None);
        assert_eq!(object.text("a"), Ok(String::new()));
        assert_eq!(object.string_if("a"), Ok(None));
        assert_eq!(object.text("c"), Ok(r#"{"d":[1]}"#.to_owned()));
        assert!(object.refuse_others(&["b", "c", "e"]).is_ok());
        let path = object.refuse_others(&["b", "c"]).unwrap_err();
        assert_eq!(
            path,
            DecideError::UnknownField {
                path: "x.e".to_owned(),
                name: "e".to_owned(),
                known: vec!["b".to_owned(), "c".to_owned()],
            }
        );
        assert!(object.text("e").is_err() && object.required_text("a").is_err());
        let inner = object.object_if("c", "an object").unwrap().unwrap();
        assert_eq!((inner.path(), inner.list("d", 1..=1).unwrap().len()), ("x.c", 1));
        assert!(inner.list("d", 2..=3).is_err() && object.object_if("b", "an object").is_err());
    }
}
