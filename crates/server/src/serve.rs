//! [`Server`]: connections in, an orderly end out.
//!
//! Plain TCP, TLS and UNIX sockets go through one loop. Invariants: the number of open connections is bounded, headers
//! must come in time, and after [`Shutdown::begin`](crate::Shutdown::begin) running answers have `drain_timeout`.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{Router, body::Body, http::Request};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto::Builder, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
#[cfg(unix)]
use tokio::net::{UnixListener, UnixStream};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinHandle,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        self,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};
use tower::ServiceExt as _;

#[cfg(unix)]
use crate::unix_socket::listen_unix;
use crate::{App, Listen, Models, TlsFiles, kv_events::KvEvents, router, write_timeout::WriteTimeout};

/// Longest wait for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// HTTP/2 connections, which may be idle for as long as they like, are asked this often whether they are still there.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Requests that an HTTP/2 connection may have open at a time.
const MAX_STREAMS: u32 = 100;

/// Why a server could not start or had to stop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address could not be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address or socket path.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// A certificate or key could not be used.
    #[error("cannot use the TLS file {path}: {reason}")]
    Tls {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// A listener that is bound but does not accept yet.
#[derive(Debug)]
pub struct Server {
    models: Models,
    socket: Socket,
    tls: Option<TlsAcceptorBox>,
    kv_events: Option<KvEvents>,
}

/// How a drained server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Every running answer was finished.
    Whole,
    /// The time was up; some answers were cut.
    Cut,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(UnixListener),
}

#[derive(Clone)]
struct TlsAcceptorBox(TlsAcceptor);

impl std::fmt::Debug for TlsAcceptorBox {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("TlsAcceptor")
    }
}

impl Server {
    /// Binds the configured address.
    ///
    /// # Errors
    /// [`ServeError`].
    pub async fn bind(models: impl Into<Models>) -> Result<Self, ServeError> {
        let models = models.into();
        let config = models.config();
        let tls = config.tls.as_ref().map(tls_acceptor).transpose()?;
        let failed = |address: String| move |source| ServeError::Listen { address, source };
        let socket = match &config.listen {
            Listen::Tcp(address) => Socket::Tcp(
                TcpListener::bind(address)
                    .await
                    .map_err(failed(address.to_string()))?,
            ),
            #[cfg(unix)]
            Listen::Unix(path) => {
                Socket::Unix(listen_unix(path).map_err(failed(path.display().to_string()))?)
            }
        };
        let kv_events = match config.kv_events.clone() {
            Some(config) => {
                let opened = KvEvents::open(config).await;
                Some(opened.map_err(|(address, source)| ServeError::Listen { address, source })?)
            }
            None => None,
        };
        Ok(Self {
            models,
            socket,
            tls,
            kv_events,
        })
    }

    /// Where it listens, with the port that the system chose where port 0 was asked for.
    pub fn address(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        match &self.socket {
            Socket::Tcp(listener) => match listener.local_addr() {
                Ok(address) => format!("{scheme}://{address}"),
                Err(_) => scheme.to_owned(),
            },
            #[cfg(unix)]
            Socket::Unix(_) => match &self.models.config().listen {
                Listen::Unix(path) => format!("unix:{}", path.display()),
                Listen::Tcp(address) => address.to_string(),
            },
        }
    }

    /// Accepts connections until the shutdown begins, then lets running answers finish within the drain time.
    pub async fn run(self) -> Drained {
        let models = self.models;
        let publisher = self.kv_events.zip(models.only());
        let _publisher = publisher.map(|(kv_events, app)| Publisher::start(kv_events, app));
        let router = router(models.clone());
        let (config, shutdown) = (models.config(), models.shutdown());
        let mut http = Builder::new(TokioExecutor::new());
        http.http1()
            .timer(TokioTimer::new())
            .header_read_timeout(config.header_timeout)
            .max_buf_size(64 << 10);
        http.http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(64 << 10);
        let http = Arc::new(http);
        let connections = Arc::new(Semaphore::new(config.max_connections));
        let graceful = GracefulShutdown::new();
        loop {
            let permit = tokio::select! {
                permit = Arc::clone(&connections).acquire_owned() => permit.expect("the semaphore is never closed"),
                () = shutdown.begun() => break,
            };
            let stream = tokio::select! {
                stream = accept(&self.socket) => stream,
                () = shutdown.begun() => break,
            };
            let Ok(stream) = stream else {
                // Out of file handles, most likely; those in use will come back.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let connection = Connection {
                router: router.clone(),
                http: Arc::clone(&http),
                watcher: graceful.watcher(),
                first_request_timeout: config.header_timeout,
                write_timeout: config.write_timeout,
                _permit: permit,
            };
            let tls = self.tls.clone();
            tokio::spawn(async move {
                match (stream, tls) {
                    (Stream::Tcp(stream), Some(tls)) => {
                        let handshake = tls.0.accept(stream);
                        if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
                            connection.serve(stream).await;
                        }
                    }
                    (Stream::Tcp(stream), None) => connection.serve(stream).await,
                    #[cfg(unix)]
                    (Stream::Unix(stream), _) => connection.serve(stream).await,
                }
            });
        }
        // The listener closes here, so that a balancer's connects fail at once instead of waiting.
        drop(self.socket);
        match tokio::time::timeout(config.drain_timeout, graceful.shutdown()).await {
            Ok(()) => Drained::Whole,
            Err(_) => Drained::Cut,
        }
    }
}

/// The task that publishes the KV cache's events; dropping it ends the task.
struct Publisher(Option<JoinHandle<()>>);

impl Publisher {
    fn start(kv_events: KvEvents, app: &App) -> Self {
        let engine = app.engine();
        let limits = engine.limits().clone();
        let Some(events) = engine.take_page_events() else {
            tracing::warn!("the engine tells no events of the KV cache, so none are published");
            return Self(None);
        };
        Self(Some(tokio::spawn(
            async move { kv_events.run(events, &limits).await },
        )))
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

enum Stream {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

async fn accept(socket: &Socket) -> io::Result<Stream> {
    match socket {
        Socket::Tcp(listener) => {
            let (stream, _) = listener.accept().await?;
            // Tokens are small and should leave at once.
            stream.set_nodelay(true)?;
            Ok(Stream::Tcp(stream))
        }
        #[cfg(unix)]
        Socket::Unix(listener) => Ok(Stream::Unix(listener.accept().await?.0)),
    }
}

struct Connection {
    router: Router,
    http: Arc<Builder<TokioExecutor>>,
    watcher: hyper_util::server::graceful::Watcher,
    first_request_timeout: Duration,
    write_timeout: Duration,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let has_asked = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&has_asked);
        let service = TowerToHyperService::new(self.router.map_request(move |request: Request<Incoming>| {
            asked.store(true, Ordering::Relaxed);
            request.map(Body::new)
        }));
        let connection = self
            .http
            .serve_connection(
                TokioIo::new(WriteTimeout::new(stream, self.write_timeout)),
                service,
            )
            .into_owned();
        let connection = self.watcher.watch(connection);
        // The HTTP version is found out from the first bytes, for which the library has no time limit of its own.
        let first_request = async {
            tokio::time::sleep(self.first_request_timeout).await;
            if has_asked.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            // A connection that breaks is the client's business; its requests are cancelled by being dropped.
            _ = connection => {}
            () = first_request => {}
        }
    }
}

fn tls_acceptor(files: &TlsFiles) -> Result<TlsAcceptorBox, ServeError> {
    let failed = |path: &std::path::Path, reason: String| ServeError::Tls {
        path: path.display().to_string(),
        reason,
    };
    let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect)
        .map_err(|error| failed(&files.certificate, error.to_string()))?;
    let key =
        PrivateKeyDer::from_pem_file(&files.key).map_err(|error| failed(&files.key, error.to_string()))?;
    let mut config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .map_err(|error| failed(&files.certificate, error.to_string()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptorBox(TlsAcceptor::from(Arc::new(config))))
}
