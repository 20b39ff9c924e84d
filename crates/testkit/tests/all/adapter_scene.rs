//! Random adapters of a tiny model, and sequences that have them, computed by any executor.
//!
//! Shared by the tests of adapters on the CPU and on the simulated GPU.

use std::num::NonZeroU32;

use tokenmill_backend::{
    Adapter, AdapterId, AdapterWeight, Executor, FloatMatrix, ForwardBatch, KvType, RowOutput,
};
use tokenmill_gguf::{GgufFile, TensorType};
use tokenmill_model::{Model, ModelOptions};
use tokenmill_testkit::{
    Random, TinyModel,
    generate::{ids, run},
    tiny_llama,
};

pub(crate) const N_ADAPTERS: usize = 4;

pub(crate) fn id(number: usize) -> AdapterId {
    AdapterId::new(NonZeroU32::new(number as u32).unwrap())
}

/// Returns the weights of both layers that the tests' adapters change, with their outputs and inputs.
pub(crate) fn weights(model: &Model) -> Vec<(String, usize, usize)> {
    let infos = model.weights().infos();
    (infos.into_iter())
        .filter(|info| info.dims.len() == 2 && info.name.starts_with("blk."))
        .map(|info| (info.name, info.dims[1], info.dims[0]))
        .collect()
}

pub(crate) fn random_adapter(model: &Model, rank: usize, random: &mut Random) -> Adapter {
    let mut matrix = |n: usize| FloatMatrix {
        ty: TensorType::F32,
        bytes: (0..n)
            .flat_map(|_| (0.3 * random.symmetric()).to_le_bytes())
            .collect(),
    };
    let weights = weights(model)
        .into_iter()
        .map(|(tensor, n_out, n_in)| AdapterWeight {
            tensor,
            scale: 0.5,
            rank,
            n_in,
            n_out,
            a: matrix(rank * n_in),
            b: matrix(n_out * rank),
        });
    Adapter {
        weights: weights.collect(),
    }
}

pub(crate) fn tiny(ty: TensorType) -> Model {
    let bytes = TinyModel::random(tiny_llama(), ty, 1).to_gguf().unwrap();
    Model::from_gguf(GgufFile::from_bytes(&bytes).unwrap()).unwrap()
}

pub(crate) fn options() -> ModelOptions {
    ModelOptions {
        n_ctx: Some(64),
        n_pages: Some(64),
        max_batch_seqs: 8,
        max_logit_rows: 256,
        kv_type: KvType::F32,
        ..ModelOptions::default()
    }
}

/// Runs a prompt and a further token of each sequence; returns all logits of both steps, sequence by sequence.
pub(crate) fn play(
    executor: &mut dyn Executor,
    sequences: &[(Vec<u32>, Option<AdapterId>)],
) -> Vec<Vec<f32>> {
    let n_vocab = executor.limits().n_vocab;
    let mut found = vec![Vec::new(); sequences.len()];
    for step in 0..2 {
        let mut batch = ForwardBatch::default();
        for (seq_idx, (tokens, adapter)) in sequences.iter().enumerate() {
            let n_prompt = tokens.len() - 1;
            let pages: Vec<u32> = (0..4).map(|page| seq_idx as u32 * 4 + page).collect();
            let (first, tokens) = if step == 0 {
                (0, &tokens[..n_prompt])
            } else {
                (n_prompt, &tokens[n_prompt..])
            };
            batch.push_sequence(ids(tokens), first as u32, &pages);
            batch.set_adapter(*adapter);
        }
        batch.logit_rows = (0..batch.n_tokens() as u32).collect();
        batch.outputs.resize(batch.n_tokens(), RowOutput::Logits);
        let logits = run(executor, &batch).unwrap().logits;
        for (seq_idx, found) in found.iter_mut().enumerate() {
            let rows = batch.tokens_of(seq_idx);
            found.extend_from_slice(&logits[rows.start * n_vocab..rows.end * n_vocab]);
        }
    }
    found
}

pub(crate) fn sequences(n_vocab: usize, random: &mut Random) -> Vec<(Vec<u32>, Option<AdapterId>)> {
    (0..8)
        .map(|seq_idx| {
            let n_tokens = 2 + random.below(30);
            let tokens = (0..n_tokens).map(|_| random.below(n_vocab) as u32).collect();
            (tokens, Some(id(seq_idx % N_ADAPTERS + 1)))
        })
        .collect()
}

pub(crate) fn add_all(executor: &mut dyn Executor, adapters: &[Adapter]) {
    for (idx, adapter) in adapters.iter().enumerate() {
        executor.add_adapter(id(idx + 1), adapter, 1.0).unwrap();
    }
}
