//! `POST /v1/messages` and `/v1/messages/count_tokens`, in Anthropic's words.

use std::{mem, sync::Arc};

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use tokenmill::{
    TextParams,
    stream::{Sample, TextEnd, TextEvent},
    text::Prompt,
    tools::Part,
};
use tokenmill_sched::FinishReason;

use crate::{
    ApiError, App, Dialect,
    answers::{
        reply::collect_showing,
        sse::{EventFormat, Events, stream_response},
    },
    app::Call,
    dialects::{
        anthropic::messages::{MessagesRequest, template_messages},
        openai::Stop,
    },
    endpoints::{media_folder::read_images, tables},
    requests::{
        intake::Share,
        tools::{IgnoredTools, ends_in_calls},
    },
    telemetry::{
        outcome::TokenCounts,
        request_id::{RequestId, unique_id},
    },
};

/// Answers a messages request, streamed or whole.
pub(crate) async fn messages(app: Arc<App>, mut call: Call) -> Result<Response, ApiError> {
    call.budget_field = "thinking.budget_tokens";
    let marks_cache = marks_cache(&call.body.bytes);
    let mut share = mem::take(&mut call.body.share);
    let (request, fields) = call.read_with_sampling::<MessagesRequest>(tables::messages())?;
    let served = call.choose(&app, request.model.as_deref())?;
    let max_tokens = request.max_tokens()?;
    let stops = Stop::Many(request.stop_sequences.clone()).to_strings()?;
    let params = TextParams {
        max_tokens: Some(max_tokens),
        stops: stops.clone(),
        thinking_budget: request.thinking_budget()?.or(app.config.defaults.thinking_budget),
        ..call.text_params(&app, fields)?
    };
    let is_stream = request.stream;
    let (prompt, ignored) = prompt(&app, request, &mut share).await?;
    let n_prompt = prompt.tokens.len();
    let stream = call.answer(&app, prompt, params.clone(), share).await?;
    let id = unique_id("msg_");
    if is_stream {
        let format = MessageEvents {
            served,
            id,
            n_prompt,
            marks_cache,
            stops,
            end: None,
            open: None,
            n_blocks: 0,
        };
        return Ok(ignored.named_in(stream_response(&app, &call, stream, format)));
    }

    let mut blocks = Blocks::default();
    let take = |event: &TextEvent| {
        if let TextEvent::Delta(delta) = event {
            delta.parts.iter().for_each(|part| blocks.push(part));
        }
    };
    let samples = collect_showing(stream, &app, &call, take).await?;
    let sample = &samples[0];
    let (stop_reason, stop_sequence) = stop_reason(&sample.end, &stops);
    let reply = json!({
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": served,
        "content": blocks.finish(sample),
        "stop_reason": stop_reason,
        "stop_sequence": stop_sequence,
        "usage": TokenCounts::of_samples(&samples).to_anthropic(marks_cache),
    });
    Ok(ignored.named_in(Json(reply).into_response()))
}

/// Says whether a request has a `cache_control` field anywhere. Quotes inside of a text are escaped, and no colon follows a text.
fn marks_cache(body: &[u8]) -> bool {
    const FIELD: &[u8] = b"\"cache_control\"";
    let mut ends = (body.windows(FIELD.len()).enumerate())
        .filter(|(_, part)| *part == FIELD)
        .map(|(start, _)| start + FIELD.len());
    ends.any(|end| body[end..].trim_ascii_start().starts_with(b":"))
}

/// Counts the tokens of a request without generating.
pub(crate) async fn count_tokens(app: Arc<App>, mut call: Call) -> Result<Response, ApiError> {
    let mut share = mem::take(&mut call.body.share);
    let request: MessagesRequest = call.read(tables::messages())?;
    app.model.check_name(request.model.as_deref())?;
    let (prompt, ignored) = prompt(&app, request, &mut share).await?;
    let counted = Json(json!({ "input_tokens": prompt.tokens.len() }));
    Ok(ignored.named_in(counted.into_response()))
}

async fn prompt(
    app: &App,
    mut request: MessagesRequest,
    share: &mut Share,
) -> Result<(Prompt, IgnoredTools), ApiError> {
    let turn = request.turn()?;
    let (tools, ignored) = request.tools()?;
    let variables = request.variables()?;
    let mut messages = template_messages(request.system, request.messages)?;
    read_images(app, share, &mut messages).await?;
    Ok((app.model.prompt(&messages, &tools, turn, variables)?, ignored))
}

/// Collects an answer's content blocks in the order of a stream.
#[derive(Debug, Default)]
struct Blocks(Vec<Value>);

impl Blocks {
    /// Adds a part. A call gets an empty block, which `finish` fills.
    fn push(&mut self, part: &Part) {
        match part {
            Part::Text(text) => self.push_text("text", text),
            Part::Reasoning(text) => self.push_text("thinking", text),
            Part::CallStart { .. } => self.0.push(json!({ "type": "tool_use" })),
            // A broken call is text.
            Part::CallBroken { source, .. } => {
                self.0.pop_if(|block| block["type"] == "tool_use");
                self.push_text("text", source);
            }
            Part::Arguments { .. } | Part::CallEnd { .. } | Part::CallCut { .. } | Part::Markup => {}
        }
    }

    fn push_text(&mut self, kind: &str, text: &str) {
        if text.is_empty() {
            return;
        }
        match self.0.last_mut().filter(|block| block["type"] == kind) {
            Some(block) => {
                if let Value::String(before) = &mut block[kind] {
                    before.push_str(text);
                }
            }
            None if kind == "thinking" => {
                self.0
                    .push(json!({ "type": kind, "thinking": text, "signature": "" }));
            }
            None => self.0.push(json!({ "type": kind, "text": text })),
        }
    }

    /// Returns all blocks with the calls of the answer; an empty answer gives one empty text block.
    fn finish(mut self, sample: &Sample) -> Vec<Value> {
        let mut calls = sample.all_calls();
        for block in self.0.iter_mut().filter(|block| block["type"] == "tool_use") {
            if let Some(call) = calls.next() {
                *block = json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": call.whole_arguments() });
            }
        }
        if self.0.is_empty() {
            self.0.push(json!({ "type": "text", "text": "" }));
        }
        self.0
    }
}

/// Why a message ended, in Anthropic's words, and the stop string that ended it.
fn stop_reason<'s>(end: &TextEnd, stops: &'s [String]) -> (&'static str, Option<&'s str>) {
    match (end.stopped_by, end.finished.reason) {
        _ if ends_in_calls(end) => ("tool_use", None),
        (Some(stop), _) => ("stop_sequence", stops.get(stop).map(String::as_str)),
        (None, FinishReason::Length) => ("max_tokens", None),
        (None, FinishReason::Stop | FinishReason::Cancelled) => ("end_turn", None),
    }
}

struct MessageEvents {
    /// The name that the response carries.
    served: String,
    id: String,
    n_prompt: usize,
    /// Whether the request has `cache_control`.
    marks_cache: bool,
    stops: Vec<String>,
    end: Option<TextEnd>,
    /// The kind of the block that is open.
    open: Option<&'static str>,
    /// Blocks so far, the open one included.
    n_blocks: usize,
}

impl MessageEvents {
    /// Opens a block of a kind, unless it is open already. Calls are opened each on its own.
    fn open(&mut self, kind: &'static str, block: &Value, out: &mut Events) {
        if self.open == Some(kind) && kind != "tool_use" {
            return;
        }
        self.close(out);
        let start = json!({ "type": "content_block_start", "index": self.n_blocks, "content_block": block });
        out.named("content_block_start", &start);
        self.open = Some(kind);
        self.n_blocks += 1;
    }

    fn delta(&self, delta: &Value, out: &mut Events) {
        let index = self.n_blocks.saturating_sub(1);
        let event = json!({ "type": "content_block_delta", "index": index, "delta": delta });
        out.named("content_block_delta", &event);
    }

    fn close(&mut self, out: &mut Events) {
        if self.open.take().is_some() {
            let stop = json!({ "type": "content_block_stop", "index": self.n_blocks.saturating_sub(1) });
            out.named("content_block_stop", &stop);
        }
    }

    fn part(&mut self, part: &Part, out: &mut Events) {
        match part {
            Part::Text(text) => {
                self.open("text", &json!({ "type": "text", "text": "" }), out);
                self.delta(&json!({ "type": "text_delta", "text": text }), out);
            }
            Part::Reasoning(text) => {
                let block = json!({ "type": "thinking", "thinking": "", "signature": "" });
                self.open("thinking", &block, out);
                self.delta(&json!({ "type": "thinking_delta", "thinking": text }), out);
            }
            Part::CallStart { id, name, .. } => {
                let block = json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
                self.open("tool_use", &block, out);
            }
            Part::Arguments { delta, .. } => {
                self.delta(&json!({ "type": "input_json_delta", "partial_json": delta }), out);
            }
            // A broken call is text.
            Part::CallBroken { source, .. } => {
                self.close(out);
                self.part(&Part::Text(source.clone()), out);
            }
            Part::CallEnd { .. } | Part::CallCut { .. } => self.close(out),
            Part::Markup => {}
        }
    }
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
            "model": self.served,
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
            "usage": usage.to_anthropic(false),
        });
        out.named(
            "message_start",
            &json!({ "type": "message_start", "message": message }),
        );
    }

    fn take(&mut self, event: &TextEvent, out: &mut Events) {
        match event {
            TextEvent::Delta(delta) => delta.parts.iter().for_each(|part| self.part(part, out)),
            TextEvent::Finished(end) => self.end = Some(end.clone()),
            TextEvent::Prefill(_) | TextEvent::Failed { .. } => {}
        }
    }

    fn end(&mut self, out: &mut Events) {
        if self.n_blocks == 0 {
            self.open("text", &json!({ "type": "text", "text": "" }), out);
        }
        self.close(out);
        if let Some(end) = &self.end {
            let (stop_reason, stop_sequence) = stop_reason(end, &self.stops);
            let mut usage = TokenCounts::default();
            usage.add(end);
            let delta = json!({ "stop_reason": stop_reason, "stop_sequence": stop_sequence });
            let event: Value = json!({ "type": "message_delta", "delta": delta, "usage": usage.to_anthropic(self.marks_cache) });
            out.named("message_delta", &event);
        }
        out.named("message_stop", &json!({ "type": "message_stop" }));
    }

    fn fail(&mut self, error: &ApiError, request_id: &RequestId, out: &mut Events) {
        out.named("error", &error.body(Dialect::Anthropic, request_id.as_str()));
    }
}
