//! [`Server`]: connections in, an orderly end out.
//!
//! Plain TCP, TLS and UNIX sockets go through one loop. Invariants: the number of open connections is bounded, headers
//! must come in time, a connection without requests is closed, and after [`Shutdown::begin`](crate::Shutdown::begin) running answers
//! have `drain_timeout`.

use std::{io, pin::pin, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{HeaderValue, Request, header},
    response::Response,
};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
#[cfg(unix)]
use tokio::net::{UnixListener, UnixStream};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, sleep_until},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        self,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};
use tower::{ServiceExt as _, service_fn};

#[cfg(unix)]
use crate::sockets::unix_socket::listen_unix;
use crate::{
    ApiError, App, Dialect, Listen, Listening, Models, ServerConfig, Shutdown, TlsFiles,
    app::error_response,
    config::keys::Peer,
    endpoints::endpoint::is_probe,
    http::{
        answer_body::{AnswerBody, StreamExecutor},
        connections::{Connections, Kind, Place},
    },
    kv_events::KvEvents,
    requests::intake::ConnectionBodies,
    router,
    sockets::{
        accept_queue::listen_tcp,
        byte_stream::{ByteStream, PeerStream},
    },
    telemetry::request_id::RequestId,
};

/// Longest wait for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval between pings that check whether an HTTP/2 client is still there.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Requests that an HTTP/2 connection may have open at a time.
const MAX_STREAMS: u32 = 100;

/// Receive window of an HTTP/2 connection and of each of its streams, in bytes.
const RECEIVE_WINDOW: u32 = 256 << 10;

/// Time for the last frames of an idle connection that ends: its client acknowledges them, and should not meet a closed socket.
const FAREWELL: Duration = Duration::from_secs(5);

/// The same if another connection waits for the place.
const HURRIED_FAREWELL: Duration = Duration::from_millis(100);

/// Longest life of a connection in a reserved place.
const PROBE_TIME: Duration = Duration::from_secs(5);

/// Why a server could not start or had to stop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address could not be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address or socket path.
        address: String,
        /// Error of the system.
        source: io::Error,
    },
    /// A certificate or key could not be used.
    #[error("cannot use the TLS file {path}: {reason}")]
    Tls {
        /// The file.
        path: String,
        /// Cause of the error.
        reason: String,
    },
}

/// A listener that is bound but does not accept yet.
#[derive(Debug)]
pub struct Server {
    pub(crate) models: Models,
    pub(crate) listening: Listening,
}

/// Says how a drained server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Every running answer was finished.
    Whole,
    /// The time was up; some answers were cut.
    Cut,
}

#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(UnixListener),
}

#[derive(Clone)]
pub(crate) struct TlsAcceptorBox(pub(crate) TlsAcceptor);

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
        let listening = Listening::bind(models.config()).await?;
        Ok(listening.serve(models))
    }

    /// Where it listens, with the port that the system chose if port 0 was requested.
    pub fn address(&self) -> String {
        self.listening.address()
    }

    /// Accepts connections until the shutdown begins, then lets running answers finish within the drain time.
    pub async fn run(self) -> Drained {
        let models = self.models;
        let Listening {
            socket,
            tls,
            kv_events,
            ..
        } = self.listening;
        let publisher = kv_events.zip(models.only());
        let _publisher = publisher.map(|(kv_events, app)| Publisher::start(kv_events, app));
        let phase = Phase {
            router: router(models.clone()),
            config: Arc::clone(&models.common().config),
            end: Arc::clone(&models.common().shutdown),
            keeps_alive: true,
        };
        let mut all_ended = phase.accept(&socket, tls.as_ref()).await;
        // The listener closes here, so that a balancer's connects fail at once instead of waiting.
        drop(socket);
        match tokio::time::timeout(models.config().drain_timeout, all_ended.recv()).await {
            Ok(_) => Drained::Whole,
            Err(_) => Drained::Cut,
        }
    }
}

/// How connections are answered for as long as the server does one thing: load its model, or serve.
pub(crate) struct Phase {
    pub(crate) router: Router,
    pub(crate) config: Arc<ServerConfig>,
    /// When it begins, connections end once their requests are answered.
    pub(crate) end: Arc<Shutdown>,
    /// Whether a connection of HTTP/1 may send further requests.
    pub(crate) keeps_alive: bool,
}

impl Phase {
    /// Accepts connections until the end begins. The returned receiver ends with the last of them.
    pub(crate) async fn accept(self, socket: &Socket, tls: Option<&TlsAcceptorBox>) -> mpsc::Receiver<()> {
        let Self {
            router,
            config,
            end,
            keeps_alive,
        } = self;
        let mut http = Builder::new(StreamExecutor::new(reset_after(config.write_timeout)));
        http.http1()
            .timer(TokioTimer::new())
            .keep_alive(keeps_alive)
            .header_read_timeout(config.header_timeout)
            // Some clients look for headers in llama.cpp's capitalization.
            .title_case_headers(true)
            .max_buf_size(64 << 10);
        http.http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .max_concurrent_streams(MAX_STREAMS)
            .initial_connection_window_size(RECEIVE_WINDOW)
            .initial_stream_window_size(RECEIVE_WINDOW)
            .max_header_list_size(64 << 10);
        let http = Arc::new(http);
        let connections = Connections::new(config.max_connections);
        // Each connection holds a sender; the receiver ends when the last of them is dropped.
        let (open, all_ended) = mpsc::channel::<()>(1);
        loop {
            let stream = tokio::select! {
                stream = accept(socket) => stream,
                () = end.begun() => return all_ended,
            };
            let Ok((stream, peer)) = stream else {
                // Out of file handles, most likely; those in use will come back.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let place = tokio::select! {
                place = connections.enter() => place,
                () = end.begun() => return all_ended,
            };
            let connection = Connection {
                router: router.clone(),
                http: Arc::clone(&http),
                config: Arc::clone(&config),
                end: Arc::clone(&end),
                place,
                peer,
                _open: open.clone(),
            };
            let tls = tls.cloned();
            tokio::spawn(async move {
                match (stream, tls) {
                    (Stream::Tcp(stream), Some(tls)) => {
                        let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.0.accept(stream));
                        let stream = tokio::select! {
                            stream = handshake => stream,
                            () = connection.place.is_to_hurry() => return,
                        };
                        if let Ok(Ok(stream)) = stream {
                            connection.serve(Box::new(stream)).await;
                        }
                    }
                    (Stream::Tcp(stream), None) => connection.serve(Box::new(stream)).await,
                    #[cfg(unix)]
                    (Stream::Unix(stream), _) => connection.serve(Box::new(stream)).await,
                }
            });
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
            tracing::warn!("the engine reports no events of the KV cache, so none are published");
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

pub(crate) enum Stream {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

/// Listens on an address.
///
/// # Errors
/// [`ServeError::Listen`].
pub(crate) fn listen(address: &Listen) -> Result<Socket, ServeError> {
    let failed = |address: String| move |source| ServeError::Listen { address, source };
    Ok(match address {
        Listen::Tcp(address) => Socket::Tcp(listen_tcp(*address).map_err(failed(address.to_string()))?),
        #[cfg(unix)]
        Listen::Unix(path) => Socket::Unix(listen_unix(path).map_err(failed(path.display().to_string()))?),
    })
}

/// Accepts a connection.
pub(crate) async fn accept(socket: &Socket) -> io::Result<(Stream, Peer)> {
    match socket {
        Socket::Tcp(listener) => {
            let (stream, address) = listener.accept().await?;
            // Tokens are small and should leave at once.
            stream.set_nodelay(true)?;
            Ok((Stream::Tcp(stream), Peer::of(address.ip())))
        }
        #[cfg(unix)]
        Socket::Unix(listener) => Ok((Stream::Unix(listener.accept().await?.0), Peer::default())),
    }
}

struct Connection {
    router: Router,
    http: Arc<Builder<StreamExecutor>>,
    config: Arc<ServerConfig>,
    end: Arc<Shutdown>,
    place: Place,
    peer: Peer,
    /// Dropped with the connection.
    _open: mpsc::Sender<()>,
}

impl Connection {
    async fn serve(mut self, stream: Box<dyn ByteStream>) {
        self.place.open();
        let config = &self.config;
        let (router, tracker, kind) = (self.router.clone(), self.place.tracker(), self.place.kind());
        let (bodies, peer) = (ConnectionBodies::default(), self.peer);
        let service = service_fn(move |request: Request<Incoming>| {
            let busy = tracker.begin();
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(bodies.clone());
            request.extensions_mut().insert(peer);
            let is_refused = kind == Kind::Reserved && !is_probe(request.uri().path());
            let answer = (!is_refused).then(|| router.clone().oneshot(request));
            async move {
                let response = match answer {
                    Some(answer) => answer.await?,
                    None => no_place(),
                };
                Ok::<_, std::convert::Infallible>(response.map(|body| Body::new(AnswerBody::new(body, busy))))
            }
        });
        let connection = self
            .http
            .serve_connection(
                TokioIo::new(PeerStream::new(stream, config.write_timeout)),
                TowerToHyperService::new(service),
            )
            .into_owned();
        let mut connection = pin!(connection);
        let (mut is_draining, mut end) = (false, None);
        if kind == Kind::Reserved {
            end = Some(Instant::now() + PROBE_TIME);
        }
        loop {
            tokio::select! {
                // A broken connection needs no report; its requests are cancelled when they are dropped.
                _ = connection.as_mut() => return,
                () = self.is_to_end(), if !is_draining => {
                    is_draining = true;
                    end = end.or_else(|| Some(Instant::now() + FAREWELL));
                    connection.as_mut().graceful_shutdown();
                }
                // The library reads the first bytes to learn the HTTP version and has no time limit for them, so this limit covers them
                // too.
                () = self.place.is_to_leave(config.header_timeout), if end.is_none() => {
                    end = Some(Instant::now() + FAREWELL);
                    connection.as_mut().graceful_shutdown();
                }
                () = self.place.is_to_hurry(), if end.is_some() => {
                    let soon = Instant::now() + HURRIED_FAREWELL;
                    end = end.map(|end| end.min(soon));
                }
                () = sleep_until(end.unwrap_or_else(Instant::now)), if end.is_some() => {
                    // A request that came in the meantime is answered; the library closes the connection after it.
                    if self.place.is_idle() || kind == Kind::Reserved {
                        return;
                    }
                    end = Some(Instant::now() + HURRIED_FAREWELL);
                }
            }
        }
    }

    /// Waits until the phase ends and the client has had time for its first request.
    async fn is_to_end(&self) {
        self.end.begun().await;
        self.place.has_waited_for_request().await;
    }
}

/// Computes how long an HTTP/2 stream may stall before it is reset. Generation ends earlier, at the time limit of writes, so a client that
/// returns soon still finds the event about it.
fn reset_after(write_timeout: Duration) -> Duration {
    const MOST: Duration = Duration::from_secs(5);
    write_timeout + (4 * write_timeout).min(MOST)
}

/// Builds the answer for a connection in a reserved place.
fn no_place() -> Response {
    let error = ApiError::NotReady {
        reason: "all of its connections are busy",
    };
    let mut response = error_response(&error, Dialect::OpenAi, &RequestId::default());
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Reads a certificate and its key.
///
/// # Errors
/// [`ServeError::Tls`].
pub(crate) fn tls_acceptor(files: &TlsFiles) -> Result<TlsAcceptorBox, ServeError> {
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
