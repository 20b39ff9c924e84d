//! `POST /v1/chat/completions`.

use std::{
    collections::{BTreeSet, HashMap},
    mem,
    sync::Arc,
};

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use tokenmill::{
    TextParams, ToolCall,
    stream::{Sample, TextEvent},
    text::Prompt,
    tools::Part,
};
use tokenmill_text::DecodeOptions;

use crate::{
    ApiError, App, Dialect,
    answers::{
        reply::collect_showing,
        score_sheet::ScoreSheet,
        scores::{MAX_GATHERED, Scale, chat_logprobs, check_scores},
        sse::{EventFormat, Events, stream_response},
    },
    app::{Call, served_model::unix_seconds},
    dialects::openai::{
        Stop, StreamOptions,
        chat::{CHAT_WORDING, ChatRequest, template_messages},
        check_min_tokens, check_n,
    },
    endpoints::{media_folder::read_images, render::Rendered, tables},
    requests::{earlier_calls::CUSTOM_INPUT, intake::Share},
    telemetry::{
        outcome::{SYSTEM_FINGERPRINT, TokenCounts, finish_reason, timings},
        request_id::{RequestId, unique_id},
        stream_progress::StreamProgress,
    },
};

/// Answers a chat request, streamed or whole.
pub(crate) async fn chat(app: Arc<App>, mut call: Call) -> Result<Response, ApiError> {
    let mut share = mem::take(&mut call.body.share);
    let (request, fields) = call.read_with_sampling::<ChatRequest>(tables::chat())?;
    let model = &app.model;
    let served = call.choose(&app, request.model.as_deref())?;
    let options = StreamOptions::check(request.stream_options, request.stream)?;
    let mut params = TextParams {
        max_tokens: request.max_tokens()?,
        n: check_n(request.n, app.config.max_n)?,
        ignore_eos: request.ignore_eos,
        thinking_budget: request.thinking_budget()?,
        ..call.text_params(&app, fields)?
    };
    params.sampling.n_logprobs = request.n_logprobs()?;
    params.sampling.scores_draw = request.post_sampling_probs;
    let has_logprobs = params.sampling.n_logprobs.is_some();
    let scale = Scale::of(&params.sampling);
    let progress = request.progress();
    params.engine.reports_prefill = request.stream && progress.needs_prefill();
    check_min_tokens(params.min_tokens, params.max_tokens)?;
    params.stops = request
        .stop
        .as_ref()
        .map_or_else(|| Ok(Vec::new()), Stop::to_strings)?;
    let is_stream = request.stream;
    if !is_stream {
        check_scores(
            "top_logprobs",
            &params,
            1,
            app.engine().limits().n_ctx,
            MAX_GATHERED,
        )?;
    }
    let tells_tokens = request.return_token_ids;
    let is_verbose = request.verbose;
    let (prompt, custom) = prompt(&app, request, &mut share).await?;
    let verbose_prompt = is_verbose.then(|| {
        let options = DecodeOptions {
            skip_special: false,
            is_continuation: true,
        };
        model.tokenizer().decode(&prompt.tokens, options)
    });
    let prompt_token_ids = tells_tokens.then(|| prompt.tokens.clone());
    let mut stream = call.answer(&app, prompt, params.clone(), share).await?;
    if tells_tokens {
        stream = stream.telling_tokens();
    }
    let head = Head {
        id: unique_id("chatcmpl-"),
        created_s: unix_seconds(),
    };
    if is_stream {
        let format = ChatEvents {
            app: Arc::clone(&app),
            served,
            head,
            n: params.n,
            has_logprobs,
            scale,
            progress: StreamProgress::new(progress, 1, params.n as usize),
            prompt_token_ids,
            tells_tokens,
            includes_usage: options.include_usage,
            usage: TokenCounts::default(),
            custom,
            inputs: HashMap::new(),
            verbose_prompt,
            timings: Value::Null,
        };
        return Ok(stream_response(&app, &call, stream, format));
    }

    let mut token_ids = vec![Vec::new(); stream.n_samples()];
    let take_id = |event: &TextEvent| {
        if let TextEvent::Delta(delta) = event {
            token_ids[delta.sample as usize].extend(delta.sampled);
        }
    };
    let samples = collect_showing(stream, &app, &call, take_id).await?;
    let mut sheet = ScoreSheet::of_scale(model.tokenizer(), scale);
    let choices: Vec<Value> = samples
        .iter()
        .map(|sample| {
            let mut choice = json!({
                "index": sample.end.sample,
                "message": message(sample, &custom),
                "logprobs": has_logprobs.then(|| sheet.chat(&sample.tokens)),
                "finish_reason": finish_reason(&sample.end),
            });
            if tells_tokens {
                choice["token_ids"] = token_ids[sample.end.sample as usize].as_slice().into();
            }
            choice
        })
        .collect();
    let mut reply = json!({
        "id": head.id,
        "object": "chat.completion",
        "created": head.created_s,
        "model": served,
        "system_fingerprint": SYSTEM_FINGERPRINT,
        "choices": choices,
        "usage": TokenCounts::of_samples(&samples).to_openai(),
        "timings": timings(&samples[0].end),
    });
    if let Some(ids) = prompt_token_ids {
        reply["prompt_token_ids"] = ids.into();
    }
    if let Some(prompt) = verbose_prompt {
        reply["__verbose"] = json!({ "prompt": prompt });
    }
    Ok(sheet.response(&reply))
}

/// Builds a request's prompt; returns it with the names of its custom tools.
async fn prompt(
    app: &App,
    mut request: ChatRequest,
    share: &mut Share,
) -> Result<(Prompt, BTreeSet<String>), ApiError> {
    let turn = request.turn()?;
    let tools = request.tools()?;
    let variables = request.variables()?;
    let mut messages = template_messages(request.messages, &CHAT_WORDING)?;
    read_images(app, share, &mut messages).await?;
    let prompt = app.model.prompt(&messages, &tools, turn, variables)?;
    Ok((prompt, tools.custom().clone()))
}

/// Returns a custom tool's text from the arguments of its call.
fn custom_input(call: &ToolCall) -> Value {
    let mut arguments = call.whole_arguments();
    let input = arguments.remove(CUSTOM_INPUT);
    input.filter(Value::is_string).unwrap_or_else(|| "".into())
}

/// An answer as a message, which can be sent back as it is.
fn message(sample: &Sample, custom: &BTreeSet<String>) -> Value {
    let mut message = json!({ "role": "assistant", "content": sample.text, "refusal": null });
    let call = |call: &ToolCall| {
        if !custom.contains(&call.name) {
            return call.to_openai();
        }
        let described = json!({ "name": call.name, "input": custom_input(call) });
        json!({ "id": call.id, "type": "custom", "custom": described })
    };
    let calls: Vec<Value> = sample.all_calls().map(call).collect();
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
        if sample.text.is_empty() {
            message["content"] = Value::Null;
        }
    }
    if !sample.reasoning.is_empty() {
        message["reasoning_content"] = sample.reasoning.as_str().into();
        message["reasoning"] = sample.reasoning.as_str().into();
    }
    message
}

/// A part of an answer as the delta of a chunk; `None` where it says nothing.
fn delta_of(part: &Part) -> Option<Value> {
    Some(match part {
        Part::Text(text) => json!({ "content": text }),
        Part::Reasoning(text) => json!({ "reasoning_content": text, "reasoning": text }),
        Part::CallStart { call_idx, id, name } => {
            let function = json!({ "name": name, "arguments": "" });
            json!({ "tool_calls": [{ "index": call_idx, "id": id, "type": "function", "function": function }] })
        }
        Part::Arguments { call_idx, delta } => {
            json!({ "tool_calls": [{ "index": call_idx, "function": { "arguments": delta } }] })
        }
        // A broken call is text.
        Part::CallBroken { source, .. } => json!({ "content": source }),
        Part::CallEnd { .. } | Part::CallCut { .. } | Part::Markup => return None,
    })
}

/// The prompt of a request as token ids, in the form of vLLM's endpoint, for routers that know which replica has cached it.
pub(crate) async fn render(app: Arc<App>, mut call: Call) -> Result<Response, ApiError> {
    let mut share = mem::take(&mut call.body.share);
    let (request, fields) = call.read_with_sampling::<ChatRequest>(tables::chat())?;
    app.model.check_name(request.model.as_deref())?;
    call.text_params(&app, fields)?;
    let token_ids = prompt(&app, request, &mut share).await?.0.tokens;
    Ok(Json(Rendered::new(&app, "chatcmpl-", token_ids)).into_response())
}

/// Counts the tokens of a request's prompt without generating, as llama.cpp does.
pub(crate) async fn count_tokens(app: Arc<App>, mut call: Call) -> Result<Response, ApiError> {
    let mut share = mem::take(&mut call.body.share);
    let (request, _) = call.read_with_sampling::<ChatRequest>(tables::chat())?;
    app.model.check_name(request.model.as_deref())?;
    let n_tokens = prompt(&app, request, &mut share).await?.0.tokens.len();
    Ok(Json(json!({ "object": "response.input_tokens", "input_tokens": n_tokens })).into_response())
}

struct Head {
    id: String,
    created_s: u64,
}

/// The stream: one chunk for each delta, one for each end, the usage if requested.
struct ChatEvents {
    app: Arc<App>,
    /// The name that the response carries.
    served: String,
    head: Head,
    n: u32,
    has_logprobs: bool,
    scale: Scale,
    progress: StreamProgress,
    /// For the first chunk.
    prompt_token_ids: Option<Vec<u32>>,
    tells_tokens: bool,
    includes_usage: bool,
    usage: TokenCounts,
    /// Names of custom tools.
    custom: BTreeSet<String>,
    /// Open calls of custom tools, by sample and index; their text is known when they end.
    inputs: HashMap<(u32, usize), ToolCall>,
    /// The prompt, if the request asks for it.
    verbose_prompt: Option<String>,
    /// Timings of the first sample that ended.
    timings: Value,
}

impl ChatEvents {
    /// Converts a part to the delta of a chunk; `None` if the chunk would be empty.
    fn delta_of(&mut self, sample: u32, part: &Part) -> Option<Value> {
        match part {
            Part::CallStart { call_idx, id, name } if self.custom.contains(name) => {
                self.inputs.insert((sample, *call_idx), ToolCall::default());
                let custom = json!({ "name": name, "input": "" });
                Some(
                    json!({ "tool_calls": [{ "index": call_idx, "id": id, "type": "custom", "custom": custom }] }),
                )
            }
            Part::Arguments { call_idx, delta } if self.inputs.contains_key(&(sample, *call_idx)) => {
                self.inputs
                    .entry((sample, *call_idx))
                    .or_default()
                    .arguments
                    .push_str(delta);
                None
            }
            Part::CallEnd { call_idx } | Part::CallCut { call_idx } => {
                let call = self.inputs.remove(&(sample, *call_idx))?;
                let custom = json!({ "input": custom_input(&call) });
                Some(json!({ "tool_calls": [{ "index": call_idx, "custom": custom }] }))
            }
            part => delta_of(part),
        }
    }

    fn chunk(&self, choices: &Value) -> Value {
        let mut chunk = json!({
            "id": self.head.id,
            "object": "chat.completion.chunk",
            "created": self.head.created_s,
            "model": self.served,
            "system_fingerprint": SYSTEM_FINGERPRINT,
            "choices": choices,
        });
        if self.includes_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn choice(index: u32, delta: &Value, logprobs: Option<&Value>, finish: Option<&str>) -> Value {
        json!([{ "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish }])
    }
}

impl EventFormat for ChatEvents {
    fn begin(&mut self, out: &mut Events) {
        for index in 0..self.n {
            let delta = json!({ "role": "assistant", "content": "" });
            let mut chunk = self.chunk(&Self::choice(index, &delta, None, None));
            if let Some(ids) = self.prompt_token_ids.take() {
                chunk["prompt_token_ids"] = ids.into();
            }
            out.data(&chunk);
        }
    }

    fn take(&mut self, event: &TextEvent, out: &mut Events) {
        match event {
            TextEvent::Prefill(report) => {
                if let Some(progress) = self.progress.take_prefill(report) {
                    let mut chunk = self.chunk(&Self::choice(report.sample, &json!({}), None, None));
                    chunk["prompt_progress"] = progress;
                    out.data(&chunk);
                }
            }
            TextEvent::Delta(delta) => {
                self.progress.take_delta(delta);
                let logprobs = self
                    .has_logprobs
                    .then(|| chat_logprobs(self.app.model.tokenizer(), &delta.tokens, self.scale));
                let parts = delta.parts.iter();
                let mut deltas: Vec<Value> = parts
                    .filter_map(|part| self.delta_of(delta.sample, part))
                    .collect();
                if deltas.is_empty() && (logprobs.is_some() || delta.sampled.is_some()) {
                    deltas.push(json!({}));
                }
                for (index, content) in deltas.iter().enumerate() {
                    let logprobs = logprobs.as_ref().filter(|_| index == 0);
                    let mut choice = Self::choice(delta.sample, content, logprobs, None);
                    if self.tells_tokens {
                        let sampled = delta.sampled.filter(|_| index == 0);
                        choice[0]["token_ids"] = sampled.into_iter().collect::<Vec<u32>>().into();
                    }
                    let mut chunk = self.chunk(&choice);
                    self.progress.add_timings(delta.sample, &mut chunk);
                    out.data(&chunk);
                }
            }
            TextEvent::Finished(end) => {
                self.usage.add(end);
                let choice = Self::choice(end.sample, &json!({}), None, Some(finish_reason(end)));
                let mut chunk = self.chunk(&choice);
                let timings = timings(end);
                if self.timings.is_null() {
                    self.timings = timings.clone();
                }
                chunk["timings"] = timings;
                if let Some(prompt) = self.verbose_prompt.take() {
                    chunk["__verbose"] = json!({ "prompt": prompt });
                }
                out.data(&chunk);
            }
            TextEvent::Failed { .. } => {}
        }
    }

    fn end(&mut self, out: &mut Events) {
        if self.includes_usage {
            let mut chunk = self.chunk(&json!([]));
            chunk["usage"] = self.usage.to_openai();
            chunk["timings"] = self.timings.take();
            out.data(&chunk);
        }
        out.done();
    }

    fn fail(&mut self, error: &ApiError, request_id: &RequestId, out: &mut Events) {
        out.data(&error.body(Dialect::OpenAi, request_id.as_str()));
        out.done();
    }
}
