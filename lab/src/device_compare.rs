//! `device-compare`: a model on the GPU against the same model on the CPU, position by position.
//!
//! (`parity` uses reference data of other programs.) Both get the same tokens, those that the CPU picks. Otherwise one position with two
//! nearly equal tokens would make all later ones differ, as in a comparison of texts. A GPU rounds sums in another order than the CPU,
//! and a rounded sum can round an activation to the adjacent byte. Invariant: logits are compared, with a limit; the likeliest tokens
//! must agree only where the logits differ by more than the limit allows.

use std::path::PathBuf;

use anyhow::ensure;
use serde_json::json;
use tokenmill_backend::{Executor, ForwardBatch, RowOutput};
use tokenmill_cpu_exec::CpuBackend;
use tokenmill_cuda_exec::CudaBackend;
use tokenmill_model::{Model, ModelOptions};
use tokenmill_quant::CpuFeatures;
use tokenmill_testkit::generate::{all_logits, greedy, run as run_step};

use crate::{
    gpu::DeviceChoice,
    measure::{record, subject::Sequences},
};

/// Compare a model on a GPU with the same model on the CPU, fed the same tokens; a non-zero exit code if logits are too far apart
#[derive(clap::Args)]
pub struct Args {
    /// The model
    model: PathBuf,
    /// Where to compute.
    #[arg(long, value_enum, default_value_t = DeviceChoice::Cuda)]
    device: DeviceChoice,
    /// Tokens that the CPU generates and both are fed.
    #[arg(long, default_value_t = 64)]
    n_gen: usize,
    /// Root mean square of the differences, as a share of that of the CPU's logits around their mean, at most.
    #[arg(long, default_value_t = 0.1)]
    limit: f64,
    /// Also write the figures to this file, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Compares.
///
/// # Errors
/// A model or a GPU that cannot be used, or logits that are too far apart.
pub fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(args.n_gen > 0, "there must be a token to compare");
    let device = args.device.open()?;
    let name = device.info().name.clone();
    let model = Model::open(&args.model)?;
    let n_vocab = model.descriptor().n_vocab;
    let prompt: Vec<u32> = (1..9).map(|i| (i * 97 % n_vocab) as u32).collect();
    let n_tokens = prompt.len() + args.n_gen;
    let options = ModelOptions {
        n_ctx: Some(n_tokens),
        max_batch_tokens: n_tokens,
        max_batch_seqs: 1,
        max_logit_rows: n_tokens,
        ..ModelOptions::default()
    };
    let mut cpu = model.load_on(
        CpuBackend::new(None, CpuFeatures::detect())?,
        &options,
        &mut |_| {},
    )?;
    let mut tokens = prompt.clone();
    tokens.extend(greedy(&mut cpu, &prompt, args.n_gen)?);
    let expected = all_logits(&mut cpu, &tokens)?;
    let mut gpu = model.load_on(CudaBackend::new(device)?, &options, &mut |_| {})?;
    let in_one_step = Difference::of(&expected, &all_logits(&mut gpu, &tokens)?, n_vocab);
    let one_by_one = Difference::of(&expected, &decoded(&mut gpu, &tokens, n_vocab)?, n_vocab);
    let report = json!({
        "model": args.model.file_name().map(|name| name.to_string_lossy()),
        "device": name,
        "positions": n_tokens,
        "limit": args.limit,
        "in_one_step": in_one_step.to_json(),
        "one_by_one": one_by_one.to_json(),
    });
    println!("{report:#}");
    record::write_asked(args.json.as_deref(), &report)?;
    for (how, found) in [("in one step", &in_one_step), ("one by one", &one_by_one)] {
        ensure!(
            found.rms <= args.limit && found.n_wrong == 0,
            "{how}: logits differ by {:.4} of their deviation (at most {}), and {} likeliest tokens are others",
            found.rms,
            args.limit,
            found.n_wrong
        );
    }
    Ok(())
}

/// Returns the logits at every position, a step for each token, so that decode steps and their graphs are compared too.
fn decoded(executor: &mut dyn Executor, tokens: &[u32], n_vocab: usize) -> anyhow::Result<Vec<f32>> {
    let mut logits = Vec::with_capacity(tokens.len() * n_vocab);
    let sequences = Sequences {
        n_seqs: 1,
        n_ctx: tokens.len(),
    };
    for (position, token) in tokens.iter().enumerate() {
        let mut batch = ForwardBatch::default();
        sequences.push(executor, &mut batch, 0, position, &[*token], RowOutput::Logits);
        logits.extend(run_step(executor, &batch)?.logits);
    }
    Ok(logits)
}

/// The difference of logits.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Difference {
    /// Root mean square of the differences over the deviation of the expected values; NaN counts as infinite.
    rms: f64,
    /// The largest difference.
    max: f64,
    /// Positions with another likeliest token.
    n_others: usize,
    /// Positions among them where the expected token leads by more than twice the largest difference.
    n_wrong: usize,
}

impl Difference {
    fn of(expected: &[f32], found: &[f32], n_vocab: usize) -> Self {
        let mean = expected.iter().map(|&x| f64::from(x)).sum::<f64>() / expected.len() as f64;
        let (mut squares, mut variance, mut max) = (0.0, 0.0, 0.0f64);
        for (&a, &b) in expected.iter().zip(found) {
            let (a, b) = (f64::from(a), f64::from(b));
            squares += (a - b).powi(2);
            variance += (a - mean).powi(2);
            max = max.max((a - b).abs());
        }
        let rms = (squares / variance).sqrt();
        let (mut n_others, mut n_wrong) = (0, 0);
        for (a, b) in expected.chunks_exact(n_vocab).zip(found.chunks_exact(n_vocab)) {
            let (best, other) = (best(a), best(b));
            if best != other {
                n_others += 1;
                n_wrong += usize::from(f64::from(a[best] - a[other]) > 2.0 * max);
            }
        }
        let is_whole = rms.is_finite() && expected.len() == found.len();
        Self {
            rms: if is_whole { rms } else { f64::INFINITY },
            max,
            n_others,
            n_wrong,
        }
    }

    fn to_json(self) -> serde_json::Value {
        json!({
            "rms_of_deviation": self.rms.is_finite().then_some(self.rms),
            "max": self.max,
            "other_tokens": self.n_others,
            "wrong_tokens": self.n_wrong,
        })
    }
}

/// Returns the likeliest token of a row.
fn best(row: &[f32]) -> usize {
    (0..row.len())
        .reduce(|best, i| if row[i] > row[best] { i } else { best })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_tie_is_no_wrong_token_and_a_changed_row_is_too_far() {
        let expected = [1.0, 0.999, -1.0, 0.0, 4.0, -4.0];
        let near = Difference::of(&expected, &[0.999, 1.0, -1.0, 0.0, 4.0, -4.0], 3);
        assert_eq!((near.n_others, near.n_wrong), (1, 0));
        assert!(near.rms < 0.001);
        let far = Difference::of(&expected, &[1.0, 0.999, -1.0, 4.0, 0.0, -4.0], 3);
        assert!(far.rms > 0.5, "{far:?}");
        let one = Difference::of(&expected, &[1.0, 0.999, -1.0, 0.0, 4.0, f32::NAN], 3);
        assert!(one.rms.is_infinite());
        assert!(Difference::of(&expected, &expected[..3], 3).rms.is_infinite());
    }
}
