//! [`Scores`]: how well documents answer a query, as they are ready.
//!
//! Unlike for embeddings, a query and a document are one input. Two kinds of models do it: those with a
//! classification head, and chat models that were trained to answer "yes" or "no". Invariant: scores lie
//! between 0 and 1 and have the order of the documents.

use std::{
    task::{Context, Poll, ready},
    time::Duration,
};

use tokenmill_sched::{Engine, ForwardParams, ForwardRows};

use crate::{Error, forward_passes::ForwardPasses, wait::wait};

/// How a model says whether a document answers a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankWords {
    /// By the classification head of its network.
    Head,
    /// By the next token.
    YesNo {
        /// The token of "yes".
        yes: u32,
        /// The token of "no".
        no: u32,
    },
}

/// The prompt that Qwen3-Reranker was trained with, with places for three texts. Source: the model's page.
pub(crate) const QWEN3_PROMPT: &str = "<|im_start|>system\nJudge whether the Document meets the requirements based on the \
Query and the Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n\
<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

/// The default instruction of a prompt.
pub(crate) const INSTRUCTION: &str =
    "Given a web search query, retrieve relevant passages that answer the query";

/// The scores of a query's documents: an iterator that waits for each. Dropping it cancels unfinished work.
#[derive(Debug)]
pub struct Scores {
    passes: ForwardPasses,
    /// The two tokens whose logits decide, if the model has no classification head.
    yes_no: Option<[u32; 2]>,
    score: f32,
}

impl Scores {
    pub(crate) fn start(
        engine: &Engine,
        words: &RankWords,
        inputs: Vec<Vec<u32>>,
        deadline: Option<Duration>,
        cache_salt: u64,
    ) -> Result<Self, Error> {
        let (rows, yes_no) = match *words {
            RankWords::Head => (ForwardRows::Hidden, None),
            RankWords::YesNo { yes, no } => (ForwardRows::Logits, Some([yes, no])),
        };
        let params_of = move |tokens: &[u32]| ForwardParams {
            cache_salt,
            ..ForwardParams::new(rows, tokens.len().saturating_sub(1))
        };
        Ok(Self {
            passes: ForwardPasses::start(engine, inputs, deadline, params_of)?,
            yes_no,
            score: 0.0,
        })
    }

    /// The score of the next document, without blocking a thread; `None` after the last.
    pub async fn next_score(&mut self) -> Option<Result<f32, Error>> {
        std::future::poll_fn(|context| self.poll_score(context)).await
    }

    pub(crate) fn poll_score(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<f32, Error>>> {
        let (yes_no, score) = (self.yes_no, &mut self.score);
        let done = ready!(self.passes.poll(context, |row| {
            *score = match yes_no {
                Some([yes, no]) => first_of_two(row[yes as usize], row[no as usize]),
                None => score_of(row),
            };
        }));
        Poll::Ready(done.map(|done| done.map(|()| self.score)))
    }
}

impl Iterator for Scores {
    type Item = Result<f32, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        wait(|context| self.poll_score(context))
    }
}

/// Returns the probability of the first class from the logits of a classification head. A single class is
/// scored by itself, several classes relative to each other.
fn score_of(logits: &[f32]) -> f32 {
    match logits {
        [] => 0.0,
        [logit] => first_of_two(*logit, 0.0),
        [first, rest @ ..] => {
            let others: f32 = rest.iter().map(|logit| (logit - first).exp()).sum();
            1.0 / (1.0 + others)
        }
    }
}

/// The share of the first of two under a softmax.
fn first_of_two(first: f32, second: f32) -> f32 {
    1.0 / (1.0 + (second - first).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_is_the_probability_of_the_first_class() {
        let check = |logits: &[f32], expected: f32| {
            assert!((score_of(logits) - expected).abs() < 1e-6, "{logits:?}");
        };
        check(&[0.0], 0.5);
        check(&[100.0], 1.0);
        check(&[-100.0], 0.0);
        check(&[2.0, 2.0], 0.5);
        check(&[0.0, 0.0, 0.0, 0.0], 0.25);
        check(&[-200.0, 200.0], 0.0);
    }
}
