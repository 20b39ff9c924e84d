//! Steps that verify drafts: captured and replayed like decode steps, with the tokens of decoding one by one.

use std::sync::Arc;

use tokenmill_backend::{
    Executor, ForwardBatch, KvType, RowMask, RowOutput, SampleRow, SamplingParams, SeqState, TokenSource,
};
use tokenmill_gguf::TensorType;
use tokenmill_model::ModelOptions;
use tokenmill_testkit::{TinyModel, generate::run};

use super::{
    scene::{OnGpu, Sequence, greedy, model, options, sequences},
    states::hybrid,
};

/// Tokens that each sequence generates here.
const N_NEW: usize = 16;

/// Feeds the tokens of each sequence that are not stored, and the drafts after them. Returns the tokens sampled after the newest token and
/// after each draft token.
fn verify(
    gpu: &mut OnGpu,
    sequences: &[Sequence],
    drafts: &[Vec<u32>],
    params: &Arc<SamplingParams>,
) -> Vec<Vec<u32>> {
    let mut batch = ForwardBatch::default();
    for (seq_idx, (sequence, draft)) in sequences.iter().zip(drafts).enumerate() {
        let inputs = [&sequence.tokens[sequence.n_stored..], draft].concat();
        batch.push_sequence(
            inputs.iter().map(|&id| TokenSource::Id(id)),
            sequence.n_stored as u32,
            &sequence.pages,
        );
        if gpu.executor.limits().n_states > 0 {
            batch.states.push(SeqState::own(seq_idx as u32));
        }
        for n_guessed in 0..=draft.len() {
            let start = batch.history.len() as u32;
            batch.history.extend(&sequence.tokens);
            batch.history.extend(&draft[..n_guessed]);
            (batch.logit_rows).push((batch.n_tokens() - 1 - draft.len() + n_guessed) as u32);
            batch.outputs.push(RowOutput::Sample(SampleRow {
                params: Arc::clone(params),
                history: start..batch.history.len() as u32,
                n_prompt: 0,
                mask: RowMask::Any,
            }));
        }
    }
    let output = run(&mut gpu.executor, &batch).unwrap();
    let mut sampled = output.sampled.iter().map(|token| token.unwrap().unwrap().id);
    (drafts.iter())
        .map(|draft| sampled.by_ref().take(draft.len() + 1).collect())
        .collect()
}

/// Returns prompts, and the continuation of each without drafts.
fn decoded(gpu: &mut OnGpu, n_seqs: usize, params: &Arc<SamplingParams>) -> (Vec<Sequence>, Vec<Vec<u32>>) {
    let prompts = sequences(n_seqs);
    let mut all = prompts.clone();
    for _ in 0..N_NEW {
        let sampled = verify(gpu, &all, &vec![Vec::new(); n_seqs], params);
        for (sequence, sampled) in all.iter_mut().zip(sampled) {
            sequence.n_stored = sequence.tokens.len();
            sequence.tokens.push(sampled[0]);
        }
    }
    let expected = (all.iter().zip(&prompts)).map(|(all, prompt)| all.tokens[prompt.tokens.len()..].to_vec());
    let expected = expected.collect();
    (prompts, expected)
}

/// Generates with ragged drafts: the sequence at `seq_idx` has `len_of(step, seq_idx)` draft tokens in a step; the last one is wrong if
/// `is_wrong` says so.
fn drafted(
    gpu: &mut OnGpu,
    (prompts, expected): (&[Sequence], &[Vec<u32>]),
    params: &Arc<SamplingParams>,
    len_of: impl Fn(usize, usize) -> usize,
    is_wrong: impl Fn(usize, usize) -> bool,
) -> usize {
    let mut all = prompts.to_vec();
    let sampled = verify(gpu, &all, &vec![Vec::new(); all.len()], params);
    for (sequence, sampled) in all.iter_mut().zip(sampled) {
        sequence.n_stored = sequence.tokens.len();
        sequence.tokens.push(sampled[0]);
    }
    for step in 0.. {
        let n_new = |seq_idx: usize| all[seq_idx].tokens.len() - prompts[seq_idx].tokens.len();
        if (0..all.len()).any(|seq_idx| n_new(seq_idx) + len_of(step, seq_idx) >= N_NEW) {
            return step;
        }
        let drafts: Vec<Vec<u32>> = (0..all.len())
            .map(|seq_idx| {
                let (at, len) = (n_new(seq_idx), len_of(step, seq_idx));
                let mut draft = expected[seq_idx][at..at + len].to_vec();
                if let Some(last) = draft.last_mut().filter(|_| is_wrong(step, seq_idx)) {
                    *last = (*last + 1) % 96;
                }
                draft
            })
            .collect();
        let sampled = verify(gpu, &all, &drafts, params);
        for (seq_idx, (sampled, draft)) in sampled.iter().zip(&drafts).enumerate() {
            let at = all[seq_idx].tokens.len() - prompts[seq_idx].tokens.len();
            let n_right = draft.iter().zip(sampled).take_while(|(a, b)| a == b).count();
            assert_eq!(
                n_right,
                draft.len() - usize::from(!draft.is_empty() && is_wrong(step, seq_idx))
            );
            assert_eq!(
                sampled[..=n_right],
                expected[seq_idx][at..=at + n_right],
                "step {step}, sequence {seq_idx}"
            );
            let sequence = &mut all[seq_idx];
            sequence.n_stored = sequence.tokens.len() + n_right;
            sequence.tokens.extend(&sampled[..=n_right]);
        }
    }
    unreachable!("the answers end")
}

fn new(model: &TinyModel, uses_graphs: bool) -> OnGpu {
    with_keys(model, uses_graphs, KvType::F32)
}

fn with_keys(model: &TinyModel, uses_graphs: bool, kv_type: KvType) -> OnGpu {
    let options = ModelOptions { kv_type, ..options() };
    OnGpu::of(model, &options, |backend| backend.with_graphs(uses_graphs))
}

#[test]
fn steps_that_verify_are_captured_and_replayed_and_give_the_tokens_of_steps_that_decode() {
    let drawn = Arc::new(SamplingParams {
        temperature: 0.9,
        repeat_penalty: 1.1,
        penalty_last_n: 8,
        seed: 7,
        ..Default::default()
    });
    for (ty, kv_type, params) in [
        (TensorType::F32, KvType::F32, greedy()),
        (TensorType::F32, KvType::F16, greedy()),
        (TensorType::Q8_0, KvType::F16, Arc::clone(&drawn)),
        (TensorType::Q8_0, KvType::F32, drawn),
    ] {
        let model = model(ty);
        let new = |model: &TinyModel, uses_graphs| with_keys(model, uses_graphs, kv_type);
        let (prompts, expected) = decoded(&mut new(&model, true), 3, &params);
        // Three sequences with 5 to 8 rows: one bucket of rows, and one of sequences.
        let len_of = |step: usize, seq_idx: usize| [[2, 0, 1], [1, 1, 1], [2, 1, 2]][step % 3][seq_idx];
        let is_wrong = |step, seq_idx| step == 1 && seq_idx != 1;
        let mut eager = new(&model, false);
        let n_steps = drafted(&mut eager, (&prompts, &expected), &params, len_of, is_wrong);
        assert!(n_steps >= 5, "{n_steps}");
        assert_eq!(eager.simulator.graph_counts(), (0, 0));
        let mut replayed = new(&model, true);
        drafted(&mut replayed, (&prompts, &expected), &params, len_of, is_wrong);
        assert_eq!(
            replayed.simulator.graph_counts(),
            (1, n_steps as u64),
            "all but the prompts is one graph"
        );
    }
}

#[test]
fn a_replayed_step_that_verifies_is_one_graph_and_one_wait() {
    let model = model(TensorType::Q4_0);
    let params = greedy();
    let mut gpu = new(&model, true);
    let (prompts, expected) = decoded(&mut gpu, 2, &params);
    drafted(&mut gpu, (&prompts, &expected), &params, |_, _| 3, |_, _| false);
    let device = gpu.executor.backend().device().clone();
    let (launches, waits) = (device.n_launches(), device.n_waits());
    let (graphs, copies) = (gpu.simulator.graph_counts(), gpu.simulator.copy_counts());
    // The last sequence decodes once more, with existing keys and values.
    let mut all = prompts;
    for (sequence, expected) in all.iter_mut().zip(&expected) {
        sequence.tokens.push(expected[0]);
        sequence.n_stored = sequence.tokens.len() - 1;
    }
    let drafts: Vec<Vec<u32>> = expected.iter().map(|tokens| tokens[1..4].to_vec()).collect();
    let sampled = verify(&mut gpu, &all, &drafts, &params);
    assert_eq!(sampled[0], expected[0][1..5]);
    assert_eq!(device.n_launches() - launches, 0, "launches outside of the graph");
    assert_eq!(device.n_waits() - waits, 1);
    let found = gpu.simulator.graph_counts();
    assert_eq!((found.0 - graphs.0, found.1 - graphs.1), (0, 1));
    let found = gpu.simulator.copy_counts();
    assert_eq!((found.0 - copies.0, found.1 - copies.1), (1, 1));
}

#[test]
fn attention_of_a_step_that_verifies_is_that_of_steps_that_decode() {
    let model = model(TensorType::Q4_0);
    let params = greedy();
    // Keys and values in f16 are rotated and attended to in one launch if each token is a sequence's only one, which is not the case here.
    for (kv_type, attends, joins) in [
        (KvType::F32, "attention_f32", false),
        (KvType::F16, "attention_f16", true),
    ] {
        attention_of_verifying(&model, &params, kv_type, attends, joins);
    }
}

fn attention_of_verifying(
    model: &TinyModel,
    params: &Arc<SamplingParams>,
    kv_type: KvType,
    attends: &str,
    joins: bool,
) {
    let mut gpu = with_keys(model, true, kv_type);
    let (prompts, expected) = decoded(&mut gpu, 2, params);
    let n_of = |gpu: &OnGpu, name: &str| -> u64 {
        (gpu.simulator.counters().iter())
            .filter(|(kernel, _)| kernel.starts_with(name))
            .map(|(_, (n, _))| *n)
            .sum()
    };
    let names = ["attention_prefill", attends, "turn_attention"];
    let before = names.map(|name| n_of(&gpu, name));
    assert_eq!(before[2] > 0, joins, "steps of decoding");
    let n_steps = drafted(&mut gpu, (&prompts, &expected), params, |_, _| 2, |_, _| false);
    let [of_runs, of_tokens, joined] = names.map(|name| n_of(&gpu, name));
    assert_eq!(joined, before[2], "no step that verifies");
    let n_layers = model.descriptor.layers.len() as u64;
    // Only prompts use the kernels for runs.
    assert!(of_runs - before[0] <= n_layers, "{of_runs} {before:?}");
    assert!(of_tokens - before[1] >= n_layers * n_steps as u64);
}

#[test]
fn recurrent_states_follow_right_guesses() {
    let model = hybrid();
    let params = greedy();
    let (prompts, expected) = decoded(&mut new(&model, true), 3, &params);
    let mut gpu = new(&model, true);
    let len_of = |step: usize, seq_idx: usize| [[2, 0, 1], [0, 3, 2]][step % 2][seq_idx];
    let n_steps = drafted(&mut gpu, (&prompts, &expected), &params, len_of, |_, _| false);
    assert!(n_steps >= 4, "{n_steps}");
    // Several sequences are not padded there, and come in too many shapes.
    assert_eq!(gpu.simulator.graph_counts(), (0, 0));
    let mut gpu = new(&model, true);
    let one = (&prompts[..1], &expected[..1]);
    let n_steps = drafted(&mut gpu, one, &params, |step, _| 1 + step % 2, |_, _| false);
    assert!(n_steps >= 4, "{n_steps}");
    assert_eq!(gpu.simulator.graph_counts(), (2, n_steps as u64));
}
