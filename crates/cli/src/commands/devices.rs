//! `devices`: the devices of this machine.
//!
//! It reports the answers of the system and the driver; `doctor` tests them. Invariant: nothing stays open
//! after its query, and a machine without a GPU or a driver is a report, not an error.

#[cfg(feature = "cuda")]
mod cuda;

use std::thread;

use serde_json::{Value, json};
use tokenmill_quant::{CpuFeatures, Isa};

use crate::{failure::Failure, output};

/// Show the devices of this machine.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  tokenmill devices\n  tokenmill devices --json\n\n\
    `tokenmill doctor` also tries the GPU and says whether a model fits.")]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let gpus = Gpus::find();
    if args.json {
        return output::print_json(&Value::Array(
            [cpu_json()].into_iter().chain(gpus.json()).collect(),
        ));
    }
    output::print_sentence(&format!("CPU: {}", cpu_text()))?;
    for line in gpus.lines() {
        output::print_sentence(&line)?;
    }
    output::print_sentence(&format!("`--device auto` computes on {}", gpus.preferred()))
}

/// Threads and instruction sets.
pub(crate) fn cpu_text() -> String {
    let names = instruction_sets();
    let names = if names.is_empty() {
        "portable code only".to_owned()
    } else {
        names.join(", ")
    };
    format!("{} threads, {names}", n_threads())
}

pub(crate) fn cpu_json() -> Value {
    json!({
        "device": "CPU",
        "threads": n_threads(),
        "instruction_sets": instruction_sets(),
    })
}

fn n_threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

fn instruction_sets() -> Vec<&'static str> {
    let features = CpuFeatures::detect();
    (Isa::ALL.into_iter())
        .filter(|&isa| features.has(isa))
        .map(Isa::name)
        .collect()
}

/// The GPUs of this machine.
pub(crate) struct Gpus {
    /// CUDA version of the driver.
    pub(crate) cuda_version: Option<(u32, u32)>,
    /// Why none can be used.
    pub(crate) problem: Option<String>,
    /// Whether there is no driver, or this build does not ask for one.
    pub(crate) is_absent: bool,
    pub(crate) devices: Vec<Gpu>,
}

/// A GPU, in words.
pub(crate) struct Gpu {
    pub(crate) ordinal: usize,
    pub(crate) text: String,
    pub(crate) json: Value,
    pub(crate) is_usable: bool,
}

impl Gpus {
    /// Asks the driver.
    #[cfg(feature = "cuda")]
    pub(crate) fn find() -> Self {
        cuda::describe(&tokenmill_cuda_exec::probe())
    }

    /// A build without CUDA finds none.
    #[cfg(not(feature = "cuda"))]
    pub(crate) fn find() -> Self {
        Self {
            cuda_version: None,
            problem: Some(tokenmill::gpu::CudaLeftOut.to_string()),
            is_absent: true,
            devices: Vec::new(),
        }
    }

    /// A line for each GPU, or one that says why there is none.
    fn lines(&self) -> Vec<String> {
        match &self.problem {
            Some(problem) if self.devices.is_empty() => vec![format!("GPU: none; {problem}")],
            _ => (self.devices.iter())
                .map(|gpu| format!("GPU {}: {}", gpu.ordinal, gpu.text))
                .collect(),
        }
    }

    /// One entry for each GPU, or one that says why there is none.
    pub(crate) fn json(&self) -> Vec<Value> {
        match &self.problem {
            Some(problem) if self.devices.is_empty() => vec![json!({
                "device": "GPU",
                "usable": false,
                "problem": problem,
            })],
            _ => self.devices.iter().map(|gpu| gpu.json.clone()).collect(),
        }
    }

    /// Returns the device that `--device auto` tries first.
    pub(crate) fn preferred(&self) -> &'static str {
        match self.devices.first() {
            Some(gpu) if gpu.is_usable => {
                "GPU 0; a model that does not fit there is divided with the CPU, or the CPU computes it"
            }
            _ => "the CPU",
        }
    }
}
