//! Reads answers in every format, cut anywhere: bytes as they are, and marks of the format combined at random.
//!
//! ```text
//! cd crates/text && mkdir -p fuzz/corpus/calls
//! cargo +nightly fuzz run calls fuzz/corpus/calls -- -max_total_time=600
//! ```
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use serde_json::json;
use tokenmill_text::calls::{Opening, Part, ReplyFormat, ReplyParser, ToolSet};

/// A piece of each family's chat template by which its format is recognized.
const SOURCES: [&str; 20] = [
    "<|channel|><|message|><|start|>",
    ">>>all",
    "DSML <think>",
    "<｜tool▁call▁begin｜>```json",
    "<｜tool▁call▁begin｜>",
    "<|tool_call_begin|>",
    "[TOOL_CALLS][ARGS]",
    "[TOOL_CALLS]",
    "<|START_ACTION|><|START_THINKING|>",
    "Action:```json",
    "<arg_key><think>",
    "minimax:tool_call",
    "<function=<parameter=<think>",
    "<function=</function>",
    "<|tool_call>",
    "<|tool_call_start|>",
    "<|tool_call|><|start_of_role|>",
    "<|tools_prefix|>",
    "<tool_call><think>",
    "<|python_tag|>",
];

const WORDS: [&str; 20] = [
    "now", "{\"name\": \"now\", \"arguments\": {}}", "[", "]", "{", "}", "(", ")", "\"name\"", "\"arguments\"", ":", ",", " ", "\n",
    "\"", "a=", "'", "\\", "all", "to=functions.now",
];

fuzz_target!(|bytes: &[u8]| {
    let [family, kind, step, rest @ ..] = bytes else {
        return;
    };
    let format = ReplyFormat::of_template(SOURCES[*family as usize % SOURCES.len()]);
    let tools = Arc::new(ToolSet::new([("now".to_owned(), json!({}))]));
    let opening = Opening { is_reasoning: kind & 2 != 0, is_head: kind & 4 != 0 };
    let parser = ReplyParser::new(&format, tools, opening);
    let answer = if kind & 1 == 0 {
        String::from_utf8_lossy(rest).into_owned()
    } else {
        let marks = parser.marks();
        let word = |&byte: &u8| *marks.iter().chain(&WORDS).cycle().nth(byte as usize).expect("it never ends");
        rest.iter().map(word).collect()
    };
    let mut cut = parser.clone();
    let pieces = cut.push(&answer).into_iter().chain(cut.cut());
    assert_eq!(pieces.map(|piece| piece.source_bytes).sum::<usize>(), answer.len());
    let whole = read(parser.clone(), &answer, answer.len().max(1));
    assert_eq!(read(parser, &answer, 1 + *step as usize % 9), whole);
});

/// Returns the parts of an answer that arrives in pieces of `step` bytes, with adjacent parts of one kind joined.
fn read(mut parser: ReplyParser, answer: &str, step: usize) -> Vec<Part> {
    let mut pieces = Vec::new();
    let mut start = 0;
    while start < answer.len() {
        let mut end = (start + step).min(answer.len());
        while !answer.is_char_boundary(end) {
            end += 1;
        }
        pieces.extend(parser.push(&answer[start..end]));
        start = end;
    }
    pieces.extend(parser.finish());
    assert_eq!(pieces.iter().map(|piece| piece.source_bytes).sum::<usize>(), answer.len());
    let mut joined: Vec<Part> = Vec::new();
    for piece in pieces {
        match (joined.last_mut(), piece.part) {
            (_, Part::Markup) => {}
            (Some(Part::Text(all)), Part::Text(more)) | (Some(Part::Reasoning(all)), Part::Reasoning(more)) => {
                all.push_str(&more);
            }
            (Some(Part::Arguments { delta: all, .. }), Part::Arguments { delta, .. }) => all.push_str(&delta),
            (_, part) => joined.push(part),
        }
    }
    joined
}
