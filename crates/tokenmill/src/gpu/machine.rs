//! [`bandwidths`]: the memory bandwidths of this machine, measured or stored, and the text that identifies a
//! machine.
//!
//! It knows no model. Invariant: everything that changes a measured bandwidth is part of that text.

use std::{fs, thread};

use serde_json::{Value, json};
use tokenmill_cpu_exec::CpuBackend;
use tokenmill_cuda_exec::{CudaBackend, DeviceInfo, measure_bandwidths};
use tokenmill_placed::Bandwidths;

use crate::{
    Error,
    compute::Compute,
    machine_memory::{available_main_bytes, memory_bytes},
    measurements::MeasuredWhen,
};

/// The bandwidths to choose a placement by: given, measured before, or measured now, which takes some tenths of a second.
///
/// # Errors
/// [`Error::Load`] and [`Error::Gpu`]: a side that cannot be measured.
pub(super) fn bandwidths(
    compute: &Compute,
    host: &CpuBackend,
    device: &CudaBackend,
) -> Result<(Bandwidths, MeasuredWhen), Error> {
    if let Some(given) = compute.measurements.bandwidths {
        return Ok((given, MeasuredWhen::Given));
    }
    let measure = || -> Result<_, Error> {
        // As much as is left for others.
        let max_bytes = available_main_bytes().map_or(usize::MAX, |n_bytes| (n_bytes / 8) as usize);
        let host = host
            .measure_read_speed(max_bytes)
            .map_err(|error| Error::Load(error.into()))?;
        let copies = measure_bandwidths(device.device()).map_err(|error| Error::Gpu(error.into()))?;
        let not_kept = (!host.is_of_main_memory()).then(|| {
            format!(
                "little memory was free, so the CPU's is of {} MiB",
                host.n_bytes >> 20
            )
        });
        let bandwidths = Bandwidths {
            host_bytes_per_s: host.bytes_per_s,
            device_bytes_per_s: copies.device_bytes_per_s,
            link_bytes_per_s: copies.link_bytes_per_s,
            crossing_ns: copies.crossing_ns,
        };
        Ok((bandwidths, not_kept))
    };
    let subject = machine(compute, device);
    let measurements = compute.measurements.of_load(compute.is_quiet);
    measurements.find_or_try("bandwidths", &subject, from_json, to_json, measure)
}

/// The machine, its GPU and how many threads compute where.
pub(super) fn machine(compute: &Compute, device: &CudaBackend) -> String {
    let info = device.device().info();
    // Not all of the memory is the system's to give away, and a kernel may keep more of it than the last one.
    let memory_gib = memory_bytes().unwrap_or(0).div_ceil(1 << 30);
    let threads = compute
        .n_threads
        .map_or_else(|| "all".to_owned(), |n| n.to_string());
    format!(
        "{} with {} processors and {memory_gib} GiB, {threads} threads at {:?}, {:?}; {}, {}, compute capability {:?}, {} bytes, driver for CUDA {:?}",
        processor(),
        thread::available_parallelism().map_or(0, usize::from),
        compute.places,
        compute.cpu_features,
        info.name,
        card(info, device.device().ordinal()),
        info.capability,
        info.total_bytes,
        info.cuda_version,
    )
}

/// Which of several cards that are alike it is, since they may be in slots that are not: by what the driver tells them apart by, which stays
/// with the card whichever the driver shows, or by its number.
pub(super) fn card(info: &DeviceInfo, ordinal: usize) -> String {
    match info.uuid {
        Some(uuid) => format!("UUID {:032x}", u128::from_be_bytes(uuid)),
        None => format!("number {ordinal}"),
    }
}

/// The processor as the system calls it.
fn processor() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    name_of(&cpuinfo).unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// The name of the first processor in `/proc/cpuinfo`; on ARM the number of its kind.
fn name_of(cpuinfo: &str) -> Option<String> {
    let field = |name: &str| {
        (cpuinfo.lines())
            .filter_map(|line| line.split_once(':'))
            .find(|(key, _)| key.trim() == name)
            .map(|(_, value)| value.trim().to_owned())
    };
    field("model name").or_else(|| field("CPU part"))
}

fn to_json(bandwidths: &Bandwidths) -> Value {
    json!({
        "host_bytes_per_s": bandwidths.host_bytes_per_s,
        "device_bytes_per_s": bandwidths.device_bytes_per_s,
        "link_bytes_per_s": bandwidths.link_bytes_per_s,
        "crossing_ns": bandwidths.crossing_ns,
    })
}

fn from_json(values: &Value) -> Option<Bandwidths> {
    let bandwidths = Bandwidths {
        host_bytes_per_s: values["host_bytes_per_s"].as_u64()?,
        device_bytes_per_s: values["device_bytes_per_s"].as_u64()?,
        link_bytes_per_s: values["link_bytes_per_s"].as_u64()?,
        crossing_ns: values["crossing_ns"].as_u64()?,
    };
    bandwidths.is_usable().then_some(bandwidths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidths_are_read_as_they_were_written() {
        let written: Bandwidths = "gpu=900,cpu=40,link=25,crossing=15".parse().unwrap();
        assert_eq!(from_json(&to_json(&written)), Some(written));
        for (name, value) in [
            ("link_bytes_per_s", json!(0)),
            ("crossing_ns", json!(-1)),
            ("crossing_ns", json!(u64::MAX)),
            ("link_bytes_per_s", json!(u64::MAX)),
            ("host_bytes_per_s", Value::Null),
        ] {
            let mut values = to_json(&written);
            values[name] = value;
            assert_eq!(from_json(&values), None, "{name}");
        }
    }

    #[test]
    fn cards_are_told_apart_by_uuid_and_else_by_number() {
        let with = |uuid| DeviceInfo {
            name: "GPU".to_owned(),
            uuid,
            capability: (9, 0),
            n_multiprocessors: 1,
            multiprocessor_shared_bytes: 1,
            total_bytes: 1,
            cuda_version: (12, 4),
        };
        let [one, other] = [1, 2].map(|n| with(Some([n; 16])));
        assert_eq!(card(&one, 0), card(&one, 1));
        assert_ne!(card(&one, 0), card(&other, 0));
        assert_ne!(card(&with(None), 0), card(&with(None), 1));
    }

    #[test]
    fn a_processor_has_a_name() {
        let check = |cpuinfo: &str, expected: Option<&str>| {
            assert_eq!(name_of(cpuinfo).as_deref(), expected, "{cpuinfo}");
        };
        check(
            "processor\t: 0\nmodel name\t: A: B\nmodel name\t: C\n",
            Some("A: B"),
        );
        check("processor\t: 0\nCPU part\t: 0xd40\n", Some("0xd40"));
        check("", None);
    }
}
