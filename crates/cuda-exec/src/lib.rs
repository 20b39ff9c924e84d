//! The CUDA executor: memory, kernels, quantized matrices, paged keys and values, and captured graphs of one GPU.
//!
//! [`Device`] opens a GPU (the driver is loaded at run time, so the same binary runs without one), [`Uploader`] moves
//! quantized weights as GGUF files hold them, [`Ops`] has the operations, [`Capture`] records a sequence of them once and
//! [`Graph`] replays it. [`probe`] lists the machine's GPUs, and why one would not be used.
//!
//! The key decision is that the driver is a table of its functions, found by name: [`Api`]. Tests find them in
//! `tokenmill-sim-driver`, which interprets the shipped kernels on the CPU. So every line of this crate, the calls of the driver
//! included, and every kernel is tested on machines without a GPU.
//!
//! ```
//! use tokenmill_cuda_exec::{
//!     Capture, LinearInput, MatrixUse, Ops, Product, QuantizedRows, Uploader,
//! };
//! use tokenmill_gguf::TensorType;
//! use tokenmill_sim_driver::{SimOptions, Simulator};
//!
//! // On a GPU: `Device::open(0)?`.
//! let device = Simulator::new(&SimOptions::default()).device();
//! let ops = Ops::load(&device)?;
//!
//! // A matrix of one row of 256 weights in Q4_K: all scales 1, minima 0, every weight 3.
//! let mut row = vec![0u8; 144];
//! row[0..2].copy_from_slice(&[0x00, 0x3c]); // d = 1 as f16
//! row[4..8].fill(1); // scales of the first four groups
//! row[12..16].fill(1); // and of the last four
//! row[16..].fill(0x33);
//! let mut uploader = Uploader::new(&device);
//! let usage = MatrixUse { is_table: false, is_factor: true, is_of_experts: false };
//! let matrix = uploader.upload(TensorType::Q4_K, [1, 256], &row, usage)?;
//! uploader.finish()?;
//!
//! // Its product with a row of ones, recorded and not yet run.
//! let mut x = device.upload("input", &[1.0f32; 256])?;
//! let mut rows = QuantizedRows::new(&device, 1, 256)?;
//! let mut y = device.alloc::<f32>("output", 1)?;
//! let capture = Capture::begin(&device)?;
//! ops.quantize(1, 256, x.view(), rows.view_mut())?;
//! let input = LinearInput { n_rows: 1, floats: x.view(), quantized: Some(rows.view()) };
//! ops.linear(&input, &mut [Product { matrix: &matrix, bias: None, output: y.view_mut() }])?;
//! let mut graph = capture.finish()?;
//!
//! graph.replay()?;
//! assert!((device.download(y.view())?[0] - 768.0).abs() < 0.1);
//! device.upload_to(&[2.0; 256], &x.view_mut())?;
//! graph.replay()?;
//! assert!((device.download(y.view())?[0] - 1536.0).abs() < 0.2);
//! # Ok::<(), tokenmill_cuda_exec::CudaExecError>(())
//! ```

#![deny(unsafe_code)]

mod backend;
mod bands;
mod bandwidths;
mod checks;
#[expect(
    unsafe_code,
    reason = "the driver layer: the one place that calls CUDA and turns addresses into safe values"
)]
mod driver;
mod error;
mod families;
mod graph_cache;
mod half_bands;
mod kv;
mod layout;
mod matrix;
pub mod modules;
mod ops;
mod parts;
mod planes;
mod self_test;
mod states;
mod strips;
mod wide;

pub use backend::{CudaBackend, CudaBuffer};
pub use bands::{BandHeight, Bands, ManyRows, ProductRoom};
pub use bandwidths::{CopySpeeds, measure_bandwidths};
pub use checks::{
    CHECKED_TOKENS, Finding, FirstUse, HeadsNeed, Needs, StepDown, Way, check_kernels, compare_steps,
    compare_ways,
};
pub use driver::{
    Api, Args, Availability, Buffer, Buffers, Capture, Carveout, Device, DeviceInfo, DeviceOptions,
    DeviceReport, Fence, Graph, Kernel, KernelResources, LaunchShape, Launches, NcclApi, NcclRank,
    NotedLaunch, PageRows, Pinned, PinnedCopies, RecordedArgument, RecordedBuffer, RecordedLaunch, Recording,
    SharedView, Snapshot, Stream, View, ViewMut, WideProducts, buffer_bytes, has_driver, probe, probe_with,
};
pub use error::CudaExecError;
pub use families::{Family, families};
pub use graph_cache::{GraphCache, GraphPlan};
pub use half_bands::HalfBands;
pub use kv::{KvLayer, KvLayerMut, KvStore};
pub use layout::{LayoutError, MatrixLayout, Plane};
pub use matrix::{Matrix, MatrixUse, Uploader};
pub use modules::{Cubins, ModuleTexts};
pub use ops::{
    AdaptedProduct, AdapterTable, AdapterTiles, ArgmaxScratch, AttentionScratch, AttentionStep, CarriedRows,
    Change, ChangedRows, ColumnsView, DecodePlan, DeviceRoutes, ExpertRows, GatedProduct, LinearInput,
    MAX_SAMPLED_VOCAB, NO_TOKEN, NetRows, NewRows, NormedInput, Ops, PrefillTiles, Product, Q8Scale,
    QuantizedMut, QuantizedRows, QuantizedView, RopeTargets, RouteCounts, SampleInputs, SampleOutputs,
    SamplePlan, SampleRecord, SampleScratch, ScanRows, ScratchNeeds, SharedPages, StateRuns, StepPlaces,
    TokenIds, TokenRuns, Visible,
};
pub use self_test::self_test;
pub use states::{SLOT_RECORD_WORDS, StateLayerMut, StateSlots};
pub use strips::FewRows;
pub use wide::{Wide, WideCut};

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
