//! `--batch-invariant` on the simulated device: a sequence gets the same bits alone and in any batch.
//!
//! The networks of the conformance suite are too narrow for K-quants. The batches here have as many rows as any kernel that is chosen by
//! rows requires: 9 and more, 33 and more, and more than 64.

use std::iter;

use tokenmill_backend::{Executor, ForwardBatch, KvType, PAGE_TOKENS, RowOutput, SamplingParams};
use tokenmill_cuda_exec::CudaBackend;
use tokenmill_gguf::TensorType;
use tokenmill_model::{Descriptor, FfnDescriptor, ModelOptions};
use tokenmill_sched::{Engine, EngineConfig, GenerateParams, Output, Speculation};
use tokenmill_testkit::{
    Random, TinyModel, cases,
    engines::{self, Loaded},
    generate::{ids, run},
    tiny_llama,
};

const N_CTX: usize = 64;
const PAGES_OF_SEQUENCE: usize = N_CTX / PAGE_TOKENS;
/// Sequences of the largest batch.
const MAX_SEQS: usize = 41;
/// Tokens of the observed sequence.
const N_TOKENS: usize = 40;

/// One layer whose rows divide into superblocks, and whose heads into blocks of keys and values.
fn descriptor() -> Descriptor {
    let mut descriptor = tiny_llama();
    descriptor.layers.truncate(1);
    descriptor.n_embd = 256;
    let layer = &mut descriptor.layers[0];
    let attention = layer.attention_mut();
    (attention.head_dim_k, attention.head_dim_v) = (64, 64);
    attention.scale = 0.125;
    let FfnDescriptor::Dense(ffn) = &mut layer.ffn else {
        unreachable!("the tiny network is dense")
    };
    ffn.n_ff = 256;
    descriptor.ropes[0].head_dim = 64;
    descriptor.ropes[0].n_dims = 64;
    descriptor
}

/// Weights of a type, and two matrices of another one.
fn model([ty, of_some]: [TensorType; 2]) -> TinyModel {
    let mut model = TinyModel::random(descriptor(), ty, 31);
    for name in ["blk.0.attn_v.weight", "blk.0.ffn_down.weight"] {
        model.set_type(name, of_some, 32);
    }
    model
}

fn options(kv_types: [KvType; 2]) -> ModelOptions {
    ModelOptions {
        n_ctx: Some(N_CTX),
        max_batch_tokens: 256,
        max_batch_seqs: MAX_SEQS,
        max_logit_rows: 256,
        n_pages: Some(MAX_SEQS * PAGES_OF_SEQUENCE),
        kv_type: kv_types[0],
        kv_value_type: Some(kv_types[1]),
        ..ModelOptions::default()
    }
}

fn executor(model: &TinyModel, kv_types: [KvType; 2], is_invariant: bool) -> Loaded<CudaBackend> {
    let backend = engines::gpu();
    let backend = backend.with_batch_invariance(is_invariant);
    engines::tiny(model, backend, &options(kv_types))
}

/// Tokens of the observed sequence in a step, the number of other sequences in it, and the tokens of each.
type Step = (usize, [usize; 2]);

/// Returns the logits of all tokens of a sequence, whose batch differs from step to step.
fn play(executor: &mut dyn Executor, steps: &[Step]) -> Vec<f32> {
    let n_vocab = executor.limits().n_vocab;
    let mut random = Random::new(3);
    let mut token = || random.below(n_vocab) as u32;
    let tokens: Vec<u32> = (0..N_TOKENS).map(|_| token()).collect();
    let mut n_stored = 0;
    let mut found = Vec::new();
    for &(n_new, [n_others, n_each]) in steps {
        let mut batch = ForwardBatch::default();
        // Between others, so that its rows have other places in tiles than alone.
        for seq_idx in 0..=n_others {
            let is_own = seq_idx == n_others / 2;
            let of_others: Vec<u32> = (0..n_each).map(|_| token()).collect();
            let (new, first) = if is_own {
                (&tokens[n_stored..n_stored + n_new], n_stored)
            } else {
                (&of_others[..], 0)
            };
            // The observed sequence has the first pages, whatever its place.
            let place = if is_own { 0 } else { seq_idx + 1 };
            let pages: Vec<u32> = (0..PAGES_OF_SEQUENCE)
                .map(|page| (place % MAX_SEQS * PAGES_OF_SEQUENCE + page) as u32)
                .collect();
            batch.push_sequence(ids(new), first as u32, &pages);
        }
        let rows = batch.tokens_of(n_others / 2);
        batch.logit_rows = (0..batch.n_tokens() as u32).collect();
        batch.outputs.resize(batch.n_tokens(), RowOutput::Logits);
        let logits = run(executor, &batch).expect("a valid batch").logits;
        found.extend_from_slice(&logits[rows.start * n_vocab..rows.end * n_vocab]);
        n_stored += n_new;
    }
    assert_eq!(n_stored, N_TOKENS);
    found
}

const ALONE: [Step; 5] = [(36, [0, 0]), (1, [0, 0]), (1, [0, 0]), (1, [0, 0]), (1, [0, 0])];
/// Few rows and many, steps of single tokens and others.
const OTHERWISE: [&[Step]; 2] = [
    &[(1, [0, 0]), (2, [0, 0]), (30, [0, 0]), (7, [0, 0])],
    &[
        (7, [1, 4]),
        (28, [3, 14]),
        (1, [8, 1]),
        (3, [2, 11]),
        (1, [39, 1]),
    ],
];

/// Types of weights and of keys and values that have separate kernels.
const KINDS: [([TensorType; 2], [KvType; 2]); 5] = [
    ([TensorType::Q4_K, TensorType::Q6_K], [KvType::F16; 2]),
    ([TensorType::Q5_K, TensorType::Q5_K], [KvType::Q8_0; 2]),
    ([TensorType::Q6_K, TensorType::Q8_0], [KvType::E4M3; 2]),
    ([TensorType::Q3_K, TensorType::Q4_K], [KvType::Q8_0, KvType::F16]),
    ([TensorType::Q2_K, TensorType::Q3_K], [KvType::E4M3; 2]),
];

/// Selects the first kind and a slice of the others.
fn kinds(grid: &str) -> impl Iterator<Item = ([TensorType; 2], [KvType; 2])> {
    let others = cases(grid, KINDS.len() - 1).map(|case| KINDS[1 + case]);
    iter::once(KINDS[0]).chain(others)
}

/// Counts the rows in which some value differs.
fn n_other_rows(found: &[f32], expected: &[f32]) -> usize {
    assert_eq!(found.len(), expected.len());
    let n_vocab = found.len() / N_TOKENS;
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    (found.chunks(n_vocab).zip(expected.chunks(n_vocab)))
        .filter(|(found, expected)| bits(found) != bits(expected))
        .count()
}

#[test]
fn k_quants_and_narrow_keys_and_values_have_the_bits_of_a_sequence_alone() {
    for (types, kv_types) in kinds("company on the simulator") {
        let model = model(types);
        let mut executor = executor(&model, kv_types, true);
        let expected = play(&mut executor, &ALONE);
        assert!(expected.iter().all(|value| value.is_finite()));
        for (index, steps) in OTHERWISE.iter().enumerate() {
            let n_other = n_other_rows(&play(&mut executor, steps), &expected);
            assert_eq!(n_other, 0, "{types:?} {kv_types:?}: rows of schedule {index}");
        }
    }
}

#[test]
fn without_it_the_company_is_seen_in_the_last_bits() {
    let (types, kv_types) = KINDS[0];
    let mut executor = executor(&model(types), kv_types, false);
    let expected = play(&mut executor, &ALONE);
    assert!(n_other_rows(&play(&mut executor, OTHERWISE[1]), &expected) > 0);
}

/// Tokens with the bits of their log-probabilities.
fn bits(output: &Output) -> Vec<(u32, u32)> {
    (output.generated.iter())
        .map(|token| (token.id, token.logprob.expect("they were asked for").to_bits()))
        .collect()
}

#[test]
fn guesses_and_company_change_no_bit() {
    let phrase = [3, 8, 21, 40];
    let prompts: Vec<Vec<u32>> = (0..4)
        .map(|first| (0..6 + 4 * first).map(|at| phrase[(first + at) % 4]).collect())
        .collect();
    let params = GenerateParams {
        sampling: SamplingParams {
            n_logprobs: Some(1),
            // A text of four words, in which many drafts are right and some are wrong.
            logit_bias: phrase.map(|id| (id, 3.0)).to_vec(),
            ..SamplingParams::default()
        },
        max_tokens: Some(20),
        ..GenerateParams::default()
    };
    for (types, kv_types) in kinds("drafts on the simulator") {
        let model = model(types);
        let start = |speculation| {
            let config = EngineConfig {
                speculation,
                uses_prefix_cache: false,
                ..EngineConfig::default()
            };
            let of_model = || executor(&model, kv_types, true);
            if let Speculation::Draft { .. } = speculation {
                Engine::start_with_draft(of_model(), of_model(), config)
            } else {
                Engine::start(of_model(), config)
            }
        };
        let plain = start(Speculation::Off);
        let expected: Vec<_> = (prompts.iter())
            .map(|prompt| bits(&plain.generate(prompt, &params).unwrap()))
            .collect();
        for speculation in [
            Speculation::Off,
            Speculation::Ngram { max_draft: 5 },
            Speculation::Draft { max_draft: 3 },
        ] {
            let engine = start(speculation);
            let outputs = engine.batch_generate(&prompts, &params).unwrap();
            for (output, expected) in outputs.into_iter().zip(&expected) {
                assert_eq!(bits(&output.unwrap()), *expected, "{types:?} {speculation:?}");
            }
            let stats = engine.stats().scheduler;
            let n_accepted = stats.drafts.accepted_tokens + stats.model_drafts.accepted_tokens;
            assert_eq!(n_accepted > 0, speculation != Speculation::Off, "{speculation:?}");
        }
    }
}
