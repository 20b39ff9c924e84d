//! `POST /v1/responses`: items in, items out.

mod events;

use std::{mem, sync::Arc};

use axum::{
    Extension, Json,
    extract::{Path, RawQuery, State, rejection::PathRejection},
    http::header,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use tokenmill::{
    TextParams, ToolCall,
    stream::{ScoredToken, TextEnd},
};
use tokenmill_sched::FinishReason;

use self::events::ResponseEvents;
use crate::{
    ApiError, App, Dialect, Models, Turn,
    answers::{
        reply::collect,
        scores::{MAX_IN_TREE, Scale, chat_logprobs, check_scores},
        sse::stream_response,
    },
    app::{Call, error_response, served_model::unix_seconds, stored::Pending},
    config::keys::Tenant,
    dialects::openai::{
        StreamOptions, TokenLimit,
        chat::{MAX_TOP_LOGPROBS, TemplateMessage},
        check_min_tokens,
        items::{IgnoredItems, conversation},
        response::ResponseRequest,
    },
    endpoints::{media_folder::read_images, tables},
    errors::api_error::shortened,
    requests::tools::Tools,
    telemetry::{
        outcome::TokenCounts,
        request_id::{RequestId, unique_id},
    },
};

const LOGPROBS: &str = "message.output_text.logprobs";

/// Agents ask for it; reasoning is sent in plain text, and comes back in plain text.
const ENCRYPTED: &str = "reasoning.encrypted_content";

/// Answers a responses request, streamed or whole.
pub(crate) async fn responses(app: Arc<App>, mut call: Call) -> Result<Response, ApiError> {
    call.budget_field = "reasoning.max_tokens";
    let mut share = mem::take(&mut call.body.share);
    let (mut request, fields) = call.read_with_sampling::<ResponseRequest>(tables::response())?;
    let model = &app.model;
    let served = call.choose(&app, request.model.as_deref())?;
    StreamOptions::check(request.stream_options, request.stream)?;
    let mut params = TextParams {
        max_tokens: request.max_output_tokens.and_then(TokenLimit::at_most),
        thinking_budget: (request.thinking_budget()).or(app.config.defaults.thinking_budget),
        ..call.text_params(&app, fields)?
    };
    params.sampling.n_logprobs = n_logprobs(&request)?;
    check_min_tokens(params.min_tokens, params.max_tokens)?;
    // A stream repeats all scores in its last event.
    check_scores(
        "top_logprobs",
        &params,
        1,
        app.engine().limits().n_ctx,
        MAX_IN_TREE,
    )?;
    let (tools, ignored) = request.tools()?;
    let variables = request.variables()?;
    let text = request.text_settings();
    let earlier = earlier(&app, &call, request.previous_response_id.as_deref())?;
    let instructions = request.instructions.clone();
    let mut left_out = IgnoredItems::default();
    let mut said = conversation(None, request.input, &mut left_out)?;
    read_images(&app, &mut share, &mut said).await?;
    let messages: Vec<TemplateMessage> = earlier.into_iter().chain(said).collect();
    let whole = with_instructions(instructions.as_deref(), messages.iter().cloned());
    let prompt = model.prompt(&whole, &tools, Turn::Open, variables)?;
    let id = unique_id("resp_");
    let writer = ResponseWriter {
        app: Arc::clone(&app),
        served,
        created_s: unix_seconds(),
        has_logprobs: params.sampling.n_logprobs.is_some(),
        max_output_tokens: params.max_tokens,
        instructions,
        temperature: params.sampling.temperature,
        top_p: params.sampling.top_p,
        tools,
        text,
        previous_response_id: request.previous_response_id,
        kept: (request.store != Some(false)).then(|| app.stored.begin(&id, call.tenant, messages)),
        id,
    };
    let stream = call.answer(&app, prompt, params.clone(), share).await?;
    let response = if request.stream {
        stream_response(&app, &call, stream, ResponseEvents::new(writer))
    } else {
        let samples = collect(stream, &app, &call).await?;
        let sample = &samples[0];
        let mut items = Vec::new();
        if !sample.reasoning.is_empty() {
            items.push(OutputItem::new(ItemKind::Reasoning, &sample.reasoning));
        }
        if !sample.text.is_empty() || sample.all_calls().next().is_none() {
            items.push(OutputItem::new(ItemKind::Message, &sample.text));
        }
        items.extend(sample.all_calls().map(OutputItem::of_call));
        if let Some(last) = items.last_mut() {
            let is_whole_call = last.kind == ItemKind::Call && sample.cut_call.is_none();
            last.is_cut = sample.end.finished.reason == FinishReason::Length && !is_whole_call;
        }
        Json(writer.whole(&items, &sample.tokens, &sample.end)).into_response()
    };
    Ok(left_out.named_in(ignored.named_in(response)))
}

/// Counts the tokens of a request's prompt without generating.
pub(crate) async fn count_tokens(app: Arc<App>, mut call: Call) -> Result<Response, ApiError> {
    let mut share = mem::take(&mut call.body.share);
    let (mut request, _) = call.read_with_sampling::<ResponseRequest>(tables::response())?;
    app.model.check_name(request.model.as_deref())?;
    let (tools, ignored) = request.tools()?;
    let variables = request.variables()?;
    let earlier = earlier(&app, &call, request.previous_response_id.as_deref())?;
    let mut left_out = IgnoredItems::default();
    let mut said = conversation(None, request.input, &mut left_out)?;
    read_images(&app, &mut share, &mut said).await?;
    let messages = with_instructions(request.instructions.as_deref(), earlier.into_iter().chain(said));
    let prompt = app.model.prompt(&messages, &tools, Turn::Open, variables)?;
    let counted = json!({ "object": "response.input_tokens", "input_tokens": prompt.tokens.len() });
    Ok(left_out.named_in(ignored.named_in(Json(counted).into_response())))
}

/// Puts instructions before a conversation.
fn with_instructions(
    instructions: Option<&str>,
    messages: impl Iterator<Item = TemplateMessage>,
) -> Vec<TemplateMessage> {
    let system = instructions.map(|text| TemplateMessage {
        role: "system".to_owned(),
        content: text.to_owned(),
        ..TemplateMessage::default()
    });
    system.into_iter().chain(messages).collect()
}

/// Gives an answer that is stored, as it was given.
pub(crate) async fn stored(
    State(models): State<Models>,
    id: Result<Path<String>, PathRejection>,
    tenant: Option<Extension<Tenant>>,
    request_id: Extension<RequestId>,
    RawQuery(query): RawQuery,
) -> Response {
    let Ok(Path(id)) = id else {
        return error_response(&not_stored(None), Dialect::OpenAi, &request_id);
    };
    // The official API can also send its events again.
    let asks_for_events = |query: &str| query.split('&').any(|pair| pair == "stream=true");
    if query.as_deref().is_some_and(asks_for_events) {
        let error = ApiError::UnsupportedField {
            param: "stream".to_owned(),
            reason: "a stored answer is returned as a whole",
        };
        return error_response(&error, Dialect::OpenAi, &request_id);
    }
    match models.common().stored.answer(&id, of_key(tenant)) {
        Some(answer) => {
            let kind = [(header::CONTENT_TYPE, "application/json")];
            (kind, answer).into_response()
        }
        None => error_response(&not_stored(Some(&id)), Dialect::OpenAi, &request_id),
    }
}

/// Forgets an answer that is stored.
pub(crate) async fn forget(
    State(models): State<Models>,
    id: Result<Path<String>, PathRejection>,
    tenant: Option<Extension<Tenant>>,
    request_id: Extension<RequestId>,
) -> Response {
    let Ok(Path(id)) = id else {
        return error_response(&not_stored(None), Dialect::OpenAi, &request_id);
    };
    if models.common().stored.forget(&id, of_key(tenant)) {
        return Json(json!({ "id": id, "object": "response", "deleted": true })).into_response();
    }
    error_response(&not_stored(Some(&id)), Dialect::OpenAi, &request_id)
}

/// Returns the tenant of a request; without keys all requests are of one tenant.
fn of_key(tenant: Option<Extension<Tenant>>) -> Tenant {
    tenant.map_or_else(Tenant::default, |Extension(tenant)| tenant)
}

/// Refuses an id without a stored answer; `None` for an id that is not a text.
fn not_stored(id: Option<&str>) -> ApiError {
    ApiError::NotStored {
        id: id.map(|id| shortened(id).into_owned()),
    }
}

/// The conversation up to an earlier answer.
fn earlier(app: &App, call: &Call, id: Option<&str>) -> Result<Vec<TemplateMessage>, ApiError> {
    let Some(id) = id else {
        return Ok(Vec::new());
    };
    app.stored.get(id, call.tenant).ok_or_else(|| {
        let reason = "this answer is not stored, or not any more; send the whole conversation in `input`";
        ApiError::invalid("previous_response_id", reason)
    })
}

fn n_logprobs(request: &ResponseRequest) -> Result<Option<u32>, ApiError> {
    if let Some(unknown) = (request.include.iter()).find(|name| *name != LOGPROBS && *name != ENCRYPTED) {
        let reason = "only `message.output_text.logprobs` can be included";
        return Err(ApiError::UnsupportedField {
            param: format!("include: {unknown}"),
            reason,
        });
    }
    let has_logprobs = request.include.iter().any(|name| name == LOGPROBS);
    match request.top_logprobs {
        Some(n) if n > MAX_TOP_LOGPROBS => Err(ApiError::invalid(
            "top_logprobs",
            format!("{n} is more than {MAX_TOP_LOGPROBS}"),
        )),
        Some(n) if n > 0 && !has_logprobs => Err(ApiError::invalid(
            "top_logprobs",
            format!("needs `include: [\"{LOGPROBS}\"]`"),
        )),
        n => Ok(has_logprobs.then_some(n.unwrap_or(0))),
    }
}

/// Selects the kind of an output item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ItemKind {
    Reasoning,
    Message,
    Call,
}

/// An item of the output so far.
#[derive(Clone, Debug)]
struct OutputItem {
    kind: ItemKind,
    id: String,
    /// Its text; a call's arguments.
    text: String,
    call: ToolCall,
    /// Whether nothing follows in it.
    is_done: bool,
    /// Whether the limit of tokens came within it.
    is_cut: bool,
}

impl OutputItem {
    fn new(kind: ItemKind, text: &str) -> Self {
        let prefix = match kind {
            ItemKind::Reasoning => "rs_",
            ItemKind::Message => "msg_",
            ItemKind::Call => "fc_",
        };
        Self {
            kind,
            id: unique_id(prefix),
            text: text.to_owned(),
            call: ToolCall::default(),
            is_done: false,
            is_cut: false,
        }
    }

    /// Returns the status of the answer's end.
    fn status(&self) -> &'static str {
        if self.is_cut { "incomplete" } else { "completed" }
    }

    fn of_call(call: &ToolCall) -> Self {
        Self {
            call: call.clone(),
            ..Self::new(ItemKind::Call, &call.arguments)
        }
    }
}

struct ResponseWriter {
    app: Arc<App>,
    /// The name that the response carries.
    served: String,
    id: String,
    created_s: u64,
    has_logprobs: bool,
    max_output_tokens: Option<u32>,
    instructions: Option<String>,
    temperature: f32,
    top_p: f32,
    tools: Tools,
    /// The settings of the text.
    text: Value,
    previous_response_id: Option<String>,
    /// The conversation that the answer is stored with; `None` if it is not stored.
    kept: Option<Pending>,
}

impl ResponseWriter {
    fn part(&self, text: &str, tokens: &[ScoredToken]) -> Value {
        let mut part = json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] });
        if self.has_logprobs {
            part["logprobs"] =
                chat_logprobs(self.app.model.tokenizer(), tokens, Scale::Logprob)["content"].take();
        }
        part
    }

    /// An item with its contents, or as it begins.
    fn item(&self, item: &OutputItem, status: &str, tokens: &[ScoredToken]) -> Value {
        let is_whole = status != "in_progress";
        match item.kind {
            ItemKind::Reasoning => {
                let content = json!([{ "type": "reasoning_text", "text": item.text }]);
                let content = if is_whole { content } else { json!([]) };
                json!({ "type": "reasoning", "id": item.id, "summary": [], "content": content, "encrypted_content": null,
                    "status": status })
            }
            ItemKind::Message => {
                let content = json!([self.part(&item.text, tokens)]);
                let content = if is_whole { content } else { json!([]) };
                json!({ "type": "message", "id": item.id, "role": "assistant", "status": status, "content": content })
            }
            ItemKind::Call => json!({ "type": "function_call", "id": item.id, "call_id": item.call.id,
                "name": item.call.name, "arguments": if is_whole { item.text.as_str() } else { "" }, "status": status }),
        }
    }

    fn envelope(&self, status: &str, output: &Value) -> Value {
        json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created_s,
            "status": status,
            "model": self.served,
            "output": output,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "error": null,
            "incomplete_details": null,
            "metadata": {},
            "parallel_tool_calls": !self.tools.is_single(),
            "previous_response_id": self.previous_response_id,
            "store": self.kept.is_some(),
            "text": self.text,
            "tool_choice": self.tools.choice_of_responses(),
            "tools": self.tools.flat(),
            "truncation": "disabled",
            "usage": null,
        })
    }

    fn whole(&self, items: &[OutputItem], tokens: &[ScoredToken], end: &TextEnd) -> Value {
        let is_cut = end.finished.reason == FinishReason::Length;
        let status = if is_cut { "incomplete" } else { "completed" };
        let output: Vec<Value> = (items.iter())
            .map(|item| self.item(item, item.status(), tokens))
            .collect();
        let mut whole = self.envelope(status, &json!(output));
        if is_cut {
            whole["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        }
        let mut usage = TokenCounts::default();
        usage.add(end);
        whole["usage"] = usage.to_responses();
        self.keep(items, &whole);
        whole
    }

    /// Stores the conversation with its answer, so that a later request can continue it.
    fn keep(&self, items: &[OutputItem], whole: &Value) {
        let Some(kept) = &self.kept else { return };
        let mut answer = TemplateMessage {
            role: "assistant".to_owned(),
            ..TemplateMessage::default()
        };
        let mut calls = Vec::new();
        for item in items {
            match item.kind {
                ItemKind::Reasoning => answer.reasoning_content = Some(item.text.clone()),
                ItemKind::Message => answer.content.push_str(&item.text),
                // No result can follow it.
                ItemKind::Call if item.is_cut => {}
                ItemKind::Call => calls.push(
                    ToolCall {
                        arguments: item.text.clone(),
                        ..item.call.clone()
                    }
                    .to_openai(),
                ),
            }
        }
        answer.tool_calls = (!calls.is_empty()).then_some(Value::Array(calls));
        kept.finish(answer, whole);
    }
}
