//! `inspect-ptx`: lists the kernels of PTX files, or says which line of them cannot be run.

use std::{fs, path::PathBuf};

use anyhow::Context;
use tokenmill_ptx_sim::{DeviceMemory, Module};

/// List the kernels of PTX files as the simulator reads them, or say which line it cannot run
#[derive(clap::Args)]
pub struct Args {
    /// Files of PTX.
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

/// Reads each file.
///
/// # Errors
/// A file that cannot be read, or the line of it that cannot be run.
pub fn run(args: &Args) -> anyhow::Result<()> {
    for file in &args.files {
        let path = file.display();
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {path}"))?;
        let mut memory = DeviceMemory::new();
        let module = Module::load(&text, &mut memory).with_context(|| path.to_string())?;
        for kernel in module.kernels() {
            println!(
                "{path}: {} has {} parameters, {} instructions, {} bytes of static shared memory{}",
                kernel.name(),
                kernel.param_bytes().len(),
                kernel.n_instructions(),
                kernel.static_shared_bytes(),
                if kernel.runs_blocks_in_order() {
                    ", runs in order"
                } else {
                    ""
                },
            );
        }
    }
    Ok(())
}
