//! With drafts tokens are drawn with their probabilities: chi-square tests for everything that guesses, and every kind of memory that
//! takes guesses back in its own way.
//!
//! Answers of three tokens, each one of four, are drawn with seeds 0 to 3,999 and counted: 64 outcomes, whose probabilities follow from the
//! model's logits. Outcomes that are expected fewer than five times are counted together. Two errors are possible:
//!
//! - A sampler that is right fails: the bound is the value that chi-square exceeds once in a million tests, so with nine tests
//!   one in a hundred thousand. Seeds are fixed, so a run that passed passes again.
//! - A sampler that is wrong passes: with 4,000 draws a distribution is found out, in half of all cases, where the root mean square of the
//!   relative errors of its probabilities is 13 %. That the tests find errors of a size that matters is checked by comparing
//!   the same counts with the model's distribution at a temperature 1.4 times as high, which has to fail.
//!
//! A draw depends on its seed and position alone, so the drafters of one model give the same counts to the last; what differs is which of
//! them came from guesses.

use std::collections::HashMap;

use tokenmill_backend::SamplingParams;
use tokenmill_gguf::TensorType;
use tokenmill_sched::{
    Engine, Event, ForwardParams, ForwardRows, GenerateParams, SchedulerCounters, Speculation,
};
use tokenmill_testkit::{MEMORY_KINDS, TinyModel, tiny_llama};

use super::{DRAFT, MTP, NGRAM, engine_with, layer_for_further_tokens, model};

/// The tokens of all answers.
const CHOICES: [u32; 4] = [3, 8, 21, 40];
/// Warm, so that each of the four is drawn often.
const TEMPERATURE: f32 = 2.5;
/// Another, whose distribution has to be told from the right one.
const WRONG_TEMPERATURE: f32 = 3.5;
const N_DRAWN: usize = 4000;
const N_TOKENS: usize = 3;

/// All pairs of the four, so that the newest two tokens always occurred before.
fn prompt() -> Vec<u32> {
    let pairs = [0, 0, 1, 0, 2, 0, 3, 1, 1, 2, 1, 3, 2, 2, 3, 3, 0];
    pairs.map(|idx| CHOICES[idx]).to_vec()
}

fn params(seed: usize) -> GenerateParams {
    GenerateParams {
        max_tokens: Some(N_TOKENS),
        sampling: SamplingParams {
            temperature: TEMPERATURE,
            top_k: CHOICES.len() as u32,
            // The same for the four, so that it changes no probability among them.
            logit_bias: CHOICES.map(|id| (id, 1000.0)).to_vec(),
            seed: seed as u64,
            ..SamplingParams::default()
        },
        ..GenerateParams::default()
    }
}

/// The probabilities of the four behind `tokens`, by the model's logits.
fn probabilities(engine: &Engine, tokens: &[u32], temperature: f32) -> [f64; 4] {
    let params = ForwardParams::new(ForwardRows::Logits, tokens.len() - 1);
    let mut logits = Vec::new();
    for event in engine.submit_forward(tokens.to_vec(), params).unwrap() {
        if let Event::Rows(rows) = event {
            logits = rows.values;
        }
    }
    let largest = CHOICES
        .map(|id| logits[id as usize])
        .into_iter()
        .fold(f32::MIN, f32::max);
    let weights = CHOICES.map(|id| f64::from((logits[id as usize] - largest) / temperature).exp());
    weights.map(|weight| weight / weights.iter().sum::<f64>())
}

/// The probability of every answer.
fn expected(engine: &Engine, temperature: f32) -> HashMap<Vec<u32>, f64> {
    let mut expected = HashMap::from([(Vec::new(), 1.0)]);
    for _ in 0..N_TOKENS {
        for (answer, probability) in std::mem::take(&mut expected) {
            let tokens = [prompt(), answer.clone()].concat();
            let of_next = probabilities(engine, &tokens, temperature);
            for (id, of_next) in CHOICES.into_iter().zip(of_next) {
                expected.insert([&answer[..], &[id]].concat(), probability * of_next);
            }
        }
    }
    expected
}

fn draw(engine: &Engine) -> HashMap<Vec<u32>, usize> {
    let mut counts = HashMap::new();
    // Few at once: while many prompts wait, most steps have some of them and no drafts.
    for first in (0..N_DRAWN).step_by(8) {
        let generations: Vec<_> = (first..first + 8)
            .map(|seed| engine.submit(prompt(), params(seed)).unwrap())
            .collect();
        for generation in generations {
            let tokens = generation.filter_map(|event| match event {
                Event::Token(token) => Some(token.id),
                _ => None,
            });
            *counts.entry(tokens.collect()).or_default() += 1;
        }
    }
    counts
}

/// Returns the chi-square of the drawn tokens, and the value that it exceeds once in a million.
fn chi_square(counts: &HashMap<Vec<u32>, usize>, expected: &HashMap<Vec<u32>, f64>) -> (f64, f64) {
    // The expected and the found number of each cell.
    let mut cells = Vec::new();
    let mut rare = (0.0, 0.0);
    for (answer, probability) in expected {
        let cell = (
            probability * N_DRAWN as f64,
            *counts.get(answer).unwrap_or(&0) as f64,
        );
        if cell.0 < 5.0 {
            rare = (rare.0 + cell.0, rare.1 + cell.1);
        } else {
            cells.push(cell);
        }
    }
    if rare.0 > 0.0 {
        cells.push((rare.0.max(1.0), rare.1));
    }
    let chi_square = cells
        .iter()
        .map(|(expected, found)| (found - expected).powi(2) / expected)
        .sum();
    // Source: Wilson and Hilferty, 1931; 4.753 is the quantile of the normal distribution.
    let n_free = (cells.len() - 1) as f64;
    let spread = 2.0 / (9.0 * n_free);
    (
        chi_square,
        n_free * (1.0 - spread + 4.753 * spread.sqrt()).powi(3),
    )
}

#[test]
fn the_bound_is_that_of_the_tables() {
    let expected = (0..64).map(|id| (vec![id], 1.0 / 64.0)).collect();
    let counts = (0..64)
        .map(|id| (vec![id], N_DRAWN / 64 + (id % 2) as usize))
        .collect();
    let (_, bound) = chi_square(&counts, &expected);
    // The table's value for 63 degrees of freedom: 131.6.
    assert!((bound - 131.6).abs() < 0.5, "{bound}");
}

/// Drafts and their tokens.
type Counted = fn(&SchedulerCounters) -> (u64, u64);

fn check(kind: usize, speculation: Speculation, drafter: &TinyModel, counted: Counted) {
    let (name, change) = MEMORY_KINDS[kind];
    let model = model(change);
    let engine = engine_with(&model, 200, speculation, drafter, 200);
    let right = expected(&engine, TEMPERATURE);
    let counts = draw(&engine);
    assert!(counts.keys().all(|answer| right.contains_key(answer)), "{name}");
    let (n_drafted, n_accepted) = counted(&engine.stats().scheduler);
    let (found, bound) = chi_square(&counts, &right);
    let (of_wrong, bound_of_wrong) = chi_square(&counts, &expected(&engine, WRONG_TEMPERATURE));
    eprintln!(
        "{name}, {speculation:?}: chi-square {found:.1}, bound {bound:.1}; at another temperature {of_wrong:.1}, bound \
         {bound_of_wrong:.1}; {n_accepted} of {n_drafted} guesses accepted"
    );
    assert!(
        n_accepted > 500 && n_drafted > n_accepted + 500,
        "{name}: {n_accepted} of {n_drafted}"
    );
    assert!(found < bound, "{name}, {speculation:?}: {found} of {bound}");
    assert!(of_wrong > bound_of_wrong, "{name}, {speculation:?}: {of_wrong}");
}

/// One for each way in which guesses are taken back: pages that are written over, pages of a window, and states.
fn kinds() -> [usize; 3] {
    [
        "keys and values",
        "windows in all layers",
        "states of a delta net, and attention",
    ]
    .map(|name| {
        let mut names = MEMORY_KINDS.iter().map(|(name, _)| *name);
        names
            .position(|other| other == name)
            .expect("there is such a kind")
    })
}

#[test]
fn with_look_ups_tokens_are_drawn_with_their_probabilities() {
    for kind in kinds() {
        check(kind, NGRAM, &layer_for_further_tokens(), |counters| {
            (counters.drafts.draft_tokens, counters.drafts.accepted_tokens)
        });
    }
}

#[test]
fn with_a_draft_model_tokens_are_drawn_with_their_probabilities() {
    let draft = TinyModel::random(tiny_llama(), TensorType::Q4_0, 5);
    for kind in kinds() {
        check(kind, DRAFT, &draft, |counters| {
            (
                counters.model_drafts.draft_tokens,
                counters.model_drafts.accepted_tokens,
            )
        });
    }
}

#[test]
fn with_a_layer_for_further_tokens_tokens_are_drawn_with_their_probabilities() {
    for kind in kinds() {
        check(kind, MTP, &layer_for_further_tokens(), |counters| {
            (
                counters.model_drafts.draft_tokens,
                counters.model_drafts.accepted_tokens,
            )
        });
    }
}
