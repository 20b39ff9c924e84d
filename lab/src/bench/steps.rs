//! [`measure`]: single steps of the program, each between two samples of the machine's limits.
//!
//! The sides are compared as whole programs, but a limit that was sampled a minute before says nothing on a shared
//! machine. Invariant: the limits of a step are the mean of a sample right before and one right after it; if the machine
//! changes in between, a share of them can exceed one.

use std::time::Instant;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use tokenmill_backend::{Executor, ForwardBatch, KvType};
use tokenmill_cpu_exec::CpuBackend;
use tokenmill_model::{LoadProgress, Model, ModelOptions};
use tokenmill_quant::CpuFeatures;
use tokenmill_testkit::generate::run as run_step;

use super::{
    cell::{Kv, Work},
    limits::{Limits, Meter},
    roofline::Cost,
    side::Task,
};
use crate::measure::{
    rounds::Spread,
    subject::{Sequences, greedy, tokens},
};

/// Number of measured steps if a step is one token of each sequence.
const N_DECODE_STEPS: usize = 48;
/// The same if a step is a prompt.
const N_PREFILL_STEPS: usize = 8;
/// Number of steps before the measured ones.
const N_WARMUP_STEPS: usize = 3;
/// Tokens of a step that fills a context, the default of the program.
const FILL_TOKENS: usize = 512;

/// Share of the machine's limits that single steps reach; the limits are sampled around them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct StepFigure {
    /// Share of the lower of both limits.
    pub(super) share: Spread,
    /// Share of the bound by the instruction mix, if it applies.
    pub(super) mix_share: Option<Spread>,
    /// Tokens per second of a step alone.
    pub(super) tokens_s: Spread,
    pub(super) read_bytes_s: Spread,
    pub(super) multiplies_s: Spread,
}

impl StepFigure {
    /// Returns the limits around the steps, each by its median.
    pub(super) fn limits(&self) -> Limits {
        Limits {
            read_bytes_s: self.read_bytes_s.median,
            multiplies_s: self.multiplies_s.median,
        }
    }
}

/// Runs the steps of a task in turn with samples of the limits.
///
/// # Errors
/// The model cannot be loaded, a step fails, or there is no memory to sample the limits with.
pub(super) fn measure(task: Task<'_>, cost: Cost) -> anyhow::Result<StepFigure> {
    let meter = Meter::new(task.n_threads)?;
    let mut stepper = Stepper::load(task)?;
    let n_steps = match task.work {
        Work::Prefill { .. } => N_PREFILL_STEPS,
        _ => N_DECODE_STEPS,
    };
    for _ in 0..N_WARMUP_STEPS {
        stepper.step()?;
    }
    let (mut shares, mut mix_shares) = (Vec::new(), Vec::new());
    let (mut speeds, mut reads, mut multiplies) = (Vec::new(), Vec::new(), Vec::new());
    let mut before = meter.sample();
    for _ in 0..n_steps {
        let started = Instant::now();
        let n_tokens = stepper.step()?;
        let tokens_s = n_tokens as f64 / started.elapsed().as_secs_f64();
        let after = meter.sample();
        let limits = Limits::midpoint(before, after);
        let bound = cost.bound(limits);
        shares.push(tokens_s / bound.tokens_s());
        mix_shares.extend(bound.instruction_mix.map(|bound| tokens_s / bound));
        speeds.push(tokens_s);
        reads.push(limits.read_bytes_s);
        multiplies.push(limits.multiplies_s);
        before = after;
    }
    Ok(StepFigure {
        share: Spread::of(&shares)?,
        mix_share: (!mix_shares.is_empty())
            .then(|| Spread::of(&mix_shares))
            .transpose()?,
        tokens_s: Spread::of(&speeds)?,
        read_bytes_s: Spread::of(&reads)?,
        multiplies_s: Spread::of(&multiplies)?,
    })
}

/// A loaded model that repeats one step.
struct Stepper {
    executor: Box<dyn Executor>,
    batch: ForwardBatch,
}

impl Stepper {
    fn load(task: Task<'_>) -> anyhow::Result<Self> {
        // A step in the middle of a generation represents the average.
        let (n_seqs, n_step_tokens, n_before) = match task.work {
            Work::Prefill { n_tokens } => (1, n_tokens, 0),
            Work::Decode { n_tokens, n_depth } => (1, 1, n_depth + n_tokens / 2),
            Work::Batch { n_seqs, n_tokens } => (n_seqs, 1, n_tokens / 2),
            Work::Load => anyhow::bail!("loading is no step"),
        };
        let model = Model::open(task.model)?;
        let n_ctx = n_before + n_step_tokens;
        ensure!(
            n_ctx <= model.descriptor().n_ctx_train,
            "the model is for {} tokens",
            model.descriptor().n_ctx_train
        );
        let sequences = Sequences { n_seqs, n_ctx };
        let options = ModelOptions {
            kv_type: match task.kv {
                Kv::F16 => KvType::F16,
                Kv::Q8_0 => KvType::Q8_0,
            },
            ..sequences.options(n_step_tokens.max(FILL_TOKENS))
        };
        let backend = CpuBackend::new(Some(task.n_threads), CpuFeatures::detect())?;
        let mut executor: Box<dyn Executor> =
            Box::new(model.load_on(backend, &options, &mut |_: LoadProgress| {})?);
        let mut batch = ForwardBatch::default();
        for seq_idx in 0..n_seqs {
            let tokens = tokens(seq_idx, n_ctx, model.descriptor().n_vocab);
            let (before, step) = tokens.split_at(n_before);
            (sequences.fill(&mut *executor, seq_idx, before, FILL_TOKENS, |_| greedy()))
                .context("filling the context")?;
            sequences.push(&*executor, &mut batch, seq_idx, n_before, step, greedy());
        }
        for (state, seq_idx) in batch.states.iter_mut().zip(0..) {
            // The step is repeated, and finds the same state each time.
            state.to = n_seqs as u32 + seq_idx;
        }
        Ok(Self { executor, batch })
    }

    /// Repeats the step, over the same positions; returns its tokens.
    fn step(&mut self) -> anyhow::Result<usize> {
        run_step(&mut *self.executor, &self.batch)?;
        Ok(self.batch.tokens.len())
    }
}

#[cfg(test)]
mod tests {
    use tokenmill_gguf::TensorType;
    use tokenmill_testkit::{TinyModel, tiny_llama};

    use super::*;

    /// Tokens of a step and the position of its first, for some work on a tiny model.
    fn step_of(work: Work) -> anyhow::Result<(usize, u32)> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("tiny.gguf");
        std::fs::write(
            &path,
            TinyModel::random(tiny_llama(), TensorType::F32, 1).to_gguf()?,
        )?;
        let mut stepper = Stepper::load(Task {
            model: &path,
            work,
            kv: Kv::F16,
            n_threads: 2,
            repetitions: 1,
        })?;
        let n_tokens = stepper.step()?;
        assert_eq!(stepper.step()?, n_tokens);
        Ok((n_tokens, stepper.batch.positions[0]))
    }

    #[test]
    fn a_step_is_an_average_one_of_its_work() {
        let check = |work, expected| assert_eq!(step_of(work).unwrap(), expected);
        check(Work::prefill(20), (20, 0));
        check(Work::decode(8, 30), (1, 34));
        check(Work::batch(3, 10), (3, 5));
    }

    #[test]
    fn what_is_no_step_or_does_not_fit_is_an_error() {
        assert!(step_of(Work::Load).is_err());
        let error = step_of(Work::prefill(1 << 20)).unwrap_err();
        assert!(error.to_string().contains("the model is for"), "{error}");
    }
}
