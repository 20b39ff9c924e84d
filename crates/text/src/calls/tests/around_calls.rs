//! Tests the text around calls: reasoning, heads, missing marks, control tokens.

use std::sync::Arc;

use super::{Opening, Part, ReplyParser, check, format, joined, tools, words};

const NOW: &str = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";

#[test]
fn a_call_in_reasoning_that_never_ends_is_a_call() {
    for tail in ["", "\n", "\n\n "] {
        check(
            "hermes",
            &format!("<think>\nI need it.\n{NOW}{tail}"),
            "(I need it.)«now {}»",
        );
        check(
            "hermes",
            &format!("<think>\nBoth.\n{NOW}\n{NOW}{tail}"),
            "(Both.)«now {}»«now {}»",
        );
    }
    check(
        "glm",
        "<think>Hm.<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n</tool_call>",
        "(Hm.)«weather {\"city\": \"Bern\"}»",
    );
    check(
        "deepseek-v3.1",
        "<think>Hm.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "(Hm.)«now {}»",
    );
    // Reasoning after a draft of a call stays reasoning.
    check("hermes", &format!("<think>Hm.{NOW} So."), "(Hm.)«now {}»(So.)");
}

#[test]
fn a_draft_of_a_call_is_a_thought() {
    check(
        "hermes",
        &format!("<think>\nA draft: {NOW} Good.\n</think>\n\nNo call."),
        &format!("(A draft: {NOW} Good.)No call."),
    );
    check(
        "hermes",
        &format!("<think>{NOW}</think>{NOW}"),
        &format!("({NOW})«now {{}}»"),
    );
    for words in [
        "<think>I write <tool_call> before it.",
        "<think>I write <tool_call>{\"name\": \"now\"",
        "<think>I write <tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call>",
    ] {
        check("hermes", words, &format!("({})", &words["<think>".len()..]));
    }
}

#[test]
fn reasoning_that_a_limit_cut_would_have_gone_on() {
    let cut = |answer: &str| {
        let mut parser = ReplyParser::new(&format("hermes"), tools(), Opening::default());
        let mut pieces = parser.push(answer);
        pieces.extend(parser.cut());
        words(&joined(&pieces))
    };
    let open = "<tool_call>\n{\"name\": \"now\", \"argu";
    assert_eq!(cut(&format!("<think>Hm. {open}")), format!("(Hm. {open})"));
    assert_eq!(cut(&format!("<think>Hm. {NOW}\n")), "(Hm.)«now {}»");
}

#[test]
fn heads_of_gpt_oss_are_no_text_whatever_they_say() {
    check("harmony", "<|channel|>??<|message|>So.", "So.");
    check(
        "harmony",
        "<|channel|>analysis to=python code<|message|>print(1)<|call|>",
        "(print(1))",
    );
    check(
        "harmony",
        "<|channel|>commentary to=functions.nosuch <|constrain|>json<|message|>{\"a\": 1}<|call|>",
        "{\"a\": 1}",
    );
    check(
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|end|><|channel|>final<|message|>So.",
        "(Hm.)So.",
    );
    check(
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|chan",
        "(Hm.)",
    );
    check(
        "harmony",
        "<|channel|>final<|message|>a <|constrain|>b<|message|>c",
        "a bc",
    );
    check("harmony", "No channels at all.", "No channels at all.");
}

#[test]
fn a_preamble_is_no_part_of_an_answer_that_has_a_shape() {
    let answer = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>final <|constrain|>json<|message|>{}";
    let opening = Opening {
        is_head: true,
        ..Opening::default()
    };
    let read = |parser: ReplyParser| {
        let mut parser = parser;
        let mut pieces = parser.push(answer);
        pieces.extend(parser.finish());
        words(&joined(&pieces))
    };
    let parser = ReplyParser::new(&format("harmony"), tools(), opening);
    assert_eq!(read(parser.clone()), "I look.{}");
    assert_eq!(read(parser.preambles_are_reasoning()), "(I look.){}");
}

#[test]
fn control_tokens_are_no_text() {
    let controls: Arc<[String]> = ["<|tool_call_end|>", "<|tool_call_begin|>"]
        .map(str::to_owned)
        .into();
    let read = |answer: &str, n_bytes: usize| {
        let parser = ReplyParser::new(&format("kimi-k2"), tools(), Opening::default());
        let mut parser = parser.dropping(&controls);
        let mut pieces = Vec::new();
        for piece in answer.as_bytes().chunks(n_bytes) {
            pieces.extend(parser.push(std::str::from_utf8(piece).unwrap()));
        }
        pieces.extend(parser.finish());
        assert_eq!(
            pieces.iter().map(|piece| piece.source_bytes).sum::<usize>(),
            answer.len()
        );
        let mut text = String::new();
        for piece in pieces {
            match piece.part {
                Part::Text(more) => text.push_str(&more),
                Part::CallBroken { source, .. } => text.push_str(&source),
                _ => {}
            }
        }
        text
    };
    for n_bytes in [1, 7, 1000] {
        assert_eq!(
            read(
                "a<|tool_call_end|> b <|tool_call_begin|>functions.other:0 {}<|tool_call_end|>",
                n_bytes
            ),
            "a b functions.other:0 {}"
        );
    }
}

#[test]
fn calls_whose_marks_are_left_out_are_read() {
    let call = "<function=now>\n</function>";
    for tail in ["", "\n", "\n</tool_call>", "\n</tool_call>\n"] {
        check("qwen3-coder", &format!("{call}{tail}"), "«now {}»");
        check(
            "qwen3-coder",
            &format!("I look.\n\n{call}{tail}"),
            "I look.«now {}»",
        );
    }
    check(
        "hermes",
        "<tool_call>{\"name\": \"now\", \"arguments\": null}</tool_call>",
        "«now {}»",
    );
    check(
        "hermes",
        "<tool_call>{\"name\": \"now\", \"arguments\": \"\"}</tool_call>",
        "«now {}»",
    );
}

#[test]
fn escapes_are_read_as_they_are_meant() {
    let hermes = |text: &str| {
        format!("<tool_call>{{\"name\": \"weather\", \"arguments\": {{\"city\": \"{text}\"}}}}</tool_call>")
    };
    let given = |json: &str| format!("«weather {{\"city\": \"{json}\"}}»");
    for (text, json) in [
        ("caf\\u00e9 \\ud83d\\ude00", "caf\\u00e9 \\ud83d\\ude00"),
        ("a \\ud83d b", "a \\ufffd b"),
        ("\\ude00", "\\ufffd"),
        ("\\ud83d\\n", "\\ufffd\\n"),
        ("\\ud83d\\u0041", "\\ufffd\\u0041"),
        ("\\ud83d", "\\ufffd"),
        ("a\\/b", "a\\/b"),
    ] {
        check("hermes", &hermes(text), &given(json));
    }
    let lfm = |text: &str| format!("<|tool_call_start|>[weather(city={text})]<|tool_call_end|>");
    for (text, json) in [
        ("'a \"b\" c'", "a \\\"b\\\" c"),
        ("'it\\'s \"x\"'", "it's \\\"x\\\""),
        ("'\\ud83d\\ude00'", "😀"),
        ("'\\ud83d'", "\u{fffd}"),
        ("\"\\b\\f\\v\"", "\\b\\f\\u000b"),
    ] {
        check("lfm2", &lfm(text), &given(json));
    }
}
