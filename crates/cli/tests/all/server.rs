//! [`Server`]: `serve`, started for a test and queried over HTTP.
//!
//! Tests of several files start one. Invariant: it listens only on loopback and on a port of its own, and its
//! log is read, so that it never waits for its reader.

use std::{
    ffi::OsStr,
    fs,
    io::{self, BufRead, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::{Child, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::support::{command, end_of, interrupt};

/// A server that listens.
pub(crate) struct Server {
    /// Until it is ended.
    child: Option<Child>,
    address: String,
    /// API key of the requests.
    key: Option<&'static str>,
    pub(crate) log: Arc<Mutex<Vec<String>>>,
}

/// A server that a test leaves does not outlive it.
impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Server {
    /// The process, whose end is then the caller's.
    pub(crate) fn take(&mut self) -> Child {
        self.child.take().expect("it was not taken")
    }

    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_with(Path::new("no-such-store"), args)
    }

    /// With a folder of Ollama's.
    pub(crate) fn start_with(ollama: &Path, args: &[&str]) -> Self {
        Self::start_in(&[("OLLAMA_MODELS", ollama)], args)
    }

    /// With variables that name folders.
    pub(crate) fn start_in(variables: &[(&str, &Path)], args: &[&str]) -> Self {
        let variables: Vec<_> = variables
            .iter()
            .map(|&(name, path)| (name, path.as_os_str()))
            .collect();
        Self::start_with_variables(&variables, args)
    }

    /// With variables.
    pub(crate) fn start_with_variables(variables: &[(&str, &OsStr)], args: &[&str]) -> Self {
        let mut child = command([&["serve"][..], args, &["--port", "0", "-t", "1"]].concat())
            .envs(variables.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut log = BufReader::new(child.stderr.take().expect("piped")).lines();
        // Warnings may precede the address.
        let mut early = Vec::new();
        let address = loop {
            let line = log.next().expect("the server goes on").expect("its log is text");
            if let Some((_, rest)) = line.split_once("address=\"http://") {
                break rest.split('"').next().expect("an address").to_owned();
            }
            early.push(line);
        };
        let kept = Arc::new(Mutex::new(early));
        let rest = Arc::clone(&kept);
        // Its pipe must not fill up.
        std::thread::spawn(move || {
            for line in log.map_while(Result::ok) {
                rest.lock().expect("no panic").push(line);
            }
        });
        Self {
            child: Some(child),
            address,
            key: None,
            log: kept,
        }
    }

    /// Sends a key with all requests.
    pub(crate) fn with_key(mut self, key: &'static str) -> Self {
        self.key = Some(key);
        self
    }

    /// Returns the process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.as_ref().expect("it was not taken").id()
    }

    /// Returns whether a warning contains a text.
    pub(crate) fn has_warned(&self, text: &str) -> bool {
        let log = self.log.lock().expect("no panic");
        log.iter()
            .any(|line| line.contains("WARN") && line.contains(text))
    }

    /// Sends a request; the status and the body of the answer.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let (status, body) = self.ask_text(method, path, body);
        (status, serde_json::from_str(&body).unwrap_or(Value::Null))
    }

    pub(crate) fn ask_text(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let key = self.key.map(|key| format!("x-api-key: {key}\r\n"));
        let answer = Self::ask_with(&self.address, method, path, &key.unwrap_or_default(), body);
        answer.expect("it answers in text")
    }

    /// Asks a server that may be gone.
    pub(crate) fn ask_at(address: &str, method: &str, path: &str, body: &str) -> io::Result<(u16, String)> {
        Self::ask_with(address, method, path, "", body)
    }

    /// Sends a request with further header lines.
    fn ask_with(
        address: &str,
        method: &str,
        path: &str,
        headers: &str,
        body: &str,
    ) -> io::Result<(u16, String)> {
        let mut stream = TcpStream::connect(address)?;
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
             {headers}content-length: {length}\r\n\r\n{body}"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let cut = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(cut)?;
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        Ok((status.ok_or_else(cut)?, body.to_owned()))
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn complete(&self, model: &str) -> (u16, Value) {
        let body = json!({ "model": model, "prompt": "Once", "max_tokens": 3, "temperature": 0 });
        self.ask("POST", "/v1/completions", &body.to_string())
    }

    /// The models with what each is doing.
    pub(crate) fn states(&self) -> Vec<(String, String)> {
        let (_, list) = self.ask("GET", "/v1/models", "");
        let entries = list["data"].as_array().expect("a list");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        entries
            .iter()
            .map(|entry| (text(&entry["id"]), text(&entry["status"]["value"])))
            .collect()
    }

    pub(crate) fn wait_for(&self, model: &str, value: &str) {
        let began = Instant::now();
        let wanted = (model.to_owned(), value.to_owned());
        while !self.states().contains(&wanted) {
            assert!(
                began.elapsed() < Duration::from_mins(1),
                "{model} does not become {value}: {:?}",
                self.states()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn end(mut self) {
        let child = self.take();
        interrupt(&child);
        assert_eq!(end_of(child).code, 0);
    }
}

/// Writes a file below a folder.
pub(crate) fn put(folder: &Path, name: &str, bytes: &[u8]) {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().expect("it is in a folder")).expect("a folder");
    fs::write(path, bytes).expect("a file");
}
