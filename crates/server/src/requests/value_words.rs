//! [`in_words`]: describes in JSON's terms why a value cannot be read.
//!
//! The parser's messages name Rust types, such as `u32` and `a map`. Invariant: an unknown message stays as
//! it is.

/// Writes a message of the parser in the words of JSON.
pub(crate) fn in_words(message: &str) -> String {
    let wrong = (message.strip_prefix("invalid type: ")).or_else(|| message.strip_prefix("invalid value: "));
    if let Some((found, expected)) = wrong.and_then(|rest| rest.rsplit_once(", expected ")) {
        return format!("expected {}, found {}", wanted(expected), shown(found));
    }
    if let Some(name) = message.strip_prefix("missing field ") {
        return format!("the field {name} is required");
    }
    if message.starts_with("data did not match any variant of untagged enum ") {
        return "the value has none of the forms that this field takes".to_owned();
    }
    let variant = message.strip_prefix("unknown variant ");
    if let Some((found, expected)) = variant.and_then(|rest| rest.split_once(", expected ")) {
        return format!("expected {expected}, found {found}");
    }
    message.to_owned()
}

/// The expected value of a type.
fn wanted(expected: &str) -> &str {
    match expected {
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" | "u128" => "a whole number from 0 on",
        "i8" | "i16" | "i32" | "i64" | "isize" | "i128" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "`true` or `false`",
        "a map" => "an object",
        "a sequence" => "a list",
        "unit" => "null",
        other if other.starts_with("struct ") || other.starts_with("internally tagged enum") => "an object",
        other => other,
    }
}

/// The value that was found: numbers stand without their type.
fn shown(found: &str) -> &str {
    match found {
        "map" => "an object",
        "sequence" => "a list",
        "unit value" | "Option value" => "null",
        other => ["integer ", "floating point ", "boolean "]
            .iter()
            .find_map(|kind| other.strip_prefix(kind))
            .unwrap_or(other),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::{Value, json};

    use super::*;

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only errors are looked at")]
    struct Fields {
        n: Option<u32>,
        x: Option<f32>,
        is_on: Option<bool>,
        words: Option<Vec<String>>,
        inner: Option<Inner>,
        either: Option<Either>,
        kind: Option<Kind>,
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only errors are looked at")]
    struct Inner {
        name: String,
    }

    #[derive(Debug, Deserialize)]
    #[serde(untagged)]
    #[expect(dead_code, reason = "only errors are looked at")]
    enum Either {
        Text(String),
        Number(u32),
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Kind {
        User,
        Tool,
    }

    #[test]
    fn types_are_those_of_json() {
        let check = |body: Value, expected: &str| {
            let error = Fields::deserialize(&body).expect_err("it is wrong");
            assert_eq!(in_words(&error.to_string()), expected, "{body}");
        };
        let whole = "expected a whole number from 0 to 4294967295";
        check(json!({"n": "five"}), &format!("{whole}, found string \"five\""));
        check(json!({"n": -1}), &format!("{whole}, found `-1`"));
        check(json!({"n": 1.5}), &format!("{whole}, found `1.5`"));
        check(json!({"x": []}), "expected a number, found a list");
        check(
            json!({"is_on": {}}),
            "expected `true` or `false`, found an object",
        );
        check(json!({"words": true}), "expected a list, found `true`");
        check(json!({"words": [null]}), "expected a string, found null");
        check(json!({"inner": 3}), "expected an object, found `3`");
        check(json!({"inner": {}}), "the field `name` is required");
        check(
            json!({"either": {}}),
            "the value has none of the forms that this field takes",
        );
        check(json!({"kind": "x"}), "expected `user` or `tool`, found `x`");
        assert_eq!(in_words("something else"), "something else");
    }
}
