//! Penalties on seen tokens: repetition, presence, frequency, and "don't repeat yourself" (DRY).
//!
//! Only penalties read the history. Invariant: a forbidden token (negative infinity) stays forbidden and
//! every other logit stays finite.

use super::SampleRequest;
use crate::{Dry, SamplingParams};

/// The tokens of a sequence, oldest first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen<'a> {
    pub(super) history: &'a [u32],
    /// Number of prompt tokens at the start of `history`.
    pub(super) n_prompt: usize,
    /// Tokens after `history`.
    pub(super) newest: &'a [u32],
}

impl<'a> Seen<'a> {
    /// Collects the tokens of a request.
    pub(super) fn of(request: &SampleRequest<'a>) -> Self {
        Self {
            history: request.history,
            n_prompt: request.n_prompt,
            newest: request.newest,
        }
    }
}

/// Working memory, kept from row to row.
#[derive(Debug, Default)]
pub(super) struct Penalties {
    recent: Vec<u32>,
    match_lens: Vec<u32>,
    repeats: Vec<(u32, u32)>,
}

impl Penalties {
    /// Applies all penalties of `params` to `logits`.
    pub(super) fn apply(&mut self, params: &SamplingParams, seen: &Seen<'_>, logits: &mut [f32]) {
        self.apply_counts(params, seen, logits);
        self.apply_dry(params, seen, logits);
    }

    /// Applies the repetition, presence and frequency penalties. The presence and frequency penalties count only generated tokens, as in
    /// OpenAI's API; the repetition penalty counts the prompt too.
    pub(super) fn apply_counts(&mut self, params: &SamplingParams, seen: &Seen<'_>, logits: &mut [f32]) {
        let last_n = params.penalty_last_n as usize;
        if params.repeat_penalty != 1.0 {
            self.take_recent(seen.history, seen.newest, last_n);
            self.recent.sort_unstable();
            for run in self.recent.chunk_by(|a, b| a == b) {
                let Some(logit) = logits.get_mut(run[0] as usize) else {
                    continue;
                };
                let repeated = if *logit > 0.0 {
                    *logit / params.repeat_penalty
                } else {
                    *logit * params.repeat_penalty
                };
                *logit = kept_finite(*logit, repeated);
            }
        }
        if params.presence_penalty != 0.0 || params.frequency_penalty != 0.0 {
            let generated = &seen.history[seen.n_prompt.min(seen.history.len())..];
            self.take_recent(generated, seen.newest, last_n);
            self.recent.sort_unstable();
            for run in self.recent.chunk_by(|a, b| a == b) {
                let Some(logit) = logits.get_mut(run[0] as usize) else {
                    continue;
                };
                let cost = run.len() as f32 * params.frequency_penalty + params.presence_penalty;
                *logit = kept_finite(*logit, *logit - cost);
            }
        }
    }

    /// Applies DRY.
    pub(super) fn apply_dry(&mut self, params: &SamplingParams, seen: &Seen<'_>, logits: &mut [f32]) {
        if let Some(dry) = params.dry.as_ref().filter(|dry| dry.multiplier > 0.0) {
            self.take_recent(seen.history, seen.newest, dry.last_n as usize);
            self.penalize_runs(dry, logits);
        }
    }

    /// Collects the newest `n` tokens, oldest first.
    fn take_recent(&mut self, history: &[u32], newest: &[u32], n: usize) {
        let from_newest = &newest[newest.len() - newest.len().min(n)..];
        let n_left = n - from_newest.len();
        self.recent.clear();
        self.recent
            .extend_from_slice(&history[history.len() - history.len().min(n_left)..]);
        self.recent.extend_from_slice(from_newest);
    }

    /// Source: the DRY sampler of p-e-w (oobabooga/text-generation-webui), with breakers that are single tokens.
    fn penalize_runs(&mut self, dry: &Dry, logits: &mut [f32]) {
        let newest_first = |index: usize| self.recent[self.recent.len() - 1 - index];
        let n = self.recent.len();
        // A run cannot reach back over a breaker.
        let longest = (0..n)
            .find(|&index| dry.breakers.contains(&newest_first(index)))
            .unwrap_or(n);
        let allowed = dry.allowed_length as usize;
        if longest < allowed {
            return;
        }
        // Z-algorithm, newest token first: `match_lens[i]` tokens before position `i` equal the newest ones.
        self.match_lens.clear();
        self.match_lens.resize(n, 0);
        self.repeats.clear();
        let (mut start, mut end) = (0, 0);
        for index in 1..n {
            let mut len = if index < end {
                (self.match_lens[index - start] as usize).min(end - index)
            } else {
                0
            };
            while index + len < n && newest_first(len) == newest_first(index + len) {
                len += 1;
            }
            if index + len > end {
                (start, end) = (index, index + len);
            }
            self.match_lens[index] = len as u32;
            let len = len.min(longest);
            // The token that followed this earlier occurrence would extend the run.
            let follower = newest_first(index - 1);
            if len >= allowed && !dry.breakers.contains(&follower) {
                self.repeats.push((follower, len as u32));
            }
        }
        self.repeats.sort_unstable();
        for run in self.repeats.chunk_by(|a, b| a.0 == b.0) {
            let (id, len) = run[run.len() - 1];
            if let Some(logit) = logits.get_mut(id as usize) {
                let cost = dry.multiplier * dry.base.powf((len as usize - allowed) as f32);
                *logit = kept_finite(*logit, *logit - cost);
            }
        }
    }
}

/// Returns `after`, made finite if the logit was finite before.
fn kept_finite(before: f32, after: f32) -> f32 {
    if before == f32::NEG_INFINITY {
        before
    } else if after.is_nan() {
        -f32::MAX
    } else {
        after.clamp(-f32::MAX, f32::MAX)
    }
}
