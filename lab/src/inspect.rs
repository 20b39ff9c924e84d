//! Lists the kernels of a PTX file, or says which line of it cannot be run.
//!
//! `cargo run -p tokenmill-ptx-sim --example inspect -- kernels.ptx`

use tokenmill_ptx_sim::{DeviceMemory, Module};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for path in std::env::args().skip(1) {
        let text = std::fs::read_to_string(&path)?;
        let mut memory = DeviceMemory::new();
        let module = Module::load(&text, &mut memory).map_err(|error| format!("{path}: {error}"))?;
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
