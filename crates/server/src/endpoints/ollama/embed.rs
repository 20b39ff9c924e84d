//! `POST /api/embed` and the older `/api/embeddings`: vectors of texts, as on `/v1/embeddings`.

use std::{sync::Arc, time::Instant};

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use serde_json::json;

use super::{keep_alive::check_keep_alive, nanoseconds};
use crate::{
    ApiError, App,
    app::Call,
    dialects::ollama::{
        embed::{EmbedRequest, EmbeddingsRequest, FIELDS, Input, OLDER_FIELDS},
        options::check_options,
    },
    endpoints::embeddings::{EmbedParams, embed as embed_inputs},
    requests::raw_prompt::OneRawPrompt,
};

/// Embeds one text or several.
pub(crate) async fn embed(app: Arc<App>, mut call: Call) -> Result<Response, ApiError> {
    let begun = Instant::now();
    let body = call.parse(FIELDS)?;
    check_keep_alive(app.retention, &body)?;
    let request: EmbedRequest = body.read()?;
    app.model.check_own_name(request.model.as_deref())?;
    check_options(&body, app.engine().limits().n_ctx)?;
    let inputs = match request.input {
        Input::One(text) => vec![OneRawPrompt::of_text(text)],
        Input::Many(texts) => texts.into_iter().map(OneRawPrompt::of_text).collect(),
    };
    let params = EmbedParams {
        dimensions: request.dimensions,
        truncates: request.truncate.unwrap_or(true),
    };
    let embedded = embed_inputs(&app, &call, inputs, params).await?;
    let reply = json!({
        "model": app.model.name(),
        "embeddings": embedded.vectors,
        "total_duration": nanoseconds(begun.elapsed()),
        "load_duration": nanoseconds(call.load_wait),
        "prompt_eval_count": embedded.n_tokens,
    });
    Ok(Json(reply).into_response())
}

/// Embeds one text, in the older form.
pub(crate) async fn embeddings(app: Arc<App>, mut call: Call) -> Result<Response, ApiError> {
    let body = call.parse(OLDER_FIELDS)?;
    check_keep_alive(app.retention, &body)?;
    let request: EmbeddingsRequest = body.read()?;
    app.model.check_own_name(request.model.as_deref())?;
    check_options(&body, app.engine().limits().n_ctx)?;
    let params = EmbedParams {
        dimensions: None,
        truncates: true,
    };
    let inputs = vec![OneRawPrompt::of_text(request.prompt)];
    let embedded = embed_inputs(&app, &call, inputs, params).await?;
    Ok(Json(json!({ "embedding": embedded.vectors.first() })).into_response())
}
