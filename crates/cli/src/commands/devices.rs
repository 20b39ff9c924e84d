//! `devices`: what this machine can compute with.

use std::thread;

use serde_json::json;
use tokenmill_quant::{CpuFeatures, Isa};

use crate::{failure::Failure, output};

/// Show what this machine can compute with.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  tokenmill devices\n  tokenmill devices --json")]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let n_threads = thread::available_parallelism().map_or(1, usize::from);
    let features = CpuFeatures::detect();
    let names: Vec<&str> = Isa::ALL
        .into_iter()
        .filter(|&isa| features.has(isa))
        .map(Isa::name)
        .collect();
    if args.json {
        return output::print_json(&json!([{
            "device": "CPU",
            "threads": n_threads,
            "instruction_sets": names,
        }]));
    }
    let names = if names.is_empty() {
        "portable code only".to_owned()
    } else {
        names.join(", ")
    };
    output::print_line(&format!("CPU: {n_threads} threads, {names}"))?;
    output::print_line("GPU: this version computes on the CPU only")
}
