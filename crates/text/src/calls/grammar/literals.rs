//! Writes arguments in the form of a program's call, or between Gemma's marks.
//!
//! Invariant: a value is JSON if the dialect's parser reads JSON; otherwise every kind of value has a rule here, or its schema is
//! refused.

use serde_json::{Map, Value, json};

use super::{
    Hold, Offer,
    arguments::{arguments_of, relaxed, takes_unnamed, value},
    bare::text,
    rules::Rules,
};
use crate::{
    calls::{literal::Dialect, literal_body::LiteralShape, see_through::seen_through},
    constraint::Document,
};

/// Largest nesting depth of values.
const MAX_DEPTH: usize = 16;

/// Most values of one argument that get separate rules.
const MAX_LITERALS: usize = 400;

/// Keywords that do not restrict a value.
const NOTES: [&str; 7] = [
    "title",
    "description",
    "default",
    "examples",
    "$comment",
    "$defs",
    "definitions",
];

/// A key of an object whose schema does not name its members.
const KEY: &str = "/[\\w$@][\\w$@.\\-]*( [\\w$@.\\-]+)*/";

/// Characters that may follow a backslash in a Python string.
const ESCAPE: &str = r"[^uUxN]|x[0-9a-fA-F]{2}|u[0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|u[dD][0-7][0-9a-fA-F]{2}|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|U000[0-9a-cA-C][0-9a-fA-F]{4}|U000[eE][0-9a-fA-F]{4}|U0001[0-9a-fA-F]{4}";

/// Arguments of a call, with commas between them.
pub(super) fn arguments(
    offer: &Offer<'_>,
    shape: &LiteralShape,
    rules: &mut Rules<'_>,
) -> Result<String, String> {
    rules.begin_arguments()?;
    let dialect = shape.dialect;
    if takes_unnamed(offer)? {
        let value = any(dialect, rules)?;
        let key = rules.terminal("/[A-Za-z_$][A-Za-z0-9_$.\\-]{0,63}/");
        let equals = rules.text(&shape.separator.to_string());
        let member = rules.rule(&format!("{key} {equals} {value}"));
        let comma = comma(dialect);
        return Ok(rules.rule(&format!("({member} ({comma} {member})*)?")));
    }
    let mut members = Vec::new();
    for argument in arguments_of(offer, rules)? {
        let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '$');
        if argument.key.is_empty() || !argument.key.chars().all(is_name) {
            return Err(format!("an argument is called {}", Value::from(argument.key)));
        }
        let schema = match offer.hold {
            Hold::Exact => argument.schema,
            Hold::Relaxed => relaxed(argument.kinds),
        };
        let own = Document::of(&schema);
        let root = if offer.hold == Hold::Exact {
            offer.root
        } else {
            &own
        };
        rules.literals_left = MAX_LITERALS;
        let value = match literal(&schema, root, dialect, 0, rules) {
            Err(_) if dialect == Dialect::Python => value(&schema, rules)?,
            written => written?,
        };
        let key = rules.text(&format!("{}{}", argument.key, shape.separator));
        members.push((rules.rule(&format!("{key} S? {value}")), argument.is_required));
    }
    Ok(row(&members, comma(dialect), rules))
}

/// Returns the separator between two members or items.
fn comma(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Python => "S? \",\" S?",
        Dialect::Marked(_) => "\",\" S?",
    }
}

/// Returns the separator between a key and its value.
fn colon(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Python => "S? \":\" S?",
        Dialect::Marked(_) => "\":\" S?",
    }
}

/// Writes members in their order, with `separator` between two; some may be left out.
fn row(members: &[(String, bool)], separator: &str, rules: &mut Rules<'_>) -> String {
    // The rules for the rest after each member, from the last to the first, and for a row that starts at or after a member.
    let (mut following, mut whole) = (String::new(), String::new());
    for (member, is_required) in members.iter().rev() {
        let here = format!("{member} {following}");
        let begun = format!("{separator} {here}");
        (following, whole) = if *is_required {
            (rules.rule(&begun), rules.rule(&here))
        } else {
            let or = |other: &str| {
                if other.is_empty() {
                    "\"\"".to_owned()
                } else {
                    other.to_owned()
                }
            };
            let (or_following, or_whole) = (or(&following), or(&whole));
            (
                rules.rule(&format!("{begun} | {or_following}")),
                rules.rule(&format!("{here} | {or_whole}")),
            )
        };
    }
    whole
}

/// Writes the rule for a value in Python's notation, or in Gemma's, which has marks around strings and no quotes around keys. References
/// resolve in `root`.
fn literal(
    schema: &Value,
    root: &Document<'_>,
    dialect: Dialect,
    depth: usize,
    rules: &mut Rules<'_>,
) -> Result<String, String> {
    if rules.literals_left == 0 {
        return Err(format!("it has more than {MAX_LITERALS} nested values"));
    }
    rules.literals_left -= 1;
    match (own_literal(schema, root, dialect, depth, rules), dialect) {
        (Ok(rule), _) => Ok(rule),
        // Python's notation includes JSON's except for three words, and the parser reads those too.
        (Err(_), Dialect::Python) if rules.literals_left > 0 => value(schema, rules),
        (Err(reason), _) => Err(reason),
    }
}

fn own_literal(
    schema: &Value,
    root: &Document<'_>,
    dialect: Dialect,
    depth: usize,
    rules: &mut Rules<'_>,
) -> Result<String, String> {
    if depth > MAX_DEPTH {
        return Err(format!("values are nested deeper than {MAX_DEPTH} levels"));
    }
    let none = || "a value without one `type` cannot be expressed in this format".to_owned();
    let is_note = |keyword: &String| NOTES.contains(&keyword.as_str());
    let seen = seen_through(schema, root);
    if *seen == Value::Bool(true) || seen.as_object().is_some_and(|fields| fields.keys().all(is_note)) {
        return any(dialect, rules);
    }
    let fields = seen.as_object().ok_or_else(none)?;
    if let Some(choices) = choices_of(fields) {
        let choices = choices.iter().map(|choice| {
            rules.take(choice.to_string().len())?;
            literal(&with_definitions(choice, schema), root, dialect, depth + 1, rules)
        });
        let choices = choices.collect::<Result<Vec<_>, _>>()?;
        return Ok(rules.rule(&choices.join(" | ")));
    }
    let kind = match (seen.get("type"), seen.get("enum").and_then(Value::as_array)) {
        (Some(kind), _) => kind.as_str().ok_or_else(none)?,
        (None, Some(values)) if values.iter().all(Value::is_string) => "string",
        _ => return Err(none()),
    };
    match kind {
        "string" => string(&seen, root, dialect, rules),
        "array" => {
            let known = [
                "type",
                "items",
                "title",
                "description",
                "default",
                "examples",
                "$defs",
                "definitions",
            ];
            if let Some(keyword) = fields.keys().find(|keyword| !known.contains(&keyword.as_str())) {
                return Err(format!(
                    "`{keyword}` of a list cannot be expressed in this format"
                ));
            }
            let items = with_definitions(fields.get("items").unwrap_or(&Value::Bool(true)), schema);
            let item = literal(&items, root, dialect, depth + 1, rules)?;
            Ok(rules.rule(&list_of(&item, dialect)))
        }
        "object" => object(&seen, schema, root, dialect, depth, rules),
        "boolean" if dialect == Dialect::Python && has_only_type(fields) => {
            Ok(rules.rule("\"True\" | \"False\" | \"true\" | \"false\""))
        }
        "null" if dialect == Dialect::Python => Ok(rules.rule("\"None\" | \"null\"")),
        _ => value(&with_definitions(&seen, schema), rules),
    }
}

fn has_only_type(fields: &Map<String, Value>) -> bool {
    fields
        .keys()
        .all(|keyword| keyword == "type" || NOTES.contains(&keyword.as_str()))
}

/// Returns the choices of a schema that has no other restriction.
fn choices_of(fields: &Map<String, Value>) -> Option<&Vec<Value>> {
    let mut others = fields
        .iter()
        .filter(|(keyword, _)| !NOTES.contains(&keyword.as_str()));
    match (others.next()?, others.next()) {
        ((keyword, choices), None) if keyword == "anyOf" || keyword == "oneOf" => choices.as_array(),
        _ => None,
    }
}

/// Copies the definitions of `whole` into a part of it, which is compiled separately.
fn with_definitions(part: &Value, whole: &Value) -> Value {
    let mut part = part.clone();
    if let (Some(fields), Some(whole)) = (part.as_object_mut(), whole.as_object()) {
        for keyword in ["$defs", "definitions"] {
            if let Some(defined) = whole.get(keyword)
                && !fields.contains_key(keyword)
            {
                fields.insert(keyword.to_owned(), defined.clone());
            }
        }
    }
    part
}

fn object(
    seen: &Value,
    schema: &Value,
    root: &Document<'_>,
    dialect: Dialect,
    depth: usize,
    rules: &mut Rules<'_>,
) -> Result<String, String> {
    let with_defined = with_definitions(seen, schema);
    let offer = Offer {
        name: "",
        schema: &with_defined,
        root,
        hold: Hold::Exact,
    };
    let colon = colon(dialect);
    let mut members = Vec::new();
    let mut names = Vec::new();
    for argument in arguments_of(&offer, rules)? {
        let is_bare = dialect != Dialect::Python;
        if is_bare && (argument.key.is_empty() || argument.key.contains([':', ',', '{', '}', ' '])) {
            return Err(format!("a member is called {}", Value::from(argument.key)));
        }
        let value = literal(&argument.schema, root, dialect, depth + 1, rules)?;
        let key = match dialect {
            Dialect::Python => {
                let double = rules.text(&Value::from(argument.key.as_str()).to_string());
                if argument.key.contains(['\'', '\\']) || argument.key.chars().any(char::is_control) {
                    double
                } else {
                    format!("({double} | {})", rules.text(&format!("'{}'", argument.key)))
                }
            }
            Dialect::Marked(_) => rules.text(&argument.key),
        };
        names.push(rules.text(&argument.key));
        members.push((
            rules.rule(&format!("{key} {colon} {value}")),
            argument.is_required,
        ));
    }
    // An object may have other members if the schema names none and does not exclude them.
    let others = match seen.get("additionalProperties") {
        None if names.is_empty() => Some(&Value::Bool(true)),
        Some(Value::Bool(false)) | None => None,
        others => others,
    };
    let comma = comma(dialect);
    if let Some(others) = others {
        let value = literal(&with_definitions(others, schema), root, dialect, depth + 1, rules)?;
        let member = member_of(&value, &names, dialect, rules);
        members.push((rules.rule(&format!("{member} ({comma} {member})*")), false));
    }
    let row = row(&members, comma, rules);
    Ok(rules.rule(&format!("\"{{\" S? {row} S? \"}}\"")))
}

/// Writes the rule for a string of a schema.
fn string(
    schema: &Value,
    root: &Document<'_>,
    dialect: Dialect,
    rules: &mut Rules<'_>,
) -> Result<String, String> {
    match dialect {
        Dialect::Marked(mark) => {
            let body = text(schema, Hold::Exact, &[mark], root)?;
            let inner = rules.bounded("", &body, mark);
            Ok(rules.rule(&format!("{} {inner}", rules.mark(mark))))
        }
        Dialect::Python => {
            if schema.as_object().is_some_and(has_only_type) {
                return Ok(python_text(rules));
            }
            let double = value(schema, rules)?;
            // A string without escapes, in the format of the schema.
            let Ok(body) = text(schema, Hold::Exact, &["'", "\\"], root) else {
                return Ok(double);
            };
            let single = rules.terminal(&format!("\"'\" ({body}) \"'\""));
            Ok(rules.rule(&format!("{double} | {single}")))
        }
    }
}

/// Writes the rule for any string between either kind of quotes.
fn python_text(rules: &mut Rules<'_>) -> String {
    if let Some(text) = &rules.python_text {
        return text.clone();
    }
    let single = rules.terminal(&format!(r"/'([^'\\]|\\({ESCAPE}))*'/"));
    let double = rules.terminal(&format!(r#"/"([^"\\]|\\({ESCAPE}))*"/"#));
    let text = rules.rule(&format!("{single} | {double}"));
    rules.python_text = Some(text.clone());
    text
}

/// Writes a value without any restriction, as deep as values may be.
fn any(dialect: Dialect, rules: &mut Rules<'_>) -> Result<String, String> {
    if let Some(any) = &rules.any {
        return Ok(any.clone());
    }
    let text = string(
        &json!({"type": "string"}),
        &Document::of(&Value::Null),
        dialect,
        rules,
    )?;
    let mut scalar = value(&json!({"type": ["number", "boolean", "null"]}), rules)?;
    if dialect == Dialect::Python {
        scalar = rules.rule(&format!("{scalar} | \"True\" | \"False\" | \"None\""));
    }
    let mut any = rules.rule(&format!("{text} | {scalar}"));
    let comma = comma(dialect);
    for _ in 0..MAX_DEPTH {
        let member = member_of(&any, &[], dialect, rules);
        let list = list_of(&any, dialect);
        any = rules.rule(&format!(
            "{text} | {scalar} | {list} | \"{{\" S? ({member} ({comma} {member})* S?)? \"}}\""
        ));
    }
    rules.any = Some(any.clone());
    Ok(any)
}

/// Returns the body of a rule for a list of such items.
fn list_of(item: &str, dialect: Dialect) -> String {
    format!("\"[\" S? ({item} ({} {item})* S?)? \"]\"", comma(dialect))
}

/// Returns a member with such a value and any key but `names`, which are quoted.
fn member_of(value: &str, names: &[String], dialect: Dialect, rules: &mut Rules<'_>) -> String {
    let colon = colon(dialect);
    let but = |key: &str| {
        if names.is_empty() {
            key.to_owned()
        } else {
            format!("{key} & ~({})", names.join(" | "))
        }
    };
    let key = match dialect {
        Dialect::Python => {
            let body = but(r#"/[^'"\\\n]*/"#);
            let single = rules.terminal(&format!("\"'\" ({body}) \"'\""));
            let double = rules.terminal(&format!("\"\\\"\" ({body}) \"\\\"\""));
            format!("({single} | {double})")
        }
        Dialect::Marked(_) => rules.terminal(&but(KEY)),
    };
    rules.rule(&format!("{key} {colon} {value}"))
}
