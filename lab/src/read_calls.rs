//! `read-calls`: reads answers of models from standard input, one JSON object a line, and writes their parts.
//!
//! Each has `template` (the source of a chat template, or the marks in it), `tools` in the form of OpenAI's, `text`, and perhaps
//! `is_head` (the prompt ends within a message's head). The result has `text`, `reasoning` and `calls` of each. Other parsers are
//! compared with ours so: `tests/e2e/parsers.py`.

use std::{
    io::{BufRead as _, Write as _, stdin, stdout},
    sync::Arc,
};

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tokenmill_text::calls::{Opening, Part, Piece, ReplyFormat, ReplyParser, ToolSet};

/// Read answers of models from standard input, one JSON object a line, and write what they say
#[derive(clap::Args)]
pub struct Args {}

/// Reads them all.
///
/// # Errors
/// A line that is not an answer, and an answer that is read differently in pieces.
pub fn run(_: &Args) -> anyhow::Result<()> {
    let mut out = stdout().lock();
    for line in stdin().lock().lines() {
        let answer: Value = serde_json::from_str(&line?)?;
        let template = answer["template"].as_str().context("no `template`")?;
        let text = answer["text"].as_str().context("no `text`")?;
        let opening = Opening {
            is_head: answer["is_head"] == true,
            ..Opening::default()
        };
        let tools = Arc::new(ToolSet::from_openai(&answer["tools"]));
        let parser = ReplyParser::new(&ReplyFormat::of_template(template), tools, opening);
        let whole = read(parser.clone(), text, usize::MAX);
        for n_chars in [1, 3] {
            let cut = read(parser.clone(), text, n_chars);
            ensure!(
                cut == whole,
                "cut after {n_chars} characters: {cut}, and whole: {whole}"
            );
        }
        writeln!(out, "{whole}")?;
    }
    Ok(())
}

/// Reads an answer that comes in pieces of `n_chars` characters.
fn read(mut parser: ReplyParser, text: &str, n_chars: usize) -> Value {
    let (mut said, mut thought, mut calls) = (String::new(), String::new(), Vec::new());
    let mut take = |pieces: Vec<Piece>| {
        for piece in pieces {
            match piece.part {
                Part::Text(more) => said.push_str(&more),
                Part::Reasoning(more) => thought.push_str(&more),
                Part::CallStart { name, .. } => calls.push((name, String::new())),
                Part::Arguments { delta, .. } => {
                    if let Some((_, arguments)) = calls.last_mut() {
                        arguments.push_str(&delta);
                    }
                }
                Part::CallBroken { source, .. } => {
                    calls.pop();
                    said.push_str(&source);
                }
                Part::CallEnd { .. } | Part::CallCut { .. } | Part::Markup => {}
            }
        }
    };
    let chars: Vec<char> = text.chars().collect();
    for part in chars.chunks(n_chars.min(chars.len()).max(1)) {
        take(parser.push(&part.iter().collect::<String>()));
    }
    take(parser.finish());
    let calls = calls
        .into_iter()
        .map(|(name, arguments)| json!({"name": name, "arguments": arguments}));
    json!({"calls": calls.collect::<Vec<_>>(), "reasoning": thought, "text": said})
}
