//! Runs the sampling steps one after the other, in the requested order.
//!
//! The default order needs no list of all tokens and runs on devices too; this file supports any order and
//! the samplers that only the host has. Invariant: among equally likely tokens the lower id wins.
//!
//! Source: llama.cpp, `src/llama-sampler.cpp`, for what the steps do.

use crate::{DynamicTemperature, Mirostat, MirostatVersion, SamplerStep, Xtc};

use super::{
    SampleRequest, gumbel, keep_top_p, keep_typical, max_logit,
    penalties::{Penalties, Seen},
    select::Candidate,
};

/// Stands for no token in the random numbers of a position; XTC uses it for its own draw.
const NO_TOKEN: u32 = u32::MAX;

/// Number of tokens from which mirostat estimates how steeply probabilities fall.
const MIROSTAT_TOKENS: usize = 100;

/// The inputs and the scratch space of one draw.
pub(super) struct Chain<'a> {
    pub(super) request: &'a SampleRequest<'a>,
    pub(super) penalties: &'a mut Penalties,
    /// Scratch row of logits, `[n_vocab]`.
    pub(super) row: &'a mut Vec<f32>,
    pub(super) n_vocab: usize,
    /// Tokens with a logit of negative infinity that no step has cut off. The entropy is measured against that of all tokens, and llama.cpp
    /// counts these among them.
    pub(super) n_forbidden: usize,
}

impl Chain<'_> {
    /// Draws one of the candidates, which must not be empty and must have finite logits.
    pub(super) fn draw(&mut self, candidates: &mut Vec<Candidate>) -> u32 {
        let params = self.request.params;
        if let Some(mirostat) = &params.mirostat {
            heat(candidates, params.temperature);
            return self.draw_by_mirostat(mirostat, candidates);
        }
        let order = params.order.as_deref().unwrap_or(&SamplerStep::DEFAULT_ORDER);
        for &step in order {
            self.apply(step, candidates);
        }
        self.race(candidates)
    }

    fn race(&self, candidates: &[Candidate]) -> u32 {
        gumbel::race(candidates, 1.0, self.request.params.seed, self.request.position)
    }

    /// Takes one step.
    pub(super) fn apply(&mut self, step: SamplerStep, candidates: &mut Vec<Candidate>) {
        let params = self.request.params;
        let n_before = candidates.len();
        match step {
            SamplerStep::Penalties if params.penalizes_tokens() => self.penalize(false, candidates),
            SamplerStep::Dry if params.dry.is_some() => self.penalize(true, candidates),
            SamplerStep::TopNSigma => {
                keep_near(candidates, params.top_n_sigma);
                self.n_forbidden += n_before - candidates.len();
            }
            SamplerStep::TopK if params.top_k > 0 => {
                let k = params.top_k as usize;
                keep_best(candidates, k);
                self.n_forbidden = self.n_forbidden.min(k - candidates.len());
            }
            SamplerStep::Typical if params.typical_p < 1.0 => {
                let max = max_logit(candidates);
                keep_typical(candidates, max, params.typical_p);
                self.n_forbidden = 0;
            }
            SamplerStep::TopP if params.top_p < 1.0 => {
                keep_top_p(candidates, params.top_p);
                self.n_forbidden = 0;
            }
            SamplerStep::MinP if params.min_p > 0.0 => {
                let threshold = max_logit(candidates) + params.min_p.ln();
                candidates.retain(|candidate| candidate.logit >= threshold);
                self.n_forbidden = 0;
            }
            SamplerStep::Xtc => {
                if let Some(xtc) = params.xtc {
                    let chance = gumbel::chance(params.seed, self.request.position, NO_TOKEN);
                    exclude_top_choices(candidates, xtc, chance);
                }
            }
            SamplerStep::Temperature => {
                let temperature = match params.dynamic_temperature {
                    Some(dynamic) => {
                        dynamic_temperature(candidates, self.n_forbidden, params.temperature, dynamic)
                    }
                    None => params.temperature,
                };
                heat(candidates, temperature);
                if temperature <= 0.0 {
                    self.n_forbidden += n_before - candidates.len();
                }
            }
            SamplerStep::Penalties
            | SamplerStep::Dry
            | SamplerStep::TopK
            | SamplerStep::Typical
            | SamplerStep::TopP
            | SamplerStep::MinP => {}
        }
    }

    /// Penalties depend only on the token and the history, so they are computed in a row of all tokens.
    fn penalize(&mut self, is_dry: bool, candidates: &mut [Candidate]) {
        let (params, seen) = (self.request.params, Seen::of(self.request));
        self.row.clear();
        self.row.resize(self.n_vocab, f32::NEG_INFINITY);
        for candidate in candidates.iter() {
            self.row[candidate.id as usize] = candidate.logit;
        }
        if is_dry {
            self.penalties.apply_dry(params, &seen, self.row);
        } else {
            self.penalties.apply_counts(params, &seen, self.row);
        }
        for candidate in candidates {
            candidate.logit = self.row[candidate.id as usize];
        }
    }

    fn draw_by_mirostat(&mut self, mirostat: &Mirostat, candidates: &mut Vec<Candidate>) -> u32 {
        let position = self.request.position;
        self.keep_unsurprising(mirostat, mirostat.bound(position), candidates);
        let id = self.race(candidates);
        let log_sum = log2_sum(candidates);
        let drawn = candidates.iter().find(|candidate| candidate.id == id);
        let drawn = drawn.expect("one of the candidates was drawn");
        let surprise = log_sum - log2(*drawn, candidates[0].logit);
        mirostat.observe(position, surprise as f32);
        id
    }

    /// Keeps the tokens that mirostat leaves at this bound of surprise, in bits, likeliest first.
    pub(super) fn keep_unsurprising(&self, mirostat: &Mirostat, bound: f32, candidates: &mut Vec<Candidate>) {
        candidates.sort_unstable_by(Candidate::by_likelihood);
        match mirostat.version {
            MirostatVersion::One => {
                let n = mirostat_tokens(candidates, bound, self.n_vocab);
                candidates.truncate(n);
            }
            MirostatVersion::Two => {
                let log_sum = log2_sum(candidates);
                let surprise = |candidate: &Candidate| log_sum - log2(*candidate, candidates[0].logit);
                let n = candidates
                    .iter()
                    .position(|candidate| surprise(candidate) > f64::from(bound));
                candidates.truncate(n.unwrap_or(candidates.len()).max(1));
            }
        }
    }
}

/// Computes log2 of a candidate's weight relative to the likeliest.
fn log2(candidate: Candidate, max: f32) -> f64 {
    f64::from(candidate.logit - max) * std::f64::consts::LOG2_E
}

/// Computes log2 of the sum of all weights; the likeliest candidate must come first.
fn log2_sum(candidates: &[Candidate]) -> f64 {
    let max = candidates[0].logit;
    let weights = candidates
        .iter()
        .map(|candidate| f64::from(candidate.logit - max).exp());
    weights.sum::<f64>().log2()
}

/// Computes how many of the likeliest tokens keep the surprise at the bound; `sorted` is in descending order.
fn mirostat_tokens(sorted: &[Candidate], bound: f32, n_vocab: usize) -> usize {
    let n_pairs = (MIROSTAT_TOKENS - 1).min(sorted.len() - 1);
    if n_pairs == 0 {
        return 1;
    }
    let (mut products, mut squares) = (0.0, 0.0);
    for (idx, pair) in sorted.windows(2).take(n_pairs).enumerate() {
        let step = ((idx + 2) as f64 / (idx + 1) as f64).ln();
        products += step * f64::from(pair[0].logit - pair[1].logit);
        squares += step * step;
    }
    // The exponent of Zipf's law with the best fit.
    let exponent = products / squares;
    let above_one = exponent - 1.0;
    let share = above_one * f64::from(bound).exp2() / (1.0 - (n_vocab as f64).powf(-above_one));
    let n = share.powf(1.0 / exponent);
    // If all logits are equal the estimate is NaN, and nothing is cut.
    if n.is_nan() {
        return sorted.len();
    }
    (n as usize).clamp(1, sorted.len())
}

/// Keeps the tokens whose logits are at most `n` standard deviations below the highest; `n` of 0 or less keeps all.
///
/// Source: "Top-nσ: Not All Logits Are You Need", Tang et al. 2024.
fn keep_near(candidates: &mut Vec<Candidate>, n: f32) {
    if n <= 0.0 || candidates.len() < 2 {
        return;
    }
    let count = candidates.len() as f64;
    let logits = || candidates.iter().map(|candidate| f64::from(candidate.logit));
    let mean = logits().sum::<f64>() / count;
    let variance = logits().map(|logit| (logit - mean).powi(2)).sum::<f64>() / count;
    let threshold = f64::from(max_logit(candidates)) - f64::from(n) * variance.sqrt();
    candidates.retain(|candidate| f64::from(candidate.logit) >= threshold);
}

fn keep_best(candidates: &mut Vec<Candidate>, k: usize) {
    if k < candidates.len() {
        candidates.select_nth_unstable_by(k - 1, Candidate::by_likelihood);
        candidates.truncate(k);
    }
}

/// Removes all tokens above the threshold except the least likely of them, if `chance` is at most the
/// probability.
fn exclude_top_choices(candidates: &mut Vec<Candidate>, xtc: Xtc, chance: f32) {
    if xtc.probability <= 0.0 || xtc.threshold > 0.5 || candidates.len() < 2 || chance > xtc.probability {
        return;
    }
    let max = max_logit(candidates);
    let weight = |candidate: &Candidate| f64::from(candidate.logit - max).exp();
    let least = f64::from(xtc.threshold) * candidates.iter().map(weight).sum::<f64>();
    let likely = candidates.iter().filter(|candidate| weight(candidate) >= least);
    let Some(last) = likely.copied().max_by(Candidate::by_likelihood) else {
        return;
    };
    candidates.retain(|candidate| Candidate::by_likelihood(candidate, &last).is_ge());
}

/// Divides logits by the temperature; 0 keeps only the likeliest.
fn heat(candidates: &mut Vec<Candidate>, temperature: f32) {
    if temperature > 0.0 {
        for candidate in candidates.iter_mut() {
            candidate.logit = (candidate.logit / temperature).clamp(-f32::MAX, f32::MAX);
        }
        return;
    }
    keep_best(candidates, 1);
}

/// Computes the temperature from the entropy of the candidates, relative to that of equally likely tokens with the forbidden ones.
fn dynamic_temperature(
    candidates: &[Candidate],
    n_forbidden: usize,
    temperature: f32,
    dynamic: DynamicTemperature,
) -> f32 {
    if dynamic.range <= 0.0 {
        return temperature;
    }
    let n_tokens = candidates.len() + n_forbidden;
    if n_tokens < 2 {
        return 1.0;
    }
    let max = max_logit(candidates);
    let weight = |candidate: &Candidate| f64::from(candidate.logit - max).exp();
    let sum: f64 = candidates.iter().map(weight).sum();
    let entropy: f64 = candidates
        .iter()
        .map(|candidate| weight(candidate) / sum)
        .filter(|&share| share > 0.0)
        .map(|share| -share * share.ln())
        .sum();
    let share = (entropy / (n_tokens as f64).ln()).clamp(0.0, 1.0);
    let least = (temperature - dynamic.range).max(0.0);
    let most = temperature + dynamic.range;
    least + (most - least) * share.powf(f64::from(dynamic.exponent)) as f32
}
