//! A running server: reports its address, and ends by a signal or with its engine.
//!
//! Invariant: the first SIGTERM or Ctrl-C lets running answers finish within the drain time; the second ends
//! the program at once.

#[cfg(unix)]
use std::{fs, os::unix::fs::FileTypeExt as _, path::Path};
use std::{
    io, process,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokenmill_sched::EngineError;
use tokenmill_server::{Drained, Listen, Listening, Models, ServeError, ServerConfig};

use super::KEEP_TIME;
use crate::{
    failure::{Failure, INTERRUPTED},
    note::note,
    numbers::counted,
    signals::{Kind, Signals},
    visible::visible,
};

/// Binds the address of a server.
///
/// # Errors
/// Fails if the address cannot be listened on, and if a certificate cannot be used.
pub(super) async fn listen(config: &ServerConfig) -> Result<Listening, Failure> {
    let refused = |error: ServeError| match error {
        ServeError::Tls { .. } => Failure::input(error.to_string()).hint("both files are PEM"),
        ServeError::Listen { ref source, .. } => {
            let failure = Failure::work(error.to_string());
            match (source.kind(), &config.listen) {
                (io::ErrorKind::AddrInUse, Listen::Tcp(_)) => failure.hint(
                    "another program listens there, perhaps another `tokenmill serve`; `--port N` takes another \
                     port, and `--port 0` a free one",
                ),
                (io::ErrorKind::PermissionDenied, Listen::Tcp(address)) if address.port() < 1024 => {
                    failure.hint("ports below 1024 are reserved; take `--port 8080`")
                }
                (io::ErrorKind::AddrNotAvailable, Listen::Tcp(_)) => failure.hint(
                    "this machine does not have the address: `--host 127.0.0.1` is for this machine only, and \
                     `--host 0.0.0.0` for all machines that reach it",
                ),
                #[cfg(unix)]
                (io::ErrorKind::AddrInUse, Listen::Unix(path)) => failure.hint(if is_socket(path) {
                    "another server listens there; give another path"
                } else {
                    "a file that is no socket is there; remove it, or give another path"
                }),
                _ => failure,
            }
        }
        _ => Failure::work(error.to_string()),
    };
    Listening::bind(config).await.map_err(refused)
}

/// Whether a path is that of a socket.
#[cfg(unix)]
fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
}

/// Serves until a signal, or until the engine is lost.
pub(super) async fn serve(listening: Listening, models: Models, is_watched: bool) -> Result<(), Failure> {
    let mut signals = Signals::catch(Kind::Stop)
        .map_err(|error| Failure::work(format!("cannot handle signals: {error}")))?;
    let config = models.config();
    let server = listening.serve(models.clone());
    match models.only() {
        _ if is_watched => note!("{}", greeting(&models, &server.address())),
        Some(app) => tracing::info!(
            address = server.address(),
            model = app.model.name(),
            context = app.model.engine().limits().n_ctx,
            kv_tokens = app.model.engine().limits().kv_tokens(),
            "listening"
        ),
        None => tracing::info!(
            address = server.address(),
            models = models.names().join(", "),
            "listening"
        ),
    }
    let is_reachable = matches!(config.listen, Listen::Tcp(address) if !address.ip().is_loopback());
    if is_reachable && config.api_keys.is_open() {
        tracing::warn!("every client that reaches this address may use the model; set --api-key-file");
    }
    let stopping = models.clone();
    let n_unfinished = Arc::new(AtomicUsize::new(0));
    let n_at_signal = Arc::clone(&n_unfinished);
    tokio::spawn(async move {
        signals.next().await;
        let n_requests = stopping.n_requests();
        n_at_signal.store(n_requests, Ordering::Relaxed);
        tracing::info!("{}", ending(n_requests, stopping.config().drain_timeout));
        stopping.shutdown().begin();
        signals.next().await;
        process::exit(i32::from(INTERRUPTED));
    });
    let drained = tokio::select! {
        drained = server.run() => drained,
        reason = engine_end(&models) => {
            let mut failure = match reason {
                EngineError::Step(_) => Failure::from(reason.clone()),
                _ => Failure::work(""),
            };
            failure.message = format!("the engine has ended: {reason}");
            return Err(failure);
        }
    };
    match drained {
        Drained::Whole if n_unfinished.load(Ordering::Relaxed) == 0 => {}
        Drained::Whole => tracing::info!("every running answer was finished"),
        Drained::Cut => tracing::warn!("the drain time was up, and some answers were cut"),
    }
    models.keep_prefixes(KEEP_TIME);
    Ok(())
}

/// Describes the effect of the first signal while so many requests run or wait.
fn ending(n_requests: usize, limit: Duration) -> String {
    match n_requests {
        0 => "ending; no request is running".to_owned(),
        n => format!(
            "ending; {} may take {} s more, and another signal ends at once",
            counted(n, "request"),
            limit.as_secs_f64()
        ),
    }
}

/// Describes a server that has just started.
fn greeting(models: &Models, address: &str) -> String {
    let config = models.config();
    let keys = if config.api_keys.is_open() {
        "not needed"
    } else {
        "needed: `Authorization: Bearer KEY`"
    };
    let listens_to_all = matches!(config.listen, Listen::Tcp(listen) if listen.ip().is_unspecified());
    let (address, others) = if listens_to_all {
        let others = ", and for other machines the name or an address of this one";
        (on_this_machine(address), others)
    } else {
        (address.to_owned(), "")
    };
    let page = match config.listen {
        Listen::Tcp(_) if !config.has_page => String::new(),
        Listen::Tcp(_) => format!("\n  web page  {address}{others}"),
        #[cfg(unix)]
        Listen::Unix(_) => String::new(),
    };
    let (served, what) = if let Some(app) = models.only() {
        let limits = app.model.engine().limits();
        let (n_ctx, kv_tokens) = (limits.n_ctx, limits.kv_tokens());
        let n_ctx_train = app.model.model().facts().map_or(0, |facts| facts.n_ctx_train);
        let more = if n_ctx < n_ctx_train {
            format!("; `-c 0` takes all of the model's {n_ctx_train}")
        } else {
            String::new()
        };
        let what = format!(
            "context   {n_ctx} tokens for a request{more}; {kv_tokens} for all together, which is {} (--kv-cache-tokens)",
            counted(kv_tokens / n_ctx.max(1), "context"),
        );
        (format!("{} is served", visible(app.model.name())), what)
    } else {
        let names = models.names();
        let what = format!(
            "models    {}; the log names those that cannot be loaded",
            visible(&names.join(", "))
        );
        (listed(names.len()), what)
    };
    format!(
        "{served}.{page}\n  \
         API       {address}/v1 as OpenAI's, {address} as Anthropic's, Ollama's and llama.cpp's\n  \
         API keys  {keys}\n  \
         {what}\n  \
         stop      Ctrl-C lets running answers finish; twice stops at once",
    )
}

/// Says how many models there are, of which none has been loaded yet.
fn listed(n_models: usize) -> String {
    let are = if n_models == 1 { "is" } else { "are" };
    format!(
        "{} {are} loaded and unloaded on demand",
        counted(n_models, "model")
    )
}

/// Returns a URL that a program on this machine can open, for a server on all addresses: `0.0.0.0` and `[::]` cannot be connected to.
fn on_this_machine(address: &str) -> String {
    let own = address.replace("//0.0.0.0:", "//127.0.0.1:");
    own.replace("//[::]:", "//[::1]:")
}

/// Waits until the engine ends because its device is lost: a supervisor then restarts the program.
async fn engine_end(models: &Models) -> EngineError {
    loop {
        if let Some(reason) = models.lost() {
            // Clients of running requests are being notified.
            tokio::time::sleep(Duration::from_millis(500)).await;
            return reason;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_on_all_addresses_names_one_to_open() {
        for (address, expected) in [
            ("http://0.0.0.0:8080", "http://127.0.0.1:8080"),
            ("https://[::]:443", "https://[::1]:443"),
        ] {
            assert_eq!(on_this_machine(address), expected);
        }
    }

    #[test]
    fn models_that_are_not_loaded_yet_are_not_called_served() {
        assert_eq!(listed(1), "1 model is loaded and unloaded on demand");
        assert_eq!(listed(2), "2 models are loaded and unloaded on demand");
    }

    #[test]
    fn an_end_without_requests_waits_for_none() {
        let limit = Duration::from_secs(30);
        assert_eq!(ending(0, limit), "ending; no request is running");
        assert_eq!(
            ending(2, limit),
            "ending; 2 requests may take 30 s more, and another signal ends at once"
        );
    }
}
