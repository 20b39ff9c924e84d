//! The frame around each endpoint: body limits, the model, errors, request ids.
//!
//! It finds the model of an endpoint, which [`App`] does not. Invariants: the model of a request stays loaded
//! until its answer is complete; every result and error of an endpoint passes through here, so that all
//! refusals have the same form.

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    extract::{Request, State},
    response::Response,
    routing::{MethodFilter, MethodRouter, on},
};
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::{
    ApiError, App, Dialect,
    app::{Call, error_response},
    config::keys::{Peer, Tenant},
    endpoints::ollama::dismissed,
    models::{Choice, Models, Purpose, Role},
    requests::{intake::LARGE_BODY_BYTES, paths::AskedPath},
    telemetry::{request_id::RequestId, request_log::Tally},
};

/// Frames a handler of JSON bodies: reads the body within its limits, waits for its model, and turns errors into
/// responses in `dialect`. A request without a model name is for the model of its `role`.
pub(crate) fn endpoint<F, Fut>(
    method: MethodFilter,
    dialect: Dialect,
    role: Role,
    handler: F,
) -> MethodRouter<Models>
where
    F: Fn(Arc<App>, Call) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<Response, ApiError>> + Send,
{
    framed_as(method, dialect, move |models, mut call| {
        let handler = handler.clone();
        async move {
            let n_bytes = call.body.bytes.len();
            if let Some(app) = models.only() {
                return answer(app, n_bytes, handler(Arc::clone(app), call)).await;
            }
            let choice = choose(&models, role, &call).await?;
            if choice.is_dismissal() {
                let idx = models.find(choice.model.as_deref(), choice.role).await?;
                models.dismiss(idx);
                return Ok(dismissed(choice.model.as_deref().unwrap_or_default(), &call.uri));
            }
            let begun = Instant::now();
            let lease = models.acquire(&choice, Purpose::Use(choice.keep_alive)).await?;
            call.load_wait = begun.elapsed();
            let response = answer(lease.app(), n_bytes, handler(Arc::clone(lease.app()), call)).await?;
            Ok(lease.until_made(response))
        }
    })
}

/// Frames a handler of JSON bodies that needs no loaded model.
pub(crate) fn framed_as<F, Fut>(method: MethodFilter, dialect: Dialect, handler: F) -> MethodRouter<Models>
where
    F: Fn(Models, Call) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<Response, ApiError>> + Send,
{
    on(
        method,
        move |State(models): State<Models>, request: Request| async move {
            let id: RequestId = request.extensions().get().cloned().unwrap_or_default();
            let tally: Tally = request.extensions().get().cloned().unwrap_or_default();
            let request_id = id.clone();
            let tenant: Tenant = request.extensions().get().copied().unwrap_or_default();
            let peer: Peer = request.extensions().get().copied().unwrap_or_default();
            let answer = async {
                let uri = request.uri().clone();
                let is_unversioned = request
                    .extensions()
                    .get()
                    .is_some_and(|asked: &AskedPath| asked.is_unversioned);
                let body = models.common().intake.read(models.config(), request).await?;
                let call = Call {
                    config: Arc::clone(&models.common().config),
                    body,
                    id,
                    tally,
                    tenant,
                    peer,
                    adapter: None,
                    uri,
                    is_unversioned,
                    slot: None,
                    constraint: None,
                    budget_field: "thinking_budget",
                    arrived: Instant::now(),
                    load_wait: Duration::ZERO,
                    model_names: Arc::new(models.clone()),
                };
                handler(models.clone(), call).await
            };
            answer.await.unwrap_or_else(|error| {
                models.count_refusal(&error);
                error_response(&error, dialect, &request_id)
            })
        },
    )
}

/// Finds the model that a request names. A large body waits for its turn, as it does for its endpoint.
async fn choose(models: &Models, role: Role, call: &Call) -> Result<Choice, ApiError> {
    let bytes = &call.body.bytes;
    if bytes.len() < LARGE_BODY_BYTES {
        return Choice::of(role, &call.uri, bytes);
    }
    let _turn = models.common().intake.turn(models.config()).await?;
    if has_other_threads() {
        return tokio::task::block_in_place(|| Choice::of(role, &call.uri, bytes));
    }
    Choice::of(role, &call.uri, bytes)
}

/// Whether other threads work on connections while this one is busy.
fn has_other_threads() -> bool {
    Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread
}

/// Waits for a handler. Its first part, which reads the JSON and the tokens, takes long for a large body.
/// So it waits for its turn, and does not delay the connections that share its thread.
async fn answer(
    app: &App,
    n_bytes: usize,
    handler: impl Future<Output = Result<Response, ApiError>>,
) -> Result<Response, ApiError> {
    let mut handler = std::pin::pin!(handler);
    if n_bytes < LARGE_BODY_BYTES {
        return handler.await;
    }
    let mut turn = Some(app.intake.turn(&app.config).await?);
    let has_other_threads = has_other_threads();
    std::future::poll_fn(|context| match turn.take() {
        Some(_turn) if has_other_threads => tokio::task::block_in_place(|| handler.as_mut().poll(context)),
        _turn => handler.as_mut().poll(context),
    })
    .await
}
