//! llama.cpp's own API: `POST /completion` and `/infill`, `GET /props`.

use std::{sync::Arc, time::Instant};

use axum::{
    Json,
    extract::State,
    http::Uri,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use tokenmill::{
    Error, TextParams,
    images::image_of_url,
    stream::{ScoredToken, TextEnd, TextEvent},
    text::Prompt,
};
use tokenmill_sched::{Canceller, FinishReason};
use tokenmill_text::{DecodeOptions, EncodeOptions};

use crate::{
    ApiError, App, Dialect, ServedModel,
    answers::{
        reply::collect_showing,
        score_sheet::ScoreSheet,
        scores::{MAX_GATHERED, Scale, check_scores, entry_with_ids},
        sse::{EventFormat, Events, stream_response},
    },
    app::{Call, see},
    dialects::{
        llama_cpp::{
            CompletionRequest,
            generation_settings::{default_settings, generation_settings},
            infill::{infill_prompt, with_extra},
            line_bounds::LineBounds,
            with_defaults,
        },
        openai::Stop,
    },
    endpoints::tables,
    models::{Models, OneModel, name_of_query},
    requests::{
        constraints::requested_constraint,
        fields::{Body, Field},
        raw_prompt::{MEDIA_MARK, OneRawPrompt, PromptPiece, RawPrompt},
    },
    telemetry::{outcome::timings, request_id::RequestId, stream_progress::StreamProgress},
};

/// Continues a text.
pub(crate) async fn completion(app: Arc<App>, mut call: Call) -> Result<Response, ApiError> {
    let (body, request) = read(&app, &mut call, tables::llama_completion())?;
    let prompts = match &request.prompt {
        None => return Err(ApiError::invalid("prompt", "this field is required")),
        Some(prompt) => prompt.prompts("prompt")?,
    };
    let maximum = app.config.max_prompts;
    if prompts.len() > maximum {
        let reason = format!("{} prompts, at most {maximum} in a request", prompts.len());
        return Err(ApiError::invalid("prompt", reason));
    }
    if let [prompt] = &prompts[..]
        && !prompt.images.is_empty()
    {
        let prompt = with_images(&app, prompt)?;
        return Box::pin(answer(app, &mut call, &body, &request, vec![prompt])).await;
    }
    if prompts.iter().any(|prompt| !prompt.images.is_empty()) {
        let reason = "a prompt with images must be the only one of its request";
        return Err(ApiError::invalid("prompt", reason));
    }
    let encode = |prompt: &OneRawPrompt| Prompt::of_text(encode_pieces(&app.model, &prompt.pieces));
    let prompts = prompts.iter().map(encode).collect();
    Box::pin(answer(app, &mut call, &body, &request, prompts)).await
}

/// Encodes a prompt; only its first piece gets the tokens that begin and end a text.
pub(crate) fn encode_pieces(model: &ServedModel, pieces: &[PromptPiece]) -> Vec<u32> {
    let mut tokens = Vec::with_capacity(pieces.len());
    for (piece_idx, piece) in pieces.iter().enumerate() {
        match piece {
            PromptPiece::Token(id) => tokens.push(*id),
            PromptPiece::Text(text) if piece_idx == 0 => tokens.extend(model.encode_prompt(text)),
            PromptPiece::Text(text) => {
                let options = EncodeOptions {
                    add_special: false,
                    parse_special: true,
                };
                tokens.extend(model.tokenizer().encode(text, options));
            }
        }
    }
    tokens
}

/// Builds a prompt from a text with images, which are not encoded yet.
fn with_images(app: &App, prompt: &OneRawPrompt) -> Result<Prompt, ApiError> {
    app.model.model().words().check_images(prompt.images.len())?;
    let files = prompt.images.iter().enumerate().map(|(index, base64)| {
        let file = image_of_url(&format!("data:;base64,{base64}")).ok();
        let file = file.filter(|file| !file.is_empty());
        let param = format!("prompt.multimodal_data[{index}]");
        file.map(Arc::from)
            .ok_or_else(|| ApiError::invalid(param, "expected an image in base64"))
    });
    let files = files.collect::<Result<Vec<Arc<[u8]>>, _>>()?;
    let Some(PromptPiece::Text(text)) = prompt.pieces.first() else {
        return Err(ApiError::invalid("prompt", "images need a text"));
    };
    let prompt = app
        .model
        .model()
        .words()
        .prompt_with_images(text, MEDIA_MARK, files);
    prompt.map_err(|error| match error {
        Error::ImagePlaces { .. } | Error::Image { .. } | Error::NoVision | Error::SeesNoImages { .. } => {
            ApiError::invalid("prompt", error.to_string())
        }
        error => error.into(),
    })
}

/// Writes the text between two texts.
pub(crate) async fn infill(app: Arc<App>, mut call: Call) -> Result<Response, ApiError> {
    let (body, request) = read(&app, &mut call, tables::llama_infill())?;
    let tokenizer = app.model.tokenizer();
    let begun = match &request.prompt {
        None => Vec::new(),
        Some(RawPrompt::Text(text)) => {
            let options = EncodeOptions {
                add_special: false,
                parse_special: true,
            };
            tokenizer.encode(text, options)
        }
        Some(RawPrompt::Tokens(ids)) => ids.clone(),
        Some(RawPrompt::List(_) | RawPrompt::Object(_)) => {
            return Err(ApiError::invalid(
                "prompt",
                "expected a string or a list of token ids",
            ));
        }
    };
    let tokens = infill_prompt(
        tokenizer,
        "input_suffix",
        (&request.input_prefix, &begun),
        &request.input_suffix,
    )?;
    let n_taken = tokens
        .len()
        .saturating_add(request.n_answer(app.engine().limits().n_ctx));
    let n_most = app.engine().limits().n_ctx.saturating_sub(n_taken);
    let tokens = with_extra(tokenizer, tokens, &request.input_extra, n_most);
    let prompts = vec![Prompt::of_text(tokens)];
    Box::pin(answer(app, &mut call, &body, &request, prompts)).await
}

fn read(app: &App, call: &mut Call, fields: &[Field]) -> Result<(Body, CompletionRequest), ApiError> {
    let body = with_defaults(call.parse(fields)?);
    call.constraint = requested_constraint(&body)?;
    let request: CompletionRequest = body.read()?;
    call.choose(app, request.model.as_deref())?;
    Ok((body, request))
}

async fn answer(
    app: Arc<App>,
    call: &mut Call,
    body: &Body,
    request: &CompletionRequest,
    mut prompts: Vec<Prompt>,
) -> Result<Response, ApiError> {
    let mut params = TextParams {
        max_tokens: request.max_tokens(),
        ignore_eos: request.ignore_eos,
        stops: (request.stop.as_ref()).map_or_else(|| Ok(Vec::new()), Stop::to_strings)?,
        ..call.text_params(&app, body.read()?)?
    };
    params.sampling.n_logprobs = request.n_logprobs()?;
    params.sampling.scores_draw = request.post_sampling_probs;
    params.engine.reports_prefill = request.stream && request.progress().needs_prefill();
    // Before anything is made of it: its text is many times as long as its tokens.
    let n_ctx = app.engine().limits().n_ctx;
    if let Some(long) = prompts.iter().find(|prompt| prompt.tokens.len() > n_ctx) {
        return Err(ApiError::ContextLengthExceeded {
            provided: long.tokens.len(),
            maximum: n_ctx,
        });
    }
    if !request.stream {
        check_scores("n_probs", &params, prompts.len(), n_ctx, MAX_GATHERED)?;
    }
    // Only a request's single prompt may have images.
    if let [prompt] = &mut prompts[..] {
        let shown = std::mem::replace(prompt, Prompt::of_text(Vec::new()));
        let seen = Box::pin(see(&app, shown, &params)).await?;
        params.engine.media = Arc::clone(&seen.media);
        *prompt = seen;
    }
    let prompts: Vec<Vec<u32>> = prompts.into_iter().map(|prompt| prompt.tokens).collect();
    let first = prompts.first().map_or(&[][..], Vec::as_slice);
    let slot = app.slots.choose(request.slot(), first, call.asker(&params));
    call.slot = Some(slot);
    let mut writer = Writer {
        slot,
        app: Arc::clone(&app),
        params: params.clone(),
        progress: StreamProgress::new(request.progress(), prompts.len(), 1),
        answers: (prompts.iter())
            .map(|tokens| AnswerSoFar {
                prompt: tokens.clone(),
                n_sent: 0,
                has_new_line: false,
                bounds: request.line_bounds(),
                canceller: None,
            })
            .collect(),
        request: request.clone(),
    };
    let text = call.generate(&app, prompts, &params).await?;
    for (answer, canceller) in writer.answers.iter_mut().zip(text.cancellers()) {
        answer.canceller = Some(canceller);
    }
    if request.stream {
        return Ok(stream_response(&app, call, text, writer));
    }
    let mut shown = vec![String::new(); writer.answers.len()];
    let samples = collect_showing(text, &app, call, |event| {
        if let TextEvent::Delta(delta) = event {
            let sample = delta.sample as usize;
            shown[sample].push_str(writer.answers[sample].shown(&delta.text));
        }
    });
    let samples = samples.await?;
    let mut sheet = ScoreSheet::of_scale(app.model.tokenizer(), Scale::of(&params.sampling));
    let replies = samples.iter().zip(&shown).map(|(sample, shown)| {
        let mut reply = writer.end_of(&sample.end, shown, shown.contains('\n'));
        if request.return_tokens {
            reply["tokens"] = sample.tokens.iter().map(|token| token.id).collect();
        }
        if params.sampling.n_logprobs.is_some() {
            reply["completion_probabilities"] = sheet.with_ids(&sample.tokens);
        }
        request.wanted(reply)
    });
    let mut replies: Vec<Value> = replies.collect();
    // As in llama.cpp, whether the prompt was single or in a list.
    let reply = match replies.len() {
        1 => replies.remove(0),
        _ => replies.into(),
    };
    Ok(sheet.response(&reply))
}

/// Tracks the written part of the answer to a prompt.
struct AnswerSoFar {
    prompt: Vec<u32>,
    n_sent: usize,
    has_new_line: bool,
    bounds: LineBounds,
    /// Ends the answer where its lines do.
    canceller: Option<Canceller>,
}

impl AnswerSoFar {
    /// Returns the shown part of a piece; the answer ends at its limit of lines.
    fn shown<'t>(&mut self, text: &'t str) -> &'t str {
        if self.bounds.has_ended() {
            return "";
        }
        let shown = self.bounds.take(text, Instant::now());
        if self.bounds.has_ended() {
            self.canceller.iter().for_each(Canceller::cancel);
        }
        shown
    }
}

/// An answer in llama.cpp's words: one event for each piece, one for the end.
struct Writer {
    /// The slot that it is noted in.
    slot: usize,
    app: Arc<App>,
    params: TextParams,
    progress: StreamProgress,
    /// One for each prompt.
    answers: Vec<AnswerSoFar>,
    request: CompletionRequest,
}

impl Writer {
    fn scores(&self, tokens: &[ScoredToken]) -> Value {
        let tokenizer = self.app.model.tokenizer();
        (tokens.iter())
            .map(|token| entry_with_ids(tokenizer, token, Scale::of(&self.params.sampling)))
            .collect()
    }

    fn end_of(&self, end: &TextEnd, text: &str, has_new_line: bool) -> Value {
        let usage = end.finished.usage;
        let answer = &self.answers[end.sample as usize];
        let options = DecodeOptions {
            skip_special: false,
            is_continuation: true,
        };
        let stop = end.stopped_by.and_then(|index| self.params.stops.get(index));
        let stop_type = match (stop, end.finished.reason) {
            (Some(_), _) => "word",
            _ if answer.bounds.has_ended() => "limit",
            (None, FinishReason::Length) => "limit",
            (None, FinishReason::Stop | FinishReason::Cancelled) => "eos",
        };
        let n_ctx = self.app.engine().limits().n_ctx;
        let is_limited = self
            .params
            .max_tokens
            .is_some_and(|maximum| usage.completion_tokens >= maximum as usize);
        let filled_context = end.finished.reason == FinishReason::Length
            && !is_limited
            && usage.prompt_tokens + usage.completion_tokens >= n_ctx;
        json!({
            "index": end.sample,
            "content": text,
            "tokens": [],
            "id_slot": self.slot,
            "stop": true,
            "model": self.app.model.name(),
            "tokens_predicted": usage.completion_tokens,
            "tokens_evaluated": usage.prompt_tokens,
            "tokens_cached": usage.cached_tokens,
            "generation_settings": generation_settings(
                &self.params,
                n_ctx,
                self.app.model.model().words().end_ids(),
            ),
            "prompt": self.app.model.tokenizer().decode(&answer.prompt, options),
            "has_new_line": has_new_line,
            "truncated": usage.dropped_tokens > 0 || filled_context,
            "stop_type": stop_type,
            "stopping_word": stop.map_or("", String::as_str),
            "timings": timings(end),
        })
    }
}

impl EventFormat for Writer {
    fn begin(&mut self, _out: &mut Events) {}

    fn take(&mut self, event: &TextEvent, out: &mut Events) {
        match event {
            TextEvent::Prefill(report) => {
                if let Some(progress) = self.progress.take_prefill(report) {
                    let prompt = &self.answers[report.sample as usize].prompt;
                    out.data(&json!({
                        "index": report.sample,
                        "content": "",
                        "tokens": [],
                        "stop": false,
                        "id_slot": self.slot,
                        "tokens_predicted": 0,
                        "tokens_evaluated": prompt.len(),
                        "prompt_progress": progress,
                    }));
                }
            }
            TextEvent::Delta(delta) => {
                self.progress.take_delta(delta);
                let answer = &mut self.answers[delta.sample as usize];
                let text = answer.shown(&delta.text);
                answer.n_sent += delta.tokens.len();
                answer.has_new_line |= text.contains('\n');
                let ids: Vec<u32> = delta.tokens.iter().map(|token| token.id).collect();
                let mut piece = json!({
                    "index": delta.sample,
                    "content": text,
                    "tokens": ids,
                    "stop": false,
                    "id_slot": self.slot,
                    "tokens_predicted": answer.n_sent,
                    "tokens_evaluated": answer.prompt.len(),
                });
                if self.params.sampling.n_logprobs.is_some() {
                    piece["completion_probabilities"] = self.scores(&delta.tokens);
                }
                self.progress.add_timings(delta.sample, &mut piece);
                out.data(&piece);
            }
            TextEvent::Finished(end) => {
                let has_new_line = self.answers[end.sample as usize].has_new_line;
                let end = self.end_of(end, "", has_new_line);
                out.data(&self.request.wanted(end));
            }
            TextEvent::Failed { .. } => {}
        }
    }

    fn end(&mut self, _out: &mut Events) {}

    fn fail(&mut self, error: &ApiError, request_id: &RequestId, out: &mut Events) {
        out.data(&error.body(Dialect::OpenAi, request_id.as_str()));
    }
}

/// Returns the model and the default settings, as llama.cpp's `/props`. If no model is named and none is loaded, it reports that the models
/// sleep and loads none.
pub(crate) async fn props(
    State(models): State<Models>,
    one: Result<OneModel, Response>,
    uri: Uri,
) -> Response {
    let config = models.config();
    let settings = default_settings(&config.defaults.sampling, config.defaults.max_tokens);
    let build_info = concat!("build-", env!("CARGO_PKG_VERSION"), "-tokenmill");
    let one = match one {
        Ok(one) => one,
        Err(_) if name_of_query(&uri).is_none() => {
            return Json(json!({
                "default_generation_settings": { "params": settings },
                "model_alias": models.names().first(),
                "build_info": build_info,
                "is_sleeping": true,
            }))
            .into_response();
        }
        Err(refused) => return refused,
    };
    let app = one.app();
    let tokenizer = app.model.tokenizer();
    let text = |id: Option<u32>| {
        let bytes = id.and_then(|id| tokenizer.token_bytes(id)).unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    };
    let template = app.model.model().words().template();
    let names = |name: &str| template.is_some_and(|template| template.names(name));
    Json(json!({
        "default_generation_settings": { "n_ctx": app.engine().limits().n_ctx, "params": settings },
        "total_slots": app.engine().config().max_running,
        "model_alias": app.model.name(),
        "model_path": app.model.model().name(),
        "chat_template": app.model.chat_template().unwrap_or_default(),
        "chat_template_caps": {
            "supports_tools": names("tools"),
            "supports_tool_calls": names("tool_calls"),
            "supports_reasoning": names("enable_thinking") || names("thinking") || names("reasoning_effort"),
            "supports_preserve_reasoning": names("reasoning_content"),
        },
        "bos_token": text(tokenizer.bos()),
        "eos_token": text(tokenizer.eos()),
        "modalities": { "vision": app.model.model().sees(), "audio": false },
        "build_info": build_info,
        "is_sleeping": false,
    }))
    .into_response()
}
