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
use tokenmill_backend::{Attention, AttentionShape, KvLayerShape, KvLayout, KvType, PAGE_TOKENS, PageGroup};
use tokenmill_cuda_exec::{
    AttentionScratch, AttentionStep, Buffer, CudaExecError, Device, KvStore, Launches, LinearInput,
    MatrixLayout, MatrixUse, Ops, Product, QuantizedRows, ScratchNeeds, Stream, Uploader,
};
use tokenmill_gguf::TensorType;
use tokenmill_sim_driver::Simulator;

use super::{
    range::{LARGE_PRODUCT_SHARE, MANY_ROWS_SHARE, OTHER_LATE_US, PRODUCT_LATE_US},
    step::{Batch, Shape, Step, registers},
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
    /// A product of rows with a matrix `[n_out, n_in]`.
    Product {
        device: &'static str,
        ty: TensorType,
        shape: [usize; 2],
        n_rows: usize,
    },
    /// Attention of one token in f16.
    Attention { n_heads: usize, n_ctx: usize },
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

/// Weights of a product by one row.
const fn by_one_row(ty: TensorType, shape: [usize; 2]) -> Work {
    Work::Product {
        device: "h200",
        ty,
        shape,
        n_rows: 1,
    }
}

/// Microseconds in which a matrix of f16 is read at a rate in TB/s.
const fn at_rate([n_out, n_in]: [usize; 2], tb_per_s: f64) -> f64 {
    (2 * n_out * n_in) as f64 / tb_per_s / 1e6
}

const MEASURED: [Measured; 10] = [
    Measured {
        what: "H200, 1,024 x 1,024 in f16 by one row (T)",
        us: at_rate([1024, 1024], 0.54),
        work: by_one_row(TensorType::F16, [1024, 1024]),
        stated: 0.53,
        kind: Kind::Other,
    },
    Measured {
        what: "H200, 7,168 x 16,384 in f16 by one row (T)",
        us: at_rate([7168, 16_384], 3.47),
        work: by_one_row(TensorType::F16, [7168, 16_384]),
        stated: 0.82,
        kind: Kind::LargeProduct,
    },
    Measured {
        what: "H200, 18,432 x 7,168 in f16 by one row (T)",
        us: at_rate([18_432, 7168], 3.80),
        work: by_one_row(TensorType::F16, [18_432, 7168]),
        stated: 0.91,
        kind: Kind::LargeProduct,
    },
    Measured {
        what: "H200, 8,192 x 8,192 in 4 bits by one row (T)",
        us: 20.3,
        work: by_one_row(TensorType::Q4_0, [8192, 8192]),
        stated: 0.46,
        kind: Kind::Foreign,
    },
    Measured {
        what: "H200, 7,168 x 20,480 in 4 bits by one row (T)",
        us: 40.6,
        work: by_one_row(TensorType::Q4_0, [7168, 20_480]),
        stated: 0.49,
        kind: Kind::Foreign,
    },
    Measured {
        what: "H200, attention of one token to 512, 16 heads (T)",
        us: 6.1,
        work: Work::Attention {
            n_heads: 16,
            n_ctx: 512,
        },
        stated: 0.77,
        kind: Kind::Other,
    },
    Measured {
        what: "H100, 2,048 x 2,048 by 2,048 rows (E)",
        us: 24.6 / 0.73,
        work: Work::Product {
            device: "h100",
            ty: TensorType::Q4_K,
            shape: [2048, 2048],
            n_rows: 2048,
        },
        stated: 1.15,
        kind: Kind::ManyRows,
    },
    Measured {
        what: "RTX PRO 6000, output in a step, beyond its bytes (K)",
        us: 3.9,
        work: Work::OfStep(0),
        stated: -0.14,
        kind: Kind::Product,
    },
    Measured {
        what: "RTX PRO 6000, gate and up in a step, beyond their bytes (K)",
        us: 4.8,
        work: Work::OfStep(1),
        stated: 0.14,
        kind: Kind::Product,
    },
    Measured {
        what: "RTX PRO 6000, down in a step, beyond its bytes (K)",
        us: 3.4,
        work: Work::OfStep(2),
        stated: 0.28,
        kind: Kind::Product,
    },
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

    fn row(&self) -> String {
        let Predicted {
            us,
            with_warm_code_us,
        } = self.predicted;
        let measured_us = self.measured.us;
        format!(
            "| {} | {measured_us:.1} | {with_warm_code_us:.1} | {:.2} | {us:.1} | {:.2} |",
            self.measured.what,
            with_warm_code_us / measured_us,
            self.ratio()
        )
    }
}

/// Compares all points, and the figures of `range` with them.
///
/// # Errors
/// Returns each ratio that is not the stated one, each figure that does not follow, or what cannot be launched.
pub(super) fn check() -> anyhow::Result<()> {
    let points = points()?;
    println!(
        "| work | measured us | predicted, warm code | ratio | predicted | ratio |\n|---|---:|---:|---:|---:|---:|"
    );
    for point in &points {
        println!("{}", point.row());
    }
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
                Work::Product {
                    device,
                    ty,
                    shape,
                    n_rows,
                } => Bench::new(device)?.product(ty, shape, n_rows).map(Some),
                Work::Attention { n_heads, n_ctx } => Bench::new("h200")?.attention(n_heads, n_ctx).map(Some),
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

/// Launches in order on a GPU that estimates. Code is in the caches of instructions, as in a benchmark, which repeats a launch.
struct Bench {
    simulator: Simulator,
    device: Device,
    ops: Ops,
}

impl Bench {
    fn new(name: &str) -> anyhow::Result<Self> {
        let profile = super::device(name)?;
        let mut assembled = registers(profile)?;
        for one in assembled.values_mut() {
            one.code_bytes = 0;
        }
        let simulator = Simulator::estimating(profile, assembled);
        let device = simulator.device_with_launches(Launches::InOrder);
        let ops = Ops::load(&device)?;
        Ok(Self {
            simulator,
            device,
            ops,
        })
    }

    /// Returns the microseconds of the launches that `launch` queues.
    fn predict(&self, launch: impl FnOnce(&Ops) -> Result<(), CudaExecError>) -> anyhow::Result<f64> {
        self.wait()?;
        self.simulator.take_estimates();
        launch(&self.ops)?;
        self.wait()?;
        let launches = self.simulator.take_estimates();
        Ok(launches.iter().map(|launch| launch.estimate.us).sum())
    }

    /// A simulated device runs what is queued when somebody waits for it.
    fn wait(&self) -> Result<(), CudaExecError> {
        let fence = self.device.fence()?;
        fence.record(Stream::Compute)?;
        fence.synchronize()
    }

    fn zeros(&self, len: usize) -> Result<Buffer<f32>, CudaExecError> {
        self.device.upload("numbers", &vec![0.0f32; len])
    }

    /// A product of rows with a matrix `[n_out, n_in]` that no cache holds.
    fn product(mut self, ty: TensorType, [n_out, n_in]: [usize; 2], n_rows: usize) -> anyhow::Result<f64> {
        const FACTOR: MatrixUse = MatrixUse {
            is_table: false,
            is_factor: true,
            is_of_experts: false,
        };
        self.ops.allow_splits()?;
        self.ops.allow_halves(n_rows.max(512), n_in)?;
        let layout = MatrixLayout::of(ty, n_out, n_in)?;
        let bytes = vec![0u8; layout.file_row_bytes() * n_out];
        let mut uploader = Uploader::new(&self.device);
        let matrix = uploader.upload(ty, [n_out, n_in], bytes.as_slice(), FACTOR)?;
        uploader.finish()?;
        let floats = self.zeros(n_rows * n_in)?;
        let mut quantized = QuantizedRows::new(&self.device, n_rows, n_in)?;
        (self.ops).quantize(n_rows, n_in, floats.view(), quantized.view_mut())?;
        let mut output = self.zeros(n_rows * n_out)?;
        self.predict(|ops| {
            let input = LinearInput {
                n_rows,
                floats: floats.view(),
                quantized: Some(quantized.view()),
            };
            let product = Product {
                matrix: &matrix,
                bias: None,
                output: output.view_mut(),
            };
            ops.linear(&input, &mut [product])
        })
    }

    /// Attention of one token to `n_ctx` tokens in f16, by heads of 128 that share nothing.
    fn attention(mut self, n_heads: usize, n_ctx: usize) -> anyhow::Result<f64> {
        const HEAD_DIM: usize = 128;
        let types = [KvType::F16; 2];
        self.ops.load_store(types)?;
        self.ops.load_runs(types)?;
        let n_pages = n_ctx / PAGE_TOKENS;
        let layout = KvLayout {
            layers: vec![KvLayerShape {
                n_kv_heads: n_heads,
                head_dim_k: HEAD_DIM,
                head_dim_v: HEAD_DIM,
                has_values_in_keys: false,
            }],
            groups: vec![PageGroup::Main],
            n_pages,
            n_host_pages: 0,
            n_window_pages: 0,
            n_window_host_pages: 0,
            key_type: KvType::F16,
            value_type: KvType::F16,
        };
        let store = KvStore::new(&self.device, &layout)?;
        let attended = AttentionShape {
            n_heads,
            n_kv_heads: n_heads,
            head_dim_k: HEAD_DIM,
            head_dim_v: HEAD_DIM,
        };
        let needs = ScratchNeeds::of([(attended, false)].into_iter(), n_pages);
        let mut scratch = AttentionScratch::new(&self.device, 1, 1, needs)?;
        let q = self.zeros(n_heads * HEAD_DIM)?;
        let mut output = self.zeros(n_heads * HEAD_DIM)?;
        let numbers = |values: &[u32]| self.device.upload("numbers", values);
        let (positions, seq_of) = (numbers(&[n_ctx as u32 - 1])?, numbers(&[0])?);
        let page_starts = numbers(&[0, n_pages as u32])?;
        let pages = numbers(&(0..n_pages as u32).collect::<Vec<_>>())?;
        let attention: Attention<Buffer<f32>> = Attention {
            layer_idx: 0,
            n_heads,
            scale: (HEAD_DIM as f32).powf(-0.5),
            is_causal: true,
            window: None,
            is_chunked: false,
            softcap: None,
            sinks: None,
            slopes: None,
        };
        self.predict(|ops| {
            let step = AttentionStep {
                positions: positions.view(),
                seq_of: seq_of.view(),
                page_starts: page_starts.view(),
                pages: pages.view(),
                max_pages: n_pages,
                is_one_each: true,
                runs: None,
                shared: None,
            };
            ops.attention(
                &attention,
                &step,
                store.layer(0),
                q.view(),
                output.view_mut(),
                None,
                &mut scratch,
            )
        })
    }
}

/// Matrices of a decode step of an 8B: output, gate and up together, down.
const OF_STEP: [[usize; 2]; 3] = [[4096, 4096], [28_672, 4096], [4096, 14_336]];

/// Returns the microseconds that these products take beyond the time of their bytes, on an RTX PRO 6000.
fn over_their_bytes(is_code_warm: bool) -> anyhow::Result<[f64; 3]> {
    let device = super::device("rtx-pro-6000")?;
    let shape = Shape {
        model: "llama-3-8b",
        recipe: "Q4_0",
        n_layers: Some(2),
        context: 512,
        kv_type: KvType::F16,
        adapter_rank: None,
        shared_prefix: 0,
        reads_apart: false,
        is_code_warm,
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
