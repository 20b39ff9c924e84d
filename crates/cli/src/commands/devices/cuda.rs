//! The GPUs that the CUDA driver shows, in words. A build without CUDA leaves this out.

use serde_json::{Value, json as to_json};
use tokenmill_cuda_exec::{Availability, CudaExecError, DeviceReport};

use super::{Gpu, Gpus};
use crate::numbers::size;

/// Describes the driver's answer.
pub(super) fn describe(found: &Availability) -> Gpus {
    let problem = match (&found.problem, found.cuda_version) {
        (Some(CudaExecError::NoDriver), _) | (None, None) => {
            Some("no NVIDIA driver here; the CPU computes".to_owned())
        }
        (Some(problem), _) => Some(problem.to_string()),
        (None, Some(_)) => None,
    };
    Gpus {
        cuda_version: found.cuda_version,
        problem,
        is_absent: match found.problem {
            Some(CudaExecError::NoDriver) => true,
            Some(_) => false,
            None => found.cuda_version.is_none(),
        },
        devices: (found.devices.iter())
            .map(|gpu| Gpu {
                ordinal: gpu.ordinal,
                text: text(gpu),
                json: json(gpu),
                is_usable: gpu.problem.is_none(),
            })
            .collect(),
    }
}

/// Describes a GPU, and says why it cannot be used, if so.
fn text(gpu: &DeviceReport) -> String {
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

fn json(gpu: &DeviceReport) -> Value {
    let info = &gpu.info;
    let version = |(major, minor): (u32, u32)| format!("{major}.{minor}");
    to_json!({
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

#[cfg(test)]
mod tests {
    use tokenmill_cuda_exec::DeviceInfo;

    use super::*;

    fn gpu(problem: Option<CudaExecError>) -> DeviceReport {
        DeviceReport {
            ordinal: 0,
            info: DeviceInfo {
                name: "Some GPU".to_owned(),
                uuid: None,
                capability: (7, 5),
                n_multiprocessors: 40,
                multiprocessor_shared_bytes: 64 << 10,
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
        let found = describe(&gpus(Some(old)));
        let lines = found.lines();
        assert_eq!(
            lines,
            [
                "GPU 0: Some GPU, compute capability 7.5, 16.00 GiB, driver for CUDA 12.4; cannot be used: \
              Some GPU has compute capability 7.5, at least 8.0 is needed"
            ]
        );
        assert_eq!(found.preferred(), "the CPU");
        let found = describe(&gpus(None));
        let lines = found.lines();
        assert!(lines[0].contains("8.00 GiB of 16.00 GiB free"), "{lines:?}");
        assert!(found.preferred().starts_with("GPU 0"));
        assert_eq!(found.json()[0]["usable"], true);
        let none = Availability {
            cuda_version: None,
            devices: Vec::new(),
            problem: Some(CudaExecError::NoDriver),
        };
        assert!(describe(&none).lines()[0].starts_with("GPU: none; no NVIDIA driver here"));
    }
}
