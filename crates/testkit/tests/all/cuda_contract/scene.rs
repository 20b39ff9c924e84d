//! A tiny model on a simulated device, and sequences that advance together.

use std::sync::Arc;

use tokenmill_backend::{
    Executor, ForwardBatch, KvType, PAGE_TOKENS, RowOutput, SampleRow, SamplingParams, SeqState, StepError,
};
use tokenmill_cpu_exec::CpuBackend;
use tokenmill_cuda_exec::CudaBackend;
use tokenmill_gguf::TensorType;
use tokenmill_model::ModelOptions;
use tokenmill_sim_driver::{SimOptions, Simulator};
use tokenmill_testkit::{
    Random, TinyModel,
    engines::{self, Loaded},
    generate::{ids, run},
    tiny_llama,
};

pub(crate) const N_CTX: usize = 64;
/// Sequences that the executors here take.
pub(crate) const MAX_SEQS: usize = 33;
const PAGES_OF_SEQUENCE: usize = N_CTX / PAGE_TOKENS;

pub(crate) fn options() -> ModelOptions {
    ModelOptions {
        n_ctx: Some(N_CTX),
        max_batch_tokens: 1024,
        max_batch_seqs: MAX_SEQS,
        max_logit_rows: 40,
        n_pages: Some(MAX_SEQS * PAGES_OF_SEQUENCE),
        n_host_pages: 4,
        kv_type: KvType::F32,
        ..Default::default()
    }
}

pub(crate) fn model(ty: TensorType) -> TinyModel {
    TinyModel::random(tiny_llama(), ty, 21)
}

/// An executor on a simulated device of its own.
pub(crate) struct OnGpu {
    pub(crate) simulator: Simulator,
    pub(crate) executor: Loaded<CudaBackend>,
}

impl OnGpu {
    pub(crate) fn new(ty: TensorType) -> Self {
        Self::with(ty, &options(), |backend| backend)
    }

    pub(crate) fn with(
        ty: TensorType,
        options: &ModelOptions,
        change: impl FnOnce(CudaBackend) -> CudaBackend,
    ) -> Self {
        Self::of(&model(ty), options, change)
    }

    pub(crate) fn of(
        model: &TinyModel,
        options: &ModelOptions,
        change: impl FnOnce(CudaBackend) -> CudaBackend,
    ) -> Self {
        let simulator = Simulator::new(&SimOptions::default());
        let backend = engines::gpu_of(&simulator);
        let executor = engines::tiny(model, change(backend), options);
        Self { simulator, executor }
    }

    pub(crate) fn eager(ty: TensorType) -> Self {
        Self::with(ty, &options(), |backend| backend.with_graphs(false))
    }
}

pub(crate) fn on_cpu(ty: TensorType) -> Loaded<CpuBackend> {
    let model = model(ty);
    engines::tiny(&model, engines::cpu(1), &options())
}

/// A sequence with pages of its own.
#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    pub(crate) tokens: Vec<u32>,
    pub(crate) n_stored: usize,
    pub(crate) pages: Vec<u32>,
}

/// Sequences of ragged lengths.
pub(crate) fn sequences(n: usize) -> Vec<Sequence> {
    let mut random = Random::new(7);
    (0..n)
        .map(|seq_idx| {
            let first = (seq_idx * PAGES_OF_SEQUENCE) as u32;
            Sequence {
                // At least two tokens, so that the first step is not a decode step.
                tokens: (0..2 + random.below(20))
                    .map(|_| random.below(96) as u32)
                    .collect(),
                n_stored: 0,
                pages: (first..first + PAGES_OF_SEQUENCE as u32).collect(),
            }
        })
        .collect()
}

/// Returns the batch with the tokens of each sequence that are not stored yet.
pub(crate) fn batch_of(sequences: &[&mut Sequence], params: Option<&Arc<SamplingParams>>) -> ForwardBatch {
    let mut batch = ForwardBatch::default();
    for sequence in sequences {
        let new = &sequence.tokens[sequence.n_stored..];
        batch.push_sequence(ids(new), sequence.n_stored as u32, &sequence.pages);
        let start = batch.history.len() as u32;
        batch.history.extend(&sequence.tokens);
        batch.want_last(match params {
            None => RowOutput::Logits,
            Some(params) => RowOutput::Sample(SampleRow {
                params: Arc::clone(params),
                history: start..batch.history.len() as u32,
                n_prompt: 0,
                mask: tokenmill_backend::RowMask::Any,
            }),
        });
    }
    batch
}

/// Feeds each sequence and appends its likeliest next token, found in its logits, which are returned.
pub(crate) fn advance(
    executor: &mut dyn Executor,
    mut sequences: Vec<&mut Sequence>,
) -> Result<Vec<Vec<f32>>, StepError> {
    let mut batch = batch_of(&sequences, None);
    if executor.limits().n_states > 0 {
        let slots = sequences
            .iter()
            .map(|sequence| sequence.pages[0] / PAGES_OF_SEQUENCE as u32);
        batch.states = slots.map(SeqState::own).collect();
    }
    let output = run(executor, &batch)?;
    let n_vocab = executor.limits().n_vocab;
    let rows: Vec<Vec<f32>> = output.logits.chunks_exact(n_vocab).map(<[f32]>::to_vec).collect();
    for (sequence, row) in sequences.iter_mut().zip(&rows) {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let best = row
            .iter()
            .position(|&logit| logit == max)
            .expect("a finite logit");
        sequence.n_stored = sequence.tokens.len();
        sequence.tokens.push(best as u32);
    }
    Ok(rows)
}

/// Feeds each sequence and appends the token that the executor samples.
pub(crate) fn sample(
    executor: &mut dyn Executor,
    mut sequences: Vec<&mut Sequence>,
    params: &Arc<SamplingParams>,
) -> Result<(), StepError> {
    let output = run(executor, &batch_of(&sequences, Some(params)))?;
    for (sequence, token) in sequences.iter_mut().zip(&output.sampled) {
        sequence.n_stored = sequence.tokens.len();
        sequence
            .tokens
            .push(token.expect("the row samples").expect("finite logits").id);
    }
    Ok(())
}

pub(crate) fn greedy() -> Arc<SamplingParams> {
    Arc::new(SamplingParams::default())
}

pub(crate) fn tokens_of(sequences: &[Sequence]) -> Vec<Vec<u32>> {
    sequences.iter().map(|sequence| sequence.tokens.clone()).collect()
}

/// Equal to the bit.
#[track_caller]
pub(crate) fn assert_same_bits(case: &str, expected: &[Vec<f32>], found: &[Vec<f32>]) {
    let bits = |rows: &[Vec<f32>]| -> Vec<Vec<u32>> {
        rows.iter()
            .map(|row| row.iter().map(|value| value.to_bits()).collect())
            .collect()
    };
    assert_eq!(bits(expected), bits(found), "{case}");
}
