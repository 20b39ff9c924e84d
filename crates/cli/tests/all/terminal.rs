//! The program on a terminal: text typed ahead, and characters that a terminal must not get.

use crate::{
    pty::{on_terminal, skip},
    support::{DEMO_GGUF, arg, tokenmill, tokenmill_with},
};

#[test]
fn lines_typed_ahead_are_all_answered() {
    let Some(shown) = on_terminal(
        &["chat", "demo", "--temp", "0"],
        "What is 3 + 4?\nWhat is 2 + 2?\nWhat is 5 + 1?\n/bye\n",
    ) else {
        return skip();
    };
    for answer in ["3 + 4 = 7.", "2 + 2 is 4.", "5 + 1 = 6."] {
        assert!(shown.contains(answer), "{answer} in {shown}");
    }
}

#[test]
fn lines_on_a_terminal_break_between_words() {
    let Some(shown) = on_terminal(&["chat", "demo", "--temp", "0"], "Tell me a story.\n/bye\n") else {
        return skip();
    };
    let answer = tokenmill_with(&["chat", "demo", "--temp", "0"], "Tell me a story.\n").ok();
    let lines: Vec<&str> = shown.lines().map(|line| line.trim_end_matches('\r')).collect();
    let first = lines
        .iter()
        .position(|line| answer.starts_with(line) && line.len() > 20);
    let wrapped = &lines[first.unwrap_or_else(|| panic!("the answer is in {shown}"))..][..3];
    assert!(wrapped.iter().all(|line| line.len() <= 80), "{wrapped:?}");
    assert!(answer.starts_with(&wrapped.join(" ")), "{wrapped:?} in {answer}");
}

#[test]
fn generated_control_characters_do_not_reach_a_terminal() {
    let ids = tokenmill(["tokenize", "demo", "\u{1b}", "--no-bos", "--ids"]).ok();
    let bias = format!("{}+100", ids.trim());
    let args = ["run", "--raw", "demo", "Hi", "-n", "3", "-l", &bias];
    assert_eq!(
        tokenmill(args).ok(),
        "Hi\u{1b}\u{1b}\u{1b}\n",
        "a pipe gets the text as it is"
    );
    let Some(shown) = on_terminal(&args, "") else {
        return skip();
    };
    assert!(shown.contains(r"\u{1b}\u{1b}\u{1b}"), "{shown}");
    // The progress bar may use sequences of its own, the text may not.
    let text = &shown[shown.find("Hi").expect("the prompt is shown")..];
    assert!(!text.contains('\u{1b}'), "{text:?}");
}

#[test]
fn long_work_shows_how_fast_it_is_and_what_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let [input, output] = ["demo.gguf", "out.gguf"].map(|name| folder.path().join(name));
    std::fs::write(&input, DEMO_GGUF).unwrap();
    let hf = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/parity/qwen2/hf");
    let quantize = [
        "quantize",
        arg(&input),
        arg(&output),
        "iq4_nl",
        "--allow-requantize",
    ];
    for args in [&quantize[..], &["convert", hf, arg(&output), "--overwrite"]] {
        let Some(shown) = on_terminal(args, "") else {
            return skip();
        };
        // Bytes that are done and all, the rate, and the rest in seconds.
        let is_bar = |part: &str| {
            let words: Vec<&str> = part.split_whitespace().collect();
            let rate = words.iter().position(|word| word.ends_with("B/s"));
            rate.is_some_and(|at| {
                words[at + 1..].first().is_some_and(|rest| rest.ends_with('s'))
                    && words[..at].iter().any(|word| word.contains("B/"))
            })
        };
        assert!(shown.split(['\r', '\n']).any(is_bar), "{shown:?}");
        assert!(output.exists(), "{shown}");
    }
}
