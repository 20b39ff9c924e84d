//! [`Sampler`]: from a row of logits to a token, the one place on the host where this happens.
//!
//! It is separate from the executors because every backend that samples on the host calls it, and a device sampler is
//! measured against it. Invariants: the result is a function of the logits and the [`SampleRequest`] alone; the lowest id
//! wins every tie; nothing is allocated after the first rows; the vocabulary is never sorted as a whole.
//!
//! A draw is an exponential race (Gumbel-max): token `i` of the tokens that the filters leave gets the score
//! `(logit[i] - max) / temperature - ln(e[i])`, where `e[i]` is an exponential random number that depends on the seed,
//! the position and `i`, and the highest score wins. That equals a draw from the softmax, but needs no sums, so neither
//! the order of the tokens nor the number of threads can change the result.

mod gumbel;
mod penalties;
mod select;

use crate::{RowError, SampledToken, SamplingParams, TokenLogprob};

use penalties::Penalties;
use select::{Candidate, best_k, keep_nucleus};

/// Everything except the logits that a token depends on.
#[derive(Clone, Copy, Debug)]
pub struct SampleRequest<'a> {
    /// How to sample; validated.
    pub params: &'a SamplingParams,
    /// The sequence's tokens so far, oldest first.
    pub history: &'a [u32],
    /// Tokens that follow `history`.
    pub newest: &'a [u32],
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
}

impl Sampler {
    /// Reserves memory for a vocabulary, so that no row allocates.
    pub fn new(n_vocab: usize) -> Self {
        Self {
            adjusted: Vec::with_capacity(n_vocab),
            candidates: Vec::with_capacity(n_vocab),
            penalties: Penalties::default(),
        }
    }

    /// Picks the token of one row, `logits: [n_vocab]`, and appends the likeliest tokens that the parameters ask for to
    /// `top`.
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
        let raw_best = check_finite(logits)?;
        let id = if params.changes_logits() || request.mask.is_some() {
            self.adjust(logits, request);
            let best = argmax(&self.adjusted).ok_or(RowError::NothingAllowed)?;
            if params.is_greedy() {
                best
            } else {
                let adjusted = std::mem::take(&mut self.adjusted);
                let id = self.draw(&adjusted, best, request);
                self.adjusted = adjusted;
                id
            }
        } else if params.is_greedy() {
            raw_best
        } else {
            self.draw(logits, raw_best, request)
        };
        let Some(n_logprobs) = params.n_logprobs else {
            return Ok(SampledToken { id, logprob: None });
        };
        let log_sum = log_sum_exp(logits, logits[raw_best as usize]);
        let logprob_of = |id: u32| logits[id as usize] - log_sum;
        best_k(logits, n_logprobs as usize, &mut self.candidates);
        top.extend(self.candidates.iter().map(|candidate| TokenLogprob {
            id: candidate.id,
            logprob: logprob_of(candidate.id),
        }));
        Ok(SampledToken {
            id,
            logprob: Some(logprob_of(id)),
        })
    }

    /// Writes the logits after bias, mask, penalties and DRY to `self.adjusted`.
    fn adjust(&mut self, logits: &[f32], request: &SampleRequest<'_>) {
        let params = request.params;
        self.adjusted.clear();
        self.adjusted.extend_from_slice(logits);
        for &(id, bias) in &params.logit_bias {
            if let Some(logit) = self.adjusted.get_mut(id as usize) {
                // A sum of finite numbers may overflow upwards; negative infinity stays what it is.
                *logit = (*logit + bias).min(f32::MAX);
            }
        }
        if let Some(mask) = request.mask {
            for (logits, &word) in self.adjusted.chunks_mut(32).zip(mask) {
                if word == 0 {
                    logits.fill(f32::NEG_INFINITY);
                } else if word != u32::MAX {
                    for (bit, logit) in logits.iter_mut().enumerate() {
                        if word >> bit & 1 == 0 {
                            *logit = f32::NEG_INFINITY;
                        }
                    }
                }
            }
        }
        self.penalties
            .apply(params, request.history, request.newest, &mut self.adjusted);
    }

    /// Filters and draws. `best` is the likeliest token of `logits`.
    fn draw(&mut self, logits: &[f32], best: u32, request: &SampleRequest<'_>) -> u32 {
        let params = request.params;
        let candidates = &mut self.candidates;
        let is_cut = params.top_k > 0 && (params.top_k as usize) < logits.len();
        if !is_cut && params.typical_p >= 1.0 && params.top_p >= 1.0 && params.min_p <= 0.0 {
            return gumbel::race_all(logits, best, params.temperature, params.seed, request.position);
        }
        if is_cut {
            best_k(logits, params.top_k as usize, candidates);
        } else {
            candidates.clear();
            candidates.extend((0..).zip(logits).map(|(id, &logit)| Candidate { id, logit }));
        }
        candidates.retain(|candidate| candidate.logit > f32::NEG_INFINITY);
        let max = logits[best as usize];
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

/// The lowest id with the highest logit.
fn check_finite(logits: &[f32]) -> Result<u32, RowError> {
    // Counted rather than searched, so that the loop is vectorized.
    let n_wrong = (logits.iter())
        .filter(|logit| logit.is_nan() || **logit == f32::INFINITY)
        .count();
    if n_wrong > 0 {
        return Err(RowError::NonFiniteLogits);
    }
    argmax(logits).ok_or(RowError::NonFiniteLogits)
}

/// The lowest id with the highest logit; `None` where all are negative infinity.
fn argmax(logits: &[f32]) -> Option<u32> {
    // In lanes and without regard to NaN, which was looked for before, so that the loop is vectorized.
    let mut lanes = [f32::NEG_INFINITY; 16];
    let (chunks, rest) = logits.as_chunks::<16>();
    for chunk in chunks {
        for (lane, &logit) in lanes.iter_mut().zip(chunk) {
            *lane = if logit > *lane { logit } else { *lane };
        }
    }
    let max = lanes
        .iter()
        .chain(rest)
        .copied()
        .fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY {
        return None;
    }
    logits.iter().position(|&logit| logit == max).map(|id| id as u32)
}

/// `ln(sum(exp(logits)))`, summed in the order of the ids.
fn log_sum_exp(logits: &[f32], max: f32) -> f32 {
    let sum: f64 = logits.iter().map(|&logit| f64::from((logit - max).exp())).sum();
    (f64::from(max) + sum.ln()) as f32
}

fn max_logit(candidates: &[Candidate]) -> f32 {
    (candidates.iter()).fold(f32::NEG_INFINITY, |max, candidate| max.max(candidate.logit))
}

/// Keeps the likeliest candidates whose probability, among the candidates, reaches `top_p`; at least one.
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
mod tests;
