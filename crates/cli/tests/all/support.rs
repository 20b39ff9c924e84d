//! Starts the program and reads its output.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};
#[cfg(target_os = "linux")]
use std::{process::Child, thread, time::Duration};

use tokenmill_gguf::{GgufFile, GgufWriter, Metadata, Value};

/// Output and exit code of the program.
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

#[cfg(target_os = "linux")]
impl Outcome {
    /// The line that says what was wrong, of a program that failed with `code` and may have begun a log or told its usage.
    #[track_caller]
    pub(crate) fn error_line(self, code: i32) -> String {
        assert_eq!(self.code, code, "{}", self.stderr);
        let line = self.stderr.lines().find(|line| line.starts_with("error: "));
        line.unwrap_or_else(|| panic!("{}", self.stderr)).to_owned()
    }
}

/// No test asks a server that is not its own, and none finds the models of whoever runs it.
pub(crate) const WITHOUT_NETWORK: [(&str, &str); 3] = [
    ("HF_HUB_OFFLINE", "1"),
    ("HF_HUB_CACHE", "no-such-cache"),
    ("HF_TOKEN", ""),
];

/// The program, with an environment that is the same everywhere. `TOKENMILL_TEST_PROGRAM` names another one: CI has some tests start
/// that for Windows.
pub(crate) fn command<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let another = std::env::var_os("TOKENMILL_TEST_PROGRAM");
    let mut command = Command::new(another.unwrap_or_else(|| env!("CARGO_BIN_EXE_tokenmill").into()));
    command
        .args(args)
        .env("NO_COLOR", "1")
        .env_remove("RUST_BACKTRACE")
        .envs(WITHOUT_NETWORK)
        .stdin(Stdio::null());
    command
}

/// Runs the program without input.
pub(crate) fn tokenmill<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Outcome {
    Outcome::of(&command(args).output().expect("the program starts"))
}

/// Runs the program with `input` on its standard input.
pub(crate) fn tokenmill_with(args: &[&str], input: &str) -> Outcome {
    with_input(&mut command(args), input)
}

/// Runs a command with `input` on its standard input.
pub(crate) fn with_input(command: &mut Command, input: &str) -> Outcome {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // A program that fails early does not read its input.
    let _unread = child.stdin.take().expect("piped").write_all(input.as_bytes());
    Outcome::of(&child.wait_with_output().expect("the program ends"))
}

/// Waits until a program has taken Ctrl-C over from the system, which it is asked for every few milliseconds.
#[cfg(target_os = "linux")]
pub(crate) fn await_handler(child: &mut Child) {
    const SIGINT_BIT: u64 = 1 << 1;
    let status = format!("/proc/{}/status", child.id());
    loop {
        let text = std::fs::read_to_string(&status).expect("a child that was not waited for has a status");
        let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        if caught.is_some_and(|mask| mask & SIGINT_BIT != 0) {
            return;
        }
        if let Some(status) = child.try_wait().expect("it can be waited for") {
            panic!("the program ended before it handled Ctrl-C: {status}");
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Presses Ctrl-C.
#[cfg(target_os = "linux")]
pub(crate) fn interrupt(child: &Child) {
    let sent = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(sent.expect("kill can be run").success());
}

/// Waits for the end of a program that should end soon, and ends it where it does not.
#[cfg(target_os = "linux")]
pub(crate) fn end_of(mut child: Child) -> Outcome {
    // Far beyond what a starved machine needs, and far below what the work would take if it continued.
    const PATIENCE: Duration = Duration::from_mins(2);
    let began = std::time::Instant::now();
    while child.try_wait().expect("it can be waited for").is_none() {
        if began.elapsed() > PATIENCE {
            child.kill().expect("it can be ended");
            panic!("the program went on after Ctrl-C");
        }
        thread::sleep(Duration::from_millis(20));
    }
    Outcome::of(&child.wait_with_output().expect("it has ended"))
}

/// Puts the built-in model into a folder of Ollama's, as `ollama pull` leaves one of its own models.
pub(crate) fn put_ollama_model(root: &Path, name: &str, tag: &str) {
    let (digest, size) = ("0123456789abcdef".repeat(4), DEMO_GGUF.len());
    let tags = root.join("manifests/registry.ollama.ai/library").join(name);
    for folder in [&root.join("blobs"), &tags] {
        std::fs::create_dir_all(folder).expect("a folder");
    }
    std::fs::write(root.join(format!("blobs/sha256-{digest}")), DEMO_GGUF).expect("a file");
    let kind = "application/vnd.ollama.image.model";
    let layer = format!(r#"{{"mediaType":"{kind}","digest":"sha256:{digest}","size":{size}}}"#);
    // The configuration is another layer.
    let (config_digest, about) = ("0".repeat(64), r#"{"model_format":"gguf","file_type":"Q8_0"}"#);
    std::fs::write(root.join(format!("blobs/sha256-{config_digest}")), about).expect("a file");
    let config = format!(r#"{{"digest":"sha256:{config_digest}","size":{}}}"#, about.len());
    let manifest = format!(r#"{{"config":{config},"layers":[{layer}]}}"#);
    std::fs::write(tags.join(tag), manifest).expect("a file");
}

/// A file's path as an argument.
pub(crate) fn arg(path: &Path) -> &str {
    path.to_str().expect("test paths are UTF-8")
}

/// The model that is built in, as bytes.
pub(crate) const DEMO_GGUF: &[u8] = include_bytes!("../../../tokenmill/assets/tokenmill-demo-Q8_0.gguf");

/// The names of a folder's files, sorted.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
        .collect();
    names.sort();
    names
}

/// Writes a model as two parts, of which the first has all keys and the first three tensors.
pub(crate) fn split_in_two(file: &GgufFile, folder: &Path, stem: &str) -> [PathBuf; 2] {
    let tensors: Vec<_> = file.tensors().collect();
    let (first, second) = tensors.split_at(3);
    [(0_u16, first), (1, second)].map(|(no, own)| {
        let path = folder.join(format!("{stem}-{:05}-of-00002.gguf", no + 1));
        let mut metadata = Metadata::new();
        for (key, value) in file.metadata().iter().filter(|_| no == 0) {
            metadata.insert(key, value.clone()).expect("a new key");
        }
        let n_tensors = tensors.len() as i32;
        for (key, value) in [
            ("split.no", Value::from(no)),
            ("split.count", 2_u16.into()),
            ("split.tensors.count", n_tensors.into()),
        ] {
            metadata.insert(key, value).expect("a new key");
        }
        let mut writer = GgufWriter::with_metadata(metadata);
        for info in own {
            let dims: Vec<u64> = info.dims.iter().map(|&dim| dim as u64).collect();
            writer.add_tensor(&info.name, info.ty, &dims).expect("a tensor");
        }
        let output = std::fs::File::create(&path).expect("a file");
        let mut out = writer.write_header(output).expect("a header");
        for info in own {
            let mut bytes = vec![0; info.n_bytes];
            let view = file.tensor(&info.name).expect("the file lists it");
            view.bytes.read_into(0, &mut bytes).expect("its bytes");
            out.write(&bytes).expect("room");
        }
        out.finish().expect("all tensors");
        path
    })
}
