//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use crate::{
    ApiError, App, Dialect, TextParams,
    app::Call,
    fields::Body,
    openai::{
        Stop, StreamOptions,
        chat::{CHAT_WORDING, ChatRequest, template_messages},
        check_n,
    },
    reply::{TokenCounts, collect, finish_reason, timings},
    request_id::{RequestId, unique_id},
    sampling::SamplingFields,
    scores::chat_logprobs,
    served_model::unix_seconds,
    sse::{EventFormat, Events, stream_response},
    tables,
    text_stream::TextEvent,
};

/// Answers a chat request, streamed or whole.
pub(crate) async fn chat(app: Arc<App>, call: Call) -> Result<Response, ApiError> {
    let body = Body::parse(&call.body, tables::chat())?;
    let request: ChatRequest = body.read()?;
    let model = &app.model;
    model.check_name(request.model.as_deref())?;
    let options = StreamOptions::check(request.stream_options, request.stream)?;
    let mut sampling = body
        .read::<SamplingFields>()?
        .into_params(model.tokenizer().n_vocab(), model.fresh_seed())?;
    sampling.n_logprobs = request.n_logprobs()?;
    let has_logprobs = sampling.n_logprobs.is_some();
    let params = TextParams {
        sampling,
        max_tokens: request.max_tokens()?,
        n: check_n(request.n, app.config.max_n)?,
        ignore_eos: request.ignore_eos,
        stops: request.stop.map_or_else(|| Ok(Vec::new()), Stop::into_strings)?,
        deadline: app.config.request_timeout,
        queue_timeout: app.config.queue_timeout,
    };
    let messages = template_messages(request.messages, &CHAT_WORDING)?;
    let prompt = model.encode_chat(
        &messages,
        request.add_generation_prompt,
        request.chat_template_kwargs,
    )?;
    let stream = model.generate(vec![prompt], &params)?;
    let head = Head {
        id: unique_id("chatcmpl-"),
        created_s: unix_seconds(),
    };
    if request.stream {
        let format = ChatEvents {
            app: Arc::clone(&app),
            head,
            n: params.n,
            has_logprobs,
            includes_usage: options.include_usage,
            usage: TokenCounts::default(),
        };
        return Ok(stream_response(&app, &call, stream, format));
    }

    let samples = collect(stream, &app, &call).await?;
    let choices: Vec<Value> = samples
        .iter()
        .map(|sample| {
            json!({
                "index": sample.end.sample,
                "message": { "role": "assistant", "content": sample.text, "refusal": null },
                "logprobs": has_logprobs.then(|| chat_logprobs(model.tokenizer(), &sample.tokens)),
                "finish_reason": finish_reason(&sample.end),
            })
        })
        .collect();
    let reply = json!({
        "id": head.id,
        "object": "chat.completion",
        "created": head.created_s,
        "model": model.name(),
        "choices": choices,
        "usage": TokenCounts::of_samples(&samples).to_openai(),
        "timings": timings(&samples[0].end),
    });
    Ok(Json(reply).into_response())
}

struct Head {
    id: String,
    created_s: u64,
}

/// The stream: one chunk for each delta, one for each end, the usage where asked for.
struct ChatEvents {
    app: Arc<App>,
    head: Head,
    n: u32,
    has_logprobs: bool,
    includes_usage: bool,
    usage: TokenCounts,
}

impl ChatEvents {
    fn chunk(&self, choices: &Value) -> Value {
        let mut chunk = json!({
            "id": self.head.id,
            "object": "chat.completion.chunk",
            "created": self.head.created_s,
            "model": self.app.model.name(),
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
            out.data(&self.chunk(&Self::choice(index, &delta, None, None)));
        }
    }

    fn take(&mut self, event: &TextEvent, out: &mut Events) {
        match event {
            TextEvent::Delta(delta) => {
                let logprobs = self
                    .has_logprobs
                    .then(|| chat_logprobs(self.app.model.tokenizer(), &delta.tokens));
                let content = json!({ "content": delta.text });
                out.data(&self.chunk(&Self::choice(delta.sample, &content, logprobs.as_ref(), None)));
            }
            TextEvent::Finished(end) => {
                self.usage.add(end);
                let choice = Self::choice(end.sample, &json!({}), None, Some(finish_reason(end)));
                let mut chunk = self.chunk(&choice);
                chunk["timings"] = timings(end);
                out.data(&chunk);
            }
            TextEvent::Failed { .. } => {}
        }
    }

    fn end(&mut self, out: &mut Events) {
        if self.includes_usage {
            let mut chunk = self.chunk(&json!([]));
            chunk["usage"] = self.usage.to_openai();
            out.data(&chunk);
        }
        out.done();
    }

    fn fail(&mut self, error: &ApiError, request_id: &RequestId, out: &mut Events) {
        out.data(&error.body(Dialect::OpenAi, request_id.as_str()));
        out.done();
    }
}
