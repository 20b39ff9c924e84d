//! `device-ways`: the same tokens launched in order, captured and replayed, launched early, and both, equal to the bit.
//!
//! A GPU is compared with itself, and nothing may differ (`device-compare` has the CPU's results and a limit). The command also reports the
//! driver's share of the memory, which is estimated before. Invariant: a step that could not be captured is an error, since it would be launched
//! one by one in both cases.

use std::path::PathBuf;

use anyhow::bail;
use serde_json::json;
use tokenmill_cuda_exec::{CHECKED_TOKENS, CudaBackend, Launches, Way, compare_ways};
use tokenmill_model::{Model, ModelExecutor};

use crate::{
    gpu::DeviceChoice,
    measure::{record, subject::Sequences},
};

/// Compare the bits of a model's steps in every way of launching them; a non-zero exit code if any differs
#[derive(clap::Args)]
pub struct Args {
    /// The model
    model: PathBuf,
    /// Where to compute.
    #[arg(long, value_enum, default_value_t = DeviceChoice::Cuda)]
    device: DeviceChoice,
    /// Also write the result to this file, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Compares.
///
/// # Errors
/// Steps that differ or cannot be captured, or a model or a GPU that cannot be used.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let device = args.device.open()?;
    let mut free = vec![("opened", device.free_bytes()?)];
    let model = Model::open(&args.model)?;
    let n_ctx = CHECKED_TOKENS.min(model.descriptor().n_ctx_train);
    let options = Sequences { n_seqs: 1, n_ctx }.options(n_ctx);
    let mut executor = model.load_on(CudaBackend::new(device.clone())?, &options, &mut |_| {})?;
    free.push(("loaded", device.free_bytes()?));
    let asked = device.options();
    let ways = [!asked.runs_eagerly, asked.launches == Launches::Early];
    let set = |executor: &mut ModelExecutor, way: Way| {
        executor.backend_mut::<CudaBackend>().set_graphs(way.uses_graphs);
        executor
            .backend::<CudaBackend>()
            .device()
            .set_launches(way.launches);
    };
    let compared = compare_ways(&mut executor, ways, set, |executor| {
        executor
            .backend::<CudaBackend>()
            .capture_failure()
            .map(str::to_owned)
    });
    if compared.is_ok() {
        free.push(("captured", device.free_bytes()?));
    }
    let memory: serde_json::Map<_, _> = (free.iter())
        .map(|&(moment, n_bytes)| (format!("free_bytes_{moment}"), json!(n_bytes)))
        .collect();
    let report = json!({
        "model": args.model.file_name().map(|name| name.to_string_lossy()),
        "device": device.info().name,
        "is_captured": ways[0],
        "begins_early": ways[1],
        "finding": compared.as_ref().err().map(ToString::to_string),
        "memory": memory,
    });
    println!("{report:#}");
    record::write_asked(args.json.as_deref(), &report)?;
    match compared {
        Ok(()) => Ok(()),
        Err(finding) => bail!("{finding}"),
    }
}
