//! Starts the program and reads what it did.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

/// What the program did.
pub(crate) struct Outcome {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) code: i32,
}

impl Outcome {
    /// Reads it.
    pub(crate) fn of(output: &Output) -> Self {
        let outcome = Self {
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            code: output.status.code().unwrap_or(-1),
        };
        assert!(
            !outcome.stderr.contains("panicked"),
            "the program panicked: {}",
            outcome.stderr
        );
        outcome
    }

    /// Standard output of a program that succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, 0, "{}", self.stderr);
        self.stdout
    }

    /// The one line of a program that failed with `code` and wrote nothing else.
    #[track_caller]
    pub(crate) fn failed(self, code: i32) -> String {
        assert_eq!(
            self.code, code,
            "stdout {:?}, stderr {:?}",
            self.stdout, self.stderr
        );
        assert_eq!(self.stdout, "", "a failure leaves no partial output");
        assert_eq!(self.stderr.lines().count(), 1, "{:?}", self.stderr);
        self.stderr.trim_end().to_owned()
    }
}

/// The program, with an environment that is the same everywhere.
pub(crate) fn command<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tokenmill"));
    command
        .args(args)
        .env("NO_COLOR", "1")
        .env_remove("RUST_BACKTRACE")
        .stdin(Stdio::null());
    command
}

/// Runs the program without input.
pub(crate) fn tokenmill<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Outcome {
    Outcome::of(&command(args).output().expect("the program starts"))
}

/// Runs the program with `input` on its standard input.
pub(crate) fn tokenmill_with(args: &[&str], input: &str) -> Outcome {
    let mut child = command(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // A program that fails early does not read its input.
    let _unread = child.stdin.take().expect("piped").write_all(input.as_bytes());
    Outcome::of(&child.wait_with_output().expect("the program ends"))
}

/// The folder of the test data; prints that a test is skipped where there is none.
pub(crate) fn test_data() -> Option<PathBuf> {
    let data = std::env::var_os("TOKENMILL_TEST_DATA").map(PathBuf::from);
    if data.is_none() {
        eprintln!("skipped: TOKENMILL_TEST_DATA does not name the folder of the test data");
    }
    data
}

/// A file's path as an argument.
pub(crate) fn arg(path: &Path) -> &str {
    path.to_str().expect("test paths are UTF-8")
}

/// The model that is built in, as bytes.
pub(crate) const DEMO_GGUF: &[u8] = include_bytes!("../../assets/tokenmill-demo-Q8_0.gguf");
