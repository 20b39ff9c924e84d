//! [`LabelTokens`]: the token of each label behind a prompt.
//!
//! Apart from the wording, because only the tokenizer knows it: a label can merge with the end of a prompt, or be several tokens.
//! Invariant: a label's token is the one token that its text adds behind the prompt's last tokens.

use std::collections::HashMap;

use tokenmill_text::{DecodeOptions, EncodeOptions, TokenKind, Tokenizer};

use super::{
    question::{Question, QuestionKind},
    wording::{LabelKind, Labels},
};
use crate::decide_error::DecideError;

/// Most tokens at the end of a prompt that are encoded again with a label behind them.
const MAX_TAIL_TOKENS: usize = 64;

/// Words for yes and no. The first pair is used whose words are one token each.
const YES_NO: [[&str; 2]; 3] = [["Yes", "No"], ["yes", "no"], ["YES", "NO"]];

/// The labels behind a prompt.
#[derive(Debug)]
pub(super) struct LabelTokens<'a> {
    tokenizer: &'a Tokenizer,
    /// The prompt from its last control token on.
    tail: Vec<u32>,
    /// Its text, and the tokens of that.
    text: String,
    encoded: Vec<u32>,
    known: HashMap<String, Option<u32>>,
}

impl<'a> LabelTokens<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, prompt: &[u32]) -> Self {
        let tail = tail_of(tokenizer, prompt).to_vec();
        let options = DecodeOptions {
            skip_special: false,
            is_continuation: true,
        };
        let text = tokenizer.decode(&tail, options);
        Self {
            tokenizer,
            encoded: encode(tokenizer, &text),
            tail,
            text,
            known: HashMap::new(),
        }
    }

    /// Moves to another prompt. Most end as the one before.
    pub(super) fn follow(&mut self, prompt: &[u32]) {
        if tail_of(self.tokenizer, prompt) != self.tail {
            *self = Self::new(self.tokenizer, prompt);
        }
    }

    /// Returns the token of a label; `None` if it is not a token of its own here.
    fn token(&mut self, label: &str) -> Option<u32> {
        if let Some(&token) = self.known.get(label) {
            return token;
        }
        let with_label = encode(self.tokenizer, &format!("{}{label}", self.text));
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

fn encode(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let options = EncodeOptions {
        add_special: false,
        parse_special: true,
    };
    tokenizer.encode(text, options)
}
