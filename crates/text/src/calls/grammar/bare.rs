//! Writes grammar rules for bare values, which are texts without quotes.
//!
//! It knows no tags. Invariant: the parser reads every text that a rule accepts as a value that the schema accepts.

use serde_json::{Map, Value};

use super::{Hold, rules::quoted};
use crate::{
    calls::{
        see_through::{ANNOTATIONS, seen_through},
        value_kinds::{ValueKinds, Written},
    },
    constraint::Document,
};

/// Largest nesting depth of a schema.
const MAX_DEPTH: usize = 100;

/// Largest nesting depth of choices.
const MAX_CHOICES: usize = 8;

/// Integers of JSON.
const INTEGER: &str = "/-?(0|[1-9][0-9]*)/";
const NUMBER: &str = "/-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+\\-]?[0-9]+)?/";

/// Keywords that restrict strings and that the rules for tags can express.
const TEXT: [&str; 5] = ["enum", "const", "pattern", "minLength", "maxLength"];

/// Returns whether a schema restricts only the kinds of values.
pub(super) fn names_kinds_only(schema: &Value) -> bool {
    names_kinds_within(schema, MAX_DEPTH)
}

fn names_kinds_within(schema: &Value, depth: usize) -> bool {
    let Value::Object(fields) = schema else {
        return *schema == Value::Bool(true);
    };
    depth > 0
        && fields.iter().all(|(keyword, of)| match keyword.as_str() {
            "anyOf" => (of.as_array())
                .is_some_and(|choices| choices.iter().all(|choice| names_kinds_within(choice, depth - 1))),
            keyword => is_kind_or_annotation(keyword),
        })
}

/// Returns whether a keyword names kinds of values, or does not restrict them.
fn is_kind_or_annotation(keyword: &str) -> bool {
    keyword == "type" || ANNOTATIONS.contains(&keyword)
}

/// Returns whether a keyword names kinds of values or restricts nothing.
fn is_note(keyword: &str) -> bool {
    is_kind_or_annotation(keyword) || matches!(keyword, "$defs" | "definitions")
}

/// Returns the choices of a schema that has no other restriction.
fn choices_of(fields: &Map<String, Value>) -> Option<&Vec<Value>> {
    let mut choices = None;
    for (keyword, of) in fields {
        match keyword.as_str() {
            "anyOf" | "oneOf" if choices.is_none() => choices = Some(of.as_array()?),
            keyword if is_note(keyword) => {}
            _ => return None,
        }
    }
    choices
}

/// Returns the string choices of a schema as a schema; `None` if it has none.
pub(super) fn text_choices(schema: &Value, root: &Document<'_>) -> Option<Value> {
    let choices = choices_of(schema.as_object()?)?.iter();
    let is_text = |choice: &&Value| ValueKinds::of(choice, root).written() == Written::Text;
    let texts: Vec<Value> = choices.filter(is_text).cloned().collect();
    (!texts.is_empty()).then(|| serde_json::json!({ "anyOf": texts }))
}

/// Writes the body of a rule for a value that is a text or, as JSON, a value of another kind; `None` if a bare text could be read as a
/// value that the schema excludes.
pub(super) fn text_or_scalar(schema: &Value, ends: &[&str], root: &Document<'_>) -> Option<String> {
    let mut values = Bodies {
        kinds: ValueKinds::of(schema, root),
        rules: Vec::new(),
        has_open_text: false,
        has_listed_value: false,
    };
    values.add(schema, ends, root, MAX_CHOICES)?;
    let is_told = !(values.has_open_text && values.has_listed_value);
    (is_told && !values.rules.is_empty()).then(|| values.rules.join(" | "))
}

struct Bodies {
    kinds: ValueKinds,
    rules: Vec<String>,
    /// Whether texts other than listed ones are allowed.
    has_open_text: bool,
    /// Whether values of another kind must be listed.
    has_listed_value: bool,
}

impl Bodies {
    fn add(&mut self, schema: &Value, ends: &[&str], root: &Document<'_>, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        let schema = seen_through(schema, root);
        let fields = schema.as_object()?;
        if let Some(choices) = choices_of(fields) {
            return (choices.iter()).try_for_each(|choice| self.add(choice, ends, root, depth));
        }
        let listed = match (fields.get("const"), fields.get("enum").and_then(Value::as_array)) {
            (Some(only), _) => Some(std::slice::from_ref(only)),
            (None, Some(values)) => Some(values.as_slice()),
            (None, None) => None,
        };
        let kinds = ValueKinds::of(&schema, root);
        if let Some(values) = listed {
            let says_more =
                |keyword: &String| !is_note(keyword) && !matches!(keyword.as_str(), "const" | "enum");
            if fields.keys().any(says_more) {
                return None;
            }
            for value in values.iter().filter(|value| kinds.include(value)) {
                self.add_listed(value, ends)?;
            }
            return Some(());
        }
        if kinds.written() == Written::Text {
            self.has_open_text = true;
            let body = text_within(&schema, Hold::Exact, ends, root, depth).ok()?;
            self.rules.push(format!("({body})"));
            return Some(());
        }
        if !fields.keys().all(|keyword| is_note(keyword)) {
            return None;
        }
        for name in kinds.names() {
            self.rules.push(match name {
                "null" => quoted("null"),
                "boolean" => format!("{} | {}", quoted("true"), quoted("false")),
                "integer" => INTEGER.to_owned(),
                "number" => NUMBER.to_owned(),
                "string" => {
                    self.has_open_text = true;
                    let body = text_within(&Map::new().into(), Hold::Relaxed, ends, root, depth).ok()?;
                    format!("({body})")
                }
                _ => return None,
            });
        }
        Some(())
    }

    fn add_listed(&mut self, value: &Value, ends: &[&str]) -> Option<()> {
        match value {
            Value::String(text) => {
                let read: Result<Value, _> = serde_json::from_str(text.trim());
                let is_misread = read.is_ok_and(|value| self.kinds.include(&value));
                if !text.is_empty() && !is_misread && !ends.iter().any(|end| text.contains(end)) {
                    self.rules.push(quoted(text));
                }
            }
            Value::Array(_) | Value::Object(_) => return None,
            scalar => {
                self.has_listed_value = true;
                self.rules.push(quoted(&scalar.to_string()));
            }
        }
        Some(())
    }
}

/// Writes the body of a rule for a string of a schema; the string contains none of `ends`. References of the schema resolve in `root`.
pub(super) fn text(schema: &Value, hold: Hold, ends: &[&str], root: &Document<'_>) -> Result<String, String> {
    text_within(schema, hold, ends, root, MAX_CHOICES)
}

fn text_within(
    schema: &Value,
    hold: Hold,
    ends: &[&str],
    root: &Document<'_>,
    depth: usize,
) -> Result<String, String> {
    let without = |body: String| {
        let ends = ends
            .iter()
            .map(|end| format!(" & ~(/(?s:.*)/ {} /(?s:.*)/)", quoted(end)));
        format!("({body}{})", ends.collect::<String>())
    };
    if hold == Hold::Relaxed {
        return Ok(without("/(?s:.*)/".to_owned()));
    }
    let fields = schema.as_object().ok_or("it is not an object")?;
    if let Some(choices) = choices_of(fields).filter(|_| depth > 0) {
        let choices = choices.iter().map(|choice| {
            let choice = seen_through(choice, root);
            text_within(&choice, hold, ends, root, depth - 1).map(|body| format!("({body})"))
        });
        return Ok(choices.collect::<Result<Vec<_>, _>>()?.join(" | "));
    }
    let is_word = |keyword: &str| TEXT.contains(&keyword) || is_note(keyword);
    if let Some(keyword) = fields.keys().find(|keyword| !is_word(keyword)) {
        return Err(format!(
            "`{keyword}` of a text cannot be expressed in this format"
        ));
    }
    let choices = match (fields.get("const"), fields.get("enum").and_then(Value::as_array)) {
        (Some(only), _) => Some(vec![only]),
        (None, Some(values)) => Some(values.iter().collect()),
        (None, None) => None,
    };
    if let Some(choices) = choices {
        let texts = choices.iter().filter_map(|choice| choice.as_str());
        let texts: Vec<String> = texts
            .filter(|text| !text.is_empty() && !ends.iter().any(|end| text.contains(end)))
            .map(quoted)
            .collect();
        if texts.is_empty() {
            return Err("none of its listed texts can be expressed".to_owned());
        }
        return Ok(texts.join(" | "));
    }
    let length = |key: &str| fields.get(key).and_then(Value::as_u64);
    let mut body = match (length("minLength"), length("maxLength")) {
        (None, None) => "/(?s:.*)/".to_owned(),
        (least, None) => format!("/(?s:.{{{},}})/", least.unwrap_or(0)),
        (least, Some(most)) => format!("/(?s:.{{{},{most}}})/", least.unwrap_or(0)),
    };
    if let Some(pattern) = fields.get("pattern").and_then(Value::as_str) {
        let (begins, ends) = (pattern.starts_with('^'), pattern.ends_with('$'));
        if pattern.contains('|') && (begins || ends) || pattern.ends_with("\\$") {
            return Err("its `pattern` has choices with anchors".to_owned());
        }
        let inner = pattern.strip_prefix('^').unwrap_or(pattern);
        let inner = inner.strip_suffix('$').unwrap_or(inner);
        let any = |is_anchored| if is_anchored { "" } else { "(?s:.*)" };
        let regex = format!("{}(?:{inner}){}", any(begins), any(ends));
        body = format!("{body} & /{}/", with_escaped_slashes(&regex));
    }
    Ok(without(body))
}

/// Escapes the slashes of a regular expression.
fn with_escaped_slashes(regex: &str) -> String {
    let mut escaped = String::with_capacity(regex.len());
    let mut is_escaped = false;
    for c in regex.chars() {
        if c == '/' && !is_escaped {
            escaped.push('\\');
        }
        is_escaped = c == '\\' && !is_escaped;
        escaped.push(c);
    }
    escaped
}
