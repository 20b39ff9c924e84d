//! `POST /v1/rerank`: the documents of a request by how well they answer its query, the best first.

use std::sync::Arc;

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use crate::{ApiError, App, app::Call, dialects::openai::rerank::RerankRequest, endpoints::tables};

/// Answers a request to rank documents.
pub(crate) async fn rerank(app: Arc<App>, mut call: Call) -> Result<Response, ApiError> {
    let request: RerankRequest = call.read(tables::rerank())?;
    app.model.check_own_name(request.model.as_deref())?;
    let (documents, is_tei) = request.documents()?;
    let n_documents = documents.len();
    if n_documents == 0 || n_documents > app.config.max_prompts {
        let reason = format!(
            "{n_documents} documents, expected 1 to {}",
            app.config.max_prompts
        );
        let field = if is_tei { "texts" } else { "documents" };
        return Err(ApiError::invalid(field, reason));
    }
    if request.top_n == Some(0) {
        return Err(ApiError::invalid("top_n", "is 0, expected at least 1"));
    }
    let model = app.model.model();
    let instruction = request.instruction.as_deref();
    let pairs = documents
        .iter()
        .map(|document| (request.query.as_str(), document.text()));
    let inputs = model.encode_pairs(pairs, instruction)?;
    let n_tokens: usize = inputs.iter().map(Vec::len).sum();
    let (deadline, cache_salt) = (app.config.request_timeout, call.tenant.cache_salt(None));
    let mut scores = model.rank_tokens(inputs, deadline, cache_salt)?;
    call.tally.add_prompt(n_tokens);
    let mut ranking = Vec::with_capacity(n_documents);
    while let Some(score) = scores.next_score().await {
        ranking.push((ranking.len(), score?));
    }
    // Equal scores stay in the order of the request.
    ranking.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    ranking.truncate(request.top_n.unwrap_or(n_documents));
    if is_tei {
        let score = |&(index, score): &(usize, f32)| {
            let mut result = json!({ "index": index, "score": score });
            if request.return_text == Some(true) {
                result["text"] = documents[index].text().into();
            }
            result
        };
        return Ok(Json(ranking.iter().map(score).collect::<Value>()).into_response());
    }
    let results: Vec<Value> = (ranking.iter())
        .map(|&(index, score)| {
            let mut result = json!({ "index": index, "relevance_score": score });
            if request.return_documents == Some(true) {
                result["document"] = json!({ "text": documents[index].text() });
            }
            result
        })
        .collect();
    let reply = json!({
        "object": "list",
        "model": app.model.name(),
        "results": results,
        "usage": { "prompt_tokens": n_tokens, "total_tokens": n_tokens },
    });
    Ok(Json(reply).into_response())
}
