//! `POST /tokenize`, `/detokenize` and `/apply-template`: the model's words without its network.

use std::{
    fmt::Write as _,
    io,
    iter::once,
    mem,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use axum::{
    Json,
    body::Body,
    http::header,
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokenmill_text::{DecodeOptions, EncodeOptions, Tokenizer};

use crate::{
    ApiError, App,
    app::Call,
    dialects::{
        llama_cpp::{APPLY_TEMPLATE, TOKENIZE},
        openai::{
            chat::{CHAT_WORDING, Message, template_messages, turn_of},
            template_variables::check_kwargs,
        },
    },
    endpoints::media_folder::read_images,
    requests::{
        effort::{set_effort, set_thinking},
        intake::Share,
        request_table::request,
        tools::Tools,
    },
};

/// Holds the fields of a conversation besides its messages.
#[derive(Deserialize)]
struct Frame {
    add_generation_prompt: Option<bool>,
    #[serde(default)]
    chat_template_kwargs: Map<String, Value>,
    #[serde(default)]
    tools: Vec<Value>,
    tool_choice: Option<Value>,
    reasoning_effort: Option<String>,
    enable_thinking: Option<bool>,
}

impl Frame {
    /// The tools and the variables for the chat template.
    fn read(self) -> Result<(Tools, Map<String, Value>), ApiError> {
        let tools = Tools::of_functions(self.tools, self.tool_choice.as_ref(), true)?;
        let mut variables = check_kwargs(self.chat_template_kwargs)?;
        if let Some(thinks) = self.enable_thinking {
            set_thinking(&mut variables, thinks);
        }
        if let Some(effort) = &self.reasoning_effort {
            set_effort(&mut variables, "reasoning_effort", effort)?;
        }
        Ok((tools, variables))
    }

    /// The first field that says something of a conversation.
    fn field(&self) -> Option<&'static str> {
        let fields = [
            (!self.tools.is_empty() || self.tool_choice.is_some(), "tools"),
            (self.add_generation_prompt.is_some(), "add_generation_prompt"),
            (!self.chat_template_kwargs.is_empty(), "chat_template_kwargs"),
            (self.reasoning_effort.is_some(), "reasoning_effort"),
            (self.enable_thinking.is_some(), "enable_thinking"),
        ];
        let said = fields.into_iter().find(|(is_said, _)| *is_said);
        said.map(|(_, field)| field)
    }
}

#[derive(Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the API")]
struct TokenizeRequest {
    content: Option<String>,
    prompt: Option<String>,
    messages: Option<Vec<Message>>,
    #[serde(default)]
    continue_final_message: bool,
    #[serde(default)]
    add_special: bool,
    #[serde(default)]
    add_special_tokens: bool,
    parse_special: Option<bool>,
    #[serde(default)]
    with_pieces: bool,
    #[serde(default)]
    return_token_strs: bool,
    model: Option<String>,
}

/// Text or a conversation to token ids.
pub(crate) async fn tokenize(app: Arc<App>, mut call: Call) -> Result<Response, ApiError> {
    // The answer may be larger than the request, and is part of the request's cost.
    let mut share = mem::take(&mut call.body.share);
    let body = call.parse(TOKENIZE)?;
    let (request, frame): (TokenizeRequest, Frame) = (body.read()?, body.read()?);
    drop(body);
    app.model.check_name(request.model.as_deref())?;
    let (with_pieces, with_texts) = (request.with_pieces, request.return_token_strs);
    let ids = request_ids(&app, request, frame, &mut share).await?;
    let ids: Arc<[u32]> = ids.into();
    let list = |form| TokenList {
        tokenizer: Arc::clone(app.model.tokenizer()),
        ids: Arc::clone(&ids),
        n_written: 0,
        form,
    };
    let n_ctx = app.engine().limits().n_ctx;
    let counts = format!("],\"count\":{},\"max_model_len\":{n_ctx}", ids.len());
    let parts = once("{\"tokens\":[".to_owned())
        .chain(list(if with_pieces { Form::Piece } else { Form::Id }))
        .chain(once(counts));
    let json = [(header::CONTENT_TYPE, "application/json")];
    let parts: Box<dyn Iterator<Item = String> + Send> = if with_texts {
        let texts = once(",\"token_strs\":[".to_owned()).chain(list(Form::Text));
        Box::new(parts.chain(texts).chain(once("]}".to_owned())))
    } else {
        Box::new(parts.chain(once("}".to_owned())))
    };
    if ids.len() <= PART_TOKENS {
        return Ok((json, parts.collect::<String>()).into_response());
    }
    Ok((json, in_parts(parts, share, app.config.write_timeout)).into_response())
}

/// An answer that is written part by part, and its request's share of the budget; `None` once they were dropped.
struct Held {
    answer: Option<(Box<dyn Iterator<Item = String> + Send>, Share)>,
    n_asked: usize,
}

/// A body of `parts`, which holds `share` until it is written, or until no part was requested in `limit`. The connection's
/// own limit is not enough: over HTTP/2 a client can read the connection and not the stream.
fn in_parts(parts: Box<dyn Iterator<Item = String> + Send>, share: Share, limit: Duration) -> Body {
    let held = Arc::new(Mutex::new(Held {
        answer: Some((parts, share)),
        n_asked: 0,
    }));
    tokio::spawn(drop_stalled(Arc::downgrade(&held), limit));
    let parts = std::iter::from_fn(move || {
        let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
        held.n_asked += 1;
        match &mut held.answer {
            Some((parts, _)) => parts.next().map(Ok),
            // A failure, so that a missing part does not pass as the end.
            None => Some(Err(io::Error::from(io::ErrorKind::TimedOut))),
        }
    });
    Body::from_stream(futures_util::stream::iter(parts))
}

/// Drops an answer of which no part was requested in `limit`.
async fn drop_stalled(held: Weak<Mutex<Held>>, limit: Duration) {
    let mut n_asked_before = 0;
    loop {
        tokio::time::sleep(limit).await;
        let Some(held) = held.upgrade() else { return };
        let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.n_asked == n_asked_before {
            held.answer = None;
            return;
        }
        n_asked_before = held.n_asked;
    }
}

/// Tokens of the text or the conversation of a request.
async fn request_ids(
    app: &App,
    request: TokenizeRequest,
    frame: Frame,
    share: &mut Share,
) -> Result<Vec<u32>, ApiError> {
    if let Some(messages) = request.messages {
        if request.content.is_some() || request.prompt.is_some() {
            return Err(ApiError::invalid("messages", "give either these or a text"));
        }
        for (is_given, field) in [
            (request.add_special, "add_special"),
            (request.add_special_tokens, "add_special_tokens"),
            (request.parse_special.unwrap_or(false), "parse_special"),
        ] {
            if is_given {
                let reason = "is of a text; the chat template says which control tokens `messages` have";
                return Err(ApiError::invalid(field, reason));
            }
        }
        let turn = turn_of(
            &messages,
            frame.add_generation_prompt,
            request.continue_final_message,
        )?;
        let (tools, variables) = frame.read()?;
        let mut messages = template_messages(messages, &CHAT_WORDING)?;
        read_images(app, share, &mut messages).await?;
        return app.model.encode_chat(&messages, &tools, turn, variables);
    }
    let continues = request.continue_final_message.then_some("continue_final_message");
    if let Some(field) = frame.field().or(continues) {
        return Err(ApiError::invalid(field, "needs `messages`"));
    }
    let text = request
        .content
        .or(request.prompt)
        .ok_or_else(|| ApiError::invalid("content", "this field is required"))?;
    let options = EncodeOptions {
        add_special: request.add_special || request.add_special_tokens,
        parse_special: request.parse_special.unwrap_or(true),
    };
    Ok(app.model.tokenizer().encode(&text, options))
}

/// Tokens that are written at a time.
const PART_TOKENS: usize = 4096;

/// Selects how a token is written.
#[derive(Clone, Copy)]
enum Form {
    Id,
    Text,
    Piece,
}

/// Tokens as the items of a JSON list, some at a time: the text of a list is many times as long as its tokens.
struct TokenList {
    tokenizer: Arc<Tokenizer>,
    ids: Arc<[u32]>,
    n_written: usize,
    form: Form,
}

impl Iterator for TokenList {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let ids = &self.ids[self.n_written..];
        let ids = &ids[..ids.len().min(PART_TOKENS)];
        let mut part = String::new();
        for &id in ids {
            if self.n_written > 0 {
                part.push(',');
            }
            self.n_written += 1;
            let bytes = self.tokenizer.token_bytes(id).unwrap_or_default();
            let _ = match self.form {
                Form::Id => write!(part, "{id}"),
                Form::Text => write!(part, "{}", Value::from(String::from_utf8_lossy(bytes))),
                Form::Piece => write!(part, "{{\"id\":{id},\"piece\":{}}}", piece(bytes)),
            };
        }
        (!part.is_empty()).then_some(part)
    }
}

/// Returns the text of a token, or its bytes if it is a part of a character, as in llama.cpp.
fn piece(bytes: &[u8]) -> Value {
    std::str::from_utf8(bytes).map_or_else(|_| Value::from(bytes), Value::from)
}

/// Tokens that become text in one request, where the context is shorter.
const MAX_DETOKENIZED: usize = 1 << 16;

request! {
    /// A request of `/detokenize`.
    pub(super) struct DetokenizeRequest {
        required {
            /// Token ids.
            tokens: Vec<u32> = "",
        }
        optional {
            /// Model name.
            model: String = "",
        }
        others {}
    }
}

/// Token ids to text.
pub(crate) async fn detokenize(app: Arc<App>, mut call: Call) -> Result<Response, ApiError> {
    let request: DetokenizeRequest = call.read(DetokenizeRequest::TABLE.fields())?;
    app.model.check_name(request.model.as_deref())?;
    let maximum = app.engine().limits().n_ctx.max(MAX_DETOKENIZED);
    if request.tokens.len() > maximum {
        let reason = format!("{} tokens, at most {maximum}", request.tokens.len());
        return Err(ApiError::invalid("tokens", reason));
    }
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
    model: Option<String>,
}

/// A conversation as the model's template writes it.
pub(crate) async fn apply_template(app: Arc<App>, mut call: Call) -> Result<Response, ApiError> {
    let mut share = mem::take(&mut call.body.share);
    let body = call.parse(APPLY_TEMPLATE)?;
    let (request, frame): (ApplyTemplateRequest, Frame) = (body.read()?, body.read()?);
    app.model.check_name(request.model.as_deref())?;
    let mut messages = template_messages(request.messages, &CHAT_WORDING)?;
    let opens_turn = frame.add_generation_prompt.unwrap_or(true);
    let (tools, variables) = frame.read()?;
    read_images(&app, &mut share, &mut messages).await?;
    let prompt = app.model.render_chat(&messages, &tools, opens_turn, variables)?;
    Ok(Json(json!({ "prompt": prompt })).into_response())
}
