//! `POST /v1/completions`.

use std::sync::Arc;

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use tokenmill::{
    TextParams,
    stream::{Sample, ScoredToken, TextEvent},
};
use tokenmill_text::DecodeOptions;

use crate::{
    ApiError, App, Dialect,
    answers::{
        prompt_scores::score_prompt,
        reply::collect_showing,
        score_sheet::ScoreSheet,
        scores::{MAX_GATHERED, MAX_IN_TREE, check_scores, completion_logprobs, scored_by_id},
        sse::{EventFormat, Events, stream_response},
    },
    app::{Call, served_model::unix_seconds},
    dialects::{
        llama_cpp::infill::infill_prompt,
        openai::{
            Stop, StreamOptions, TokenLimit, check_min_tokens, check_n,
            completion::{CompletionRequest, MAX_LOGPROBS, OnePrompt},
        },
    },
    endpoints::{llama_cpp, render::Rendered, tables},
    models::{Choice, Role},
    telemetry::{
        outcome::{SYSTEM_FINGERPRINT, TokenCounts, finish_reason, timings},
        request_id::{RequestId, unique_id},
    },
};

/// Tokens generated where the request says nothing, by the official default.
const DEFAULT_MAX_TOKENS: TokenLimit = TokenLimit::AtMost(16);

/// Most log-probabilities that the echoes of a request may hold, all choices together: some 50 MiB of text.
const MAX_ECHOED_SCORES: usize = 1 << 19;

/// The same for the scores of `prompt_logprobs`, each an object of JSON.
const MAX_SCORE_OBJECTS: usize = MAX_IN_TREE / 4;

/// Answers a completion request, streamed or whole. OpenAI's clients always name a model; a request to `/completions` without one is for
/// llama.cpp's own API.
pub(crate) async fn completions(app: Arc<App>, mut call: Call) -> Result<Response, ApiError> {
    if call.is_unversioned
        && Choice::of(Role::Chat, &call.uri, &call.body.bytes)?
            .model
            .is_none()
    {
        return llama_cpp::completion(app, call).await;
    }
    let (request, fields) = call.read_with_sampling::<CompletionRequest>(tables::completion())?;
    let served = call.choose(&app, request.model.as_deref())?;
    let options = StreamOptions::check(request.stream_options, request.stream)?;
    let n = check_n(request.n, app.config.max_n)?;
    if request.best_of.is_some_and(|best_of| best_of != n) {
        return Err(ApiError::UnsupportedField {
            param: "best_of".to_owned(),
            reason: "must equal `n`; request more choices and choose",
        });
    }
    let n_logprobs = check_logprobs(request.logprobs)?;
    let mut params = TextParams {
        max_tokens: (request.max_tokens.or(request.n_predict))
            .unwrap_or(DEFAULT_MAX_TOKENS)
            .at_most(),
        n,
        ignore_eos: request.ignore_eos,
        stops: request
            .stop
            .as_ref()
            .map_or_else(|| Ok(Vec::new()), Stop::to_strings)?,
        ..call.text_params(&app, fields)?
    };
    params.sampling.n_logprobs = n_logprobs;
    check_min_tokens(params.min_tokens, params.max_tokens)?;
    if request.echo && !request.suffix.is_empty() {
        return Err(ApiError::invalid("suffix", "contradicts `echo`"));
    }
    let prompts = encode_prompts(&app, request.prompt.into_prompts(), &request.suffix)?;
    if !request.stream {
        let n_ctx = app.engine().limits().n_ctx;
        check_scores("logprobs", &params, prompts.len(), n_ctx, MAX_GATHERED)?;
    }
    let echoes = if request.echo {
        check_echo(&prompts, n, n_logprobs, MAX_ECHOED_SCORES)?;
        echo_prompts(&app, &prompts, n_logprobs, &params).await?
    } else {
        Vec::new()
    };
    let prompt_scores = match request.prompt_logprobs {
        Some(n_top) => score_prompts(&app, &prompts, (n, n_top), &params).await?,
        None => Vec::new(),
    };
    let tells_tokens = request.return_token_ids;
    let prompt_ids = if tells_tokens { prompts.clone() } else { Vec::new() };
    let mut stream = call.generate(&app, prompts, &params).await?;
    if tells_tokens {
        stream = stream.telling_tokens();
    }
    let writer = CompletionWriter {
        app: Arc::clone(&app),
        served,
        id: unique_id("cmpl-"),
        created_s: unix_seconds(),
        has_logprobs: n_logprobs.is_some(),
        echoes,
        prompt_scores,
        prompt_ids,
        n,
    };
    if request.stream {
        let n_choices = stream.n_samples();
        let format = CompletionEvents {
            offsets: (0..n_choices)
                .map(|choice| writer.echo_of(choice).n_chars)
                .collect(),
            writer,
            includes_usage: options.include_usage,
            usage: TokenCounts::default(),
            timings: Value::Null,
            has_begun: vec![false; n_choices],
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
    let mut sheet = ScoreSheet::new(app.model.tokenizer());
    let choices = samples.iter().map(|sample| {
        let mut choice = writer.whole_choice(sample, &mut sheet);
        let choice_idx = sample.end.sample as usize;
        if tells_tokens {
            choice["token_ids"] = std::mem::take(&mut token_ids[choice_idx]).into();
        }
        writer.add_of_prompt(&mut choice, choice_idx);
        choice
    });
    let choices: Vec<Value> = choices.collect();
    let mut reply = writer.envelope(&Value::from(choices));
    reply["usage"] = TokenCounts::of_samples(&samples).to_openai();
    reply["timings"] = timings(&samples[0].end);
    Ok(sheet.response(&reply))
}

fn check_logprobs(asked: Option<u32>) -> Result<Option<u32>, ApiError> {
    match asked {
        Some(n) if n > MAX_LOGPROBS => Err(ApiError::invalid(
            "logprobs",
            format!("{n} is more than {MAX_LOGPROBS}"),
        )),
        asked => Ok(asked),
    }
}

/// Refuses an echo that would be many times as large as its request: every choice repeats the scores of its prompt.
fn check_echo(prompts: &[Vec<u32>], n: u32, n_logprobs: Option<u32>, maximum: usize) -> Result<(), ApiError> {
    let Some(n_logprobs) = n_logprobs else {
        return Ok(());
    };
    let n_tokens: usize = prompts.iter().map(Vec::len).sum();
    let n_scores = n_tokens.saturating_mul(n as usize * (n_logprobs as usize + 1));
    if n_scores > maximum {
        let reason = format!(
            "{n_tokens} prompt tokens in {n} choices with {n_logprobs} alternatives make {n_scores} log-probabilities, at \
             most {maximum} are echoed; send fewer prompts, choices or `logprobs`"
        );
        return Err(ApiError::invalid("echo", reason));
    }
    Ok(())
}

fn encode_prompts(app: &App, prompts: Vec<OnePrompt>, suffix: &str) -> Result<Vec<Vec<u32>>, ApiError> {
    if prompts.is_empty() {
        return Err(ApiError::invalid("prompt", "the list of prompts is empty"));
    }
    if prompts.len() > app.config.max_prompts {
        let reason = format!(
            "{} prompts, at most {} in a request",
            prompts.len(),
            app.config.max_prompts
        );
        return Err(ApiError::invalid("prompt", reason));
    }
    let encode = |prompt| match prompt {
        OnePrompt::Text(text) if !suffix.is_empty() => {
            infill_prompt(app.model.tokenizer(), "suffix", (&text, &[]), suffix)
        }
        OnePrompt::Text(text) => Ok(app.model.encode_prompt(&text)),
        OnePrompt::Tokens(_) if !suffix.is_empty() => {
            Err(ApiError::invalid("suffix", "needs a prompt that is a text"))
        }
        OnePrompt::Tokens(tokens) => Ok(tokens),
    };
    let prompts: Vec<Vec<u32>> = prompts.into_iter().map(encode).collect::<Result<_, _>>()?;
    // Before anything is made of them: an echo is many times as long as its tokens.
    let n_ctx = app.engine().limits().n_ctx;
    match prompts.iter().find(|prompt| prompt.len() > n_ctx) {
        Some(long) => Err(ApiError::ContextLengthExceeded {
            provided: long.len(),
            maximum: n_ctx,
        }),
        None => Ok(prompts),
    }
}

/// The prompts of a request as token ids, in the form of vLLM's endpoint.
pub(crate) async fn render(app: Arc<App>, mut call: Call) -> Result<Response, ApiError> {
    let (request, fields) = call.read_with_sampling::<CompletionRequest>(tables::completion())?;
    app.model.check_name(request.model.as_deref())?;
    call.text_params(&app, fields)?;
    let prompts = encode_prompts(&app, request.prompt.into_prompts(), &request.suffix)?;
    let rendered: Vec<Rendered> = prompts
        .into_iter()
        .map(|token_ids| Rendered::new(&app, "cmpl-", token_ids))
        .collect();
    Ok(Json(rendered).into_response())
}

/// A prompt that stands before its answers.
#[derive(Clone, Debug, Default)]
struct Echo {
    text: String,
    n_chars: usize,
    tokens: Vec<ScoredToken>,
}

/// The texts of the prompts, their tokens scored if log-probabilities are requested.
async fn echo_prompts(
    app: &App,
    prompts: &[Vec<u32>],
    n_logprobs: Option<u32>,
    params: &TextParams,
) -> Result<Vec<Echo>, ApiError> {
    let mut echoes = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        let text = app.model.tokenizer().decode(prompt, DecodeOptions::default());
        let tokens = match n_logprobs {
            Some(n) => score_prompt(&app.model, prompt, n, params).await?,
            None => Vec::new(),
        };
        echoes.push(Echo {
            n_chars: text.chars().count(),
            text,
            tokens,
        });
    }
    Ok(echoes)
}

/// Returns the scores of each prompt's tokens in vLLM's form: `null` for the first, then an object by token id.
async fn score_prompts(
    app: &App,
    prompts: &[Vec<u32>],
    (n, n_top): (u32, u32),
    params: &TextParams,
) -> Result<Vec<Value>, ApiError> {
    if n_top > MAX_LOGPROBS {
        return Err(ApiError::invalid(
            "prompt_logprobs",
            format!("{n_top} is more than {MAX_LOGPROBS}"),
        ));
    }
    check_echo(prompts, n, Some(n_top), MAX_SCORE_OBJECTS).map_err(|error| match error {
        ApiError::InvalidField { reason, .. } => ApiError::invalid("prompt_logprobs", reason),
        error => error,
    })?;
    let tokenizer = app.model.tokenizer();
    let mut scores = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        let tokens = score_prompt(&app.model, prompt, n_top, params).await?;
        scores.push(
            tokens
                .iter()
                .map(|token| scored_by_id(tokenizer, token))
                .collect(),
        );
    }
    Ok(scores)
}

struct CompletionWriter {
    app: Arc<App>,
    /// The name that the response carries.
    served: String,
    id: String,
    created_s: u64,
    has_logprobs: bool,
    echoes: Vec<Echo>,
    /// Scores of each prompt, if requested.
    prompt_scores: Vec<Value>,
    /// Token ids of each prompt, if requested.
    prompt_ids: Vec<Vec<u32>>,
    n: u32,
}

impl CompletionWriter {
    /// Adds the requested data of its prompt to a choice.
    fn add_of_prompt(&self, choice: &mut Value, choice_idx: usize) {
        let prompt_idx = choice_idx / self.n as usize;
        if let Some(ids) = self.prompt_ids.get(prompt_idx) {
            choice["prompt_token_ids"] = ids.clone().into();
        }
        if let Some(scores) = self.prompt_scores.get(prompt_idx) {
            choice["prompt_logprobs"] = scores.clone();
        }
    }

    fn envelope(&self, choices: &Value) -> Value {
        json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created_s,
            "model": self.served,
            "system_fingerprint": SYSTEM_FINGERPRINT,
            "choices": choices,
        })
    }

    fn echo_of(&self, choice: usize) -> Echo {
        self.echoes
            .get(choice / self.n as usize)
            .cloned()
            .unwrap_or_default()
    }

    fn logprobs(&self, tokens: &[ScoredToken], first_offset: usize) -> Option<Value> {
        let tokenizer = self.app.model.tokenizer();
        self.has_logprobs
            .then(|| completion_logprobs(tokenizer, tokens, first_offset))
    }

    fn whole_choice(&self, sample: &Sample, sheet: &mut ScoreSheet) -> Value {
        let echo = self.echo_of(sample.end.sample as usize);
        let tokens = [echo.tokens, sample.tokens.clone()].concat();
        // Without scored prompt tokens the first listed token follows the echoed text.
        let first_offset = if self.has_logprobs && !self.echoes.is_empty() {
            0
        } else {
            echo.n_chars
        };
        json!({
            "index": sample.end.sample,
            "text": echo.text + &sample.text,
            "logprobs": self.has_logprobs.then(|| sheet.completion(&tokens, first_offset)),
            "finish_reason": finish_reason(&sample.end),
        })
    }
}

/// The stream: the echo, one chunk for each delta, one for each end, the usage if requested.
struct CompletionEvents {
    writer: CompletionWriter,
    includes_usage: bool,
    usage: TokenCounts,
    /// Timings of the first sample that ended.
    timings: Value,
    /// Characters sent of each choice.
    offsets: Vec<usize>,
    /// Whether the data of each choice's prompt was sent.
    has_begun: Vec<bool>,
}

impl CompletionEvents {
    fn chunk(&mut self, index: usize, text: &str, logprobs: Option<&Value>, finish: Option<&str>) -> Value {
        let mut choice =
            json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": finish });
        if !std::mem::replace(&mut self.has_begun[index], true) {
            self.writer.add_of_prompt(&mut choice, index);
        }
        self.envelope(&json!([choice]))
    }

    fn envelope(&self, choices: &Value) -> Value {
        let mut chunk = self.writer.envelope(choices);
        if self.includes_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }
}

impl EventFormat for CompletionEvents {
    fn begin(&mut self, out: &mut Events) {
        if self.writer.echoes.is_empty() {
            return;
        }
        for choice in 0..self.offsets.len() {
            let echo = self.writer.echo_of(choice);
            let logprobs = self.writer.logprobs(&echo.tokens, 0);
            out.data(&self.chunk(choice, &echo.text, logprobs.as_ref(), None));
        }
    }

    fn take(&mut self, event: &TextEvent, out: &mut Events) {
        match event {
            TextEvent::Delta(delta) => {
                let choice = delta.sample as usize;
                let logprobs = self.writer.logprobs(&delta.tokens, self.offsets[choice]);
                self.offsets[choice] += delta.text.chars().count();
                let mut chunk = self.chunk(choice, &delta.text, logprobs.as_ref(), None);
                if !self.writer.prompt_ids.is_empty() {
                    let sampled: Vec<u32> = delta.sampled.into_iter().collect();
                    chunk["choices"][0]["token_ids"] = sampled.into();
                }
                out.data(&chunk);
            }
            TextEvent::Finished(end) => {
                self.usage.add(end);
                let mut chunk = self.chunk(end.sample as usize, "", None, Some(finish_reason(end)));
                let timings = timings(end);
                if self.timings.is_null() {
                    self.timings = timings.clone();
                }
                chunk["timings"] = timings;
                out.data(&chunk);
            }
            TextEvent::Prefill(_) | TextEvent::Failed { .. } => {}
        }
    }

    fn end(&mut self, out: &mut Events) {
        if self.includes_usage {
            let mut chunk = self.envelope(&json!([]));
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
