//! `synth` as a program of its own, to be built once and carried to machines without a compiler.
#![forbid(unsafe_code)]

use clap::Parser;

#[derive(Parser)]
#[command(name = "synth")]
struct Cli {
    #[command(flatten)]
    args: xtask::synth::Args,
}

fn main() -> anyhow::Result<()> {
    xtask::synth::run(&Cli::parse().args)
}
