//! `POST /v1/responses`, without stored state.

use std::sync::Arc;

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use serde_json::{Map, Value, json};
use tokenmill::{ScoredToken, TextEnd, TextEvent, TextParams};
use tokenmill_sched::FinishReason;

use crate::{
    ApiError, App, Dialect, Turn,
    app::Call,
    openai::{
        StreamOptions, TokenLimit,
        chat::MAX_TOP_LOGPROBS,
        check_min_tokens,
        response::{ResponseRequest, conversation},
    },
    reply::{TokenCounts, collect},
    request_id::{RequestId, unique_id},
    scores::chat_logprobs,
    served_model::unix_seconds,
    sse::{EventFormat, Events, stream_response},
    tables,
};

const LOGPROBS: &str = "message.output_text.logprobs";

/// Answers a responses request, streamed or whole.
pub(crate) async fn responses(app: Arc<App>, mut call: Call) -> Result<Response, ApiError> {
    let (request, fields) = call.read_with_sampling::<ResponseRequest>(tables::response())?;
    let model = &app.model;
    model.check_name(request.model.as_deref())?;
    StreamOptions::check(request.stream_options, request.stream)?;
    let mut params = TextParams {
        max_tokens: request.max_output_tokens.and_then(TokenLimit::at_most),
        ..call.text_params(&app, fields)?
    };
    params.sampling.n_logprobs = n_logprobs(&request)?;
    check_min_tokens(params.min_tokens, params.max_tokens)?;
    let writer = ResponseWriter {
        app: Arc::clone(&app),
        id: unique_id("resp_"),
        item_id: unique_id("msg_"),
        created_s: unix_seconds(),
        has_logprobs: params.sampling.n_logprobs.is_some(),
        max_output_tokens: params.max_tokens,
        instructions: request.instructions.clone(),
        temperature: params.sampling.temperature,
        top_p: params.sampling.top_p,
    };
    let prompt = model.encode_chat(
        &conversation(request.instructions, request.input)?,
        Turn::Open,
        Map::new(),
    )?;
    let stream = call.answer(&app, prompt, params.clone()).await?;
    if request.stream {
        let format = ResponseEvents {
            writer,
            text: String::new(),
            tokens: Vec::new(),
            end: None,
            sequence: 0,
        };
        return Ok(stream_response(&app, &call, stream, format));
    }

    let samples = collect(stream, &app, &call).await?;
    let sample = &samples[0];
    Ok(Json(writer.whole(&sample.text, &sample.tokens, &sample.end)).into_response())
}

fn n_logprobs(request: &ResponseRequest) -> Result<Option<u32>, ApiError> {
    if let Some(unknown) = request.include.iter().find(|name| *name != LOGPROBS) {
        let reason = "only `message.output_text.logprobs` can be included";
        return Err(ApiError::UnsupportedField {
            param: format!("include: {unknown}"),
            reason,
        });
    }
    match request.top_logprobs {
        Some(n) if n > MAX_TOP_LOGPROBS => Err(ApiError::invalid(
            "top_logprobs",
            format!("{n} is more than {MAX_TOP_LOGPROBS}"),
        )),
        Some(n) if n > 0 && request.include.is_empty() => Err(ApiError::invalid(
            "top_logprobs",
            format!("needs `include: [\"{LOGPROBS}\"]`"),
        )),
        n => Ok((!request.include.is_empty()).then_some(n.unwrap_or(0))),
    }
}

struct ResponseWriter {
    app: Arc<App>,
    id: String,
    item_id: String,
    created_s: u64,
    has_logprobs: bool,
    max_output_tokens: Option<u32>,
    instructions: Option<String>,
    temperature: f32,
    top_p: f32,
}

impl ResponseWriter {
    fn part(&self, text: &str, tokens: &[ScoredToken]) -> Value {
        let mut part = json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] });
        if self.has_logprobs {
            part["logprobs"] = chat_logprobs(self.app.model.tokenizer(), tokens)["content"].take();
        }
        part
    }

    fn item(&self, status: &str, content: &Value) -> Value {
        json!({ "type": "message", "id": self.item_id, "role": "assistant", "status": status, "content": content })
    }

    fn envelope(&self, status: &str, output: &Value) -> Value {
        json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created_s,
            "status": status,
            "model": self.app.model.name(),
            "output": output,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "error": null,
            "incomplete_details": null,
            "metadata": {},
            "parallel_tool_calls": false,
            "previous_response_id": null,
            "store": false,
            "text": { "format": { "type": "text" } },
            "tool_choice": "none",
            "tools": [],
            "truncation": "disabled",
            "usage": null,
        })
    }

    fn whole(&self, text: &str, tokens: &[ScoredToken], end: &TextEnd) -> Value {
        let is_cut = end.finished.reason == FinishReason::Length;
        let status = if is_cut { "incomplete" } else { "completed" };
        let item = self.item(status, &json!([self.part(text, tokens)]));
        let mut whole = self.envelope(status, &json!([item]));
        if is_cut {
            whole["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        }
        let mut usage = TokenCounts::default();
        usage.add(end);
        whole["usage"] = usage.to_responses();
        whole
    }
}

struct ResponseEvents {
    writer: ResponseWriter,
    text: String,
    tokens: Vec<ScoredToken>,
    end: Option<TextEnd>,
    sequence: u64,
}

impl ResponseEvents {
    /// Sends an event with its type, its number and, for those about the text, its place.
    fn send(&mut self, out: &mut Events, name: &str, mut data: Value) {
        data["type"] = json!(name);
        data["sequence_number"] = json!(self.sequence);
        self.sequence += 1;
        out.named(name, &data);
    }

    fn placed(&self, mut data: Value) -> Value {
        data["item_id"] = json!(self.writer.item_id);
        data["output_index"] = json!(0);
        data["content_index"] = json!(0);
        data
    }
}

impl EventFormat for ResponseEvents {
    fn begin(&mut self, out: &mut Events) {
        let started = json!({ "response": self.writer.envelope("in_progress", &json!([])) });
        self.send(out, "response.created", started.clone());
        self.send(out, "response.in_progress", started);
        let item = self.writer.item("in_progress", &json!([]));
        self.send(
            out,
            "response.output_item.added",
            json!({ "output_index": 0, "item": item }),
        );
        let part = self.placed(json!({ "part": self.writer.part("", &[]) }));
        self.send(out, "response.content_part.added", part);
    }

    fn take(&mut self, event: &TextEvent, out: &mut Events) {
        match event {
            TextEvent::Delta(delta) => {
                self.text.push_str(&delta.text);
                self.tokens.extend_from_slice(&delta.tokens);
                let logprobs = self.writer.part("", &delta.tokens)["logprobs"].take();
                let data = self.placed(json!({ "delta": delta.text, "logprobs": logprobs }));
                self.send(out, "response.output_text.delta", data);
            }
            TextEvent::Finished(end) => self.end = Some(end.clone()),
            TextEvent::Failed { .. } => {}
        }
    }

    fn end(&mut self, out: &mut Events) {
        let Some(end) = self.end.take() else { return };
        let whole = self.writer.whole(&self.text, &self.tokens, &end);
        let part = self.writer.part(&self.text, &self.tokens);
        let text = self.placed(json!({ "text": self.text, "logprobs": part["logprobs"] }));
        self.send(out, "response.output_text.done", text);
        let done = self.placed(json!({ "part": part }));
        self.send(out, "response.content_part.done", done);
        let item = whole["output"][0].clone();
        self.send(
            out,
            "response.output_item.done",
            json!({ "output_index": 0, "item": item }),
        );
        let name = if whole["status"] == "completed" {
            "response.completed"
        } else {
            "response.incomplete"
        };
        self.send(out, name, json!({ "response": whole }));
    }

    fn fail(&mut self, error: &ApiError, request_id: &RequestId, out: &mut Events) {
        let mut failed = self.writer.envelope("failed", &json!([]));
        failed["error"] = error.body(Dialect::OpenAi, request_id.as_str())["error"].take();
        self.send(out, "response.failed", json!({ "response": failed }));
    }
}
