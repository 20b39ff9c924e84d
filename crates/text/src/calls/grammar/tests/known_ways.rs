//! Tests that the parsers and grammars of all families accept the variants that models are known to write around and inside calls.
//!
//! Separate from the walks because these texts come from models, not from the grammar. A script holds a text and its expected reading; the
//! text is cut into random tokens, some of which run across marks. Two things must hold: the parser reads the script however it is cut, and
//! the mask allows each of its tokens and the end after it.
#![expect(
    clippy::format_push_string,
    clippy::type_complexity,
    reason = "short texts and tables of a test"
)]

use serde_json::Map;

use super::{Dice, FORMATS};
use crate::{
    Tokenizer,
    calls::{
        Opening, Part, ReplyFormat, ReplyParser, ToolChoice, ToolSet,
        format::{CallFormat, Shape},
        literal::Dialect,
        literal_body::LiteralShape,
        tagged_body::TaggedShape,
        thinking::thinking_of,
    },
    constraint::{ConstraintCompiler, ConstraintMatcher, ControlTokens, Segment},
};

use super::{Arc, Metadata, StringArray, Value, json};

/// Scripts for each family and way of reasoning.
const N_SCRIPTS: u64 = 8;

fn tools(is_strict: bool) -> Value {
    json!([
        {"type": "function", "function": {"name": "act", "strict": is_strict, "parameters": {
            "type": "object",
            "$defs": {"Colour": {"type": "string", "enum": ["red", "1", "dark blue"]}, "Text": {"type": "string"}},
            "properties": {
                "text": {"type": "string"},
                "named": {"allOf": [{"$ref": "#/$defs/Text"}], "default": "x"},
                "colour": {"$ref": "#/$defs/Colour"},
                "maybe": {"anyOf": [{"$ref": "#/$defs/Colour"}, {"type": "null"}]},
                "n": {"type": "integer"},
                "is_on": {"type": "boolean"},
                "inner": {"type": "object", "properties": {"key": {"type": "string"}, "list": {"type": "array", "items": {"type": "integer"}}},
                    "required": ["key"], "additionalProperties": false},
                "list": {"type": "array", "items": {"type": "string"}}},
            "required": ["text"], "additionalProperties": false}}},
        {"type": "function", "function": {"name": "now", "strict": is_strict, "parameters": {
            "type": "object", "properties": {}, "additionalProperties": false}}},
    ])
}

/// Holds a text that a model writes, and its expected reading.
#[derive(Debug, Default)]
struct Script {
    text: String,
    calls: Vec<(String, Value)>,
    content: String,
    reasoning: String,
}

/// Writes scripts of a family.
struct Writer<'f> {
    row: &'f CallFormat,
    dice: Dice,
}

impl Writer<'_> {
    fn one_of<'t>(&mut self, texts: &[&'t str]) -> &'t str {
        texts[self.dice.roll(texts.len())]
    }

    fn is_heads(&mut self) -> bool {
        self.dice.roll(2) == 0
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
        ];
        let n = 1 + self.dice.roll(3);
        let parts: Vec<&str> = (0..n).map(|_| self.one_of(PARTS)).collect();
        parts.join(" ")
    }

    fn arguments(&mut self) -> Vec<(&'static str, Value)> {
        let mut arguments = vec![("text", Value::from(self.text()))];
        let others: [(&str, fn(&mut Self) -> Value); 7] = [
            ("named", |this| this.text().into()),
            ("colour", |this| this.one_of(&["red", "1", "dark blue"]).into()),
            ("maybe", |this| match this.dice.roll(2) {
                0 => Value::Null,
                _ => "red".into(),
            }),
            ("n", |this| (this.dice.roll(2000) as i64 - 1000).into()),
            ("is_on", |this| this.is_heads().into()),
            ("inner", |this| json!({"key": this.text(), "list": [1, -2]})),
            ("list", |this| json!([this.text(), this.text()])),
        ];
        for (key, value) in others {
            if self.dice.roll(3) == 0 {
                arguments.push((key, value(self)));
            }
        }
        arguments
    }

    /// Writes JSON as models do: non-ASCII letters and slashes appear raw or escaped.
    fn json(&mut self, value: &Value) -> String {
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
                let items: Vec<String> = items.iter().map(|item| self.json(item)).collect();
                format!("[{}]", items.join(", "))
            }
            Value::Object(fields) => {
                let fields: Vec<String> = fields
                    .iter()
                    .map(|(key, value)| format!("{}: {}", Value::from(key.as_str()), self.json(value)))
                    .collect();
                format!("{{{}}}", fields.join(", "))
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
        let between = self.one_of(&["", "\n"]);
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
                let opener = shape.openers.first().copied().unwrap_or_default();
                let closer = shape.closers.first().copied().unwrap_or_default();
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
                for (idx, (name, arguments)) in calls.iter().enumerate() {
                    let head = shape.heads[0]
                        .replace("{name}", name)
                        .replace("{number}", &idx.to_string())
                        .replace("{id}", "abcdefghi");
                    let arguments = self.json(&object(arguments));
                    let line = if closer.starts_with("```") { "\n" } else { "" };
                    text.push_str(&format!(
                        "{}{head}{}{arguments}{line}{closer}",
                        shape.opener, shape.arguments
                    ));
                    if !closer.is_empty() && idx + 1 < calls.len() {
                        text.push_str(between);
                    }
                }
                if has_section && self.dice.roll(4) > 0 {
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
                let opener = shape.openers.first().copied().unwrap_or_default();
                let closer = shape.closers.first().copied().unwrap_or_default();
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
    fn script(&mut self, thinking: Option<(&str, &str)>) -> Script {
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
                        self.one_of(&["", "\n", "I look.\n\n", "Let me see: ", "Über \"das\" <hier>.\n"])
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

/// Reads an answer's calls, content and reasoning from pieces that arrive as they are cut.
fn read(parser: &ReplyParser, pieces: &[&str]) -> Result<Script, String> {
    let mut parser = parser.clone();
    let mut parts = Vec::new();
    for piece in pieces {
        parts.extend(parser.push(piece));
    }
    parts.extend(parser.finish());
    let mut script = Script::default();
    let (mut called, mut arguments) = (String::new(), String::new());
    for piece in parts {
        match piece.part {
            Part::Text(text) => script.content.push_str(&text),
            Part::Reasoning(text) => script.reasoning.push_str(&text),
            Part::CallStart { name, .. } => {
                called = name;
                arguments.clear();
            }
            Part::Arguments { delta, .. } => arguments.push_str(&delta),
            Part::CallEnd { .. } => {
                let value =
                    serde_json::from_str(&arguments).map_err(|error| format!("{error}: {arguments}"))?;
                script.calls.push((called.clone(), value));
            }
            Part::CallBroken { source, .. } => return Err(format!("broken off: {source:?}")),
            Part::CallCut { .. } => return Err("cut".to_owned()),
            Part::Markup => {}
        }
    }
    Ok(script)
}

/// Lists the marks of a parser that are single tokens in vocabularies.
fn control_marks(parser: &ReplyParser) -> Vec<String> {
    let is_token = |mark: &&str| {
        let inner = mark.strip_prefix('<').and_then(|mark| mark.strip_suffix('>'));
        let inner = inner.or_else(|| mark.strip_prefix('[').and_then(|mark| mark.strip_suffix(']')));
        inner.is_some_and(|inner| !inner.is_empty() && !inner.contains(['<', '>', '[', ']', ' ', '"', '=']))
    };
    let mut marks: Vec<String> = parser
        .marks()
        .into_iter()
        .filter(is_token)
        .map(str::to_owned)
        .collect();
    marks.sort();
    marks.dedup();
    marks
}

/// Builds a vocabulary of all bytes, the end token, control tokens and words.
fn tokenizer(controls: &[String], words: &[String]) -> Tokenizer {
    let mut metadata = Metadata::new();
    let tokens = (0..256)
        .map(|byte| format!("<0x{byte:02X}>"))
        .chain(["<end>".to_owned(), "<unk>".to_owned()])
        .chain(controls.iter().cloned())
        .chain(words.iter().map(|word| word.replace(' ', "▁")));
    let mut kinds = vec![6; 256];
    kinds.extend([3, 2]);
    kinds.extend(controls.iter().map(|_| 3));
    kinds.extend(words.iter().map(|_| 1));
    let n_tokens = kinds.len();
    let set = || -> Result<(), tokenmill_gguf::GgufError> {
        metadata.insert("tokenizer.ggml.model", "llama")?;
        metadata.insert("tokenizer.ggml.tokens", tokens.collect::<StringArray>())?;
        metadata.insert("tokenizer.ggml.scores", vec![0f32; n_tokens])?;
        metadata.insert("tokenizer.ggml.token_type", kinds)?;
        metadata.insert("tokenizer.ggml.eos_token_id", 256u32)?;
        metadata.insert("tokenizer.ggml.unknown_token_id", 257u32)?;
        Ok(())
    };
    set().unwrap();
    Tokenizer::from_gguf(&metadata).unwrap()
}

/// Cuts a text into random pieces of at most `longest` characters; control tokens stay whole.
fn cut<'t>(text: &'t str, controls: &[String], longest: usize, dice: &mut Dice) -> Vec<&'t str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let control = controls
            .iter()
            .filter(|control| rest.starts_with(control.as_str()))
            .max_by_key(|control| control.len());
        let n_bytes = if let Some(control) = control {
            control.len()
        } else {
            let n_chars = 1 + dice.roll(longest);
            let mut ends = rest
                .char_indices()
                .map(|(at, _)| at)
                .chain([rest.len()])
                .skip(1)
                .take(n_chars);
            // A piece ends where a control token begins.
            let mut end = ends.next().unwrap_or(rest.len());
            for next in ends {
                if controls
                    .iter()
                    .any(|control| rest[end..].starts_with(control.as_str()))
                {
                    break;
                }
                end = next;
            }
            end
        };
        pieces.push(&rest[..n_bytes]);
        rest = &rest[n_bytes..];
    }
    pieces
}

/// Checks that the parser reads a script however it is cut, and that the mask allows it.
fn check(format: &ReplyFormat, script: &Script, is_strict: bool, dice: &mut Dice) -> Result<(), String> {
    let name = format.calls.name;
    let tool_set = Arc::new(ToolSet::from_openai(&tools(is_strict)));
    let opening = Opening {
        is_head: format.has_heads(),
        ..Opening::default()
    };
    let parser = ReplyParser::new(format, Arc::clone(&tool_set), opening);
    let mut controls = control_marks(&parser);
    if dice.roll(3) == 0 && name != "harmony" {
        controls.clear();
    }
    let letters_of = |text: &str| text.split_whitespace().collect::<String>();
    let in_short = |script: &Script| {
        let (content, reasoning) = (letters_of(&script.content), letters_of(&script.reasoning));
        (script.calls.clone(), content, reasoning)
    };
    let whole = read(&parser, &[&script.text])?;
    if in_short(&whole) != in_short(script) {
        return Err(format!("read as {whole:?}"));
    }
    let letters: Vec<&str> = script.text.split_inclusive(|_: char| true).collect();
    let pieces = cut(&script.text, &controls, 1 + dice.roll(5), dice);
    for pieces in [&letters, &pieces] {
        let read = read(&parser, pieces)?;
        let all = |script: &Script| {
            (
                script.calls.clone(),
                script.content.clone(),
                script.reasoning.clone(),
            )
        };
        if all(&read) != all(&whole) {
            return Err(format!("in pieces {pieces:?} read as {read:?}"));
        }
    }
    let mut words: Vec<String> = (pieces.iter())
        .filter(|piece| piece.len() > 1 && !piece.contains('▁'))
        .map(|&piece| piece.to_owned())
        .collect();
    words.retain(|word| !controls.contains(word));
    words.sort();
    words.dedup();
    let tokenizer = tokenizer(&controls, &words);
    let control_tokens = ControlTokens::of(&tokenizer);
    let mut constraint = format
        .constraint(
            &tool_set,
            &ToolChoice::Auto,
            false,
            &control_tokens,
            opening.is_head,
        )
        .map_err(|error| error.to_string())?;
    match (format.reasoning_open(), format.reasoning_close()) {
        (Some(open), Some(close)) => constraint = constraint.may_begin_after(open, close),
        _ if name == "harmony" => {
            constraint = constraint.thinks_between("<|channel|>analysis<|message|>", "<|end|>");
        }
        _ => {}
    }
    let compiler = ConstraintCompiler::new(&tokenizer).map_err(|error| error.to_string())?;
    let compiled = compiler.compile(&constraint).map_err(|error| error.to_string())?;
    let mut matcher = compiled.matcher(&[256]);
    let mut ids = Vec::new();
    for piece in &pieces {
        let at = words.binary_search_by(|word| word.as_str().cmp(piece));
        match (&control_tokens.split(piece)[..], at) {
            ([Segment::Control(id)], _) => ids.push(*id),
            (_, Ok(at)) => ids.push((258 + controls.len() + at) as u32),
            _ => ids.extend(piece.bytes().map(u32::from)),
        }
    }
    let mut mask = vec![0_u32; tokenizer.n_vocab().div_ceil(32)];
    let mut take = |matcher: &mut ConstraintMatcher, id: u32, behind: &[u32]| -> Result<(), String> {
        matcher.mask(&mut mask).map_err(|error| error.to_string())?;
        if mask[id as usize / 32] >> (id % 32) & 1 == 1 {
            return if id == 256 {
                Ok(())
            } else {
                matcher.commit(id).map_err(|error| error.to_string())
            };
        }
        let text = |ids: &[u32]| {
            let bytes = ids
                .iter()
                .flat_map(|&id| tokenizer.token_bytes(id).unwrap_or_default());
            String::from_utf8_lossy(&bytes.copied().collect::<Vec<u8>>()).into_owned()
        };
        Err(format!(
            "{:?} is not allowed after {:?}",
            text(&[id]),
            text(behind)
        ))
    };
    for (idx, &id) in ids.iter().enumerate() {
        take(&mut matcher, id, &ids[..idx])?;
        if matcher.has_left() {
            return Err("the text has left its grammar".to_owned());
        }
    }
    take(&mut matcher, 256, &ids)?;
    // The mask must survive that draft tokens are removed, also across the end of a call.
    let n_back = 1 + dice.roll(ids.len().min(60));
    matcher.rollback(n_back).map_err(|error| error.to_string())?;
    for idx in ids.len() - n_back..ids.len() {
        take(&mut matcher, ids[idx], &ids[..idx])
            .map_err(|error| format!("{n_back} tokens back: {error}"))?;
    }
    take(&mut matcher, 256, &ids)
}

/// Lists the formats of the families, without reasoning and with the usual tags, and the formats of the templates in the repository.
fn formats() -> Vec<ReplyFormat> {
    let has_channels = |row: &CallFormat| matches!(row.shape, Shape::Channels(_));
    let mut formats: Vec<ReplyFormat> = Vec::new();
    for row in FORMATS {
        formats.push(ReplyFormat {
            calls: row,
            thinking: None,
        });
        if !has_channels(row) {
            formats.push(ReplyFormat {
                calls: row,
                thinking: thinking_of("<think>"),
            });
        }
    }
    let folder = std::env::var_os("TOKENMILL_TEST_DATA")
        .map(|data| std::path::PathBuf::from(data).join("templates/llama.cpp"));
    for entry in folder
        .and_then(|folder| std::fs::read_dir(folder).ok())
        .into_iter()
        .flatten()
        .flatten()
    {
        let Ok(source) = std::fs::read_to_string(entry.path()) else {
            continue;
        };
        let format = ReplyFormat::of_template(&source);
        let is_same = |known: &ReplyFormat| {
            let tags = |format: &ReplyFormat| (format.reasoning_open(), format.reasoning_close());
            known.calls.name == format.calls.name && tags(known) == tags(&format)
        };
        if !formats.iter().any(is_same) {
            formats.push(format);
        }
    }
    formats
}

#[test]
fn what_models_write_around_and_inside_calls_is_read_and_let_through() {
    let mut faults = Vec::new();
    for (idx, format) in formats().iter().enumerate() {
        for seed in 0..N_SCRIPTS {
            let mut writer = Writer {
                row: format.calls,
                dice: Dice((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ idx as u64),
            };
            let thinking = format.reasoning_open().zip(format.reasoning_close());
            let script = writer.script(thinking);
            let is_strict = seed % 2 == 0;
            if let Err(fault) = check(format, &script, is_strict, &mut writer.dice) {
                let name = format.calls.name;
                faults.push(format!(
                    "{name}, strict {is_strict}, seed {seed}: {fault}\n    {script:?}"
                ));
            }
        }
    }
    assert!(
        faults.is_empty(),
        "{} faults:\n{}",
        faults.len(),
        faults.join("\n")
    );
}
