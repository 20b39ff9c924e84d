//! `POST /tokenize`, `/detokenize` and `/apply-template`: the model's words without its network.

use std::sync::Arc;

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokenmill_text::{DecodeOptions, EncodeOptions};

use crate::{
    ApiError, App,
    app::Call,
    fields::{Body, Field, yes},
    openai::chat::{CHAT_WORDING, Message, template_messages},
};

/// Fields of `/tokenize`.
pub(crate) const TOKENIZE: &[Field] = &[
    yes("content", "the text; `prompt` is the same, as in vLLM"),
    yes("prompt", ""),
    yes(
        "add_special",
        "whether the tokens that begin and end a text are added; default false",
    ),
    yes(
        "parse_special",
        "whether control tokens in the text are control tokens; default false",
    ),
    yes(
        "with_pieces",
        "whether each token's text is returned with its id; default false",
    ),
    yes("model", ""),
];

/// Fields of `/detokenize`.
pub(crate) const DETOKENIZE: &[Field] = &[yes("tokens", ""), yes("model", "")];

/// Fields of `/apply-template`.
pub(crate) const APPLY_TEMPLATE: &[Field] = &[
    yes("messages", ""),
    yes("add_generation_prompt", "default true"),
    yes("chat_template_kwargs", ""),
    yes("model", ""),
];

#[derive(Deserialize)]
struct TokenizeRequest {
    content: Option<String>,
    prompt: Option<String>,
    #[serde(default)]
    add_special: bool,
    #[serde(default)]
    parse_special: bool,
    #[serde(default)]
    with_pieces: bool,
    model: Option<String>,
}

/// Text to token ids.
pub(crate) async fn tokenize(app: Arc<App>, call: Call) -> Result<Response, ApiError> {
    let request: TokenizeRequest = Body::parse(&call.body, TOKENIZE)?.read()?;
    app.model.check_name(request.model.as_deref())?;
    let text = request
        .content
        .or(request.prompt)
        .ok_or_else(|| ApiError::invalid("content", "this field is required"))?;
    let tokenizer = app.model.tokenizer();
    let options = EncodeOptions {
        add_special: request.add_special,
        parse_special: request.parse_special,
    };
    let ids = tokenizer.encode(&text, options);
    let n_tokens = ids.len();
    let tokens: Vec<Value> = ids
        .into_iter()
        .map(|id| {
            let piece = String::from_utf8_lossy(tokenizer.token_bytes(id).unwrap_or_default());
            if request.with_pieces {
                json!({ "id": id, "piece": piece })
            } else {
                json!(id)
            }
        })
        .collect();
    let n_ctx = app.model.engine().limits().n_ctx;
    Ok(Json(json!({ "tokens": tokens, "count": n_tokens, "max_model_len": n_ctx })).into_response())
}

#[derive(Deserialize)]
struct DetokenizeRequest {
    tokens: Vec<u32>,
    model: Option<String>,
}

/// Token ids to text.
pub(crate) async fn detokenize(app: Arc<App>, call: Call) -> Result<Response, ApiError> {
    let request: DetokenizeRequest = Body::parse(&call.body, DETOKENIZE)?.read()?;
    app.model.check_name(request.model.as_deref())?;
    let tokenizer = app.model.tokenizer();
    if let Some(id) = request
        .tokens
        .iter()
        .find(|&&id| id as usize >= tokenizer.n_vocab())
    {
        let reason = format!("{id} is not in the vocabulary of {} tokens", tokenizer.n_vocab());
        return Err(ApiError::invalid("tokens", reason));
    }
    let options = DecodeOptions {
        skip_special: false,
        is_continuation: true,
    };
    let text = tokenizer.decode(&request.tokens, options);
    Ok(Json(json!({ "content": text, "prompt": text })).into_response())
}

#[derive(Deserialize)]
struct ApplyTemplateRequest {
    messages: Vec<Message>,
    add_generation_prompt: Option<bool>,
    #[serde(default)]
    chat_template_kwargs: Map<String, Value>,
    model: Option<String>,
}

/// A conversation as the model's template writes it.
pub(crate) async fn apply_template(app: Arc<App>, call: Call) -> Result<Response, ApiError> {
    let request: ApplyTemplateRequest = Body::parse(&call.body, APPLY_TEMPLATE)?.read()?;
    app.model.check_name(request.model.as_deref())?;
    let messages = template_messages(request.messages, &CHAT_WORDING)?;
    let opens_turn = request.add_generation_prompt.unwrap_or(true);
    let prompt = app
        .model
        .render_chat(&messages, opens_turn, request.chat_template_kwargs)?;
    Ok(Json(json!({ "prompt": prompt })).into_response())
}
