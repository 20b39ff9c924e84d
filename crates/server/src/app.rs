//! [`App`]: what every endpoint shares, and the frame around each: body limits, errors, request ids.
//!
//! Invariant: whatever an endpoint returns or fails with leaves through [`endpoint`], so that every refusal has the
//! same form and every answer its request id.

use std::{future::Future, sync::Arc};

use axum::{
    Json,
    body::{Bytes, HttpBody as _},
    extract::{Request, State},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{MethodRouter, post},
};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    time::{Instant, timeout_at},
};

use crate::{
    ApiError, Dialect, ServedModel, ServerConfig,
    metrics::Metrics,
    request_id::RequestId,
    request_log::{ErrorCode, Tally},
    shutdown::Shutdown,
};

/// Bodies from this size on are read where blocking is allowed.
const LARGE_BODY_BYTES: usize = 64 << 10;

/// What every endpoint shares.
#[derive(Debug)]
pub struct App {
    /// The model that is served.
    pub model: ServedModel,
    /// Limits and keys.
    pub config: ServerConfig,
    /// Counters and histograms.
    pub metrics: Metrics,
    /// Whether the server is ending.
    pub shutdown: Shutdown,
}

/// One request as its endpoint sees it.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) body: Bytes,
    pub(crate) id: RequestId,
    pub(crate) tally: Tally,
}

/// Frames a handler of JSON bodies: reads the body within its limits, and turns errors into responses in `dialect`.
pub(crate) fn endpoint<F, Fut>(dialect: Dialect, handler: F) -> MethodRouter<Arc<App>>
where
    F: Fn(Arc<App>, Call) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<Response, ApiError>> + Send,
{
    post(move |State(app): State<Arc<App>>, request: Request| async move {
        let id: RequestId = request.extensions().get().cloned().unwrap_or_default();
        let tally: Tally = request.extensions().get().cloned().unwrap_or_default();
        let request_id = id.clone();
        let answer = match read_body(&app.config, request).await {
            Ok(body) => {
                let n_bytes = body.len();
                answer(n_bytes, handler(Arc::clone(&app), Call { body, id, tally })).await
            }
            Err(error) => Err(error),
        };
        answer.unwrap_or_else(|error| {
            app.metrics.count_refusal(&error);
            error_response(&error, dialect, &request_id)
        })
    })
}

/// Waits for a handler. What it does before it first waits, reading the JSON and the tokens, takes long for a large body
/// and must not hold up the connections that share its thread.
async fn answer<T>(n_bytes: usize, handler: impl Future<Output = T>) -> T {
    let mut handler = std::pin::pin!(handler);
    let has_other_threads = Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread;
    let mut takes_long = n_bytes >= LARGE_BODY_BYTES && has_other_threads;
    std::future::poll_fn(|context| {
        if std::mem::take(&mut takes_long) {
            tokio::task::block_in_place(|| handler.as_mut().poll(context))
        } else {
            handler.as_mut().poll(context)
        }
    })
    .await
}

async fn read_body(config: &ServerConfig, request: Request) -> Result<Bytes, ApiError> {
    let limit_bytes = config.max_body_bytes;
    let deadline = Instant::now() + config.body_timeout;
    let awaits_consent = request.headers().contains_key(header::EXPECT);
    let mut body = request.into_body();
    if awaits_consent && body.size_hint().lower() > limit_bytes as u64 {
        return Err(ApiError::BodyTooLarge { limit_bytes });
    }
    let limited = Limited::new(&mut body, limit_bytes).collect();
    match timeout_at(deadline, limited).await {
        Ok(Ok(whole)) => Ok(whole.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            // Closing on unread bytes resets the connection, and the refusal might never arrive.
            let rest = async { while let Some(Ok(_)) = body.frame().await {} };
            let _ = timeout_at(deadline, rest).await;
            Err(ApiError::BodyTooLarge { limit_bytes })
        }
        Ok(Err(error)) => Err(ApiError::MalformedJson {
            reason: error.to_string(),
        }),
        Err(_) => Err(ApiError::RequestTimeout {
            limit_s: config.body_timeout.as_secs(),
        }),
    }
}

/// The response of a refusal or failure.
pub(crate) fn error_response(error: &ApiError, dialect: Dialect, request_id: &RequestId) -> Response {
    let status = StatusCode::from_u16(error.status()).expect("every error has a valid status");
    let mut response = (status, Json(error.body(dialect, request_id.as_str()))).into_response();
    response.extensions_mut().insert(ErrorCode(error.code()));
    let headers = response.headers_mut();
    if let Some(seconds) = error.retry_after_s() {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}
