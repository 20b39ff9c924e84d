//! llama.cpp's own API: `POST /completion` and `/infill`, `GET /props`.

use std::{sync::Arc, time::Instant};

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use tokenmill::{ScoredToken, TextEnd, TextEvent, TextParams};
use tokenmill_backend::MirostatVersion;
use tokenmill_sched::{Canceller, FinishReason};
use tokenmill_text::{DecodeOptions, EncodeOptions, Tokenizer};

use crate::{
    ApiError, App, Dialect,
    app::Call,
    constraints::asked,
    fields::{Body, Field},
    infill::{infill_prompt, with_extra},
    line_bounds::LineBounds,
    llama_cpp::{CompletionRequest, PromptPiece, RawPrompt, defaults, with_defaults},
    models::OneModel,
    openai::Stop,
    outcome::timings,
    reply::collect_showing,
    request_id::RequestId,
    score_sheet::ScoreSheet,
    scores::{MAX_GATHERED, check_scores, entry_with_ids},
    sse::{EventFormat, Events, stream_response},
    tables,
};

/// Continues a text.
pub(crate) async fn completion(app: Arc<App>, mut call: Call) -> Result<Response, ApiError> {
    let (body, request) = read(&app, &mut call, tables::llama_completion())?;
    let prompts = match &request.prompt {
        None => return Err(ApiError::invalid("prompt", "this field is required")),
        Some(prompt) => prompt.prompts()?,
    };
    let maximum = app.config.max_prompts;
    if prompts.len() > maximum {
        let reason = format!("{} prompts, at most {maximum} in a request", prompts.len());
        return Err(ApiError::invalid("prompt", reason));
    }
    let tokenizer = app.model.tokenizer();
    let prompts = prompts.iter().map(|pieces| encode(tokenizer, pieces)).collect();
    answer(app, &mut call, &body, &request, prompts).await
}

/// The tokens of a prompt; what begins and ends a text is added to its first piece alone.
fn encode(tokenizer: &Tokenizer, pieces: &[PromptPiece]) -> Vec<u32> {
    let mut tokens = Vec::with_capacity(pieces.len());
    for (piece_idx, piece) in pieces.iter().enumerate() {
        match piece {
            PromptPiece::Token(id) => tokens.push(*id),
            PromptPiece::Text(text) => {
                let options = EncodeOptions {
                    add_special: piece_idx == 0,
                    parse_special: true,
                };
                tokens.extend(tokenizer.encode(text, options));
            }
        }
    }
    tokens
}

/// Writes what stands between two texts.
pub(crate) async fn infill(app: Arc<App>, mut call: Call) -> Result<Response, ApiError> {
    let (body, request) = read(&app, &mut call, tables::llama_infill())?;
    let tokenizer = app.model.tokenizer();
    let mut tokens = infill_prompt(
        tokenizer,
        "input_suffix",
        &request.input_prefix,
        &request.input_suffix,
    )?;
    match &request.prompt {
        None => {}
        Some(RawPrompt::Text(text)) => tokens.extend(app.model.encode_text(text, false)),
        Some(RawPrompt::Tokens(ids)) => tokens.extend(ids),
        Some(RawPrompt::List(_)) => {
            return Err(ApiError::invalid(
                "prompt",
                "expected a string or a list of token ids",
            ));
        }
    }
    let n_taken = tokens
        .len()
        .saturating_add(request.n_answer(app.engine().limits().n_ctx));
    let n_most = app.engine().limits().n_ctx.saturating_sub(n_taken);
    let tokens = with_extra(tokenizer, tokens, &request.input_extra, n_most);
    answer(app, &mut call, &body, &request, vec![tokens]).await
}

fn read(app: &App, call: &mut Call, fields: &[Field]) -> Result<(Body, CompletionRequest), ApiError> {
    let body = with_defaults(call.parse(fields)?);
    call.asked = asked(&body)?;
    let request: CompletionRequest = body.read()?;
    call.choose(app, request.model.as_deref())?;
    Ok((body, request))
}

async fn answer(
    app: Arc<App>,
    call: &mut Call,
    body: &Body,
    request: &CompletionRequest,
    prompts: Vec<Vec<u32>>,
) -> Result<Response, ApiError> {
    let mut params = TextParams {
        max_tokens: request.max_tokens(),
        ignore_eos: request.ignore_eos,
        stops: (request.stop.as_ref()).map_or_else(|| Ok(Vec::new()), Stop::to_strings)?,
        ..call.text_params(&app, body.read()?)?
    };
    params.sampling.n_logprobs = request.n_logprobs()?;
    // Before anything is made of it: its text is many times as long as its tokens.
    let n_ctx = app.engine().limits().n_ctx;
    if let Some(long) = prompts.iter().find(|tokens| tokens.len() > n_ctx) {
        return Err(ApiError::ContextLengthExceeded {
            provided: long.len(),
            maximum: n_ctx,
        });
    }
    if !request.stream {
        check_scores("n_probs", &params, prompts.len(), n_ctx, MAX_GATHERED)?;
    }
    let first = prompts.first().map_or(&[][..], Vec::as_slice);
    let slot = app.slots.choose(request.slot(), first, call.asker(&params));
    call.slot = Some(slot);
    let mut writer = Writer {
        slot,
        app: Arc::clone(&app),
        params: params.clone(),
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
    let mut sheet = ScoreSheet::new(app.model.tokenizer());
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
    // As llama.cpp does, whether the prompt stood alone or in a list.
    let reply = match replies.len() {
        1 => replies.remove(0),
        _ => replies.into(),
    };
    Ok(sheet.response(&reply))
}

/// What was written of the answer to a prompt.
struct AnswerSoFar {
    prompt: Vec<u32>,
    n_sent: usize,
    has_new_line: bool,
    bounds: LineBounds,
    /// Ends the answer where its lines do.
    canceller: Option<Canceller>,
}

impl AnswerSoFar {
    /// What of a piece is shown; the answer ends where its lines say so.
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
    /// One for each prompt.
    answers: Vec<AnswerSoFar>,
    request: CompletionRequest,
}

impl Writer {
    fn scores(&self, tokens: &[ScoredToken]) -> Value {
        let tokenizer = self.app.model.tokenizer();
        (tokens.iter())
            .map(|token| entry_with_ids(tokenizer, token))
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
        let sampling = &self.params.sampling;
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
            "generation_settings": {
                "n_ctx": self.app.engine().limits().n_ctx,
                "n_predict": self.params.max_tokens.map_or(-1, i64::from),
                "seed": sampling.seed,
                "temperature": sampling.temperature,
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
                "min_p": sampling.min_p,
                "typical_p": sampling.typical_p,
                "top_n_sigma": sampling.top_n_sigma,
                "xtc_probability": sampling.xtc.map_or(0.0, |xtc| xtc.probability),
                "dynatemp_range": sampling.dynamic_temperature.map_or(0.0, |dynamic| dynamic.range),
                "mirostat": match sampling.mirostat.as_ref().map(|mirostat| mirostat.version) {
                    None => 0,
                    Some(MirostatVersion::One) => 1,
                    Some(MirostatVersion::Two) => 2,
                },
                "repeat_penalty": sampling.repeat_penalty,
                "presence_penalty": sampling.presence_penalty,
                "frequency_penalty": sampling.frequency_penalty,
                "stop": self.params.stops,
                "ignore_eos": self.params.ignore_eos,
            },
            "prompt": self.app.model.tokenizer().decode(&answer.prompt, options),
            "has_new_line": has_new_line,
            "truncated": usage.dropped_tokens > 0,
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
            TextEvent::Delta(delta) => {
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

/// The model and the values where requests are silent, as `/props`.
pub(crate) async fn props(one: OneModel) -> Response {
    let app = one.app();
    let tokenizer = app.model.tokenizer();
    let text = |id: Option<u32>| {
        let bytes = id.and_then(|id| tokenizer.token_bytes(id)).unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    };
    Json(json!({
        "default_generation_settings": { "n_ctx": app.engine().limits().n_ctx, "params": defaults() },
        "total_slots": app.engine().config().max_running,
        "model_alias": app.model.name(),
        "model_path": app.model.model().name(),
        "chat_template": app.model.chat_template().unwrap_or_default(),
        "bos_token": text(tokenizer.bos()),
        "eos_token": text(tokenizer.eos()),
        "modalities": { "vision": app.model.model().sees(), "audio": false },
        "build_info": concat!("tokenmill ", env!("CARGO_PKG_VERSION")),
        "is_sleeping": false,
    }))
    .into_response()
}
