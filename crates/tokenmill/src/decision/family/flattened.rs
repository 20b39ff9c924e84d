//! [`flatten_texts`]: objects and lists as labelled lines, the form in which Kev reads them.
//!
//! Kev was trained on texts, so its template gets no objects and lists, and each value is written into one text without copies of its
//! parts. The caller bounds its bytes by [`check_bytes`](super::variables::check_bytes). Invariant: no text of the result has a
//! spelling of the form `<|word|>`.

use serde_json::{Map, Value};

/// Replaces the values of a question's variables by their texts: the instructions, and keys and descriptions of options.
pub(super) fn flatten_texts(variables: &mut Map<String, Value>) {
    if let Some(value) = variables.get_mut("instructions") {
        *value = flat_text(value).into();
    }
    let options = variables.get_mut("options").and_then(Value::as_array_mut);
    for option in options.into_iter().flatten().filter_map(Value::as_object_mut) {
        for value in option.values_mut().filter(|value| !value.is_null()) {
            *value = flat_text(value).into();
        }
    }
}

/// Writes a value as a text.
pub(super) fn flat_text(value: &Value) -> String {
    let mut lines = Lines::default();
    lines.add(value, 0);
    defused(&lines.text)
}

/// A value as lines. Entries of lists begin with `- `, and those of objects with their keys; inner ones are indented by two spaces.
#[derive(Debug, Default)]
struct Lines {
    text: String,
    /// Whether white space is left out until a text begins: it follows the mark of an entry.
    trims: bool,
}

impl Lines {
    fn add(&mut self, value: &Value, depth: usize) {
        match value {
            Value::Null => {}
            Value::Bool(true) => self.push("True"),
            Value::Bool(false) => self.push("False"),
            Value::String(text) => self.push(text),
            Value::Number(number) => self.push(&number.to_string()),
            Value::Array(items) => {
                for (idx, item) in items.iter().enumerate() {
                    self.begin_line(idx, depth);
                    self.push("- ");
                    self.trims = true;
                    self.add(item, depth + 1);
                    self.trims = false;
                }
            }
            Value::Object(fields) => {
                for (idx, (key, item)) in fields.iter().enumerate() {
                    self.begin_line(idx, depth);
                    self.push(key);
                    if item.is_object() || item.is_array() {
                        self.push(":\n");
                        self.add(item, depth + 1);
                    } else {
                        self.push(": ");
                        self.add(item, 0);
                    }
                }
            }
        }
    }

    /// Begins the line of an entry.
    fn begin_line(&mut self, idx: usize, depth: usize) {
        if idx > 0 {
            self.push("\n");
        }
        for _ in 0..depth {
            self.push("  ");
        }
    }

    fn push(&mut self, text: &str) {
        let text = if self.trims {
            text.trim_start_matches([' ', '\t', '\n', '\r'])
        } else {
            text
        };
        self.trims &= text.is_empty();
        self.text += text;
    }
}

/// Writes `<|name|>` as `<¦name¦>`.
fn defused(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("<|") {
        let (before, inner) = (&rest[..start], &rest[start + 2..]);
        safe += before;
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let n_word = inner.bytes().take_while(|&byte| is_word(byte)).count();
        if n_word > 0 && inner[n_word..].starts_with("|>") {
            safe += "<¦";
            safe += &inner[..n_word];
            safe += "¦>";
            rest = &inner[n_word + 2..];
        } else {
            safe += "<|";
            rest = inner;
        }
    }
    safe + rest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_and_lists_are_labelled_lines() {
        let value = json!({ "name": "Ann", "open": true, "none": null, "list": [1, { "a": 2, "b": [3] }], "in": { "x": 1.5 } });
        assert_eq!(
            flat_text(&value),
            "name: Ann\nopen: True\nnone: \nlist:\n  - 1\n  - a: 2\n    b:\n      - 3\nin:\n  x: 1.5"
        );
        let value = json!([[1, [2]], "  a", [], { " ": "x" }, { "k": [] }, "\t", null]);
        assert_eq!(
            flat_text(&value),
            "- - 1\n  - - 2\n- a\n- \n- : x\n- k:\n\n- \n- ",
            "no white space follows the mark of an entry"
        );
    }

    #[test]
    fn control_tokens_are_defused() {
        let check = |text: &str, expected: &str| assert_eq!(defused(text), expected);
        check("a <|box_end|> b<|im_end|>", "a <¦box_end¦> b<¦im_end¦>");
        check("<|<|a|>|> <|a b|> <||> <|", "<|<¦a¦>|> <|a b|> <||> <|");
    }
}
