//! `conformance`: the suite that every backend must pass, on a device of choice, outside of the test runner.
//!
//! Separate from the tests, which run it on the CPU and on the simulated device everywhere, because a real GPU is met on
//! machines without a compiler. Invariant: a claim that panics fails alone; the others are still checked.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    time::Instant,
};

use anyhow::{Context, ensure};
use serde_json::json;
use tokenmill_cuda_exec::{CudaBackend, KvStore};
use tokenmill_testkit::{
    conformance::{self, Company, Features, RANDOM_NETWORKS, Subject},
    engines,
};

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

/// What a row may differ by on a GPU: products of few and of many rows add in different orders, and an activation may then round
/// to the neighbouring byte, a step of 1/127 of its block's peak; logits are of size 10 here.
const GPU_COMPANY: Company = Company::Within(0.1);

/// A claim's name, and whether it held.
struct Outcome {
    claim: &'static str,
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
        DeviceChoice::Sim => check(
            &Subject {
                load: |_, model, options| engines::tiny(model, engines::gpu(), options),
                n_threads: &[1, 1],
                features: Features::All,
                n_random_networks: RANDOM_NETWORKS,
                company: GPU_COMPANY,
                stores: KvStore::takes,
            },
            &args.filter,
        ),
        DeviceChoice::Cuda => {
            crate::gpu::open()?;
            check(
                &Subject {
                    load: |_, model, options| {
                        let device = crate::gpu::open().expect("the GPU was opened before");
                        let backend = CudaBackend::new(device).expect("the driver loads the kernels");
                        engines::tiny(model, backend, options)
                    },
                    n_threads: &[1, 1],
                    features: Features::All,
                    n_random_networks: RANDOM_NETWORKS,
                    company: GPU_COMPANY,
                    stores: KvStore::takes,
                },
                &args.filter,
            )
        }
    };
    ensure!(!outcomes.is_empty(), "no claim's name contains `{}`", args.filter);
    let n_failed = outcomes
        .iter()
        .filter(|outcome| outcome.failure.is_some())
        .count();
    if let Some(path) = &args.json {
        let rows: Vec<_> = (outcomes.iter())
            .map(|outcome| {
                json!({ "claim": outcome.claim, "failure": outcome.failure, "seconds": outcome.seconds })
            })
            .collect();
        let report = json!({ "claims": outcomes.len(), "failed": n_failed, "rows": rows });
        std::fs::write(path, format!("{report:#}\n"))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    ensure!(
        n_failed == 0,
        "{n_failed} of {} claims do not hold",
        outcomes.len()
    );
    println!("{} claims hold", outcomes.len());
    Ok(())
}

fn check(subject: &Subject, filter: &str) -> Vec<Outcome> {
    type Claim = fn(&Subject);
    macro_rules! claims {
        ($($claim:ident),* $(,)?) => {
            [$((stringify!($claim), conformance::$claim as Claim)),*]
        };
    }
    let claims = tokenmill_testkit::conformance_claims!(claims);
    (claims.into_iter())
        .filter(|(name, _)| name.contains(filter))
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
            println!("{claim:<46} {seconds:>7.2} s  {verdict}");
            Outcome {
                claim,
                failure,
                seconds,
            }
        })
        .collect()
}
