//! The project's own tools, one module per command. Each has an `Args` that clap parses and a `run`.
//!
//! A library besides the binary, so that a command can also be built alone: `synth` travels to machines without a
//! compiler.
#![forbid(unsafe_code)]

pub mod bench;
pub mod ci;
pub mod conformance;
pub mod device_compare;
pub mod device_pack;
pub mod device_report;
mod gpu;
pub mod kernel_bench;
pub mod kernel_estimate;
pub mod parity;
mod predictions;
pub mod ptx;
pub mod release;
pub mod synth;
pub mod tidy;

/// The root of the workspace.
fn workspace_root() -> &'static std::path::Path {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the workspace root")
}
