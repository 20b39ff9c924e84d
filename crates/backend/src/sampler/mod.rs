//! [`Sampler`]: from a row of logits to a token, the one place on the host where this happens.
//!
//! Every backend that samples on the host calls it, and a device sampler is measured against it. Invariants:
//! the result depends only on the logits and the [`SampleRequest`]; the lowest id wins every tie; nothing is
//! allocated after the first rows; the vocabulary is never sorted as a whole.
//!
//! A draw is an exponential race (Gumbel-max): token `i` of the tokens left by the filters gets the score
//! `(logit[i] - max) / temperature - ln(e[i])`, where `e[i]` is an exponential random number that depends on
//! the seed, the position and `i`; the highest score wins. That equals a draw from the softmax, but needs no
//! sums, so neither the order of the tokens nor the number of threads can change the result.

mod allowed;
mod chain;
mod gumbel;
mod penalties;
mod select;

use crate::{RowError, SampledToken, SamplingParams, TokenLogprob};

use allowed::{Allowed, argmax};
use chain::Chain;
use penalties::{Penalties, Seen};
use select::{Candidate, best_k, keep_nucleus};

/// Everything except the logits that determines a token.
#[derive(Clone, Copy, Debug)]
pub struct SampleRequest<'a> {
    /// Validated sampling parameters.
    pub params: &'a SamplingParams,
    /// The sequence's tokens so far, oldest first.
    pub history: &'a [u32],
    /// Tokens that follow `history`.
    pub newest: &'a [u32],
    /// Number of prompt tokens at the start of `history`.
    pub n_prompt: usize,
    /// Allowed tokens: bit `id % 32` of word `id / 32`.
    pub mask: Option<&'a [u32]>,
    /// Position that the token will take in its sequence.
    pub position: u32,
}

/// Samples rows; keeps its working memory from row to row.
#[derive(Debug, Default)]
pub struct Sampler {
    adjusted: Vec<f32>,
    candidates: Vec<Candidate>,
    penalties: Penalties,
    /// Scratch row for sampling step by step.
    row: Vec<f32>,
}

impl Sampler {
    /// Reserves memory for a vocabulary, so that no row allocates.
    pub fn new(n_vocab: usize) -> Self {
        Self {
            adjusted: Vec::with_capacity(n_vocab),
            candidates: Vec::with_capacity(n_vocab),
            penalties: Penalties::default(),
            row: Vec::new(),
        }
    }

    /// Picks the token of one row, `logits: [n_vocab]`, and appends the likeliest tokens that the parameters
    /// request to `top`.
    ///
    /// # Errors
    /// [`RowError::NonFiniteLogits`] or [`RowError::NothingAllowed`]; `top` is then unchanged.
    pub fn sample(
        &mut self,
        logits: &[f32],
        request: &SampleRequest<'_>,
        top: &mut Vec<TokenLogprob>,
    ) -> Result<SampledToken, RowError> {
        let params = request.params;
        check_numbers(logits)?;
        let id = if params.changes_logits() {
            self.adjust(logits, request);
            let adjusted = std::mem::take(&mut self.adjusted);
            let id = self.pick(Allowed::new(&adjusted, request.mask), request);
            self.adjusted = adjusted;
            id
        } else {
            self.pick(Allowed::new(logits, request.mask), request)
        };
        // Most rows have a token, so the reason for a missing one is looked up only then.
        let id = id.ok_or_else(|| match argmax(logits) {
            Some(_) => RowError::NothingAllowed,
            None => RowError::NonFiniteLogits,
        })?;
        let Some(n_logprobs) = params.n_logprobs else {
            return Ok(SampledToken { id, logprob: None });
        };
        if params.scores_draw {
            let logprob = self.score_draw(id, logits, n_logprobs as usize, top);
            return Ok(SampledToken {
                id,
                logprob: Some(logprob),
            });
        }
        let best = argmax(logits).ok_or(RowError::NonFiniteLogits)?;
        let log_sum = log_sum_exp(logits, logits[best as usize]);
        let logprob_of = |id: u32| logits[id as usize] - log_sum;
        best_k(
            Allowed::new(logits, None),
            n_logprobs as usize,
            &mut self.candidates,
        );
        top.extend(self.candidates.iter().map(|candidate| TokenLogprob {
            id: candidate.id,
            logprob: logprob_of(candidate.id),
        }));
        Ok(SampledToken {
            id,
            logprob: Some(logprob_of(id)),
        })
    }

    /// Appends the `n` tokens most likely to be drawn from those that the steps left, and then, with negative infinity, the likeliest of the
    /// others. Returns the log-probability of the drawn token.
    fn score_draw(&mut self, drawn: u32, logits: &[f32], n: usize, top: &mut Vec<TokenLogprob>) -> f32 {
        let left = &mut self.candidates;
        left.sort_unstable_by(Candidate::by_likelihood);
        let max = left[0].logit;
        let sum: f64 = (left.iter())
            .map(|candidate| f64::from(candidate.logit - max).exp())
            .sum();
        let log_sum = f64::from(max) + sum.ln();
        let logprob_of = |candidate: &Candidate| (f64::from(candidate.logit) - log_sum) as f32;
        let is_drawn = |candidate: &&Candidate| candidate.id == drawn;
        let logprob = logprob_of(left.iter().find(is_drawn).expect("one that was left was drawn"));
        let first = top.len();
        top.extend(left.iter().take(n).map(|candidate| TokenLogprob {
            id: candidate.id,
            logprob: logprob_of(candidate),
        }));
        if top.len() < first + n {
            best_k(Allowed::new(logits, None), n, &mut self.candidates);
            for candidate in &self.candidates {
                let is_listed = top[first..].iter().any(|listed| listed.id == candidate.id);
                if !is_listed && top.len() < first + n {
                    top.push(TokenLogprob {
                        id: candidate.id,
                        logprob: f32::NEG_INFINITY,
                    });
                }
            }
        }
        logprob
    }

    /// Writes the logits after bias, penalties and DRY to `self.adjusted`.
    fn adjust(&mut self, logits: &[f32], request: &SampleRequest<'_>) {
        let params = request.params;
        self.adjusted.clear();
        self.adjusted.extend_from_slice(logits);
        for &(id, bias) in &params.logit_bias {
            if let Some(logit) = self.adjusted.get_mut(id as usize) {
                // A sum of finite numbers may overflow upwards; negative infinity is unchanged.
                *logit = (*logit + bias).min(f32::MAX);
            }
        }
        if !params.goes_by_steps() {
            self.penalties
                .apply(params, &Seen::of(request), &mut self.adjusted);
        }
    }

    /// Returns the likeliest token, or one that is drawn; `None` if none may be picked.
    fn pick(&mut self, row: Allowed<'_>, request: &SampleRequest<'_>) -> Option<u32> {
        let best = row.argmax()?;
        Some(if request.params.is_greedy() {
            best
        } else {
            self.draw(row, best, request)
        })
    }

    /// Filters and draws. `best` is the likeliest token of `row`.
    fn draw(&mut self, row: Allowed<'_>, best: u32, request: &SampleRequest<'_>) -> u32 {
        let params = request.params;
        let candidates = &mut self.candidates;
        if params.goes_by_steps() {
            candidates.clear();
            row.for_each(|candidate| candidates.push(candidate));
            candidates.retain(|candidate| candidate.logit > f32::NEG_INFINITY);
            let mut chain = Chain {
                request,
                penalties: &mut self.penalties,
                row: &mut self.row,
                n_vocab: row.n_vocab(),
                n_forbidden: row.n_vocab() - candidates.len(),
            };
            return chain.draw(candidates);
        }
        let is_cut = params.top_k > 0 && (params.top_k as usize) < row.n_vocab();
        if !is_cut && params.typical_p >= 1.0 && params.top_p >= 1.0 && params.min_p <= 0.0 {
            return gumbel::race_all(row, best, params.temperature, params.seed, request.position);
        }
        if is_cut {
            best_k(row, params.top_k as usize, candidates);
        } else {
            candidates.clear();
            row.for_each(|candidate| candidates.push(candidate));
        }
        candidates.retain(|candidate| candidate.logit > f32::NEG_INFINITY);
        let max = row.logit(best);
        if params.typical_p < 1.0 {
            keep_typical(candidates, max, params.typical_p);
        }
        if params.top_p < 1.0 {
            keep_top_p(candidates, params.top_p);
        }
        if params.min_p > 0.0 {
            let threshold = max_logit(candidates) + params.min_p.ln();
            candidates.retain(|candidate| candidate.logit >= threshold);
        }
        gumbel::race(candidates, params.temperature, params.seed, request.position)
    }
}

/// Refuses NaN and positive infinity.
fn check_numbers(logits: &[f32]) -> Result<(), RowError> {
    // Counted rather than searched, so that the loop is vectorized.
    let n_wrong = (logits.iter())
        .filter(|logit| logit.is_nan() || **logit == f32::INFINITY)
        .count();
    if n_wrong > 0 {
        return Err(RowError::NonFiniteLogits);
    }
    Ok(())
}

/// Returns `ln(sum(exp(logits)))`, summed in the order of the ids.
fn log_sum_exp(logits: &[f32], max: f32) -> f32 {
    let sum: f64 = logits.iter().map(|&logit| f64::from((logit - max).exp())).sum();
    (f64::from(max) + sum.ln()) as f32
}

fn max_logit(candidates: &[Candidate]) -> f32 {
    (candidates.iter()).fold(f32::NEG_INFINITY, |max, candidate| max.max(candidate.logit))
}

/// Keeps the likeliest candidates until their probability, among the candidates, reaches `top_p`; at least
/// one.
fn keep_top_p(candidates: &mut Vec<Candidate>, top_p: f32) {
    let max = max_logit(candidates);
    let weight = |candidate: &Candidate| f64::from((candidate.logit - max).exp());
    let sum: f64 = candidates.iter().map(weight).sum();
    keep_nucleus(
        candidates,
        f64::from(top_p) * sum,
        weight,
        Candidate::by_likelihood,
    );
}

/// Keeps the candidates whose surprise is nearest to the entropy until their probability reaches `typical_p`.
///
/// Source: "Locally Typical Sampling", Meister et al. 2022, section 4.
fn keep_typical(candidates: &mut Vec<Candidate>, max: f32, typical_p: f32) {
    let weight = |candidate: &Candidate| f64::from((candidate.logit - max).exp());
    let sum: f64 = candidates.iter().map(weight).sum();
    let log_sum = sum.ln();
    let surprise = |candidate: &Candidate| log_sum - f64::from(candidate.logit - max);
    let entropy: f64 = (candidates.iter())
        .map(|candidate| weight(candidate) / sum * surprise(candidate))
        .sum();
    let distance = |candidate: &Candidate| (surprise(candidate) - entropy).abs();
    keep_nucleus(candidates, f64::from(typical_p) * sum, weight, |a, b| {
        distance(a).total_cmp(&distance(b)).then(a.id.cmp(&b.id))
    });
}

#[cfg(test)]
mod chain_tests;
#[cfg(test)]
mod llama_cpp_tests;
#[cfg(test)]
mod tests;
