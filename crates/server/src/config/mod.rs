//! [`ServerConfig`]: limits, keys and addresses.
//!
//! Plain data that the command line fills in. Invariant: the defaults are safe on a machine with other users: the
//! loopback address, no cross-origin access, every wait bounded.

pub(crate) mod keys;
pub(crate) mod request_defaults;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use crate::{
    config::{keys::ApiKeys, request_defaults::RequestDefaults},
    kv_events::KvEventsConfig,
};

/// How a server listens, whom it answers, and its limits.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "options that are independent of each other"
)]
pub struct ServerConfig {
    /// Where it listens.
    pub listen: Listen,
    /// Certificate and key files in PEM; `None` serves plain HTTP.
    pub tls: Option<TlsFiles>,
    /// Keys that clients must send; without any, the server is open to all who reach it.
    pub api_keys: ApiKeys,
    /// Origins whose web pages may call the API; `*` allows all, and `localhost` every port of this machine. Empty by default.
    pub cors_origins: Vec<String>,
    /// Names that clients reach the server by, besides addresses and `localhost`; `*` for all. Requests to other names
    /// are refused on loopback addresses, and everywhere once this is not empty.
    pub allowed_hosts: Vec<String>,
    /// Largest request body.
    pub max_body_bytes: usize,
    /// Longest wait for a request's headers, and so also how long a connection may be idle. Longer than what load
    /// balancers keep connections for, or they would now and then send a request into one that closes.
    pub header_timeout: Duration,
    /// Longest wait for a request's body.
    pub body_timeout: Duration,
    /// Longest time for which a client may read nothing.
    pub write_timeout: Duration,
    /// Interval of keep-alive events in an idle stream.
    pub keep_alive: Duration,
    /// Longest time from arrival to the end of an answer; `None` is unbounded.
    pub request_timeout: Option<Duration>,
    /// Longest wait in the queue; `None` is unbounded.
    pub queue_timeout: Option<Duration>,
    /// Silence of the engine after which `/livez` reports it.
    pub heartbeat_timeout: Duration,
    /// Time for running answers after the first SIGTERM.
    pub drain_timeout: Duration,
    /// Whether a server with one model refuses unknown model names. By default it accepts any name, as llama.cpp's does.
    pub strict_model_names: bool,
    /// Tags that describe a server's only model in lists, and select nothing.
    pub model_tags: Vec<String>,
    /// Whether the web page is served.
    pub has_page: bool,
    /// Whether `GET /slots` reports the activity of each slot.
    pub tells_slots: bool,
    /// Defaults for fields that a request does not set.
    pub defaults: RequestDefaults,
    /// Whether clients may say which requests go first.
    pub obeys_priority: bool,
    /// Most samples of a prompt.
    pub max_n: u32,
    /// Most prompts or inputs of a request.
    pub max_prompts: usize,
    /// Most inputs of an embeddings request, as in OpenAI's API.
    pub max_inputs: usize,
    /// Connections held open at once.
    pub max_connections: usize,
    /// The folder whose adapters clients may load; without one they may not.
    pub adapter_folder: Option<PathBuf>,
    /// The folder whose files the URLs of images may name (`file://…`); without one no file is read.
    pub media_folder: Option<PathBuf>,
    /// Most bytes in base64 that such files of a request have together; `None` takes the most of a body.
    pub max_media_bytes: Option<usize>,
    /// Where the events of the KV cache are published, if they are.
    pub kv_events: Option<KvEventsConfig>,
    /// Where conversations are kept, if they are.
    pub sessions: Option<SessionFolder>,
}

/// A folder of sessions. The server is the only one that writes to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionFolder {
    /// The folder, which is there.
    pub path: PathBuf,
    /// Bytes that all files in it may have.
    pub max_bytes: u64,
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A UNIX socket.
    #[cfg(unix)]
    Unix(PathBuf),
}

/// Files of a TLS identity, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate chain.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 8080))),
            tls: None,
            api_keys: ApiKeys::default(),
            cors_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            max_body_bytes: 8 << 20,
            header_timeout: Duration::from_secs(75),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_mins(1),
            keep_alive: Duration::from_secs(10),
            request_timeout: None,
            queue_timeout: None,
            heartbeat_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(30),
            strict_model_names: false,
            model_tags: Vec::new(),
            has_page: true,
            tells_slots: true,
            defaults: RequestDefaults::default(),
            obeys_priority: false,
            max_n: 128,
            max_prompts: 256,
            max_inputs: 2048,
            max_connections: 4096,
            adapter_folder: None,
            media_folder: None,
            max_media_bytes: None,
            kv_events: None,
            sessions: None,
        }
    }
}
