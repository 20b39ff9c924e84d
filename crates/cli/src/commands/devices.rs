//! `devices`: what this machine can compute with.
//!
//! A report of what the system and the driver say; `doctor` tries it. Invariant: it opens nothing for longer than a question
//! takes, and a machine without a GPU or a driver is a report, not an error.

use std::thread;

use serde_json::{Value, json};
use tokenmill_cuda_exec::{Availability, DeviceReport, probe};
use tokenmill_quant::{CpuFeatures, Isa};

use crate::{commands::inspect::size, failure::Failure, output};

/// Show what this machine can compute with.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  tokenmill devices\n  tokenmill devices --json\n\n\
    `tokenmill doctor` also tries the GPU and says whether a model fits.")]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let gpus = probe();
    if args.json {
        return output::print_json(&Value::Array(
            [cpu_json()].into_iter().chain(gpus_json(&gpus)).collect(),
        ));
    }
    output::print_line(&format!("CPU: {}", cpu_text()))?;
    for line in gpu_lines(&gpus) {
        output::print_line(&line)?;
    }
    output::print_line(&format!("`--device auto` computes on {}", preferred(&gpus)))
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

/// A line for each GPU, or one that says why there is none.
fn gpu_lines(gpus: &Availability) -> Vec<String> {
    match &gpus.problem {
        Some(problem) if gpus.devices.is_empty() => vec![format!("GPU: none; {problem}")],
        _ => (gpus.devices.iter())
            .map(|gpu| format!("GPU {}: {}", gpu.ordinal, gpu_text(gpu)))
            .collect(),
    }
}

/// What a GPU is, and why it cannot be used where it cannot.
pub(crate) fn gpu_text(gpu: &DeviceReport) -> String {
    let info = &gpu.info;
    let memory = match gpu.free_bytes {
        Some(free) => format!(
            "{} of {} free",
            size(free as usize),
            size(info.total_bytes as usize)
        ),
        None => size(info.total_bytes as usize),
    };
    let problem = match &gpu.problem {
        Some(problem) => format!("; cannot be used: {problem}"),
        None => String::new(),
    };
    format!(
        "{}, compute capability {}.{}, {memory}, driver for CUDA {}.{}{problem}",
        info.name, info.capability.0, info.capability.1, info.cuda_version.0, info.cuda_version.1
    )
}

/// One entry for each GPU, or one that says why there is none.
pub(crate) fn gpus_json(gpus: &Availability) -> Vec<Value> {
    match &gpus.problem {
        Some(problem) if gpus.devices.is_empty() => vec![json!({
            "device": "GPU",
            "usable": false,
            "problem": problem.to_string(),
        })],
        _ => gpus.devices.iter().map(gpu_json).collect(),
    }
}

fn gpu_json(gpu: &DeviceReport) -> Value {
    let info = &gpu.info;
    let version = |(major, minor): (u32, u32)| format!("{major}.{minor}");
    json!({
        "device": format!("GPU {}", gpu.ordinal),
        "name": info.name,
        "compute_capability": version(info.capability),
        "multiprocessors": info.n_multiprocessors,
        "total_bytes": info.total_bytes,
        "free_bytes": gpu.free_bytes,
        "driver_cuda_version": version(info.cuda_version),
        "usable": gpu.problem.is_none(),
        "problem": gpu.problem.as_ref().map(ToString::to_string),
    })
}

/// What `--device auto` tries first.
pub(crate) fn preferred(gpus: &Availability) -> &'static str {
    match gpus.devices.first() {
        Some(gpu) if gpu.problem.is_none() => "GPU 0 where the model fits there, else on the CPU",
        _ => "the CPU",
    }
}

#[cfg(test)]
mod tests {
    use tokenmill_cuda_exec::{CudaExecError, DeviceInfo};

    use super::*;

    fn gpu(problem: Option<CudaExecError>) -> DeviceReport {
        DeviceReport {
            ordinal: 0,
            info: DeviceInfo {
                name: "Some GPU".to_owned(),
                capability: (7, 5),
                n_multiprocessors: 40,
                total_bytes: 16 << 30,
                cuda_version: (12, 4),
            },
            free_bytes: problem.is_none().then_some(8 << 30),
            problem,
        }
    }

    #[test]
    fn a_gpu_is_described_with_what_hinders_its_use() {
        let old = CudaExecError::ComputeCapability {
            name: "Some GPU".to_owned(),
            found: (7, 5),
        };
        let gpus = |problem: Option<CudaExecError>| Availability {
            cuda_version: Some((12, 4)),
            devices: vec![gpu(problem.clone())],
            problem,
        };
        let lines = gpu_lines(&gpus(Some(old.clone())));
        assert_eq!(
            lines,
            [
                "GPU 0: Some GPU, compute capability 7.5, 16.00 GiB, driver for CUDA 12.4; cannot be used: \
              Some GPU has compute capability 7.5, at least 8.0 is needed"
            ]
        );
        assert_eq!(preferred(&gpus(Some(old))), "the CPU");
        let lines = gpu_lines(&gpus(None));
        assert!(lines[0].contains("8.00 GiB of 16.00 GiB free"), "{lines:?}");
        assert!(preferred(&gpus(None)).starts_with("GPU 0"));
        assert_eq!(gpus_json(&gpus(None))[0]["usable"], true);
        let none = Availability {
            cuda_version: None,
            devices: Vec::new(),
            problem: Some(CudaExecError::NoDriver),
        };
        assert!(gpu_lines(&none)[0].starts_with("GPU: none; no NVIDIA driver found"));
    }
}
