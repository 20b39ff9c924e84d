//! [`App`]: a model with everything that its endpoints share; and [`Call`], one request.
//!
//! Invariant: everything that endpoints need of a model and of a request is here;
//! [`frame`](crate::endpoints::frame) finds the model of a request.

pub(crate) mod compile_queue;
pub(crate) mod encoder_queue;
mod name_bounds;
pub(crate) mod served_model;
pub(crate) mod shutdown;
pub(crate) mod slots;
pub(crate) mod stored;

use std::{
    mem,
    sync::{Arc, Mutex, Weak},
    time::{Duration, Instant},
};

use axum::{
    Json,
    http::{HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use serde::de::DeserializeOwned;
use tokenmill::{
    Error, TextParams, TextStream,
    constraint::{ConstraintError, ConstraintKind},
    text::{EngineParams, Prompt},
};
use tokenmill_sched::Engine;

use crate::{
    ApiError, Dialect, ServedModel, ServerConfig,
    app::{
        compile_queue::CompileQueue,
        encoder_queue::EncoderQueue,
        shutdown::Shutdown,
        slots::{Asker, Slots},
        stored::StoredResponses,
    },
    config::keys::{Peer, Tenant},
    model_names::ModelNames,
    requests::{
        constraints::{RequestedConstraint, refusal, requested_constraint},
        fields::{Body, Field},
        intake::{Intake, Received, Share},
        off_thread::{QueueLimits, Requester, off_thread},
        sampling::SamplingFields,
    },
    telemetry::{
        metrics::Metrics,
        request_id::RequestId,
        request_log::{ErrorCode, Tally},
        throughput::Throughput,
    },
};

/// Holds the parts that the models of a server share.
#[derive(Clone, Debug)]
pub(crate) struct Common {
    pub(crate) config: Arc<ServerConfig>,
    /// Whether any model name selects the server's only model.
    pub(crate) answers_any_name: bool,
    pub(crate) shutdown: Arc<Shutdown>,
    pub(crate) intake: Arc<Intake>,
    pub(crate) stored: Arc<StoredResponses>,
    /// Held while a file of the sessions' folder is written.
    pub(crate) saving: Arc<Mutex<()>>,
    pub(crate) compile_queue: Arc<CompileQueue>,
}

impl Common {
    /// Creates the shared parts of a new server.
    pub(crate) fn new(config: ServerConfig) -> Self {
        Self {
            // Clients that load adapters choose the names themselves.
            answers_any_name: !config.strict_model_names && config.adapter_folder.is_none(),
            intake: Arc::new(Intake::new(config.max_body_bytes)),
            shutdown: Arc::default(),
            stored: Arc::default(),
            saving: Arc::default(),
            compile_queue: Arc::default(),
            config: Arc::new(config),
        }
    }
}

/// Whether a model stays loaded as long as the server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retention {
    /// It does.
    Fixed,
    /// It may be unloaded.
    Managed,
}

/// A model, and the state that every endpoint shares.
#[derive(Debug)]
pub struct App {
    /// The model that is served.
    pub model: ServedModel,
    /// Limits and keys.
    pub config: Arc<ServerConfig>,
    /// Counters and histograms of the model.
    pub metrics: Metrics,
    /// Whether the server is ending.
    pub shutdown: Arc<Shutdown>,
    pub(crate) intake: Arc<Intake>,
    pub(crate) stored: Arc<StoredResponses>,
    pub(crate) slots: Slots,
    pub(crate) retention: Retention,
    /// Throughput of generated tokens.
    pub(crate) throughput: Throughput,
    /// The requests whose images are encoded, or are to be.
    pub(crate) encoder_queue: EncoderQueue,
    /// The requests of all models whose constraints are compiled, or are to be.
    pub(crate) compile_queue: Arc<CompileQueue>,
    /// The last field, so that it goes when the model is gone.
    memory: Arc<()>,
}

impl App {
    /// Puts a server of one model together that has not begun.
    pub fn new(model: ServedModel, config: ServerConfig) -> Self {
        Self::with(model, &Common::new(config), Retention::Fixed)
    }

    /// Creates one of several models of a server.
    pub(crate) fn of_many(model: ServedModel, common: &Common) -> Self {
        Self::with(model, common, Retention::Managed)
    }

    fn with(model: ServedModel, common: &Common, retention: Retention) -> Self {
        let model = if common.answers_any_name {
            model.answering_any_name()
        } else {
            model
        };
        if !model.engine().limits().is_encoder {
            model.model().words().prepare_constraints();
        }
        let common = common.clone();
        Self {
            metrics: Metrics::new(
                model.name(),
                model.engine().limits().n_pages,
                retention == Retention::Fixed,
            ),
            slots: Slots::new(model.engine().config().max_running, Arc::clone(&common.saving)),
            config: common.config,
            shutdown: common.shutdown,
            intake: common.intake,
            stored: common.stored,
            retention,
            throughput: Throughput::since(Instant::now()),
            encoder_queue: EncoderQueue::default(),
            compile_queue: common.compile_queue,
            model,
            memory: Arc::new(()),
        }
    }

    /// Has references as long as the model takes memory.
    pub(crate) fn memory(&self) -> Weak<()> {
        Arc::downgrade(&self.memory)
    }

    /// Returns the shared parts.
    pub(crate) fn common(&self) -> Common {
        Common {
            answers_any_name: self.model.answers_any_name(),
            config: Arc::clone(&self.config),
            shutdown: Arc::clone(&self.shutdown),
            intake: Arc::clone(&self.intake),
            stored: Arc::clone(&self.stored),
            saving: self.slots.saving(),
            compile_queue: Arc::clone(&self.compile_queue),
        }
    }

    /// The engine of the model.
    pub(crate) fn engine(&self) -> &Engine {
        self.model.engine()
    }
}

/// One request as its endpoint sees it.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) config: Arc<ServerConfig>,
    pub(crate) body: Received,
    pub(crate) id: RequestId,
    pub(crate) tally: Tally,
    pub(crate) tenant: Tenant,
    /// The client's address.
    pub(crate) peer: Peer,
    /// The adapter that it names, once its body was read.
    pub(crate) adapter: Option<String>,
    /// Where it was sent to.
    pub(crate) uri: Uri,
    /// Whether the path lacked the `/v1` prefix.
    pub(crate) is_unversioned: bool,
    /// The slot that it asks for, or that was chosen already.
    pub(crate) slot: Option<usize>,
    /// Its constraint, once its body was read.
    pub(crate) constraint: Option<RequestedConstraint>,
    /// Where its endpoint has the budget of reasoning.
    pub(crate) budget_field: &'static str,
    /// When all of it had arrived.
    pub(crate) arrived: Instant,
    /// Time that it waited for its model to load.
    pub(crate) load_wait: Duration,
    /// Names of all models of the server.
    pub(crate) model_names: Arc<dyn ModelNames>,
}

/// The field by which a request asks for a constraint.
fn asking_field<'a>(
    kind: ConstraintKind,
    asked: Option<&'a RequestedConstraint>,
    budget_field: &'a str,
) -> &'a str {
    match (kind, asked) {
        (ConstraintKind::Calls, _) => "tools",
        (_, Some(asked)) => &asked.field,
        // Any text is a constraint only where its reasoning has a budget.
        (_, None) => budget_field,
    }
}

impl Call {
    /// Returns when its answer must have ended.
    pub(crate) fn ends_at(&self) -> Option<Instant> {
        let limit = self.config.request_timeout?;
        self.arrived.checked_add(limit)
    }

    /// Finds the model that the request names, and stores its adapter. Returns the name that the response carries.
    ///
    /// # Errors
    /// Returns the errors of [`ServedModel::choose`].
    pub(crate) fn choose(&mut self, app: &App, asked: Option<&str>) -> Result<String, ApiError> {
        let chosen = app.model.choose(asked)?;
        self.adapter = chosen.adapter;
        Ok(chosen.name)
    }

    /// Reads the sampling fields of a request to generate, for one sample to the end of the context.
    ///
    /// # Errors
    /// The first field out of range, by name.
    pub(crate) fn text_params(&self, app: &App, fields: SamplingFields) -> Result<TextParams, ApiError> {
        let priority = fields.priority();
        if priority != 0 && !app.config.obeys_priority {
            return Err(ApiError::UnsupportedField {
                param: "priority".to_owned(),
                reason: "this server takes requests in their order; its `--scheduling-policy priority` changes that",
            });
        }
        Ok(TextParams {
            min_tokens: fields.min_tokens(),
            stop_tokens: fields.stop_tokens(app.model.tokenizer().n_vocab())?,
            // vLLM counts the other way round.
            priority: priority.saturating_neg(),
            engine: EngineParams {
                cache_salt: if fields.caches() {
                    self.tenant.cache_salt(fields.cache_salt()?)
                } else {
                    // Each request gets a fresh seed.
                    app.model.fresh_seed() | 1
                },
                client: self.tenant.client(self.peer),
                ..EngineParams::default()
            },
            adapter: self.adapter.clone(),
            sampling: fields.into_params(app.model.model().words(), app.model.fresh_seed())?,
            max_tokens: None,
            n: 1,
            stops: Vec::new(),
            constraint: self.constraint.as_ref().map(|own| own.constraint.clone()),
            thinking_budget: app.config.defaults.thinking_budget,
            ignore_eos: false,
            deadline: (app.config.request_timeout).map(|limit| limit.saturating_sub(self.load_wait)),
            queue_timeout: app.config.queue_timeout,
        })
    }

    /// Starts the answer to a conversation. The requested shape or calls begin after the model's
    /// reasoning ends. While its images wait, the request keeps its `share` of the memory for bodies: it holds them twice.
    ///
    /// # Errors
    /// Returns the errors of [`Self::generate`].
    pub(crate) async fn answer(
        &self,
        app: &Arc<App>,
        prompt: Prompt,
        mut params: TextParams,
        share: Share,
    ) -> Result<TextStream, ApiError> {
        let begun = Instant::now();
        // Its future is too large for the frames of its callers.
        let prompt = Box::pin(see(app, prompt, &params)).await?;
        drop(share);
        // The images' time counts against the request's.
        params.deadline = params.deadline.map(|limit| limit.saturating_sub(begun.elapsed()));
        let words = app.model.model().words();
        params.engine.media = prompt.media.clone();
        params.constraint = words.held_to(&prompt, params.constraint, params.thinking_budget)?;
        params.engine.reader = prompt.reader;
        self.generate(app, vec![prompt.tokens], &params).await
    }

    /// Starts a generation for each prompt. The shape that the request asks for is compiled apart from the threads of
    /// connections.
    ///
    /// # Errors
    /// Fails if the engine refuses the request, or if a shape cannot be enforced, and names the field.
    pub(crate) async fn generate(
        &self,
        app: &Arc<App>,
        prompts: Vec<Vec<u32>>,
        params: &TextParams,
    ) -> Result<TextStream, ApiError> {
        let first = prompts.first().cloned().unwrap_or_default();
        // Its future holds a copy of the parameters: too large for the frames of its callers.
        let stream = Box::pin(self.begin(app, prompts, params)).await?;
        let asker = self.asker(params);
        let slot = app.slots.choose(self.slot, &first, asker);
        let mut running = app.slots.begin(slot, &first, asker);
        Ok(stream.noting(move |id| running.push(id)))
    }

    /// Identifies the sender of the request.
    pub(crate) fn asker(&self, params: &TextParams) -> Asker {
        Asker {
            tenant: self.tenant,
            cache_salt: params.engine.cache_salt,
            has_adapter: params.adapter.is_some(),
            has_images: !params.engine.media.is_empty(),
        }
    }

    async fn begin(
        &self,
        app: &Arc<App>,
        prompts: Vec<Vec<u32>>,
        params: &TextParams,
    ) -> Result<TextStream, ApiError> {
        let Some(constraint) = &params.constraint else {
            return app.model.generate(prompts, params);
        };
        let kind = constraint.kind();
        let field = |error: &ConstraintError| {
            asking_field(
                error.kind().unwrap_or(kind),
                self.constraint.as_ref(),
                self.budget_field,
            )
        };
        let begun = Instant::now();
        let (at_work, mut params) = (Arc::clone(app), params.clone());
        let (limits, client) = (limits_of(app, &params), params.engine.client);
        let generate = move || {
            // The wait counts against the request's time.
            params.deadline = params.deadline.map(|limit| limit.saturating_sub(begun.elapsed()));
            at_work.model.model().generate(prompts, &params)
        };
        let started = if app.model.model().words().has_compiled(constraint) {
            // It takes no time, so it waits for none of those that do.
            off_thread(generate).await?
        } else {
            app.compile_queue.run(client, limits, generate).await?
        };
        match started {
            Err(Error::Constraint(error)) => Err(refusal(field(&error), &error)),
            started => Ok(started?),
        }
    }

    /// Parses the body by its `fields`, fills in the server's defaults, and frees the bytes.
    ///
    /// # Errors
    /// Returns the errors of [`Body::parse`].
    pub(crate) fn parse(&mut self, fields: &[Field]) -> Result<Body, ApiError> {
        let mut body = Body::parse(&mem::take(&mut self.body).bytes, fields)?;
        self.config.defaults.fill(&mut body, fields);
        Ok(body)
    }

    /// Parses the body of a request to generate: its own fields and those of sampling.
    ///
    /// # Errors
    /// Returns the errors of [`Self::read`].
    pub(crate) fn read_with_sampling<T: DeserializeOwned>(
        &mut self,
        fields: &[Field],
    ) -> Result<(T, SamplingFields), ApiError> {
        let body = self.parse(fields)?;
        self.constraint = requested_constraint(&body)?;
        let (own, sampling): (T, SamplingFields) = (body.read()?, body.read()?);
        self.slot = sampling.slot();
        Ok((own, sampling))
    }

    /// Parses the body and reads it as one type.
    ///
    /// # Errors
    /// Returns the errors of [`Body::parse`] and [`Body::read`].
    pub(crate) fn read<T: DeserializeOwned>(&mut self, fields: &[Field]) -> Result<T, ApiError> {
        self.parse(fields)?.read()
    }
}

/// Returns the limits of a wait before the engine knows of a request. They are those of the engine's own queue.
fn limits_of(app: &App, params: &TextParams) -> QueueLimits {
    QueueLimits {
        max_waiting: app.engine().config().max_queued,
        wait: params.queue_timeout,
        whole: params.deadline,
    }
}

/// Encodes a prompt's images when it is their turn.
///
/// # Errors
/// Returns the errors of [`EncoderQueue::run`]; fails on an unreadable image, or a failed step.
pub(crate) async fn see(app: &Arc<App>, prompt: Prompt, params: &TextParams) -> Result<Prompt, ApiError> {
    if prompt.images.is_empty() {
        return Ok(prompt);
    }
    let limits = limits_of(app, params);
    let (at_work, cache_salt) = (Arc::clone(app), params.engine.cache_salt);
    let see = move |requester: &Requester| {
        let model = at_work.model.model();
        model.see_while(prompt, cache_salt, &|| requester.is_waiting())
    };
    // A request that has given up takes no rows.
    let seen = app.encoder_queue.run(limits, see).await??;
    seen.ok_or(ApiError::DeadlineExceeded)
}

/// The response of a refusal or failure.
pub(crate) fn error_response(error: &ApiError, dialect: Dialect, request_id: &RequestId) -> Response {
    let status = StatusCode::from_u16(error.status_in(dialect)).expect("every error has a valid status");
    let mut response = (status, Json(error.body(dialect, request_id.as_str()))).into_response();
    response.extensions_mut().insert(ErrorCode(error.code()));
    let headers = response.headers_mut();
    if let Some(seconds) = error.retry_after_s() {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if status == StatusCode::UNSUPPORTED_MEDIA_TYPE {
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("zstd"));
    }
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

#[cfg(test)]
mod tests {
    use tokenmill::Constraint;

    use super::*;

    #[test]
    fn a_constraint_is_refused_by_the_field_that_asks_for_it() {
        let asked = RequestedConstraint {
            field: "format".to_owned(),
            constraint: Constraint::anything(),
        };
        let budget = "thinking_budget";
        for (kind, asked, field) in [
            (ConstraintKind::Calls, Some(&asked), "tools"),
            (ConstraintKind::Calls, None, "tools"),
            (ConstraintKind::JsonSchema, Some(&asked), "format"),
            (ConstraintKind::Any, None, budget),
        ] {
            assert_eq!(asking_field(kind, asked, budget), field);
        }
    }
}
