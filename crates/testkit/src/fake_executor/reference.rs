//! The output of the fake executor's model: hashes of everything that a token sees, and the same output
//! computed without pages, batches or reuse. It is the oracle that a scheduler is compared with, and knows no
//! pages.

use tokenmill_backend::{ExecutorLimits, PageGroup, SamplingParams};

/// Returns a hash of everything that a token at `position` sees: in the layers without a window, and in those
/// with one.
pub(super) fn see(limits: &ExecutorLimits, position: usize, stored: impl Fn(PageGroup, usize) -> u64) -> u64 {
    let stored = &stored;
    fold(limits.groups().flat_map(|(group, limits)| {
        (visible_from(position, limits.window)..position).map(move |at| stored(group, at))
    }))
}

fn visible_from(position: usize, window: Option<usize>) -> usize {
    window.map_or(0, |window| (position + 1).saturating_sub(window))
}

pub(super) fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

fn fold(values: impl Iterator<Item = u64>) -> u64 {
    values.fold(1, |state, value| mix(state.rotate_left(5) ^ value))
}

pub(super) fn store_value(seen: u64, id: u32, position: usize) -> u64 {
    mix(seen ^ u64::from(id) << 32 ^ position as u64)
}

pub(super) fn logits(state: u64, n_vocab: usize) -> impl Iterator<Item = f32> {
    (0..n_vocab as u64).map(move |id| (mix(state ^ id) >> 40) as f32)
}

pub(super) fn hidden(state: u64, n_embd: usize) -> impl Iterator<Item = f32> {
    (0..n_embd as u64).map(move |at| (mix(state ^ at << 8) >> 40) as f32)
}

pub(super) fn choose(
    state: u64,
    params: &SamplingParams,
    history: &[u32],
    position: usize,
    n_vocab: usize,
) -> u32 {
    let history = &history[history.len().saturating_sub(params.history_len())..];
    let state = fold(history.iter().map(|&id| u64::from(id))) ^ state;
    let state = if params.is_greedy() {
        state
    } else {
        mix(state ^ params.seed) ^ position as u64
    };
    let best = logits(state, n_vocab)
        .enumerate()
        .reduce(|best, next| if next.1 > best.1 { next } else { best });
    best.map_or(0, |(id, _)| id as u32)
}

/// Returns the token itself if the mask allows it, otherwise the next allowed one.
pub(super) fn nearest_allowed(id: u32, mask: Option<&[u32]>, n_vocab: usize) -> Option<u32> {
    let n_vocab = n_vocab as u32;
    let is_allowed = |id: u32| mask.is_none_or(|words| words[id as usize / 32] >> (id % 32) & 1 == 1);
    (id..n_vocab).chain(0..id).find(|&id| is_allowed(id))
}

/// Returns the states after each token of a sequence, without pages, batches or reuse.
fn states(tokens: &[u32], limits: &ExecutorLimits) -> Vec<u64> {
    let mut stored: Vec<u64> = Vec::with_capacity(tokens.len());
    let mut carried = 0;
    (0..tokens.len())
        .map(|position| {
            let seen = see(limits, position, |_, at| stored[at]);
            let value = store_value(seen, tokens[position], position);
            stored.push(value);
            carried = carry(limits, carried, value);
            mix(seen ^ value ^ carried)
        })
        .collect()
}

/// Returns the tokens that a request must generate, whatever else runs, and whether a stop token ended them.
/// There are `max_tokens` of them, or fewer if a stop token comes first.
pub fn reference(
    limits: &ExecutorLimits,
    prompt: &[u32],
    params: &SamplingParams,
    max_tokens: usize,
    stop_tokens: &[u32],
) -> (Vec<u32>, bool) {
    reference_with_masks(limits, prompt, params, max_tokens, stop_tokens, |_| None)
}

/// As [`reference()`], with the mask that `mask_of` gives for each token from those generated before.
///
/// # Panics
/// If a mask allows nothing.
pub fn reference_with_masks(
    limits: &ExecutorLimits,
    prompt: &[u32],
    params: &SamplingParams,
    max_tokens: usize,
    stop_tokens: &[u32],
    mut mask_of: impl FnMut(&[u32]) -> Option<Vec<u32>>,
) -> (Vec<u32>, bool) {
    let mut tokens = prompt.to_vec();
    let mut stored: Vec<u64> = Vec::new();
    let mut carried = 0;
    let mut generated = Vec::new();
    while generated.len() < max_tokens && tokens.len() < limits.n_ctx {
        let mut state = 0;
        for position in stored.len()..tokens.len() {
            let seen = see(limits, position, |_, at| stored[at]);
            stored.push(store_value(seen, tokens[position], position));
            carried = carry(limits, carried, stored[position]);
            state = mix(seen ^ stored[position] ^ carried);
        }
        let history = &tokens[tokens.len().saturating_sub(params.history_len())..];
        let id = choose(state, params, history, tokens.len(), limits.n_vocab);
        let mask = mask_of(&generated);
        let id = nearest_allowed(id, mask.as_deref(), limits.n_vocab).expect("a mask allows a token");
        if stop_tokens.contains(&id) {
            return (generated, true);
        }
        tokens.push(id);
        generated.push(id);
    }
    (generated, false)
}

/// Returns the state that a recurrent layer carries on; 0 in a model without one.
fn carry(limits: &ExecutorLimits, carried: u64, value: u64) -> u64 {
    if limits.n_states > 0 {
        mix(carried ^ value)
    } else {
        0
    }
}

/// Returns the logits of all positions of `tokens`.
pub fn reference_logits(limits: &ExecutorLimits, tokens: &[u32]) -> Vec<f32> {
    let states = states(tokens, limits);
    states
        .into_iter()
        .flat_map(|state| logits(state, limits.n_vocab))
        .collect()
}

/// Returns the hidden states of all positions of `tokens`.
pub fn reference_hidden(limits: &ExecutorLimits, tokens: &[u32]) -> Vec<f32> {
    let states = states(tokens, limits);
    states
        .into_iter()
        .flat_map(|state| hidden(state, limits.n_embd))
        .collect()
}
