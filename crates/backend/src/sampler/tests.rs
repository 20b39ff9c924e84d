//! Claims about the sampler, against full sorts and exact distributions.

use super::*;
use crate::Dry;

fn request<'a>(params: &'a SamplingParams, history: &'a [u32], position: u32) -> SampleRequest<'a> {
    SampleRequest {
        params,
        history,
        newest: &[],
        n_prompt: 0,
        mask: None,
        position,
    }
}

fn sample(logits: &[f32], params: &SamplingParams) -> Result<u32, RowError> {
    Sampler::default()
        .sample(logits, &request(params, &[], 0), &mut Vec::new())
        .map(|token| token.id)
}

/// Numbers without structure, many of them equal.
fn random_logits(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    (0..n)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % 1000) as f32 / 50.0 - 10.0
        })
        .collect()
}

/// Counts how often each token is drawn over many positions.
fn frequencies(logits: &[f32], params: &SamplingParams, n_draws: u32) -> Vec<f64> {
    let mut sampler = Sampler::new(logits.len());
    let mut counts = vec![0u32; logits.len()];
    for position in 0..n_draws {
        let token = sampler
            .sample(logits, &request(params, &[], position), &mut Vec::new())
            .unwrap();
        counts[token.id as usize] += 1;
    }
    counts
        .iter()
        .map(|&count| f64::from(count) / f64::from(n_draws))
        .collect()
}

fn support(logits: &[f32], params: &SamplingParams) -> Vec<u32> {
    (0..)
        .zip(frequencies(logits, params, 4000))
        .filter(|&(_, frequency)| frequency > 0.0)
        .map(|(id, _)| id)
        .collect()
}

#[test]
fn greedy_takes_the_lowest_id_of_equals() {
    let logits = [1.0, 3.0, 3.0, f32::NEG_INFINITY];
    assert_eq!(sample(&logits, &SamplingParams::default()), Ok(1));
    let top_1 = SamplingParams {
        temperature: 0.9,
        top_k: 1,
        ..Default::default()
    };
    assert_eq!(sample(&logits, &top_1), Ok(1));
}

#[test]
fn logits_that_are_not_finite_are_a_row_error() {
    for logits in [[0.0, f32::NAN], [f32::INFINITY, 0.0], [f32::NEG_INFINITY; 2]] {
        assert_eq!(
            sample(&logits, &SamplingParams::default()),
            Err(RowError::NonFiniteLogits)
        );
    }
}

#[test]
fn a_mask_forbids_and_may_forbid_everything() {
    let params = SamplingParams::default();
    let logits: Vec<f32> = (0..40).map(|id| id as f32).collect();
    for (mask, expected) in [
        ([u32::MAX, 0x7F], Ok(38)),
        ([1, 0], Ok(0)),
        ([0, 0], Err(RowError::NothingAllowed)),
    ] {
        let request = SampleRequest {
            mask: Some(&mask),
            ..request(&params, &[], 0)
        };
        let found = Sampler::default().sample(&logits, &request, &mut Vec::new());
        assert_eq!(found.map(|token| token.id), expected);
    }
}

#[test]
fn forbidden_tokens_are_as_good_as_infinitely_unlikely() {
    // A vocabulary that does not end with a word of the mask, whose last word has bits to spare.
    const N_VOCAB: usize = 1001;
    let n_words = N_VOCAB.div_ceil(32);
    let logits = random_logits(N_VOCAB, 31);
    let history: Vec<u32> = (0..40).map(|i| i * 7 % 50).collect();
    let mut words = random_logits(n_words, 17).into_iter();
    let mut random_word = || words.next().unwrap().to_bits().wrapping_mul(0x9E37_79B9);
    let masks = [
        vec![u32::MAX; n_words],
        (0..n_words as u32)
            .map(|i| if i == 20 { 1 << 9 } else { 0 })
            .collect(),
        (0..n_words)
            .map(|i| [0, u32::MAX, random_word()][i % 3])
            .collect(),
        (0..n_words)
            .map(|i| if i + 1 == n_words { u32::MAX } else { 0 })
            .collect(),
    ];
    let base = SamplingParams {
        seed: 9,
        ..Default::default()
    };
    let drawn = SamplingParams {
        temperature: 1.2,
        ..base.clone()
    };
    let all_params = [
        base.clone(),
        drawn.clone(),
        SamplingParams {
            top_k: 5,
            ..drawn.clone()
        },
        SamplingParams {
            top_p: 0.7,
            ..drawn.clone()
        },
        SamplingParams {
            typical_p: 0.6,
            min_p: 0.01,
            n_logprobs: Some(3),
            ..drawn.clone()
        },
        SamplingParams {
            repeat_penalty: 1.3,
            penalty_last_n: 64,
            ..drawn
        },
        SamplingParams {
            logit_bias: vec![(649, 3.0), (2, -4.0)],
            n_logprobs: Some(2),
            ..base
        },
    ];
    for mask in &masks {
        let is_allowed = |id: usize| mask[id / 32] >> (id % 32) & 1 == 1;
        let forbidden = f32::NEG_INFINITY;
        let cleared: Vec<f32> = (logits.iter().enumerate())
            .map(|(id, &logit)| if is_allowed(id) { logit } else { forbidden })
            .collect();
        for params in &all_params {
            for position in 0..50 {
                let without = request(params, &history, position);
                let with = SampleRequest {
                    mask: Some(mask),
                    ..without
                };
                let (mut sampler, mut top) = (Sampler::default(), Vec::new());
                let found = sampler.sample(&logits, &with, &mut top).unwrap();
                let expected = sampler.sample(&cleared, &without, &mut Vec::new()).unwrap();
                assert_eq!(found.id, expected.id, "{params:?} at {position}");
                // Log-probabilities come from the model, whatever a mask forbids.
                let mut all = Vec::new();
                sampler.sample(&logits, &without, &mut all).unwrap();
                assert_eq!(top, all);
            }
        }
    }
}

#[test]
fn draws_follow_the_softmax() {
    let logits = [1.0f32, 0.0, 2.5, -1.0, 2.0];
    for temperature in [0.5f32, 1.0, 2.0] {
        let params = SamplingParams {
            temperature,
            seed: 3,
            ..Default::default()
        };
        let n_draws = 200_000;
        let weights: Vec<f64> = (logits.iter())
            .map(|&logit| f64::from(logit / temperature).exp())
            .collect();
        let sum: f64 = weights.iter().sum();
        for (frequency, weight) in frequencies(&logits, &params, n_draws).iter().zip(&weights) {
            let p = weight / sum;
            // Five standard deviations of a binomial share.
            let tolerance = 5.0 * (p * (1.0 - p) / f64::from(n_draws)).sqrt();
            assert!(
                (frequency - p).abs() < tolerance,
                "{frequency} against {p} at {temperature}"
            );
        }
    }
}

#[test]
fn a_draw_depends_on_seed_and_position_only() {
    let logits = random_logits(1000, 1);
    let params = SamplingParams {
        temperature: 1.5,
        seed: 11,
        ..Default::default()
    };
    let draw = |params: &SamplingParams, sampler: &mut Sampler, position| {
        let request = request(params, &[], position);
        sampler.sample(&logits, &request, &mut Vec::new()).unwrap().id
    };
    let mut sampler = Sampler::new(1000);
    let forwards: Vec<u32> = (0..50).map(|p| draw(&params, &mut sampler, p)).collect();
    let mut backwards: Vec<u32> = (0..50).rev().map(|p| draw(&params, &mut sampler, p)).collect();
    backwards.reverse();
    assert_eq!(forwards, backwards);
    let other_seed = SamplingParams { seed: 12, ..params };
    let others: Vec<u32> = (0..50).map(|p| draw(&other_seed, &mut sampler, p)).collect();
    assert_ne!(forwards, others);
}

#[test]
fn best_k_equals_a_full_sort() {
    for (n, k) in [(1, 1), (5, 9), (300, 7), (5000, 40), (5000, 4999)] {
        let logits = random_logits(n, n as u64);
        let mut expected: Vec<Candidate> = (0..)
            .zip(&logits)
            .map(|(id, &logit)| Candidate { id, logit })
            .collect();
        expected.sort_by(Candidate::by_likelihood);
        expected.truncate(k);
        let mut found = Vec::new();
        best_k(Allowed::new(&logits, None), k, &mut found);
        assert_eq!(found, expected, "{k} of {n}");
    }
}

#[test]
fn top_p_keeps_the_smallest_set_that_reaches_it() {
    for (n, top_p) in [(10, 0.3), (500, 0.9), (3000, 0.999), (3000, 0.0)] {
        let logits = random_logits(n, 5);
        let mut expected: Vec<Candidate> = (0..)
            .zip(&logits)
            .map(|(id, &logit)| Candidate { id, logit })
            .collect();
        let mut found = expected.clone();
        expected.sort_by(Candidate::by_likelihood);
        let weight = |candidate: &Candidate| f64::from((candidate.logit - expected[0].logit).exp());
        let sum: f64 = expected.iter().map(weight).sum();
        let mut reached = 0.0;
        let n_kept = 1
            + (expected.iter())
                .position(|candidate| {
                    reached += weight(candidate);
                    reached >= f64::from(top_p) * sum
                })
                .unwrap();
        keep_top_p(&mut found, top_p);
        assert_eq!(found, expected[..n_kept]);
    }
}

#[test]
fn filters_leave_the_tokens_they_should() {
    // Probabilities 0.5, 0.25, 0.125, 0.125.
    let logits = [4f32.ln(), 2f32.ln(), 0.0, 0.0];
    let base = SamplingParams {
        temperature: 1.0,
        ..Default::default()
    };
    let check = |params: SamplingParams, expected: &[u32]| {
        assert_eq!(support(&logits, &params), expected, "{params:?}");
    };
    check(base.clone(), &[0, 1, 2, 3]);
    check(
        SamplingParams {
            top_k: 3,
            ..base.clone()
        },
        &[0, 1, 2],
    );
    check(
        SamplingParams {
            top_p: 0.7,
            ..base.clone()
        },
        &[0, 1],
    );
    check(
        SamplingParams {
            min_p: 0.4,
            ..base.clone()
        },
        &[0, 1],
    );
    // The entropy is 1.75 bits; surprises are 1, 2, 3, 3 bits, so token 1 is the most typical, then token 0.
    check(
        SamplingParams {
            typical_p: 0.2,
            ..base.clone()
        },
        &[1],
    );
    check(
        SamplingParams {
            typical_p: 0.7,
            ..base
        },
        &[0, 1],
    );
}

#[test]
fn penalties_count_the_recent_tokens() {
    let adjusted = |params: &SamplingParams, history: &[u32], newest: &[u32]| {
        let mut logits = vec![2.0f32, -2.0, 1.0, f32::NEG_INFINITY];
        let seen = Seen {
            history,
            n_prompt: 0,
            newest,
        };
        Penalties::default().apply(params, &seen, &mut logits);
        logits
    };
    let params = SamplingParams {
        repeat_penalty: 2.0,
        frequency_penalty: 0.25,
        presence_penalty: 0.5,
        penalty_last_n: 3,
        ..Default::default()
    };
    // Token 2 is too old; token 0 occurs twice, token 1 once, as the newest.
    assert_eq!(
        adjusted(&params, &[2, 0, 0], &[1]),
        [1.0 - 0.5 - 0.5, -4.0 - 0.25 - 0.5, 1.0, f32::NEG_INFINITY]
    );
    let extreme = SamplingParams {
        repeat_penalty: f32::MIN_POSITIVE,
        frequency_penalty: f32::MIN,
        ..Default::default()
    };
    let logits = adjusted(&extreme, &[0, 0, 1, 3], &[]);
    // Prompt tokens were not generated.
    let mut logits_behind_prompt = vec![2.0f32, -2.0, 1.0, f32::NEG_INFINITY];
    let seen = Seen {
        history: &[1, 2, 0],
        n_prompt: 2,
        newest: &[0],
    };
    let all = SamplingParams {
        penalty_last_n: 4,
        ..params
    };
    Penalties::default().apply(&all, &seen, &mut logits_behind_prompt);
    assert_eq!(
        logits_behind_prompt,
        [1.0 - 0.5 - 0.5, -4.0, 0.5, f32::NEG_INFINITY]
    );
    assert!(logits[..3].iter().all(|logit| logit.is_finite()), "{logits:?}");
    assert_eq!(logits[3], f32::NEG_INFINITY);
}

#[test]
fn dry_penalizes_what_continues_a_run() {
    let params = |breakers: Vec<u32>| SamplingParams {
        dry: Some(Dry {
            multiplier: 1.0,
            base: 2.0,
            allowed_length: 2,
            last_n: 64,
            breakers,
        }),
        ..Default::default()
    };
    let adjusted = |breakers: &[u32]| {
        let mut logits = vec![0.0f32; 8];
        // The newest tokens 1 2 3 occurred before: 1 2 3 was followed by 4, 2 3 once more by 5.
        let history = [1, 2, 3, 4, 0, 2, 3, 5, 1, 2, 3];
        let seen = Seen {
            history: &history,
            n_prompt: 0,
            newest: &[],
        };
        Penalties::default().apply(&params(breakers.to_vec()), &seen, &mut logits);
        logits
    };
    assert_eq!(adjusted(&[]), [0.0, 0.0, 0.0, 0.0, -2.0, -1.0, 0.0, 0.0]);
    assert_eq!(adjusted(&[1]), [0.0, 0.0, 0.0, 0.0, -1.0, -1.0, 0.0, 0.0]);
    assert_eq!(adjusted(&[2]), [0.0; 8]);
    assert_eq!(adjusted(&[4]), [0.0, 0.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0]);
}

#[test]
fn logit_bias_adds_and_forbids() {
    let biased = |bias| SamplingParams {
        logit_bias: vec![(0, bias)],
        ..Default::default()
    };
    assert_eq!(sample(&[1.0, 2.0], &biased(1.5)), Ok(0));
    assert_eq!(sample(&[3.0, 2.0], &biased(f32::NEG_INFINITY)), Ok(1));
}

#[test]
fn logprobs_are_those_of_the_raw_logits() {
    let logits = [4f32.ln(), 2f32.ln(), 0.0, 0.0];
    let params = SamplingParams {
        logit_bias: vec![(3, 100.0)],
        n_logprobs: Some(3),
        ..Default::default()
    };
    let mut top = Vec::new();
    let token = Sampler::default()
        .sample(&logits, &request(&params, &[], 0), &mut top)
        .unwrap();
    assert_eq!(token.id, 3);
    assert!((token.logprob.unwrap() - 0.125f32.ln()).abs() < 1e-6);
    assert_eq!(top.iter().map(|entry| entry.id).collect::<Vec<_>>(), [0, 1, 2]);
    assert!((top[0].logprob - 0.5f32.ln()).abs() < 1e-6);
}

#[test]
fn the_race_with_its_shortcut_equals_the_race_without() {
    let logits = random_logits(3000, 9);
    let candidates: Vec<Candidate> = (0..)
        .zip(&logits)
        .map(|(id, &logit)| Candidate { id, logit })
        .collect();
    for position in 0..200 {
        let exhaustive = gumbel::race_exhaustively(&candidates, 1.3, 5, position);
        assert_eq!(gumbel::race(&candidates, 1.3, 5, position), exhaustive);
    }
}

#[test]
fn all_tokens_race_as_listed_candidates_do_and_forbidden_ones_lose() {
    let mut logits = random_logits(3000, 21);
    for logit in logits.iter_mut().step_by(3) {
        *logit = f32::NEG_INFINITY;
    }
    let candidates: Vec<Candidate> = (0..)
        .zip(&logits)
        .map(|(id, &logit)| Candidate { id, logit })
        .filter(|candidate| candidate.logit > f32::NEG_INFINITY)
        .collect();
    let best = argmax(&logits).unwrap();
    for position in 0..200 {
        let listed = gumbel::race_exhaustively(&candidates, 0.8, 5, position);
        assert_eq!(
            gumbel::race_all(Allowed::new(&logits, None), best, 0.8, 5, position),
            listed
        );
    }
}
