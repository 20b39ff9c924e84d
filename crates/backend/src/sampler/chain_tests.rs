//! Tests the sampling steps against the expectations of llama.cpp's own tests, and draws with chi-square tests.

use super::*;
use crate::{DynamicTemperature, Mirostat, MirostatVersion, SamplerStep, Xtc};

const N_DRAWS: u32 = 20_000;

fn drawn() -> SamplingParams {
    SamplingParams {
        temperature: 1.0,
        ..Default::default()
    }
}

fn logits_of(shares: &[f64]) -> Vec<f32> {
    shares.iter().map(|share| share.ln() as f32).collect()
}

/// Counts how often each token is drawn.
fn counts(logits: &[f32], params: &SamplingParams, history: &[u32]) -> Vec<u32> {
    let mut sampler = Sampler::new(logits.len());
    let mut counts = vec![0; logits.len()];
    for position in 0..N_DRAWS {
        let request = SampleRequest {
            params,
            history,
            newest: &[],
            n_prompt: 0,
            mask: None,
            position,
        };
        let token = sampler.sample(logits, &request, &mut Vec::new()).unwrap();
        counts[token.id as usize] += 1;
    }
    counts
}

/// Checks draws against expected shares, which need not add up to 1.
#[track_caller]
fn check_shares(counts: &[u32], expected: &[f64]) {
    let sum: f64 = expected.iter().sum();
    let n_draws = f64::from(counts.iter().sum::<u32>());
    let (mut distance, mut n_free) = (0.0, -1.0_f64);
    for (&count, &share) in counts.iter().zip(expected) {
        let expected = share / sum * n_draws;
        if expected == 0.0 {
            assert_eq!(count, 0, "{counts:?} of {expected:?}");
            continue;
        }
        distance += (f64::from(count) - expected).powi(2) / expected;
        n_free += 1.0;
    }
    // The mean of chi-square plus five standard deviations.
    let limit = n_free + 5.0 * (2.0 * f64::max(n_free, 0.0)).sqrt();
    assert!(
        distance <= limit + 1e-9,
        "chi-square {distance} of {n_free}: {counts:?}"
    );
}

/// Builds logits of a vocabulary with a long tail, without structure.
fn long_tail(n: usize) -> Vec<f32> {
    (0..n)
        .map(|id| {
            let mixed = (id as u32).wrapping_mul(2_654_435_761) >> 12;
            (mixed % 1000) as f32 / 125.0 - 1.5 * ((id + 1) as f32).ln()
        })
        .collect()
}

#[test]
fn top_n_sigma_keeps_what_llama_cpp_keeps() {
    let logits = logits_of(&[0.1, 0.2, 0.3, 0.4]);
    for (n, expected) in [
        (1.0, [0.0, 0.0, 0.428_571, 0.571_429]),
        (0.0, [0.1, 0.2, 0.3, 0.4]),
        (-1.0, [0.1, 0.2, 0.3, 0.4]),
        (3.0, [0.1, 0.2, 0.3, 0.4]),
    ] {
        let params = SamplingParams {
            top_n_sigma: n,
            ..drawn()
        };
        check_shares(&counts(&logits, &params, &[]), &expected);
    }
}

#[test]
fn xtc_excludes_what_llama_cpp_excludes() {
    let shares = [0.4, 0.3, 0.2, 0.1];
    for (threshold, kept) in [
        (0.09, 3..4),
        (0.19, 2..4),
        (0.29, 1..4),
        (0.39, 0..4),
        (0.51, 0..4),
    ] {
        for probability in [1.0, 0.25] {
            let params = SamplingParams {
                xtc: Some(Xtc {
                    probability,
                    threshold,
                }),
                ..drawn()
            };
            let rest: f64 = shares[kept.clone()].iter().sum();
            let expected: Vec<f64> = (0..4)
                .map(|id| {
                    let excluded = if kept.contains(&id) {
                        shares[id] / rest
                    } else {
                        0.0
                    };
                    let probability = f64::from(probability);
                    probability * excluded + (1.0 - probability) * shares[id]
                })
                .collect();
            check_shares(&counts(&logits_of(&shares), &params, &[]), &expected);
        }
    }
}

#[test]
fn a_dynamic_temperature_is_that_of_the_entropy() {
    let shares = [0.1, 0.2, 0.3, 0.4];
    let entropy: f64 = shares.iter().map(|share: &f64| -share * share.ln()).sum();
    let certainty = entropy / 4_f64.ln();
    for (temperature, range, exponent) in [
        (1.0, 0.0, 1.0),
        (1.0, 0.5, 1.0),
        (0.8, 0.6, 2.5),
        (0.3, 0.5, 1.0),
        (0.0, 0.5, 3.0),
    ] {
        let params = SamplingParams {
            temperature,
            dynamic_temperature: Some(DynamicTemperature { range, exponent }),
            ..Default::default()
        };
        if range == 0.0 {
            assert!(!params.goes_by_steps());
        }
        let (least, most) = ((temperature - range).max(0.0), temperature + range);
        let found = f64::from(least) + f64::from(most - least) * certainty.powf(f64::from(exponent));
        let expected = shares.map(|share| share.powf(1.0 / found));
        check_shares(&counts(&logits_of(&shares), &params, &[]), &expected);
    }
    // Without a range, temperature 0 takes the likeliest.
    let params = SamplingParams {
        order: Some(vec![SamplerStep::Temperature]),
        ..Default::default()
    };
    check_shares(&counts(&logits_of(&shares), &params, &[]), &[0.0, 0.0, 0.0, 1.0]);
}

#[test]
fn steps_are_taken_in_the_order_that_was_asked_for() {
    use SamplerStep::{Dry, MinP, Penalties, Temperature, TopK, TopP, Typical};
    let shares = [0.5, 0.25, 0.15, 0.1];
    let logits = logits_of(&shares);
    let base = SamplingParams {
        temperature: 2.0,
        top_k: 3,
        top_p: 0.7,
        min_p: 0.55,
        typical_p: 0.5,
        presence_penalty: 100.0,
        penalty_last_n: 8,
        ..Default::default()
    };
    let heated = |share: f64| share.sqrt();
    for (order, expected) in [
        // The first two hold 0.75; heated they hold 0.585 of the first three, and 0.464 of all.
        (vec![TopP, Temperature], [heated(0.5), heated(0.25), 0.0, 0.0]),
        (
            vec![Temperature, TopP],
            [heated(0.5), heated(0.25), heated(0.15), 0.0],
        ),
        (vec![TopK], [0.5, 0.25, 0.15, 0.0]),
        (vec![MinP, Temperature], [1.0, 0.0, 0.0, 0.0]),
        (vec![Temperature, MinP], [heated(0.5), heated(0.25), 0.0, 0.0]),
        (vec![Penalties, TopK], [0.0, 0.25, 0.15, 0.1]),
        (vec![TopK, Penalties], [0.0, 0.25, 0.15, 0.0]),
        (vec![Dry], shares),
        (vec![], shares),
        // The entropy is 1.21; the surprises 1.39 and 0.69 are nearest to it.
        (vec![Typical], [0.5, 0.25, 0.0, 0.0]),
    ] {
        let params = SamplingParams {
            order: Some(order.clone()),
            ..base.clone()
        };
        let found = counts(&logits, &params, &[0]);
        let is_kept: Vec<bool> = found.iter().map(|&count| count > 0).collect();
        let is_expected: Vec<bool> = expected.iter().map(|&share| share > 0.0).collect();
        assert_eq!(is_kept, is_expected, "{order:?}");
        check_shares(&found, &expected);
    }
}

#[test]
fn the_usual_order_step_by_step_draws_what_the_usual_way_draws() {
    let logits = long_tail(500);
    let usual = SamplingParams {
        temperature: 0.7,
        top_k: 60,
        top_p: 0.9,
        min_p: 0.02,
        typical_p: 0.95,
        repeat_penalty: 1.2,
        penalty_last_n: 8,
        logit_bias: vec![(3, 2.0), (4, f32::NEG_INFINITY)],
        ..Default::default()
    };
    let stepwise = SamplingParams {
        order: Some(SamplerStep::DEFAULT_ORDER.to_vec()),
        ..usual.clone()
    };
    let history = [3, 5, 5];
    let (usual, stepwise) = (
        counts(&logits, &usual, &history),
        counts(&logits, &stepwise, &history),
    );
    // Dividing logits before comparing them can round differently and swap near ties.
    let n_other: u32 = usual.iter().zip(&stepwise).map(|(a, b)| a.abs_diff(*b)).sum();
    assert!(n_other <= 10, "{n_other} of {N_DRAWS} draws differ");
}

#[test]
fn the_reported_chances_are_those_of_the_draw() {
    let logits = long_tail(60);
    let usual = SamplingParams {
        temperature: 0.7,
        top_k: 20,
        min_p: 0.02,
        repeat_penalty: 1.2,
        penalty_last_n: 8,
        n_logprobs: Some(60),
        scores_draw: true,
        ..Default::default()
    };
    let by_mirostat = SamplingParams {
        mirostat: Some(Mirostat::new(MirostatVersion::Two, 2.0, 0.0)),
        ..usual.clone()
    };
    let greedy = SamplingParams {
        temperature: 0.0,
        ..usual.clone()
    };
    let history = [3, 5, 5];
    for (params, n_left) in [(usual, None), (by_mirostat, None), (greedy, Some(1))] {
        let request = SampleRequest {
            params: &params,
            history: &history,
            newest: &[],
            n_prompt: 0,
            mask: None,
            position: 7,
        };
        let mut top = Vec::new();
        let drawn = Sampler::new(60).sample(&logits, &request, &mut top).unwrap();
        let mut chances = vec![f64::NAN; 60];
        for token in &top {
            chances[token.id as usize] = f64::from(token.logprob).exp();
        }
        assert_eq!(top.len(), 60);
        assert!(top.is_sorted_by(|a, b| a.logprob >= b.logprob), "{top:?}");
        let own = top.iter().find(|token| token.id == drawn.id).unwrap();
        assert_eq!(drawn.logprob, Some(own.logprob));
        assert!((chances.iter().sum::<f64>() - 1.0).abs() < 1e-5, "{chances:?}");
        let left = chances.iter().filter(|&&chance| chance > 0.0).count();
        assert!(n_left.map_or((2..60).contains(&left), |n| left == n), "{left}");
        check_shares(&counts(&logits, &params, &history), &chances);
        // Fewer are the likeliest of these.
        let few = SamplingParams {
            n_logprobs: Some(3),
            ..params.clone()
        };
        let request = SampleRequest {
            params: &few,
            ..request
        };
        let mut best = Vec::new();
        let again = Sampler::new(60).sample(&logits, &request, &mut best).unwrap();
        assert_eq!((again, best.len(), best[0]), (drawn, 3, top[0]));
    }
}

/// Computes the shares that mirostat keeps of a row by the formulas: tokens up to a bound of surprise in bits, or up to a number.
fn left_by_mirostat(logits: &[f32], version: MirostatVersion, bound: f64) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = logits.iter().map(|&logit| f64::from(logit - max).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]).then(a.cmp(&b)));
    let n = match version {
        MirostatVersion::Two => {
            let is_above = |&id: &usize| -(weights[id] / sum).log2() > bound;
            order.iter().position(is_above).unwrap_or(order.len())
        }
        MirostatVersion::One => {
            let (mut products, mut squares) = (0.0, 0.0);
            for i in 0..99.min(order.len() - 1) {
                let step = ((i + 2) as f64 / (i + 1) as f64).ln();
                products += step * (weights[order[i]] / weights[order[i + 1]]).ln();
                squares += step * step;
            }
            let s = products / squares;
            let e = s - 1.0;
            let k = (e * bound.exp2() / (1.0 - (logits.len() as f64).powf(-e))).powf(1.0 / s);
            (k as usize).min(order.len())
        }
    };
    let mut shares = vec![0.0; logits.len()];
    for &id in &order[..n.max(1)] {
        shares[id] = weights[id];
    }
    let sum: f64 = shares.iter().sum();
    shares.iter().map(|share| share / sum).collect()
}

#[test]
fn mirostat_follows_the_surprise_of_its_own_draws() {
    let logits = long_tail(300);
    for version in [MirostatVersion::One, MirostatVersion::Two] {
        for (target, rate) in [(2.0, 0.1), (4.0, 0.5)] {
            let params = SamplingParams {
                mirostat: Some(Mirostat::new(version, target, rate)),
                ..drawn()
            };
            let mut sampler = Sampler::new(logits.len());
            let mut bound = 2.0 * f64::from(target);
            let mut surprises = Vec::new();
            for position in 50..1050 {
                let request = SampleRequest {
                    params: &params,
                    history: &[],
                    newest: &[],
                    n_prompt: 0,
                    mask: None,
                    position,
                };
                let id = sampler.sample(&logits, &request, &mut Vec::new()).unwrap().id;
                let share = left_by_mirostat(&logits, version, bound)[id as usize];
                assert!(share > 0.0, "{version:?}: token {id} surprises more than {bound}");
                bound -= f64::from(rate) * (-share.log2() - f64::from(target));
                surprises.push(-share.log2());
                let kept = params.mirostat.as_ref().unwrap().bound(position + 1);
                assert!(
                    (f64::from(kept) - bound).abs() < 1e-2,
                    "{version:?}: {kept}, {bound}"
                );
                bound = f64::from(kept);
            }
            let mean = surprises[200..].iter().sum::<f64>() / (surprises.len() - 200) as f64;
            assert!(
                (mean - f64::from(target)).abs() < 0.15,
                "{version:?}: {mean} bits"
            );
        }
    }
}

#[test]
fn mirostat_draws_from_what_is_left() {
    let logits = long_tail(300);
    for version in [MirostatVersion::One, MirostatVersion::Two] {
        // A rate of 0 keeps the bound.
        let params = SamplingParams {
            mirostat: Some(Mirostat::new(version, 2.0, 0.0)),
            // Mirostat ignores filters and penalties.
            top_k: 1,
            repeat_penalty: 1.5,
            ..drawn()
        };
        let found = counts(&logits, &params, &[0, 1, 2]);
        check_shares(&found, &left_by_mirostat(&logits, version, 4.0));
    }
}

#[test]
fn positions_that_are_drawn_again_give_the_same_tokens() {
    let logits = long_tail(300);
    let params = SamplingParams {
        mirostat: Some(Mirostat::new(MirostatVersion::Two, 3.0, 0.4)),
        seed: 5,
        ..drawn()
    };
    let mut sampler = Sampler::new(logits.len());
    let mut draw = |params: &SamplingParams, position| {
        let request = SampleRequest {
            params,
            history: &[],
            newest: &[],
            n_prompt: 0,
            mask: None,
            position,
        };
        sampler.sample(&logits, &request, &mut Vec::new()).unwrap().id
    };
    let first: Vec<u32> = (0..20).map(|position| draw(&params, position)).collect();
    // As after a draft with no accepted token.
    let again: Vec<u32> = (10..20).map(|position| draw(&params, position)).collect();
    assert_eq!(again, first[10..]);
    let other = params.clone();
    let anew: Vec<u32> = (0..20).map(|position| draw(&other, position)).collect();
    assert_eq!(anew, first);
}

#[test]
fn degenerate_rows_can_be_sampled() {
    for logits in [vec![0.0; 7], vec![f32::NEG_INFINITY, 1.0], vec![3e38, -3e38, 0.0]] {
        for change in [
            |params: &mut SamplingParams| params.top_n_sigma = 1.0,
            |params: &mut SamplingParams| {
                params.xtc = Some(Xtc {
                    probability: 1.0,
                    threshold: 0.0,
                });
            },
            |params: &mut SamplingParams| {
                params.dynamic_temperature = Some(DynamicTemperature {
                    range: 3.0,
                    exponent: 0.0,
                });
            },
            |params: &mut SamplingParams| {
                params.mirostat = Some(Mirostat::new(MirostatVersion::One, 0.0, 1.0));
            },
            |params: &mut SamplingParams| {
                params.mirostat = Some(Mirostat::new(MirostatVersion::Two, 0.0, 1.0));
            },
        ] {
            for temperature in [0.0, 1e-30, 1.0, 3e38] {
                let mut params = SamplingParams {
                    temperature,
                    ..Default::default()
                };
                change(&mut params);
                let found = counts(&logits, &params, &[]);
                let is_forbidden = logits.iter().map(|logit| *logit == f32::NEG_INFINITY);
                assert!(
                    found
                        .iter()
                        .zip(is_forbidden)
                        .all(|(&count, is_forbidden)| count == 0 || !is_forbidden)
                );
            }
        }
    }
}
