//! Typing while the program answers, and lines on narrow terminals.

use std::{
    cell::RefCell,
    fs::{File, OpenOptions},
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    process::Command,
};

use crate::{
    pty::{Pty, skip},
    support::arg,
};

/// A chat whose answers are long: the token that ends one is never taken.
const LONG_CHAT: &str = "tokenmill chat demo --temp 0 -t 1 -c 20000 -l 1-inf";

/// Checks that no line has words that the terminal would break.
#[track_caller]
fn check_lines(shown: &str, n_columns: usize) {
    for line in shown.lines() {
        let line = line.trim_end_matches('\r');
        let line = line.rsplit('\r').next().unwrap_or_default();
        // Sequences of the line editor move the cursor; they belong to no text.
        let is_text = !line.contains('\u{1b}') && line.trim().contains(' ');
        assert!(
            !is_text || line.chars().count() <= n_columns,
            "{line:?} in {shown}"
        );
    }
}

#[test]
fn what_is_typed_during_an_answer_is_not_shown_in_it_and_not_lost() {
    let Some(mut pty) = Pty::start(80, &format!("{LONG_CHAT} -n 3000; stty -a")) else {
        return skip();
    };
    pty.wait_for(">>> ");
    pty.type_in("Tell me a story.\n");
    pty.wait_until("a part of the answer", |shown| shown.lines().count() > 12);
    pty.type_in("/stats");
    pty.wait_for("cut at the limit of 3000 tokens");
    let shown = pty.shown();
    let (answer, _) = shown.split_once("[cut at").expect("it was waited for");
    assert!(!answer.contains("/stats"), "{answer}");
    pty.type_in("\n");
    pty.wait_for("answer 3000 tokens");
    pty.type_in("/bye\n");
    let shown = pty.end();
    assert!(shown.contains(" echo "), "{shown}");
}

#[test]
fn what_is_typed_before_an_answer_is_stopped_begins_the_next_message() {
    let Some(mut pty) = Pty::start(80, &format!("{LONG_CHAT}; stty -a")) else {
        return skip();
    };
    pty.wait_for(">>> ");
    pty.type_in("Tell me a story.\n");
    pty.wait_until("a part of the answer", |shown| shown.lines().count() > 12);
    pty.type_in("/stats");
    let n_lines = pty.shown().lines().count();
    pty.wait_until("more of the answer", |shown| shown.lines().count() > n_lines);
    pty.type_in("\u{3}");
    pty.wait_for("[stopped]");
    pty.type_in("\n");
    pty.wait_for("first after ");
    pty.type_in("\u{3}");
    pty.wait_for("[/bye or Ctrl-D leaves]");
    pty.type_in("/bye\n");
    let shown = pty.end();
    // The terminal drops text at a signal again.
    assert!(shown.contains(" echo ") && shown.contains("-noflsh"), "{shown}");
}

/// Starts a chat, followed by another command, that loads until its template is written to the returned pipe and the pipe is closed.
fn loading_chat(folder: &Path, next: &str) -> Option<(Pty, File)> {
    let template = folder.join("template.jinja");
    let made = Command::new("mkfifo").arg(&template).status();
    assert!(made.is_ok_and(|status| status.success()), "mkfifo makes a pipe");
    let line = format!(
        "tokenmill chat demo -n 1 -t 1 --template {}; {next}",
        arg(&template)
    );
    let pty = Pty::start(80, &line)?;
    let writer = RefCell::new(None);
    pty.wait_until("a chat that loads", |_| {
        // Without a reader at the other end this fails.
        let opened = OpenOptions::new()
            .write(true)
            .custom_flags(nix::libc::O_NONBLOCK)
            .open(&template);
        *writer.borrow_mut() = opened.ok();
        writer.borrow().is_some()
    });
    Some((pty, writer.into_inner().expect("it was waited for")))
}

#[test]
fn what_is_typed_while_the_model_loads_is_the_first_message() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some((mut pty, mut template)) = loading_chat(folder.path(), "stty -a") else {
        return skip();
    };
    // The line editor takes back a character of two bytes, and leaves at Ctrl-D.
    pty.type_in("What is 3 + 4é\u{7f}?\r/show messages\r\u{4}");
    template
        .write_all(b"{% for message in messages %}{{ message.content }}{% endfor %}")
        .expect("the chat reads it");
    drop(template);
    let shown = pty.end();
    let (load, chat) = shown.split_once("is ready").expect("the chat begins");
    assert!(!load.contains("What"), "{shown}");
    assert!(chat.contains("\"content\": \"What is 3 + 4?\""), "{shown}");
    check_echo(&shown, "speed ");
}

#[test]
fn a_load_that_is_stopped_gives_the_terminal_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some((mut pty, template)) = loading_chat(folder.path(), "echo code=$?.; stty -a") else {
        return skip();
    };
    pty.type_in("What is\u{3}");
    pty.wait_for("code=130.");
    let shown = pty.end();
    drop(template);
    assert!(!shown.contains("What"), "{shown}");
    check_echo(&shown, "code=130.");
}

#[test]
fn an_interrupted_answer_gives_the_terminal_back() {
    for (line, end) in [
        (format!("{LONG_CHAT}; stty -a"), "[stopped]"),
        (
            "tokenmill run demo --temp 0 -t 1 -c 20000 -l 1-inf Story; stty -a".to_owned(),
            "stopped]",
        ),
    ] {
        let Some(mut pty) = Pty::start(80, &line) else {
            return skip();
        };
        if end == "[stopped]" {
            pty.wait_for(">>> ");
            pty.type_in("Tell me a story.\n");
        }
        pty.wait_until("a part of the answer", |shown| shown.lines().count() > 12);
        pty.type_in("\u{3}");
        pty.wait_for(end);
        if end == "[stopped]" {
            pty.type_in("/bye\n");
        }
        let shown = pty.end();
        // `stty` names Ctrl-C too.
        let (answer, _) = shown.split_once("speed ").expect("the settings are shown");
        assert!(!answer.contains("^C"), "{shown}");
        assert!(shown.contains(" echo ") && !shown.contains("-echo "), "{shown}");
    }
}

#[test]
fn two_presses_at_once_give_the_terminal_back() {
    let line = "tokenmill run demo --raw --temp 0 -t 1 -c 20000 -l 1-inf Story; echo code=$?; stty -a";
    let Some(mut pty) = Pty::start(80, line) else {
        return skip();
    };
    pty.wait_until("a part of the answer", |shown| shown.lines().count() > 12);
    pty.type_in("\u{3}\u{3}");
    let shown = pty.end();
    assert!(shown.contains("code=130"), "{shown}");
    assert!(shown.contains(" echo ") && !shown.contains("-echo "), "{shown}");
}

#[test]
fn a_terminated_answer_gives_the_terminal_back() {
    for (signal, code) in [("-TERM", 143), ("-HUP", 129), ("-QUIT", 131)] {
        let line = "sh -c 'echo pid=$$.; exec tokenmill run demo --raw --temp 0 -t 1 -c 20000 -l 1-inf Story'; echo code=$?; stty -a";
        let Some(pty) = Pty::start(80, line) else {
            return skip();
        };
        pty.wait_until("a part of the answer", |shown| shown.lines().count() > 12);
        let shown = pty.shown();
        let (_, after) = shown.split_once("pid=").expect("the shell says it");
        let (pid, _) = after.split_once('.').expect("a dot ends it");
        let sent = Command::new("kill").args([signal, pid]).status();
        assert!(sent.expect("there is `kill`").success());
        let shown = pty.end();
        assert!(shown.contains(&format!("code={code}")), "{shown}");
        assert!(shown.contains(" echo ") && !shown.contains("-echo "), "{shown}");
    }
}

/// A shell line with jobs, whose shell leaves the terminal's settings as they are: it starts a command, and continues it with `fg` once it
/// was stopped.
fn stopped_once(command: &str) -> String {
    format!("exec sh -c 'set -m; {command}; echo is-stopped=$?.; stty -a; fg; echo is-over=$?.; stty -a'")
}

/// Checks that a terminal echoes and reads lines, by the output of `stty` after a mark.
#[track_caller]
fn check_echo(shown: &str, mark: &str) {
    let (_, settings) = shown.split_once(mark).expect("the mark was waited for");
    assert!(
        settings.contains(" echo ") && settings.contains(" icanon "),
        "{shown}"
    );
}

#[test]
fn a_stopped_answer_gives_the_terminal_back_until_it_continues() {
    let line = stopped_once("tokenmill run demo --raw --temp 0 -t 1 -c 20000 -l 1-inf Story");
    let Some(mut pty) = Pty::start(80, &line) else {
        return skip();
    };
    pty.wait_until("a part of the answer", |shown| shown.lines().count() > 12);
    pty.type_in("\u{1a}");
    // 128 and a signal that stops.
    pty.wait_for("is-stopped=1");
    let rest = |shown: &str| shown.split_once("is-stopped=").map(|(_, rest)| rest.to_owned());
    pty.wait_until("the rest of the answer", |shown| {
        rest(shown).is_some_and(|rest| rest.contains(" echoke") && rest.lines().count() > 30)
    });
    check_echo(&pty.shown(), "is-stopped=");
    pty.type_in("typed meanwhile");
    let n_lines = pty.shown().lines().count();
    pty.wait_until("more of the answer", |shown| shown.lines().count() > n_lines + 10);
    pty.type_in("\u{3}");
    pty.wait_for("is-over=130.");
    let shown = pty.end();
    assert!(!shown.contains("typed meanwhile"), "{shown}");
    check_echo(&shown, "is-over=");
}

#[test]
fn a_chat_that_is_stopped_at_its_prompt_gives_the_terminal_back() {
    let Some(mut pty) = Pty::start(80, &stopped_once("tokenmill chat demo --temp 0 -t 1")) else {
        return skip();
    };
    pty.wait_for(">>> ");
    // After an answer the program handles what stops it.
    pty.type_in("What is 3 + 4?\n");
    pty.wait_until("the next prompt", |shown| {
        shown
            .split_once("3 + 4 = 7.")
            .is_some_and(|(_, rest)| rest.contains(">>> "))
    });
    pty.type_in("What is \u{1a}");
    pty.wait_for("is-stopped=1");
    pty.wait_until("the same line", |shown| {
        let rest = shown.split_once(" echoke").map(|(_, rest)| rest);
        rest.is_some_and(|rest| rest.contains("What is "))
    });
    check_echo(&pty.shown(), "is-stopped=");
    pty.type_in("2 + 2?\n");
    pty.wait_for("2 + 2 is 4.");
    pty.type_in("/bye\n");
    let shown = pty.end();
    assert!(shown.contains("is-over=0."), "{shown}");
    check_echo(&shown, "is-over=");
}

#[test]
fn a_command_without_its_slash_is_told_instead_of_sent() {
    let Some(mut pty) = Pty::start(80, "tokenmill chat demo --temp 0") else {
        return skip();
    };
    for (word, command) in [("help", "/help"), ("exit", "/bye"), ("Quit", "/bye")] {
        pty.wait_for(">>> ");
        pty.type_in(&format!("{word}\n"));
        pty.wait_for(&format!(
            "[the command is {command}; \"\"\"{word}\"\"\" sends the word to the model]"
        ));
    }
    pty.type_in("/hlep\n");
    pty.wait_for("near it: /help");
    pty.type_in("/bye\n");
    pty.end();
}

#[test]
fn a_narrow_terminal_breaks_no_word() {
    const N_COLUMNS: usize = 60;
    let Some(mut pty) = Pty::start(N_COLUMNS, "tokenmill chat demo --temp 0") else {
        return skip();
    };
    pty.wait_for(">>> ");
    for (line, end) in [
        ("/help", "stops an answer"),
        ("What is 3 + 4?", "3 + 4 = 7."),
        ("/stats", "the context holds"),
        ("/set temperature 1", "near it: temp"),
        ("/show", "n_predict"),
    ] {
        pty.type_in(&format!("{line}\n"));
        pty.wait_until(end, |shown| {
            shown
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
                .contains(end)
        });
    }
    pty.type_in("/bye\n");
    check_lines(&pty.end(), N_COLUMNS);
    for line in [
        "tokenmill --help",
        "tokenmill run --help",
        "tokenmill serve -h",
        "tokenmill doctor demo",
        "tokenmill run no/such/model.gguf Hi",
        "tokenmill",
    ] {
        let Some(pty) = Pty::start(N_COLUMNS, line) else {
            return skip();
        };
        let shown = pty.end();
        assert!(shown.lines().count() > 1, "{line}: {shown}");
        check_lines(&shown, N_COLUMNS);
    }
}

#[test]
fn a_server_on_a_terminal_logs_a_request_as_a_sentence() {
    let Some(mut pty) = Pty::start(100, "tokenmill serve demo --port 0 -t 1") else {
        return skip();
    };
    pty.wait_for("twice stops at once");
    let shown = pty.shown();
    let address = shown
        .split("http://")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next());
    let address = address.expect("an address").split('/').next().expect("a host");
    let body = r#"{"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}"#;
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    pty.wait_for(" + 8 tokens");
    pty.type_in("\u{3}");
    let shown = pty.end();
    let line = shown.lines().find(|line| line.contains("/v1/completions"));
    let line = line.unwrap_or_else(|| panic!("{shown}")).trim_end();
    let (time, rest) = line.split_at(9);
    let digits = |c: char| if c.is_ascii_digit() { '0' } else { c };
    assert_eq!(
        time.chars().map(digits).collect::<String>(),
        "00:00:00 ",
        "{line}"
    );
    let (what, took) = rest.split_at("POST /v1/completions 200 ".len());
    assert_eq!(what, "POST /v1/completions 200 ", "{line}");
    assert!(took.ends_with(" + 8 tokens") && took.contains("ms, "), "{line}");
    assert!(!shown.contains("tokenmill::request"), "{shown}");
    check_lines(&shown, 100);
}
