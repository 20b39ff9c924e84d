//! The table of request fields of each endpoint, and the check of a body against it.
//!
//! A parameter that is accepted and ignored hides a bug, unless its table says so. So every field of an
//! official API is in a table together with its treatment, any other field is refused by name, and the
//! documentation is printed from the same tables.

use std::fmt::Write as _;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::{
    ApiError,
    requests::{intake::check_weight, shape_sizes::check_sizes, value_words::in_words},
};

/// Says how a field is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// Implemented.
    Yes,
    /// Accepted; it describes the request and changes nothing about the answer, by the official definition.
    Label,
    /// Accepted, whatever its value, and without any effect; says why.
    Ignored(&'static str),
    /// Refused unless its value asks for the behaviour of this server; the text names the missing feature or the replacement.
    Refused(&'static str),
    /// Accepted with these values, written as JSON, which ask for the behaviour of this server; refused with any other.
    Only {
        /// The values.
        values: &'static [&'static str],
        /// Why another cannot be obeyed.
        why: &'static str,
    },
    /// Refused with these values, written as JSON; any other asks for the behaviour of this server.
    AllBut {
        /// The values.
        values: &'static [&'static str],
        /// Why they cannot be obeyed.
        why: &'static str,
    },
}

impl Support {
    /// Why a value of the field is refused, if it is.
    fn refusal(self, value: &Value) -> Option<&'static str> {
        let is_among = |values: &[&str]| {
            values
                .iter()
                .any(|text| serde_json::from_str::<Value>(text).is_ok_and(|listed| listed == *value))
        };
        match self {
            Self::Yes | Self::Label | Self::Ignored(_) => None,
            Self::Refused(why) => (!asks_for_nothing(value)).then_some(why),
            Self::Only { values, why } => (!value.is_null() && !is_among(values)).then_some(why),
            Self::AllBut { values, why } => is_among(values).then_some(why),
        }
    }
}

/// One field of a request.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Treatment of the field.
    pub support: Support,
    /// Its origin, or its special rules.
    pub note: &'static str,
}

/// An implemented field.
pub const fn yes(name: &'static str, note: &'static str) -> Field {
    Field {
        name,
        support: Support::Yes,
        note,
    }
}

/// A field that describes the request only.
pub const fn label(name: &'static str) -> Field {
    Field {
        name,
        support: Support::Label,
        note: "",
    }
}

/// A field that is accepted because clients send it, and that has no effect.
pub const fn ignored(name: &'static str, why: &'static str) -> Field {
    Field {
        name,
        support: Support::Ignored(why),
        note: "",
    }
}

/// A field that is refused by name.
pub const fn refused(name: &'static str, why: &'static str) -> Field {
    Field {
        name,
        support: Support::Refused(why),
        note: "",
    }
}

/// A field that is accepted with `values` only.
pub const fn only(name: &'static str, values: &'static [&'static str], why: &'static str) -> Field {
    Field {
        name,
        support: Support::Only { values, why },
        note: "",
    }
}

/// A field that is refused with `values` only.
pub const fn all_but(name: &'static str, values: &'static [&'static str], why: &'static str) -> Field {
    Field {
        name,
        support: Support::AllBut { values, why },
        note: "",
    }
}

/// A request body whose fields were all found in the endpoint's table.
#[derive(Clone, Debug)]
pub struct Body(Value);

impl Body {
    /// Parses a request body whose allowed contents are in `fields`.
    ///
    /// # Errors
    /// Malformed JSON, more values than may be parsed, or a field that is unknown or not supported, by name.
    pub fn parse(bytes: &[u8], fields: &[Field]) -> Result<Self, ApiError> {
        check_sizes(bytes)?;
        check_weight(bytes)?;
        let malformed = |reason: String| ApiError::MalformedJson { reason };
        let mut object: Map<String, Value> = match serde_json::from_slice(bytes) {
            Ok(Value::Object(object)) => object,
            Ok(_) => return Err(malformed("expected an object".to_owned())),
            Err(error) => return Err(malformed(error.to_string())),
        };
        check(&object, fields)?;
        // `null` is how many clients write that they say nothing.
        object.retain(|_, value| !value.is_null());
        Ok(Self(Value::Object(object)))
    }

    /// Returns the object in a field, whose allowed contents are in `fields`; an empty one if the request has none. It has the
    /// values of `defaults` where it has none of its own.
    ///
    /// # Errors
    /// No object, or a field of it that is unknown or not supported, with its path.
    pub(crate) fn inner(&self, name: &str, fields: &[Field], defaults: Value) -> Result<Self, ApiError> {
        let mut object = match defaults {
            Value::Object(defaults) => defaults,
            _ => Map::new(),
        };
        match self.get(name) {
            None => {}
            Some(Value::Object(own)) => {
                check(own, fields).map_err(|error| error.within(name))?;
                let own = own.iter().filter(|(_, value)| !value.is_null());
                object.extend(own.map(|(name, value)| (name.clone(), value.clone())));
            }
            Some(_) => return Err(ApiError::invalid(name, "expected an object")),
        }
        Ok(Self(Value::Object(object)))
    }

    /// Sets a field where the request is silent about it.
    pub(crate) fn set_default(&mut self, name: &str, value: Value) {
        if let Some(object) = self.0.as_object_mut() {
            object.entry(name).or_insert(value);
        }
    }

    /// Changes the object in a field, or an empty object if the request does not set it. Other values stay, to be refused.
    pub(crate) fn with_object(&mut self, name: &str, change: impl FnOnce(&mut Map<String, Value>)) {
        if let Some(object) = self.0.as_object_mut() {
            let inner = object.entry(name).or_insert_with(|| Value::Object(Map::new()));
            if let Some(inner) = inner.as_object_mut() {
                inner.retain(|_, value| !value.is_null());
                change(inner);
            }
        }
    }

    /// Takes a field out, as if the request were silent about it.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.as_object_mut()?.remove(name)
    }

    /// The value of a field; `None` where the request is silent.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// Reads some of the fields. Several types may each read their own from one body.
    ///
    /// # Errors
    /// A missing field or a value of the wrong type, with its path.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        serde_path_to_error::deserialize(&self.0).map_err(|error| {
            let path = error.path().to_string();
            let reason = error.into_inner().to_string();
            match reason
                .strip_prefix("missing field `")
                .and_then(|rest| rest.split('`').next())
            {
                Some(missing) if path == "." => ApiError::invalid(missing, "this field is required"),
                _ => ApiError::invalid(path, in_words(&reason)),
            }
        })
    }
}

/// Checks that all fields of an object stand in a table, with values that are supported.
fn check(object: &Map<String, Value>, fields: &[Field]) -> Result<(), ApiError> {
    for (name, value) in object {
        let Some(field) = fields.iter().find(|field| field.name == name) else {
            // An unknown field that is null can be ignored.
            if value.is_null() {
                continue;
            }
            let taken = fields
                .iter()
                .filter(|field| !matches!(field.support, Support::Refused(_)));
            return Err(ApiError::unknown_field(name, name, taken.map(|field| field.name)));
        };
        if let Some(reason) = field.support.refusal(value) {
            return Err(ApiError::UnsupportedField {
                param: name.clone(),
                reason,
            });
        }
    }
    Ok(())
}

/// Whether a value of a field that is not implemented asks for the behaviour of this server, as client libraries send it by
/// default or send back the fields of an answer.
pub(crate) fn asks_for_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items
            .iter()
            .all(|item| item.as_str().is_some_and(|word| word == "text")),
        Value::String(word) => {
            matches!(
                word.as_str(),
                "" | "none" | "auto" | "default" | "disabled" | "standard"
            )
        }
        Value::Object(object) => object.iter().all(|(name, value)| match value {
            Value::String(kind) if name == "type" => kind == "text" || kind == "disabled",
            value => asks_for_nothing(value),
        }),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

/// Checks the other fields of a part of a request than those that are read: `labels` describe and change nothing.
///
/// # Errors
/// The first field that asks for something, with its path after `path`.
pub(crate) fn refuse_others(
    path: &str,
    others: &Map<String, Value>,
    labels: &[&str],
) -> Result<(), ApiError> {
    let asks =
        |(name, value): &(&String, &Value)| !labels.contains(&name.as_str()) && !asks_for_nothing(value);
    match others.iter().find(asks) {
        Some((name, _)) => Err(ApiError::unknown_field(
            format!("{path}.{name}"),
            name,
            labels.iter().copied(),
        )),
        None => Ok(()),
    }
}

/// Writes a table of fields in Markdown.
pub fn markdown_table(fields: &[Field]) -> String {
    let mut table = String::from("| field | support | notes |\n|---|---|---|\n");
    for field in fields {
        let (support, why) = match field.support {
            Support::Yes => ("yes".to_owned(), ""),
            Support::Label => (
                "accepted".to_owned(),
                "describes the request, changes nothing about the answer",
            ),
            Support::Ignored(why) => ("ignored".to_owned(), why),
            Support::Refused(why) => ("refused (400)".to_owned(), why),
            Support::Only { values: [], why } => ("only `null`".to_owned(), why),
            Support::Only { values, why } => (format!("only {}", code_list(values)), why),
            Support::AllBut { values, why } => (format!("all but {}", code_list(values)), why),
        };
        let separator = if why.is_empty() || field.note.is_empty() {
            ""
        } else {
            "; "
        };
        let _ = writeln!(
            table,
            "| `{}` | {support} | {}{separator}{why} |",
            field.name, field.note
        );
    }
    table
}

fn code_list(values: &[&str]) -> String {
    let quoted: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
    quoted.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize, PartialEq)]
    struct Request {
        model: String,
        n: Option<u32>,
    }

    const FIELDS: &[Field] = &[
        yes("model", ""),
        yes("n", ""),
        label("user"),
        refused("tools", "no tools"),
        only("trim", &["false", "\"no\""], "nothing is trimmed"),
        all_but("keep", &["0", "\"0\""], "it is kept"),
    ];

    #[track_caller]
    fn check(body: &str, expected: Result<Request, (&str, Option<&str>)>) {
        let parsed = Body::parse(body.as_bytes(), FIELDS).and_then(|body| body.read::<Request>());
        match (&parsed, expected) {
            (Ok(found), Ok(wanted)) => assert_eq!(*found, wanted),
            (Err(error), Err((code, param))) => {
                assert_eq!((error.code(), error.param()), (code, param), "{error}");
            }
            (found, wanted) => panic!("{found:?}, expected {wanted:?}"),
        }
    }

    #[test]
    fn every_fault_names_its_field() {
        check(
            r#"{"model":"m","n":2,"user":"u"}"#,
            Ok(Request {
                model: "m".to_owned(),
                n: Some(2),
            }),
        );
        check("{", Err(("malformed_json", None)));
        check("[]", Err(("malformed_json", None)));
        check(r#"{"model":"m","n":"two"}"#, Err(("invalid_value", Some("n"))));
        check(r#"{"n":2}"#, Err(("invalid_value", Some("model"))));
        check(
            r#"{"model":"m","temprature":0}"#,
            Err(("unknown_parameter", Some("temprature"))),
        );
        check(
            r#"{"model":"m","tools":[{}]}"#,
            Err(("unsupported_parameter", Some("tools"))),
        );
    }

    #[test]
    fn an_unknown_field_is_told_what_is_near_it() {
        for (body, expected) in [
            (
                r#"{"model":"m","modl":1}"#,
                "unknown field `modl`; near it: `model`",
            ),
            (r#"{"model":"m","usr":1}"#, "unknown field `usr`; near it: `user`"),
            // A field that is refused as well would not help.
            (r#"{"model":"m","tool":1}"#, "unknown field `tool`"),
            (r#"{"model":"m","zzzzz":1}"#, "unknown field `zzzzz`"),
        ] {
            let error = Body::parse(body.as_bytes(), FIELDS).unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn a_refused_field_may_ask_for_nothing() {
        for value in [
            "null",
            "[]",
            r#"["text"]"#,
            "false",
            r#""auto""#,
            r#"{"type":"text"}"#,
            r#"{"format":{"type":"text"}}"#,
        ] {
            check(
                &format!(r#"{{"model":"m","tools":{value}}}"#),
                Ok(Request {
                    model: "m".to_owned(),
                    n: None,
                }),
            );
        }
        for value in [
            "true",
            "1",
            r#"["audio"]"#,
            r#"{"format":{"type":"json_object"}}"#,
        ] {
            check(
                &format!(r#"{{"model":"m","tools":{value}}}"#),
                Err(("unsupported_parameter", Some("tools"))),
            );
        }
    }

    #[test]
    fn a_foreign_field_passes_with_the_values_that_change_nothing() {
        let model = || Request {
            model: "m".to_owned(),
            n: None,
        };
        for fields in [
            r#""trim":false"#,
            r#""trim":"no""#,
            r#""trim":null"#,
            r#""keep":"5m""#,
            r#""keep":null"#,
        ] {
            check(&format!(r#"{{"model":"m",{fields}}}"#), Ok(model()));
        }
        for (fields, param) in [
            (r#""trim":true"#, "trim"),
            (r#""trim":"auto""#, "trim"),
            (r#""keep":0"#, "keep"),
            (r#""keep":"0""#, "keep"),
        ] {
            check(
                &format!(r#"{{"model":"m",{fields}}}"#),
                Err(("unsupported_parameter", Some(param))),
            );
        }
    }

    #[test]
    fn null_is_silence() {
        check(
            r#"{"model":"m","n":null}"#,
            Ok(Request {
                model: "m".to_owned(),
                n: None,
            }),
        );
        check(r#"{"model":null}"#, Err(("invalid_value", Some("model"))));
    }
}
