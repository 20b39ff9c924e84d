//! `POST /v1/embeddings`: the mean of the final hidden states of each input, normalized.

use std::sync::Arc;

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use base64::Engine as _;
use serde_json::{Value, json};
use tokenmill_sched::{EngineError, Event, ForwardParams, ForwardRows};

use crate::{
    ApiError, App,
    app::Call,
    openai::{
        completion::OnePrompt,
        embedding::{EmbeddingRequest, EncodingFormat},
    },
    tables,
};

/// Answers an embedding request.
pub(crate) async fn embeddings(app: Arc<App>, mut call: Call) -> Result<Response, ApiError> {
    let request: EmbeddingRequest = call.read(tables::embedding())?;
    app.model.check_name(request.model.as_deref())?;
    let inputs = request.input.into_prompts();
    if inputs.is_empty() || inputs.len() > app.config.max_prompts {
        let reason = format!(
            "{} inputs, expected 1 to {}",
            inputs.len(),
            app.config.max_prompts
        );
        return Err(ApiError::invalid("input", reason));
    }
    let mut n_tokens = 0;
    // All are submitted before the first is read, so that they share the engine's steps.
    let mut passes = Vec::with_capacity(inputs.len());
    for input in inputs {
        let tokens = match input {
            OnePrompt::Text(text) => app.model.encode_text(&text, true),
            OnePrompt::Tokens(tokens) => tokens,
        };
        n_tokens += tokens.len();
        let params = ForwardParams {
            deadline: app.config.request_timeout,
            cache_salt: call.tenant.cache_salt(None),
            ..ForwardParams::new(ForwardRows::Hidden, 0)
        };
        passes.push(app.engine().submit_forward(tokens, params).map_err(refusal)?);
    }
    call.tally.add_prompt(n_tokens);
    let mut data = Vec::with_capacity(passes.len());
    for (index, mut pass) in passes.into_iter().enumerate() {
        let mut pooled = MeanPool::default();
        while let Some(event) = pass.next_event().await {
            match event {
                Event::Rows(rows) => rows
                    .values
                    .chunks_exact(rows.width)
                    .for_each(|row| pooled.add(row)),
                Event::Failed { error, .. } => return Err(error.into()),
                Event::Token(_) | Event::Finished(_) => {}
            }
        }
        let embedding = encode(&pooled.normalized(), request.encoding_format);
        data.push(json!({ "object": "embedding", "index": index, "embedding": embedding }));
    }
    let reply = json!({
        "object": "list",
        "model": app.model.name(),
        "data": data,
        "usage": { "prompt_tokens": n_tokens, "total_tokens": n_tokens },
    });
    Ok(Json(reply).into_response())
}

/// Says what token ids of another vocabulary are, which some clients send without being asked to.
fn refusal(error: EngineError) -> ApiError {
    match error {
        EngineError::UnknownToken { id, n_vocab, .. } => ApiError::invalid(
            "input",
            format!(
                "{id} is no token of this model, whose vocabulary has {n_vocab}; send texts, for token ids of another \
                 model mean nothing here (in LangChain's `OpenAIEmbeddings`: `check_embedding_ctx_length=False`)"
            ),
        ),
        EngineError::EmptyPrompt => ApiError::invalid("input", "is empty; give at least one token"),
        error => error.into(),
    }
}

fn encode(values: &[f32], format: EncodingFormat) -> Value {
    match format {
        EncodingFormat::Float => json!(values),
        EncodingFormat::Base64 => {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            Value::from(base64::engine::general_purpose::STANDARD.encode(bytes))
        }
    }
}

/// The mean of rows, in f64 so that long inputs lose nothing.
#[derive(Debug, Default)]
struct MeanPool {
    sum: Vec<f64>,
}

impl MeanPool {
    fn add(&mut self, row: &[f32]) {
        self.sum.resize(row.len(), 0.0);
        self.sum
            .iter_mut()
            .zip(row)
            .for_each(|(sum, &value)| *sum += f64::from(value));
    }

    /// The direction of the mean; its length, and so the number of rows, does not matter.
    fn normalized(&self) -> Vec<f32> {
        let norm = self.sum.iter().map(|value| value * value).sum::<f64>().sqrt();
        let scale = if norm > 0.0 { 1.0 / norm } else { 0.0 };
        self.sum.iter().map(|value| (value * scale) as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_embedding_is_the_normalized_mean() {
        let mut pool = MeanPool::default();
        pool.add(&[3.0, 0.0]);
        pool.add(&[3.0, 8.0]);
        assert_eq!(pool.normalized(), [0.6, 0.8]);
        assert_eq!(encode(&[1.0], EncodingFormat::Base64), json!("AACAPw=="));
    }
}
