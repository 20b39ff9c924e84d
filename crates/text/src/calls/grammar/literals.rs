//! Arguments that are written like those of a call in a program, or between Gemma's marks.
//!
//! Separate from tags because values are literals. Invariant: a value is JSON where the parser of the dialect reads that;
//! else every kind of value has a rule here, or its schema is refused.

use serde_json::{Value, json};

use super::{
    Hold, Offer,
    arguments::{arguments_of, relaxed, text, value},
    rules::Rules,
};
use crate::calls::{literal::Dialect, literal_body::LiteralShape};

/// Values inside each other.
const MAX_DEPTH: usize = 16;

/// Arguments of a call, with commas between them.
pub(super) fn arguments(
    offer: &Offer<'_>,
    shape: &LiteralShape,
    rules: &mut Rules<'_>,
) -> Result<String, String> {
    let mut members = Vec::new();
    for argument in arguments_of(offer)? {
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
    let separator = if shape.dialect == Dialect::Python {
        "\",\" \" \"?"
    } else {
        "\",\""
    };
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
            let any = json!({"type": "string"});
            let item = marked(fields.get("items").unwrap_or(&any), mark, depth + 1, rules)?;
            Ok(rules.rule(&format!("\"[\" ({item} (\",\" {item})*)? \"]\"")))
        }
        "object" => {
            let offer = Offer {
                name: "",
                schema,
                hold: Hold::Exact,
            };
            let mut members = Vec::new();
            for argument in arguments_of(&offer)? {
                if argument.key.is_empty() || argument.key.contains([':', ',', '{', '}', ' ']) {
                    return Err(format!("a member is called {}", Value::from(argument.key)));
                }
                let value = marked(&argument.schema, mark, depth + 1, rules)?;
                let key = rules.text(&format!("{}:", argument.key));
                members.push((rules.rule(&format!("{key} {value}")), argument.is_required));
            }
            let row = row(&members, "\",\"", rules);
            Ok(rules.rule(&format!("\"{{\" {row} \"}}\"")))
        }
        _ => value(schema, rules),
    }
}
