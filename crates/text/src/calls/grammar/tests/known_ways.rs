//! Tests that the parsers and grammars of all families accept the variants that models are known to write around and inside calls.
//!
//! These texts come from models, not from the grammar. A script holds a text and its expected reading; the text is cut into random tokens,
//! some of which run across marks. Two things must hold: the parser reads the script however it is cut, and the mask allows each of its
//! tokens and the end after it.

mod pieces;
mod script;

use std::time::Duration;

use pieces::{control_marks, cut, tokenizer};
use script::{Script, Writer};

use tokenmill_testkit::rounds;

use super::{Arc, Dice, FORMATS, Value, json};
use crate::{
    calls::{
        Opening, Part, ReplyFormat, ReplyParser, ToolChoice, ToolSet,
        format::{CallFormat, Shape},
        thinking::thinking_of,
    },
    constraint::{ConstraintCompiler, ConstraintLimits, ConstraintMatcher, ControlTokens, Segment},
};

/// Scripts for each family and way of reasoning; `TOKENMILL_TEST_SECONDS` and `TOKENMILL_TEST_SEED` try more.
const N_SCRIPTS: u64 = 6;

/// Places in each script where a limit cuts it. All take as long as the rest of the test.
const N_CUTS: usize = 8;

/// Folders with templates in the reference data.
const TEMPLATES: [&str; 4] = [
    "llama.cpp",
    "minja-google/tests_files",
    "minja-ochafik/tests",
    "ollama/model/renderers/testdata",
];

fn tools(is_strict: bool) -> Value {
    json!([
        {"type": "function", "function": {"name": "act", "strict": is_strict, "parameters": {
            "type": "object",
            "$defs": {"Colour": {"type": "string", "enum": ["red", "1", "dark blue", "n/a", "7\" red"]}, "Text": {"type": "string"}},
            "properties": {
                "text": {"type": "string"},
                "named": {"allOf": [{"$ref": "#/$defs/Text"}], "default": "x"},
                "colour": {"$ref": "#/$defs/Colour"},
                "maybe": {"anyOf": [{"$ref": "#/$defs/Colour"}, {"type": "null"}]},
                "n": {"type": "integer"},
                "is_on": {"type": "boolean"},
                "inner": {"type": "object", "properties": {"key": {"type": "string"}, "list": {"type": "array", "items": {"type": "integer"}}},
                    "required": ["key"], "additionalProperties": false},
                "list": {"type": "array", "items": {"type": "string"}},
                "any": {"description": "Anything."}},
            "required": ["text"], "additionalProperties": false}}},
        {"type": "function", "function": {"name": "now", "strict": is_strict, "parameters": {
            "type": "object", "properties": {}, "additionalProperties": false}}},
    ])
}

/// Selects how an answer ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// By itself.
    Whole,
    /// By a limit; the beginning of a call is none of its calls.
    Cut,
}

/// Reads an answer's calls, content and reasoning from pieces that arrive as they are cut.
fn read(parser: &ReplyParser, pieces: &[&str], end: End) -> Result<Script, String> {
    let mut parser = parser.clone();
    let mut parts = Vec::new();
    for piece in pieces {
        parts.extend(parser.push(piece));
    }
    parts.extend(match end {
        End::Whole => parser.finish(),
        End::Cut => parser.cut(),
    });
    let n_read: usize = parts.iter().map(|piece| piece.source_bytes).sum();
    let n_bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
    if n_read != n_bytes {
        return Err(format!("{n_read} of {n_bytes} bytes are read"));
    }
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
            Part::CallCut { .. } if end == End::Cut => {}
            Part::CallCut { .. } => return Err("cut".to_owned()),
            Part::Markup => {}
        }
    }
    Ok(script)
}

/// Checks that an answer that a limit cuts after some piece is the beginning of the whole one, and that no text follows the name of a call.
fn check_cuts(parser: &ReplyParser, pieces: &[&str], whole: &Script, dice: &mut Dice) -> Result<(), String> {
    for _ in 0..N_CUTS {
        let pieces = &pieces[..dice.roll(pieces.len())];
        let cut = read(parser, pieces, End::Cut).map_err(|fault| format!("cut after {pieces:?}: {fault}"))?;
        let n_same = (cut.content.chars().zip(whole.content.chars()))
            .take_while(|(cut, whole)| cut == whole)
            .map(|(c, _)| c.len_utf8())
            .sum::<usize>();
        // The rest may be the beginning of a mark, or of a call without its name.
        let rest = &cut.content[n_same..];
        let (thought, thoughts) = (cut.reasoning.trim(), whole.reasoning.trim());
        let is_beginning = whole.calls.starts_with(&cut.calls)
            && !(rest.contains("act") && rest.contains("text"))
            && (thought.starts_with(thoughts) || thoughts.starts_with(thought));
        if !is_beginning {
            return Err(format!("cut after {pieces:?} read as {cut:?}"));
        }
    }
    Ok(())
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
    let whole = read(&parser, &[&script.text], End::Whole)?;
    if in_short(&whole) != in_short(script) {
        return Err(format!("read as {whole:?}"));
    }
    let letters: Vec<&str> = script.text.split_inclusive(|_: char| true).collect();
    // Long tokens hold the end of a call and the beginning of the next.
    let longest = [1 + dice.roll(5), 4 + dice.roll(40)][dice.roll(2)];
    let pieces = cut(&script.text, &controls, longest, dice);
    for pieces in [&letters, &pieces] {
        let read = read(&parser, pieces, End::Whole)?;
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
    check_cuts(&parser, &pieces, &whole, dice)?;
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
    let limits = ConstraintLimits {
        longest_wait: Duration::from_mins(5),
        ..ConstraintLimits::default()
    };
    let compiler = ConstraintCompiler::with_limits(&tokenizer, limits).map_err(|error| error.to_string())?;
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

/// Lists the formats of the families, without reasoning and with the usual tags, and the formats of the templates in the reference data.
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
    let folders = std::env::var_os("TOKENMILL_TEST_DATA")
        .into_iter()
        .flat_map(|data| {
            let templates = std::path::PathBuf::from(data).join("templates");
            TEMPLATES.map(|folder| templates.join(folder))
        });
    for entry in folders
        .filter_map(|folder| std::fs::read_dir(folder).ok())
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
    let formats = formats();
    for seed in rounds("what models write around calls", N_SCRIPTS) {
        for (idx, format) in formats.iter().enumerate() {
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
