//! Adapters of an estimated step: four of one rank, which the sequences use in turn.
//!
//! Invariant: they change every matrix of the layers, so their cost is the maximum for adapters of their rank.

use std::num::NonZeroU32;

use anyhow::Context;
use tokenmill_backend::{Adapter, AdapterId, AdapterWeight, Executor, FloatMatrix};
use tokenmill_gguf::TensorType;
use tokenmill_model::Model;

const N_ADAPTERS: usize = 4;

/// Returns the adapter of a sequence.
pub(super) fn of_sequence(seq_idx: usize) -> Option<AdapterId> {
    NonZeroU32::new((seq_idx % N_ADAPTERS) as u32 + 1).map(AdapterId::new)
}

/// Gives an executor the adapters, in F16.
pub(super) fn add(executor: &mut impl Executor, model: &Model, rank: usize) -> anyhow::Result<()> {
    let matrix = |len: usize| FloatMatrix {
        ty: TensorType::F16,
        bytes: vec![0; 2 * len],
    };
    let weights = (model.weights().infos().into_iter())
        .filter(|info| info.dims.len() == 2 && info.name.starts_with("blk."))
        .map(|info| {
            let [n_in, n_out] = [info.dims[0], info.dims[1]];
            AdapterWeight {
                tensor: info.name,
                scale: 1.0,
                rank,
                n_in,
                n_out,
                a: matrix(rank * n_in),
                b: matrix(n_out * rank),
            }
        });
    let adapter = Adapter {
        weights: weights.collect(),
    };
    for adapter_idx in 0..N_ADAPTERS {
        let id = of_sequence(adapter_idx).context("adapters are counted from 1")?;
        executor.add_adapter(id, &adapter, 1.0)?;
    }
    Ok(())
}
