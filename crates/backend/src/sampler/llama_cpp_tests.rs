//! Tests that the sampling steps keep the same tokens as llama.cpp's samplers for the same logits, with the same probabilities.
//!
//! No draw is needed here: the table has the probabilities themselves. `tests/data/README.md` says
//! how it was made.

use std::collections::HashMap;

use super::*;
use crate::{DynamicTemperature, Mirostat, MirostatVersion, SamplerStep, Xtc};

/// Largest difference of a probability. llama.cpp computes in f32, and the table has six digits.
const TOLERANCE: f64 = 3e-6;

const TABLE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/data/samplers/llama-cpp.tsv"
);

fn number<T: std::str::FromStr>(text: &str) -> T {
    let number = text.trim().parse().ok();
    number.unwrap_or_else(|| panic!("`{text}` is no number"))
}

/// Reads probabilities, written as `id:probability`.
fn shares(text: &str) -> HashMap<u32, f64> {
    let pairs = text.split_whitespace().map(|pair| pair.split_once(':').unwrap());
    pairs.map(|(id, share)| (number(id), number(share))).collect()
}

fn candidates_of(logits: &[f32]) -> Vec<Candidate> {
    let all = (0..).zip(logits).map(|(id, &logit)| Candidate { id, logit });
    all.filter(|candidate| candidate.logit > f32::NEG_INFINITY)
        .collect()
}

/// Passes a chain of these parameters, for a row of `n_vocab` tokens, to `run`.
fn with_chain<R>(
    params: &SamplingParams,
    n_vocab: usize,
    n_forbidden: usize,
    run: impl FnOnce(&mut Chain<'_>) -> R,
) -> R {
    let request = SampleRequest {
        params,
        history: &[],
        newest: &[],
        n_prompt: 0,
        mask: None,
        position: 0,
    };
    run(&mut Chain {
        request: &request,
        penalties: &mut Penalties::default(),
        row: &mut Vec::new(),
        n_vocab,
        n_forbidden,
    })
}

fn assert_close(candidates: &[Candidate], expected: &HashMap<u32, f64>, what: &str) {
    let max = max_logit(candidates);
    let weight = |candidate: &Candidate| f64::from(candidate.logit - max).exp();
    let sum: f64 = candidates.iter().map(weight).sum();
    let found: HashMap<u32, f64> = candidates
        .iter()
        .map(|candidate| (candidate.id, weight(candidate) / sum))
        .collect();
    // A probability that f32 rounds to 0 is not in the table.
    for (id, share) in &found {
        let expected = expected.get(id).copied().unwrap_or(0.0);
        assert!(
            (share - expected).abs() <= TOLERANCE,
            "{what}: token {id} has {share}, llama.cpp has {expected}"
        );
    }
    for id in expected.keys() {
        assert!(found.contains_key(id), "{what}: token {id} is missing");
    }
}

/// Reads a step and its values, as `temperature/0.8/0.5/1`.
fn step(text: &str) -> (SamplerStep, SamplingParams) {
    let mut parts = text.split('/');
    let step = SamplerStep::from_name(parts.next().unwrap()).expect("a step");
    let values: Vec<f32> = parts.map(number).collect();
    let mut params = SamplingParams::default();
    match step {
        SamplerStep::TopNSigma => params.top_n_sigma = values[0],
        SamplerStep::TopK => params.top_k = values[0] as u32,
        SamplerStep::TopP => params.top_p = values[0],
        SamplerStep::MinP => params.min_p = values[0],
        SamplerStep::Typical => params.typical_p = values[0],
        SamplerStep::Xtc => {
            params.xtc = Some(Xtc {
                probability: 1.0,
                threshold: values[0],
            });
        }
        SamplerStep::Temperature => {
            params.temperature = values[0];
            params.dynamic_temperature = Some(DynamicTemperature {
                range: values[1],
                exponent: values[2],
            });
        }
        SamplerStep::Penalties | SamplerStep::Dry => panic!("the table has no {text}"),
    }
    (step, params)
}

fn check_steps(logits: &[f32], steps: &str, expected: &HashMap<u32, f64>) {
    let mut candidates = candidates_of(logits);
    let mut n_forbidden = logits.len() - candidates.len();
    for text in steps.split(' ') {
        let (step, params) = step(text);
        n_forbidden = with_chain(&params, logits.len(), n_forbidden, |chain| {
            chain.apply(step, &mut candidates);
            chain.n_forbidden
        });
    }
    assert_close(&candidates, expected, steps);
}

fn check_mirostat(logits: &[f32], values: &str, drawn: &str, expected: &HashMap<u32, f64>) {
    let values: Vec<f32> = values.split(' ').map(number).collect();
    let [version, target, rate, bound] = values[..] else {
        panic!("mirostat has four values");
    };
    let version = match version {
        1.0 => MirostatVersion::One,
        _ => MirostatVersion::Two,
    };
    let what = format!("mirostat {version:?}, target {target}, bound {bound}");
    let mirostat = Mirostat::new(version, target, rate);
    let params = SamplingParams::default();
    let mut candidates = candidates_of(logits);
    with_chain(&params, logits.len(), 0, |chain| {
        chain.keep_unsurprising(&mirostat, bound, &mut candidates);
    });
    assert_close(&candidates, expected, &what);
    // The token that llama.cpp drew, and its bound afterwards.
    let (id, next) = drawn.split_once(' ').unwrap();
    let surprise = -expected[&number(id)].log2();
    mirostat.observe(0, (2.0 * target - bound) / rate + target);
    assert!((mirostat.bound(1) - bound).abs() < 1e-4, "{what}");
    mirostat.observe(1, surprise as f32);
    let next: f32 = number(next);
    let found = mirostat.bound(2);
    assert!(
        (found - next).abs() < 1e-3,
        "{what}: {found}, llama.cpp has {next}"
    );
}

#[test]
fn steps_leave_what_those_of_llama_cpp_leave() {
    let table = std::fs::read_to_string(TABLE).expect("the repository has the table");
    let mut rows: HashMap<&str, Vec<f32>> = HashMap::new();
    let (mut n_steps, mut n_mirostat) = (0, 0);
    for line in table.lines() {
        match line.split('\t').collect::<Vec<_>>()[..] {
            ["row", name, logits] => {
                rows.insert(name, logits.split(' ').map(number).collect());
            }
            ["steps", row, steps, expected] => {
                check_steps(&rows[row], steps, &shares(expected));
                n_steps += 1;
            }
            ["mirostat", row, values, drawn, expected] => {
                check_mirostat(&rows[row], values, drawn, &shares(expected));
                n_mirostat += 1;
            }
            _ => panic!("`{line}` is no line of the table"),
        }
    }
    assert!(n_steps > 200 && n_mirostat > 90, "{n_steps}, {n_mirostat}");
}

#[test]
fn forbidden_tokens_count_for_the_entropy_until_a_step_cuts_them_off() {
    let candidates: Vec<Candidate> = (0..4).map(|id| Candidate { id, logit: 0.0 }).collect();
    for (steps, expected) in [
        (&[SamplerStep::Penalties][..], 12),
        (&[SamplerStep::TopK], 2),
        (&[SamplerStep::TopP], 0),
        (&[SamplerStep::MinP, SamplerStep::TopK], 0),
    ] {
        let params = SamplingParams {
            top_k: 6,
            top_p: 0.9,
            min_p: 0.1,
            ..SamplingParams::default()
        };
        let mut left = candidates.clone();
        let n_forbidden = with_chain(&params, 16, 12, |chain| {
            for &step in steps {
                chain.apply(step, &mut left);
            }
            chain.n_forbidden
        });
        assert_eq!(n_forbidden, expected, "{steps:?}");
    }
}
