//! The operations: launches of the kernels, with their sizes checked.
//!
//! One file an operation family, named like its kernel's source. Invariant: a launch depends only on its arguments' sizes, allocates
//! nothing and never waits, so any sequence of operations can be captured.

mod adapters;
mod argmax;
mod attention;
mod attention_decode;
mod attention_prefill;
#[cfg(test)]
mod cut_launches;
mod elementwise;
mod embed;
mod experts;
mod halves;
mod latent;
mod layers;
mod linear;
mod norm;
mod normed;
mod recurrence;
mod rope_kv;
mod sample;
mod shared_attention;
mod streams;
mod turn_attention;

use std::{mem::size_of, sync::Mutex};

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use tokenmill_backend::KvType;

use crate::{
    Args, Buffer, Device, FewRows, Kernel, LaunchShape, View, ViewMut,
    error::{CudaExecError, Result},
    half_bands::HalfRows,
    modules::{PAIRS, WIDE_ROWS, pair_name},
    parts::Parts,
    wide,
};

pub use adapters::{AdaptedProduct, AdapterTable, AdapterTiles, Change, ChangedRows};
pub use argmax::{ArgmaxScratch, NO_TOKEN};
pub use attention::{AttentionScratch, AttentionStep, ScratchNeeds, TokenRuns};
pub use attention_decode::{DecodePlan, Visible};
pub use attention_prefill::PrefillTiles;
pub use embed::TokenIds;
pub use experts::{CarriedRows, DeviceRoutes, ExpertRows, RouteCounts};
pub(crate) use latent::check_heads;
pub use linear::{GatedProduct, LinearInput, Product};
pub use normed::NormedInput;
pub use recurrence::{ColumnsView, NetRows, ScanRows, StateRuns};
pub use rope_kv::{RopeTargets, StepPlaces};
pub use sample::{MAX_SAMPLED_VOCAB, SampleInputs, SampleOutputs, SamplePlan, SampleRecord, SampleScratch};
pub use shared_attention::SharedPages;
pub use turn_attention::NewRows;

/// The modules of every network, which a driver compiles in parallel.
const MODULES: [&str; 10] = [
    "argmax",
    "attention_decode",
    "attention_prefill",
    "elementwise",
    "halves",
    "layers",
    "norm",
    "rope_kv",
    "route",
    "sample",
];

/// The kernels for a store with keys and values of certain types.
#[derive(Clone, Debug)]
struct StoreKernels {
    rope_kv: Kernel,
    /// Kernels of [`attention_decode::kernels`].
    attention: Vec<Kernel>,
    /// Kernels that also rotate queries and keys, if they exist.
    turned: Vec<Kernel>,
}

/// Returns the index of a store's types among the kernels.
fn store_code(types: [KvType; 2]) -> usize {
    match types {
        [KvType::E4M3, KvType::E4M3] => N_STORES - 1,
        [keys, values] => 3 * type_code(keys) + type_code(values),
    }
}

/// Returns a type's number in kernels for mixed types (`mixed.cuh`).
fn type_code(ty: KvType) -> usize {
    match ty {
        KvType::F16 => 0,
        KvType::F32 => 1,
        KvType::Q8_0 => 2,
        KvType::E4M3 | KvType::Q4_0 => unreachable!("a store of this type is refused when it is made"),
    }
}

/// Returns the suffix of modules for a KV cache; all pairs of two different types share one.
fn types_suffix([keys, values]: [KvType; 2]) -> String {
    if keys == values {
        format!("{keys}_{values}")
    } else {
        "mixed".to_owned()
    }
}

/// Adds the arguments that only kernels for mixed types take.
fn with_types(args: Args<'_>, [keys, values]: [KvType; 2]) -> Args<'_> {
    if keys == values {
        args
    } else {
        args.count(type_code(keys)).count(type_code(values))
    }
}

/// Pairs of types that a store can have.
const N_STORES: usize = 10;

fn load_store(device: &Device, types: [KvType; 2]) -> Result<StoreKernels> {
    let (modules, suffix) = match types {
        [KvType::F16, KvType::F16] => (["attention_decode".to_owned(), "rope_kv".to_owned()], "f16"),
        [KvType::F32, KvType::F32] => (["attention_decode".to_owned(), "rope_kv".to_owned()], "f32"),
        [keys, values] => {
            let suffix = types_suffix([keys, values]);
            let modules = ["attention_decode", "rope_kv"].map(|module| format!("{module}_{suffix}"));
            (modules, "of_types")
        }
    };
    let [attention, rope_kv] = modules;
    let kernels = attention_decode::kernels(types);
    let load =
        |name: &String| device.kernel_with_shared_bytes(&attention, name, attention_decode::MAX_SHARED_BYTES);
    Ok(StoreKernels {
        rope_kv: device.kernel(&rope_kv, &format!("rope_kv_{suffix}"))?,
        attention: kernels.iter().map(load).collect::<Result<_>>()?,
        turned: if types == [KvType::F16; 2] {
            let turned = |name: &String| load(&format!("turn_{name}"));
            kernels.iter().map(turned).collect::<Result<_>>()?
        } else {
            Vec::new()
        },
    })
}

/// The scale and the sums of the halves of a group of 32 quantized activations.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C, align(8))]
pub struct Q8Scale {
    /// Multiplies the bytes.
    pub scale: f32,
    /// Sum of the first 16 bytes.
    pub sum_low: i16,
    /// Sum of the last 16 bytes.
    pub sum_high: i16,
}

/// Rows of quantized activations, in addition to the f32 ones.
#[derive(Debug)]
pub struct QuantizedRows {
    bytes: Buffer<i8>,
    scales: Buffer<Q8Scale>,
}

/// The destination of an operation's quantized rows.
#[derive(Debug)]
pub struct QuantizedMut<'a> {
    bytes: ViewMut<'a, i8>,
    scales: ViewMut<'a, Q8Scale>,
}

/// Quantized rows that an operation reads.
#[derive(Clone, Copy, Debug)]
pub struct QuantizedView<'a> {
    bytes: View<'a, i8>,
    scales: View<'a, Q8Scale>,
}

impl QuantizedRows {
    /// Allocates `n_rows` of up to `width` values.
    ///
    /// # Errors
    /// [`CudaExecError::OutOfMemory`].
    pub fn new(device: &Device, n_rows: usize, width: usize) -> Result<Self> {
        let width = width.next_multiple_of(32);
        Ok(Self {
            bytes: device.alloc("quantized activations", n_rows * width)?,
            scales: device.alloc("quantized activations", n_rows * width / 32)?,
        })
    }

    /// Returns the device memory of such rows.
    pub fn device_bytes(n_rows: usize, width: usize) -> usize {
        let len = n_rows * width.next_multiple_of(32);
        crate::driver::buffer_bytes::<i8>(len) + crate::driver::buffer_bytes::<Q8Scale>(len / 32)
    }

    /// Returns a mutable view.
    pub fn view_mut(&mut self) -> QuantizedMut<'_> {
        QuantizedMut {
            bytes: self.bytes.view_mut(),
            scales: self.scales.view_mut(),
        }
    }

    /// Returns a view to read.
    pub fn view(&self) -> QuantizedView<'_> {
        QuantizedView {
            bytes: self.bytes.view(),
            scales: self.scales.view(),
        }
    }
}

impl<'a> QuantizedMut<'a> {
    /// Rows `first..first + n_rows` of `width` values.
    pub(crate) fn rows(self, first: usize, n_rows: usize, width: usize) -> Result<Self> {
        check_multiple("the width of quantized rows", width, 32)?;
        Ok(Self {
            bytes: self.bytes.range(first * width..(first + n_rows) * width)?,
            scales: (self.scales).range(first * width / 32..(first + n_rows) * width / 32)?,
        })
    }

    pub(crate) fn reborrow(&mut self) -> QuantizedMut<'_> {
        QuantizedMut {
            bytes: self.bytes.reborrow(),
            scales: self.scales.reborrow(),
        }
    }

    /// Returns the two optional pointers that kernels take.
    pub(crate) fn split(this: Option<Self>) -> (Option<ViewMut<'a, i8>>, Option<ViewMut<'a, Q8Scale>>) {
        match this {
            Some(rows) => (Some(rows.bytes), Some(rows.scales)),
            None => (None, None),
        }
    }
}

impl QuantizedView<'_> {
    /// Rows `first..first + n_rows` of `width` values.
    fn rows(self, first: usize, n_rows: usize, width: usize) -> Result<Self> {
        check_multiple("the width of quantized rows", width, 32)?;
        let end = first + n_rows;
        Ok(Self {
            bytes: self.bytes.range(first * width..end * width)?,
            scales: self.scales.range(first * width / 32..end * width / 32)?,
        })
    }
}

/// The kernels without a weight type. Some are loaded only on request.
#[derive(Debug)]
pub struct Ops {
    device: Device,
    /// Whether a row's results may not depend on how many rows there are.
    is_batch_invariant: bool,
    /// Whether matrices of experts, or some of them, are floats.
    has_float_experts: bool,
    add_norm: Kernel,
    /// For rows that fit into the registers of a thread block: up to each of `norm::HELD_WIDTHS`.
    add_norm_held: [Kernel; 2],
    norm_heads: Kernel,
    norm_wide_heads: Kernel,
    quantize_rows: Kernel,
    activation: Kernel,
    add: Kernel,
    add_row: Kernel,
    mean_of_sequences: Kernel,
    add_positions: Kernel,
    scale_by_position: Kernel,
    gather: Kernel,
    scale_logits: Kernel,
    layers: layers::LayerKernels,
    /// Kernels for streams, if they were requested.
    streams: Option<streams::StreamKernels>,
    rope: Kernel,
    rope_axes: Kernel,
    /// By the types of the store, as far as they were requested.
    stores: [Option<StoreKernels>; N_STORES],
    argmax_partial: Kernel,
    argmax_combine: Kernel,
    /// Kernels for runs of tokens by the types of the KV cache, as far as they were requested, the narrowest heads first.
    prefill: [Vec<attention_prefill::PrefillKernel>; N_STORES],
    /// For pages that tokens share, if they were requested.
    shared: Option<shared_attention::SharedKernels>,
    /// Wgmma kernels over f16 KV caches, if the device has them.
    wide_prefill: Vec<attention_prefill::PrefillKernel>,
    /// For latent rows, if they were requested.
    latent: Option<latent::LatentKernels>,
    sample_parts: Kernel,
    sample_weights: Kernel,
    sample_candidates: Kernel,
    sample_rows: Kernel,
    route_rows: Kernel,
    sort_choices: Kernel,
    weigh_choices: Kernel,
    combine_choices: Kernel,
    /// Kernels for adapters, if they were requested.
    adapters: Option<adapters::AdapterKernels>,
    /// Kernels for recurrent layers, if they were requested.
    recurrent: Option<recurrence::RecurrentKernels>,
    /// Products by matrices of two types, as far as they were requested; in the order of [`PAIRS`].
    pairs: [Option<linear::PairKernels>; PAIRS.len()],
    /// Largest number of rows of a grid along y or z; larger launches are divided.
    max_grid_rows: usize,
    /// The device's. A launch of [`Self::turn_attention`] fills them once, if it can.
    multiprocessors: attention_decode::Multiprocessors,
    /// For products whose columns are shared by thread blocks, if that was requested. Launches that use it run one after the other.
    parts: Option<Mutex<Parts>>,
    halve_rows: Kernel,
    /// The same for wgmma, if the device has it.
    wide_tiles: Option<Kernel>,
    /// For products in f16, if that was requested. Launches that use it run one after the other.
    halves: Option<Mutex<HalfRows>>,
}

impl Ops {
    /// Loads the kernels.
    ///
    /// # Errors
    /// [`CudaExecError::DriverTooOld`], or the driver's.
    pub fn load(device: &Device) -> Result<Self> {
        device.load_modules(&MODULES)?;
        let mut stores = [const { None }; N_STORES];
        for types in [[KvType::F16; 2], [KvType::F32; 2]] {
            stores[store_code(types)] = Some(load_store(device, types)?);
        }
        let mut prefill = [const { Vec::new() }; N_STORES];
        prefill[store_code([KvType::F16; 2])] = attention_prefill::load(device, [KvType::F16; 2])?;
        Ok(Self {
            add_norm: device.kernel("norm", "add_norm")?,
            add_norm_held: [
                device.kernel("norm", "add_norm_held")?,
                device.kernel("norm", "add_norm_held_wide")?,
            ],
            norm_heads: device.kernel("norm", "norm_heads")?,
            norm_wide_heads: device.kernel("norm", "norm_wide_heads")?,
            quantize_rows: device.kernel("norm", "quantize_rows")?,
            activation: device.kernel("elementwise", "activation")?,
            add: device.kernel("elementwise", "add")?,
            add_row: device.kernel("elementwise", "add_row")?,
            mean_of_sequences: device.kernel("elementwise", "mean_of_sequences")?,
            add_positions: device.kernel("elementwise", "add_positions")?,
            scale_by_position: device.kernel("elementwise", "scale_by_position")?,
            gather: device.kernel("elementwise", "gather")?,
            scale_logits: device.kernel("elementwise", "scale_logits")?,
            layers: layers::LayerKernels::load(device)?,
            streams: None,
            rope: device.kernel("rope_kv", "rope")?,
            rope_axes: device.kernel("rope_kv", "rope_axes")?,
            stores,
            argmax_partial: device.kernel("argmax", "argmax_partial")?,
            argmax_combine: device.kernel("argmax", "argmax_combine")?,
            prefill,
            shared: None,
            wide_prefill: attention_prefill::load_wide(device)?,
            latent: None,
            sample_parts: device.kernel("sample", "sample_parts")?,
            sample_weights: device.kernel("sample", "sample_weights")?,
            sample_candidates: device.kernel("sample", "sample_candidates")?,
            sample_rows: device.kernel("sample", "sample_rows")?,
            route_rows: device.kernel("route", "route_rows")?,
            sort_choices: device.kernel("route", "sort_choices")?,
            weigh_choices: device.kernel("route", "weigh_choices")?,
            combine_choices: device.kernel("route", "combine")?,
            adapters: None,
            recurrent: None,
            pairs: [None; PAIRS.len()],
            max_grid_rows: MAX_GRID_ROWS,
            multiprocessors: attention_decode::Multiprocessors::of(device.info()),
            parts: None,
            halve_rows: device.kernel("halves", "halve_rows")?,
            wide_tiles: if wide::has_module(device, WIDE_ROWS)? {
                Some(device.kernel(WIDE_ROWS, "wide_tiles")?)
            } else {
                None
            },
            halves: None,
            is_batch_invariant: false,
            has_float_experts: false,
            device: device.clone(),
        })
    }

    /// Loads the kernels for KV caches with keys and values of these types, except the kernels for runs of
    /// tokens. The kernels for F16 and F32 are always loaded.
    ///
    /// # Errors
    /// [`CudaExecError::DriverTooOld`], or the driver's.
    pub fn load_store(&mut self, types: [KvType; 2]) -> Result<()> {
        let kernels = &mut self.stores[store_code(types)];
        if kernels.is_none() {
            *kernels = Some(load_store(&self.device, types)?);
        }
        Ok(())
    }

    /// Loads the kernels for runs of tokens over such KV caches, if heads have keys and values of their own.
    /// The kernels for F16 are always loaded; without the others, attention computes tokens one by one.
    ///
    /// # Errors
    /// [`CudaExecError::DriverTooOld`], or the driver's.
    pub fn load_runs(&mut self, types: [KvType; 2]) -> Result<()> {
        let prefill = &mut self.prefill[store_code(types)];
        if prefill.is_empty() {
            *prefill = attention_prefill::load(&self.device, types)?;
        }
        Ok(())
    }

    /// Allocates the memory for products whose columns are shared by thread blocks: narrow ones of K-quants by many rows
    /// ([`ManyRows`](crate::ManyRows)), which are slower without it. Batch-invariant products do not share columns.
    ///
    /// # Errors
    /// [`CudaExecError::OutOfMemory`], or the driver's.
    pub fn allow_splits(&mut self) -> Result<()> {
        if !self.is_batch_invariant {
            self.parts = Some(Mutex::new(Parts::new(&self.device)?));
        }
        Ok(())
    }

    /// Returns the device memory that [`Self::allow_splits`] takes: none if products are batch-invariant.
    pub fn split_bytes(&self) -> usize {
        if self.is_batch_invariant {
            0
        } else {
            Parts::device_bytes()
        }
    }

    /// Returns the kernels for a store.
    fn store_kernels(&self, types: [KvType; 2]) -> Result<&StoreKernels> {
        let kernels = self.stores[store_code(types)].as_ref();
        kernels.ok_or_else(|| CudaExecError::Unsupported {
            feature: format!(
                "kernels loaded for stores of {} keys and {} values",
                types[0], types[1]
            ),
        })
    }

    /// Returns whether the results of a row have the same bits whatever other rows are computed with it. Products then add in one order
    /// for every number of rows, that of the tiles, and every token attends by the kernel whose splits are at fixed positions.
    pub fn set_batch_invariance(&mut self, is_batch_invariant: bool) {
        self.is_batch_invariant = is_batch_invariant;
    }

    /// Loads the kernels that multiply by matrices of both types in one launch, if they exist. Without them [`Self::linear`] uses a
    /// launch for each type.
    ///
    /// # Errors
    /// [`CudaExecError::DriverTooOld`], or the driver's.
    pub fn load_pair(&mut self, types: [TensorType; 2]) -> Result<()> {
        let Some(index) = PAIRS.iter().position(|pair| *pair == types) else {
            return Ok(());
        };
        let module = pair_name(types);
        let few = types.map(FewRows::of);
        let kernel = |n_rows: usize| {
            let shared_bytes = few[0].shared_bytes(n_rows).max(few[1].shared_bytes(n_rows));
            let name = format!("matvec_pair_m{n_rows}");
            self.device.kernel_with_shared_bytes(&module, &name, shared_bytes)
        };
        let few_rows = [kernel(1)?, kernel(2)?, kernel(4)?, kernel(8)?];
        let are_strips = few.iter().all(|few| few.takes_sixteen());
        let of_strips = |name: &str, shared_bytes: &dyn Fn(FewRows) -> usize| {
            let shared_bytes = shared_bytes(few[0]).max(shared_bytes(few[1]));
            let kernel = || (self.device).kernel_with_shared_bytes(&module, name, shared_bytes);
            are_strips.then(kernel).transpose()
        };
        let normed_bytes = |few: FewRows| few.normed_shared_bytes(FewRows::NORMED_COLUMNS);
        self.pairs[index] = Some(linear::PairKernels {
            few_rows,
            sixteen: of_strips("matvec_pair_m16", &FewRows::sixteen_shared_bytes)?,
            normed: of_strips("matvec_pair_normed_m1", &normed_bytes)?,
        });
        Ok(())
    }

    /// Launches an elementwise kernel: 256 threads, one element each, rows along y.
    fn launch_elementwise(&self, kernel: Kernel, [n_rows, width]: [usize; 2], args: &Args<'_>) -> Result<()> {
        let shape = LaunchShape::new([width.div_ceil(256), n_rows, 1], 256);
        self.device.launch(kernel, shape, args)
    }
}

/// Largest number of rows of a grid along y or z.
pub(crate) const MAX_GRID_ROWS: usize = 65_535;

fn check_multiple(what: &'static str, found: usize, divisor: usize) -> Result<()> {
    if divisor > 0 && found.is_multiple_of(divisor) {
        return Ok(());
    }
    Err(CudaExecError::Shape {
        what,
        found,
        expected: format!("a multiple of {divisor}"),
    })
}

fn check_equal(what: &'static str, found: usize, expected: usize) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(CudaExecError::Shape {
        what,
        found,
        expected: expected.to_string(),
    })
}

const _: () = assert!(size_of::<Q8Scale>() == 8);
