//! [`Listening`]: a server's address before there is a model to serve.
//!
//! Separate from [`Server`] because a load takes minutes, and an address that is taken should be told before it. Invariants: while a model
//! loads, every request is answered, `/livez` with 200 and all others with 503; such connections are bounded in number and time.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Json,
    http::{Request, StatusCode},
    response::{IntoResponse, Response},
};
use http_body_util::BodyExt as _;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use serde_json::json;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    runtime::Handle,
    sync::{Semaphore, oneshot},
    time::{sleep, timeout},
};

use crate::{
    ApiError, Dialect, Listen, Models, ServeError, Server, ServerConfig,
    app::error_response,
    http::serve::{Socket, Stream, TlsAcceptorBox, accept, listen, tls_acceptor},
    kv_events::KvEvents,
    telemetry::request_id::RequestId,
};

/// Connections at a time while a model loads.
const MAX_CONNECTIONS: usize = 256;

/// Longest life of such a connection.
const CONNECTION_TIME: Duration = Duration::from_secs(5);

/// An address that is listened on.
#[derive(Debug)]
pub struct Listening {
    pub(crate) address: Listen,
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
            address: config.listen.clone(),
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
            Socket::Unix(_) => match &self.address {
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
        let (end, ended) = oneshot::channel::<()>();
        let answering = runtime.spawn(async move {
            tokio::select! {
                () = answer_loading(&self.socket, self.tls.as_ref()) => {}
                // Dropped without a message where the load panics.
                _ = ended => {}
            }
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

/// Answers connections that a model is loading, without an end.
async fn answer_loading(socket: &Socket, tls: Option<&TlsAcceptorBox>) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let place = (Arc::clone(&places).acquire_owned().await).expect("the semaphore is never closed");
        let Ok((stream, _)) = accept(socket).await else {
            // Out of file handles, most likely; those in use will come back.
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        let tls = tls.cloned();
        let connection = async move {
            match (stream, tls) {
                (Stream::Tcp(stream), Some(tls)) => {
                    if let Ok(stream) = tls.0.accept(stream).await {
                        answer(stream).await;
                    }
                }
                (Stream::Tcp(stream), None) => answer(stream).await,
                #[cfg(unix)]
                (Stream::Unix(stream), _) => answer(stream).await,
            }
        };
        tokio::spawn(async move {
            let _too_long = timeout(CONNECTION_TIME, connection).await;
            drop(place);
        });
    }
}

/// Answers the requests of a connection. One of HTTP/1 ends after the first, so that the next one may meet the model.
async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    let mut http = Builder::new(TokioExecutor::new());
    http.http1()
        .timer(TokioTimer::new())
        .keep_alive(false)
        .max_buf_size(64 << 10)
        .title_case_headers(true);
    http.http2().max_header_list_size(64 << 10);
    let service = service_fn(|request: Request<Incoming>| async move {
        let answer = loading_answer(request.uri().path());
        // Closing on unread bytes resets the connection, and the answer might never arrive. The connection's time bounds this.
        let mut body = request.into_body();
        while let Some(Ok(_)) = body.frame().await {}
        Ok::<_, Infallible>(answer)
    });
    // A broken connection needs no report.
    let _broken = http.serve_connection(TokioIo::new(stream), service).await;
}

/// Builds the answer to a request for `path` while a model loads.
fn loading_answer(path: &str) -> Response {
    let unavailable = StatusCode::SERVICE_UNAVAILABLE;
    match path {
        "/livez" => Json(json!({ "status": "alive" })).into_response(),
        "/readyz" => (unavailable, Json(json!({ "status": "loading", "queued": 0 }))).into_response(),
        // llama.cpp's clients wait while they read these words.
        "/health" | "/v1/health" => {
            let error = json!({ "code": 503, "message": "Loading model", "type": "unavailable_error" });
            (unavailable, Json(json!({ "status": "loading", "error": error }))).into_response()
        }
        path => {
            let error = ApiError::NotReady {
                reason: "the model is loading",
            };
            error_response(&error, Dialect::of_path(path), &RequestId::default())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::TcpStream,
        thread,
    };

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

    #[test]
    fn clients_are_answered_while_the_model_loads() {
        let runtime = tokio::runtime::Runtime::new().expect("threads");
        let mut config = ServerConfig {
            listen: Listen::Tcp(([127, 0, 0, 1], 0).into()),
            ..ServerConfig::default()
        };
        let listening = runtime.block_on(Listening::bind(&config)).expect("a free port");
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
        config.listen = Listen::Tcp(taken);
        let refused = runtime.block_on(Listening::bind(&config));
        assert!(matches!(refused, Err(ServeError::Listen { .. })), "{refused:?}");
        // Connections wait until the server accepts them.
        let waiting = thread::spawn(move || TcpStream::connect(address.trim_start_matches("http://")));
        assert!(waiting.join().expect("no panic").is_ok());
    }
}
