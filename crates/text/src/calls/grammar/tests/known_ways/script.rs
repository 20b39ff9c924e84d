//! [`Writer`] writes scripts: texts as the models of a family write them, each with its expected reading. It
//! knows nothing of parsers and masks.
#![expect(
    clippy::format_push_string,
    clippy::type_complexity,
    reason = "short texts and tables of a test"
)]

use serde_json::{Map, Value, json};

use super::Dice;
use crate::calls::{
    format::{CallFormat, Shape},
    literal::Dialect,
    literal_body::LiteralShape,
    tagged_body::TaggedShape,
};

/// Holds a text that a model writes, and its expected reading.
#[derive(Debug, Default)]
pub(super) struct Script {
    pub(super) text: String,
    pub(super) calls: Vec<(String, Value)>,
    pub(super) content: String,
    pub(super) reasoning: String,
}

/// Writes scripts of a family.
pub(super) struct Writer<'f> {
    pub(super) row: &'f CallFormat,
    pub(super) dice: Dice,
}

/// Selects the white space in JSON.
#[derive(Clone, Copy)]
enum Spaces {
    None,
    OnOneLine,
    OnLines,
}

impl Spaces {
    /// Joins members between brackets.
    fn join(self, (open, close): (char, char), members: &[String], depth: usize) -> String {
        match self {
            _ if members.is_empty() => format!("{open}{close}"),
            Spaces::None => format!("{open}{}{close}", members.join(",")),
            Spaces::OnOneLine => format!("{open}{}{close}", members.join(", ")),
            Spaces::OnLines => {
                let (outer, inner) = ("  ".repeat(depth), "  ".repeat(depth + 1));
                let members = members.join(&format!(",\n{inner}"));
                format!("{open}\n{inner}{members}\n{outer}{close}")
            }
        }
    }
}

impl Writer<'_> {
    fn one_of<'t>(&mut self, texts: &[&'t str]) -> &'t str {
        texts[self.dice.roll(texts.len())]
    }

    fn is_heads(&mut self) -> bool {
        self.dice.roll(2) == 0
    }

    /// Chooses one of a family's marks, mostly the first.
    fn mark<'t>(&mut self, marks: &[&'t str]) -> &'t str {
        match self.dice.roll(3) {
            0 if !marks.is_empty() => self.one_of(marks),
            _ => marks.first().copied().unwrap_or_default(),
        }
    }

    /// Writes a text for an argument. Tags cannot express an empty one.
    fn text(&mut self) -> String {
        const PARTS: &[&str] = &[
            "plain",
            "007",
            "true",
            "a \"b\" c",
            "it's",
            "back\\slash",
            "a/b",
            "café",
            "日本",
            "😀",
            "line\nbreak",
            "tab\there",
            "{\"k\": 1}",
            "[x]",
            "f(a=1)",
            "a, b: c",
            "<b>bold</b> & more",
            "x = y",
            "\\u00e9 as such",
            "https://a.b/c?d=e",
            "5\" or 7/8\"",
            "12\" a/b",
            "```rust\nfn",
            "\r\n",
            "$1 %s {}",
            "👩\u{200d}💻",
        ];
        let n = 1 + self.dice.roll(3);
        let parts: Vec<&str> = (0..n).map(|_| self.one_of(PARTS)).collect();
        parts.join(" ")
    }

    /// Writes a list or an object that holds others, at most `depth` levels.
    fn nested(&mut self, depth: usize) -> Value {
        // Python and Gemma write keys without quotes, or differently.
        let keys: &[&'static str] = match self.row.shape {
            Shape::Literal(_) => &["a", "name", "arguments"],
            _ => &["a", "name", "arguments", "b c", "\"q\"", "ü", "</x>", "}", ""],
        };
        let leaf = |this: &mut Self| match this.dice.roll(6) {
            0 | 1 if depth > 1 => this.nested(depth - 1),
            2 => this.text().into(),
            3 => json!(-0.25),
            4 => [Value::Null, json!(true), json!(12_345_678)][this.dice.roll(3)].clone(),
            _ => this.one_of(&["", "}", "\"", "]"]).into(),
        };
        let n = self.dice.roll(4);
        if self.is_heads() {
            return (0..n).map(|_| leaf(self)).collect();
        }
        let fields = (0..n).map(|_| (self.one_of(keys).to_owned(), leaf(self)));
        Value::Object(fields.collect())
    }

    fn arguments(&mut self) -> Vec<(&'static str, Value)> {
        let mut arguments = vec![("text", Value::from(self.text()))];
        let others: [(&str, fn(&mut Self) -> Value); 8] = [
            ("named", |this| this.text().into()),
            ("colour", |this| {
                this.one_of(&["red", "1", "dark blue", "n/a", "7\" red"]).into()
            }),
            ("maybe", |this| match this.dice.roll(2) {
                0 => Value::Null,
                _ => this.one_of(&["red", "n/a", "7\" red"]).into(),
            }),
            ("n", |this| (this.dice.roll(2000) as i64 - 1000).into()),
            ("is_on", |this| this.is_heads().into()),
            ("inner", |this| json!({"key": this.text(), "list": [1, -2]})),
            ("list", |this| json!([this.text(), this.text()])),
            ("any", |this| this.nested(4)),
        ];
        for (key, value) in others {
            if self.dice.roll(3) == 0 {
                arguments.push((key, value(self)));
            }
        }
        arguments
    }

    /// Writes JSON as models do: non-ASCII letters and slashes appear raw or escaped, white space differs.
    fn json(&mut self, value: &Value) -> String {
        let spaces = [Spaces::None, Spaces::OnOneLine, Spaces::OnLines][self.dice.roll(3)];
        self.spaced_json(value, spaces, 0)
    }

    fn spaced_json(&mut self, value: &Value, spaces: Spaces, depth: usize) -> String {
        match value {
            Value::String(text) => {
                let mut json = Value::from(text.as_str()).to_string();
                if self.is_heads() {
                    json = json.replace('/', "\\/");
                }
                if self.is_heads() {
                    let mut escaped = String::new();
                    for c in json.chars() {
                        if c.is_ascii() {
                            escaped.push(c);
                        } else {
                            for unit in c.encode_utf16(&mut [0; 2]) {
                                escaped.push_str(&format!("\\u{unit:04x}"));
                            }
                        }
                    }
                    json = escaped;
                }
                json
            }
            Value::Array(items) => {
                let items: Vec<String> = (items.iter())
                    .map(|item| self.spaced_json(item, spaces, depth + 1))
                    .collect();
                spaces.join(('[', ']'), &items, depth)
            }
            Value::Object(fields) => {
                let colon = match spaces {
                    Spaces::None => ":",
                    _ => ": ",
                };
                let fields: Vec<String> = (fields.iter())
                    .map(|(key, value)| {
                        let value = self.spaced_json(value, spaces, depth + 1);
                        format!("{}{colon}{value}", Value::from(key.as_str()))
                    })
                    .collect();
                spaces.join(('{', '}'), &fields, depth)
            }
            other => other.to_string(),
        }
    }

    /// Writes a value in Python's notation, or in Gemma's.
    fn literal(&mut self, value: &Value, dialect: Dialect) -> String {
        match (value, dialect) {
            (Value::String(text), Dialect::Marked(mark)) => format!("{mark}{text}{mark}"),
            (Value::String(text), Dialect::Python) => {
                if self.is_heads() {
                    return Value::from(text.as_str()).to_string();
                }
                let escaped = text
                    .replace('\\', "\\\\")
                    .replace('\'', "\\'")
                    .replace('\n', "\\n")
                    .replace('\t', "\\t");
                format!("'{escaped}'")
            }
            (Value::Bool(true), Dialect::Python) => "True".to_owned(),
            (Value::Null, Dialect::Python) => self.one_of(&["None", "null"]).to_owned(),
            (Value::Array(items), _) => {
                let items: Vec<String> = items.iter().map(|item| self.literal(item, dialect)).collect();
                format!("[{}]", items.join(","))
            }
            (Value::Object(fields), _) => {
                let fields: Vec<String> = fields
                    .iter()
                    .map(|(key, value)| {
                        let value = self.literal(value, dialect);
                        match dialect {
                            Dialect::Python => format!("'{key}': {value}"),
                            Dialect::Marked(_) => format!("{key}:{value}"),
                        }
                    })
                    .collect();
                format!("{{{}}}", fields.join(","))
            }
            (other, _) => other.to_string(),
        }
    }

    fn tagged(&mut self, shape: &TaggedShape, name: &str, arguments: &[(&str, Value)]) -> String {
        let line = if shape.is_on_own_lines { "\n" } else { "" };
        let mut text = format!("{}{name}{}{}", shape.opener, shape.name_end, shape.opener_end);
        if shape.is_on_own_lines || shape.name_end.is_empty() || self.is_heads() {
            text.push('\n');
        }
        for (key, value) in arguments {
            let (attributes, written) = match value {
                Value::String(text) if shape.has_cdata => (shape.attributes.0, format!("<![CDATA[{text}]]>")),
                Value::String(text) => (shape.attributes.0, text.clone()),
                other => (shape.attributes.1, self.json(other)),
            };
            let space = if shape.value.is_empty() || shape.has_attributes {
                ""
            } else {
                self.one_of(&["", "\n"])
            };
            text.push_str(&format!(
                "{}{key}{}{attributes}{space}{}{line}{written}{line}{}\n",
                shape.argument, shape.key_end, shape.value, shape.value_end
            ));
        }
        text + shape.closer
    }

    fn literal_call(&mut self, shape: &LiteralShape, name: &str, arguments: &[(&str, Value)]) -> String {
        let members: Vec<String> = arguments
            .iter()
            .map(|(key, value)| format!("{key}{}{}", shape.separator, self.literal(value, shape.dialect)))
            .collect();
        let (open, close) = shape.brackets;
        let comma = self.one_of(&[",", ", "]);
        format!("{}{name}{open}{}{close}", shape.prefix, members.join(comma))
    }

    /// Writes calls with their marks, and leaves out marks that models leave out.
    fn calls(&mut self, calls: &[(String, Vec<(&'static str, Value)>)]) -> String {
        let object = |arguments: &[(&str, Value)]| -> Value {
            let entries = arguments
                .iter()
                .map(|(key, value)| ((*key).to_owned(), value.clone()));
            entries.collect::<Map<String, Value>>().into()
        };
        let between = self.one_of(&["", "\n", "\n\n", " "]);
        match self.row.shape {
            Shape::Json(shape) | Shape::JsonOrLiteral(shape, _) => {
                let mut objects = Vec::new();
                for (name, arguments) in calls {
                    let arguments = self.json(&object(arguments));
                    objects.push(if shape.is_keyed_by_name {
                        format!("{{\"{name}\": {arguments}}}")
                    } else {
                        format!(
                            "{{\"{}\": \"{name}\", \"{}\": {arguments}}}",
                            shape.keys.0, shape.keys.1
                        )
                    });
                }
                let opener = self.mark(shape.openers);
                let closer = self.mark(shape.closers);
                if shape.is_list {
                    return format!("{opener}{between}[{}]{between}{closer}", objects.join(", "));
                }
                if shape.is_bare {
                    return objects.join(self.one_of(&["; ", "\n", ";"]));
                }
                let each = objects
                    .iter()
                    .map(|object| format!("{opener}{between}{object}{between}{closer}"));
                each.collect::<Vec<_>>().join(between)
            }
            Shape::Named(shape) => {
                let mut text = String::new();
                let has_section = !shape.section.is_empty() && self.dice.roll(4) > 0;
                if has_section {
                    text.push_str(shape.section);
                }
                let closer = shape.closers.first().copied().unwrap_or_default();
                // Some models leave out the end of the last call if the section's end follows.
                let ends_by_section = has_section && self.dice.roll(4) == 0;
                for (idx, (name, arguments)) in calls.iter().enumerate() {
                    let head = self
                        .mark(shape.heads)
                        .replace("{name}", name)
                        .replace("{number}", &idx.to_string())
                        .replace("{id}", "abcdefghi");
                    let arguments = self.json(&object(arguments));
                    text.push_str(&format!("{}{head}{}{arguments}", shape.opener, shape.arguments));
                    if !shape.fence.is_empty() {
                        text.push_str(&format!("\n{}{}", shape.fence, self.one_of(&["", "\n"])));
                    }
                    if idx + 1 < calls.len() {
                        text.push_str(closer);
                        text.push_str(if closer.is_empty() { "" } else { between });
                    } else if !ends_by_section {
                        text.push_str(closer);
                    }
                }
                if ends_by_section || has_section && self.dice.roll(4) > 0 {
                    text.push_str(shape.section_closers[0]);
                }
                text
            }
            Shape::Tagged(shape) => {
                let mut text = String::new();
                let has_section = !shape.section.is_empty() && self.dice.roll(4) > 0;
                if has_section {
                    text.push_str(&format!("{}{between}", shape.section));
                }
                for (name, arguments) in calls {
                    text.push_str(&self.tagged(shape, name, arguments));
                    text.push_str(between);
                }
                let closer = shape.section_closers.first().copied().unwrap_or_default();
                // Some models leave out the opening mark but write the closing one.
                if !closer.is_empty() && self.dice.roll(4) > 0 {
                    text.push_str(closer);
                }
                text.truncate(text.trim_end().len());
                text
            }
            Shape::Literal(shape) => {
                let texts: Vec<String> = calls
                    .iter()
                    .map(|(name, arguments)| self.literal_call(shape, name, arguments))
                    .collect();
                let opener = self.mark(shape.openers);
                let closer = self.mark(shape.closers);
                if shape.is_list {
                    return format!("{opener}[{}]{closer}", texts.join(", "));
                }
                let each = texts.iter().map(|text| format!("{opener}{text}{closer}"));
                each.collect::<Vec<_>>().join(between)
            }
            Shape::Channels(shape) => {
                let mut text = String::new();
                for (idx, (name, arguments)) in calls.iter().enumerate() {
                    let arguments = self.json(&object(arguments));
                    if self.row.name == "harmony" {
                        let start = if idx == 0 { "" } else { "<|start|>assistant" };
                        let json = self.one_of(&["", " <|constrain|>json", " json"]);
                        text.push_str(&format!(
                            "{start}<|channel|>commentary to=functions.{name}{json}<|message|>{arguments}<|call|>"
                        ));
                    } else {
                        let start = if idx == 0 { "" } else { shape.opener };
                        text.push_str(&format!("{start}{name}\n{arguments}"));
                    }
                }
                text
            }
        }
    }

    /// Writes a whole answer: with closed reasoning, with unclosed reasoning, or without.
    pub(super) fn script(&mut self, thinking: Option<(&str, &str)>) -> Script {
        let mut script = Script::default();
        let n_calls = 1 + self.dice.roll(2);
        let mut calls = Vec::new();
        for _ in 0..n_calls {
            let (name, arguments) = if self.dice.roll(4) == 0 {
                ("now", Vec::new())
            } else {
                ("act", self.arguments())
            };
            let object: Map<String, Value> = (arguments.iter())
                .map(|(key, value): &(&str, Value)| ((*key).to_owned(), value.clone()))
                .collect();
            script.calls.push((name.to_owned(), object.into()));
            calls.push((name.to_owned(), arguments));
        }
        let is_bare = matches!(self.row.shape, Shape::JsonOrLiteral(..));
        let mut is_in_thought = false;
        match (self.row.name, thinking) {
            ("harmony", _) => {
                if self.is_heads() {
                    script.reasoning = "Hm.".to_owned();
                    script
                        .text
                        .push_str("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant");
                }
                if self.is_heads() {
                    script.content = "I look.".to_owned();
                    script
                        .text
                        .push_str("<|channel|>commentary<|message|>I look.<|end|><|start|>assistant");
                }
            }
            ("functionary", _) => {
                if self.is_heads() {
                    script.content = "I look.".to_owned();
                    script.text.push_str("all\nI look.>>>");
                }
            }
            (_, thinking) => {
                if let Some((open, close)) = thinking {
                    script.reasoning = "Hm, a call.".to_owned();
                    is_in_thought = !is_bare && self.dice.roll(3) == 0;
                    script.text = if is_in_thought {
                        format!("{open}\nHm, a call.\n")
                    } else {
                        format!("{open}\nHm, a call.\n{close}{}", self.one_of(&["", "\n", "\n\n"]))
                    };
                }
                if !is_in_thought {
                    let lead = if is_bare {
                        self.one_of(&["", "\n"])
                    } else {
                        self.one_of(&[
                            "",
                            "\n",
                            "I look.\n\n",
                            "Let me see: ",
                            "Über \"das\" <hier>.\n",
                            "1. {this}\n2. [that]\n\n",
                            "As `{\"a\": 1}`: ",
                        ])
                    };
                    script.content = lead.trim().to_owned();
                    script.text.push_str(lead);
                }
            }
        }
        let calls = self.calls(&calls);
        script.text.push_str(&calls);
        let tail = if is_in_thought {
            self.one_of(&["", "\n", "\n\n", " "])
        } else {
            self.one_of(&[
                "",
                "\n",
                "\n\n",
                " ",
                " \n ",
                "\nI will tell you.",
                "\n\nThat is all.",
                " So much for that.",
            ])
        };
        script.text.push_str(tail);
        script.content.push_str(tail.trim());
        script
    }
}
