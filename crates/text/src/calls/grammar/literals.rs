//! Arguments that are written like those of a call in a program, or between Gemma's marks.
//!
//! Separate from tags because values are literals. Invariant: a value is JSON where the parser of the dialect reads that;
//! else every kind of value has a rule here, or its schema is refused.

use serde_json::{Map, Value, json};

use super::{
    Hold, Offer,
    arguments::{arguments_of, relaxed, takes_unnamed, text, value},
    rules::Rules,
};
use crate::calls::{literal::Dialect, literal_body::LiteralShape};

/// Values inside each other.
const MAX_DEPTH: usize = 16;

/// Keywords that say nothing of a value.
const NOTES: [&str; 5] = ["title", "description", "default", "examples", "$comment"];

/// A key of an object whose members have no names in its schema.
const KEY: &str = "/[\\w$@][\\w$@.\\-]*( [\\w$@.\\-]+)*/";

/// Arguments of a call, with commas between them.
pub(super) fn arguments(
    offer: &Offer<'_>,
    shape: &LiteralShape,
    rules: &mut Rules<'_>,
) -> Result<String, String> {
    rules.begin_arguments()?;
    let separator = if shape.dialect == Dialect::Python {
        "\",\" \" \"?"
    } else {
        "\",\""
    };
    if takes_unnamed(offer)? {
        let value = match shape.dialect {
            Dialect::Python => value(&json!({}), rules)?,
            Dialect::Marked(mark) => any(mark, rules)?,
        };
        let key = rules.terminal("/[A-Za-z_$][A-Za-z0-9_$.\\-]{0,63}/");
        let equals = rules.text(&shape.separator.to_string());
        let member = rules.rule(&format!("{key} {equals} {value}"));
        return Ok(rules.rule(&format!("({member} ({separator} {member})*)?")));
    }
    let mut members = Vec::new();
    for argument in arguments_of(offer, rules)? {
        let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '$');
        if argument.key.is_empty() || !argument.key.chars().all(is_name) {
            return Err(format!("an argument is called {}", Value::from(argument.key)));
        }
        let schema = match offer.hold {
            Hold::Exact => argument.schema,
            Hold::Relaxed => relaxed(&argument.schema),
        };
        let value = match shape.dialect {
            Dialect::Python => value(&schema, rules)?,
            Dialect::Marked(mark) => marked(&schema, mark, 0, rules)?,
        };
        let key = rules.text(&format!("{}{}", argument.key, shape.separator));
        members.push((rules.rule(&format!("{key} {value}")), argument.is_required));
    }
    Ok(row(&members, separator, rules))
}

/// Members of which some may be left out, in their order, with `separator` between two.
fn row(members: &[(String, bool)], separator: &str, rules: &mut Rules<'_>) -> String {
    // What may follow a member, from the last to the first; and what a row may be that begins at a member or behind it.
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

/// A value in Gemma's notation: texts between marks, keys without any.
fn marked(schema: &Value, mark: &str, depth: usize, rules: &mut Rules<'_>) -> Result<String, String> {
    if depth > MAX_DEPTH {
        return Err(format!("values are nested deeper than {MAX_DEPTH} levels"));
    }
    let none = || "a value without one `type` has no words in this format".to_owned();
    let is_note = |fields: &Map<String, Value>| fields.keys().all(|key| NOTES.contains(&key.as_str()));
    if *schema == Value::Bool(true) || schema.as_object().is_some_and(is_note) {
        return any(mark, rules);
    }
    let kind = match (schema.get("type"), schema.get("enum").and_then(Value::as_array)) {
        (Some(kind), _) => kind.as_str().ok_or_else(none)?,
        (None, Some(values)) if values.iter().all(Value::is_string) => "string",
        _ => return Err(none()),
    };
    match kind {
        "string" => {
            let body = text(schema, Hold::Exact, &[mark])?;
            let inner = rules.bounded("", &body, mark);
            Ok(rules.rule(&format!("{} {inner}", rules.mark(mark))))
        }
        "array" => {
            let known = ["type", "items", "title", "description", "default", "examples"];
            let fields = schema.as_object().ok_or_else(none)?;
            if let Some(keyword) = fields.keys().find(|keyword| !known.contains(&keyword.as_str())) {
                return Err(format!("`{keyword}` of a list has no words in this format"));
            }
            let item = marked(
                fields.get("items").unwrap_or(&Value::Bool(true)),
                mark,
                depth + 1,
                rules,
            )?;
            Ok(rules.rule(&list_of(&item)))
        }
        "object" => {
            let offer = Offer {
                name: "",
                schema,
                hold: Hold::Exact,
            };
            let mut members = Vec::new();
            let mut names = Vec::new();
            for argument in arguments_of(&offer, rules)? {
                if argument.key.is_empty() || argument.key.contains([':', ',', '{', '}', ' ']) {
                    return Err(format!("a member is called {}", Value::from(argument.key)));
                }
                let value = marked(&argument.schema, mark, depth + 1, rules)?;
                let key = rules.text(&format!("{}:", argument.key));
                names.push(rules.text(&argument.key));
                members.push((rules.rule(&format!("{key} {value}")), argument.is_required));
            }
            // Where a schema names no members and does not exclude any, an object may have some.
            let others = match schema.get("additionalProperties") {
                None if names.is_empty() => Some(&Value::Bool(true)),
                Some(Value::Bool(false)) | None => None,
                others => others,
            };
            if let Some(others) = others {
                let value = marked(others, mark, depth + 1, rules)?;
                let member = member_of(&value, &names, rules);
                members.push((rules.rule(&format!("{member} (\",\" {member})*")), false));
            }
            let row = row(&members, "\",\"", rules);
            Ok(rules.rule(&format!("\"{{\" {row} \"}}\"")))
        }
        _ => value(schema, rules),
    }
}

/// A value of which nothing is said, as deep as values may be.
fn any(mark: &str, rules: &mut Rules<'_>) -> Result<String, String> {
    if let Some(any) = &rules.any {
        return Ok(any.clone());
    }
    let body = text(&json!({}), Hold::Exact, &[mark])?;
    let inner = rules.bounded("", &body, mark);
    let text = rules.rule(&format!("{} {inner}", rules.mark(mark)));
    let scalar = value(&json!({"type": ["number", "boolean", "null"]}), rules)?;
    let mut any = rules.rule(&format!("{text} | {scalar}"));
    for _ in 0..MAX_DEPTH {
        let member = member_of(&any, &[], rules);
        let list = list_of(&any);
        any = rules.rule(&format!(
            "{text} | {scalar} | {list} | \"{{\" ({member} (\",\" {member})*)? \"}}\""
        ));
    }
    rules.any = Some(any.clone());
    Ok(any)
}

/// The body of a rule for a list of such items.
fn list_of(item: &str) -> String {
    format!("\"[\" ({item} (\",\" {item})*)? \"]\"")
}

/// A member with such a value and any key but `names`, which are quoted.
fn member_of(value: &str, names: &[String], rules: &mut Rules<'_>) -> String {
    let key = if names.is_empty() {
        KEY.to_owned()
    } else {
        format!("{KEY} & ~({})", names.join(" | "))
    };
    let key = rules.terminal(&key);
    rules.rule(&format!("{key} \":\" {value}"))
}
