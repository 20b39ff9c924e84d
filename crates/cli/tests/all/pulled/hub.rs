//! [`Hub`]: a server on loopback with one model, in the place of the hub that models are downloaded from.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use serde_json::json;
use tempfile::TempDir;

use crate::support::{DEMO_GGUF, Outcome, command};

pub(super) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
pub(super) const NAME: &str = "org/demo-GGUF";
pub(super) const FILE: &str = "demo-Q8_0.gguf";
pub(super) const LAYER_FILE: &str = "mtp-demo-Q8_0.gguf";

/// A refusal: the status and the other lines of its head.
pub(super) type Refusal = (u16, &'static str);

/// A hub with one model, and perhaps its MTP layer. It refuses what it is told to: lists, or bytes.
pub(super) struct Hub {
    pub(super) url: String,
    pub(super) cache: TempDir,
    /// The paths that were asked for.
    pub(super) asked: Arc<Mutex<Vec<String>>>,
}

impl Hub {
    pub(super) fn start(of_list: Option<Refusal>, of_bytes: Option<Refusal>) -> Self {
        Self::start_with(None, of_list, of_bytes)
    }

    pub(super) fn start_with(
        layer: Option<Vec<u8>>,
        of_list: Option<Refusal>,
        of_bytes: Option<Refusal>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&asked);
        thread::spawn(move || {
            for stream in listener.incoming().filter_map(Result::ok) {
                let Some(path) = path_asked(&stream) else { continue };
                let answer = answer(&path, layer.as_deref(), of_list, of_bytes);
                kept.lock().expect("no panic").push(path);
                // A client that went away is not an event.
                let _unread = (&stream).write_all(&answer);
            }
        });
        Self {
            url,
            cache: tempfile::tempdir().expect("a folder"),
            asked,
        }
    }

    pub(super) fn pull(&self, token: &str) -> Outcome {
        let mut pull = command(["pull", NAME]);
        pull.env("HF_HUB_OFFLINE", "0")
            .env("HF_HUB_CACHE", self.cache.path())
            .env("HF_HOME", self.cache.path())
            .env("HF_ENDPOINT", &self.url)
            .env("HF_TOKEN", token);
        Outcome::of(&pull.output().expect("the program starts"))
    }

    pub(super) fn asked_for_bytes(&self) -> bool {
        let asked = self.asked.lock().expect("no panic");
        asked.iter().any(|path| path.contains("/resolve/"))
    }
}

/// The path of a request, whose head is read to its end.
pub(super) fn path_asked(stream: &TcpStream) -> Option<String> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    lines.find(String::is_empty)?;
    Some(path)
}

pub(super) fn answer(
    path: &str,
    layer: Option<&[u8]>,
    of_list: Option<Refusal>,
    of_bytes: Option<Refusal>,
) -> Vec<u8> {
    let files = [(FILE, DEMO_GGUF)]
        .into_iter()
        .chain(layer.map(|bytes| (LAYER_FILE, bytes)));
    // Their etags are not hashes: such a file is checked by its size.
    let siblings =
        files.map(|(name, bytes)| json!({ "rfilename": name, "size": bytes.len(), "blobId": name }));
    let list = json!({ "id": NAME, "sha": COMMIT, "siblings": siblings.collect::<Vec<_>>() });
    let near = json!([{ "id": "org/demos-GGUF" }]);
    let whole = |bytes: &[u8]| (200, "", bytes.to_vec());
    let refused = |(status, head): Refusal| (status, head, Vec::new());
    let (status, head, body) = if path.starts_with("/api/models?") {
        whole(near.to_string().as_bytes())
    } else if path.starts_with("/api/models/") {
        of_list.map_or_else(|| whole(list.to_string().as_bytes()), refused)
    } else if path == format!("/{NAME}/resolve/{COMMIT}/{FILE}") {
        of_bytes.map_or_else(|| whole(DEMO_GGUF), refused)
    } else if let (Some(layer), true) = (layer, path.ends_with(LAYER_FILE)) {
        whole(layer)
    } else {
        (404, "", Vec::new())
    };
    let length = body.len();
    let etag = path.rsplit('/').next().unwrap_or_default();
    let head = format!(
        "HTTP/1.1 {status} Status\r\n{head}X-Repo-Commit: {COMMIT}\r\nETag: \"{etag}\"\r\nConnection: close\r\n\
         Content-Length: {length}\r\n\r\n"
    );
    [head.into_bytes(), body].concat()
}
