//! Properties of every format.

mod around_calls;

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    Opening, Part, Piece, ReplyFormat, ReplyParser, ToolSet, families::FORMATS, thought::without_controls,
};

fn tools() -> Arc<ToolSet> {
    let weather = json!({"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "flags": {"type": "object"}}});
    Arc::new(ToolSet::new([
        ("weather".to_owned(), weather),
        ("now".to_owned(), json!({"type": "object", "properties": {}})),
    ]))
}

fn format(name: &str) -> ReplyFormat {
    ReplyFormat {
        calls: FORMATS
            .iter()
            .find(|row| row.name == name)
            .unwrap_or_else(|| panic!("no format {name}")),
        thinking: super::thinking::thinking_of("<think>")
            .filter(|_| name != "harmony" && name != "functionary"),
    }
}

fn opening(name: &str) -> Opening {
    Opening {
        is_head: matches!(name, "harmony" | "functionary"),
        ..Opening::default()
    }
}

/// Returns the pieces of an answer that arrives cut at `cuts`.
fn pieces(name: &str, answer: &str, cuts: &[usize]) -> Vec<Piece> {
    let (mut parser, mut pieces) = pushed(name, answer, cuts);
    pieces.extend(parser.finish());
    pieces
}

/// Returns the pieces of an answer that arrives cut at `cuts`, and the parser before its end.
fn pushed(name: &str, answer: &str, cuts: &[usize]) -> (ReplyParser, Vec<Piece>) {
    let mut parser = ReplyParser::new(&format(name), tools(), opening(name));
    let mut pieces = Vec::new();
    let mut start = 0;
    for &cut in cuts {
        if cut > start && answer.is_char_boundary(cut) {
            pieces.extend(parser.push(&answer[start..cut]));
            start = cut;
        }
    }
    pieces.extend(parser.push(&answer[start..]));
    (parser, pieces)
}

/// Joins adjacent parts of one kind and drops marks.
fn joined(pieces: &[Piece]) -> Vec<Part> {
    let mut joined: Vec<Part> = Vec::new();
    for piece in pieces {
        match (joined.last_mut(), &piece.part) {
            (_, Part::Markup) => {}
            (Some(Part::Text(all)), Part::Text(more))
            | (Some(Part::Reasoning(all)), Part::Reasoning(more)) => {
                all.push_str(more);
            }
            (Some(Part::Arguments { delta, .. }), Part::Arguments { delta: more, .. }) => {
                delta.push_str(more);
            }
            (_, part) => joined.push(part.clone()),
        }
    }
    joined
}

/// Lists the control tokens of all formats, which never occur in text.
fn controls() -> Vec<String> {
    let parsers = FORMATS
        .iter()
        .map(|row| ReplyParser::new(&format(row.name), tools(), opening(row.name)));
    parsers.flat_map(|parser| parser.controls.to_vec()).collect()
}

/// Checks that every byte is in one piece, that texts are those of the answer, and that arguments of complete
/// calls are objects.
fn check_whole(answer: &str, pieces: &[Piece]) {
    let mut at = 0;
    let mut arguments = String::new();
    for piece in pieces {
        let source = &answer[at..at + piece.source_bytes];
        match &piece.part {
            Part::Text(text) | Part::Reasoning(text) => assert_eq!(text, source),
            Part::CallStart { .. } => arguments.clear(),
            Part::Arguments { delta, .. } => arguments.push_str(delta),
            Part::CallEnd { .. } => {
                let value: Result<Value, _> = serde_json::from_str(&arguments);
                assert!(
                    value.is_ok_and(|value| value.is_object()),
                    "{arguments:?} of {answer:?}"
                );
            }
            Part::CallBroken { source, .. } => {
                let before = without_controls(answer[..at].to_owned(), &controls());
                assert!(before.ends_with(source.as_str()));
            }
            Part::CallCut { .. } | Part::Markup => {}
        }
        at += piece.source_bytes;
    }
    assert_eq!(at, answer.len(), "{answer:?}: {pieces:?}");
}

/// Checks that an answer gives `expected` (see [`words`]) whole, byte by byte and cut in two anywhere.
#[track_caller]
fn check(name: &str, answer: &str, expected: &str) {
    let whole = pieces(name, answer, &[]);
    check_whole(answer, &whole);
    let parts = joined(&whole);
    assert_eq!(words(&parts), expected, "{name}: {answer:?}");
    let everywhere: Vec<usize> = (1..answer.len()).collect();
    let cut_up = pieces(name, answer, &everywhere);
    check_whole(answer, &cut_up);
    assert_eq!(joined(&cut_up), parts, "{name}: {answer:?} byte by byte");
    for cut in everywhere {
        assert_eq!(
            joined(&pieces(name, answer, &[cut])),
            parts,
            "{name}: {answer:?} cut at {cut}"
        );
    }
}

/// Returns the parts in short form: `text`, `(reasoning)`, `name{arguments}`, `name{arguments}!` if broken
/// off.
fn words(parts: &[Part]) -> String {
    let mut words = String::new();
    for part in parts {
        match part {
            Part::Text(text) => words.push_str(text),
            Part::Reasoning(text) => words.extend(["(", text, ")"]),
            Part::CallStart { id, name, .. } => {
                let id = id.as_ref().map(|id| format!("#{id}")).unwrap_or_default();
                words.extend(["«", name, &id, " "]);
            }
            Part::Arguments { delta, .. } => words.push_str(delta),
            Part::CallEnd { .. } => words.push('»'),
            Part::CallBroken { .. } => words.push('!'),
            Part::CallCut { .. } => words.push('…'),
            Part::Markup => {}
        }
    }
    words
}

const ZURICH: &str = "«weather {\"city\": \"Zürich\", \"days\": 3}»";

/// For each format, an answer that calls both tools.
const TWO_CALLS: &[(&str, &str)] = &[
    (
        "hermes",
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Zürich\", \"days\": 3}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
    ),
    (
        "qwen3-coder",
        "<tool_call>\n<function=weather>\n<parameter=city>\nZürich\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
    ),
    (
        "seed-oss",
        "<seed:tool_call>\n<function=weather>\n<parameter=city>Zürich</parameter>\n<parameter=days>3</parameter>\n</function>\n<function=now>\n</function>\n</seed:tool_call>",
    ),
    (
        "llama",
        "{\"name\": \"weather\", \"parameters\": {\"city\": \"Zürich\", \"days\": 3}}; {\"name\": \"now\", \"parameters\": {}}",
    ),
    ("llama", "[weather(city=\"Zürich\", days=3), now()]"),
    (
        "llama",
        "<|python_tag|>{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"parameters\": {\"city\": \"Zürich\", \"days\": 3}}}\n{\"name\":\"now\",\"parameters\":{}}",
    ),
    (
        "mistral-v3",
        "[TOOL_CALLS] [{\"arguments\": {\"city\": \"Zürich\", \"days\": 3}, \"name\": \"weather\"}, {\"name\": \"now\", \"arguments\": {}}]",
    ),
    (
        "mistral",
        "[TOOL_CALLS]weather[ARGS]{\"city\": \"Zürich\", \"days\": 3}[TOOL_CALLS]now[ARGS]{}",
    ),
    (
        "command-r",
        "Action:\n```json\n[\n    {\n        \"tool_name\": \"weather\",\n        \"parameters\": {\"city\": \"Zürich\", \"days\": 3}\n    },\n    {\"tool_name\": \"now\", \"parameters\": {}}\n]```",
    ),
    (
        "command-r7b",
        "<|START_ACTION|>[\n    {\"tool_name\": \"weather\", \"parameters\": {\"city\": \"Zürich\", \"days\": 3}},\n    {\"tool_name\": \"now\", \"parameters\": {}}\n]<|END_ACTION|>",
    ),
    (
        "deepseek-v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Zürich\", \"days\": 3}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "deepseek-v3.1",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Zürich\", \"days\": 3}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "deepseek-v3.2",
        "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Zürich</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    ),
    (
        "glm",
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Zürich</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
    ),
    (
        "glm",
        "<tool_call>weather<arg_key>city</arg_key><arg_value>Zürich</arg_value><arg_key>days</arg_key><arg_value>3</arg_value></tool_call><tool_call>now</tool_call>",
    ),
    (
        "minimax",
        "<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">Zürich</parameter>\n<parameter name=\"days\">3</parameter>\n</invoke>\n<invoke name=\"now\">\n</invoke>\n</minimax:tool_call>",
    ),
    (
        "gemma",
        "<|tool_call>call:weather{city:<|\"|>Zürich<|\"|>,days:3}<tool_call|><|tool_call>call:now{}<tool_call|>",
    ),
    (
        "function-gemma",
        "<start_function_call>call:weather{city:<escape>Zürich<escape>,days:3}<end_function_call><start_function_call>call:now{}<end_function_call>",
    ),
    (
        "lfm2",
        "<|tool_call_start|>[weather(city='Zürich', days=3), now()]<|tool_call_end|>",
    ),
    (
        "granite",
        "<|tool_call|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Zürich\", \"days\": 3}}, {\"name\": \"now\", \"arguments\": {}}]",
    ),
    (
        "functionary",
        "weather\n{\"city\": \"Zürich\", \"days\": 3}>>>now\n{}",
    ),
    (
        "apertus",
        "<|tools_prefix|>[{\"weather\": {\"city\": \"Zürich\", \"days\": 3}}, {\"now\": {}}]<|tools_suffix|>",
    ),
    (
        "harmony",
        "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"Zürich\", \"days\": 3}<|call|><|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}<|call|>",
    ),
    (
        "nemotron",
        "<TOOLCALL>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Zürich\", \"days\": 3}}, {\"name\": \"now\"}]</TOOLCALL>",
    ),
];

#[test]
fn each_format_gives_its_calls() {
    let two = format!("{ZURICH}«now {{}}»");
    for (name, answer) in TWO_CALLS {
        check(name, answer, &two);
    }
    check(
        "kimi-k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        "«now#functions.now:0 {}»",
    );
    check("mistral", "[TOOL_CALLS]now[CALL_ID]c1[ARGS]{}", "«now#c1 {}»");
}

#[test]
fn text_around_calls_is_text() {
    let call = "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>";
    check(
        "hermes",
        &format!("Let me look.\n{call}\n"),
        "Let me look.«now {}»",
    );
    check("hermes", &format!("  a {call} b "), "  a«now {}»b ");
    check("hermes", " a \n ", " a \n ");
    check(
        "hermes",
        &format!("<think>\nHm <tool_call>\n</think>\n\n{call}"),
        "(Hm <tool_call>)«now {}»",
    );
    check(
        "hermes",
        "<think>so</think> a <think>b</think>",
        "(so)a <think>b</think>",
    );
    check("hermes", "<think>cut ", "(cut)");
    check("hermes", "</think>\n\nNo thoughts.", "No thoughts.");
    check(
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes < no.",
        "(Hm.)Yes < no.",
    );
    check(
        "functionary",
        "all\nHello >>> you >>>now\n{}",
        "Hello >>> you «now {}»",
    );
    check(
        "command-r7b",
        "<|START_RESPONSE|>Hi <|there<|END_RESPONSE|>",
        "Hi <|there",
    );
    check("llama", "{\"city\": \"Bern\"}", "{\"city\": \"Bern\"}");
    check("llama", "[1, 2]", "[1, 2]");
    check("llama", "[weather of today]", "[weather of today]");
}

#[test]
fn what_breaks_a_format_is_text() {
    for (name, answer) in [
        ("hermes", "Write <tool_call> and </tool_call> around it."),
        (
            "hermes",
            "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>",
        ),
        (
            "hermes",
            "<tool_call>{\"name\": \"now\", \"arguments\": 3}</tool_call>",
        ),
        ("hermes", "<tool_call>{\"arguments\": {}}</tool_call>"),
        ("hermes", "<tool_call>\n{\"name\": \"no"),
        ("hermes", "a <tool_c"),
        ("qwen3-coder", "<tool_call>\n<function=unknown>\n</function>"),
        ("qwen3-coder", "<function=f(x) is a function"),
        ("mistral", "[TOOL_CALLS]what is this"),
        ("deepseek-v3.1", "<｜tool▁calls▁begin｜>and then"),
        ("glm", "<tool_call>unknown\n</tool_call>"),
        ("gemma", "<|tool_call>call:unknown{}<tool_call|>"),
        ("llama", "{\"name\": \"Bern\", \"parameters\": {}}"),
        ("llama", "{\"name\": \"now\"}"),
        ("functionary", "all"),
    ] {
        check(name, answer, answer);
    }
    // A mark without a call does not hide the call after it.
    check(
        "hermes",
        "<tool_call>\n<tool_call>{\"name\": \"now\", \"arguments\": {}}",
        "<tool_call>«now {}»",
    );
    // A call that began continues as text.
    check(
        "hermes",
        "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": oops}} then",
        "«now {\"a\": !}} then",
    );
    check("mistral", "[TOOL_CALLS]now[ARGS]{\"a\": 1", "«now {\"a\": !");
    check("qwen3-coder", "<function=now>\n<b>", "«now !\n<b>");
}

#[test]
fn a_broken_call_knows_its_text() {
    let answer = "Hi <tool_call>{\"name\": \"now\", \"arguments\": {\"a\": oops";
    let broken = pieces("hermes", answer, &[])
        .into_iter()
        .find_map(|piece| match piece.part {
            Part::CallBroken { source, .. } => Some(source),
            _ => None,
        });
    assert_eq!(
        broken.as_deref(),
        Some(" <tool_call>{\"name\": \"now\", \"arguments\": {\"a\": oops")
    );
}

#[test]
fn a_call_that_a_limit_cuts_stays_one_once_its_name_is_known() {
    let cut = |name: &str, answer: &str| {
        let (mut parser, mut pieces) = pushed(name, answer, &[]);
        pieces.extend(parser.cut());
        check_whole(answer, &pieces);
        words(&joined(&pieces))
    };
    for (name, answer, expected) in [
        (
            "hermes",
            "Hi <tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Zü",
            "Hi«weather {\"city\": \"Zü…",
        ),
        (
            "hermes",
            "<tool_call>{\"name\": \"weather\", \"argum",
            "«weather …",
        ),
        (
            "hermes",
            "<tool_call>{\"name\": \"weather",
            "<tool_call>{\"name\": \"weather",
        ),
        (
            "hermes",
            "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_",
            "«now {}»",
        ),
        (
            "granite",
            "<|tool_call|>[{\"name\": \"now\", \"arguments\": {}}, ",
            "«now {}»",
        ),
        (
            "llama",
            "{\"name\": \"now\", \"parameters\": {\"a\"",
            "«now {\"a\"…",
        ),
        // Without a mark, a name alone may be text that is JSON.
        (
            "llama",
            "{\"name\": \"now\", \"para",
            "{\"name\": \"now\", \"para",
        ),
        ("llama", "[weather(city=\"Zü", "«weather …"),
        (
            "qwen3-coder",
            "<function=weather>\n<parameter=city>\nZü</para",
            "«weather {\"city\": \"Zü…",
        ),
        ("mistral", "[TOOL_CALLS]now[ARGS]{\"a\": 1", "«now {\"a\": …"),
        (
            "harmony",
            "<|channel|>commentary to=functions.now <|message|>{\"a",
            "«now {\"a…",
        ),
        // Text that was not a call before the cut is not one after it.
        (
            "hermes",
            "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": oops}",
            "«now {\"a\": !}",
        ),
        ("hermes", "a <tool_c", "a <tool_c"),
        ("hermes", "<think>Hm", "(Hm)"),
    ] {
        assert_eq!(cut(name, answer), expected, "{name}: {answer:?}");
    }
}

#[test]
fn wherever_a_limit_cuts_nothing_of_an_open_call_is_text() {
    let is_text = |piece: &Piece| matches!(piece.part, Part::Text(_));
    for (name, answer) in TWO_CALLS {
        let mut n_open = 0;
        for at in (0..answer.len()).filter(|&at| answer.is_char_boundary(at)) {
            let (mut parser, mut pieces) = pushed(name, &answer[..at], &[]);
            let n = |wanted: fn(&Part) -> bool| pieces.iter().filter(|piece| wanted(&piece.part)).count();
            let is_open = n(|part| matches!(part, Part::CallStart { .. }))
                > n(|part| matches!(part, Part::CallEnd { .. }));
            let rest = parser.cut();
            if is_open {
                n_open += 1;
                assert!(!rest.iter().any(is_text), "{name} {at}: {rest:?}");
                let n_cut = rest
                    .iter()
                    .filter(|piece| matches!(piece.part, Part::CallCut { .. }));
                assert_eq!(n_cut.count(), 1, "{name} {at}: {rest:?}");
            }
            pieces.extend(rest);
            check_whole(&answer[..at], &pieces);
        }
        // Where the name comes last, a call is open for a moment only.
        assert!(n_open > 2, "{name}: {n_open}");
    }
}

#[test]
fn arguments_become_what_their_schema_says() {
    let call = |city: &str, days: &str| {
        format!(
            "<function=weather>\n<parameter=city>\n{city}\n</parameter>\n<parameter=days>\n{days}\n</parameter>\n</function>"
        )
    };
    let given = |json: &str| format!("«weather {json}»");
    check(
        "qwen3-coder",
        &call("12", "12"),
        &given(r#"{"city": "12", "days": 12}"#),
    );
    check(
        "qwen3-coder",
        &call("a\n\"b\" <c>\n", "many"),
        &given(r#"{"city": "a\n\"b\" <c>\n", "days": "many"}"#),
    );
    check(
        "hermes",
        "<tool_call>{\"name\": \"weather\", \"arguments\": \"{\\\"city\\\": \\\"a\\\"}\"}</tool_call>",
        &given(r#"{"city": "a"}"#),
    );
    check(
        "hermes",
        "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"a\nb\"}}</tool_call>",
        &given(r#"{"city": "a\u000ab"}"#),
    );
    check(
        "lfm2",
        "<|tool_call_start|>[weather(city=\"a'b\\n\", flags={'x': [True, None, 1.5], 'y': ()})]<|tool_call_end|>",
        &given(r#"{"city": "a'b\n", "flags": {"x": [true, null, 1.5], "y": []}}"#),
    );
    check(
        "gemma",
        "<|tool_call>call:weather{city:<|\"|>a,b}<|\"|>,flags:{x:[1,<|\"|>b<|\"|>]}}<tool_call|>",
        &given(r#"{"city": "a,b}", "flags": {"x": [1, "b"]}}"#),
    );
}

#[test]
fn without_tools_nothing_is_a_call() {
    let answer = "<think>a</think><tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>";
    let mut parser = ReplyParser::new(&format("hermes"), Arc::default(), Opening::default());
    let mut pieces = parser.push(answer);
    pieces.extend(parser.finish());
    assert_eq!(
        words(&joined(&pieces)),
        "(a)<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>"
    );
}

#[test]
fn names_and_arguments_are_given_as_soon_as_they_are_certain() {
    let mut parser = ReplyParser::new(&format("hermes"), tools(), Opening::default());
    let mut given = |text: &str| words(&joined(&parser.push(text)));
    assert_eq!(given("Hi <tool_call>{\"name\": \"now\""), "Hi");
    assert_eq!(given(", \"arguments\": {"), "«now {");
    assert_eq!(given("\"a\": \"b"), "\"a\": \"b");
    assert_eq!(given("c\"}"), "c\"}");
    assert_eq!(given("}"), "»");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_text_in_any_pieces_gives_the_same_parts(
        row in 0..FORMATS.len(),
        words in prop::collection::vec(0_usize..1000, 0..24),
        cuts in prop::collection::vec(1_usize..400, 0..12),
    ) {
        let row = &FORMATS[row];
        let parser = ReplyParser::new(&format(row.name), tools(), opening(row.name));
        let mut dictionary = parser.marks();
        dictionary.extend([
            "weather", "now", "{\"name\": \"now\", \"arguments\": {}}", "{\"city\": \"Zürich\"}", "[", "]", "{", "}", "(", ")",
            "\"name\"", "\"arguments\"", ":", ",", " ", "\n", "\"", "city", "city=", "'", "3", "null", "\\", "ü", "a", "all", "=", "{}",
            "call:", "analysis", "to=functions.now", "final", "<", ";", ">",
        ]);
        let answer: String = words.iter().map(|word| dictionary[word % dictionary.len()]).collect();
        let mut cuts = cuts;
        cuts.sort_unstable();
        cuts.retain(|&cut| cut < answer.len());
        let whole = pieces(row.name, &answer, &[]);
        check_whole(&answer, &whole);
        let cut_up = pieces(row.name, &answer, &cuts);
        check_whole(&answer, &cut_up);
        prop_assert_eq!(joined(&cut_up), joined(&whole), "{} {:?}", row.name, answer);
        let bytes: Vec<usize> = (1..answer.len()).collect();
        prop_assert_eq!(joined(&pieces(row.name, &answer, &bytes)), joined(&whole), "{} {:?}", row.name, answer);
        let (mut parser, mut cut_off) = pushed(row.name, &answer, &cuts);
        cut_off.extend(parser.cut());
        check_whole(&answer, &cut_off);
    }
}
