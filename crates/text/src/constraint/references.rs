//! Resolves references between schemas of one document: JSON pointers, anchors and identifiers.
//!
//! Separate because the grammar compiler knows only `#/` and keys without escapes. Invariants: a reference out of the document stays
//! unchanged and fails to compile; rewriting does not change the target of a reference.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// Largest total size of copied schemas, which have no plain path.
const MAX_COPIED_BYTES: usize = 1 << 20;

/// Keywords whose values are not schemas.
const WITHOUT_SCHEMAS: [&str; 4] = ["const", "enum", "default", "examples"];

/// Keys from a document to a part of it.
type Path = Vec<String>;

/// Finds the schema in `root` that a reference names; `None` if it is not there.
pub(crate) fn referred<'s>(root: &'s Value, reference: &str) -> Option<&'s Value> {
    match reference.strip_prefix('#') {
        Some("" | "/") => Some(root),
        Some(pointer) if pointer.starts_with('/') => at(root, &segments(pointer)),
        _ => at(root, &Places::of(root).path(&base_of(root), reference)?),
    }
}

/// Rewrites all references of a document in the compiler's form.
pub(super) fn make_plain(root: &mut Value) {
    if !needs_work(root) {
        return;
    }
    let places = Places::of(root);
    let mut copies: HashMap<Path, String> = HashMap::new();
    let original = root.clone();
    let base = base_of(root);
    let mut write = |base: &str, reference: &str| -> Option<String> {
        let path = places.path(base, reference)?;
        at(&original, &path)?;
        if !path
            .iter()
            .any(|segment| segment.contains('/') || segment.is_empty())
        {
            return Some(path.iter().fold("#".to_owned(), |mut text, segment| {
                text.push('/');
                text.push_str(segment);
                text
            }));
        }
        let next = format!("reference {}", copies.len());
        let name = copies.entry(path).or_insert(next);
        Some(format!("#/$defs/{name}"))
    };
    rewrite(root, &base, &mut write);
    let mut n_bytes = 0;
    let copied = copies.into_iter().filter_map(|(path, name)| {
        let copy = at(root, &path)?.clone();
        n_bytes += copy.to_string().len();
        (n_bytes <= MAX_COPIED_BYTES).then_some((name, copy))
    });
    let copied: Vec<(String, Value)> = copied.collect();
    if let Some(fields) = root.as_object_mut()
        && !copied.is_empty()
    {
        let definitions = fields.entry("$defs").or_insert_with(|| Map::new().into());
        if let Some(definitions) = definitions.as_object_mut() {
            definitions.extend(copied);
        }
    }
}

/// Maps the names of a document's schemas to their paths.
struct Places(HashMap<String, Path>);

impl Places {
    fn of(root: &Value) -> Self {
        let mut places = Self(HashMap::new());
        places.0.insert(base_of(root), Path::new());
        places.visit(root, &base_of(root), &mut Path::new());
        places
    }

    fn visit(&mut self, value: &Value, base: &str, path: &mut Path) {
        match value {
            Value::Object(fields) => {
                let own = own_base(fields, base);
                if own != base {
                    self.0.entry(own.clone()).or_insert_with(|| path.clone());
                }
                let text = |keyword: &str| fields.get(keyword).and_then(Value::as_str);
                let anchors = [
                    text("$anchor"),
                    text("$dynamicAnchor"),
                    text("$id").and_then(|id| id.strip_prefix('#')),
                ];
                for anchor in anchors.into_iter().flatten() {
                    self.0
                        .entry(format!("{own}#{anchor}"))
                        .or_insert_with(|| path.clone());
                }
                for (key, of) in fields {
                    if !WITHOUT_SCHEMAS.contains(&key.as_str()) {
                        path.push(key.clone());
                        self.visit(of, &own, path);
                        path.pop();
                    }
                }
            }
            Value::Array(items) => {
                for (idx, item) in items.iter().enumerate() {
                    path.push(idx.to_string());
                    self.visit(item, base, path);
                    path.pop();
                }
            }
            _ => {}
        }
    }

    /// Finds the path of a reference that stands in the document `base`.
    fn path(&self, base: &str, reference: &str) -> Option<Path> {
        let (name, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let document = if name.is_empty() {
            base.to_owned()
        } else {
            joined(base, name)
        };
        let start = self.0.get(&document)?;
        if fragment.is_empty() || fragment.starts_with('/') {
            return Some(start.iter().cloned().chain(segments(fragment)).collect());
        }
        self.0
            .get(&format!("{document}#{}", without_percents(fragment)))
            .cloned()
    }
}

/// Says whether a reference has another form than the compiler's, or whether the document contains several documents.
fn needs_work(value: &Value) -> bool {
    fn is_odd(value: &Value, is_root: bool) -> bool {
        match value {
            Value::Object(fields) => fields.iter().any(|(key, of)| match (key.as_str(), of) {
                ("$ref", Value::String(reference)) => {
                    !(reference == "#" || reference.starts_with("#/")) || reference.contains(['~', '%'])
                }
                ("$id", Value::String(_)) if !is_root => true,
                (key, of) => !WITHOUT_SCHEMAS.contains(&key) && is_odd(of, false),
            }),
            Value::Array(items) => items.iter().any(|item| is_odd(item, false)),
            _ => false,
        }
    }
    is_odd(value, true)
}

fn rewrite(value: &mut Value, base: &str, write: &mut impl FnMut(&str, &str) -> Option<String>) {
    match value {
        Value::Object(fields) => {
            let base = own_base(fields, base);
            for (key, of) in fields {
                match of {
                    Value::String(reference) if key == "$ref" => {
                        if let Some(plain) = write(&base, reference) {
                            *reference = plain;
                        }
                    }
                    of if !WITHOUT_SCHEMAS.contains(&key.as_str()) => rewrite(of, &base, write),
                    _ => {}
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rewrite(item, base, write)),
        _ => {}
    }
}

/// Returns the identifier of a document.
fn base_of(root: &Value) -> String {
    root.as_object()
        .map(|fields| own_base(fields, ""))
        .unwrap_or_default()
}

/// Returns the identifier of a schema within `base`.
fn own_base(fields: &Map<String, Value>, base: &str) -> String {
    match fields.get("$id").and_then(Value::as_str) {
        Some(id) if !id.starts_with('#') => joined(base, id.split('#').next().unwrap_or_default()),
        _ => base.to_owned(),
    }
}

/// Resolves an identifier relative to another.
fn joined(base: &str, name: &str) -> String {
    let is_whole = name.split_once(':').is_some_and(|(scheme, _)| {
        !scheme.is_empty()
            && scheme
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
    });
    if is_whole {
        return name.to_owned();
    }
    let root = base.find("://").map_or(0, |at| at + 3);
    let first = base[root..].find('/').map_or(base.len(), |at| root + at);
    if name.starts_with('/') {
        return format!("{}{name}", &base[..first]);
    }
    let folder = base
        .rfind('/')
        .filter(|&at| at >= root)
        .map_or("", |at| &base[..=at]);
    format!("{folder}{name}")
}

/// Splits a pointer of a reference into keys.
fn segments(pointer: &str) -> Path {
    let keys = pointer.split('/').skip(1);
    keys.map(|key| without_percents(key).replace("~1", "/").replace("~0", "~"))
        .collect()
}

fn without_percents(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = (bytes[at] == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        let decoded_byte = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        decoded.push(decoded_byte.unwrap_or(bytes[at]));
        at += if decoded_byte.is_some() { 3 } else { 1 };
    }
    String::from_utf8(decoded).unwrap_or_else(|_| text.to_owned())
}

fn at<'v>(root: &'v Value, path: &[String]) -> Option<&'v Value> {
    path.iter().try_fold(root, |value, key| match value {
        Value::Object(fields) => fields.get(key),
        Value::Array(items) => items.get(key.parse::<usize>().ok()?),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_reference_is_found_whatever_its_form() {
        let root = json!({"$id": "https://example.com/a/root.json", "$defs": {
            "a/b": {"const": 1}, "c~d": {"const": 2}, "e f": {"const": 3}, "g": {"$anchor": "here", "const": 4},
            "h": {"$id": "other.json", "const": 5, "$defs": {"i": {"const": 6}}}},
            "properties": {"p": {"anyOf": [{"const": 7}]}}});
        for (reference, number) in [
            ("#/$defs/a~1b", 1),
            ("#/$defs/c~0d", 2),
            ("#/$defs/e%20f", 3),
            ("#/$defs/e f", 3),
            ("#here", 4),
            ("https://example.com/a/root.json#here", 4),
            ("other.json", 5),
            ("/a/other.json", 5),
            ("other.json#/$defs/i", 6),
            ("root.json#/properties/p/anyOf/0", 7),
        ] {
            assert_eq!(
                referred(&root, reference).and_then(|schema| schema.get("const")),
                Some(&json!(number)),
                "{reference}"
            );
            let mut plain = root.clone();
            plain["properties"]["q"] = json!({"$ref": reference});
            make_plain(&mut plain);
            let plain_reference = plain["properties"]["q"]["$ref"].as_str().unwrap();
            let keys = plain_reference.strip_prefix("#/").unwrap().split('/');
            let path: Path = keys.map(str::to_owned).collect();
            assert_eq!(at(&plain, &path).unwrap()["const"], number, "{plain_reference}");
        }
        assert_eq!(referred(&root, "https://example.com/elsewhere"), None);
        assert_eq!(referred(&root, "#/$defs/z"), None);
        assert_eq!(referred(&root, "#"), Some(&root));
    }

    #[test]
    fn references_within_a_document_of_its_own_are_relative_to_it() {
        let mut root = json!({"$defs": {"a": {"$id": "urn:a", "$ref": "#/$defs/b", "$defs": {"b": {"const": 1}}}},
            "$ref": "urn:a"});
        make_plain(&mut root);
        assert_eq!(root["$ref"], "#/$defs/a");
        assert_eq!(root["$defs"]["a"]["$ref"], "#/$defs/a/$defs/b");
    }

    #[test]
    fn a_plain_document_and_values_that_look_like_references_stay_as_they_are() {
        let plain = json!({"$defs": {"a": {}}, "properties": {"p": {"$ref": "#/$defs/a", "default": {"$ref": "#x"}}}});
        let mut same = plain.clone();
        make_plain(&mut same);
        assert_eq!(same, plain);
        let mut elsewhere = json!({"$ref": "https://example.com/x"});
        make_plain(&mut elsewhere);
        assert_eq!(elsewhere, json!({"$ref": "https://example.com/x"}));
    }
}
