//! A chat through a pipe: its commands, and the end of its context.

use std::fs;

use serde_json::Value;

use crate::support::{Outcome, arg, tokenmill_with};

fn chat(extra: &[&str], input: &str) -> Outcome {
    tokenmill_with(&[&["chat", "demo", "--temp", "0"], extra].concat(), input)
}

/// The contents of the messages that `/show messages` prints behind `input`.
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
fn a_budget_ends_the_reasoning() {
    let folder = tempfile::tempdir().unwrap();
    let template = folder.path().join("template.jinja");
    let source =
        "{% for m in messages %}{{ m.content }};{% endfor %}{% if false %}</think>{% endif %}<think>";
    fs::write(&template, source).unwrap();
    let shown = |budget: &str| {
        let flags = [
            "--template",
            arg(&template),
            "-n",
            "30",
            "--reasoning-budget",
            budget,
        ];
        chat(&flags, "What is 3 + 4?\n").ok()
    };
    assert!(!shown("-1").contains("</think>"));
    assert!(shown("0").starts_with("</think>"));
    let (thoughts, _) = shown("4")
        .split_once("</think>")
        .map(|(a, b)| (a.len(), b.len()))
        .expect("an end");
    assert!(thoughts > 0);
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
