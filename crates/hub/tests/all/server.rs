//! [`FakeHub`]: a hub on loopback, with a host for large files next to it, and faults on demand.
//!
//! It speaks the parts of the protocol that the crate uses: the list of a repository, heads with `X-Linked-*`, redirects, ranges.

use std::{
    collections::{BTreeMap, HashSet},
    fmt::Write as _,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use sha1::Sha1;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use tokenmill_hub::{HubSettings, HubToken};

/// The commit of everything here.
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// The repository of everything here.
pub(crate) const NAME: &str = "org/model-GGUF";
/// The model's configuration in Ollama's registry.
pub(crate) const CONFIG: &[u8] = br#"{"file_type":"Q4_0"}"#;
/// Files of this size or more are large: they lie on the other host and have a SHA-256.
const LARGE_BYTES: usize = 1000;

/// A request that arrived.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
    /// Whether it arrived at the host for large files.
    pub(crate) is_far: bool,
}

impl Request {
    /// Whether bytes of a large file are asked for.
    pub(crate) fn is_for_bytes(&self) -> bool {
        self.is_far && self.method == "GET"
    }
}

/// A fault that the server shows instead of its work.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// Announces all bytes, sends so many, and ends the connection.
    Cut(usize),
    /// Answers with this status and these headers.
    Status(u16, &'static str),
    /// Gives the whole file where a part is asked for.
    WholeInstead,
    /// Says that the file has so many bytes more.
    LongerBy(u64),
    /// Gives the bytes of another part.
    OtherPart,
    /// Sends other bytes of the same number.
    OtherBytes,
    /// Sends no bytes for so long.
    Silent(Duration),
    /// Sends something that is not HTTP.
    Noise,
    /// From here on the file has these bytes.
    Replace(&'static str, Vec<u8>),
    /// Redirects to this address.
    Redirect(&'static str),
}

type Script = Box<dyn FnMut(&Request) -> Option<Fault> + Send>;

struct State {
    files: BTreeMap<String, Vec<u8>>,
    script: Script,
    requests: Vec<Request>,
    far_url: String,
    token: Option<String>,
    lists_hashes: bool,
}

/// A hub on loopback.
pub(crate) struct FakeHub {
    state: Arc<Mutex<State>>,
    url: String,
    pub(crate) cache: TempDir,
}

impl FakeHub {
    pub(crate) fn with(files: &[(&str, Vec<u8>)]) -> Self {
        let state = Arc::new(Mutex::new(State {
            files: files
                .iter()
                .map(|(path, bytes)| ((*path).to_owned(), bytes.clone()))
                .collect(),
            script: Box::new(|_| None),
            requests: Vec::new(),
            far_url: String::new(),
            token: None,
            lists_hashes: true,
        }));
        let far_url = listen(&state, true);
        state.lock().unwrap().far_url = far_url;
        let url = listen(&state, false);
        Self {
            state,
            url,
            cache: tempfile::tempdir().unwrap(),
        }
    }

    /// Settings that find it, and waste no time.
    pub(crate) fn settings(&self) -> HubSettings {
        let mut settings = HubSettings::with_cache(self.cache.path());
        settings.endpoint.clone_from(&self.url);
        settings.ollama_registry.clone_from(&self.url);
        settings.part_bytes = 64 << 10;
        settings.n_connections = 4;
        settings.retry_pause = Duration::from_millis(1);
        settings.patience = Duration::from_secs(20);
        settings.token = self
            .state
            .lock()
            .unwrap()
            .token
            .as_deref()
            .and_then(HubToken::new);
        settings
    }

    /// Asks `script` before each answer.
    pub(crate) fn on(&self, script: impl FnMut(&Request) -> Option<Fault> + Send + 'static) {
        self.state.lock().unwrap().script = Box::new(script);
    }

    /// Does this to the first so many requests for bytes of large files.
    pub(crate) fn at_first_bytes(&self, n_requests: usize, fault: Fault) {
        let mut n_left = n_requests;
        self.on(move |request| {
            let is_meant = request.is_for_bytes() && n_left > 0;
            n_left -= usize::from(is_meant);
            is_meant.then(|| fault.clone())
        });
    }

    /// Asks for this token.
    pub(crate) fn needs_token(&self, token: &str) {
        self.state.lock().unwrap().token = Some(token.to_owned());
    }

    /// Leaves hashes and sizes out of the list, as some mirrors do.
    pub(crate) fn lists_names_only(&self) {
        self.state.lock().unwrap().lists_hashes = false;
    }

    /// The requests that arrived.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.state.lock().unwrap().requests.clone()
    }

    /// Names of the files in the folder of blobs.
    pub(crate) fn blobs(&self) -> HashSet<String> {
        let folder = self.cache.path().join("models--org--model-GGUF/blobs");
        let entries = std::fs::read_dir(folder)
            .into_iter()
            .flatten()
            .map(Result::unwrap);
        entries
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect()
    }

    /// Whether any program that looks into the cache would find a file.
    pub(crate) fn shows_nothing(&self) -> bool {
        let snapshots = self.cache.path().join("models--org--model-GGUF/snapshots");
        !snapshots.exists()
            && self
                .blobs()
                .iter()
                .all(|name| name.ends_with(".tokenmill.incomplete"))
    }
}

/// Bytes that look random and are the same every time.
pub(crate) fn noise(n_bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n_bytes)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        })
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// The etag of a file.
pub(crate) fn etag(bytes: &[u8]) -> String {
    if bytes.len() >= LARGE_BYTES {
        return hex(&Sha256::digest(bytes));
    }
    hex(&Sha1::new()
        .chain_update(format!("blob {}\0", bytes.len()))
        .chain_update(bytes)
        .finalize())
}

fn listen(state: &Arc<Mutex<State>>, is_far: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let state = Arc::clone(state);
    thread::spawn(move || {
        for stream in listener.incoming().filter_map(Result::ok) {
            let state = Arc::clone(&state);
            thread::spawn(move || serve(&state, &stream, is_far));
        }
    });
    url
}

fn serve(state: &Mutex<State>, stream: &TcpStream, is_far: bool) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let mut words = line.split(' ').map(str::to_owned);
        let (method, path) = (words.next().unwrap(), words.next().unwrap());
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            match line.trim().split_once(':') {
                Some((name, value)) => headers.insert(name.to_lowercase(), value.trim().to_owned()),
                None => break,
            };
        }
        let mut state = state.lock().unwrap();
        let request = Request {
            method,
            path,
            headers,
            is_far,
        };
        state.requests.push(request.clone());
        let fault = (state.script)(&request);
        if let Some(Fault::Replace(path, bytes)) = &fault {
            state.files.insert((*path).to_owned(), bytes.clone());
        }
        let answer = answer(&state, &request, fault.as_ref());
        drop(state);
        if let Some(Fault::Silent(pause)) = fault {
            thread::sleep(pause);
        }
        let mut stream = stream;
        let is_kept =
            stream.write_all(&answer).is_ok() && !matches!(fault, Some(Fault::Cut(_) | Fault::Noise));
        if !is_kept {
            // All that was sent arrives before the end does.
            let _closed = stream.shutdown(std::net::Shutdown::Write);
            let _rest = reader.read_to_end(&mut Vec::new());
            return;
        }
    }
}

fn head(status: u16, headers: &str, n_bytes: u64) -> Vec<u8> {
    format!("HTTP/1.1 {status} Status\r\n{headers}Content-Length: {n_bytes}\r\n\r\n").into_bytes()
}

fn answer(state: &State, request: &Request, fault: Option<&Fault>) -> Vec<u8> {
    match fault {
        Some(Fault::Status(status, headers)) => return head(*status, headers, 0),
        Some(Fault::Redirect(target)) => return head(302, &format!("Location: {target}\r\n"), 0),
        Some(Fault::Noise) => return b"\x16\x03\x01 this is no answer\r\n\r\n".to_vec(),
        _ => {}
    }
    let authorization = request.headers.get("authorization");
    if request.is_far {
        assert_eq!(authorization, None, "the token went to another host: {request:?}");
    } else if let Some(token) = &state.token
        && authorization != Some(&format!("Bearer {token}"))
    {
        return head(401, "", 0);
    }
    if request.path.starts_with("/api/models?") {
        let text = r#"[{"id":"org/model-GGUF"},{"id":"org/other"},{"id":"org/modes-GGUF"}]"#;
        return [head(200, "", text.len() as u64), text.as_bytes().to_vec()].concat();
    }
    if let Some(rest) = request.path.strip_prefix("/api/models/") {
        let Some(revision) = rest.strip_prefix("org/model-GGUF/revision/") else {
            return head(404, "X-Error-Code: RepoNotFound\r\n", 0);
        };
        if !["main", "v1", COMMIT].contains(&revision.split('?').next().unwrap()) {
            return head(404, "X-Error-Code: RevisionNotFound\r\n", 0);
        }
        let text = list(state);
        let n_sent = if let Some(Fault::Cut(n_bytes)) = fault {
            *n_bytes
        } else {
            text.len()
        };
        return [
            head(200, "", text.len() as u64),
            text.as_bytes()[..n_sent].to_vec(),
        ]
        .concat();
    }
    if let Some(rest) = request.path.strip_prefix("/v2/library/") {
        return registry(
            state,
            rest.strip_prefix("model/").unwrap_or_default(),
            request,
            fault,
        );
    }
    let path = if request.is_far {
        request
            .path
            .strip_prefix("/far/")
            .unwrap()
            .split('?')
            .next()
            .unwrap()
    } else {
        request
            .path
            .strip_prefix(&format!("/org/model-GGUF/resolve/{COMMIT}/"))
            .unwrap_or_default()
    };
    let Some(bytes) = state.files.get(path) else {
        return head(404, "X-Error-Code: EntryNotFound\r\n", 0);
    };
    if !request.is_far && bytes.len() >= LARGE_BYTES {
        let headers = format!(
            "X-Repo-Commit: {COMMIT}\r\nX-Linked-Etag: \"{}\"\r\nX-Linked-Size: {}\r\nLocation: {}/far/{path}?sig=x\r\n",
            etag(bytes),
            bytes.len(),
            state.far_url
        );
        return head(302, &headers, 0);
    }
    file(bytes, request, fault)
}

/// The answer of Ollama's registry: a manifest of all files, or a redirect to a layer.
fn registry(state: &State, rest: &str, request: &Request, fault: Option<&Fault>) -> Vec<u8> {
    if rest == "manifests/tiny" {
        let layer = |path: &str, bytes: &[u8]| {
            let (kind, digest, size) = (
                path.split('.').next_back(),
                hex(&Sha256::digest(bytes)),
                bytes.len(),
            );
            let kind = kind.unwrap();
            format!(
                r#"{{"mediaType":"application/vnd.ollama.image.{kind}","digest":"sha256:{digest}","size":{size}}}"#
            )
        };
        let layers: Vec<String> = state
            .files
            .iter()
            .map(|(path, bytes)| layer(path, bytes))
            .collect();
        let text = format!(
            r#"{{"config":{},"layers":[{}]}}"#,
            layer("x.config", CONFIG),
            layers.join(",")
        );
        return [head(200, "", text.len() as u64), text.into_bytes()].concat();
    }
    let Some(digest) = rest.strip_prefix("blobs/sha256:") else {
        return head(404, "", 0);
    };
    let found = (state.files.iter()).find(|(_, bytes)| hex(&Sha256::digest(bytes)) == digest);
    match found {
        Some((path, bytes)) if bytes.len() >= LARGE_BYTES => head(
            307,
            &format!("Location: {}/far/{path}?sig=x\r\n", state.far_url),
            0,
        ),
        Some((_, bytes)) => file(bytes, request, fault),
        None if digest == hex(&Sha256::digest(CONFIG)) => file(CONFIG, request, fault),
        None => head(404, "", 0),
    }
}

/// The answer with a file's bytes, or with some of them.
fn file(bytes: &[u8], request: &Request, fault: Option<&Fault>) -> Vec<u8> {
    // The host for large files has etags of its own.
    let etag = if request.is_far {
        "\"far-1\"".to_owned()
    } else {
        format!("\"{}\"", etag(bytes))
    };
    let size = bytes.len() as u64
        + if let Some(Fault::LongerBy(n_bytes)) = fault {
            *n_bytes
        } else {
            0
        };
    let range = request
        .headers
        .get("range")
        .filter(|_| !matches!(fault, Some(Fault::WholeInstead)));
    let range = range.map(|range| {
        let (first, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        (first.parse::<usize>().unwrap(), last.parse::<usize>().unwrap())
    });
    let (mut answer, mut body) = match range {
        Some((first, last)) => {
            let last = last.min(bytes.len() - 1);
            let told = if matches!(fault, Some(Fault::OtherPart)) {
                first + 7
            } else {
                first
            };
            let headers = format!("ETag: {etag}\r\nContent-Range: bytes {told}-{last}/{size}\r\n");
            let body = bytes[first..=last].to_vec();
            (head(206, &headers, body.len() as u64), body)
        }
        None => (
            head(200, &format!("ETag: {etag}\r\nX-Repo-Commit: {COMMIT}\r\n"), size),
            bytes.to_vec(),
        ),
    };
    match fault {
        Some(Fault::Cut(n_bytes)) => body.truncate(*n_bytes),
        Some(Fault::OtherBytes) => body.iter_mut().for_each(|byte| *byte ^= 1),
        _ => {}
    }
    if request.method != "HEAD" {
        answer.extend(body);
    }
    answer
}

fn list(state: &State) -> String {
    let entries: Vec<String> = (state.files.iter())
        .map(|(path, bytes)| {
            let (n_bytes, etag) = (bytes.len(), etag(bytes));
            if !state.lists_hashes {
                format!(r#"{{"rfilename":"{path}"}}"#)
            } else if n_bytes >= LARGE_BYTES {
                format!(r#"{{"rfilename":"{path}","size":{n_bytes},"lfs":{{"sha256":"{etag}","size":{n_bytes}}}}}"#)
            } else {
                format!(r#"{{"rfilename":"{path}","size":{n_bytes},"blobId":"{etag}"}}"#)
            }
        })
        .collect();
    format!(
        r#"{{"id":"org/model-GGUF","sha":"{COMMIT}","siblings":[{}]}}"#,
        entries.join(",")
    )
}
