//! Resolves references between schemas of one document: JSON pointers, anchors and identifiers.
//!
//! The grammar compiler knows only `#/` and keys without escapes. Invariants: a reference out of the document stays unchanged and
//! fails to compile; rewriting does not change the target of a reference.

use std::{
    borrow::Cow,
    cell::OnceCell,
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
};

use serde_json::{Map, Value};

/// Largest total size of copied schemas, which have no plain path, and most bytes by which references may grow.
const MAX_COPIED_BYTES: usize = 1 << 20;

/// The longest identifier that is kept. Each schema of a document may have one, and all of them may begin
/// with the document's.
const MAX_ID_BYTES: usize = 512;

/// Longest reference, and longest path to a named schema, in bytes. Many references may lead along the same path.
const MAX_PATH_BYTES: usize = 2 << 10;

/// Keywords whose values are not schemas.
const WITHOUT_SCHEMAS: [&str; 4] = ["const", "enum", "default", "examples"];

/// Keys from a document to a part of it.
type Path<'p> = Vec<Cow<'p, str>>;

/// A document whose schemas refer to each other. Its names are collected once, with the first reference by name.
pub(crate) struct Document<'s> {
    root: &'s Value,
    places: OnceCell<Places>,
}

impl<'s> Document<'s> {
    /// Returns the document with the root `root`.
    pub(crate) fn of(root: &'s Value) -> Self {
        Self {
            root,
            places: OnceCell::new(),
        }
    }

    /// Returns the root.
    pub(crate) fn root(&self) -> &'s Value {
        self.root
    }

    /// Finds the schema that a reference names; `None` if it does not exist.
    pub(crate) fn referred(&self, reference: &str) -> Option<&'s Value> {
        match reference.strip_prefix('#') {
            Some("" | "/") => Some(self.root),
            _ if reference.len() > MAX_PATH_BYTES => None,
            Some(pointer) if pointer.starts_with('/') => at(self.root, &segments(pointer)),
            _ => {
                let places = self.places.get_or_init(|| Places::of(self.root));
                at(self.root, &places.path(&places.base, reference)?)
            }
        }
    }
}

/// Rewrites all references of a document in the compiler's form.
pub(super) fn make_plain(root: &mut Value) {
    if !needs_work(root) {
        return;
    }
    let original = root.clone();
    let places = Places::of(&original);
    // Several paths may lead to one schema.
    let mut numbers: HashMap<*const Value, usize> = HashMap::new();
    let mut copies: Vec<Path<'_>> = Vec::new();
    let mut n_left = MAX_COPIED_BYTES;
    let mut write = |base: &str, reference: &str| -> Option<String> {
        let path = places.path(base, reference)?;
        let target = at(&original, &path)?;
        let is_plain = (path.iter()).all(|segment| !segment.is_empty() && !segment.contains('/'));
        let written = if is_plain {
            path.iter().fold("#".to_owned(), |mut text, segment| {
                text.push('/');
                text.push_str(segment);
                text
            })
        } else {
            let number = *numbers.entry(std::ptr::from_ref(target)).or_insert_with(|| {
                copies.push(path);
                copies.len() - 1
            });
            format!("#/$defs/reference {number}")
        };
        n_left = n_left.checked_sub(written.len().saturating_sub(reference.len()))?;
        Some(written)
    };
    rewrite(root, "", &mut write);
    let mut copied: Vec<(String, Value)> = Vec::new();
    let mut n_bytes = 0;
    for (number, path) in copies.iter().enumerate() {
        let Some(copy) = at(root, path) else { continue };
        n_bytes += copy.to_string().len();
        if n_bytes > MAX_COPIED_BYTES {
            break;
        }
        copied.push((format!("reference {number}"), copy.clone()));
    }
    if let Some(fields) = root.as_object_mut()
        && !copied.is_empty()
    {
        let definitions = fields.entry("$defs").or_insert_with(|| Map::new().into());
        if let Some(definitions) = definitions.as_object_mut() {
            definitions.extend(copied);
        }
    }
}

/// Maps the names of a document's schemas to their places. Identifiers and keys are stored once, because many names may share them.
struct Places {
    /// Identifier of the whole document.
    base: String,
    /// Numbers of the documents in it, by their identifiers.
    documents: HashMap<String, usize>,
    /// Step to each of these documents.
    starts: Vec<usize>,
    /// Steps to anchors, by the number of their document and their name.
    anchors: HashMap<(usize, String), usize>,
    /// The step before each, and the key of each; the first leads to the root.
    steps: Vec<(usize, String)>,
}

/// Position of a walk through a document.
#[derive(Clone, Copy)]
struct Position<'b> {
    /// Identifier of the document around it.
    base: &'b str,
    /// Number of that document.
    document: usize,
    step: usize,
    /// Length of the path to it.
    n_bytes: usize,
}

impl Places {
    fn of(root: &Value) -> Self {
        let base = base_of(root);
        let mut places = Self {
            documents: HashMap::from([(base.clone(), 0)]),
            base,
            starts: vec![0],
            anchors: HashMap::new(),
            steps: vec![(0, String::new())],
        };
        let position = Position {
            // The root's identifier is relative to nothing.
            base: "",
            document: 0,
            step: 0,
            n_bytes: 0,
        };
        places.visit(root, position);
        places
    }

    fn visit(&mut self, value: &Value, position: Position<'_>) {
        match value {
            Value::Object(fields) => {
                let own = own_base(fields, position.base);
                let mut position = position;
                if own != position.base {
                    let next = self.starts.len();
                    position.document = *self.documents.entry(own.to_string()).or_insert(next);
                    if position.document == next {
                        self.starts.push(position.step);
                    }
                }
                position.base = &own;
                let text = |keyword: &str| fields.get(keyword).and_then(Value::as_str);
                let anchors = [
                    text("$anchor"),
                    text("$dynamicAnchor"),
                    text("$id").and_then(|id| id.strip_prefix('#')),
                ];
                for anchor in anchors.into_iter().flatten() {
                    self.anchors
                        .entry((position.document, anchor.to_owned()))
                        .or_insert(position.step);
                }
                for (key, of) in fields {
                    if !WITHOUT_SCHEMAS.contains(&key.as_str()) {
                        self.step(key, of, position);
                    }
                }
            }
            Value::Array(items) => {
                for (idx, item) in items.iter().enumerate() {
                    self.step(&idx.to_string(), item, position);
                }
            }
            _ => {}
        }
    }

    /// Visits the value of a key, unless its path is too long.
    fn step(&mut self, key: &str, of: &Value, from: Position<'_>) {
        let n_bytes = from.n_bytes + key.len() + 1;
        if n_bytes <= MAX_PATH_BYTES && (of.is_object() || of.is_array()) {
            self.steps.push((from.step, key.to_owned()));
            let step = self.steps.len() - 1;
            self.visit(
                of,
                Position {
                    step,
                    n_bytes,
                    ..from
                },
            );
        }
    }

    /// Finds the path of a reference in the document `base`.
    fn path(&self, base: &str, reference: &str) -> Option<Path<'_>> {
        if reference.len() > MAX_PATH_BYTES {
            return None;
        }
        let (name, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let document = if name.is_empty() {
            *self.documents.get(base)?
        } else {
            *self.documents.get(&joined(base, name))?
        };
        if fragment.is_empty() || fragment.starts_with('/') {
            let mut path = self.path_of(self.starts[document]);
            path.extend(segments(fragment));
            return Some(path);
        }
        let step = self.anchors.get(&(document, without_percents(fragment)))?;
        Some(self.path_of(*step))
    }

    fn path_of(&self, mut step: usize) -> Path<'_> {
        let mut path = Path::new();
        while step > 0 {
            let (before, key) = &self.steps[step];
            path.push(Cow::Borrowed(key.as_str()));
            step = *before;
        }
        path.reverse();
        path
    }
}

/// Returns whether a reference has another form than the compiler's, or whether the document contains several documents.
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
        .map(|fields| own_base(fields, "").into_owned())
        .unwrap_or_default()
}

/// Returns the identifier of a schema within `base`.
fn own_base<'b>(fields: &Map<String, Value>, base: &'b str) -> Cow<'b, str> {
    match fields.get("$id").and_then(Value::as_str) {
        Some(id) if !id.starts_with('#') => joined(base, id.split('#').next().unwrap_or_default()).into(),
        _ => base.into(),
    }
}

/// Resolves an identifier relative to another. One that is too long to keep is replaced by its hash, so that references within its
/// document still resolve.
fn joined(base: &str, name: &str) -> String {
    let joined = whole(base, name);
    if joined.len() <= MAX_ID_BYTES {
        return joined.into_owned();
    }
    let mut hasher = DefaultHasher::new();
    joined.hash(&mut hasher);
    format!("long:{:016x}/", hasher.finish())
}

/// Resolves an identifier relative to another, however long the result is.
fn whole<'n>(base: &str, name: &'n str) -> Cow<'n, str> {
    let is_whole = name.split_once(':').is_some_and(|(scheme, _)| {
        !scheme.is_empty()
            && scheme
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
    });
    if is_whole {
        return name.into();
    }
    let root = base.find("://").map_or(0, |at| at + 3);
    let first = base[root..].find('/').map_or(base.len(), |at| root + at);
    if name.starts_with('/') {
        return format!("{}{name}", &base[..first]).into();
    }
    let folder = base
        .rfind('/')
        .filter(|&at| at >= root)
        .map_or("", |at| &base[..=at]);
    format!("{folder}{name}").into()
}

/// Splits a pointer of a reference into keys.
fn segments(pointer: &str) -> Path<'static> {
    let keys = pointer.split('/').skip(1);
    keys.map(|key| without_percents(key).replace("~1", "/").replace("~0", "~").into())
        .collect()
}

/// Decodes the percent escapes of a fragment of a URL; escapes that are not UTF-8 stay unchanged.
pub(super) fn without_percents(text: &str) -> String {
    let bytes = text.as_bytes();
    let digit = |at: usize| char::from(*bytes.get(at)?).to_digit(16);
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let digits = (bytes[at] == b'%').then(|| Some((digit(at + 1)?, digit(at + 2)?)));
        if let Some((high, low)) = digits.flatten() {
            decoded.push((high * 16 + low) as u8);
            at += 3;
        } else {
            decoded.push(bytes[at]);
            at += 1;
        }
    }
    String::from_utf8(decoded).unwrap_or_else(|_| text.to_owned())
}

fn at<'v>(root: &'v Value, path: &[Cow<'_, str>]) -> Option<&'v Value> {
    path.iter().try_fold(root, |value, key| match value {
        Value::Object(fields) => fields.get(&**key),
        Value::Array(items) => items.get(index(key)?),
        _ => None,
    })
}

/// Reads the index of an item. Source: RFC 6901, section 4, which allows one spelling of each.
fn index(key: &str) -> Option<usize> {
    let is_plain = key == "0" || !key.starts_with(['0', '+']);
    is_plain.then(|| key.parse().ok()).flatten()
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
        let document = Document::of(&root);
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
                (document.referred(reference)).and_then(|schema| schema.get("const")),
                Some(&json!(number)),
                "{reference}"
            );
            let mut plain = root.clone();
            plain["properties"]["q"] = json!({"$ref": reference});
            make_plain(&mut plain);
            let plain_reference = plain["properties"]["q"]["$ref"].as_str().unwrap();
            let keys = plain_reference.strip_prefix("#/").unwrap().split('/');
            let path: Path<'_> = keys.map(Cow::Borrowed).collect();
            assert_eq!(at(&plain, &path).unwrap()["const"], number, "{plain_reference}");
        }
        assert_eq!(document.referred("https://example.com/elsewhere"), None);
        assert_eq!(document.referred("#/$defs/z"), None);
        assert_eq!(document.referred("#"), Some(&root));
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
    fn a_relative_identifier_of_the_root_counts_once() {
        let mut root = json!({"$id": "a/b", "$defs": {"c": {"$anchor": "x", "const": 1}}, "$ref": "#x"});
        assert_eq!(Document::of(&root).referred("#x"), Some(&root["$defs"]["c"]));
        make_plain(&mut root);
        assert_eq!(root["$ref"], "#/$defs/c");
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

    #[test]
    fn a_long_identifier_is_held_once_whatever_stands_below_it() {
        let n = 20_000;
        let defs: Map<String, Value> = (0..n)
            .map(|idx| {
                (
                    format!("a{idx}"),
                    json!({"$id": format!("i{idx}"), "$anchor": "x"}),
                )
            })
            .collect();
        let id = format!("https://example.com/{}/", "a".repeat(500_000));
        let root = json!({"$id": id, "$anchor": "top", "$defs": defs});
        let places = Places::of(&root);
        let n_bytes: usize = places.documents.keys().map(String::len).sum();
        assert!(n_bytes < 2_000_000, "{n_bytes} bytes");
        let document = Document::of(&root);
        assert_eq!(document.referred("#top"), Some(&root));
        assert_eq!(document.referred("i7#x"), Some(&root["$defs"]["a7"]));
    }

    #[test]
    fn references_grow_by_a_bounded_number_of_bytes() {
        let n = 20_000;
        let key = "k".repeat(1500);
        let refs: Vec<Value> = (0..n).map(|_| json!({"$ref": "#x"})).collect();
        let mut root = json!({"$defs": {key: {"$anchor": "x"}}, "anyOf": refs});
        make_plain(&mut root);
        assert_ne!(root["anyOf"][0]["$ref"], "#x");
        assert!(root.to_string().len() < 2 * MAX_COPIED_BYTES);
        let long = "k".repeat(500_000);
        let refs: Vec<Value> = (0..n).map(|_| json!({"$ref": "#x"})).collect();
        let mut root = json!({"$defs": {long: {"$anchor": "x"}}, "anyOf": refs});
        make_plain(&mut root);
        assert_eq!(root["anyOf"][0]["$ref"], "#x");
    }

    #[test]
    fn a_large_schema_is_copied_once_and_only_below_the_bound() {
        let large = json!([{"const": "v".repeat(100_000)}]);
        let refs = (0..200).map(|n| json!({"$ref": format!("#/$defs/a~1b/{}0", "0".repeat(n))}));
        let refs: Vec<Value> = refs.collect();
        let mut root = json!({"$defs": {"a/b": large}, "anyOf": refs});
        make_plain(&mut root);
        assert_eq!(root["anyOf"][0]["$ref"], "#/$defs/reference 0");
        assert_eq!(root["anyOf"][1]["$ref"], "#/$defs/a~1b/00");
        assert_eq!(root["$defs"].as_object().unwrap().len(), 2);
        let many: Vec<Value> = (0..50).map(|_| json!({"const": "v".repeat(100_000)})).collect();
        let refs: Vec<Value> = (0..50)
            .map(|n| json!({"$ref": format!("#/$defs/a~1b/{n}")}))
            .collect();
        let mut root = json!({"$defs": {"a/b": many}, "anyOf": refs});
        make_plain(&mut root);
        assert_eq!(root["$defs"].as_object().unwrap().len(), 11);
    }

    #[test]
    fn only_hexadecimal_digits_are_percent_escapes() {
        for (text, expected) in [
            ("a%20b%C3%a9", "a bé"),
            ("%+1", "%+1"),
            ("%2", "%2"),
            ("%é", "%é"),
            ("%ff", "%ff"),
        ] {
            assert_eq!(without_percents(text), expected);
        }
    }
}
