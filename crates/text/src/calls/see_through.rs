//! Resolves references and combinations of a schema: `$ref`, `allOf`, and choices of one.
//!
//! Formats that write names and bare values need one type or one list of names; other formats pass the schema on. Invariants: the result
//! accepts the same values; what cannot be merged does not change; the work is bounded.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::constraint::Document;

/// Most nested references and combinations that are resolved.
const MAX_DEPTH: usize = 16;

/// Most schemas that are visited for one value.
const MAX_SCHEMAS: usize = 256;

/// Largest merged schema, in bytes.
const MAX_BYTES: usize = 256 << 10;

/// Keywords that do not restrict a value.
pub(super) const ANNOTATIONS: [&str; 8] = [
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "$comment",
    "readOnly",
    "writeOnly",
];

/// Resolves the references and combinations at the top of a schema where possible; `root` is the document with the schema.
pub(super) fn seen_through<'s>(schema: &'s Value, root: &Document<'_>) -> Cow<'s, Value> {
    let is_combined = |fields: &Map<String, Value>| {
        ["$ref", "allOf", "anyOf", "oneOf"]
            .iter()
            .any(|keyword| fields.contains_key(*keyword))
    };
    match schema {
        Value::Object(fields) if is_combined(fields) => {
            let mut n_left = MAX_SCHEMAS;
            let mut n_bytes = MAX_BYTES;
            whole(fields, root, 0, &mut n_left, &mut n_bytes)
                .map_or(Cow::Borrowed(schema), |fields| Cow::Owned(Value::Object(fields)))
        }
        _ => Cow::Borrowed(schema),
    }
}

/// Merges an object's schema with all of its combinations.
fn whole(
    fields: &Map<String, Value>,
    root: &Document<'_>,
    depth: usize,
    n_left: &mut usize,
    n_bytes: &mut usize,
) -> Option<Map<String, Value>> {
    *n_left = n_left.checked_sub(1)?;
    if depth > MAX_DEPTH {
        return None;
    }
    let mut all = Map::new();
    let mut parts: Vec<&Value> = Vec::new();
    for (keyword, of) in fields {
        match (keyword.as_str(), of) {
            ("$ref", Value::String(reference)) => parts.push(root.referred(reference)?),
            ("allOf", Value::Array(schemas)) => parts.extend(schemas),
            ("anyOf" | "oneOf", Value::Array(schemas)) if schemas.len() == 1 => parts.extend(schemas),
            _ => {
                *n_bytes = n_bytes.checked_sub(of.to_string().len())?;
                all.insert(keyword.clone(), of.clone());
            }
        }
    }
    for part in parts {
        match part {
            Value::Bool(true) => {}
            Value::Object(fields) => {
                let part = whole(fields, root, depth + 1, n_left, n_bytes)?;
                for (keyword, of) in part {
                    join(&mut all, keyword, of)?;
                }
            }
            _ => return None,
        }
    }
    Some(all)
}

/// Merges a keyword into the keywords so far; `None` if the two cannot be merged.
fn join(all: &mut Map<String, Value>, keyword: String, of: Value) -> Option<()> {
    let Some(said) = all.get_mut(&keyword) else {
        all.insert(keyword, of);
        return Some(());
    };
    if *said == of || ANNOTATIONS.contains(&keyword.as_str()) {
        return Some(());
    }
    match (keyword.as_str(), said, of) {
        ("minLength" | "minItems" | "minimum" | "minProperties", Value::Number(said), Value::Number(of)) => {
            if of.as_f64() > said.as_f64() {
                *said = of;
            }
        }
        ("maxLength" | "maxItems" | "maximum" | "maxProperties", Value::Number(said), Value::Number(of)) => {
            if of.as_f64() < said.as_f64() {
                *said = of;
            }
        }
        ("enum", Value::Array(said), Value::Array(of)) => said.retain(|value| of.contains(value)),
        ("required", Value::Array(said), Value::Array(of)) => {
            let more: Vec<Value> = of.into_iter().filter(|name| !said.contains(name)).collect();
            said.extend(more);
        }
        ("$defs" | "definitions", Value::Object(said), Value::Object(of)) => {
            for (name, schema) in of {
                said.entry(name).or_insert(schema);
            }
        }
        ("properties", Value::Object(said), Value::Object(of)) => {
            for (name, schema) in of {
                match said.get_mut(&name) {
                    Some(other) if *other != schema => {
                        *other = serde_json::json!({ "allOf": [other.take(), schema] });
                    }
                    Some(_) => {}
                    None => {
                        said.insert(name, schema);
                    }
                }
            }
        }
        ("type", said, of) => {
            let names = |kinds: &Value| -> Vec<String> {
                let kinds = kinds
                    .as_array()
                    .map_or(std::slice::from_ref(kinds), Vec::as_slice);
                kinds
                    .iter()
                    .filter_map(Value::as_str)
                    .map(str::to_owned)
                    .collect()
            };
            let of = names(&of);
            let has = |name: &str| of.iter().any(|of| of == name);
            let both: Vec<Value> = (names(said).iter())
                .filter_map(|name| match name.as_str() {
                    name if has(name) || name == "integer" && has("number") => Some(name.into()),
                    "number" if has("integer") => Some("integer".into()),
                    _ => None,
                })
                .collect();
            *said = match &both[..] {
                [] => return None,
                [only] => only.clone(),
                _ => both.into(),
            };
        }
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_schema_says_is_seen_behind_references_and_combinations() {
        let root = json!({"$defs": {"T": {"type": "string"}, "E": {"enum": ["a", "b"], "type": "string"},
            "again": {"$ref": "#/$defs/again"}, "X/Y": {"$ref": "#/$defs/E"}}});
        let document = Document::of(&root);
        let check = |schema: Value, expected: Value| {
            assert_eq!(*seen_through(&schema, &document), expected, "{schema}");
        };
        let text = || json!({"type": "string"});
        check(json!({"$ref": "#/$defs/T"}), text());
        check(
            json!({"$ref": "#/$defs/X~1Y"}),
            json!({"enum": ["a", "b"], "type": "string"}),
        );
        check(
            json!({"allOf": [{"$ref": "#/$defs/E"}], "default": "a"}),
            json!({"default": "a", "enum": ["a", "b"], "type": "string"}),
        );
        check(
            json!({"allOf": [{"$ref": "#/$defs/T"}, {"minLength": 1}, {"minLength": 2}]}),
            json!({"type": "string", "minLength": 2}),
        );
        check(json!({"anyOf": [{"$ref": "#/$defs/T"}]}), text());
        check(
            json!({"type": ["string", "null", "number"], "allOf": [{"type": ["integer", "string"]}]}),
            json!({"type": ["string", "integer"]}),
        );
        check(
            json!({"allOf": [{"enum": ["a", "b"]}, {"enum": ["b", "c"]}]}),
            json!({"enum": ["b"]}),
        );
        for same in [
            json!({"$ref": "#/$defs/again"}),
            json!({"$ref": "https://example.com/x"}),
            json!({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}),
            json!({"anyOf": [{"type": "string"}, {"type": "null"}]}),
            json!({"type": "string", "allOf": [{"type": "integer"}]}),
        ] {
            check(same.clone(), same);
        }
        check(
            json!({"allOf": [{"properties": {"p": {"type": "string"}}, "required": ["p"]},
                {"properties": {"p": {"maxLength": 3}, "q": {}}, "required": ["q"]}]}),
            json!({"properties": {"p": {"allOf": [{"type": "string"}, {"maxLength": 3}]}, "q": {}}, "required": ["p", "q"]}),
        );
    }

    #[test]
    fn what_refers_to_itself_many_times_has_a_bound() {
        let many: Vec<Value> = (0..40).map(|_| json!({"$ref": "#/$defs/a"})).collect();
        let root = json!({"$defs": {"a": {"allOf": many}}});
        let schema = json!({"$ref": "#/$defs/a"});
        assert_eq!(*seen_through(&schema, &Document::of(&root)), schema);
    }

    #[test]
    fn the_names_of_a_document_are_collected_once() {
        let defs: Map<String, Value> = (0..20_000)
            .map(|idx| {
                (
                    format!("d{idx}"),
                    json!({"$anchor": format!("a{idx}"), "type": "string"}),
                )
            })
            .collect();
        let root = json!({"$defs": defs});
        let document = Document::of(&root);
        let many: Vec<Value> = (0..120).map(|_| json!({"$ref": "#a7"})).collect();
        let schema = json!({"allOf": many});
        let start = std::time::Instant::now();
        for _ in 0..400 {
            assert_eq!(seen_through(&schema, &document)["type"], "string");
        }
        // A walk for each reference takes many minutes.
        assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
    }
}
