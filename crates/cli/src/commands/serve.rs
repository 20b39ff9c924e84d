//! `serve`: answers OpenAI's, Anthropic's, Ollama's and llama.cpp's APIs over HTTP until it is stopped.
//!
//! This file has the options and the log; the running server is in `running`, and everything on the wire in
//! the server crate. Invariant: errors in the options and an address that is taken are
//! reported before a model is loaded.

use std::{
    env,
    fmt::Display,
    fs,
    io::{self, IsTerminal},
    net::{IpAddr, SocketAddr, ToSocketAddrs as _},
    path::{Path, PathBuf},
    process,
    sync::Arc,
    time::Duration,
};

use clap::ValueEnum;
use tokenmill::{
    Error,
    sessions::{FolderLock, PrefixFolder, remove_unfinished_sessions},
    text::without_mark,
};
#[cfg(feature = "otel")]
use tokenmill_server::otel::Traces;
use tokenmill_server::{
    ApiKeys, Listen, Listening, Models, ServerConfig, SessionFolder, TlsFiles, kv_events::KvEventsConfig,
};
use tokio::runtime::Handle;
#[cfg(not(feature = "otel"))]
use tracing_subscriber::layer::Identity;
use tracing_subscriber::{Layer, Registry, layer::SubscriberExt as _, util::SubscriberInitExt as _};

use crate::{
    failure::Failure,
    help::ADVANCED,
    media::{MediaArgs, existing_folder},
    numbers::{ByteSize, duration},
};

mod allowed_pages;
mod budget;
mod found_model;
mod model_flags;
mod models;
mod models_file;
mod models_folder;
mod pulled_models;
mod request_defaults;
mod running;
mod seats;
mod terminal_log;

pub(crate) use self::seats::{Seats, load_app};
use self::{
    allowed_pages::{host_name, origin},
    model_flags::GivenFlags,
    models::SeveralArgs,
    request_defaults::{DefaultArgs, note_idle},
    running::{listen, serve},
    terminal_log::TerminalLines,
};

/// Holds a key that clients must send, as `--api-key` does.
const KEY_VARIABLE: &str = "TOKENMILL_API_KEY";

/// File of --session-dir that a process locks. No session name begins with a dot.
const SESSIONS_LOCK: &str = ".lock";

/// Time limit for writing unused prefixes to --prefix-dir after the last answer.
const KEEP_TIME: Duration = Duration::from_secs(15);

/// Serve a model over HTTP.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tokenmill serve demo\n  \
    tokenmill serve model.gguf --port 8000 --api-key-file keys.txt\n  \
    tokenmill serve chat.gguf --embedding-model embed.gguf\n  \
    tokenmill serve --models-dir models --memory-budget 16GiB --idle-unload 10m\n  \
    curl http://127.0.0.1:8080/v1/chat/completions -d '{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}'\n\n\
    OpenAI's API is under /v1, Anthropic's at /v1/messages, Ollama's under /api, llama.cpp's at /completion and /infill;\n\
    docs/serving.md lists all paths.\n\
    The web page is at /, the figures are at /metrics. TOKENMILL_API_KEY holds a key as --api-key does; RUST_LOG sets\n\
    what is logged.")]
#[expect(clippy::struct_excessive_bools, reason = "options of a command")]
pub(crate) struct Args {
    /// A GGUF file, a folder with one, a Hugging Face folder, OWNER/REPOSITORY[:TYPE] of the Hub, NAME:TAG of Ollama, or `demo`. Several are
    /// loaded and unloaded as requests ask for them
    #[arg(value_name = "MODEL")]
    model: Vec<PathBuf>,
    /// Address to listen on, or a name such as localhost; a name with several addresses means the first IPv4 one
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    host: String,
    /// Port to listen on; 0 lets the system choose
    #[arg(long, default_value_t = 8080, value_name = "N")]
    port: u16,
    /// Listen on a UNIX socket instead
    #[cfg(unix)]
    #[arg(long, value_name = "PATH", conflicts_with_all = ["host", "port", "tls_cert"])]
    unix_socket: Option<PathBuf>,
    /// A key that clients must send; may be repeated
    #[arg(long, value_name = "KEY")]
    api_key: Vec<String>,
    /// A file with one key a line
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Let web pages of this origin call the server; `localhost` means every port of this machine, `*` any origin; may be repeated
    #[arg(
        long,
        visible_alias = "cors-origins",
        value_delimiter = ',',
        value_name = "ORIGIN",
        value_parser = origin
    )]
    cors_origin: Vec<String>,
    /// Accept requests to this host name, or to any with `*`; may be repeated. On addresses that only this machine
    /// reaches, the server refuses other names, except localhost and numeric addresses
    #[arg(long, value_name = "NAME", value_parser = host_name)]
    allow_host: Vec<String>,
    /// Certificate chain in PEM, to serve HTTPS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Serve only the API, without the web page
    #[arg(long, alias = "no-webui")]
    no_ui: bool,
    /// Do not report at /slots what each slot is doing
    #[arg(long, help_heading = ADVANCED)]
    no_slots: bool,
    /// Model name for clients; may be repeated, responses carry the first [default: the file's name] [short: -a]
    #[arg(long, alias = "alias", value_delimiter = ',', value_name = "NAME", value_parser = model_name)]
    served_model_name: Vec<String>,
    /// Tags of the model, separated by commas, that lists of models show; they select nothing
    #[arg(long, help_heading = ADVANCED, value_delimiter = ',', value_name = "TAGS")]
    tags: Vec<String>,
    /// Refuse requests with an unknown model name [default: only with several models or with adapters]
    #[arg(long)]
    strict_model_names: bool,
    /// Publish additions to the prefix cache and removals from it over ZeroMQ, for routers that use them. JSON with vLLM's keys
    /// (`{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557", "topic": "…"}`); docs/serving.md has them all
    #[arg(long, help_heading = ADVANCED, value_name = "JSON", value_parser = kv_events)]
    kv_events_config: Option<KvEvents>,
    #[command(flatten)]
    media: MediaArgs,
    /// Save conversations to this folder when clients send `POST /slots/{id}?action=save`; no other process may write to it
    #[arg(long, visible_alias = "slot-save-path", value_name = "DIR")]
    session_dir: Option<PathBuf>,
    /// Keep the KV cache of prompts in this folder, so that prompts with the same beginning reuse it, also after a restart; no other
    /// process may use the folder
    #[arg(long, help_heading = ADVANCED, value_name = "DIR")]
    prefix_dir: Option<PathBuf>,
    #[command(flatten)]
    several: Box<SeveralArgs>,
    #[command(flatten)]
    model_flags: GivenFlags,
    #[command(flatten)]
    defaults: Box<DefaultArgs>,
    #[command(flatten)]
    limits: Box<Limits>,
    /// Log more, and add the prompt to answers of `/v1/chat/completions`, under `__verbose`
    #[arg(short, long)]
    verbose: bool,
    /// Format of the request log on standard error; `text` writes short lines to a terminal, and lines with all fields to a file
    #[arg(long, value_enum, default_value_t = LogFormat::Text, value_name = "FORMAT")]
    log_format: LogFormat,
    /// Let clients load adapters from this folder, and unload them [default: clients cannot]
    #[arg(long, value_name = "DIR", help_heading = ADVANCED)]
    lora_dir: Option<PathBuf>,
}

/// The limits of the server.
#[derive(clap::Args, Debug, Clone)]
#[command(next_help_heading = "Limits")]
struct Limits {
    /// Largest request body
    #[arg(long, help_heading = ADVANCED, default_value = "8MiB", value_name = "SIZE")]
    max_body_bytes: ByteSize,
    /// Space that the files in --session-dir may take together; a save beyond it gets 507
    #[arg(long, help_heading = ADVANCED, default_value = "32GiB", value_name = "SIZE", requires = "session_dir")]
    session_dir_bytes: ByteSize,
    /// Space that the files in --prefix-dir may take together; the least recently used are removed to make room
    #[arg(long, help_heading = ADVANCED, default_value = "10GiB", value_name = "SIZE", requires = "prefix_dir")]
    prefix_dir_bytes: ByteSize,
    /// Longest time for an answer, as seconds or with a unit: 30, 90s, 5m, 1h [default: unbounded]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    request_timeout: Option<Duration>,
    /// Longest wait in the queue [default: unbounded]
    #[arg(long, help_heading = ADVANCED, value_name = "TIME", value_parser = duration)]
    queue_timeout: Option<Duration>,
    /// Longest time that a client may leave a stream unread before the stream is ended
    #[arg(long, help_heading = ADVANCED, default_value = "60s", value_name = "TIME", value_parser = duration)]
    write_timeout: Duration,
    /// Order of waiting requests: as they came, or by the `priority` that clients give
    #[arg(long, help_heading = ADVANCED, value_enum, default_value_t = SchedulingPolicy::Fcfs, value_name = "POLICY")]
    scheduling_policy: SchedulingPolicy,
    /// How long running answers may continue after the first signal
    #[arg(long, help_heading = ADVANCED, default_value = "30s", value_name = "TIME", value_parser = duration)]
    drain_timeout: Duration,
    /// Silence of the engine after which /livez says that it hangs
    #[arg(long, help_heading = ADVANCED, default_value = "30s", value_name = "TIME", value_parser = duration)]
    heartbeat_timeout: Duration,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum SchedulingPolicy {
    /// First come, first served.
    Fcfs,
    /// Lower `priority` first, then first come.
    Priority,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object a line.
    Json,
}

/// The address that a name or a number means.
///
/// # Errors
/// A name that is not known.
fn resolve(host: &str, port: u16) -> Result<SocketAddr, Failure> {
    let refused = |reason: &dyn Display| {
        let message = format!("`--host {host}` is not an address to listen on: {reason}");
        Failure::usage(message)
    };
    if let Some(apart) = host_apart(host) {
        return Err(refused(&"it takes a host alone").hint(apart));
    }
    let refused = |reason: &dyn Display| {
        refused(reason).hint("127.0.0.1 is for this machine only, 0.0.0.0 for all machines that reach it")
    };
    let mut found = Vec::new();
    // Brackets are how an address of IPv6 stands in a URL.
    let name = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let addresses = (name.unwrap_or(host), port).to_socket_addrs();
    found.extend(addresses.map_err(|error| refused(&error))?);
    let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
    first.copied().ok_or_else(|| refused(&"the name has none"))
}

/// Returns the options for a URL or a host with a port; `None` for a host alone.
fn host_apart(host: &str) -> Option<String> {
    let rest = host.split_once("://").map_or(host, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or_default();
    let (name, port) = match authority.rsplit_once(':') {
        Some((name, port)) if authority.parse::<IpAddr>().is_err() && port.parse::<u16>().is_ok() => {
            (name, Some(port))
        }
        _ => (authority, None),
    };
    if name == host {
        return None;
    }
    let port = port.map_or_else(String::new, |port| format!(" --port {port}"));
    Some(format!("`--host {name}{port}`"))
}

/// Reads a name for a served model.
///
/// # Errors
/// An empty name, most often the value of an unset variable.
fn model_name(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("clients could not ask for it; give a name, or leave the option out".to_owned());
    }
    Ok(text.to_owned())
}

/// A configuration, or the word that nothing is published.
#[derive(Debug, Clone)]
struct KvEvents(Option<KvEventsConfig>);

fn kv_events(text: &str) -> Result<KvEvents, String> {
    let config = KvEventsConfig::from_json(text);
    config.map(KvEvents).map_err(|error| error.to_string())
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::work(format!("cannot start the network threads: {error}")))?;
    #[cfg(feature = "otel")]
    let traces = start_traces(runtime.handle())?;
    #[cfg(feature = "otel")]
    start_log(args.log_format, args.verbose, traces.as_ref().map(Traces::layer));
    #[cfg(not(feature = "otel"))]
    start_log(args.log_format, args.verbose, None::<Identity>);
    let _sessions = args.lock_sessions()?;
    let config = args.server_config()?;
    let (listening, models) = args.models(config, runtime.handle())?;
    let is_watched = args.log_format == LogFormat::Text && io::stderr().is_terminal();
    let result = runtime.block_on(serve(listening, models, is_watched));
    #[cfg(feature = "otel")]
    if let Some(traces) = traces {
        traces.end();
    }
    match result {
        // The rest of the engine may hang, and its destructor would hang too.
        Ok(()) => process::exit(0),
        Err(failure) => {
            runtime.shutdown_background();
            Err(failure)
        }
    }
}

impl Args {
    /// Where the KV cache's events are published, if they are.
    fn kv_events(&self) -> Option<KvEventsConfig> {
        self.kv_events_config.as_ref().and_then(|config| config.0.clone())
    }

    /// Returns the tags of the model, each once and in their order.
    fn model_tags(&self) -> Vec<String> {
        let mut tags: Vec<String> = Vec::new();
        for tag in self.tags.iter().map(|tag| tag.trim()) {
            if !tag.is_empty() && tags.iter().all(|known| known != tag) {
                tags.push(tag.to_owned());
            }
        }
        tags
    }

    /// Where to listen.
    fn listen(&self) -> Result<Listen, Failure> {
        #[cfg(unix)]
        if let Some(path) = &self.unix_socket {
            return Ok(Listen::Unix(path.clone()));
        }
        Ok(Listen::Tcp(resolve(&self.host, self.port)?))
    }

    fn server_config(&self) -> Result<ServerConfig, Failure> {
        let variable = env::var(KEY_VARIABLE).ok();
        // Most often the value of an unset variable: an empty key must not open the server.
        if let Some(name) = [
            ("--api-key", &self.api_key[..]),
            (KEY_VARIABLE, variable.as_slice()),
        ]
        .into_iter()
        .find_map(|(name, keys)| keys.iter().any(|key| key.trim().is_empty()).then_some(name))
        {
            let failure = Failure::usage(format!("`{name}` is empty, which would admit every client"));
            return Err(failure.hint("give a key, or leave it out"));
        }
        let mut api_keys = ApiKeys::new(self.api_key.clone());
        if let Some(path) = &self.api_key_file {
            let text = read(path).map_err(|failure| of_option("--api-key-file", failure))?;
            let keys = ApiKeys::from_lines(&text);
            if keys.is_open() {
                let failure = Failure::input(format!("{} holds no key", path.display()));
                return Err(failure.hint("write one key a line, or leave --api-key-file out"));
            }
            api_keys.extend(keys);
        }
        api_keys.extend(ApiKeys::new(variable));
        let tls = self.tls_cert.clone().zip(self.tls_key.clone());
        let defaults = self.defaults.read(self.verbose)?;
        note_idle(&defaults);
        Ok(ServerConfig {
            listen: self.listen()?,
            tls: tls.map(|(certificate, key)| TlsFiles { certificate, key }),
            api_keys,
            cors_origins: self.cors_origin.clone(),
            allowed_hosts: self.allowed_hosts(),
            write_timeout: self.limits.write_timeout,
            strict_model_names: self.strict_model_names,
            model_tags: self.model_tags(),
            has_page: !self.no_ui,
            tells_slots: !self.no_slots,
            defaults,
            obeys_priority: self.limits.scheduling_policy == SchedulingPolicy::Priority,
            max_body_bytes: usize::try_from(self.limits.max_body_bytes.0).unwrap_or(usize::MAX),
            request_timeout: self.limits.request_timeout,
            queue_timeout: self.limits.queue_timeout,
            heartbeat_timeout: self.limits.heartbeat_timeout,
            drain_timeout: self.limits.drain_timeout,
            adapter_folder: existing_folder("--lora-dir", self.lora_dir.as_deref())?,
            media_folder: self.media.folder()?,
            kv_events: self.kv_events(),
            sessions: self.sessions(),
            ..ServerConfig::default()
        })
    }

    /// Creates the folder of sessions if it is missing, locks it, and removes the remains of a killed process.
    fn lock_sessions(&self) -> Result<Option<FolderLock>, Failure> {
        let Some(path) = &self.session_dir else {
            return Ok(None);
        };
        check_folder("--session-dir", path)?;
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true);
        // The files hold whole conversations.
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(path).map_err(|source| {
            let path = path.clone();
            Error::MakeFolder { path, source }
        })?;
        let lock = FolderLock::take(path, SESSIONS_LOCK, |warning| tracing::warn!("{warning}"))?;
        remove_unfinished_sessions(path)?;
        Ok(Some(lock))
    }

    fn sessions(&self) -> Option<SessionFolder> {
        let path = self.session_dir.clone()?;
        Some(SessionFolder {
            path,
            max_bytes: self.limits.session_dir_bytes.0,
        })
    }

    /// The folder that keeps the KV cache of prompts.
    fn prefix_folder(&self) -> Result<Option<PrefixFolder>, Failure> {
        let Some(path) = &self.prefix_dir else {
            return Ok(None);
        };
        check_folder("--prefix-dir", path)?;
        let max_bytes = self.limits.prefix_dir_bytes.0;
        let folder = PrefixFolder::open(path, max_bytes, |warning| tracing::warn!("{warning}"))?;
        Ok(Some(folder))
    }

    /// The names that clients may ask for. A name given as the address is one of them where names are checked at all.
    fn allowed_hosts(&self) -> Vec<String> {
        let mut names = self.allow_host.clone();
        let is_checked = resolve(&self.host, self.port).is_ok_and(|address| address.ip().is_loopback());
        if is_checked || !names.is_empty() {
            names.push(self.host.clone());
        }
        names
    }

    /// Binds the address and collects the models to serve; a single model is loaded here, after the address is bound.
    fn models(&self, config: ServerConfig, runtime: &Handle) -> Result<(Listening, Models), Failure> {
        if self.model.is_empty() && !self.several.lists_models() {
            return Err(Failure::usage("no model is given").hint(
                "name one, such as `demo`; `--models FILE` lists several, and `--models-dir DIR` serves those of a folder",
            ));
        }
        let kept = self.prefix_folder()?;
        if self.several.is_asked_for(&self.model) {
            let models = models::several(self, kept.as_ref(), config)?;
            return Ok((runtime.block_on(listen(models.config()))?, models));
        }
        let flags = &self.model_flags.flags;
        let mut seats = flags.seats();
        seats.max_page_event_batches = self.kv_events().map(|config| config.max_queue_size);
        seats.prefix_folder = kept;
        let names = &self.served_model_name;
        let listening = runtime.block_on(listen(&config))?;
        let (listening, app) = listening.while_loading(runtime, || {
            load_app(
                &self.model[0],
                &flags.load,
                (&flags.adapters, &flags.vision, &flags.template),
                &seats,
                names,
                config,
            )
        });
        Ok((listening, Arc::new(app?).into()))
    }
}

/// Refuses an existing path that is not a folder.
fn check_folder(option: &str, path: &Path) -> Result<(), Failure> {
    if path.exists() && !path.is_dir() {
        let message = format!(
            "`{option} {}` is a file, and a folder is expected",
            path.display()
        );
        return Err(Failure::usage(message).hint("a missing folder is created"));
    }
    Ok(())
}

/// Names the option whose file or folder cannot be read.
fn of_option(option: &str, mut failure: Failure) -> Failure {
    failure.message = format!("`{option}`: {}", failure.message);
    failure
}

fn read(path: &Path) -> Result<String, Failure> {
    let text = fs::read_to_string(path).map_err(|error| Failure::unreadable(path, &error))?;
    Ok(without_mark(&text).to_owned())
}

fn start_log(format: LogFormat, is_verbose: bool, spans: Option<impl Layer<Registry> + Send + Sync>) {
    let level = if is_verbose {
        tracing::level_filters::LevelFilter::DEBUG
    } else {
        tracing::level_filters::LevelFilter::INFO
    };
    let filter = tracing_subscriber::EnvFilter::builder()
        .with_default_directive(level.into())
        .from_env_lossy();
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let lines = match format {
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(false).boxed(),
        LogFormat::Text if io::stderr().is_terminal() => lines.event_format(TerminalLines).boxed(),
        LogFormat::Text => lines.with_ansi(false).boxed(),
    };
    tracing_subscriber::registry()
        .with(spans)
        .with(lines.with_filter(filter))
        .init();
}

/// Exports spans where the standard variables name a collector.
#[cfg(feature = "otel")]
fn start_traces(runtime: &tokio::runtime::Handle) -> Result<Option<Traces>, Failure> {
    let is_asked_for = [
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    ]
    .iter()
    .any(|name| env::var_os(name).is_some_and(|value| !value.is_empty()));
    let begin = || Traces::begin(runtime.clone());
    let traces = is_asked_for.then(begin).transpose();
    traces.map_err(|error| Failure::input(format!("cannot export traces: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_an_address_or_its_name() {
        for (host, expected) in [
            ("127.0.0.1", "127.0.0.1:80"),
            ("localhost", "127.0.0.1:80"),
            ("::1", "[::1]:80"),
            ("[::1]", "[::1]:80"),
        ] {
            let found = resolve(host, 80).unwrap();
            assert_eq!(found.to_string(), expected, "{host}");
        }
        let line = resolve("no such name", 80).unwrap_err().line();
        assert!(line.contains("`--host no such name` is not an address"), "{line}");
    }
}
