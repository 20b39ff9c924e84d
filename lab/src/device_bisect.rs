//! `device-bisect`: finds the one kernel that is wrong on a GPU.
//!
//! The search goes from small to large: kernels one by one at a part of their size, at their whole size, in the steps of a model, and then the
//! ways of launching. Each suspected launch is recorded with its buffers, and a simulated device repeats it; the first launch whose results differ
//! has the kernel. The parts: `repeat` compares a launch with its repetition, `steps` goes through a model's launches, `ways` bisects them, `dump`
//! keeps the launch in a file. Invariant: the search ends with the first finding, since a device that failed may be lost.

mod dump;
mod repeat;
mod steps;
mod ways;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{bail, ensure};
use serde_json::{Value, json};
use tokenmill_cuda_exec::{CudaExecError, Device, RecordedLaunch, Recording, WideProducts};
use tokenmill_model::Model;
use tokenmill_sim_driver::Simulator;

use self::repeat::{Repeated, Repeater};
use crate::{
    kernel_bench::{Data, SMALL_SLICE, Shops},
    measure::record,
};

/// Find the kernel that computes something wrong on a GPU, by repeating its launches on a simulated device; a non-zero exit code if there is one
#[derive(clap::Args)]
pub struct Args {
    /// Also go through the steps of this model, and the ways of launching them.
    #[arg(long)]
    model: Option<PathBuf>,
    /// Only rows of `kernel-bench` whose name contains this.
    #[arg(long, default_value = "")]
    filter: String,
    /// Divides the rows of matrices for the first look.
    #[arg(long, default_value_t = SMALL_SLICE)]
    slice: usize,
    /// Write what was found to this file, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Write the launch with its buffers to this file.
    #[arg(long, value_name = "FILE")]
    dump: Option<PathBuf>,
    /// The dump has so many MiB at most; the largest buffers are left out of it.
    #[arg(long, default_value_t = 15)]
    dump_mib: usize,
    /// Repeat the launch of a dump on a simulated device and compare; no GPU is needed.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "dump", "json"])]
    repeat: Option<PathBuf>,
}

/// Longest wait for the device: a kernel that does not end is a finding.
const WAIT_LIMIT: Duration = Duration::from_secs(20);

/// Number of times that a step is launched in each way: a violated order does not show each time.
const N_REPEATS: usize = 8;
/// Capability of the simulated device that repeats dumps: it has the kernels of all others.
const DUMPS_CAPABILITY: (u32, u32) = (9, 0);

/// The wrong kernel.
#[derive(Debug)]
struct Culprit {
    /// Stage of the search that found it.
    stage: &'static str,
    /// The row, or the launch of the step.
    place: String,
    /// The kernel, as `module/kernel`.
    kernel: String,
    reason: String,
    /// Whether the launch was repeated with other results, or failed by itself.
    is_confirmed: bool,
    launch: Option<RecordedLaunch>,
    /// Distance of the buffers from those of the repetition.
    buffers: Value,
}

impl Culprit {
    /// Describes a launch that failed or whose results are wrong.
    fn of_launch(stage: &'static str, place: String, launch: RecordedLaunch, found: &Repeated) -> Self {
        Self {
            stage,
            place,
            kernel: format!("{}/{}", launch.module, launch.name),
            reason: found.reason(),
            is_confirmed: true,
            buffers: found.to_json(),
            launch: Some(launch),
        }
    }

    fn to_json(&self) -> Value {
        let shape = self.launch.as_ref().map(|launch| launch.shape);
        json!({
            "found": true,
            "stage": self.stage,
            "place": self.place,
            "kernel": self.kernel,
            "reason": self.reason,
            "is_confirmed": self.is_confirmed,
            "grid": shape.map(|shape| shape.grid),
            "threads": shape.map(|shape| shape.n_threads),
            "dynamic_shared_bytes": shape.map(|shape| shape.shared_bytes),
            "buffers": self.buffers,
        })
    }
}

/// Searches.
///
/// # Errors
/// A wrong kernel, which the error names; no GPU, or a file that cannot be read or written.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(path) = &args.repeat {
        return repeat_dump(path);
    }
    let model = args.model.as_ref().map(Model::open).transpose()?;
    let open = |wide| crate::gpu::open_with(wide, Recording::On);
    let found = search(&open, model.as_ref(), &args.filter, args.slice)?;
    let report = match &found {
        Some(culprit) => culprit.to_json(),
        None => json!({ "found": false }),
    };
    println!("{report:#}");
    record::write_asked(args.json.as_deref(), &report)?;
    let Some(culprit) = found else {
        println!("no kernel computes anything wrong");
        return Ok(());
    };
    if let (Some(path), Some(launch)) = (&args.dump, &culprit.launch) {
        dump::write(path, launch, args.dump_mib << 20)?;
    }
    bail!(
        "the wrong kernel is {} ({}, {}): {}",
        culprit.kernel,
        culprit.stage,
        culprit.place,
        culprit.reason
    )
}

/// Repeats the launch of a dump on a simulated device.
///
/// # Errors
/// A launch with different results, or a file that is not a dump.
pub(crate) fn repeat_dump(path: &Path) -> anyhow::Result<()> {
    let launch = dump::read(path)?;
    let kernel = format!("{}/{}", launch.module, launch.name);
    let found = Repeater::new(DUMPS_CAPABILITY).compare(&launch);
    println!("{:#}", found.to_json());
    ensure!(found.is_right(), "{kernel} is wrong: {}", found.reason());
    println!("{kernel} gave what the simulated device gives");
    Ok(())
}

/// Goes through the stages until a kernel is found. `open` opens a device that records launches.
fn search(
    open: &impl Fn(WideProducts) -> anyhow::Result<Device>,
    model: Option<&Model>,
    filter: &str,
    slice: usize,
) -> anyhow::Result<Option<Culprit>> {
    let info = open(WideProducts::WhereThere)?.info().clone();
    let is_real = info.name != Simulator::DEVICE_NAME;
    let mut repeater = Repeater::new(info.capability);
    if let Some(culprit) = in_rows(
        "kernels at a part of their size",
        open,
        &mut repeater,
        filter,
        slice,
    )? {
        return Ok(Some(culprit));
    }
    // An interpreter takes minutes for whole sizes.
    if is_real && let Some(culprit) = in_rows("kernels at their size", open, &mut repeater, filter, 1)? {
        return Ok(Some(culprit));
    }
    let Some(model) = model else { return Ok(None) };
    let device = open(WideProducts::WhereThere)?;
    device.limit_waits(Some(WAIT_LIMIT));
    let mut executor = steps::load(model, device)?;
    if let Some(culprit) = steps::search(&mut executor, &mut repeater) {
        return Ok(Some(culprit));
    }
    ways::search(&mut executor, N_REPEATS)
}

/// Returns the first row that fails, and the launch of it that is to blame.
fn in_rows(
    stage: &'static str,
    open: &impl Fn(WideProducts) -> anyhow::Result<Device>,
    repeater: &mut Repeater,
    filter: &str,
    slice: usize,
) -> anyhow::Result<Option<Culprit>> {
    let mut rows = Shops::new(open, slice, 1, Data::Made)?;
    for name in Shops::suspects(filter) {
        let device = rows.device(name)?;
        device.limit_waits(Some(WAIT_LIMIT));
        let (checked, launches) = device.launches_of(|| rows.check(name));
        let Err(error) = checked else { continue };
        println!("{stage}: {name}: {error:#}");
        // The kernel, if no launch can be repeated or differs: the last one, which the row is about.
        let last = launches.last();
        let kernel = last.map_or_else(String::new, |launch| format!("{}/{}", launch.module, launch.name));
        let is_lost = (error.downcast_ref::<CudaExecError>())
            .is_some_and(|error| matches!(error, CudaExecError::Lost { .. }));
        if is_lost {
            // A lost context stays lost until its last user is gone.
            drop((device, rows));
            match Shops::new(open, slice, 1, Data::Made) {
                Ok(again) => rows = again,
                Err(_) => return Ok(Some(unconfirmed(stage, name, kernel, &error))),
            }
        }
        let found = in_launches(stage, &mut rows, name, repeater)?;
        return Ok(Some(
            found.unwrap_or_else(|| unconfirmed(stage, name, kernel, &error)),
        ));
    }
    Ok(None)
}

fn unconfirmed(stage: &'static str, name: &str, kernel: String, error: &anyhow::Error) -> Culprit {
    Culprit {
        stage,
        place: name.to_owned(),
        kernel,
        reason: format!("{error:#}"),
        is_confirmed: false,
        launch: None,
        buffers: Value::Null,
    }
}

/// Returns the first launch of a row that failed or whose results differ from those of its repetition.
fn in_launches(
    stage: &'static str,
    rows: &mut Shops,
    name: &str,
    repeater: &mut Repeater,
) -> anyhow::Result<Option<Culprit>> {
    let device = rows.device(name)?;
    device.limit_waits(Some(WAIT_LIMIT));
    for index in 0.. {
        let (launched, record) = device.record_launch(index, || rows.launch(name));
        let Some(record) = record else { break };
        let found = repeater.compare(&record);
        if !found.is_right() {
            return Ok(Some(Culprit::of_launch(stage, name.to_owned(), record, &found)));
        }
        // A later launch caused an error after the recorded one.
        drop(launched);
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use tokenmill_cuda_exec::DeviceOptions;
    use tokenmill_sim_driver::{Defect, SimOptions, When};

    use super::*;

    fn search_with(defect: Defect, filter: &str) -> Option<Culprit> {
        let simulator = Simulator::new(&SimOptions::default());
        simulator.plant(defect);
        let open = |wide| {
            Ok(simulator.device_as(DeviceOptions {
                wide,
                recording: Recording::On,
                ..DeviceOptions::default()
            }))
        };
        search(&open, None, filter, 512).unwrap()
    }

    fn wrong(kernel: &str) -> Defect {
        Defect::Wrong {
            kernel: kernel.to_owned(),
            when: When::Always,
        }
    }

    #[test]
    fn a_wrong_kernel_is_named_also_where_it_prepares_the_launch_of_a_row() {
        let culprit = search_with(wrong("matvec_m1"), "o").unwrap();
        assert_eq!(culprit.kernel, "matvec_q4_k/matvec_m1");
        assert_eq!(culprit.place, "o");
        assert!(culprit.is_confirmed, "{}", culprit.reason);
        // A separate launch quantizes the rows of x, before the product.
        let culprit = search_with(wrong("quantize_rows"), "gate, up, 8 rows").unwrap();
        assert_eq!(culprit.kernel, "norm/quantize_rows");
    }

    #[test]
    fn a_kernel_that_is_refused_is_named_and_a_right_device_has_none() {
        let refused = Defect::Refused {
            kernel: "matvec_gated".to_owned(),
            code: 701,
            is_lost: false,
        };
        let culprit = search_with(refused, "gate, up, 8 rows").unwrap();
        assert!(culprit.kernel.ends_with("/matvec_gated_m8"), "{}", culprit.kernel);
        assert!(search_with(wrong("argmax"), "gate, up, 8 rows").is_none());
    }
}
