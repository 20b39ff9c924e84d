//! `POST /v1/embeddings` and llama.cpp's `/embedding`: a vector for each input, of length 1.

use std::sync::Arc;

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use base64::Engine as _;
use serde_json::{Value, json};
use tokenmill::Error;
use tokenmill_sched::EngineError;

use crate::{
    ApiError, App,
    app::Call,
    dialects::openai::embedding::{EmbeddingRequest, EncodingFormat, LlamaCppRequest},
    endpoints::{llama_cpp::encode_pieces, tables},
    requests::raw_prompt::OneRawPrompt,
};

/// Answers an embedding request.
pub(crate) async fn embeddings(app: Arc<App>, mut call: Call) -> Result<Response, ApiError> {
    let request: EmbeddingRequest = call.read(tables::embedding())?;
    app.model.check_own_name(request.model.as_deref())?;
    let params = EmbedParams {
        dimensions: request.dimensions,
        truncates: false,
    };
    let Vectors { vectors, n_tokens } = embed(&app, &call, request.input.prompts("input")?, params).await?;
    let item = |(index, vector): (usize, &Vec<f32>)| {
        let embedding = encode_numbers(vector, request.encoding_format);
        json!({ "object": "embedding", "index": index, "embedding": embedding })
    };
    let data: Vec<Value> = vectors.iter().enumerate().map(item).collect();
    let reply = json!({
        "object": "list",
        "model": app.model.name(),
        "data": data,
        "usage": { "prompt_tokens": n_tokens, "total_tokens": n_tokens },
    });
    Ok(Json(reply).into_response())
}

/// Answers a request to llama.cpp's `/embedding`: a list of vectors for each input, here of one.
pub(crate) async fn llama_cpp(app: Arc<App>, mut call: Call) -> Result<Response, ApiError> {
    let request: LlamaCppRequest = call.read(tables::llama_embedding())?;
    app.model.check_own_name(request.model.as_deref())?;
    let input = match (request.content, request.input) {
        (Some(input), None) | (None, Some(input)) => input,
        (None, None) => return Err(ApiError::invalid("content", "this field is required")),
        (Some(_), Some(_)) => return Err(ApiError::invalid("input", "contradicts `content`")),
    };
    let params = EmbedParams {
        dimensions: None,
        truncates: false,
    };
    let Vectors { vectors, .. } = embed(&app, &call, input.prompts("content")?, params).await?;
    let item = |(index, vector)| json!({ "index": index, "embedding": [vector] });
    let items: Vec<Value> = vectors.iter().enumerate().map(item).collect();
    Ok(Json(items).into_response())
}

/// The vectors of a request's inputs.
pub(crate) struct Vectors {
    /// One for each input.
    pub(crate) vectors: Vec<Vec<f32>>,
    /// Tokens of all inputs.
    pub(crate) n_tokens: usize,
}

/// How inputs are embedded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EmbedParams {
    /// The first so many numbers of each vector, brought to length 1 again.
    pub(crate) dimensions: Option<usize>,
    /// Whether an input that is longer than the context is cut; it is refused otherwise.
    pub(crate) truncates: bool,
}

/// Embeds the inputs of a request.
///
/// # Errors
/// No input or too many, more dimensions than the model has, and refusals of the model.
pub(crate) async fn embed(
    app: &App,
    call: &Call,
    inputs: Vec<OneRawPrompt>,
    params: EmbedParams,
) -> Result<Vectors, ApiError> {
    if inputs.is_empty() || inputs.len() > app.config.max_inputs {
        let reason = format!("{} inputs, expected 1 to {}", inputs.len(), app.config.max_inputs);
        return Err(ApiError::invalid("input", reason));
    }
    let dimensions = params.dimensions;
    let width = app.engine().limits().n_embd;
    if let Some(n) = dimensions
        && !(1..=width).contains(&n)
    {
        let reason = format!("is {n}, and vectors of this model have {width} numbers");
        return Err(ApiError::invalid("dimensions", reason));
    }
    if inputs.iter().any(|input| !input.images.is_empty()) {
        return Err(ApiError::invalid("input", "only texts are embedded here"));
    }
    let encode = |input: OneRawPrompt| encode_pieces(&app.model, &input.pieces);
    let mut inputs: Vec<Vec<u32>> = inputs.into_iter().map(encode).collect();
    if params.truncates {
        for input in &mut inputs {
            truncate(app, input);
        }
    }
    let n_tokens = inputs.iter().map(Vec::len).sum();
    let (deadline, cache_salt) = (app.config.request_timeout, call.tenant.cache_salt(None));
    let mut pending = (app.model.model())
        .embed_tokens(inputs, deadline, cache_salt)
        .map_err(refusal)?;
    call.tally.add_prompt(n_tokens);
    let mut vectors = Vec::new();
    while let Some(vector) = pending.next_vector().await {
        vectors.push(cut(vector?, dimensions));
    }
    Ok(Vectors { vectors, n_tokens })
}

/// Cuts an input to the context. A last token that the tokenizer puts behind every text stays the last.
fn truncate(app: &App, input: &mut Vec<u32>) {
    let n_ctx = app.engine().limits().n_ctx;
    if input.len() <= n_ctx {
        return;
    }
    let last = input.last().copied();
    input.truncate(n_ctx);
    if let (true, Some(last), Some(end)) = (app.model.tokenizer().adds_eos(), last, input.last_mut()) {
        *end = last;
    }
}

/// Describes token ids of another vocabulary, which some clients send by default.
fn refusal(error: Error) -> ApiError {
    match error {
        Error::Engine(EngineError::UnknownToken { id, n_vocab, .. }) => ApiError::invalid(
            "input",
            format!(
                "{id} is not a token of this model, whose vocabulary has {n_vocab}; send texts, since token ids of another \
                 model mean nothing here (in LangChain's `OpenAIEmbeddings`: `check_embedding_ctx_length=False`)"
            ),
        ),
        Error::Engine(EngineError::EmptyPrompt) => {
            ApiError::invalid("input", "is empty; give at least one token")
        }
        error => error.into(),
    }
}

/// The first numbers of a vector, brought to length 1 again.
fn cut(mut vector: Vec<f32>, dimensions: Option<usize>) -> Vec<f32> {
    if let Some(n) = dimensions.filter(|&n| n < vector.len()) {
        vector.truncate(n);
        let norm = vector.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        let scale = if norm > 0.0 { 1.0 / norm } else { 0.0 };
        for x in &mut vector {
            *x = (f64::from(*x) * scale) as f32;
        }
    }
    vector
}

fn encode_numbers(values: &[f32], format: EncodingFormat) -> Value {
    match format {
        EncodingFormat::Float => json!(values),
        EncodingFormat::Base64 => {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            Value::from(base64::engine::general_purpose::STANDARD.encode(bytes))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_vector_has_length_1_again() {
        assert_eq!(cut(vec![0.6, 0.0, 0.8], Some(1)), [1.0]);
        assert_eq!(cut(vec![0.6, 0.0, 0.8], Some(3)), [0.6, 0.0, 0.8]);
        assert_eq!(cut(vec![0.0, 1.0], Some(1)), [0.0]);
    }

    #[test]
    fn base64_is_of_the_little_endian_bytes() {
        assert_eq!(encode_numbers(&[1.0], EncodingFormat::Base64), json!("AACAPw=="));
    }
}
