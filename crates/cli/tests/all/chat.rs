//! A chat through a pipe: its commands, and the end of its context.

use std::fs;

use serde_json::Value;

use crate::support::{Outcome, arg, tokenmill, tokenmill_with};

fn chat(extra: &[&str], input: &str) -> Outcome {
    tokenmill_with(&[&["chat", "demo", "--temp", "0"], extra].concat(), input)
}

/// Returns the contents of the messages that `/show messages` prints after `input`.
fn messages(input: &str) -> Vec<String> {
    let shown = chat(&[], &format!("{input}/show messages\n")).ok();
    let json = &shown[shown.find('[').expect("an array")..];
    let messages: Vec<Value> = serde_json::from_str(json).unwrap();
    (messages.iter())
        .map(|message| message["content"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn exchanges_are_taken_back_forgotten_and_answered_again() {
    let both = "What is 3 + 4?\nWhat is 2 + 2?\n";
    let [one, two] = [
        ["What is 3 + 4?", "3 + 4 = 7."],
        ["What is 2 + 2?", "2 + 2 is 4."],
    ];
    assert_eq!(messages(both), [one, two].concat());
    assert_eq!(messages(&format!("{both}/undo\n")), one);
    assert_eq!(messages(&format!("{both}/drop\n")), two);
    assert_eq!(messages(&format!("{both}/drop\n/undo\n")), [""; 0]);
    assert_eq!(messages(&format!("{both}/regen\n")), [one, two].concat());
    for command in ["/undo", "/drop", "/regen", "/stats"] {
        let outcome = chat(&[], &format!("{command}\n"));
        assert_eq!(outcome.code, 2, "{command}");
        assert!(outcome.stderr.contains("yet"), "{command}: {}", outcome.stderr);
    }
}

#[test]
fn a_text_in_quotes_has_all_of_its_lines() {
    let check = |input: &str, expected: &str| assert_eq!(messages(input)[0], expected, "{input:?}");
    check("\"\"\"What is\n3 + 4?\"\"\"\n", "What is\n3 + 4?");
    check("\"\"\"\nWhat is 3 + 4?\n\"\"\"\n", "What is 3 + 4?");
    check("\"\"\"\n\n\nWhat is 3 + 4?\"\"\"\n", "\n\nWhat is 3 + 4?");
    check("\"\"\"\nWhat is\n\n3 + 4?\n\"\"\"\n", "What is\n\n3 + 4?");
}

#[test]
fn a_command_that_fails_is_left_out_and_the_rest_goes_on() {
    let check = |input: &str, code: i32, end: &str| {
        let outcome = chat(&[], input);
        assert_eq!(outcome.code, code, "{}", outcome.stderr);
        assert_eq!(outcome.stdout.trim_end(), "3 + 4 = 7.", "{input}");
        assert!(outcome.stderr.trim_end().ends_with(end), "{}", outcome.stderr);
    };
    check("/foo\nWhat is 3 + 4?\n", 2, "one command failed and was skipped");
    check(
        "/load none.json\n/foo\nWhat is 3 + 4?\n",
        3,
        "2 commands failed and were skipped",
    );
    check(
        "/undo\nWhat is 3 + 4?\n/bye\n",
        2,
        "one command failed and was skipped",
    );
    check(
        "/regen\n/tool 5\nWhat is 3 + 4?\n",
        2,
        "2 commands failed and were skipped",
    );
}

#[test]
fn a_command_without_its_slash_is_skipped_in_a_pipe_too() {
    let check = |input: &str, notes: &[&str], stdout: &str, end: &str| {
        let outcome = chat(&[], input);
        assert_eq!(outcome.code, 2, "{input:?}: {}", outcome.stderr);
        for note in notes {
            assert!(outcome.stderr.contains(note), "{note} in {}", outcome.stderr);
        }
        assert_eq!(outcome.stdout.trim_end(), stdout, "{input:?}");
        assert!(outcome.stderr.trim_end().ends_with(end), "{}", outcome.stderr);
    };
    check(
        "help\nexit\n",
        &[
            "[the command is /help; \"\"\"help\"\"\" sends the word to the model]",
            "[the command is /bye; \"\"\"exit\"\"\" sends the word to the model]",
        ],
        "",
        "2 commands failed and were skipped",
    );
    check(
        "Quit\nWhat is 3 + 4?\n",
        &["[the command is /bye;"],
        "3 + 4 = 7.",
        "one command failed and was skipped",
    );
    assert_eq!(messages("\"\"\"exit\"\"\"\n")[0], "exit");
    assert_eq!(messages("Exit the loop.\n")[0], "Exit the loop.");
}

/// A template of a model that thinks before each answer.
const THINKING: &str =
    "{% for m in messages %}{{ m.content }};{% endfor %}{% if false %}</think>{% endif %}<think>";

#[test]
fn a_budget_ends_the_reasoning_which_is_shown_apart() {
    let folder = tempfile::tempdir().unwrap();
    let template = folder.path().join("template.jinja");
    fs::write(&template, THINKING).unwrap();
    let asked = |budget: &str, extra: &[&str]| {
        let flags = [
            &[
                "--template",
                arg(&template),
                "-n",
                "30",
                "--reasoning-budget",
                budget,
            ],
            extra,
        ]
        .concat();
        chat(&flags, "What is 3 + 4?\n")
    };
    // It thinks until its tokens are spent, so nothing is left for an answer.
    let endless = asked("-1", &[]);
    assert!(endless.stderr.starts_with("[reasoning] "), "{}", endless.stderr);
    assert_eq!(endless.ok(), "\n");
    let none = asked("0", &[]);
    assert!(!none.stderr.contains("[reasoning]"), "{}", none.stderr);
    assert!(none.ok().trim().len() > 1);
    let some = asked("4", &[]);
    let thoughts = some.stderr.strip_prefix("[reasoning] ").expect("a mark");
    assert!(!thoughts.starts_with('\n'), "{thoughts}");
    let answer = some.ok();
    assert!(!answer.contains("think>") && answer.trim().len() > 1, "{answer}");
    let hidden = asked("4", &["--hide-reasoning"]);
    assert!(!hidden.stderr.contains("[reasoning]"), "{}", hidden.stderr);
    assert_eq!(hidden.ok(), answer);
}

const ADD: &str = r#"[{"type": "function", "function": {"name": "add_numbers", "description": "Adds two numbers.",
    "parameters": {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
    "required": ["x", "y"]}}}]"#;

#[test]
fn a_call_is_shown_and_answered() {
    let folder = tempfile::tempdir().unwrap();
    let (tools, saved) = (folder.path().join("tools.json"), folder.path().join("talk.json"));
    fs::write(&tools, ADD).unwrap();
    let input = format!("What is 3 + 4?\n/tool 7\n/save {}\n", saved.display());
    let outcome = chat(&["--tools", arg(&tools)], &input);
    assert!(
        outcome.stderr.contains("[/tool TEXT answers the call]"),
        "{}",
        outcome.stderr
    );
    let shown = outcome.ok();
    let (call, answer) = shown.split_once('\n').unwrap();
    assert_eq!(call, r#"-> add_numbers {"x": 3, "y": 4}"#);
    assert!(answer.contains('7'), "{answer}");
    let talk: Value = serde_json::from_slice(&fs::read(&saved).unwrap()).unwrap();
    let messages = &talk["messages"];
    assert_eq!(
        messages[1]["tool_calls"][0]["function"]["name"], "add_numbers",
        "{talk}"
    );
    assert_eq!(
        messages[2]["tool_call_id"], messages[1]["tool_calls"][0]["id"],
        "{talk}"
    );
    // Without a call there is nothing to answer.
    assert_eq!(chat(&[], "/tool 7\n").code, 2);
}

#[test]
fn tools_have_names_of_their_own_and_arguments_that_are_objects() {
    let folder = tempfile::tempdir().unwrap();
    let tools = folder.path().join("tools.json");
    let named = |name: &str, parameters: &str| {
        format!(r#"{{"function": {{"name": "{name}", "parameters": {parameters}}}}}"#)
    };
    let object = r#"{"type": "object"}"#;
    for (list, said) in [
        (
            format!("[{}, {}]", named("f", object), named("f", object)),
            "has two tools that are called `f`",
        ),
        (
            format!("[{}, {{\"function\": {{}}}}]", named("f", object)),
            "has no name for tool 2",
        ),
        ("{}".to_owned(), "is not a JSON array"),
        (
            format!("[{}]", named("f", r#"{"type": "string"}"#)),
            "arguments are an object, which its `type` does not allow",
        ),
    ] {
        fs::write(&tools, &list).unwrap();
        for outcome in [
            tokenmill(["run", "demo", "Hi", "-t", "1", "--tools", arg(&tools)]),
            chat(&["--tools", arg(&tools)], "Hi\n"),
        ] {
            assert_eq!(outcome.code, 3, "{list}: {}", outcome.stderr);
            assert!(outcome.stderr.contains(said), "{list}: {}", outcome.stderr);
        }
    }
}

#[test]
fn an_exchange_that_waits_for_results_is_neither_saved_nor_talked_over() {
    let folder = tempfile::tempdir().unwrap();
    let (talk, saved) = (folder.path().join("talk.json"), folder.path().join("saved.json"));
    let call = |id: &str| serde_json::json!({"id": id, "type": "function", "function": {"name": "add_numbers", "arguments": "{}"}});
    let messages = serde_json::json!({"messages": [{"role": "user", "content": "Both?"},
        {"role": "assistant", "content": "", "tool_calls": [call("a"), call("b")]}]});
    fs::write(&talk, messages.to_string()).unwrap();
    let begun = format!("/load {}\n/tool 7\n", talk.display());
    for rest in [format!("/save {}\n", saved.display()), "Well?\n".to_owned()] {
        let outcome = chat(&[], &format!("{begun}{rest}"));
        assert_eq!(outcome.code, 2, "{}", outcome.stderr);
        assert!(
            outcome.stderr.contains("waits for the result of add_numbers too"),
            "{}",
            outcome.stderr
        );
    }
    assert!(!saved.exists());
}

#[test]
fn run_asks_through_the_template_and_shows_calls_and_reasoning() {
    let folder = tempfile::tempdir().unwrap();
    let (tools, template) = (
        folder.path().join("tools.json"),
        folder.path().join("template.jinja"),
    );
    fs::write(&tools, ADD).unwrap();
    fs::write(&template, THINKING).unwrap();
    let run = |extra: &[&str]| tokenmill([&["run", "demo", "What is 3 + 4?", "--temp", "0"], extra].concat());
    let asked = chat(&[], "What is 3 + 4?\n").ok();
    assert_eq!(run(&["--chat"]).ok(), asked);
    // The same as without options.
    assert_eq!(run(&[]).ok(), asked);
    let call = r#"-> add_numbers {"x": 3, "y": 4}"#;
    assert_eq!(run(&["--tools", arg(&tools)]).ok(), format!("{call}\n"));
    let two = run(&["--tools", arg(&tools), "--parallel", "2"]).ok();
    assert_eq!(two, format!("--- 1 of 2\n{call}\n--- 2 of 2\n{call}\n"));
    let json = run(&["--tools", arg(&tools), "--json"]).ok();
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        json["tool_calls"][0]["function"]["arguments"], r#"{"x": 3, "y": 4}"#,
        "{json}"
    );
    let flags = [
        "--template",
        arg(&template),
        "--reasoning-budget",
        "4",
        "-n",
        "20",
    ];
    let thinking = run(&flags);
    assert!(thinking.stderr.contains("[reasoning] "), "{}", thinking.stderr);
    let text = thinking.ok();
    let json: Value = serde_json::from_str(&run(&[&flags[..], &["--json"]].concat()).ok()).unwrap();
    assert_eq!(json["text"].as_str().map(str::trim), Some(text.trim()));
    assert!(!json["reasoning"].as_str().unwrap().is_empty(), "{json}");
    assert!(run(&["--chat", "--special"]).failed(2).contains("--special"));
    let hidden = run(&["--raw", "--hide-reasoning"]).failed(2);
    assert!(hidden.contains("leave `--raw`"), "{hidden}");
    // The line break at the end of a file is not part of the message.
    let question = folder.path().join("question.txt");
    fs::write(&question, "What is 3 + 4?\n").unwrap();
    let of_file = tokenmill(["run", "demo", "--file", arg(&question), "--temp", "0", "--chat"]);
    assert_eq!(of_file.ok(), asked);
}

#[test]
fn a_saved_conversation_goes_on_and_a_file_goes_with_a_message() {
    let folder = tempfile::tempdir().unwrap();
    let (saved, notes) = (folder.path().join("a b.json"), folder.path().join("notes.txt"));
    fs::write(&notes, "Three and four.").unwrap();
    let [saved, notes] = [arg(&saved), arg(&notes)];
    chat(&[], &format!("What is 3 + 4?\n/save {saved}\n")).ok();
    assert_eq!(
        messages(&format!("/load {saved}\n")),
        ["What is 3 + 4?", "3 + 4 = 7."]
    );
    let asked = &messages(&format!("/file {notes}\nWhat is it?\nAnd now?\n"));
    assert_eq!(asked[0], "Three and four.\n\nWhat is it?");
    assert_eq!(asked[2], "And now?", "it goes with one message only");
    assert_eq!(chat(&[], &format!("/load {notes}\n")).code, 3);
    assert_eq!(chat(&[], "/file no-such-file\n").code, 3);
}

#[test]
fn figures_are_shown_when_asked_for() {
    let outcome = chat(&[], "What is 3 + 4?\n/stats\n");
    assert!(
        outcome.stderr.contains(" tokens/s; first after "),
        "{}",
        outcome.stderr
    );
    assert!(
        outcome.stderr.contains("[the context holds "),
        "{}",
        outcome.stderr
    );
    assert!(outcome.stderr.contains(" of 512 tokens]"), "{}", outcome.stderr);
    // A forgotten conversation has no figures.
    for (command, expected) in [
        ("/clear", "nothing has been said yet"),
        ("/undo", "nothing has been said yet"),
        ("/regen\n/undo", "nothing has been said yet"),
    ] {
        let outcome = chat(&[], &format!("What is 3 + 4?\n{command}\n/stats\n"));
        assert_eq!(outcome.code, 2, "{command}");
        assert!(outcome.stderr.contains(expected), "{command}: {}", outcome.stderr);
    }
    let outcome = chat(&[], "What is 3 + 4?\nWhat is 2 + 2?\n/drop\n/stats\n");
    assert!(
        outcome
            .stderr
            .contains("[the oldest exchange is forgotten; 1 is left]")
            && outcome
                .stderr
                .contains("nothing has been answered since the conversation was changed or loaded"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn a_setting_is_undone_and_a_wrong_one_is_told_what_is_right() {
    let shown = chat(&[], "/set seed 5\n/show\n/set seed -1\n/show\n").ok();
    let seeds: Vec<&str> = shown.lines().filter(|line| line.starts_with("seed")).collect();
    assert_eq!(
        seeds,
        [
            "seed              5",
            "seed              5, another for each answer"
        ]
    );
    for (command, expected) in [
        (
            "/set temp abc",
            "`abc` is not a value for temp: expected a number",
        ),
        (
            "/set top_k -1",
            "`-1` is not a value for top_k: expected a whole number, 0 or more",
        ),
        (
            "/set seed x",
            "`x` is not a value for seed: expected a whole number, 0 or more, or -1 for a new seed every time",
        ),
        (
            "/set enable_thinking false",
            "there is no setting `enable_thinking`, and this model's template has no such variable (hint: /show",
        ),
        ("/tool 7", "no tool call is open"),
    ] {
        let outcome = chat(&[], &format!("{command}\n"));
        assert_eq!(outcome.code, 2, "{command}");
        assert!(outcome.stderr.contains(expected), "{command}: {}", outcome.stderr);
    }
}

#[test]
fn a_context_that_fills_is_said_before_and_at_its_end() {
    let nearly = chat(&["-c", "28"], "What is 3 + 4?\n");
    assert!(
        nearly.stderr.contains("[the conversation takes ") && nearly.stderr.contains("/drop forgets"),
        "{}",
        nearly.stderr
    );
    let full = chat(&["-c", "16"], &format!("{}\n", "What is 3 + 4? ".repeat(4)));
    assert_eq!(full.code, 3);
    assert!(
        full.stderr.contains("leaves no room in a context of 16"),
        "{}",
        full.stderr
    );
    assert!(
        full.stderr.contains("/drop forgets the oldest exchange"),
        "{}",
        full.stderr
    );
}
