//! [`Step`]: a step, launch by launch, as the simulated driver estimates it.
//!
//! Invariant: the launches are those that the program makes for this model, batch and context.

use std::{fs, path::PathBuf};

use anyhow::{Context, ensure};
use tokenmill_backend::{Executor, ExecutorLimits, ForwardBatch, KvType, PAGE_TOKENS, SeqState, TokenSource};
use tokenmill_cuda_exec::{CudaBackend, Launches};
use tokenmill_model::{Model, ModelOptions};
use tokenmill_ptx_sim::DeviceProfile;
use tokenmill_sim_driver::{LaunchEstimate, Simulator};
use tokenmill_testkit::generate::run as run_step;

use super::{adapters, range};
use crate::{
    measure::subject::{Sequences, greedy},
    ptx,
    synth::outline,
};

/// The model and the batch that a step runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape<'a> {
    pub(super) model: &'a str,
    pub(super) recipe: &'a str,
    /// Number of layers, if only the first ones are used.
    pub(super) n_layers: Option<u32>,
    /// Tokens of each sequence, including the new one.
    pub(super) context: usize,
    /// Type of the stored keys and values.
    pub(super) kv_type: KvType,
    /// Rank of the adapters of all sequences, if they have any.
    pub(super) adapter_rank: Option<usize>,
    /// Number of tokens with which all decoding sequences begin, in the same pages.
    pub(super) shared_prefix: usize,
    /// Whether each sequence reads them separately.
    pub(super) reads_apart: bool,
    /// Whether code is in the instruction caches when a launch begins.
    pub(super) is_code_warm: bool,
}

impl<'a> Shape<'a> {
    /// Returns a whole model with f16 keys and values, whose sequences share nothing.
    pub(super) const fn of(model: &'a str, recipe: &'a str, context: usize) -> Self {
        Self {
            model,
            recipe,
            n_layers: None,
            context,
            kv_type: KvType::F16,
            adapter_rank: None,
            shared_prefix: 0,
            reads_apart: false,
            is_code_warm: false,
        }
    }
}

/// The batch of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Batch {
    /// So many sequences decode a token each.
    Decode { n_seqs: usize },
    /// One sequence has so many tokens, the last of which continues.
    Prefill { n_tokens: usize },
}

impl Batch {
    pub(super) fn n_tokens(self) -> usize {
        match self {
            Self::Decode { n_seqs } => n_seqs,
            Self::Prefill { n_tokens } => n_tokens,
        }
    }

    fn n_seqs(self) -> usize {
        match self {
            Self::Decode { n_seqs } => n_seqs,
            Self::Prefill { .. } => 1,
        }
    }

    /// Returns the tokens of each of its sequences, including the new ones.
    pub(super) fn context(self, shape: &Shape<'_>) -> usize {
        match self {
            Self::Decode { .. } => shape.context,
            Self::Prefill { n_tokens } => shape.context.max(n_tokens),
        }
    }
}

/// The launches of a step.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) batch: Batch,
    pub(super) device: &'static DeviceProfile,
    /// In the order of the step.
    pub(super) launches: Vec<LaunchEstimate>,
}

/// A file that is removed when it is no longer needed.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // A file that cannot be removed takes little space: its weights are holes.
        let _ = fs::remove_file(&self.0);
    }
}

impl Step {
    /// Runs each step twice and returns the second, which finds in the L2 cache the data that the first left there.
    pub(super) fn estimate(
        shape: &Shape<'_>,
        batches: &[Batch],
        device: &'static DeviceProfile,
        begin: Launches,
    ) -> anyhow::Result<Vec<Self>> {
        let most = |of: fn(Batch) -> usize| batches.iter().map(|&batch| of(batch)).max().unwrap_or(1);
        let n_seqs = most(Batch::n_seqs);
        let context = (batches.iter())
            .map(|batch| batch.context(shape))
            .max()
            .unwrap_or(1);
        let name = format!(
            "tokenmill-{}-{}-{}-{:?}.gguf",
            shape.model,
            shape.recipe,
            std::process::id(),
            std::thread::current().id()
        );
        let file = Temporary(std::env::temp_dir().join(name));
        outline::write(shape.model, shape.recipe, shape.n_layers, &file.0)?;
        let model = Model::open(&file.0)?;
        let n_train = model.descriptor().n_ctx_train;
        ensure!(
            (1..=n_train).contains(&context),
            "{} has a context of 1 to {n_train} tokens, not {context}",
            shape.model
        );
        let sequences = Sequences {
            n_seqs,
            n_ctx: context,
        };
        let options = ModelOptions {
            kv_type: shape.kv_type,
            ..sequences.options(most(Batch::n_tokens).max(512))
        };
        let simulator = simulator(device, shape.is_code_warm)?;
        let backend =
            CudaBackend::new(simulator.device_with_launches(begin))?.with_shared_pages(!shape.reads_apart);
        let mut executor = model.load_on(backend, &options, &mut |_| {})?;
        if let Some(rank) = shape.adapter_rank {
            adapters::add(&mut executor, &model, rank)?;
        }
        let mut steps = Vec::with_capacity(batches.len());
        for &batch in batches {
            let mut inputs = inputs(
                batch,
                batch.context(shape),
                shape.shared_prefix,
                executor.limits(),
            );
            if shape.adapter_rank.is_some() {
                inputs.adapters = (0..batch.n_seqs()).map(adapters::of_sequence).collect();
            }
            let mut launches = Vec::new();
            for _ in 0..2 {
                simulator.take_estimates();
                run_step(&mut executor, &inputs)?;
                launches = simulator.take_estimates();
            }
            steps.push(Self {
                batch,
                device,
                launches,
            });
        }
        Ok(steps)
    }

    /// Returns the microseconds of the step, including the time to launch.
    pub(super) fn us(&self) -> f64 {
        let launches = self.launches.iter().map(|launch| launch.estimate.us);
        launches.sum::<f64>() + self.gaps_us()
    }

    /// Returns the most microseconds that the step may take, as far as published figures tell.
    pub(super) fn most_us(&self) -> f64 {
        self.launches.iter().map(range::most_us).sum()
    }

    /// Returns the microseconds between its launches.
    pub(super) fn gaps_us(&self) -> f64 {
        self.launches.iter().map(|launch| launch.estimate.gap_us).sum()
    }

    /// Returns the bytes that come from device memory.
    pub(super) fn dram_bytes(&self) -> f64 {
        self.launches
            .iter()
            .map(|launch| launch.estimate.dram_bytes)
            .sum()
    }
}

/// Returns the new tokens of each sequence, its last; the next is chosen greedily.
fn inputs(of: Batch, context: usize, shared_prefix: usize, limits: &ExecutorLimits) -> ForwardBatch {
    let n_pages = context.div_ceil(PAGE_TOKENS);
    // Only whole pages are shared.
    let n_shared = (shared_prefix / PAGE_TOKENS) as u32;
    let n_new = of.n_tokens() / of.n_seqs();
    let mut batch = ForwardBatch::default();
    for seq_idx in 0..of.n_seqs() {
        let first = (seq_idx * n_pages) as u32;
        let own = first + n_shared..first + n_pages as u32;
        let pages: Vec<u32> = (0..n_shared).chain(own).collect();
        batch.push_sequence(vec![TokenSource::Id(1); n_new], (context - n_new) as u32, &pages);
        if let Some(group) = limits.window_group {
            // Pages that the window has left are absent.
            let n_kept = n_pages.min((group.window + n_new - 1).div_ceil(PAGE_TOKENS) + 1);
            let first = (seq_idx * n_kept) as u32;
            let mut pages = vec![ForwardBatch::UNMAPPED_PAGE; n_pages - n_kept];
            pages.extend(first..first + n_kept as u32);
            batch.push_window_pages(&pages);
        }
        batch.want_last(greedy());
        if limits.n_states > 0 {
            batch.states.push(SeqState::own(seq_idx as u32));
        }
    }
    batch
}

/// Adds a GPU that estimates launches, by the registers and bytes of code in `kernels/ptx.lock`; with `is_code_warm`, all code is in the caches of
/// instructions.
///
/// # Errors
/// A device whose registers are not known.
pub(crate) fn simulator(device: &'static DeviceProfile, is_code_warm: bool) -> anyhow::Result<Simulator> {
    let mut assembled = ptx::assembled(device.architecture)
        .with_context(|| format!("kernels/ptx.lock has no registers for {}", device.architecture))?;
    if is_code_warm {
        for one in assembled.values_mut() {
            one.code_bytes = 0;
        }
    }
    Ok(Simulator::estimating(device, assembled))
}
