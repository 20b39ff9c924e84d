//! Captured decode: when steps are captured, and that results do not change.

use std::sync::Arc;

use tokenmill_backend::SamplingParams;
use tokenmill_gguf::TensorType;
use tokenmill_testkit::sizes;

use super::scene::{
    MAX_SEQS, OnGpu, Sequence, advance, assert_same_bits, greedy, on_cpu, sample, sequences, tokens_of,
};

#[test]
fn a_replayed_step_equals_an_eager_one() {
    for ty in [TensorType::F32, TensorType::Q8_0] {
        for n_seqs in [1, 2, 3, 5, 8] {
            let play = |gpu: &mut OnGpu| -> Vec<Vec<f32>> {
                let mut all = sequences(n_seqs);
                (0..5)
                    .flat_map(|_| advance(&mut gpu.executor, all.iter_mut().collect()).unwrap())
                    .collect()
            };
            let mut eager = OnGpu::eager(ty);
            let mut replayed = OnGpu::new(ty);
            let expected = play(&mut eager);
            assert_same_bits(
                &format!("{} x {n_seqs}", ty.name()),
                &expected,
                &play(&mut replayed),
            );
            assert_eq!(eager.simulator.graph_counts(), (0, 0));
            // The prefill is a step of another kind; all others are one graph.
            assert_eq!(replayed.simulator.graph_counts(), (1, 4), "{n_seqs} sequences");
        }
    }
}

#[test]
fn going_from_four_to_three_and_back_captures_nothing_twice() {
    let mut gpu = OnGpu::new(TensorType::Q4_0);
    let mut all = sequences(4);
    sample(&mut gpu.executor, all.iter_mut().collect(), &greedy()).unwrap();
    let mut counts = Vec::new();
    for n_seqs in [4, 3, 4, 3, 1, 2, 1, 4, 2, 3] {
        sample(
            &mut gpu.executor,
            all.iter_mut().take(n_seqs).collect(),
            &greedy(),
        )
        .unwrap();
        counts.push(gpu.simulator.graph_counts().0);
    }
    // Four and three share a bucket; one and two are graphs of their own, side by side with it.
    assert_eq!(counts, [1, 1, 1, 1, 2, 3, 3, 3, 3, 3]);
    assert_eq!(gpu.executor.backend().n_graphs(), 3);
    assert_eq!(
        gpu.simulator.graph_counts().1,
        10,
        "every decode step was a replay"
    );
}

#[test]
fn a_finished_sequence_changes_no_other_and_costs_no_attention() {
    for ty in [TensorType::F32, TensorType::Q8_0] {
        let play = |gpu: &mut OnGpu, leaves: bool| -> (Vec<Vec<f32>>, u64) {
            let mut all = sequences(4);
            advance(&mut gpu.executor, all.iter_mut().collect()).unwrap();
            let mut rows = Vec::new();
            let attention_sectors = |gpu: &OnGpu| -> u64 {
                (gpu.simulator.counters().iter())
                    .filter(|(name, _)| name.starts_with("attention_f32"))
                    .map(|(_, (_, counters))| counters.loads.sectors)
                    .sum()
            };
            let before = attention_sectors(gpu);
            for _ in 0..4 {
                let mut active: Vec<&mut Sequence> = all.iter_mut().collect();
                if leaves {
                    active.remove(1);
                }
                let mut found = advance(&mut gpu.executor, active).unwrap();
                if !leaves {
                    found.remove(1);
                }
                rows.extend(found);
            }
            (rows, attention_sectors(gpu) - before)
        };
        let mut gpu = OnGpu::new(ty);
        let (expected, sectors_of_four) = play(&mut gpu, false);
        let (found, sectors_of_three) = play(&mut gpu, true);
        assert_same_bits(ty.name(), &expected, &found);
        assert_eq!(gpu.simulator.graph_counts().0, 1);
        assert!(sectors_of_three < sectors_of_four);
    }
}

#[test]
fn every_batch_size_gives_the_tokens_of_a_sequence_alone() {
    let mut gpu = OnGpu::new(TensorType::F32);
    let n_new = |seq_idx: usize| 2 + seq_idx % 3;
    let mut expected = Vec::new();
    for (seq_idx, mut sequence) in sequences(MAX_SEQS).into_iter().enumerate() {
        for _ in 0..n_new(seq_idx) {
            sample(&mut gpu.executor, vec![&mut sequence], &greedy()).unwrap();
        }
        expected.push(sequence.tokens);
    }
    // The limits of the sizes that steps are padded to.
    let edges = [1, 2, 3, 4, 5, 8, 9, 16, 17, 24, 25, 32, MAX_SEQS];
    for n_seqs in sizes("sequences of a batch", MAX_SEQS, &edges) {
        let mut all = sequences(n_seqs);
        // Sequences finish at different steps.
        for step in 0..4 {
            let active: Vec<&mut Sequence> = (all.iter_mut().enumerate())
                .filter(|(seq_idx, _)| step < n_new(*seq_idx))
                .map(|(_, sequence)| sequence)
                .collect();
            if !active.is_empty() {
                sample(&mut gpu.executor, active, &greedy()).unwrap();
            }
        }
        assert_eq!(tokens_of(&all), expected[..n_seqs], "{n_seqs} sequences");
    }
}

#[test]
fn sampled_tokens_are_the_cpus_and_only_they_come_down() {
    let params = [
        SamplingParams {
            temperature: 0.8,
            top_k: 20,
            top_p: 0.95,
            seed: 3,
            ..Default::default()
        },
        SamplingParams {
            temperature: 1.3,
            min_p: 0.02,
            repeat_penalty: 1.2,
            presence_penalty: 0.3,
            frequency_penalty: 0.1,
            penalty_last_n: 8,
            logit_bias: vec![(4, 2.0), (9, f32::NEG_INFINITY)],
            seed: 4,
            ..Default::default()
        },
    ];
    for params in params.map(Arc::new) {
        let mut gpu = OnGpu::new(TensorType::F32);
        let (mut on_gpu, mut expected) = (sequences(3), sequences(3));
        let mut cpu = on_cpu(TensorType::F32);
        for step in 0..8 {
            let before = gpu.simulator.downloaded_bytes();
            sample(&mut gpu.executor, on_gpu.iter_mut().collect(), &params).unwrap();
            sample(&mut cpu, expected.iter_mut().collect(), &params).unwrap();
            let n_bytes = gpu.simulator.downloaded_bytes() - before;
            // Ids, a word that says whether there is one, and log-probabilities, for all the rows there may be; no logits.
            assert_eq!(n_bytes, 3 * 4 * 40, "step {step}");
        }
        assert_eq!(tokens_of(&on_gpu), tokens_of(&expected), "{params:?}");
        assert_eq!(
            gpu.simulator.graph_counts(),
            (1, 7),
            "sampling is part of the graph"
        );
    }
}

#[test]
fn what_the_host_samples_is_the_cpus_too() {
    // Locally typical sampling stays with the host; a step with it may follow one without.
    let typical = Arc::new(SamplingParams {
        temperature: 1.0,
        typical_p: 0.8,
        seed: 5,
        ..Default::default()
    });
    let plain = Arc::new(SamplingParams {
        temperature: 1.0,
        seed: 6,
        ..Default::default()
    });
    let mut gpu = OnGpu::new(TensorType::F32);
    let mut cpu = on_cpu(TensorType::F32);
    let (mut on_gpu, mut expected) = (sequences(2), sequences(2));
    for params in [&typical, &plain, &typical, &typical, &plain, &plain] {
        sample(&mut gpu.executor, on_gpu.iter_mut().collect(), params).unwrap();
        sample(&mut cpu, expected.iter_mut().collect(), params).unwrap();
    }
    assert_eq!(tokens_of(&on_gpu), tokens_of(&expected));
}

#[test]
fn draws_among_few_and_among_many_tokens_are_graphs_of_their_own() {
    let of = |top_k: u32| {
        Arc::new(SamplingParams {
            temperature: 1.0,
            top_k,
            top_p: 0.95,
            seed: 5,
            ..Default::default()
        })
    };
    let (few, many) = (of(40), of(0));
    let play = |gpu: &mut OnGpu| -> (Vec<Vec<u32>>, Vec<u64>) {
        let mut all = sequences(2);
        let mut n_spread = Vec::new();
        for params in [&few, &few, &many, &few, &many] {
            sample(&mut gpu.executor, all.iter_mut().collect(), params).unwrap();
            let counters = gpu.simulator.counters();
            n_spread.push(counters.get("sample_candidates").map_or(0, |(n, _)| *n));
        }
        (tokens_of(&all), n_spread)
    };
    let (mut eager, mut replayed) = (OnGpu::eager(TensorType::F32), OnGpu::new(TensorType::F32));
    let expected = play(&mut eager);
    // Only steps with such rows have the launch.
    assert_eq!(expected.1, [0, 0, 1, 1, 2]);
    assert_eq!(play(&mut replayed), expected);
    assert_eq!(replayed.simulator.graph_counts(), (2, 4));
}
