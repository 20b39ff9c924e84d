//! [`Listening`]: a server's address before there is a model to serve.
//!
//! A load takes minutes, and an address that is in use should be reported before it. Invariants: while a
//! model loads, every request is answered, `/livez` and the web page with 200 and all others with 503; its
//! connections are bounded as those of the server, and end when the server begins.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Request, State},
    http::Method,
    response::Response,
};
use http_body_util::BodyExt as _;
use tokio::{runtime::Handle, time::timeout};

use crate::{
    ApiError, Dialect, Listen, Models, ServeError, Server, ServerConfig, Shutdown,
    app::error_response,
    endpoints::{endpoint::probe_while_loading, page},
    http::serve::{Phase, Socket, TlsAcceptorBox, listen, tls_acceptor},
    kv_events::KvEvents,
    telemetry::request_id::RequestId,
};

/// Longest wait for the body of a request while a model loads.
const BODY_TIME: Duration = Duration::from_secs(5);

/// An address that is listened on.
#[derive(Debug)]
pub struct Listening {
    config: Arc<ServerConfig>,
    pub(crate) socket: Socket,
    pub(crate) tls: Option<TlsAcceptorBox>,
    pub(crate) kv_events: Option<KvEvents>,
}

impl Listening {
    /// Binds the configured address.
    ///
    /// # Errors
    /// [`ServeError`].
    pub async fn bind(config: &ServerConfig) -> Result<Self, ServeError> {
        let tls = config.tls.as_ref().map(tls_acceptor).transpose()?;
        let socket = listen(&config.listen)?;
        let kv_events = match config.kv_events.clone() {
            Some(config) => {
                let opened = KvEvents::open(config).await;
                Some(opened.map_err(|(address, source)| ServeError::Listen { address, source })?)
            }
            None => None,
        };
        Ok(Self {
            config: Arc::new(config.clone()),
            socket,
            tls,
            kv_events,
        })
    }

    /// Where it listens, with the port that the system chose if port 0 was requested.
    pub fn address(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        match &self.socket {
            Socket::Tcp(listener) => match listener.local_addr() {
                Ok(address) => format!("{scheme}://{address}"),
                Err(_) => scheme.to_owned(),
            },
            #[cfg(unix)]
            Socket::Unix(_) => match &self.config.listen {
                Listen::Unix(path) => format!("unix:{}", path.display()),
                Listen::Tcp(address) => address.to_string(),
            },
        }
    }

    /// Calls `load` on this thread, and answers clients meanwhile that the model is loading. Returns its result.
    ///
    /// # Panics
    /// If this thread is one of the runtime's.
    pub fn while_loading<T>(self, runtime: &Handle, load: impl FnOnce() -> T) -> (Self, T) {
        let end = EndOfLoading(Arc::default());
        let phase = Phase {
            router: Router::new()
                .fallback(loading)
                .with_state(Arc::clone(&self.config)),
            config: Arc::clone(&self.config),
            end: Arc::clone(&end.0),
            // The next request may meet the model.
            keeps_alive: false,
        };
        let answering = runtime.spawn(async move {
            // Its connections end by themselves.
            drop(phase.accept(&self.socket, self.tls.as_ref()).await);
            self
        });
        let loaded = load();
        drop(end);
        let listening = runtime
            .block_on(answering)
            .expect("the task neither panics nor is aborted");
        (listening, loaded)
    }

    /// Makes the server of these models. It accepts no connections yet.
    pub fn serve(self, models: impl Into<Models>) -> Server {
        Server {
            models: models.into(),
            listening: self,
        }
    }
}

/// Begins the end of the phase when it is dropped, also where the load panics.
struct EndOfLoading(Arc<Shutdown>);

impl Drop for EndOfLoading {
    fn drop(&mut self) {
        self.0.begin();
    }
}

/// Answers a request while a model loads, once its body was read: closing on unread bytes resets the connection, and the answer might never
/// arrive.
async fn loading(State(config): State<Arc<ServerConfig>>, request: Request) -> Response {
    let path = request.uri().path();
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let page = if is_read { page::at(&config, path) } else { None };
    let answer = (probe_while_loading(path).map(|probe| probe()))
        .or(page)
        .unwrap_or_else(|| {
            let error = ApiError::NotReady {
                reason: "the model is loading",
            };
            error_response(&error, Dialect::of_path(path), &RequestId::default())
        });
    let mut body = request.into_body();
    let read = async { while let Some(Ok(_)) = body.frame().await {} };
    let _too_long = timeout(BODY_TIME, read).await;
    answer
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::TcpStream,
        thread,
        time::Instant,
    };

    use axum::body::Body;
    use hyper::client::conn::http2;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use tokio::{net, runtime::Runtime};

    use super::*;

    fn ask(address: &str, path: &str) -> String {
        exchange(
            address,
            &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        )
    }

    /// Sends a request whole, and reads until the connection is closed.
    fn exchange(address: &str, request: &str) -> String {
        let mut stream = TcpStream::connect(address.trim_start_matches("http://")).expect("it listens");
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers and closes");
        answer
    }

    fn bind(runtime: &Runtime, config: ServerConfig) -> Listening {
        let config = ServerConfig {
            listen: Listen::Tcp(([127, 0, 0, 1], 0).into()),
            ..config
        };
        runtime.block_on(Listening::bind(&config)).expect("a free port")
    }

    #[test]
    fn a_probe_has_a_place_where_all_are_taken() {
        let runtime = Runtime::new().expect("threads");
        let config = ServerConfig {
            max_connections: 1,
            ..ServerConfig::default()
        };
        let listening = bind(&runtime, config);
        let address = listening.address();
        let (_listening, ()) = listening.while_loading(runtime.handle(), || {
            let mut busy = TcpStream::connect(address.trim_start_matches("http://")).expect("it listens");
            let unfinished =
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{";
            busy.write_all(unfinished).expect("it reads");
            let begun = Instant::now();
            for (path, text) in [
                ("/livez", "alive"),
                ("/health", "Loading model"),
                ("/v1/models", "all of its connections are busy"),
            ] {
                let answer = ask(&address, path);
                assert!(answer.contains(text), "{path}: {answer}");
            }
            assert!(begun.elapsed() < BODY_TIME, "they waited for the first request");
        });
    }

    #[test]
    fn connections_of_http_2_end_when_the_server_begins() {
        let runtime = Runtime::new().expect("threads");
        let listening = bind(&runtime, ServerConfig::default());
        let address = listening.address();
        let ask = async {
            let stream = net::TcpStream::connect(address.trim_start_matches("http://")).await;
            let stream = TokioIo::new(stream.expect("it listens"));
            let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream)
                .await
                .expect("a handshake");
            let connection = tokio::spawn(connection);
            let request = hyper::Request::get("http://localhost/readyz").body(Body::empty());
            let answer = sender.send_request(request.expect("a request")).await;
            assert_eq!(answer.expect("an answer").status(), 503);
            (sender, connection)
        };
        let (_listening, (_sender, connection)) =
            listening.while_loading(runtime.handle(), || runtime.block_on(ask));
        let ended = runtime.block_on(async { timeout(Duration::from_secs(2), connection).await });
        assert!(ended.is_ok(), "the connection is still open");
    }

    #[test]
    fn the_page_comes_while_the_model_loads() {
        let runtime = Runtime::new().expect("threads");
        let check = |config: ServerConfig, expected: &[(&str, u16, &str)]| {
            let listening = bind(&runtime, config);
            let address = listening.address();
            let _loaded = listening.while_loading(runtime.handle(), || {
                for (request, status, text) in expected {
                    let answer = exchange(
                        &address,
                        &format!("{request} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"),
                    );
                    let is_right = answer.starts_with(&format!("HTTP/1.1 {status}")) && answer.contains(text);
                    assert!(is_right, "{request}: {answer}");
                }
            });
        };
        check(
            ServerConfig::default(),
            &[
                ("GET /", 200, "<!doctype html>"),
                ("GET /", 200, "Content-Security-Policy: default-src 'none'"),
                ("HEAD /", 200, "text/html"),
                ("GET /web/main.js", 200, "text/javascript"),
                ("GET /web/style.css", 200, "text/css"),
                ("GET /web/../main.js", 503, "the model is loading"),
                ("GET /web/none.js", 503, "the model is loading"),
                ("POST /", 503, "the model is loading"),
                ("GET /v1/models", 503, "the model is loading"),
                ("POST /v1/chat/completions", 503, "the model is loading"),
            ],
        );
        let without_page = ServerConfig {
            has_page: false,
            ..ServerConfig::default()
        };
        check(
            without_page,
            &[
                ("GET /", 503, "the model is loading"),
                ("GET /web/main.js", 503, "the model is loading"),
            ],
        );
    }

    #[test]
    fn clients_are_answered_while_the_model_loads() {
        let runtime = Runtime::new().expect("threads");
        let listening = bind(&runtime, ServerConfig::default());
        let address = listening.address();
        let (listening, loaded) = listening.while_loading(runtime.handle(), || {
            for (path, status, text) in [
                ("/livez", 200, "alive"),
                ("/readyz", 503, "loading"),
                ("/health", 503, "Loading model"),
                ("/v1/models", 503, "the model is loading"),
            ] {
                let answer = ask(&address, path);
                let is_right = answer.starts_with(&format!("HTTP/1.1 {status}")) && answer.contains(text);
                assert!(is_right, "{path}: {answer}");
            }
            // A body larger than any buffer is read before the connection is closed.
            let body = "x".repeat(4 << 20);
            let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length";
            let answer = exchange(&address, &format!("{head}: {}\r\n\r\n{body}", body.len()));
            assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
            7
        });
        assert_eq!((listening.address(), loaded), (address.clone(), 7));
        // Another server is told at once.
        let taken = address.trim_start_matches("http://").parse().expect("an address");
        let config = ServerConfig {
            listen: Listen::Tcp(taken),
            ..ServerConfig::default()
        };
        let refused = runtime.block_on(Listening::bind(&config));
        assert!(matches!(refused, Err(ServeError::Listen { .. })), "{refused:?}");
        // Connections wait until the server accepts them.
        let waiting = thread::spawn(move || TcpStream::connect(address.trim_start_matches("http://")));
        assert!(waiting.join().expect("no panic").is_ok());
    }
}
