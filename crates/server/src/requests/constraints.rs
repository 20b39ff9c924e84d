//! Reads the shape of an answer from the fields of several APIs into a [`Constraint`].
//!
//! A constraint means the same on every endpoint, under any name of its field. Invariant: a request sets at most one
//! constraint, and an error names the field that the client wrote.

use serde_json::{Map, Value};
use tokenmill::{Constraint, constraint::ConstraintError};

use crate::{
    ApiError,
    requests::fields::{Body, Field, yes},
};

/// The fields that all endpoints of OpenAI's API have, for their tables.
pub(crate) const CONSTRAINT_FIELDS: &[Field] = &[
    yes(
        "guided_json",
        "extension, as in vLLM; a JSON schema, or its text: the answer is JSON that is valid against it",
    ),
    yes(
        "guided_regex",
        "extension, as in vLLM; the answer matches the expression as a whole",
    ),
    yes(
        "guided_choice",
        "extension, as in vLLM; the answer is one of these texts",
    ),
    yes(
        "guided_grammar",
        "extension, as in vLLM; a grammar as in `grammar`",
    ),
    yes(
        "structured_outputs",
        "extension, as in vLLM; one of `json`, `json_object`, `regex`, `choice`, `grammar`; of its other fields only the defaults",
    ),
    yes(
        "grammar",
        "extension, as in llama.cpp; GBNF where rules are defined with `::=`, else Lark",
    ),
    yes(
        "json_schema",
        "extension, as in llama.cpp and SGLang; the same as `guided_json`",
    ),
    yes("regex", "extension, as in SGLang; the same as `guided_regex`"),
    yes("ebnf", "extension, as in SGLang; the same as `grammar`"),
];

/// The constraint of a request, and the field that sets it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RequestedConstraint {
    pub(crate) field: String,
    pub(crate) constraint: Constraint,
}

/// Reads the constraint of a request.
///
/// # Errors
/// A field of the wrong form, or two fields that set a constraint.
pub(crate) fn requested_constraint(body: &Body) -> Result<Option<RequestedConstraint>, ApiError> {
    let mut found: Option<RequestedConstraint> = None;
    for (name, read) in READERS {
        let Some(value) = body.get(name) else { continue };
        let Some((field, constraint)) = read(name, value)? else {
            continue;
        };
        if let Some(before) = &found {
            return Err(ApiError::invalid(
                field,
                format!("contradicts `{}`; request one shape", before.field),
            ));
        }
        found = Some(RequestedConstraint { field, constraint });
    }
    Ok(found)
}

/// The refusal of a shape.
pub(crate) fn refusal(field: &str, error: &ConstraintError) -> ApiError {
    match error {
        ConstraintError::Busy { .. } => ApiError::QueueTokensFull {
            reason: format!("`{field}`: {error}"),
            retry_after_s: 1,
        },
        _ => ApiError::invalid(field, error.to_string()),
    }
}

/// Path and constraint of a field.
type Found = Option<(String, Constraint)>;
type Reader = fn(&str, &Value) -> Result<Found, ApiError>;

const READERS: [(&str, Reader); 14] = [
    ("format", ollama_format),
    ("response_format", |name, value| {
        format(name, value, Nesting::Named)
    }),
    ("text", text),
    ("output_format", |name, value| format(name, value, Nesting::Flat)),
    ("output_config", output_config),
    ("guided_json", schema),
    ("json_schema", schema),
    ("guided_regex", regex),
    ("regex", regex),
    ("guided_choice", choice),
    ("guided_grammar", grammar),
    ("grammar", grammar),
    ("ebnf", grammar),
    ("structured_outputs", structured_outputs),
];

/// Reads Ollama's `format`: `json`, or a schema.
fn ollama_format(path: &str, value: &Value) -> Result<Found, ApiError> {
    match value {
        Value::String(word) if word.is_empty() => Ok(None),
        Value::String(word) if word == "json" => Ok(Some((path.to_owned(), Constraint::json_object()))),
        Value::Object(_) => schema(path, value),
        _ => Err(ApiError::invalid(
            path,
            "expected `json` or a JSON schema, which is an object",
        )),
    }
}

/// Where the schema of a format stands.
#[derive(Clone, Copy, PartialEq)]
enum Nesting {
    /// In an object `json_schema`, as on `/v1/chat/completions`.
    Named,
    /// In the format itself, as on `/v1/responses` and `/v1/messages`.
    Flat,
}

fn object<'v>(path: &str, value: &'v Value) -> Result<&'v Map<String, Value>, ApiError> {
    value
        .as_object()
        .ok_or_else(|| ApiError::invalid(path, "expected an object"))
}

fn only_known(path: &str, fields: &Map<String, Value>, known: &[&str]) -> Result<(), ApiError> {
    let is_unknown = |(name, value): &(&String, &Value)| !known.contains(&name.as_str()) && !value.is_null();
    match fields.iter().find(is_unknown) {
        Some((name, _)) => Err(ApiError::unknown_field(
            format!("{path}.{name}"),
            name,
            known.iter().copied(),
        )),
        None => Ok(()),
    }
}

fn format(path: &str, value: &Value, nesting: Nesting) -> Result<Found, ApiError> {
    let fields = object(path, value)?;
    let at = |name: &str| format!("{path}.{name}");
    let Some(kind) = fields.get("type").and_then(Value::as_str) else {
        return Err(ApiError::invalid(
            at("type"),
            "this field is required, and is a string",
        ));
    };
    match kind {
        "text" => {
            only_known(path, fields, &["type"])?;
            Ok(None)
        }
        "json_object" => {
            // llama.cpp takes a schema here.
            only_known(path, fields, &["type", "schema"])?;
            match fields.get("schema").filter(|schema| !schema.is_null()) {
                Some(of) => schema(&at("schema"), of),
                None => Ok(Some((path.to_owned(), Constraint::json_object()))),
            }
        }
        "json_schema"
            if nesting == Nesting::Named
                && fields
                    .get("json_schema")
                    .is_some_and(|described| !described.is_null()) =>
        {
            only_known(path, fields, &["type", "json_schema"])?;
            described_schema(
                &at("json_schema"),
                object(&at("json_schema"), &fields["json_schema"])?,
                &[],
            )
        }
        "json_schema" => described_schema(path, fields, &["type"]),
        _ => Err(ApiError::invalid(
            at("type"),
            format!(
                "`{}` is none of text, json_object, json_schema",
                crate::errors::api_error::shortened(kind)
            ),
        )),
    }
}

/// Reads a schema with its name and its description. Every schema is enforced, so `strict` changes nothing.
fn described_schema(path: &str, fields: &Map<String, Value>, others: &[&str]) -> Result<Found, ApiError> {
    let known = [&["name", "description", "schema", "strict"], others].concat();
    only_known(path, fields, &known)?;
    if fields
        .get("strict")
        .is_some_and(|strict| !strict.is_boolean() && !strict.is_null())
    {
        return Err(ApiError::invalid(
            format!("{path}.strict"),
            "expected true or false",
        ));
    }
    let at = format!("{path}.schema");
    match fields.get("schema").filter(|schema| !schema.is_null()) {
        Some(of) => schema(&at, of),
        None => Err(ApiError::invalid(at, "this field is required")),
    }
}

/// Reads the settings of the text on `/v1/responses`.
fn text(path: &str, value: &Value) -> Result<Found, ApiError> {
    let fields = object(path, value)?;
    only_known(path, fields, &["format", "verbosity"])?;
    match fields.get("format").filter(|format| !format.is_null()) {
        Some(of) => format(&format!("{path}.format"), of, Nesting::Flat),
        None => Ok(None),
    }
}

/// Reads the settings of the answer on `/v1/messages`.
fn output_config(path: &str, value: &Value) -> Result<Found, ApiError> {
    let fields = object(path, value)?;
    only_known(path, fields, &["format", "effort"])?;
    match fields.get("format").filter(|format| !format.is_null()) {
        Some(of) => format(&format!("{path}.format"), of, Nesting::Flat),
        None => Ok(None),
    }
}

/// Most values of a schema, including strings and numbers. A mebibyte of typical schemas has fewer. As values, JSON takes a hundred times
/// the size of its text, and the way to a grammar makes several copies.
const MAX_SCHEMA_VALUES: usize = 64_000;

/// Refuses a schema with too many values.
fn check_values(path: &str, schema: &Value) -> Result<(), ApiError> {
    ValueBudget::default().take(path, schema)
}

/// Counts the values of schemas that are compiled together.
#[derive(Debug, Default)]
pub(crate) struct ValueBudget {
    n_values: usize,
}

impl ValueBudget {
    /// Adds the values of a schema.
    ///
    /// # Errors
    /// Fails on the schema with which there are too many, and names its path.
    pub(crate) fn take(&mut self, path: &str, schema: &Value) -> Result<(), ApiError> {
        let mut open = vec![schema];
        while let Some(value) = open.pop() {
            self.n_values += 1;
            match value {
                Value::Array(items) => open.extend(items),
                Value::Object(fields) => open.extend(fields.values()),
                _ => {}
            }
            if self.n_values + open.len() > MAX_SCHEMA_VALUES {
                let reason =
                    format!("the schema has more than {MAX_SCHEMA_VALUES} values, with those before it");
                return Err(ApiError::invalid(path, reason));
            }
        }
        Ok(())
    }
}

/// Reads a schema, or the text of one.
fn schema(path: &str, value: &Value) -> Result<Found, ApiError> {
    let constraint = match value {
        Value::Object(_) | Value::Bool(_) => {
            check_values(path, value)?;
            Constraint::json_schema(value)
        }
        Value::String(text) => {
            let parsed: Value = serde_json::from_str(text).map_err(|error| {
                ApiError::invalid(path, format!("the schema's text is not JSON: {error}"))
            })?;
            check_values(path, &parsed)?;
            Constraint::json_schema(&parsed)
        }
        _ => {
            return Err(ApiError::invalid(
                path,
                "expected a JSON schema, which is an object",
            ));
        }
    };
    Ok(Some((path.to_owned(), constraint)))
}

fn string<'v>(path: &str, value: &'v Value) -> Result<&'v str, ApiError> {
    value
        .as_str()
        .ok_or_else(|| ApiError::invalid(path, "expected a string"))
}

fn regex(path: &str, value: &Value) -> Result<Found, ApiError> {
    Ok(Some((path.to_owned(), Constraint::regex(string(path, value)?))))
}

/// Reads a grammar. llama.cpp's clients send an empty one for none.
fn grammar(path: &str, value: &Value) -> Result<Found, ApiError> {
    let text = string(path, value)?;
    Ok((!text.is_empty()).then(|| (path.to_owned(), Constraint::grammar(text))))
}

fn choice(path: &str, value: &Value) -> Result<Found, ApiError> {
    let texts: Option<Vec<&str>> = value
        .as_array()
        .and_then(|items| items.iter().map(Value::as_str).collect());
    let Some(texts) = texts else {
        return Err(ApiError::invalid(path, "expected a list of strings"));
    };
    Ok(Some((path.to_owned(), Constraint::choice(texts))))
}

/// Further fields of vLLM's `structured_outputs`, of which only the defaults pass, and why.
const UNREAD_OUTPUT_FIELDS: [(&str, &str); 5] = [
    ("disable_fallback", "there is one implementation of shapes"),
    (
        "disable_any_whitespace",
        "JSON may have space between its parts; use `grammar`",
    ),
    (
        "disable_additional_properties",
        "use `additionalProperties` in the schema",
    ),
    (
        "whitespace_pattern",
        "space between the parts of JSON is that of JSON; use `grammar`",
    ),
    ("structural_tag", "use `tools`"),
];

/// Fields of `structured_outputs` that are read.
const OUTPUT_FIELDS: [&str; 5] = ["json", "json_object", "regex", "choice", "grammar"];

fn structured_outputs(path: &str, value: &Value) -> Result<Found, ApiError> {
    let fields = object(path, value)?;
    let mut found = None;
    for (name, value) in fields {
        let at = format!("{path}.{name}");
        if let Some((_, reason)) = UNREAD_OUTPUT_FIELDS.iter().find(|(unread, _)| unread == name) {
            if value.is_null() || value == false {
                continue;
            }
            return Err(ApiError::UnsupportedField { param: at, reason });
        }
        if !OUTPUT_FIELDS.contains(&name.as_str()) {
            return Err(ApiError::unknown_field(at, name, OUTPUT_FIELDS.into_iter()));
        }
        let next = match name.as_str() {
            _ if value.is_null() => None,
            "json" => schema(&at, value)?,
            "regex" => regex(&at, value)?,
            "choice" => choice(&at, value)?,
            "grammar" => grammar(&at, value)?,
            _ => match value.as_bool() {
                Some(true) => Some((at.clone(), Constraint::json_object())),
                Some(false) => None,
                None => return Err(ApiError::invalid(at, "expected true or false")),
            },
        };
        if next.is_some() && found.is_some() {
            return Err(ApiError::invalid(
                at,
                "contradicts another field beside it; request one shape",
            ));
        }
        found = found.or(next);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(body: &Value, expected: Result<Option<(&str, Constraint)>, &str>) {
        let fields: Vec<Field> = READERS.iter().map(|(name, _)| yes(name, "")).collect();
        let body = Body::parse(body.to_string().as_bytes(), &fields).expect("known fields");
        match (requested_constraint(&body), expected) {
            (Ok(None), Ok(None)) => {}
            (Ok(Some(found)), Ok(Some((field, constraint)))) => {
                assert_eq!((found.field.as_str(), found.constraint), (field, constraint));
            }
            (Err(error), Err(param)) => assert_eq!(error.param(), Some(param), "{error}"),
            (found, expected) => panic!("{found:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn a_schema_of_too_many_values_is_refused_in_every_form() {
        let of = |n: usize| json!({ "default": vec![json!({"": {}}); n] });
        let small = of(MAX_SCHEMA_VALUES / 2 - 2);
        check(
            &json!({ "guided_json": small }),
            Ok(Some(("guided_json", Constraint::json_schema(&small)))),
        );
        let large = of(MAX_SCHEMA_VALUES / 2);
        check(&json!({ "guided_json": large }), Err("guided_json"));
        check(&json!({ "guided_json": large.to_string() }), Err("guided_json"));
        let format = json!({ "type": "json_schema", "name": "a", "schema": large });
        check(
            &json!({ "text": { "format": format } }),
            Err("text.format.schema"),
        );
    }

    #[test]
    fn every_field_asks_for_its_shape() {
        let schema = json!({"type": "integer"});
        let of_schema = Constraint::json_schema(&schema);
        let format = json!({"type": "json_schema", "name": "n", "strict": true, "schema": schema});
        let named =
            json!({"type": "json_schema", "json_schema": {"name": "n", "strict": false, "schema": schema}});
        for (body, field) in [
            (
                json!({"response_format": named}),
                "response_format.json_schema.schema",
            ),
            (
                json!({"response_format": {"type": "json_schema", "schema": schema}}),
                "response_format.schema",
            ),
            (
                json!({"response_format": {"type": "json_object", "schema": schema}}),
                "response_format.schema",
            ),
            (json!({"text": {"format": format}}), "text.format.schema"),
            (
                json!({"output_format": {"type": "json_schema", "schema": schema}}),
                "output_format.schema",
            ),
            (
                json!({"output_config": {"format": {"type": "json_schema", "schema": schema}}}),
                "output_config.format.schema",
            ),
            (json!({"guided_json": schema}), "guided_json"),
            (json!({"guided_json": schema.to_string()}), "guided_json"),
            (json!({"json_schema": schema}), "json_schema"),
            (
                json!({"structured_outputs": {"json": schema, "regex": null}}),
                "structured_outputs.json",
            ),
        ] {
            check(&body, Ok(Some((field, of_schema.clone()))));
        }
        let object = Constraint::json_object;
        check(
            &json!({"response_format": {"type": "json_object"}}),
            Ok(Some(("response_format", object()))),
        );
        check(
            &json!({"text": {"format": {"type": "json_object"}}}),
            Ok(Some(("text.format", object()))),
        );
        check(
            &json!({"structured_outputs": {"json_object": true}}),
            Ok(Some(("structured_outputs.json_object", object()))),
        );
        for (body, field) in [
            (json!({"guided_regex": "a+"}), "guided_regex"),
            (json!({"regex": "a+"}), "regex"),
            (
                json!({"structured_outputs": {"regex": "a+"}}),
                "structured_outputs.regex",
            ),
        ] {
            check(&body, Ok(Some((field, Constraint::regex("a+")))));
        }
        check(
            &json!({"guided_choice": ["a", "b"]}),
            Ok(Some(("guided_choice", Constraint::choice(["a", "b"])))),
        );
        let gbnf = "root ::= \"a\"";
        check(
            &json!({"grammar": gbnf}),
            Ok(Some(("grammar", Constraint::gbnf(gbnf)))),
        );
        check(
            &json!({"guided_grammar": "start: \"a\""}),
            Ok(Some(("guided_grammar", Constraint::lark("start: \"a\"")))),
        );
    }

    #[test]
    fn what_asks_for_any_text_is_no_shape() {
        for body in [
            json!({}),
            json!({"response_format": {"type": "text"}, "grammar": "", "regex": null}),
            json!({"text": {"format": {"type": "text"}, "verbosity": "medium"}}),
            json!({"text": {}, "structured_outputs": {"json_object": false}}),
            json!({"text": {"verbosity": "low"}, "output_config": {"effort": "medium"}}),
            // Defaults that vLLM's own class writes.
            json!({"structured_outputs": {"json": null, "regex": null, "choice": null, "grammar": null, "json_object": null,
                "disable_fallback": false, "disable_any_whitespace": false, "disable_additional_properties": false,
                "whitespace_pattern": null, "structural_tag": null}}),
        ] {
            check(&body, Ok(None));
        }
    }

    #[test]
    fn what_is_wrong_names_its_field() {
        for (body, param) in [
            (json!({"response_format": "json"}), "response_format"),
            (json!({"response_format": {}}), "response_format.type"),
            (
                json!({"response_format": {"type": "xml"}}),
                "response_format.type",
            ),
            (
                json!({"response_format": {"type": "json_object", "a": 1}}),
                "response_format.a",
            ),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}),
                "response_format.json_schema.schema",
            ),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}}}),
                "response_format.json_schema.strict",
            ),
            (json!({"text": {"length": 3}}), "text.length"),
            (json!({"output_config": {"speed": 3}}), "output_config.speed"),
            (json!({"guided_json": "{"}), "guided_json"),
            (json!({"guided_json": 3}), "guided_json"),
            (json!({"guided_choice": "a"}), "guided_choice"),
            (json!({"guided_choice": [1]}), "guided_choice"),
            (json!({"guided_regex": 1}), "guided_regex"),
            (
                json!({"structured_outputs": {"json": {}, "regex": "a"}}),
                "structured_outputs.regex",
            ),
            (
                json!({"structured_outputs": {"structural_tag": "a"}}),
                "structured_outputs.structural_tag",
            ),
            (
                json!({"structured_outputs": {"json": {}, "disable_any_whitespace": true}}),
                "structured_outputs.disable_any_whitespace",
            ),
            (
                json!({"structured_outputs": {"xml": null}}),
                "structured_outputs.xml",
            ),
            (json!({"guided_regex": "a", "grammar": "start: \"a\""}), "grammar"),
        ] {
            check(&body, Err(param));
        }
    }
}
