//! `conformance`: the suite that every backend must pass, on a device of choice, outside of the test runner.
//!
//! The tests run the suite everywhere on the CPU and on the simulated device; this command is for real GPUs, on machines without a compiler. A GPU
//! promises equal bits if its steps are batch-invariant, so there the claims about other rows in a batch are checked once more, by their bits;
//! elsewhere results may differ by a tolerance. Invariant: a claim that panics fails alone; the others are still checked.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    time::Instant,
};

use anyhow::ensure;
use serde_json::json;
use tokenmill_backend::Executor;
use tokenmill_cuda_exec::{CudaBackend, KvStore};
use tokenmill_model::ModelOptions;
use tokenmill_testkit::{
    TinyModel,
    conformance::{self, Company, Features, RANDOM_NETWORKS, Subject},
    engines,
};

use crate::measure::record;

/// Check what every backend must do; a non-zero exit code if a claim does not hold
#[derive(clap::Args)]
pub struct Args {
    /// Where to compute.
    #[arg(long, value_enum)]
    device: DeviceChoice,
    /// Only claims whose name contains this.
    #[arg(long, default_value = "")]
    filter: String,
    /// Also write the outcomes to this file, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// A device.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum DeviceChoice {
    /// The CPU backend.
    Cpu,
    /// The CUDA backend on the simulated device.
    Sim,
    /// The CUDA backend on the first GPU.
    Cuda,
}

/// Largest difference of a row on a GPU: products of few and of many rows add in different orders, and an activation may then round
/// to the neighbouring byte, a step of 1/127 of its block's peak; logits are of size 10 here.
const GPU_COMPANY: Company = Company::Within(0.1);

/// The claims that batch-invariant steps keep to the bit: on the other rows of a step, the chunks of a prompt and the pages.
const OF_COMPANY: &str = "company";

/// A claim's name, and whether it held.
#[derive(serde::Serialize)]
struct Outcome {
    claim: &'static str,
    /// Whether results were compared by their bits.
    #[serde(rename = "by_bits")]
    is_exact: bool,
    failure: Option<String>,
    seconds: f64,
}

/// Runs the suite.
///
/// # Errors
/// A device that cannot be opened, or claims that do not hold.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let outcomes = match args.device {
        DeviceChoice::Cpu => check(
            &Subject {
                load: |n_threads, model, options| engines::tiny(model, engines::cpu(n_threads), options),
                n_threads: &[1, 2, 3, 5],
                features: Features::All,
                n_random_networks: RANDOM_NETWORKS,
                company: Company::Bits,
                stores: |_| true,
            },
            &args.filter,
        ),
        DeviceChoice::Sim => check_gpu(
            |_, model, options| engines::tiny(model, engines::gpu(), options),
            |_, model, options| engines::tiny(model, engines::gpu().with_batch_invariance(true), options),
            &args.filter,
        ),
        DeviceChoice::Cuda => {
            crate::gpu::open()?;
            check_gpu(
                |_, model, options| engines::tiny(model, gpu(), options),
                |_, model, options| engines::tiny(model, gpu().with_batch_invariance(true), options),
                &args.filter,
            )
        }
    };
    ensure!(!outcomes.is_empty(), "no claim's name contains `{}`", args.filter);
    let n_failed = outcomes
        .iter()
        .filter(|outcome| outcome.failure.is_some())
        .count();
    let report = json!({ "claims": outcomes.len(), "failed": n_failed, "rows": outcomes });
    record::write_asked(args.json.as_deref(), &report)?;
    ensure!(
        n_failed == 0,
        "{n_failed} of {} claims do not hold",
        outcomes.len()
    );
    println!("{} claims hold", outcomes.len());
    Ok(())
}

/// Returns the first GPU, which was opened before.
fn gpu() -> CudaBackend {
    let device = crate::gpu::open().expect("the GPU was opened before");
    CudaBackend::new(device).expect("the driver loads the kernels")
}

/// Loads a network.
type Load = fn(usize, &TinyModel, &ModelOptions) -> Box<dyn Executor>;

/// Checks a GPU: all claims with the tolerance of products that add in different orders, and those about other rows in a batch by their bits if
/// steps are batch-invariant.
fn check_gpu(load: Load, load_invariant: Load, filter: &str) -> Vec<Outcome> {
    let subject = |load, company| Subject {
        load,
        n_threads: &[1, 1],
        features: Features::All,
        n_random_networks: RANDOM_NETWORKS,
        company,
        stores: KvStore::takes,
    };
    let mut outcomes = check(&subject(load, GPU_COMPANY), filter);
    outcomes.extend(check_claims(&subject(load_invariant, Company::Bits), |name| {
        name.contains(filter) && name.contains(OF_COMPANY)
    }));
    outcomes
}

fn check(subject: &Subject, filter: &str) -> Vec<Outcome> {
    check_claims(subject, |name| name.contains(filter))
}

fn check_claims(subject: &Subject, is_wanted: impl Fn(&str) -> bool) -> Vec<Outcome> {
    type Claim = fn(&Subject);
    macro_rules! claims {
        ($($claim:ident),* $(,)?) => {
            [$((stringify!($claim), conformance::$claim as Claim)),*]
        };
    }
    let claims = tokenmill_testkit::conformance_claims!(claims);
    (claims.into_iter())
        .filter(|(name, _)| is_wanted(name))
        .map(|(claim, run)| {
            let started = Instant::now();
            let failure = catch_unwind(AssertUnwindSafe(|| run(subject)))
                .err()
                .map(|payload| match payload.downcast_ref::<String>() {
                    Some(text) => text.clone(),
                    None => (payload.downcast_ref::<&str>().copied())
                        .unwrap_or("a panic without a message")
                        .to_owned(),
                });
            let seconds = started.elapsed().as_secs_f64();
            let verdict = failure.as_deref().unwrap_or("holds");
            let is_exact = subject.company == Company::Bits;
            let compared = if is_exact { "by bits" } else { "" };
            println!("{claim:<46} {compared:<8} {seconds:>7.2} s  {verdict}");
            Outcome {
                claim,
                is_exact,
                failure,
                seconds,
            }
        })
        .collect()
}
