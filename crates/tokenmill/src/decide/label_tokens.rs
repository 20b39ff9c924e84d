//! [`LabelTokens`]: the token of each label that follows a prompt.
//!
//! Apart from the wording, because only the tokenizer knows it: a label can merge with the end of a prompt, or be several tokens.
//! Invariant: a label's token is the one token that its text adds to the text with which every prompt ends.

use std::collections::HashMap;

use tokenmill_text::{DecodeOptions, EncodeOptions, TokenKind, Tokenizer};

use super::wording::{LabelKind, Labels};
use crate::{
    decide_error::DecideError,
    decision::question::{Question, QuestionKind},
    words::AnswerPlace,
};

/// Most tokens at the end of a prompt that are encoded again with a label after them.
const MAX_TAIL_TOKENS: usize = 64;

/// Tokens before the end of a prompt that are read with it, since a token may hold some of both.
const N_BEFORE_END: usize = 16;

/// Words for yes and no. The first pair is used whose words are one token each.
const YES_NO: [[&str; 2]; 3] = [["Yes", "No"], ["yes", "no"], ["YES", "NO"]];

/// The labels after the prompts of a model.
#[derive(Debug)]
pub(super) struct LabelTokens<'a> {
    tokenizer: &'a Tokenizer,
    /// The text with which every prompt ends.
    end: &'a str,
    /// Number of its tokens.
    n_end: usize,
    /// That text from its last control token on, its tokens, and the white space before a label.
    text: String,
    encoded: Vec<u32>,
    gap: &'a str,
    known: HashMap<String, Option<u32>>,
}

impl<'a> LabelTokens<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, place: &'a AnswerPlace) -> Self {
        let end = encode(tokenizer, &place.end);
        let text = decode(tokenizer, tail_of(tokenizer, &end));
        Self {
            tokenizer,
            end: &place.end,
            n_end: end.len(),
            encoded: encode(tokenizer, &text),
            text,
            gap: &place.gap,
            known: HashMap::new(),
        }
    }

    /// Returns whether a prompt ends as every prompt does. A switch in its text may have made the template write something else.
    pub(super) fn follow(&self, prompt: &[u32]) -> bool {
        let n_read = self.n_end + N_BEFORE_END;
        decode(self.tokenizer, &prompt[prompt.len().saturating_sub(n_read)..]).ends_with(self.end)
    }

    /// Returns the token of a label; `None` if it is not a token of its own here.
    fn token(&mut self, label: &str) -> Option<u32> {
        if let Some(&token) = self.known.get(label) {
            return token;
        }
        let with_label = encode(self.tokenizer, &format!("{}{}{label}", self.text, self.gap));
        let token = match with_label.split_last() {
            Some((&token, before)) if before == self.encoded => Some(token),
            _ => None,
        };
        self.known.insert(label.to_owned(), token);
        token
    }

    /// Returns the tokens of all labels, which differ; `None` if one has none or two have the same.
    pub(super) fn tokens<T: AsRef<str>>(&mut self, labels: &[T]) -> Option<Vec<u32>> {
        let mut tokens = Vec::with_capacity(labels.len());
        for label in labels {
            let token = self.token(label.as_ref())?;
            if tokens.contains(&token) {
                return None;
            }
            tokens.push(token);
        }
        Some(tokens)
    }

    /// Chooses labels for the options of a question.
    ///
    /// # Errors
    /// [`DecideError::FewLabels`].
    pub(super) fn choose(&mut self, question: &Question, question_idx: usize) -> Result<Labels, DecideError> {
        let n_options = question.n_options();
        let fitting = match question.kind {
            QuestionKind::Predicate { .. } => {
                let pair = YES_NO.iter().find(|pair| self.tokens(*pair).is_some());
                pair.map(|pair| (LabelKind::YesNo, pair.map(str::to_owned).to_vec()))
            }
            QuestionKind::Score(_) => {
                let digits: Vec<String> = (0..n_options).map(|level| level.to_string()).collect();
                let is_fitting = self.tokens(&digits).is_some();
                is_fitting.then_some((LabelKind::Digits, digits))
            }
            QuestionKind::Choice(_) => None,
        };
        if let Some((kind, texts)) = fitting {
            return Ok(Labels { kind, texts });
        }
        let (mut texts, mut tokens) = (Vec::new(), Vec::new());
        for label in letters() {
            if texts.len() == n_options {
                break;
            }
            if let Some(token) = self.token(&label).filter(|token| !tokens.contains(token)) {
                tokens.push(token);
                texts.push(label);
            }
        }
        if texts.len() < n_options {
            return Err(DecideError::FewLabels {
                question_idx,
                found: n_options,
                n_labels: texts.len(),
            });
        }
        Ok(Labels {
            kind: LabelKind::Letters,
            texts,
        })
    }
}

/// A to Z, then AA to ZZ.
fn letters() -> impl Iterator<Item = String> {
    let pairs = ('A'..='Z').flat_map(|first| ('A'..='Z').map(move |second| format!("{first}{second}")));
    ('A'..='Z').map(String::from).chain(pairs)
}

/// Returns the end of a prompt from its last control token on.
fn tail_of<'p>(tokenizer: &Tokenizer, prompt: &'p [u32]) -> &'p [u32] {
    let last = &prompt[prompt.len().saturating_sub(MAX_TAIL_TOKENS)..];
    let is_control = |&id: &u32| tokenizer.token_kind(id).is_some_and(TokenKind::is_special);
    &last[last.iter().rposition(is_control).unwrap_or(0)..]
}

fn decode(tokenizer: &Tokenizer, tokens: &[u32]) -> String {
    let options = DecodeOptions {
        skip_special: false,
        is_continuation: true,
    };
    tokenizer.decode(tokens, options)
}

fn encode(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let options = EncodeOptions {
        add_special: false,
        parse_special: true,
    };
    tokenizer.encode(text, options)
}
