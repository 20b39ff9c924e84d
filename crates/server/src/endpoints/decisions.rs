//! `POST /v1/systemone` and `POST /v1/decisions`: typed questions about a state, answered with probabilities.
//!
//! Both ask the same of the model; the dialects differ in their questions and answers. Invariant: a client that leaves cancels its
//! questions.

use std::{sync::Arc, time::Instant};

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use serde_json::{Map, Value, json};
use tokenmill::{
    Error,
    decide::{
        DECISION_PROMPT_VERSION, DecideParams, Decision, MAX_IMAGES, Question, State, SystemOneQuestions,
        images_of, inner_path, state_of,
    },
};
use tokio::sync::OwnedSemaphorePermit;

use crate::{
    ApiError, App,
    app::Call,
    dialects::{openai::decision, sglang},
    errors::decide_error::DecisionFields,
    requests::{
        fields::{label, only, refused},
        off_thread::{QueueLimits, Requester, off_thread_while_wanted, within},
        request_table::request,
        sampling::salt,
    },
};

const NO_VARIABLES: &str = "reasoning is always switched off, and other variables are options of the server";

request! {
    /// A request of the System One API.
    pub(super) struct SystemOneRequest {
        required {
            /// The content that the questions are about.
            state: Value = "a text, or an object or a list, which the model sees as compact JSON; images of chat messages (`image_url` parts) are seen in their places",
            /// Questions by name.
            questions: Map<String, Value> = "questions by name, each with `type` (`noul`, `choice` or `score`), `instructions` and `criteria`",
        }
        optional {
            /// Model name.
            model: String = "",
            /// Number of orders of the options.
            permutations: usize = "asks each question in this many orders of its options and averages the probabilities; 1 by default",
            /// Images before the state.
            images: Vec<String> = "`data:` URLs of images, which the model sees before the state",
            /// Separates cached prompts.
            cache_salt: String = "separates the cached prompts of requests with another one, as in vLLM",
        }
        others {
            label("request_id"),
            refused("instructions", "put them into the questions' `instructions` or the state"),
            refused("chat_template_kwargs", NO_VARIABLES),
            refused("assets", "images are read in `images`, or as `image_url` parts of chat messages in `state`"),
            refused("files", "images are read in `images`, as `data:` URLs"),
            refused("audio", "the model reads texts"),
            refused("videos", "the model reads texts"),
            only("joint", &["false"], "each question is asked by itself"),
            only("priority", &["0"], "the questions of a request are asked in its order"),
        }
    }
}

request! {
    /// A request of OpenAI's or SGLang's API.
    pub(super) struct DecisionRequest {
        required {
            /// The content that the questions are about.
            input: Value = "a text, or a list of messages, calls of tools and their outputs, which the model sees as one text with their images (`input_image`); in SGLang's shape a text or any JSON",
            /// The questions.
            questions: Vec<Value> = "OpenAI's (`predicate`, `choice`, `score`, with `instructions`) or SGLang's (`yes_no`, `choice`, `score`, with `id` and `question`)",
        }
        optional {
            /// Model name.
            model: String = "",
            /// Number of orders of the options.
            permutations: usize = "asks each question in this many orders of its options and averages the probabilities; 1 by default",
            /// Temperature of the softmax.
            temperature: f64 = "divides the logits of the labels, in SGLang's shape only; 1 by default",
            /// Images before the input.
            images: Vec<String> = "`data:` URLs of images, which the model sees before the input; in SGLang's shape only",
            /// Version of the prompts.
            prompt_format_version: u32 = "1, in SGLang's shape only",
        }
        others {
            label("safety_identifier"),
            label("prompt_cache_key"),
            label("prompt_cache_options"),
            only("return_prompt_token_ids", &["false"], "`/v1/chat/completions/render` gives the tokens of prompts"),
            refused("chat_template_kwargs", NO_VARIABLES),
        }
    }
}

/// The answers to a request's questions, and its tokens.
struct Decided {
    decisions: Vec<Decision>,
    n_prompt_tokens: usize,
    n_cached_tokens: usize,
}

/// Answers a request of the System One API.
pub(super) async fn system_one(app: Arc<App>, mut call: Call) -> Result<Response, ApiError> {
    let request: SystemOneRequest = call.read(SystemOneRequest::TABLE.fields())?;
    app.model.check_own_name(request.model.as_deref())?;
    let images = images_of("images", &request.images.unwrap_or_default())?;
    let own = state_of(&request.state)?;
    let images_field = match own.n_images() {
        1.. if images.n_images() <= MAX_IMAGES => "state",
        _ => "images",
    };
    let state = images.then(own);
    let asked = SystemOneQuestions::parse(&request.questions)?;
    let params = DecideParams {
        permutations: request.permutations.unwrap_or(1),
        cache_salt: call.tenant.cache_salt(salt(request.cache_salt.as_deref())?),
        names: asked.names().to_vec(),
        ..DecideParams::default()
    };
    let fields = DecisionFields {
        state: "state",
        images: images_field,
        question: &|question_idx| inner_path("questions", &asked.names()[question_idx]),
    };
    let questions = asked.questions().to_vec();
    let decided = decide(&app, &call, state, questions, params, fields).await?;
    let reply = json!({
        "model": app.model.name(),
        "answers": asked.answers(&decided.decisions),
        "usage": {
            "input_tokens": decided.n_prompt_tokens,
            "input_tokens_details": { "cached_tokens": decided.n_cached_tokens },
            "output_tokens": 0,
        },
    });
    Ok(Json(reply).into_response())
}

/// Answers a request of OpenAI's or SGLang's API.
pub(super) async fn decisions(app: Arc<App>, mut call: Call) -> Result<Response, ApiError> {
    let request: DecisionRequest = call.read(DecisionRequest::TABLE.fields())?;
    app.model.check_own_name(request.model.as_deref())?;
    let params = DecideParams {
        permutations: request.permutations.unwrap_or(1),
        temperature: request.temperature.unwrap_or(1.0),
        cache_salt: call.tenant.cache_salt(None),
        ..DecideParams::default()
    };
    let fields = DecisionFields {
        state: "input",
        images: "input",
        question: &|question_idx| format!("questions[{question_idx}]"),
    };
    let n_sglang = request
        .questions
        .iter()
        .filter(|question| sglang::is_own(question))
        .count();
    if n_sglang == 0 {
        for (name, is_given) in [
            ("temperature", request.temperature.is_some()),
            ("images", request.images.is_some()),
            ("prompt_format_version", request.prompt_format_version.is_some()),
        ] {
            if is_given {
                let reason = "goes with questions in SGLang's shape, which have `id` and `question`";
                return Err(ApiError::invalid(name, reason));
            }
        }
        let state = decision::input_state(&request.input)?;
        let own = decision::Questions::parse(&request.questions)?;
        let decided = decide(&app, &call, state, own.asked.clone(), params, fields).await?;
        let reply = json!({
            "model": app.model.name(),
            "answers": own.answers(&decided.decisions),
            "usage": {
                "input_tokens": decided.n_prompt_tokens,
                "input_tokens_details": { "cached_tokens": decided.n_cached_tokens, "cache_write_tokens": 0 },
                "output_tokens": 0,
                "output_tokens_details": { "reasoning_tokens": 0 },
                "total_tokens": decided.n_prompt_tokens,
            },
        });
        return Ok(Json(reply).into_response());
    }
    if n_sglang < request.questions.len() {
        let reason = "some have OpenAI's shape and others SGLang's, with `id` and `question`";
        return Err(ApiError::invalid("questions", reason));
    }
    sglang::check_version(request.prompt_format_version)?;
    let images = images_of("images", &request.images.unwrap_or_default())?;
    let state = images.then(sglang::input_text(&request.input)?.into());
    let own = sglang::Questions::parse(&request.questions)?;
    let fields = DecisionFields {
        images: "images",
        ..fields
    };
    let decided = decide(&app, &call, state, own.asked.clone(), params, fields).await?;
    let reply = json!({
        "object": "decisions",
        "model": app.model.name(),
        "prompt_format_version": DECISION_PROMPT_VERSION,
        "answers": own.answers(&decided.decisions),
        "usage": {
            "prompt_tokens": decided.n_prompt_tokens,
            "prompt_tokens_details": { "cached_tokens": decided.n_cached_tokens },
            "completion_tokens": 0,
            "total_tokens": decided.n_prompt_tokens,
        },
    });
    Ok(Json(reply).into_response())
}

/// Asks the model about a state. `fields` are those of the request, for refusals.
async fn decide(
    app: &Arc<App>,
    call: &Call,
    state: State,
    questions: Vec<Question>,
    params: DecideParams,
    fields: DecisionFields<'_>,
) -> Result<Decided, ApiError> {
    // One end for all waits: each has the time that is left when it begins.
    let ends_at = call.ends_at();
    let left = move || ends_at.map(|end| end.saturating_duration_since(Instant::now()));
    let has_images = state.n_images() > 0;
    let model = app.model.model().clone();
    // The turn ends with the work, which ends early where the client has left.
    let begin = move |turn: OwnedSemaphorePermit, requester: &Requester| {
        let params = DecideParams {
            deadline: left(),
            ..params
        };
        let begun = model.start_deciding_while(&state, &questions, &params, &|| requester.is_waiting());
        drop(turn);
        begun
    };
    let refusal = |error: Error| match error {
        Error::Decide(error) => ApiError::of_decision(error, fields),
        error => match ApiError::from(error) {
            // Where chats have their images.
            ApiError::InvalidField { param, reason } if param == "messages" => {
                ApiError::invalid(fields.images, reason)
            }
            error => error,
        },
    };
    // Each question repeats the state, so a small request can have much text to encode.
    let turn = app.intake.turn(&app.config);
    let begun = if has_images {
        let limits = QueueLimits {
            max_waiting: app.engine().config().max_queued,
            wait: app.config.queue_timeout,
            whole: left(),
        };
        app.encoder_queue.run_with(limits, turn, begin).await?
    } else {
        let begun = async {
            let turn = turn.await?;
            off_thread_while_wanted(move |wanted| begin(turn, wanted)).await
        };
        within(left(), begun).await??
    };
    let begun = begun.map_err(refusal)?;
    let mut answers = begun.ok_or(ApiError::DeadlineExceeded)?;
    call.tally.add_prompt(answers.n_prompt_tokens());
    let mut decisions = Vec::new();
    while let Some(decision) = answers.next_decision().await {
        decisions.push(decision.map_err(refusal)?);
    }
    Ok(Decided {
        decisions,
        n_prompt_tokens: answers.n_prompt_tokens(),
        n_cached_tokens: answers.n_cached_tokens(),
    })
}
