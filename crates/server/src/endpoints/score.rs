//! `POST /v1/score`: how well pairs of texts fit together, in the form of vLLM's API.
//!
//! A reranker scores the pairs, as on `/v1/rerank`. Invariant: scores keep the order of the request, where a ranking sorts them.

use std::sync::Arc;

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    ApiError, App,
    app::{Call, served_model::unix_seconds},
    requests::{
        fields::{label, only},
        request_table::request,
    },
    telemetry::request_id::unique_id,
};

/// One text or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of texts")]
enum Texts {
    One(String),
    Many(Vec<String>),
}

impl Texts {
    fn as_slice(&self) -> &[String] {
        match self {
            Self::One(text) => std::slice::from_ref(text),
            Self::Many(texts) => texts,
        }
    }
}

request! {
    /// A request to score pairs of texts.
    pub(super) struct ScoreRequest {
        required {
            /// The first texts of the pairs.
            text_1: Texts = "the first text of each pair; a single one goes with every `text_2`",
            /// The second texts of the pairs.
            text_2: Texts = "the second texts, as many as there are of `text_1` if it is a list of several",
        }
        optional {
            /// Model name.
            model: String = "",
            /// Instruction for the first texts.
            instruction: String = "the aim of the comparison, for rerankers with a place for it in their prompt",
        }
        others {
            label("user"),
            only("priority", &["0"], "the pairs of a request are scored in its order"),
            only("use_activation", &["true"], "scores lie between 0 and 1"),
            only("truncate_prompt_tokens", &[], "texts are not cut; a pair longer than the context is an error"),
        }
    }
}

impl ScoreRequest {
    /// Pairs the texts.
    ///
    /// # Errors
    /// No pair, more pairs than `max_pairs`, or two lists of different lengths.
    fn pairs(&self, max_pairs: usize) -> Result<Vec<(&str, &str)>, ApiError> {
        let (firsts, seconds) = (self.text_1.as_slice(), self.text_2.as_slice());
        if firsts.len() != 1 && firsts.len() != seconds.len() {
            let reason = format!(
                "{} texts for {} of `text_1`, expected as many",
                seconds.len(),
                firsts.len()
            );
            return Err(ApiError::invalid("text_2", reason));
        }
        if seconds.is_empty() || seconds.len() > max_pairs {
            let reason = format!("{} texts, expected 1 to {max_pairs}", seconds.len());
            return Err(ApiError::invalid("text_2", reason));
        }
        let firsts = firsts.iter().cycle();
        Ok(firsts
            .zip(seconds)
            .map(|(a, b)| (a.as_str(), b.as_str()))
            .collect())
    }
}

/// Answers a request to score pairs of texts.
pub(super) async fn score(app: Arc<App>, mut call: Call) -> Result<Response, ApiError> {
    let request: ScoreRequest = call.read(ScoreRequest::TABLE.fields())?;
    app.model.check_own_name(request.model.as_deref())?;
    let model = app.model.model();
    let instruction = request.instruction.as_deref();
    let pairs = request.pairs(app.config.max_prompts)?;
    let inputs = model.encode_pairs(pairs.iter().copied(), instruction)?;
    let n_tokens: usize = inputs.iter().map(Vec::len).sum();
    let (deadline, cache_salt) = (app.config.request_timeout, call.tenant.cache_salt(None));
    let mut scores = model.rank_tokens(inputs, deadline, cache_salt)?;
    call.tally.add_prompt(n_tokens);
    let mut data: Vec<Value> = Vec::with_capacity(pairs.len());
    while let Some(score) = scores.next_score().await {
        data.push(json!({ "index": data.len(), "object": "score", "score": score? }));
    }
    let reply = json!({
        "id": unique_id("score-"),
        "object": "list",
        "created": unix_seconds(),
        "model": app.model.name(),
        "data": data,
        "usage": { "prompt_tokens": n_tokens, "total_tokens": n_tokens },
    });
    Ok(Json(reply).into_response())
}
