//! [`check`]: others' measurements of cards, next to the predicted times of this project's kernels for the same work.
//!
//! Separate from the tests of `ptx-sim`, whose kernels are short enough to be written down again. Here the kernels are this project's, at the
//! measured shapes, so a ratio is the error of model and kernel together. Each ratio is stated as it is, so that a change of the model shows, and
//! `range` follows from them. Invariant: a ratio that is no longer the stated one is an error.
//!
//! Sources, on GitHub. (T) tile-ai/TileOPs, pull requests 243 (products of f16 on an H200), 1874 (W4A16, the quicker of Marlin and theirs) and 1930
//! (attention over pages, the quickest). (E) cloudrift-ai/emmy, pull request 775: `wgmma` without turns of warpgroups, 0.73 of cuBLAS, on an H100. (K) kekzl/imp,
//! issue 1954, as a review of this project cites it: products of a decode step of an 8B in 4 bits on an RTX PRO 6000, launched early, and how much
//! longer each takes than its bytes.

use std::thread;

use anyhow::{Context, ensure};
use rayon::prelude::*;
use tokenmill_backend::KvType;
use tokenmill_cuda_exec::Launches;
use tokenmill_gguf::TensorType;

use super::{
    range::{LARGE_PRODUCT_SHARE, MANY_ROWS_SHARE, OTHER_LATE_US, PRODUCT_LATE_US},
    step::{Batch, Shape, Step, simulator},
};
use crate::{
    kernel_bench::{Data, What, Workshop, estimates},
    measure::report::Table,
};

/// Predicted times, in microseconds.
#[derive(Clone, Copy)]
struct Predicted {
    us: f64,
    /// The same with all code in the caches of instructions.
    with_warm_code_us: f64,
}

/// A measurement.
struct Measured {
    what: &'static str,
    us: f64,
    work: Work,
    /// Predicted over measured, as of the last change of the model.
    stated: f64,
    /// Kind of launch for which `range` uses it.
    kind: Kind,
}

/// The work that was measured.
#[derive(Clone, Copy)]
enum Work {
    /// A launch by itself, on a device.
    Alone(&'static str, What),
    /// A product of a decode step, by its number in [`OF_STEP`]: the time beyond that of its bytes.
    OfStep(usize),
}

/// The kinds of launches that `range` knows.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Another kind of kernel, which `range` leaves out; it says why.
    Foreign,
    Product,
    LargeProduct,
    Other,
    ManyRows,
}

/// A product of rows with a matrix `[n_out, n_in]`.
const fn product(device: &'static str, ty: TensorType, shape: [usize; 2], n_rows: usize) -> Work {
    Work::Alone(device, What::Product { ty, shape, n_rows })
}

/// Attention of one token in f16, by heads of 128 that share nothing.
const ATTENTION: What = What::Decode {
    ty: KvType::F16,
    heads: [16, 16],
    n_seqs: 1,
    n_ctx: 512,
    window: None,
};

/// Microseconds in which a matrix of f16 is read at a rate in TB/s.
const fn at_rate([n_out, n_in]: [usize; 2], tb_per_s: f64) -> f64 {
    (2 * n_out * n_in) as f64 / tb_per_s / 1e6
}

const fn measured(what: &'static str, us: f64, work: Work, stated: f64, kind: Kind) -> Measured {
    Measured {
        what,
        us,
        work,
        stated,
        kind,
    }
}

use TensorType::{F16, Q4_0, Q4_K};

#[rustfmt::skip]
const MEASURED: [Measured; 10] = [
    measured("H200, 1,024 x 1,024 in f16 by one row (T)", at_rate([1024, 1024], 0.54), product("h200", F16, [1024, 1024], 1), 0.53, Kind::Other),
    measured("H200, 7,168 x 16,384 in f16 by one row (T)", at_rate([7168, 16_384], 3.47), product("h200", F16, [7168, 16_384], 1), 0.82, Kind::LargeProduct),
    measured("H200, 18,432 x 7,168 in f16 by one row (T)", at_rate([18_432, 7168], 3.80), product("h200", F16, [18_432, 7168], 1), 0.91, Kind::LargeProduct),
    measured("H200, 8,192 x 8,192 in 4 bits by one row (T)", 20.3, product("h200", Q4_0, [8192, 8192], 1), 0.46, Kind::Foreign),
    measured("H200, 7,168 x 20,480 in 4 bits by one row (T)", 40.6, product("h200", Q4_0, [7168, 20_480], 1), 0.49, Kind::Foreign),
    measured("H200, attention of one token to 512, 16 heads (T)", 6.1, Work::Alone("h200", ATTENTION), 0.77, Kind::Other),
    measured("H100, 2,048 x 2,048 by 2,048 rows (E)", 24.6 / 0.73, product("h100", Q4_K, [2048, 2048], 2048), 1.15, Kind::ManyRows),
    measured("RTX PRO 6000, output in a step, beyond its bytes (K)", 3.9, Work::OfStep(0), -0.14, Kind::Product),
    measured("RTX PRO 6000, gate and up in a step, beyond their bytes (K)", 4.8, Work::OfStep(1), 0.14, Kind::Product),
    measured("RTX PRO 6000, down in a step, beyond its bytes (K)", 3.4, Work::OfStep(2), 0.28, Kind::Product),
];

/// A measurement next to its prediction.
struct Point {
    measured: &'static Measured,
    predicted: Predicted,
}

impl Point {
    fn ratio(&self) -> f64 {
        self.predicted.us / self.measured.us
    }

    fn row(&self, table: &mut Table) {
        let Predicted {
            us,
            with_warm_code_us,
        } = self.predicted;
        let measured_us = self.measured.us;
        table.row(&[
            &self.measured.what,
            &format!("{measured_us:.1}"),
            &format!("{with_warm_code_us:.1}"),
            &format!("{:.2}", with_warm_code_us / measured_us),
            &format!("{us:.1}"),
            &format!("{:.2}", self.ratio()),
        ]);
    }
}

/// Compares all points, and the figures of `range` with them.
///
/// # Errors
/// Returns each ratio that is not the stated one, each figure that does not follow, or what cannot be launched.
pub(super) fn check() -> anyhow::Result<()> {
    let points = points()?;
    let titles = [
        "work",
        "measured us:",
        "predicted, warm code:",
        "ratio:",
        "predicted:",
        "ratio:",
    ];
    let mut table = Table::new(&titles);
    for point in &points {
        point.row(&mut table);
    }
    print!("{table}");
    let mut wrong: Vec<String> = (points.iter())
        .filter(|point| (point.ratio() - point.measured.stated).abs() > 0.0051)
        .map(|point| {
            let Measured { what, stated, .. } = point.measured;
            format!("{what}: {:.3}, and {stated} is stated", point.ratio())
        })
        .collect();
    let of = |kind: Kind| points.iter().filter(move |point| point.measured.kind == kind);
    let late_us = |kind| {
        let late = of(kind).map(|point| point.measured.us - point.predicted.us);
        late.fold(0.0, f64::max)
    };
    let share = |kind| of(kind).map(Point::ratio).fold(1.0, f64::min);
    for (name, found, stated) in [
        ("a product", late_us(Kind::Product), PRODUCT_LATE_US),
        ("another launch", late_us(Kind::Other), OTHER_LATE_US),
        ("a large product", share(Kind::LargeProduct), LARGE_PRODUCT_SHARE),
        ("a product of many rows", share(Kind::ManyRows), MANY_ROWS_SHARE),
    ] {
        println!("{name}: {found:.2}");
        if (found - stated).abs() > 0.0051 {
            wrong.push(format!(
                "the range of {name} follows from {found:.2}, and {stated} is stated"
            ));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Predicts all points. No prediction needs another, so they are made in parallel.
fn points() -> anyhow::Result<Vec<Point>> {
    let alone = || {
        (MEASURED.par_iter().map(|measured| measured.work))
            .map(|work| match work {
                Work::Alone(device, what) => alone_us(device, what).map(Some),
                Work::OfStep(_) => Ok(None),
            })
            .collect::<anyhow::Result<Vec<Option<f64>>>>()
    };
    // Steps have threads of their own: each writes a file that is named for its thread.
    let (alone, cold, warm) = thread::scope(|scope| {
        let steps = [false, true].map(|is_code_warm| scope.spawn(move || over_their_bytes(is_code_warm)));
        let alone = alone();
        let [cold, warm] = steps.map(|step| step.join().expect("an estimate does not panic"));
        (alone, cold, warm)
    });
    let (cold, warm) = (cold?, warm?);
    let points = MEASURED.iter().zip(alone?).map(|(measured, alone)| {
        let predicted = match (measured.work, alone) {
            (Work::OfStep(index), _) => Predicted {
                us: cold[index],
                with_warm_code_us: warm[index],
            },
            (_, Some(us)) => Predicted {
                us,
                with_warm_code_us: us,
            },
            (_, None) => unreachable!("it is no launch of a step"),
        };
        Point { measured, predicted }
    });
    Ok(points.collect())
}

/// Returns the microseconds of a launch in order on a GPU, whose input no cache holds. Code is in the caches of instructions, as in a benchmark,
/// which repeats a launch.
fn alone_us(device: &str, what: What) -> anyhow::Result<f64> {
    let simulator = simulator(super::device(device)?, true)?;
    let gpu = simulator.device_with_launches(Launches::InOrder);
    let mut shop = Workshop::new(&gpu, 1, 1, Data::Zeros)?;
    let launches = estimates(&simulator, &gpu, &mut shop.make(what)?, 1)?;
    Ok(launches.iter().map(|launch| launch.estimate.us).sum())
}

/// Matrices of a decode step of an 8B: output, gate and up together, down.
const OF_STEP: [[usize; 2]; 3] = [[4096, 4096], [28_672, 4096], [4096, 14_336]];

/// Returns the microseconds that these products take beyond the time of their bytes, on an RTX PRO 6000.
fn over_their_bytes(is_code_warm: bool) -> anyhow::Result<[f64; 3]> {
    let device = super::device("rtx-pro-6000")?;
    let shape = Shape {
        n_layers: Some(2),
        is_code_warm,
        ..Shape::of("llama-3-8b", "Q4_0", 512)
    };
    let steps = Step::estimate(&shape, &[Batch::Decode { n_seqs: 1 }], device, Launches::Early)?;
    let mut beyond = [0.0; 3];
    for (beyond, [n_out, n_in]) in beyond.iter_mut().zip(OF_STEP) {
        // 18 bytes for 32 weights.
        let n_bytes = (n_out * n_in) as f64 * 18.0 / 32.0;
        let is_it = |bytes: f64| (0.97..1.03).contains(&(bytes / n_bytes));
        let launch = (steps[0].launches.iter())
            .rfind(|launch| launch.module.starts_with("matvec") && is_it(launch.estimate.dram_bytes))
            .with_context(|| format!("no product reads {n_bytes} bytes"))?;
        *beyond = launch.estimate.us + launch.estimate.gap_us - n_bytes / device.dram_bytes_per_s * 1e6;
    }
    Ok(beyond)
}
