//! Sampling on the device against the host's sampler: the same token for the same logits.

use tokenmill_backend::{SampleRequest, Sampler, SamplingParams};
use tokenmill_cuda_exec::SamplePlan;
use tokenmill_ptx_sim::Arguments;
use tokenmill_testkit::Random;

use crate::kernels::bench::{Sim, assert_close};

/// Three parts of a row, the last of them incomplete.
const N_VOCAB: usize = 5111;

/// A row to sample.
struct Row {
    logits: Vec<f32>,
    params: SamplingParams,
    history: Vec<u32>,
    /// Whether the history continues with the token that the previous step sampled in row 1.
    follows: bool,
    mask: Option<Vec<u32>>,
    position: u32,
}

/// Tokens sampled by rows 0 and 1 of the previous step.
const PREVIOUS: [u32; 2] = [4, 17];

/// The result for a row, from the host or the device.
#[derive(Debug, PartialEq)]
struct Outcome {
    id: Option<u32>,
    status: u32,
}

fn logits(random: &mut Random) -> Vec<f32> {
    // Steps of 1/50 give ties.
    (0..N_VOCAB)
        .map(|_| random.below(1000) as f32 / 50.0 - 10.0)
        .collect()
}

fn on_host(row: &Row) -> (Outcome, Option<f32>, Vec<(u32, f32)>) {
    let newest = if row.follows { &PREVIOUS[1..] } else { &[] };
    let request = SampleRequest {
        params: &row.params,
        history: &row.history,
        newest,
        n_prompt: 0,
        mask: row.mask.as_deref(),
        position: row.position,
    };
    let mut top = Vec::new();
    let result = Sampler::new(N_VOCAB).sample(&row.logits, &request, &mut top);
    let top = top.iter().map(|token| (token.id, token.logprob)).collect();
    match result {
        Ok(token) => (
            Outcome {
                id: Some(token.id),
                status: 0,
            },
            token.logprob,
            top,
        ),
        Err(error) => {
            let status = if error.to_string().contains("finite") {
                1
            } else {
                2
            };
            (Outcome { id: None, status }, None, top)
        }
    }
}

/// Returns the record of a row in the kernel's layout, and appends its values to the shared arrays.
fn record(row: &Row, arrays: &mut Arrays) -> Vec<u8> {
    let params = &row.params;
    let penalizes =
        params.repeat_penalty != 1.0 || params.presence_penalty != 0.0 || params.frequency_penalty != 0.0;
    let adjusts = penalizes || !params.logit_bias.is_empty() || row.mask.is_some();
    let flags =
        u32::from(params.is_greedy()) | u32::from(adjusts) << 1 | u32::from(params.n_logprobs.is_some()) << 2;
    let n_kept = (params.penalty_last_n as usize).saturating_sub(usize::from(row.follows));
    let start = arrays.history.len() as u32;
    arrays
        .history
        .extend(&row.history[row.history.len().saturating_sub(n_kept)..]);
    let mask_start = row.mask.as_ref().map_or(u32::MAX, |mask| {
        let start = arrays.mask_words.len() as u32;
        arrays.mask_words.extend(mask);
        start
    });
    let bias_start = arrays.bias_ids.len() as u32;
    for &(id, bias) in &params.logit_bias {
        arrays.bias_ids.push(id);
        arrays.biases.push(bias);
    }
    let top_start = arrays.n_top;
    arrays.n_top += params.n_logprobs.unwrap_or(0);
    let ln_min_p = if params.min_p > 0.0 {
        params.min_p.ln()
    } else {
        f32::NEG_INFINITY
    };
    let mut bytes = params.seed.to_le_bytes().to_vec();
    for word in [
        row.position,
        flags,
        params.temperature.to_bits(),
        params.top_k,
        params.top_p.to_bits(),
        ln_min_p.to_bits(),
        params.repeat_penalty.to_bits(),
        params.presence_penalty.to_bits(),
        params.frequency_penalty.to_bits(),
        start,
        arrays.history.len() as u32,
        if row.follows { 1 } else { u32::MAX },
        mask_start,
        bias_start,
        arrays.bias_ids.len() as u32,
        bias_start,
        params.n_logprobs.unwrap_or(0),
        top_start,
    ] {
        bytes.extend(word.to_le_bytes());
    }
    assert_eq!(bytes.len(), 80);
    bytes
}

#[derive(Default)]
struct Arrays {
    history: Vec<u32>,
    mask_words: Vec<u32>,
    bias_ids: Vec<u32>,
    biases: Vec<f32>,
    n_top: u32,
}

/// Whether the two launches for draws among many tokens are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Many {
    Launched,
    LeftOut,
}

#[track_caller]
fn check(rows: &[Row]) -> Vec<usize> {
    check_with(rows, Many::Launched)
}

/// Samples rows and compares with the host. Returns the number of tokens that each row listed at its cuts, which is meaningless for
/// a row that draws from few tokens.
#[track_caller]
fn check_with(rows: &[Row], many: Many) -> Vec<usize> {
    let mut arrays = Arrays::default();
    let records: Vec<u8> = rows.iter().flat_map(|row| record(row, &mut arrays)).collect();
    let mut sim = Sim::new();
    let all: Vec<f32> = rows.iter().flat_map(|row| row.logits.clone()).collect();
    let n = rows.len();
    let device_logits = sim.f32s(&all);
    let adjusted = sim.room(4 * all.len());
    let outputs = [0; 3].map(|_: u32| sim.room(4 * n));
    let n_top = arrays.n_top.max(1) as usize;
    let tops = [0; 2].map(|_: u32| sim.room(4 * n_top));
    // Empty arrays still have an address.
    let pad = |mut array: Vec<u32>| {
        array.push(0);
        array
    };
    let biases: Vec<f32> = arrays.biases.iter().copied().chain([0.0]).collect();
    let plan = SamplePlan::of(N_VOCAB);
    let n_parts = plan.n_parts;
    let records = sim.bytes(&records);
    let parts = sim.room(8 * plan.part_words(n));
    let manys = sim.bytes(&vec![0xA5; 8 * SamplePlan::MANY_WORDS * n]);
    let arguments = Arguments::new()
        .ptr(device_logits)
        .ptr(adjusted)
        .i32(N_VOCAB as i32)
        .ptr(records)
        .ptr(sim.u32s(&pad(arrays.history)))
        .ptr(sim.u32s(&pad(arrays.mask_words)))
        .ptr(sim.u32s(&pad(arrays.bias_ids)))
        .ptr(sim.f32s(&biases))
        .ptr(sim.u32s(&PREVIOUS))
        .ptr(parts)
        .ptr(manys);
    let grid = [n_parts, n, 1];
    let threads = SamplePlan::PART_THREADS as usize;
    sim.launch("sample", "sample_parts", grid, threads, 0, &arguments);
    if many == Many::Launched {
        let arguments = Arguments::new()
            .ptr(device_logits)
            .ptr(adjusted)
            .i32(N_VOCAB as i32)
            .ptr(records)
            .ptr(parts)
            .ptr(manys);
        sim.launch("sample", "sample_weights", grid, threads, 0, &arguments);
        sim.launch("sample", "sample_candidates", grid, threads, 0, &arguments);
    }
    let arguments = Arguments::new()
        .ptr(device_logits)
        .ptr(adjusted)
        .i32(N_VOCAB as i32)
        .i32(n_parts as i32)
        .ptr(records)
        .ptr(parts)
        .ptr(manys)
        .i32(i32::from(many == Many::Launched))
        .ptr(outputs[0])
        .ptr(outputs[1])
        .ptr(outputs[2])
        .ptr(tops[0])
        .ptr(tops[1]);
    let threads = SamplePlan::ROW_THREADS as usize;
    sim.launch("sample", "sample_rows", [n, 1, 1], threads, 0, &arguments);
    let (ids, status) = (sim.read_u32s(outputs[0], n), sim.read_u32s(outputs[1], n));
    let mut top_start = 0;
    for (index, row) in rows.iter().enumerate() {
        let (outcome, logprob, top) = on_host(row);
        let found = Outcome {
            id: Some(ids[index]).filter(|&id| id != u32::MAX),
            status: status[index],
        };
        assert_eq!(found, outcome, "row {index}: {:?}", row.params);
        if let Some(logprob) = logprob {
            let found = sim.read_f32s(tokenmill_ptx_sim::DevicePtr(outputs[2].0 + 4 * index as u64), 1);
            // One rounding of a logarithm of a sum.
            assert_close(&found, &[(f64::from(logprob), 10.0)], 1e-6, "log-probability");
        }
        for (k, (id, logprob)) in top.iter().enumerate() {
            let at = 4 * (top_start + k as u64);
            let found_id = sim.read_u32s(tokenmill_ptx_sim::DevicePtr(tops[0].0 + at), 1);
            let found = sim.read_f32s(tokenmill_ptx_sim::DevicePtr(tops[1].0 + at), 1);
            assert_eq!(found_id, [*id]);
            assert_close(
                &found,
                &[(f64::from(*logprob), 10.0)],
                1e-6,
                "top log-probability",
            );
        }
        top_start += u64::from(row.params.n_logprobs.unwrap_or(0));
    }
    // The last word of a row's record has it in its lower half.
    (0..n as u64)
        .map(|row| {
            let words = SamplePlan::MANY_WORDS as u64;
            let at = manys.0 + 8 * ((row + 1) * words - 1);
            sim.read_u32s(tokenmill_ptx_sim::DevicePtr(at), 1)[0] as usize
        })
        .collect()
}

fn row(random: &mut Random, params: SamplingParams) -> Row {
    Row {
        logits: logits(random),
        params,
        history: (0..random.below(90)).map(|_| random.below(40) as u32).collect(),
        follows: random.below(2) == 0,
        mask: None,
        position: random.below(10_000) as u32,
    }
}

#[test]
fn draws_with_every_filter_pick_the_hosts_token() {
    let mut random = Random::new(21);
    let mut rows = Vec::new();
    for temperature in [0.3, 1.0, 3.0] {
        for (top_k, top_p, min_p) in [
            (0, 1.0, 0.0),
            (40, 1.0, 0.0),
            (1000, 1.0, 0.0),
            (0, 0.9, 0.0),
            (0, 0.0, 0.0),
            (0, 1.0, 0.1),
            (100, 0.7, 0.05),
            (5000, 0.999, 0.0),
        ] {
            let seed = random.bits() << 20;
            rows.push(row(
                &mut random,
                SamplingParams {
                    temperature,
                    top_k,
                    top_p,
                    min_p,
                    seed,
                    ..Default::default()
                },
            ));
        }
    }
    let listed = check(&rows);
    // Rows with top-p or top-k list candidates; rows with min-p or temperature alone list none.
    assert!(
        listed[3] > 0 && listed[3] < 100 && listed[0] == 0 && listed[5] == 0,
        "{listed:?}"
    );
    // One thread block for the whole row picks the same tokens.
    check_with(&rows, Many::LeftOut);
}

#[test]
fn any_top_k_and_top_p_cut_as_on_the_host() {
    let mut random = Random::new(77);
    let rows: Vec<Row> = (0..48)
        .map(|index| {
            let params = SamplingParams {
                temperature: 50.0,
                top_k: if index % 3 == 0 {
                    0
                } else {
                    65 + random.below(N_VOCAB) as u32
                },
                top_p: [1.0, 0.9999, 0.95, 0.6, 0.2, 0.01][random.below(6)],
                min_p: if index % 5 == 0 { 1e-3 } else { 0.0 },
                seed: random.bits(),
                presence_penalty: if index % 7 == 0 { 0.5 } else { 0.0 },
                ..Default::default()
            };
            let mut row = row(&mut random, params);
            // Wide and narrow distributions, without ties and with some.
            let width = [0.05, 1.0, 4.0, 30.0][index % 4];
            for logit in &mut row.logits {
                let sum: f32 = (0..6).map(|_| random.symmetric()).sum();
                *logit = sum * width;
                if index % 2 == 0 {
                    *logit = (*logit * 64.0).round() / 64.0;
                }
            }
            row
        })
        .collect();
    let listed = check(&rows);
    assert!(listed.iter().any(|&n| n > 1000), "{listed:?}");
}

#[test]
fn ties_and_few_candidates_are_decided_as_on_the_host() {
    let mut random = Random::new(33);
    let mut rows = Vec::new();
    // All equal; a few levels; all but three forbidden.
    for kind in 0..3 {
        for (top_k, top_p, min_p) in [(1, 1.0, 0.0), (40, 0.95, 0.0), (64, 0.5, 0.2), (65, 0.95, 0.0)] {
            let params = SamplingParams {
                temperature: 0.8,
                top_k,
                top_p,
                min_p,
                seed: random.bits(),
                n_logprobs: Some(3),
                ..Default::default()
            };
            let mut row = row(&mut random, params);
            for (id, logit) in row.logits.iter_mut().enumerate() {
                *logit = match kind {
                    0 => 1.5,
                    1 => random.below(3) as f32 - 1.0,
                    _ if [7, 2048, 5110].contains(&id) => -0.0,
                    _ => f32::NEG_INFINITY,
                };
            }
            rows.push(row);
        }
    }
    let listed = check(&rows);
    // More equal tokens than fit, exactly as many as a level has, and all allowed tokens.
    assert_eq!((listed[3], listed[11]), (N_VOCAB, 3));
    assert!((1000..3000).contains(&listed[7]), "{listed:?}");
}

#[test]
fn penalties_biases_and_masks_change_the_hosts_way() {
    let mut random = Random::new(5);
    let rows: Vec<Row> = (0..16)
        .map(|index| {
            let params = SamplingParams {
                temperature: if index % 3 == 0 { 0.0 } else { 1.2 },
                top_k: if index % 2 == 1 { 40 } else { 0 },
                repeat_penalty: if index % 2 == 0 { 1.3 } else { 1.0 },
                presence_penalty: if index % 4 < 2 { 0.5 } else { 0.0 },
                frequency_penalty: if index % 5 < 3 { 0.25 } else { 0.0 },
                penalty_last_n: [0, 3, 64][index % 3],
                logit_bias: if index % 4 == 1 {
                    vec![(7, 9.0), (9, f32::NEG_INFINITY), (7, 3.5)]
                } else {
                    vec![]
                },
                seed: index as u64,
                ..Default::default()
            };
            let mut row = row(&mut random, params);
            if index % 4 == 3 {
                row.mask = Some(
                    (0..N_VOCAB.div_ceil(32))
                        .map(|_| (random.bits() & random.bits()) as u32)
                        .collect(),
                );
            }
            row
        })
        .collect();
    check(&rows);
}

#[test]
fn rows_without_a_token_say_why() {
    let mut random = Random::new(6);
    let mut with = |value: Option<f32>, params: SamplingParams, mask: Option<Vec<u32>>| {
        let mut row = row(&mut random, params);
        match value {
            Some(f32::NEG_INFINITY) => row.logits.fill(f32::NEG_INFINITY),
            Some(value) => row.logits[1000] = value,
            None => {}
        }
        row.mask = mask;
        row
    };
    let greedy = SamplingParams::default;
    let drawn = || SamplingParams {
        temperature: 1.0,
        ..Default::default()
    };
    check(&[
        with(Some(f32::NAN), greedy(), None),
        with(Some(f32::INFINITY), drawn(), None),
        with(Some(f32::NEG_INFINITY), drawn(), None),
        with(None, greedy(), Some(vec![0; N_VOCAB.div_ceil(32)])),
        with(None, drawn(), Some(vec![0; N_VOCAB.div_ceil(32)])),
        with(None, greedy(), None),
    ]);
}

#[test]
fn log_probabilities_are_those_of_the_raw_logits() {
    let mut random = Random::new(9);
    let rows: Vec<Row> = [Some(0), Some(1), Some(20), None]
        .into_iter()
        .map(|n_logprobs| {
            let params = SamplingParams {
                temperature: 0.8,
                n_logprobs,
                repeat_penalty: 1.2,
                ..Default::default()
            };
            row(&mut random, params)
        })
        .collect();
    check(&rows);
}
