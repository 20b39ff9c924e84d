//! `bench`: the measuring tools of the project.
//!
//! | tool | measures |
//! |---|---|
//! | `cells` | the program, compared with a peer and with the limits of the machine |
//! | `serve` | the server, compared with llama.cpp's under the same load |
//! | `engine` | the engine: batches against the bare executor, the prefix cache, the rhythm of streams, idling |
//! | `device` | a GPU: graphs against eager launches, batches, copies |
//! | `kernels` | memory traffic of the kernels, counted on the simulator |
//!
//! Each is a file. Models are synthetic, of real shapes. The parts of `cells`: `cell` lists the measurements, `side` runs the
//! programs and reads their output (`output`, `process`), `limits` samples the machine, `roofline` computes the speed that these
//! limits allow a model by format, `steps` measures how much of that single steps reach, `record` keeps the figures, `report` and
//! `chart` show them.

mod cell;
mod cells;
mod chart;
mod device;
mod engine;
mod kernels;
mod limits;
mod output;
mod process;
mod record;
mod report;
mod roofline;
mod serve;
mod side;
mod steps;

pub(crate) use device::copy_bandwidth;

use std::{env, process::Command};

use anyhow::ensure;

/// Measure speed
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    tool: Tool,
}

#[derive(clap::Subcommand)]
enum Tool {
    Cells(cells::Args),
    Serve(serve::Args),
    Engine(engine::Args),
    Device(device::Args),
    Kernels(kernels::Args),
}

/// Measures.
///
/// # Errors
/// The tool's.
pub fn run(args: &Args) -> anyhow::Result<()> {
    match &args.tool {
        Tool::Cells(args) => cells::run(args),
        Tool::Serve(args) => serve::run(args),
        Tool::Engine(args) => engine::run(args),
        Tool::Device(args) => device::run(args),
        Tool::Kernels(args) => kernels::run(args),
    }
}

/// Marks the release build as started by another build.
const IN_RELEASE: &str = "TOKENMILL_BENCH_IN_RELEASE";

/// Starts this command again as a release build, for tools that compute steps of models themselves.
fn run_in_release() -> anyhow::Result<()> {
    ensure!(
        env::var_os(IN_RELEASE).is_none(),
        "the release profile has debug assertions, with which nothing is worth measuring"
    );
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["run", "--release", "--quiet", "-p", "lab", "--bin", "lab", "--"])
        .args(env::args_os().skip(1))
        .env(IN_RELEASE, "1")
        .status()?;
    ensure!(status.success(), "the bench ended with {status}");
    Ok(())
}
