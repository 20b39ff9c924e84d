//! `pull`: fetches a model by its name, and reports time and bytes.
//!
//! `HF_ENDPOINT` and `HF_HUB_CACHE` say where from and where to, so that it measures a server on loopback, too.

use std::{env, time::Instant};

use tokenmill_hub::{HubSettings, ModelName, PullWishes, plan};

/// Pull a model and say what that took
#[derive(clap::Args)]
pub struct Args {
    /// Its name, as `OWNER/REPOSITORY:TYPE`.
    model: ModelName,
}

/// Pulls it.
///
/// # Errors
/// Fails if the hub refuses, or on a fault of the network or the disk.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let settings = HubSettings::from_variables(|name| env::var(name).ok());
    let began = Instant::now();
    let plan = plan(&args.model, &PullWishes::default(), &settings, &())?;
    let n_bytes = plan.missing_bytes;
    let model = plan.fetch(&settings, &())?;
    let seconds = began.elapsed().as_secs_f64();
    let rate = n_bytes as f64 / 1e6 / seconds;
    println!(
        "{}: {n_bytes} bytes in {seconds:.2} s, {rate:.0} MB/s",
        model.path.display()
    );
    Ok(())
}
