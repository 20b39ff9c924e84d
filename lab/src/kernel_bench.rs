//! `kernel-bench`: every kernel of a step of an 8B model, at its real shape, one by one on a GPU.
//!
//! A kernel is launched alone, many times in one graph between two events (`bench device` measures steps), and each launch uses another copy of its
//! weights, so that no cache holds them. Before it is timed its results are compared with those of a plain loop. If a file of predictions is given,
//! the prediction of the timing model appears next to the measurement. The parts: `rows` lists the measurements, `work`, `products`, `attention`
//! and `sampling` make the launches, `twin` has the plain loops, `predict` runs the timing model, `shops` makes and checks rows by name.
//! Invariant: a simulated device shows that every row runs and is right, and gives no times.

mod attention;
mod predict;
mod products;
mod rows;
mod sampling;
mod shops;
mod twin;
mod work;

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use tokenmill_cuda_exec::{Device, NotedLaunch, Recording, Stream, WideProducts};
use tokenmill_sim_driver::{SimOptions, Simulator};

use self::{
    rows::{ROWS, RowSpec},
    twin::Checked,
};
use crate::{
    gpu::DeviceChoice,
    measure::{record, report::number},
    predictions::Predictions,
};

pub(crate) use self::{
    predict::{Predictor, estimates, rows as predicted_rows, wait},
    rows::What,
    sampling::drawn,
    shops::{SMALL_SLICE, Shops},
    work::{Data, HEADS, N_EMBD, N_FF, Work, Workshop},
};

/// Measure every kernel of a step of an 8B model on a GPU, next to what the timing model predicts
#[derive(clap::Args)]
pub struct Args {
    /// Where to compute; `sim` shows that every row runs and measures nothing.
    #[arg(long, value_enum, default_value_t = DeviceChoice::Cuda)]
    device: DeviceChoice,
    /// Only rows whose name contains this.
    #[arg(long, default_value = "")]
    filter: String,
    /// Only rows of this model.
    #[arg(long, value_enum, default_value_t = Model::All)]
    model: Model,
    /// Launch each row once and compare its results; measure nothing.
    #[arg(long)]
    check: bool,
    /// Launches of a row [default: 200, or 1 on a simulated device].
    #[arg(long)]
    launches: Option<usize>,
    /// Divides the rows of matrices and the vocabulary [default: 1, or 64 on a simulated device].
    #[arg(long)]
    slice: Option<usize>,
    /// Predictions of the timing model for this GPU, as `device-pack` writes them.
    #[arg(long, value_name = "FILE")]
    predictions: Option<PathBuf>,
    /// Also write the rows to this file, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Which rows there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Model {
    /// Every row.
    All,
    /// Rows of an 8B in Q4_K_M.
    #[value(name = "q4_k_m")]
    Q4KM,
}

/// Measures.
///
/// # Errors
/// No GPU, a file that cannot be read or written, predictions of other kernels, or rows that failed, after all others were measured.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let of_model = |row: &&RowSpec| args.model == Model::All || row.is_of_q4_k_m();
    let rows = ROWS.iter().filter(|row| row.name.contains(&args.filter));
    run_rows(args, rows.filter(of_model))
}

fn run_rows<'a>(args: &Args, specs: impl Iterator<Item = &'a RowSpec>) -> anyhow::Result<()> {
    let simulator = Simulator::new(&SimOptions::default());
    let open = |wide| match args.device {
        DeviceChoice::Sim => Ok(simulator.device_with_wide(wide)),
        DeviceChoice::Cuda => crate::gpu::open_with(wide, Recording::Off),
    };
    let device = open(WideProducts::WhereThere)?;
    let is_real = device.info().name != Simulator::DEVICE_NAME;
    let is_measured = is_real && !args.check;
    let predictions = match &args.predictions {
        Some(path) => Predictions::read(path)?,
        None => Predictions::default(),
    };
    let n_launches = args.launches.unwrap_or(if is_measured { 200 } else { 1 }).max(1);
    let slice = args.slice.unwrap_or(if is_real { 1 } else { 64 }).max(1);
    let copy_bytes_per_s = if is_measured {
        Some(crate::bench::copy_bandwidth(&device)?)
    } else {
        None
    };
    println!("{}", line("kernel", titles().map(str::to_owned)));
    let mut shops = Shops::new(open, slice, if is_measured { n_launches } else { 1 }, Data::Made)?;
    let (mut rows, mut failed, mut logs) = (Vec::new(), Vec::new(), BTreeMap::new());
    let mut modules = BTreeMap::new();
    for spec in specs {
        let shop = shops.of(spec);
        let device = shop.device.clone();
        // A failed row is reported and does not affect the others.
        let found = (shop.make(spec.what))
            .map_err(|error| error.context("it cannot be made"))
            .and_then(|mut work| {
                let row = if args.check {
                    check(&device, spec, &mut work, slice == 1)?
                } else {
                    measure(&device, spec, &mut work, n_launches, slice == 1)?
                };
                let log = |module: &String| Some((module.clone(), device.module_log(module)?));
                logs.extend(row.launches.iter().filter_map(|launch| log(&launch.module)));
                row.to_json(
                    &device,
                    &work,
                    is_measured,
                    predictions.kernel_us(spec.name),
                    copy_bytes_per_s,
                )
            });
        let row = match found {
            Ok(row) => {
                println!("{}", line(spec.name, figures(&row)));
                row
            }
            Err(error) => {
                println!("{:<42} failed: {error:#}", spec.name);
                failed.push(spec.name);
                json!({ "name": spec.name, "problem": format!("{error:#}") })
            }
        };
        rows.push(row);
        if is_real {
            for (module, took, is_ahead) in device.module_times() {
                let loaded = json!({ "seconds": took.as_secs_f64(), "is_compiled_ahead": is_ahead });
                modules.entry(module).or_insert(loaded);
            }
        }
        // Written after each row, so that the results survive a row that ends the program.
        let report = json!({
            "device": device.info().name,
            "is_measured": is_measured,
            "launches": n_launches,
            "slice": slice,
            "copy_bytes_per_s": copy_bytes_per_s,
            "kernels": rows,
            // Logs of the driver's compiler for the modules that were launched.
            "compiler": logs,
            "modules": modules,
        });
        record::write_asked(args.json.as_deref(), &report)?;
    }
    ensure!(!rows.is_empty(), "no row has `{}` in its name", args.filter);
    ensure!(failed.is_empty(), "rows failed: {}", failed.join("; "));
    Ok(())
}

/// A row that was launched.
struct Measured<'a> {
    spec: &'a RowSpec,
    us: f64,
    checked: Checked,
    /// All launches of one, and the one of them that the row is about.
    launches: Vec<NotedLaunch>,
    main: usize,
}

/// Launches once and compares the results.
fn check<'a>(
    device: &Device,
    spec: &'a RowSpec,
    work: &mut Work<'_>,
    is_whole: bool,
) -> anyhow::Result<Measured<'a>> {
    let (done, launches) = device.launches_of(|| (work.launch)(0));
    done?;
    let main = main_launch(spec, &launches, is_whole)?;
    let check = work.check.take().context("a row is checked once")?;
    Ok(Measured {
        spec,
        us: 0.0,
        checked: check()?,
        launches,
        main,
    })
}

/// Launches once and compares the results, then all of them in one graph, replayed twice, the second time between two events.
fn measure<'a>(
    device: &Device,
    spec: &'a RowSpec,
    work: &mut Work<'_>,
    n_launches: usize,
    is_whole: bool,
) -> anyhow::Result<Measured<'a>> {
    let checked = check(device, spec, work, is_whole)?;
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
    Ok(Measured {
        us: f64::from(begun.elapsed_ms(&ended)?) * 1e3 / n_launches as f64,
        ..checked
    })
}

/// Returns the launch that a row is about. With parts of matrices (`is_whole` is false) it may be another kernel than with whole ones, and the
/// largest launch is taken.
fn main_launch(spec: &RowSpec, launches: &[NotedLaunch], is_whole: bool) -> anyhow::Result<usize> {
    let is_named = |launch: &NotedLaunch| spec.kernels.iter().any(|kernel| launch.name.starts_with(kernel));
    if let Some(found) = launches.iter().position(is_named) {
        return Ok(found);
    }
    let size = |index: &usize| {
        let shape = launches[*index].shape;
        shape.grid.iter().product::<u32>() as usize * shape.n_threads as usize
    };
    let largest = (0..launches.len())
        .max_by_key(size)
        .context("nothing is launched")?;
    if is_whole {
        let names: Vec<&str> = launches.iter().map(|launch| launch.name.as_str()).collect();
        bail!(
            "{} is launched, and none of {}",
            names.join(", "),
            spec.kernels.join(", ")
        );
    }
    Ok(largest)
}

impl Measured<'_> {
    fn to_json(
        &self,
        device: &Device,
        work: &Work<'_>,
        is_measured: bool,
        predicted_us: Option<f64>,
        copy_bytes_per_s: Option<f64>,
    ) -> anyhow::Result<Value> {
        let us = is_measured.then_some(self.us);
        let per_s = |amount: f64| us.map(|us| amount / us * 1e6);
        let bytes_per_s = per_s(work.n_bytes as f64);
        let launches = self.launches.iter().map(|launch| -> anyhow::Result<Value> {
            let resources = device.resources(launch.kernel)?;
            let shape = launch.shape;
            Ok(json!({
                "kernel": format!("{}/{}", launch.module, launch.name),
                "grid": shape.grid,
                "threads": shape.n_threads,
                "dynamic_shared_bytes": shape.shared_bytes,
                "registers": resources.n_registers,
                "local_bytes": resources.local_bytes,
                "shared_bytes": resources.shared_bytes,
                "compiled_for": resources.binary_version,
                "blocks_per_multiprocessor": device.blocks_per_multiprocessor(
                    launch.kernel,
                    shape.n_threads,
                    shape.shared_bytes as usize,
                )?,
            }))
        });
        let launches = launches.collect::<anyhow::Result<Vec<Value>>>()?;
        let main = &launches[self.main];
        Ok(json!({
            "name": self.spec.name,
            "kernel": main["kernel"],
            "shape": work.shape,
            "us": us,
            "predicted_us": predicted_us,
            "measured_by_predicted": us.zip(predicted_us).map(|(us, predicted)| us / predicted),
            "bytes": work.n_bytes,
            "bytes_per_s": bytes_per_s,
            "share_of_copy": bytes_per_s.zip(copy_bytes_per_s).map(|(rate, copy)| rate / copy),
            "flops": work.n_flops,
            "flops_per_s": per_s(work.n_flops as f64),
            "registers": main["registers"],
            "local_bytes": main["local_bytes"],
            "shared_bytes": main["shared_bytes"],
            "compiled_for": main["compiled_for"],
            "blocks_per_multiprocessor": main["blocks_per_multiprocessor"],
            "compared": self.checked.n_compared,
            "deviation": self.checked.deviation,
            "launches": launches,
        }))
    }
}

/// Figures of a row: a title, the key in the file, and the unit and digits in which people read it.
const FIGURES: [(&str, &str, f64, usize); 10] = [
    ("us", "us", 1.0, 2),
    ("predicted", "predicted_us", 1.0, 2),
    ("ratio", "measured_by_predicted", 1.0, 2),
    ("GB/s", "bytes_per_s", 1e9, 0),
    ("copy %", "share_of_copy", 0.01, 1),
    ("TFLOP/s", "flops_per_s", 1e12, 2),
    ("registers", "registers", 1.0, 0),
    ("local", "local_bytes", 1.0, 0),
    ("blocks", "blocks_per_multiprocessor", 1.0, 0),
    ("deviation", "deviation", 1.0, 5),
];

/// Returns the titles of a row's figures.
pub(crate) fn titles() -> [&'static str; FIGURES.len()] {
    FIGURES.map(|(title, ..)| title)
}

/// Renders the figures of a row in a file; a dash for each that is not there.
pub(crate) fn figures(row: &Value) -> [String; FIGURES.len()] {
    FIGURES.map(|(_, key, unit, n_digits)| number(row[key].as_f64().map(|value| value / unit), n_digits))
}

fn line(name: &str, figures: [String; FIGURES.len()]) -> String {
    let columns = figures.map(|figure| format!("{figure:>9}"));
    format!("{name:<42} {}", columns.join(" "))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    use tokenmill_gguf::TensorType;
    use tokenmill_ptx_sim::DeviceProfile;

    use super::*;
    use crate::predictions::kernels_sha256;

    /// Returns the rows that this run tries.
    fn tried(grid: &str) -> Vec<&'static RowSpec> {
        tokenmill_testkit::cases(grid, ROWS.len())
            .map(|row| &ROWS[row])
            .collect()
    }

    #[test]
    fn every_row_runs_on_the_simulated_device_is_right_and_gives_no_times() {
        let folder = tempfile::tempdir().unwrap();
        let (path, predictions) = (
            folder.path().join("rows.json"),
            folder.path().join("predicted.json"),
        );
        let tried = tried("rows of kernel-bench that run");
        let mut predicted = json!({ "kernels_sha256": kernels_sha256(), "us": {} });
        predicted["us"][tried[0].name] = json!(5.7);
        fs::write(&predictions, predicted.to_string()).unwrap();
        let args = Args {
            device: DeviceChoice::Sim,
            filter: String::new(),
            model: Model::All,
            check: false,
            launches: None,
            slice: Some(512),
            predictions: Some(predictions),
            json: Some(path.clone()),
        };
        run_rows(&args, tried.iter().copied()).unwrap();
        let report: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        assert_eq!(report["is_measured"], false);
        let rows = report["kernels"].as_array().unwrap();
        let names: Vec<&str> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
        let expected: Vec<&str> = tried.iter().map(|row| row.name).collect();
        assert_eq!(names, expected);
        for row in rows {
            let is_right =
                row["us"].is_null() && row["bytes"].as_u64() > Some(0) && row["compared"].as_u64() > Some(0);
            assert!(is_right, "{row:#}");
        }
        assert_eq!(rows[0]["predicted_us"], 5.7);
        assert!(rows[1]["predicted_us"].is_null());
    }

    #[test]
    fn names_are_one_rows() {
        let names: BTreeSet<&str> = ROWS.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), ROWS.len());
    }

    #[test]
    fn products_have_memory_for_their_rows_in_f16_whatever_their_number() {
        let profile = DeviceProfile::find("h100").unwrap();
        let simulator = crate::kernel_estimate::simulator(profile, true).unwrap();
        let device = simulator.device();
        let mut shop = Workshop::new(&device, 1, 1, Data::Zeros).unwrap();
        let mut kernels = |n_rows| {
            let what = What::Product {
                ty: TensorType::Q4_K,
                shape: [128, N_EMBD],
                n_rows,
            };
            let mut work = shop.make(what).unwrap();
            let capture = tokenmill_cuda_exec::Capture::begin(&device).unwrap();
            let (done, launches) = device.launches_of(|| (work.launch)(0));
            done.unwrap();
            drop(capture);
            (launches.iter())
                .map(|launch| launch.module.clone())
                .collect::<Vec<_>>()
        };
        for n_rows in [2048, 64, 4096] {
            assert_eq!(
                kernels(n_rows),
                ["wide_rows", "matmul_wide_q4_k"],
                "{n_rows} rows"
            );
        }
    }

    /// Checks the rows at their real shapes, for both kinds of GPU; they are launched into a capture that is never replayed.
    #[test]
    fn every_row_launches_the_kernel_that_it_is_about() {
        for profile in ["h200", "a100"] {
            let profile = DeviceProfile::find(profile).unwrap();
            let simulator = crate::kernel_estimate::simulator(profile, false).unwrap();
            let open = |wide| Ok(simulator.device_with_wide(wide));
            let mut shops = Shops::new(open, 1, 1, Data::Zeros).unwrap();
            for spec in tried("rows of kernel-bench that are launched") {
                let shop = shops.of(spec);
                let device = shop.device.clone();
                // Launches that make the inputs are not counted: rows are quantized and chosen by launches too.
                let mut work = match shop.make(spec.what) {
                    Ok(work) => work,
                    Err(error) => panic!("{} on {}: {error:#}", spec.name, profile.name),
                };
                let capture = tokenmill_cuda_exec::Capture::begin(&device).unwrap();
                let (done, launches) = device.launches_of(|| (work.launch)(0));
                done.unwrap();
                drop(capture);
                if let Err(error) = main_launch(spec, &launches, true) {
                    panic!("{} on {}: {error:#}", spec.name, profile.name);
                }
            }
        }
    }
}
