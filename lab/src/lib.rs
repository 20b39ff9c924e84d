//! The project's own tools that run its code, one module per command. Each has an `Args` that clap parses and a `run`.
//!
//! (`xtask` judges the code and so must answer before any of it is compiled.) The program is self-contained: it travels to
//! machines without a compiler, in the device pack or alone.
#![forbid(unsafe_code)]

pub mod bench;
pub mod conformance;
pub mod device_bisect;
pub mod device_compare;
pub mod device_pack;
pub mod device_report;
pub mod device_ways;
pub mod fuzz_seeds;
mod gpu;
pub mod inspect_ptx;
pub mod kernel_bench;
pub mod kernel_estimate;
pub mod mask_times;
mod measure;
pub mod parity;
mod predictions;
pub mod ptx;
pub mod pull;
pub mod read_calls;
pub mod synth;

/// Returns the root of the workspace.
fn workspace_root() -> &'static std::path::Path {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("lab lies in the workspace root")
}
