//! Ollama's API: `/api/chat` and `/api/generate` here, descriptions of models in [`models`], changes to the
//! set of models in [`manage`], vectors in [`embed`].
//!
//! Answers are made as on every other endpoint, in Ollama's form. Invariant: the engine measured the counts
//! and durations.

pub(crate) mod embed;
mod keep_alive;
pub(crate) mod manage;
pub(crate) mod models;

use std::{
    mem,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{
    Json,
    http::Uri,
    response::{IntoResponse, Response},
};
use serde_json::{Map, Value, json};
use tokenmill::{
    TextParams, ToolCall, Turn,
    stream::{TextEnd, TextEvent},
    text::Prompt,
    tools::Part,
};
use tokenmill_sched::FinishReason;
use tokenmill_text::template::CivilTime;

use self::keep_alive::check_keep_alive;
use crate::{
    ApiError, App, Dialect,
    answers::{
        reply::collect,
        score_sheet::ScoreSheet,
        scores::{Scale, chat_logprobs},
        sse::{EventFormat, Events, line_response},
    },
    app::Call,
    dialects::{
        llama_cpp::infill::infill_prompt,
        ollama::{
            chat::{self, ChatRequest, conversation, parts_with_images},
            generate::{self, GenerateRequest},
            options::Options,
        },
        openai::chat::TemplateMessage,
    },
    requests::{constraints::requested_constraint, fields::Body, intake::Share, tools::Tools},
    telemetry::request_id::RequestId,
};

/// Answers a conversation, streamed or whole.
pub(crate) async fn chat(app: Arc<App>, mut call: Call) -> Result<Response, ApiError> {
    let share = mem::take(&mut call.body.share);
    let body = call.parse(chat::FIELDS)?;
    check_keep_alive(app.retention, &body)?;
    let mut request: ChatRequest = body.read()?;
    let served = app.model.choose(request.model.as_deref())?;
    call.adapter = served.adapter;
    let lines = Lines {
        app: Arc::clone(&app),
        served: served.name,
        form: Form::Chat,
        has_logprobs: request.n_logprobs()?.is_some(),
        open: ToolCall::default(),
        n_calls: 0,
        load_wait: call.load_wait,
    };
    let params = text_params(&app, &mut call, &body, request.n_logprobs()?)?;
    if request.messages.is_empty() {
        return Ok(Json(lines.loaded()).into_response());
    }
    let tools = request.tools()?;
    let mut variables = Map::new();
    if let Some(think) = &request.think {
        think.set(&mut variables)?;
    }
    let (messages, turn) = conversation(request.messages)?;
    let prompt = app.model.prompt(&messages, &tools, turn, variables)?;
    Box::pin(answer(
        &app,
        (&call, share),
        prompt,
        params,
        lines,
        request.stream,
    ))
    .await
}

/// Answers a prompt, or continues it, streamed or whole.
pub(crate) async fn generate(app: Arc<App>, mut call: Call) -> Result<Response, ApiError> {
    let share = mem::take(&mut call.body.share);
    let body = call.parse(generate::FIELDS)?;
    check_keep_alive(app.retention, &body)?;
    let request: GenerateRequest = body.read()?;
    let served = app.model.choose(request.model.as_deref())?;
    call.adapter = served.adapter;
    let lines = Lines {
        app: Arc::clone(&app),
        served: served.name,
        form: Form::Generate,
        has_logprobs: request.n_logprobs()?.is_some(),
        open: ToolCall::default(),
        n_calls: 0,
        load_wait: call.load_wait,
    };
    let params = text_params(&app, &mut call, &body, request.n_logprobs()?)?;
    if request.prompt.is_empty() {
        return Ok(Json(lines.loaded()).into_response());
    }
    let stream = request.stream;
    let prompt = generate_prompt(&app, request)?;
    Box::pin(answer(&app, (&call, share), prompt, params, lines, stream)).await
}

fn generate_prompt(app: &App, request: GenerateRequest) -> Result<Prompt, ApiError> {
    if !request.suffix.is_empty() {
        if request.raw || !request.system.is_empty() || request.think.is_some() {
            let reason = "contradicts `raw`, `system` and `think`";
            return Err(ApiError::invalid("suffix", reason));
        }
        let tokens = infill_prompt(
            app.model.tokenizer(),
            "suffix",
            (&request.prompt, &[]),
            &request.suffix,
        )?;
        return Ok(Prompt::of_text(tokens));
    }
    let has_template = app.model.chat_template().is_some();
    if request.raw || !has_template {
        if !request.system.is_empty() {
            let reason = if request.raw {
                "contradicts `raw`; write it into the prompt"
            } else {
                "this model has no chat template, so write it into the prompt"
            };
            return Err(ApiError::invalid("system", reason));
        }
        if request.think.is_some() {
            return Err(ApiError::invalid("think", "only where a chat template is used"));
        }
        if !parts_with_images("images", request.images, "")?.is_empty() {
            let reason = "only where a chat template is used";
            return Err(ApiError::invalid("images", reason));
        }
        return Ok(Prompt::of_text(app.model.encode_prompt(&request.prompt)));
    }
    let message = |role: &str, content| TemplateMessage {
        role: role.to_owned(),
        content,
        ..TemplateMessage::default()
    };
    let mut messages = Vec::new();
    if !request.system.is_empty() {
        messages.push(message("system", request.system));
    }
    let parts = parts_with_images("images", request.images, &request.prompt)?;
    messages.push(TemplateMessage {
        parts,
        ..message("user", request.prompt)
    });
    let mut variables = Map::new();
    if let Some(think) = &request.think {
        think.set(&mut variables)?;
    }
    app.model
        .prompt(&messages, &Tools::default(), Turn::Open, variables)
}

/// Makes the parameters of a generation from a request's options and shape.
fn text_params(
    app: &App,
    call: &mut Call,
    body: &Body,
    n_logprobs: Option<u32>,
) -> Result<TextParams, ApiError> {
    call.constraint = requested_constraint(body)?;
    let options = Options::read(body, app.engine().limits().n_ctx)?;
    let params = call.text_params(app, options.sampling);
    let mut params = params.map_err(|error| error.within("options"))?;
    params.max_tokens = options.max_tokens;
    params.stops = options.stops;
    params.sampling.n_logprobs = n_logprobs;
    Ok(params)
}

/// Generates the answer to a prompt, streamed unless the request says otherwise.
async fn answer(
    app: &Arc<App>,
    (call, share): (&Call, Share),
    prompt: Prompt,
    params: TextParams,
    mut lines: Lines,
    stream: Option<bool>,
) -> Result<Response, ApiError> {
    let text = call.answer(app, prompt, params, share).await?;
    if stream.unwrap_or(true) {
        return Ok(line_response(app, call, text, lines));
    }
    let samples = collect(text, app, call).await?;
    let sample = &samples[0];
    let calls: Vec<Value> = sample.all_calls().map(|call| lines.call(call)).collect();
    let mut reply = lines.line(&sample.text, &sample.reasoning, calls);
    let mut sheet = ScoreSheet::new(app.model.tokenizer());
    if lines.has_logprobs {
        reply["logprobs"] = sheet.list(&sample.tokens);
    }
    lines.finish(&mut reply, &sample.end);
    Ok(sheet.response(&reply))
}

fn logprobs(app: &App, tokens: &[tokenmill::stream::ScoredToken]) -> Value {
    chat_logprobs(app.model.tokenizer(), tokens, Scale::Logprob)["content"].take()
}

/// Where the text of an answer stands.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// In a message.
    Chat,
    /// In `response`.
    Generate,
}

/// An answer as lines of JSON: one for each piece, one for the end.
struct Lines {
    app: Arc<App>,
    /// The name that the response carries.
    served: String,
    form: Form,
    has_logprobs: bool,
    /// The call that is not complete: Ollama's clients take calls whole.
    open: ToolCall,
    n_calls: usize,
    /// How long the request waited for its model to be loaded.
    load_wait: Duration,
}

impl Lines {
    fn line(&self, text: &str, thinking: &str, calls: Vec<Value>) -> Value {
        let mut line = json!({ "model": self.served, "created_at": now(), "done": false });
        let said = match self.form {
            Form::Chat => {
                line["message"] = json!({ "role": "assistant", "content": text });
                &mut line["message"]
            }
            Form::Generate => {
                line["response"] = text.into();
                &mut line
            }
        };
        if !thinking.is_empty() {
            said["thinking"] = thinking.into();
        }
        if !calls.is_empty() {
            said["tool_calls"] = calls.into();
        }
        line
    }

    fn call(&mut self, call: &ToolCall) -> Value {
        let arguments = call.whole_arguments();
        let index = self.n_calls;
        self.n_calls += 1;
        json!({ "id": call.id, "function": { "index": index, "name": call.name, "arguments": arguments } })
    }

    /// The line of a part of the answer; `None` where it says nothing yet.
    fn part(&mut self, part: &Part) -> Option<Value> {
        match part {
            Part::Text(text) => Some(self.line(text, "", Vec::new())),
            Part::Reasoning(text) => Some(self.line("", text, Vec::new())),
            Part::CallStart { id, name, .. } => {
                self.open = ToolCall {
                    id: id.clone().unwrap_or_default(),
                    name: name.clone(),
                    arguments: String::new(),
                };
                None
            }
            Part::Arguments { delta, .. } => {
                self.open.arguments.push_str(delta);
                None
            }
            Part::CallEnd { .. } | Part::CallCut { .. } => {
                let call = std::mem::take(&mut self.open);
                let call = self.call(&call);
                Some(self.line("", "", vec![call]))
            }
            // Nothing of it was sent, so its text is text.
            Part::CallBroken { source, .. } => Some(self.line(source, "", Vec::new())),
            Part::Markup => None,
        }
    }

    /// Writes the end of an answer, its tokens and its times.
    fn finish(&self, line: &mut Value, end: &TextEnd) {
        let (usage, timings) = (end.finished.usage, &end.finished.timings);
        let decode = if usage.completion_tokens > 0 {
            timings.total.saturating_sub(timings.first_token)
        } else {
            Duration::ZERO
        };
        line["done"] = true.into();
        line["done_reason"] = match (end.stopped_by, end.finished.reason) {
            (None, FinishReason::Length) => "length".into(),
            _ => "stop".into(),
        };
        line["total_duration"] = nanoseconds(timings.total.saturating_add(self.load_wait));
        // The wait for the model, where it is not loaded, and for the request's turn.
        line["load_duration"] = nanoseconds(timings.queued.saturating_add(self.load_wait));
        line["prompt_eval_count"] = usage.prompt_tokens.into();
        line["prompt_eval_duration"] = nanoseconds(timings.prefill);
        line["eval_count"] = usage.completion_tokens.into();
        line["eval_duration"] = nanoseconds(decode);
    }

    /// The answer to a request that only wants the model loaded.
    fn loaded(&self) -> Value {
        let mut line = self.line("", "", Vec::new());
        line["done"] = true.into();
        line["done_reason"] = "load".into();
        line
    }
}

/// The answer to a request that only wants a model unloaded.
pub(crate) fn dismissed(model: &str, uri: &Uri) -> Response {
    let mut line = json!({ "model": model, "created_at": now(), "done": true, "done_reason": "unload" });
    if uri.path().ends_with("chat") {
        line["message"] = json!({ "role": "assistant", "content": "" });
    } else {
        line["response"] = "".into();
    }
    Json(line).into_response()
}

impl EventFormat for Lines {
    fn begin(&mut self, _out: &mut Events) {}

    fn take(&mut self, event: &TextEvent, out: &mut Events) {
        match event {
            TextEvent::Delta(delta) => {
                let mut lines: Vec<Value> = delta.parts.iter().filter_map(|part| self.part(part)).collect();
                if self.has_logprobs && !delta.tokens.is_empty() {
                    if lines.is_empty() {
                        lines.push(self.line("", "", Vec::new()));
                    }
                    lines[0]["logprobs"] = logprobs(&self.app, &delta.tokens);
                }
                for line in &lines {
                    out.data(line);
                }
            }
            TextEvent::Finished(end) => {
                let mut line = self.line("", "", Vec::new());
                self.finish(&mut line, end);
                out.data(&line);
            }
            TextEvent::Prefill(_) | TextEvent::Failed { .. } => {}
        }
    }

    fn end(&mut self, _out: &mut Events) {}

    fn fail(&mut self, error: &ApiError, request_id: &RequestId, out: &mut Events) {
        out.data(&error.body(Dialect::Ollama, request_id.as_str()));
    }
}

fn nanoseconds(duration: Duration) -> Value {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX).into()
}

/// Now, as Ollama writes times.
fn now() -> String {
    timestamp(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// A time since 1970, as Ollama writes it.
fn timestamp(since_1970: Duration) -> String {
    let time = CivilTime::from_unix_seconds(i64::try_from(since_1970.as_secs()).unwrap_or(0));
    format!("{time}.{:09}Z", since_1970.subsec_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_utc_with_nanoseconds() {
        let time = timestamp(Duration::new(1_700_000_000, 5));
        assert_eq!(time, "2023-11-14T22:13:20.000000005Z");
    }
}
