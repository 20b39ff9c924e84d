//! [`ScoreSheet`] writes the log-probabilities of a whole answer while it is sent.
//!
//! An answer with alternatives for every token is hundreds of times as long as its text, and as JSON values
//! another seventeen times. Invariant: only a few hundred tokens exist as text at any moment.

use std::{
    collections::VecDeque,
    convert::Infallible,
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
};

use axum::{
    body::Body,
    http::header,
    response::{IntoResponse as _, Response},
};
use serde_json::{Value, json};
use tokenmill::stream::ScoredToken;
use tokenmill_text::Tokenizer;

use crate::answers::scores::{Scale, alternatives, chat_entry, entry_with_ids, finite, n_chars, text_of};

/// Tokens that are written at a time; shorter answers are written at once.
const PART_TOKENS: usize = 64;

/// Holds the lists of an answer, whose JSON has a random mark in place of each.
pub(crate) struct ScoreSheet {
    tokenizer: Arc<Tokenizer>,
    /// The scale of the lists of chat choices and of llama.cpp.
    scale: Scale,
    mark: String,
    lists: Vec<List>,
}

/// Holds one list.
struct List {
    tokens: Arc<[ScoredToken]>,
    form: Form,
    n_written: usize,
    /// Characters before the next token.
    offset: usize,
}

/// Selects the format of a list's tokens.
#[derive(Clone, Copy)]
enum Form {
    Chat,
    WithIds,
    Text,
    Logprob,
    Alternatives,
    Offset,
}

impl ScoreSheet {
    /// Creates a sheet of log-probabilities without lists.
    pub(crate) fn new(tokenizer: &Arc<Tokenizer>) -> Self {
        Self::of_scale(tokenizer, Scale::Logprob)
    }

    /// Creates a sheet without lists.
    pub(crate) fn of_scale(tokenizer: &Arc<Tokenizer>, scale: Scale) -> Self {
        let random = RandomState::new();
        Self {
            tokenizer: Arc::clone(tokenizer),
            scale,
            mark: format!("scores {:016x}{:016x} ", random.hash_one(1), random.hash_one(2)),
            lists: Vec::new(),
        }
    }

    fn add(&mut self, tokens: &Arc<[ScoredToken]>, form: Form, offset: usize) -> Value {
        self.lists.push(List {
            tokens: Arc::clone(tokens),
            form,
            n_written: 0,
            offset,
        });
        format!("{}{}", self.mark, self.lists.len() - 1).into()
    }

    /// Returns the `logprobs` of a chat choice.
    pub(crate) fn chat(&mut self, tokens: &[ScoredToken]) -> Value {
        json!({ "content": self.add(&tokens.into(), Form::Chat, 0), "refusal": null })
    }

    /// Returns a list in the format of chat choices.
    pub(crate) fn list(&mut self, tokens: &[ScoredToken]) -> Value {
        self.add(&tokens.into(), Form::Chat, 0)
    }

    /// Returns a list in llama.cpp's format.
    pub(crate) fn with_ids(&mut self, tokens: &[ScoredToken]) -> Value {
        self.add(&tokens.into(), Form::WithIds, 0)
    }

    /// Returns the `logprobs` of a completion choice; `first_offset` is the offset of its first token's text, in characters.
    pub(crate) fn completion(&mut self, tokens: &[ScoredToken], first_offset: usize) -> Value {
        let tokens: Arc<[ScoredToken]> = tokens.into();
        json!({
            "tokens": self.add(&tokens, Form::Text, 0),
            "token_logprobs": self.add(&tokens, Form::Logprob, 0),
            "top_logprobs": self.add(&tokens, Form::Alternatives, 0),
            "text_offset": self.add(&tokens, Form::Offset, first_offset),
        })
    }

    /// Builds the response from an answer with marks in place of the lists.
    pub(crate) fn response(self, answer: &Value) -> Response {
        let json = [(header::CONTENT_TYPE, "application/json")];
        let n_tokens: usize = self.lists.iter().map(|list| list.tokens.len()).sum();
        let parts = self.parts(answer);
        if n_tokens <= PART_TOKENS {
            return (json, parts.collect::<String>()).into_response();
        }
        let parts = futures_util::stream::iter(parts.map(Ok::<_, Infallible>));
        (json, Body::from_stream(parts)).into_response()
    }

    /// Splits an answer's text into parts.
    fn parts(self, answer: &Value) -> Parts {
        let mark = format!("\"{}", self.mark);
        let text = answer.to_string();
        let mut pieces = text.split(mark.as_str());
        let mut parts = VecDeque::new();
        parts.extend(pieces.next().map(|first| Part::Text(first.to_owned())));
        for piece in pieces {
            let (no, rest) = piece.split_once('"').expect("a mark ends with its text");
            parts.push_back(Part::List(no.parse().expect("it was written here")));
            parts.push_back(Part::Text(rest.to_owned()));
        }
        Parts { sheet: self, parts }
    }
}

/// Holds a part of an answer.
enum Part {
    Text(String),
    List(usize),
}

/// Iterates over the parts of an answer, as texts.
struct Parts {
    sheet: ScoreSheet,
    parts: VecDeque<Part>,
}

impl Iterator for Parts {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        match self.parts.pop_front()? {
            Part::Text(text) => Some(text),
            Part::List(no) => {
                let list = self.sheet.lists.get_mut(no)?;
                let text = list.next_part(&self.sheet.tokenizer, self.sheet.scale);
                if list.n_written < list.tokens.len() {
                    self.parts.push_front(Part::List(no));
                }
                Some(text)
            }
        }
    }
}

impl List {
    /// Writes the next tokens; the first part opens the list and the last closes it.
    fn next_part(&mut self, tokenizer: &Tokenizer, scale: Scale) -> String {
        let end = (self.n_written + PART_TOKENS).min(self.tokens.len());
        let mut out = if self.n_written == 0 { "[" } else { "" }.to_owned();
        for at in self.n_written..end {
            let token = &self.tokens[at];
            let value = match self.form {
                Form::Chat => chat_entry(tokenizer, token, scale),
                Form::WithIds => entry_with_ids(tokenizer, token, scale),
                Form::Text => text_of(tokenizer, token.id).into(),
                Form::Logprob => json!(token.logprob.map(finite)),
                Form::Alternatives => alternatives(tokenizer, token),
                Form::Offset => {
                    let offset = self.offset;
                    self.offset += n_chars(tokenizer, token.id);
                    offset.into()
                }
            };
            if at > 0 {
                out.push(',');
            }
            out.push_str(&value.to_string());
        }
        self.n_written = end;
        if end == self.tokens.len() {
            out.push(']');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokenmill_backend::TokenLogprob;

    use super::*;
    use crate::answers::scores::{chat_logprobs, completion_logprobs};

    fn tokenizer() -> Arc<Tokenizer> {
        let file = json!({
            "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
            "model": { "type": "BPE", "vocab": { "a": 0, "b": 1, "\"": 2 }, "merges": [] },
        });
        let tokenizer = Tokenizer::from_tokenizer_json(file.to_string().as_bytes());
        Arc::new(tokenizer.expect("a tokenizer"))
    }

    fn tokens(n: usize) -> Vec<ScoredToken> {
        let top = |id| TokenLogprob { id, logprob: -0.5 };
        (0..n)
            .map(|at| ScoredToken {
                id: (at % 3) as u32,
                logprob: (at > 0).then_some(-0.25),
                top: vec![top(0), top(2)],
                time: Duration::ZERO,
            })
            .collect()
    }

    #[test]
    fn streamed_scores_equal_json_values() {
        let tokenizer = tokenizer();
        let lengths = [0, 1, PART_TOKENS, PART_TOKENS + 1, 3 * PART_TOKENS + 7];
        let scales = [Scale::Logprob, Scale::Probability];
        for (n, scale) in lengths.into_iter().flat_map(|n| scales.map(|scale| (n, scale))) {
            let tokens = tokens(n);
            let mut sheet = ScoreSheet::of_scale(&tokenizer, scale);
            let answer = json!({
                "content": "scores 0 \"", "chat": sheet.chat(&tokens), "list": [sheet.with_ids(&tokens), sheet.list(&tokens)],
                "completion": sheet.completion(&tokens, 3), "end": null,
            });
            let with_ids: Value = tokens
                .iter()
                .map(|token| entry_with_ids(&tokenizer, token, scale))
                .collect();
            let expected = json!({
                "content": "scores 0 \"", "chat": chat_logprobs(&tokenizer, &tokens, scale),
                "list": [with_ids, chat_logprobs(&tokenizer, &tokens, scale)["content"]],
                "completion": completion_logprobs(&tokenizer, &tokens, 3), "end": null,
            });
            let parts: Vec<String> = sheet.parts(&answer).collect();
            assert_eq!(parts.concat(), expected.to_string());
            let longest = parts.iter().map(String::len).max().expect("a part");
            assert!(longest <= PART_TOKENS * 300, "{longest}");
        }
    }
}
