//! `POST /v1/messages` and `/v1/messages/count_tokens`, in Anthropic's words.

use std::sync::Arc;

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use serde_json::{Map, Value, json};
use tokenmill::{TextEnd, TextEvent, TextParams};
use tokenmill_sched::FinishReason;

use crate::{
    ApiError, App, Dialect,
    anthropic::messages::{MessagesRequest, template_messages},
    app::Call,
    openai::Stop,
    reply::{TokenCounts, collect},
    request_id::{RequestId, unique_id},
    sse::{EventFormat, Events, stream_response},
    tables,
};

/// Answers a messages request, streamed or whole.
pub(crate) async fn messages(app: Arc<App>, mut call: Call) -> Result<Response, ApiError> {
    let (request, fields) = call.read_with_sampling::<MessagesRequest>(tables::messages())?;
    let model = &app.model;
    model.check_name(request.model.as_deref())?;
    let max_tokens = request.max_tokens()?;
    let stops = Stop::Many(request.stop_sequences.clone()).to_strings()?;
    let params = TextParams {
        max_tokens: Some(max_tokens),
        stops: stops.clone(),
        ..call.text_params(&app, fields)?
    };
    let is_stream = request.stream;
    let prompt = encode(&app, request)?;
    let n_prompt = prompt.len();
    let stream = call.answer(&app, prompt, params.clone()).await?;
    let id = unique_id("msg_");
    if is_stream {
        let format = MessageEvents {
            app: Arc::clone(&app),
            id,
            n_prompt,
            stops,
            end: None,
        };
        return Ok(stream_response(&app, &call, stream, format));
    }

    let samples = collect(stream, &app, &call).await?;
    let sample = &samples[0];
    let (stop_reason, stop_sequence) = stop_reason(&sample.end, &stops);
    let reply = json!({
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model.name(),
        "content": [{ "type": "text", "text": sample.text }],
        "stop_reason": stop_reason,
        "stop_sequence": stop_sequence,
        "usage": TokenCounts::of_samples(&samples).to_anthropic(),
    });
    Ok(Json(reply).into_response())
}

/// Counts the tokens of a request without generating.
pub(crate) async fn count_tokens(app: Arc<App>, mut call: Call) -> Result<Response, ApiError> {
    let request: MessagesRequest = call.read(tables::messages())?;
    app.model.check_name(request.model.as_deref())?;
    let n_tokens = encode(&app, request)?.len();
    Ok(Json(json!({ "input_tokens": n_tokens })).into_response())
}

fn encode(app: &App, request: MessagesRequest) -> Result<Vec<u32>, ApiError> {
    let turn = request.turn()?;
    let messages = template_messages(request.system, request.messages)?;
    app.model.encode_chat(&messages, turn, Map::new())
}

/// Why a message ended, in Anthropic's words, and the stop string that ended it.
fn stop_reason<'s>(end: &TextEnd, stops: &'s [String]) -> (&'static str, Option<&'s str>) {
    match (end.stopped_by, end.finished.reason) {
        (Some(stop), _) => ("stop_sequence", stops.get(stop).map(String::as_str)),
        (None, FinishReason::Length) => ("max_tokens", None),
        (None, FinishReason::Stop | FinishReason::Cancelled) => ("end_turn", None),
    }
}

struct MessageEvents {
    app: Arc<App>,
    id: String,
    n_prompt: usize,
    stops: Vec<String>,
    end: Option<TextEnd>,
}

impl EventFormat for MessageEvents {
    fn begin(&mut self, out: &mut Events) {
        let usage = TokenCounts {
            prompt: self.n_prompt,
            ..TokenCounts::default()
        };
        let message = json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.app.model.name(),
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
            "usage": usage.to_anthropic(),
        });
        out.named(
            "message_start",
            &json!({ "type": "message_start", "message": message }),
        );
        let block = json!({ "type": "text", "text": "" });
        out.named(
            "content_block_start",
            &json!({ "type": "content_block_start", "index": 0, "content_block": block }),
        );
    }

    fn take(&mut self, event: &TextEvent, out: &mut Events) {
        match event {
            TextEvent::Delta(delta) if delta.text.is_empty() => {}
            TextEvent::Delta(delta) => {
                let delta = json!({ "type": "text_delta", "text": delta.text });
                out.named(
                    "content_block_delta",
                    &json!({ "type": "content_block_delta", "index": 0, "delta": delta }),
                );
            }
            TextEvent::Finished(end) => self.end = Some(end.clone()),
            TextEvent::Failed { .. } => {}
        }
    }

    fn end(&mut self, out: &mut Events) {
        out.named(
            "content_block_stop",
            &json!({ "type": "content_block_stop", "index": 0 }),
        );
        if let Some(end) = &self.end {
            let (stop_reason, stop_sequence) = stop_reason(end, &self.stops);
            let mut usage = TokenCounts::default();
            usage.add(end);
            let delta = json!({ "stop_reason": stop_reason, "stop_sequence": stop_sequence });
            let event: Value =
                json!({ "type": "message_delta", "delta": delta, "usage": usage.to_anthropic() });
            out.named("message_delta", &event);
        }
        out.named("message_stop", &json!({ "type": "message_stop" }));
    }

    fn fail(&mut self, error: &ApiError, request_id: &RequestId, out: &mut Events) {
        out.named("error", &error.body(Dialect::Anthropic, request_id.as_str()));
    }
}
