//! [`Decisions`]: the answers of a request, read from the engine as its prompts end.
//!
//! Apart from the prompts, which are written before anything is computed. Invariant: the common beginning of the prompts is computed once,
//! in whole pages, and an answer does not depend on whether it was.

use std::{
    collections::VecDeque,
    task::{Context, Poll, ready},
    time::Instant,
};

use tokenmill_backend::PAGE_TOKENS;
use tokenmill_sched::{Engine, ForwardParams, ForwardRows};

use super::budget::MAX_OPEN;
use crate::{
    Error,
    decide_error::DecideError,
    decision::{
        answer::Decision,
        family::RowsOfPrompt,
        readout::{Reading, Readout},
    },
    forward_passes::{ForwardPasses, Pace, PassInput},
    wait::wait,
};

/// Tokens that must be saved for the common beginning to be computed in a step of its own, which takes about as long.
const LEAST_SAVED_TOKENS: usize = 64;

/// The answers to the questions of a request: an iterator that waits for each. Dropping it cancels unfinished work.
#[derive(Debug)]
pub struct Decisions {
    pub(super) engine: Engine,
    pub(super) rows: RowsOfPrompt,
    pub(super) cache_salt: u64,
    pub(super) deadline: Option<Instant>,
    pub(super) shared: Option<Shared>,
    pub(super) passes: Option<ForwardPasses>,
    pub(super) asked: VecDeque<Asked>,
    pub(super) question_idx: usize,
    /// The rows that were read of the prompt that is being computed.
    pub(super) reading: Reading,
    pub(super) n_prompt_tokens: usize,
    /// Tokens that were computed for the common beginning.
    pub(super) n_shared_computed: usize,
}

impl Decisions {
    /// Returns the number of tokens of all prompts. Each of them has the state.
    pub fn n_prompt_tokens(&self) -> usize {
        self.n_prompt_tokens
    }

    /// Returns how many of them did not have to be computed for this request, once all answers were read.
    pub fn n_cached_tokens(&self) -> usize {
        let n_cached = self.passes.as_ref().map_or(0, ForwardPasses::n_cached_tokens);
        n_cached.saturating_sub(self.n_shared_computed)
    }

    /// Returns the answer to the next question, without blocking a thread; `None` after the last.
    pub async fn next_decision(&mut self) -> Option<Result<Decision, Error>> {
        std::future::poll_fn(|context| self.poll_decision(context)).await
    }

    fn poll_decision(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Decision, Error>>> {
        let answer = ready!(self.poll_answer(context));
        if let Some(Err(_)) = answer {
            self.asked.clear();
            (self.shared, self.passes) = (None, None);
        }
        Poll::Ready(answer)
    }

    fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Decision, Error>>> {
        if let Some(shared) = &mut self.shared {
            while let Some(done) = ready!(shared.pass.poll(context, |_| {})) {
                done?;
            }
            let shared = self.shared.take().expect("it was just polled");
            self.n_shared_computed = shared.n_tokens.saturating_sub(shared.pass.n_cached_tokens());
            self.passes = Some(self.ask(shared.prompts, true)?);
        }
        let (Some(passes), Some(asked)) = (&mut self.passes, self.asked.front_mut()) else {
            return Poll::Ready(None);
        };
        let no_numbers = DecideError::NoNumbers {
            question_idx: self.question_idx,
        };
        while let Some(readout) = asked.readouts.front() {
            let (reading, temperature) = (&mut self.reading, asked.temperature);
            let done = ready!(passes.poll(context, |row| reading.add(readout, row, temperature)));
            let Some(done) = done else {
                return Poll::Ready(None);
            };
            done?;
            let answer = reading.finish(readout, temperature);
            asked.readings.push(answer.ok_or_else(|| no_numbers.clone())?);
            asked.readouts.pop_front();
        }
        let decision = Decision::mean_of(&asked.readings).tempered(asked.fitted_temperature);
        self.asked.pop_front();
        self.question_idx += 1;
        Poll::Ready(Some(Ok(decision)))
    }

    /// Submits the prompts.
    fn ask(&self, prompts: Vec<PassInput>, is_begun: bool) -> Result<ForwardPasses, Error> {
        let pace = Pace {
            max_open: MAX_OPEN,
            is_begun,
        };
        let (cache_salt, rows) = (self.cache_salt, self.rows);
        ForwardPasses::start_at(&self.engine, prompts, pace, self.deadline, move |prompt| {
            ForwardParams {
                cache_salt,
                ..rows.params(prompt)
            }
        })
    }

    /// Submits the common beginning of the prompts, if that saves time, and else the prompts.
    pub(super) fn begin(&mut self, prompts: Vec<PassInput>) -> Result<(), Error> {
        let n_shared = n_shared(&prompts);
        let n_saved = n_shared.saturating_mul(prompts.len().saturating_sub(1));
        let keeps_pages = self.engine.config().uses_prefix_cache && !self.engine.limits().is_encoder;
        if n_saved < LEAST_SAVED_TOKENS || !keeps_pages {
            self.passes = Some(self.ask(prompts, false)?);
            return Ok(());
        }
        // The prefix cache never returns the last token of a prompt, so one more token lets it return the last common page.
        let n_tokens = n_shared + 1;
        let first = &prompts[0];
        let media = first.media.iter().filter(|media| media.span.end <= n_tokens);
        let beginning = PassInput {
            tokens: first.tokens[..n_tokens].to_vec(),
            media: media.cloned().collect(),
        };
        let pace = Pace {
            max_open: 1,
            is_begun: false,
        };
        let cache_salt = self.cache_salt;
        let pass = ForwardPasses::start_at(&self.engine, vec![beginning], pace, self.deadline, move |_| {
            ForwardParams {
                cache_salt,
                ..ForwardParams::new(ForwardRows::Hidden, n_shared)
            }
        })?;
        self.shared = Some(Shared {
            pass,
            n_tokens,
            prompts,
        });
        Ok(())
    }
}

impl Iterator for Decisions {
    type Item = Result<Decision, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        wait(|context| self.poll_decision(context))
    }
}

/// Returns the number of tokens, in whole pages, with which all prompts begin and after which each has more. The token after them is in no
/// image that they have a part of.
fn n_shared(prompts: &[PassInput]) -> usize {
    let Some((first, others)) = prompts.split_first() else {
        return 0;
    };
    let n_before_last = |prompt: &PassInput| prompt.tokens.len().saturating_sub(1);
    let n_common = others.iter().fold(n_before_last(first), |n_common, other| {
        let pairs = first.tokens[..n_common]
            .iter()
            .zip(&other.tokens[..n_before_last(other)]);
        pairs.take_while(|(a, b)| a == b).count()
    });
    let in_pages = |n_tokens: usize| n_tokens / PAGE_TOKENS * PAGE_TOKENS;
    let images = first.media.iter().rev().map(|media| media.span);
    images.fold(in_pages(n_common), |n_shared, image| {
        if image.start <= n_shared && n_shared + 1 < image.end {
            in_pages(image.start.saturating_sub(1))
        } else {
            n_shared
        }
    })
}

/// A question that waits for its answer.
#[derive(Debug)]
pub(super) struct Asked {
    /// The places of the options, for each of their orders.
    readouts: VecDeque<Readout>,
    /// Divides what is read.
    temperature: f64,
    /// Divides the logarithms of the answer.
    pub(super) fitted_temperature: f64,
    /// Answers in the orders that were read.
    readings: Vec<Decision>,
}

impl Asked {
    pub(super) fn new(readouts: VecDeque<Readout>, temperature: f64) -> Self {
        Self {
            readouts,
            temperature,
            fitted_temperature: 1.0,
            readings: Vec::new(),
        }
    }
}

/// The part of all prompts that is computed before them.
#[derive(Debug)]
pub(super) struct Shared {
    pass: ForwardPasses,
    n_tokens: usize,
    /// The prompts that follow.
    prompts: Vec<PassInput>,
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokenmill_sched::{Media, MediaPlaces, MediaSpan};

    use super::*;

    #[test]
    fn the_common_beginning_ends_with_a_page_before_any_prompt_does() {
        let of = |n_common: u32, end: u32| -> Vec<u32> { (0..n_common).chain([1000 + end]).collect() };
        let check = |prompts: &[Vec<u32>], expected: usize| {
            let prompts: Vec<_> = prompts.iter().cloned().map(PassInput::from).collect();
            assert_eq!(n_shared(&prompts), expected);
        };
        check(&[], 0);
        check(&[of(40, 0)], 32);
        check(&[of(40, 0), of(40, 1)], 32);
        check(&[of(32, 0), of(40, 1)], 32);
        check(&[of(31, 0), of(40, 1)], 16);
        check(&[(0..32).collect(), (0..32).collect()], 16);
        check(&[of(3, 0), of(40, 1)], 0);
    }

    #[test]
    fn the_common_beginning_cuts_no_image() {
        let check = |spans: &[(usize, usize)], expected: usize| {
            let media = spans.iter().map(|&(start, end)| Media {
                span: MediaSpan {
                    start,
                    end,
                    content: 0,
                    sees_itself: true,
                    places: MediaPlaces::Line,
                },
                rows: Arc::new([]),
            });
            let prompts = [0, 1].map(|end| PassInput {
                tokens: (0..70).chain([1000 + end, 0]).collect(),
                media: media.clone().collect(),
            });
            assert_eq!(n_shared(&prompts), expected, "{spans:?}");
        };
        check(&[], 64);
        check(&[(3, 20)], 64);
        check(&[(3, 65)], 64);
        check(&[(3, 66)], 0);
        check(&[(40, 68)], 32);
        check(&[(20, 33), (34, 66)], 32);
        check(&[(20, 34), (34, 66)], 16);
        check(&[(64, 68)], 48);
        check(&[(65, 68)], 64);
    }
}
