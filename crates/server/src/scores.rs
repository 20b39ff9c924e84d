//! Log-probabilities as OpenAI's endpoints write them.

use serde_json::{Map, Value, json};
use tokenmill::ScoredToken;
use tokenmill_text::{TokenKind, Tokenizer};

/// Written in place of negative infinity, which JSON does not have; OpenAI documents the same value.
const LEAST: f32 = -9999.0;

fn finite(logprob: f32) -> f32 {
    logprob.max(LEAST)
}

fn text_of(tokenizer: &Tokenizer, id: u32) -> String {
    String::from_utf8_lossy(tokenizer.token_bytes(id).unwrap_or_default()).into_owned()
}

/// The `logprobs` of a chat choice.
pub(crate) fn chat_logprobs(tokenizer: &Tokenizer, tokens: &[ScoredToken]) -> Value {
    let entry = |id: u32, logprob: f32| {
        json!({
            "token": text_of(tokenizer, id),
            "logprob": finite(logprob),
            "bytes": tokenizer.token_bytes(id).unwrap_or_default(),
        })
    };
    let content: Vec<Value> = tokens
        .iter()
        .map(|token| {
            let mut scored = entry(token.id, token.logprob.unwrap_or(LEAST));
            scored["top_logprobs"] = token.top.iter().map(|top| entry(top.id, top.logprob)).collect();
            scored
        })
        .collect();
    json!({ "content": content, "refusal": null })
}

/// Characters that a token adds to the text: control tokens are not shown, and a character that several tokens share
/// belongs to the first.
fn n_chars(tokenizer: &Tokenizer, id: u32) -> usize {
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
        let text = text_of(tokenizer, token.id);
        offsets.push(offset);
        offset += n_chars(tokenizer, token.id);
        texts.push(text);
        logprobs.push(token.logprob.map(finite));
        let top: Map<String, Value> = token
            .top
            .iter()
            .map(|top| (text_of(tokenizer, top.id), json!(finite(top.logprob))))
            .collect();
        // The first token of an echoed prompt has no probability, and no alternatives.
        tops.push(if token.logprob.is_some() {
            Value::Object(top)
        } else {
            Value::Null
        });
    }
    json!({ "tokens": texts, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets })
}
