//! Log-probabilities as OpenAI's endpoints write them.

use serde_json::{Map, Value, json};
use tokenmill::{TextParams, stream::ScoredToken};
use tokenmill_backend::SamplingParams;
use tokenmill_text::{TokenKind, Tokenizer};

use crate::ApiError;

/// Most log-probabilities of an answer that is collected before it is sent: 128 MiB.
pub(crate) const MAX_GATHERED: usize = 1 << 24;

/// Most log-probabilities of an answer that is built as JSON values.
pub(crate) const MAX_IN_TREE: usize = 1 << 18;

/// Refuses a request whose answer to `n_prompts` prompts could have more than `maximum` log-probabilities.
///
/// # Errors
/// Names the field.
pub(crate) fn check_scores(
    field: &str,
    params: &TextParams,
    n_prompts: usize,
    n_ctx: usize,
    maximum: usize,
) -> Result<(), ApiError> {
    let Some(n_top) = params.sampling.n_logprobs else {
        return Ok(());
    };
    let n_tokens = params.max_tokens.map_or(n_ctx, |n| n_ctx.min(n as usize));
    let n_samples = n_prompts.saturating_mul(params.n as usize);
    let n_scores = n_samples
        .saturating_mul(n_tokens)
        .saturating_mul(n_top as usize + 1);
    if n_scores <= maximum {
        return Ok(());
    }
    let reason = format!(
        "{n_samples} answers of up to {n_tokens} tokens with {n_top} alternatives make up to {n_scores} log-probabilities, at most \
         {maximum} are gathered; ask for fewer tokens, answers or alternatives, or for a stream"
    );
    Err(ApiError::invalid(field, reason))
}

/// Written in place of negative infinity, which JSON does not have; OpenAI documents the same value.
const LEAST: f32 = -9999.0;

pub(crate) fn finite(logprob: f32) -> f32 {
    logprob.max(LEAST)
}

pub(crate) fn text_of(tokenizer: &Tokenizer, id: u32) -> String {
    String::from_utf8_lossy(tokenizer.token_bytes(id).unwrap_or_default()).into_owned()
}

/// The scale of scores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Scale {
    /// Logarithms.
    #[default]
    Logprob,
    /// Probabilities from 0 to 1, under llama.cpp's names for them.
    Probability,
}

impl Scale {
    /// Returns the scale of the scores that sampling parameters ask for.
    pub(crate) fn of(params: &SamplingParams) -> Self {
        if params.scores_draw {
            Self::Probability
        } else {
            Self::Logprob
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Logprob => "logprob",
            Self::Probability => "prob",
        }
    }

    fn name_of_top(self) -> &'static str {
        match self {
            Self::Logprob => "top_logprobs",
            Self::Probability => "top_probs",
        }
    }

    fn value(self, logprob: f32) -> f32 {
        match self {
            Self::Logprob => finite(logprob),
            Self::Probability => logprob.exp(),
        }
    }
}

fn entry(tokenizer: &Tokenizer, id: u32, logprob: f32, scale: Scale) -> Value {
    json!({
        "token": text_of(tokenizer, id),
        (scale.name()): scale.value(logprob),
        "bytes": tokenizer.token_bytes(id).unwrap_or_default(),
    })
}

/// Writes a token in the format of chat choices.
pub(crate) fn chat_entry(tokenizer: &Tokenizer, token: &ScoredToken, scale: Scale) -> Value {
    let mut scored = entry(tokenizer, token.id, token.logprob.unwrap_or(LEAST), scale);
    let top = (token.top.iter()).map(|top| entry(tokenizer, top.id, top.logprob, scale));
    scored[scale.name_of_top()] = top.collect();
    scored
}

/// Writes a token in llama.cpp's format, with its id and those of the alternatives.
pub(crate) fn entry_with_ids(tokenizer: &Tokenizer, token: &ScoredToken, scale: Scale) -> Value {
    let mut scored = chat_entry(tokenizer, token, scale);
    scored["id"] = token.id.into();
    let top = scored[scale.name_of_top()].as_array_mut().into_iter().flatten();
    for (score, token) in top.zip(&token.top) {
        score["id"] = token.id.into();
    }
    scored
}

/// The `logprobs` of a chat choice.
pub(crate) fn chat_logprobs(tokenizer: &Tokenizer, tokens: &[ScoredToken], scale: Scale) -> Value {
    let content: Value = (tokens.iter())
        .map(|token| chat_entry(tokenizer, token, scale))
        .collect();
    json!({ "content": content, "refusal": null })
}

/// Writes a prompt token and its alternatives as vLLM does, by their ids; `null` for a token without a score. Only the alternatives have a
/// rank.
pub(crate) fn scored_by_id(tokenizer: &Tokenizer, token: &ScoredToken) -> Value {
    let Some(logprob) = token.logprob else {
        return Value::Null;
    };
    let entry = |id: u32, logprob: f32, rank: Option<usize>| json!({ "logprob": finite(logprob), "rank": rank, "decoded_token": text_of(tokenizer, id) });
    let mut by_id = Map::new();
    by_id.insert(token.id.to_string(), entry(token.id, logprob, None));
    for (rank, top) in (1..).zip(&token.top) {
        by_id.insert(top.id.to_string(), entry(top.id, top.logprob, Some(rank)));
    }
    Value::Object(by_id)
}

/// Characters that a token adds to the text: control tokens are not shown, and a character that several tokens share
/// belongs to the first.
pub(crate) fn n_chars(tokenizer: &Tokenizer, id: u32) -> usize {
    if tokenizer.token_kind(id).is_some_and(TokenKind::is_special) {
        return 0;
    }
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    bytes.iter().filter(|&&byte| byte & 0xc0 != 0x80).count()
}

/// The `logprobs` of a completion choice: parallel lists, with the offset of each token in the text.
///
/// `first_offset` is where the first token's text starts, in characters.
pub(crate) fn completion_logprobs(
    tokenizer: &Tokenizer,
    tokens: &[ScoredToken],
    first_offset: usize,
) -> Value {
    let mut offset = first_offset;
    let mut texts = Vec::with_capacity(tokens.len());
    let mut logprobs = Vec::with_capacity(tokens.len());
    let mut tops = Vec::with_capacity(tokens.len());
    let mut offsets = Vec::with_capacity(tokens.len());
    for token in tokens {
        offsets.push(offset);
        offset += n_chars(tokenizer, token.id);
        texts.push(text_of(tokenizer, token.id));
        logprobs.push(token.logprob.map(finite));
        tops.push(alternatives(tokenizer, token));
    }
    json!({ "tokens": texts, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets })
}

/// Writes the likeliest tokens by their texts. The first token of an echoed prompt has no probability and no alternatives.
pub(crate) fn alternatives(tokenizer: &Tokenizer, token: &ScoredToken) -> Value {
    if token.logprob.is_none() {
        return Value::Null;
    }
    let top: Map<String, Value> = (token.top.iter())
        .map(|top| (text_of(tokenizer, top.id), json!(finite(top.logprob))))
        .collect();
    Value::Object(top)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_that_would_not_fit_are_refused_before_they_are_computed() {
        let check = |n_top: Option<u32>, n: u32, max_tokens: Option<u32>, n_prompts: usize| {
            let mut params = TextParams {
                n,
                max_tokens,
                ..TextParams::default()
            };
            params.sampling.n_logprobs = n_top;
            let checked = check_scores("logprobs", &params, n_prompts, 4096, 100_000);
            checked.map_err(|error| error.param().map(str::to_owned))
        };
        let refused = Err(Some("logprobs".to_owned()));
        assert_eq!(check(Some(20), 1, None, 1), Ok(()));
        assert_eq!(check(Some(20), 2, None, 1), refused);
        assert_eq!(check(Some(20), 128, Some(30), 1), Ok(()));
        assert_eq!(check(Some(0), 1, None, 25), refused);
        assert_eq!(check(None, 128, None, 256), Ok(()));
        assert_eq!(
            check(Some(u32::MAX), u32::MAX, Some(u32::MAX), usize::MAX),
            refused
        );
    }
}
