//! `kernel-bench`: every kernel of a step of an 8B model, at its real shape, one by one on a GPU.
//!
//! Separate from `bench device`, which measures steps: here a kernel is launched alone, many times in one graph between two events, and
//! each launch takes another copy of its weights, so that no cache holds them. The prediction of a latency model stands next to the
//! measurement where a file of predictions is given: `{"NAME": microseconds, ...}` by the names of the rows. Invariant: a simulated device
//! shows that every row runs and gives no times.

mod work;

use std::{collections::BTreeMap, fs, path::PathBuf};

use anyhow::Context;
use serde_json::{Value, json};
use tokenmill_cuda_exec::{Device, Stream};
use tokenmill_sim_driver::{SimOptions, Simulator};

use self::work::{Work, Workshop};

/// Measure every kernel of a step of an 8B model on a GPU, next to what a model of latency predicts
#[derive(clap::Args)]
pub struct Args {
    /// Where to compute; `sim` shows that every row runs and measures nothing.
    #[arg(long, value_enum, default_value_t = DeviceChoice::Cuda)]
    device: DeviceChoice,
    /// Only rows whose name contains this.
    #[arg(long, default_value = "")]
    filter: String,
    /// Launches of a row [default: 200, or 1 on a simulated device].
    #[arg(long)]
    launches: Option<usize>,
    /// Divides the rows of matrices and the vocabulary [default: 1, or 64 on a simulated device].
    #[arg(long)]
    slice: Option<usize>,
    /// Microseconds of each row that a model of latency predicts, as JSON.
    #[arg(long, value_name = "FILE")]
    predictions: Option<PathBuf>,
    /// Also write the rows to this file, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// A device.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum DeviceChoice {
    /// The simulated device.
    Sim,
    /// The first GPU.
    Cuda,
}

/// Measures.
///
/// # Errors
/// No GPU, a file that cannot be read or written, or the driver's.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let device = match args.device {
        DeviceChoice::Sim => Simulator::new(&SimOptions::default()).device(),
        DeviceChoice::Cuda => crate::gpu::open()?,
    };
    let is_measured = device.info().name != Simulator::DEVICE_NAME;
    let predictions: BTreeMap<String, f64> = match &args.predictions {
        Some(path) => {
            let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
            serde_json::from_str(&text).with_context(|| format!("{} has no predictions", path.display()))?
        }
        None => BTreeMap::new(),
    };
    let n_launches = args.launches.unwrap_or(if is_measured { 200 } else { 1 }).max(1);
    let slice = args.slice.unwrap_or(if is_measured { 1 } else { 64 }).max(1);
    let copy_bytes_per_s = if is_measured {
        Some(crate::bench::copy_bandwidth(&device)?)
    } else {
        None
    };
    println!(
        "{:<30} {:>9} {:>9} {:>8} {:>7} {:>8} {:>5} {:>6} {:>7}",
        "kernel", "us", "predicted", "GB/s", "copy %", "TFLOP/s", "regs", "local", "blocks"
    );
    let mut workshop = Workshop::new(&device, slice, if is_measured { n_launches } else { 1 })?;
    let mut rows = Vec::new();
    for name in Workshop::NAMES
        .into_iter()
        .filter(|name| name.contains(&args.filter))
    {
        let mut work = workshop.make(name).with_context(|| name.to_owned())?;
        let us = measure(&device, &mut work, n_launches)?;
        let row = Row {
            name,
            us: is_measured.then_some(us),
            predicted_us: predictions.get(name).copied(),
            work: &work,
        };
        let json = row.to_json(&device, copy_bytes_per_s)?;
        println!("{}", line(&json));
        rows.push(json);
    }
    let report = json!({
        "device": device.info().name,
        "is_measured": is_measured,
        "launches": n_launches,
        "slice": slice,
        "copy_bytes_per_s": copy_bytes_per_s,
        "kernels": rows,
    });
    if let Some(path) = &args.json {
        fs::write(path, format!("{report:#}\n"))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Microseconds of a launch: all of them in one graph, replayed twice, the second time between two events.
fn measure(device: &Device, work: &mut Work<'_>, n_launches: usize) -> anyhow::Result<f64> {
    let capture = tokenmill_cuda_exec::Capture::begin(device)?;
    for index in 0..n_launches {
        (work.launch)(index)?;
    }
    let mut graph = capture.finish()?;
    let (begun, ended) = (device.timed_fence()?, device.timed_fence()?);
    graph.replay()?;
    begun.record(Stream::Compute)?;
    graph.replay()?;
    ended.record(Stream::Compute)?;
    ended.synchronize()?;
    Ok(f64::from(begun.elapsed_ms(&ended)?) * 1e3 / n_launches as f64)
}

/// A row of the report.
struct Row<'a, 'b> {
    name: &'a str,
    us: Option<f64>,
    predicted_us: Option<f64>,
    work: &'a Work<'b>,
}

impl Row<'_, '_> {
    fn to_json(&self, device: &Device, copy_bytes_per_s: Option<f64>) -> anyhow::Result<Value> {
        let work = self.work;
        let (module, kernel) = &work.kernel;
        let found = device.kernel(module, kernel)?;
        let resources = device.resources(found)?;
        let per_s = |amount: f64| self.us.map(|us| amount / us * 1e6);
        let bytes_per_s = per_s(work.n_bytes as f64);
        Ok(json!({
            "name": self.name,
            "kernel": format!("{module}/{kernel}"),
            "shape": work.shape,
            "us": self.us,
            "predicted_us": self.predicted_us,
            "bytes": work.n_bytes,
            "bytes_per_s": bytes_per_s,
            "share_of_copy": bytes_per_s.zip(copy_bytes_per_s).map(|(rate, copy)| rate / copy),
            "flops": work.n_flops,
            "flops_per_s": per_s(work.n_flops as f64),
            "registers": resources.n_registers,
            "local_bytes": resources.local_bytes,
            "shared_bytes": resources.shared_bytes,
            "compiled_for": resources.binary_version,
            "blocks_per_multiprocessor":
                device.blocks_per_multiprocessor(found, work.n_threads, work.shared_bytes)?,
        }))
    }
}

fn line(row: &Value) -> String {
    let number = |key: &str, unit: f64, digits: usize| match row[key].as_f64() {
        Some(value) => format!("{:.digits$}", value / unit),
        None => "-".to_owned(),
    };
    format!(
        "{:<30} {:>9} {:>9} {:>8} {:>7} {:>8} {:>5} {:>6} {:>7}",
        row["name"].as_str().unwrap_or_default(),
        number("us", 1.0, 2),
        number("predicted_us", 1.0, 2),
        number("bytes_per_s", 1e9, 0),
        number("share_of_copy", 0.01, 1),
        number("flops_per_s", 1e12, 1),
        number("registers", 1.0, 0),
        number("local_bytes", 1.0, 0),
        number("blocks_per_multiprocessor", 1.0, 0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_runs_on_the_simulated_device_and_gives_no_times() {
        let folder = tempfile::tempdir().unwrap();
        let (path, predictions) = (
            folder.path().join("rows.json"),
            folder.path().join("predicted.json"),
        );
        fs::write(&predictions, r#"{"q, k, v": 5.7}"#).unwrap();
        let args = Args {
            device: DeviceChoice::Sim,
            filter: String::new(),
            launches: None,
            slice: Some(512),
            predictions: Some(predictions),
            json: Some(path.clone()),
        };
        run(&args).unwrap();
        let report: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        assert_eq!(report["is_measured"], false);
        let rows = report["kernels"].as_array().unwrap();
        let names: Vec<&str> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
        assert_eq!(names, Workshop::NAMES);
        assert!(
            rows.iter()
                .all(|row| row["us"].is_null() && row["bytes"].as_u64() > Some(0))
        );
        assert_eq!(rows[0]["predicted_us"], 5.7);
        assert!(rows[1]["predicted_us"].is_null());
    }
}
