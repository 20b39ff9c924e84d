//! Arguments in a grammar: one JSON object, or a tag for each.
//!
//! Several shapes of calls share them. Invariants: a schema keyword that tags cannot express is refused, unless the tool's arguments are
//! relaxed; the size of copied schemas is limited.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::{
    Hold, Offer,
    bare::{names_kinds_only, text, text_choices, text_or_scalar},
    rules::{Rules, quoted},
};
use crate::{
    calls::{
        see_through::seen_through,
        tagged_body::{MAX_NAME_BYTES, TaggedShape},
        value_kinds::{ValueKinds, Written},
    },
    constraint::{Document, is_deeper_than, prepared},
};

/// Largest nesting depth of a schema.
const MAX_DEPTH: usize = 100;

/// Keywords at the top of a schema that do not restrict single arguments.
const TOP: [&str; 16] = [
    "type",
    "properties",
    "required",
    "additionalProperties",
    "$defs",
    "definitions",
    "title",
    "description",
    "$schema",
    "$id",
    "examples",
    "default",
    "$comment",
    "strict",
    "unevaluatedProperties",
    "deprecated",
];

/// An argument named in a schema.
pub(super) struct Argument {
    pub(super) key: String,
    /// The schema, with the definitions that it refers to.
    pub(super) schema: Value,
    /// The schema with its references and combinations resolved.
    pub(super) seen: Value,
    pub(super) kinds: ValueKinds,
    pub(super) is_required: bool,
}

/// Writes arguments as a JSON object.
pub(super) fn json(offer: &Offer<'_>, rules: &mut Rules<'_>) -> Result<String, String> {
    rules.begin_arguments()?;
    let object = json!({"type": "object"});
    let schema = match offer.hold {
        Hold::Exact => with_type(offer.schema),
        Hold::Relaxed => object,
    };
    value(&schema, rules)
}

/// Writes a JSON value of a schema.
pub(super) fn value(schema: &Value, rules: &mut Rules<'_>) -> Result<String, String> {
    if is_deeper_than(schema, MAX_DEPTH) {
        return Err(format!("it is nested deeper than {MAX_DEPTH} levels"));
    }
    let schema = prepared(schema)?;
    Ok(rules.rule(&format!("%json {schema}")))
}

/// Makes arguments an object, even if their schema does not say so.
fn with_type(schema: &Value) -> Value {
    match schema {
        Value::Object(fields) if !fields.contains_key("type") && !fields.contains_key("$ref") => {
            let mut fields = fields.clone();
            fields.insert("type".to_owned(), "object".into());
            Value::Object(fields)
        }
        Value::Object(_) => schema.clone(),
        _ => json!({"type": "object"}),
    }
}

/// Returns whether a schema allows arguments that it does not name. Relaxed arguments may then have any name; a format that writes names
/// cannot express the schema's rules for them.
///
/// # Errors
/// If such a schema must be enforced completely.
pub(super) fn takes_unnamed(offer: &Offer<'_>) -> Result<bool, String> {
    let schema = seen_through(offer.schema, offer.root);
    let is_open = [
        "additionalProperties",
        "unevaluatedProperties",
        "patternProperties",
    ]
    .iter()
    .any(|keyword| matches!(schema.get(keyword), Some(Value::Bool(true) | Value::Object(_))));
    if is_open && offer.hold == Hold::Exact {
        return Err("it takes arguments that it does not name".to_owned());
    }
    // Combinations that cannot be resolved may name any property.
    let is_combined = ["$ref", "allOf", "anyOf", "oneOf"]
        .iter()
        .any(|keyword| schema.get(keyword).is_some());
    Ok(is_open || is_combined && offer.hold == Hold::Relaxed)
}

/// Lists the arguments that a schema names, in its order.
pub(super) fn arguments_of(offer: &Offer<'_>, rules: &mut Rules<'_>) -> Result<Vec<Argument>, String> {
    let empty = Map::new();
    let seen: Cow<'_, Value> = seen_through(offer.schema, offer.root);
    let fields = seen.as_object().unwrap_or(&empty);
    let document = offer.root.root().as_object().unwrap_or(&empty);
    if offer.hold == Hold::Exact {
        if let Some(keyword) = fields.keys().find(|keyword| !TOP.contains(&keyword.as_str())) {
            return Err(format!("`{keyword}` stands at its top"));
        }
        if is_deeper_than(offer.schema, MAX_DEPTH) {
            return Err(format!("it is nested deeper than {MAX_DEPTH} levels"));
        }
    }
    let required: Vec<&str> = (fields
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten())
    .filter_map(Value::as_str)
    .collect();
    let properties = (fields.get("properties").and_then(Value::as_object)).unwrap_or(&empty);
    let definitions: Vec<(&str, &Value, usize)> = ["$defs", "definitions"]
        .into_iter()
        .filter(|_| offer.hold == Hold::Exact)
        .filter_map(|keyword| Some((keyword, fields.get(keyword).or_else(|| document.get(keyword))?)))
        .map(|(keyword, defined)| (keyword, defined, defined.to_string().len()))
        .collect();
    let mut arguments = Vec::new();
    for (key, schema) in properties {
        let text = schema.to_string();
        rules.take(text.len())?;
        let seen = seen_through(schema, offer.root).into_owned();
        let kinds = ValueKinds::of(schema, offer.root);
        let mut schema = schema.clone();
        if let Value::Object(of) = &mut schema
            && text.contains("\"$ref\"")
        {
            for &(keyword, defined, n_bytes) in &definitions {
                if !of.contains_key(keyword) {
                    rules.take(n_bytes)?;
                    of.insert(keyword.to_owned(), defined.clone());
                }
            }
        }
        arguments.push(Argument {
            schema,
            seen,
            kinds,
            is_required: required.contains(&key.as_str()),
            key: key.clone(),
        });
    }
    if offer.hold == Hold::Exact
        && let Some(missing) = required.iter().find(|key| !properties.contains_key(**key))
    {
        return Err(format!("it requires `{missing}` but does not define it"));
    }
    Ok(arguments)
}

/// Writes arguments in separate tags.
pub(super) fn tagged(
    offer: &Offer<'_>,
    shape: &TaggedShape,
    rules: &mut Rules<'_>,
) -> Result<String, String> {
    rules.begin_arguments()?;
    let takes_any = takes_unnamed(offer)?;
    if offer.name.len() > MAX_NAME_BYTES {
        return Err(format!("its name takes more than {MAX_NAME_BYTES} bytes"));
    }
    if takes_any {
        return unnamed(shape, rules);
    }
    let mut all = String::new();
    for argument in arguments_of(offer, rules)? {
        let key = argument.key.as_str();
        if key.len() > MAX_NAME_BYTES {
            return Err(format!(
                "the name of an argument takes more than {MAX_NAME_BYTES} bytes"
            ));
        }
        if key.contains(shape.key_end) || key.trim() != key || key.is_empty() {
            return Err(format!("an argument is called {}", Value::from(key)));
        }
        let is_exact = offer.hold == Hold::Exact;
        let forms = match argument.kinds.written() {
            Written::Text => bare(key, &argument.seen, offer, shape, rules)?,
            // The parser reads every such text as a value that the schema allows.
            Written::Either if !is_exact || names_kinds_only(&argument.seen) => {
                let text = bare(key, &json!({"type": "string"}), offer, shape, rules)?;
                if shape.has_attributes || shape.has_cdata {
                    format!("{text} | {}", as_json(&argument, offer.hold, shape, rules)?)
                } else {
                    text
                }
            }
            Written::Either if shape.has_attributes || shape.has_cdata => {
                let json = as_json(&argument, offer.hold, shape, rules)?;
                match text_choices(&argument.seen, offer.root) {
                    Some(texts) => match bare(key, &texts, offer, shape, rules) {
                        Ok(text) => format!("{text} | {json}"),
                        Err(_) => json,
                    },
                    None => json,
                }
            }
            Written::Either => match text_or_scalar(&argument.seen, &[shape.value_end], offer.root) {
                Some(body) => {
                    let line = line_of(shape);
                    let value =
                        rules.bounded(line, &format!("({body})"), &format!("{line}{}", shape.value_end));
                    let begin = begin_value(key, shape, shape.attributes.0, rules);
                    format!("{begin} {value} S?")
                }
                None => as_json(&argument, offer.hold, shape, rules)?,
            },
            Written::Json => as_json(&argument, offer.hold, shape, rules)?,
        };
        let argument_rule = rules.rule(&forms);
        all.push_str(&argument_rule);
        all.push_str(if argument.is_required { " " } else { "? " });
    }
    Ok(all)
}

/// Matches the name of an argument that no schema names.
const UNNAMED: &str = "/[A-Za-z_$@][A-Za-z0-9_$@.\\-]{0,63}/";

/// Writes the rule for any number of arguments of any name. It includes the schema's names, because separate rules for them would exclude
/// names that begin like them.
fn unnamed(shape: &TaggedShape, rules: &mut Rules<'_>) -> Result<String, String> {
    let line = line_of(shape);
    let value_end = format!("{line}{}", shape.value_end);
    let key = rules.terminal(UNNAMED);
    let begin = |attributes: &str, rules: &Rules<'_>| {
        let argument = rules.mark(shape.argument);
        if shape.has_attributes {
            let behind = rules.mark(&format!("{}{attributes}{}", shape.key_end, shape.value));
            return format!("{argument} {key} {behind}");
        }
        let space = if shape.value.is_empty() { "" } else { "S?" };
        let (key_end, value) = (rules.mark(shape.key_end), rules.mark(shape.value));
        format!("{argument} {key} {key_end} {space} {value}")
    };
    let (before, ends, after) = if shape.has_cdata {
        (
            "<![CDATA[",
            &[shape.value_end, "]]>"][..],
            format!("]]>{value_end}"),
        )
    } else {
        (line, &[shape.value_end][..], value_end.clone())
    };
    let body = text(&json!({}), Hold::Relaxed, ends, &Document::of(&Value::Null))?;
    let as_text = rules.bounded(before, &body, &after);
    let mut forms = format!("{} {as_text} S?", begin(shape.attributes.0, rules));
    if shape.has_attributes || shape.has_cdata {
        let as_json = value(&json!({}), rules)?;
        let value_end = rules.mark(&value_end);
        let begin = begin(shape.attributes.1, rules);
        forms = format!("{forms} | {begin} {} {as_json} {value_end} S?", quoted(line));
    }
    let argument = rules.rule(&forms);
    Ok(rules.rule(&format!("{argument}*")))
}

/// Writes an argument as bare text.
fn bare(
    key: &str,
    schema: &Value,
    offer: &Offer<'_>,
    shape: &TaggedShape,
    rules: &mut Rules<'_>,
) -> Result<String, String> {
    let (hold, root) = (offer.hold, offer.root);
    let line = line_of(shape);
    let value_end = format!("{line}{}", shape.value_end);
    let value = if shape.has_cdata {
        let body = text(schema, hold, &[shape.value_end, "]]>"], root)?;
        rules.bounded("<![CDATA[", &body, &format!("]]>{value_end}"))
    } else {
        let body = text(schema, hold, &[shape.value_end], root)?;
        rules.bounded(line, &body, &value_end)
    };
    let begin = begin_value(key, shape, shape.attributes.0, rules);
    Ok(format!("{begin} {value} S?"))
}

/// Writes an argument as JSON.
fn as_json(
    argument: &Argument,
    hold: Hold,
    shape: &TaggedShape,
    rules: &mut Rules<'_>,
) -> Result<String, String> {
    let line = line_of(shape);
    let schema = match hold {
        Hold::Exact => argument.schema.clone(),
        Hold::Relaxed => relaxed(argument.kinds),
    };
    let value = value(&schema, rules)?;
    let begin = begin_value(&argument.key, shape, shape.attributes.1, rules);
    let value_end = rules.mark(&format!("{line}{}", shape.value_end));
    Ok(format!("{begin} {} {value} {value_end} S?", quoted(line)))
}

fn line_of(shape: &TaggedShape) -> &'static str {
    if shape.is_on_own_lines { "\n" } else { "" }
}

/// Writes the text before a value.
fn begin_value(key: &str, shape: &TaggedShape, attributes: &str, rules: &Rules<'_>) -> String {
    let head = format!("{}{key}{}{attributes}", shape.argument, shape.key_end);
    if shape.has_attributes {
        return rules.mark(&format!("{head}{}", shape.value));
    }
    let space = if shape.value.is_empty() { "" } else { "S?" };
    format!("{} {space} {}", rules.mark(&head), rules.mark(shape.value))
}

/// Reduces a schema that is not enforced to its types.
pub(super) fn relaxed(kinds: ValueKinds) -> Value {
    match &kinds.names()[..] {
        _ if kinds.are_all() => json!({}),
        [] => json!({}),
        [only] => json!({ "type": only }),
        names => json!({ "type": names }),
    }
}
