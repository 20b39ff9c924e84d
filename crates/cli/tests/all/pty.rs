//! [`Pty`]: the program on a terminal of its own, where a test types while it runs.
//!
//! Other tests give the whole input at the start. Invariant: every wait has an end.

use std::{
    io::{Read as _, Write as _},
    iter,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::support::WITHOUT_NETWORK;

/// Far beyond what a starved machine needs.
const LIMIT: Duration = Duration::from_mins(2);

const PROGRAM: &str = env!("CARGO_BIN_EXE_tokenmill");

/// Runs the program on a terminal of 80 columns, with `input` typed ahead; what the terminal shows. `None` where no terminal can be made.
pub(crate) fn on_terminal(args: &[&str], input: &str) -> Option<String> {
    let words = iter::once(&PROGRAM).chain(args);
    let words: Vec<String> = words.map(|word| format!("'{word}'")).collect();
    let mut pty = Pty::start_line(80, &words.join(" "))?;
    pty.type_in(input);
    Some(pty.end())
}

/// Says that a test needs a terminal.
pub(crate) fn skip() {
    println!("skipped: there is no `script` to make a terminal with");
}

/// A shell line on a terminal.
pub(crate) struct Pty {
    child: Child,
    stdin: ChildStdin,
    shown: Arc<Mutex<String>>,
    _home: TempDir,
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Pty {
    /// Starts a line in which `tokenmill` is the program, on a terminal of `n_columns`. `None` where the tool that makes terminals,
    /// `script` of util-linux, is missing.
    pub(crate) fn start(n_columns: usize, line: &str) -> Option<Self> {
        Self::start_line(n_columns, &line.replace("tokenmill", PROGRAM))
    }

    fn start_line(n_columns: usize, line: &str) -> Option<Self> {
        // A plain `sh` is ended by the Ctrl-C that it shares with its command, unless it has a trap; the command inherits none.
        let line = format!("trap : INT; stty rows 24 cols {n_columns}; {line}");
        let home = tempfile::tempdir().expect("a folder for the history");
        let mut child = Command::new("script")
            .args(["--quiet", "--return", "--command", &line, "/dev/null"])
            .env("SHELL", "/bin/sh")
            .env("NO_COLOR", "1")
            .env("TERM", "xterm")
            .env_remove("RUST_LOG")
            .envs(WITHOUT_NETWORK)
            .env("XDG_STATE_HOME", home.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let shown = Arc::new(Mutex::new(String::new()));
        let (kept, mut stdout) = (Arc::clone(&shown), child.stdout.take().expect("piped"));
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n_read @ 1..) = stdout.read(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..n_read]);
                kept.lock().expect("no panic").push_str(&text);
            }
        });
        Some(Self {
            stdin: child.stdin.take().expect("piped"),
            child,
            shown,
            _home: home,
        })
    }

    /// Types a text.
    pub(crate) fn type_in(&mut self, text: &str) {
        self.stdin
            .write_all(text.as_bytes())
            .expect("the terminal is there");
        self.stdin.flush().expect("the terminal is there");
    }

    /// Returns the text sent to the terminal so far.
    pub(crate) fn shown(&self) -> String {
        self.shown.lock().expect("no panic").clone()
    }

    /// Waits until the terminal has been sent a text.
    #[track_caller]
    pub(crate) fn wait_for(&self, text: &str) {
        self.wait_until(text, |shown| shown.contains(text));
    }

    /// Waits until what the terminal has been sent is as it should be; `what` names that.
    #[track_caller]
    pub(crate) fn wait_until(&self, what: &str, is_there: impl Fn(&str) -> bool) {
        let begun = Instant::now();
        while !is_there(&self.shown()) {
            assert!(begun.elapsed() < LIMIT, "{what:?} is not in {:?}", self.shown());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for the end of the line, and returns all that the terminal has been sent.
    #[track_caller]
    pub(crate) fn end(mut self) -> String {
        let begun = Instant::now();
        while self.child.try_wait().expect("it can be waited for").is_none() {
            assert!(begun.elapsed() < LIMIT, "it does not end: {:?}", self.shown());
            thread::sleep(Duration::from_millis(20));
        }
        // The rest of the pipe.
        thread::sleep(Duration::from_millis(100));
        let shown = self.shown();
        assert!(!shown.contains("panicked"), "{shown}");
        shown
    }
}
