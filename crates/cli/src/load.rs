//! [`LoadArgs`]: the options that say how a model is loaded. On which devices is in `place`, the load in `telling`, what is
//! refused of it before in `refused`.
//!
//! Separate because every command that computes takes them. Invariant: an option is granted or refused by name.

mod place;
mod refused;
mod telling;

use std::{env, fs, path::Path};

use clap::{
    Args,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};
use tokenmill::{
    Device, KvCache, LoadOptions,
    convert::Preset,
    gpu::{AllReduce, GpuCheckObserver, GpuOptions, WarpgroupProducts},
    load::{Compute, KvType, PlanObserver},
    machine::{CpuList, Numa, Places, n_processors},
    placement::{Bandwidths, BatchThreshold, DeviceLayers, PartsRequest, PlacementRequest, SplitObserver},
};
use tokenmill_quant::CpuFeatures;

use crate::{
    failure::Failure,
    help::ADVANCED,
    model_name::FetchArgs,
    numbers::{count, positive},
    type_names::preset,
};

use place::{gpu_batch, gpu_layers};
pub(crate) use refused::refused;
pub(crate) use telling::{about_cut_context, about_long_context, load, load_network, load_opened};

/// How a model is loaded.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Loading")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(crate) struct LoadArgs {
    /// Context size in tokens; 0 takes the model's training context [default: 4096, or the model's if that is less]
    #[arg(short = 'c', long, value_name = "N", value_parser = count)]
    ctx_size: Option<usize>,
    /// Threads [default: one for each processor]
    #[arg(short, long, value_name = "N", value_parser = positive)]
    threads: Option<usize>,
    /// Threads for prompts [default: the same as --threads] [short: -tb]
    #[arg(long, help_heading = ADVANCED, value_name = "N", value_parser = positive)]
    threads_batch: Option<usize>,
    /// Processors that the threads may use, as 0-3 or 0-3,8 [default: all that the process may use] [short: -Cr]
    #[arg(long, help_heading = ADVANCED, value_name = "LIST")]
    cpu_range: Option<CpuList>,
    /// Give each thread a processor of its own, as far as there are enough: 0 or 1
    #[arg(long, help_heading = ADVANCED, value_name = "0|1", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1))]
    cpu_strict: u8,
    /// How threads are placed on memory nodes: distribute, evenly on all, each with the weights that it reads; isolate, all on the node on
    /// which the program starts; numactl, as the program was placed [default: numactl]
    #[arg(long, help_heading = ADVANCED, value_name = "HOW")]
    numa: Option<Numa>,
    /// Load all weights into memory. By default a token embedding of 64 MiB or more stays in the file on the CPU
    #[arg(long, help_heading = ADVANCED)]
    no_mmap: bool,
    /// Tokens of a prompt in one batch
    #[arg(short, long, help_heading = ADVANCED, value_name = "N", default_value_t = 2048, value_parser = positive)]
    batch_size: usize,
    /// Tokens computed in one step, at most a batch [default: 512, and 2048 where a GPU with room for it has all of the model] [short: -ub]
    #[arg(long, help_heading = ADVANCED, value_name = "N", value_parser = positive)]
    ubatch_size: Option<usize>,
    /// Type of the stored keys [short: -ctk]
    #[arg(long, value_name = "TYPE", value_parser = kv_type(), default_value_t = KvType::F16)]
    cache_type_k: KvType,
    /// Type of the stored values [short: -ctv]
    #[arg(long, value_name = "TYPE", value_parser = kv_type(), default_value_t = KvType::F16)]
    cache_type_v: KvType,
    /// Instruction sets to use, a list of avx2, avxvnni and avx512vnni, on ARM of neon, dotprod and i8mm, or scalar
    /// [default: all that there are; also TOKENMILL_CPU_FEATURES]
    #[arg(long, help_heading = ADVANCED, value_name = "LIST")]
    cpu_features: Option<CpuFeatures>,
    /// Where to compute: auto, cpu, cuda or cuda:N; auto takes the first GPU that can [default: auto]
    #[arg(long, value_name = "DEVICE")]
    device: Option<Device>,
    /// Quantize the weights of a Hugging Face folder while they load, to q8_0, q4_k_m or another type that needs no
    /// importance matrix
    #[arg(long, value_name = "TYPE", value_parser = preset(), hide_possible_values = true)]
    quantize: Option<Preset>,
    /// Layers on the GPU, the last ones: a number, or all; auto puts everything there if it fits, and else the parts with which a token takes
    /// least time by measured bandwidths. The CPU computes the rest [default: auto, and all with --device cuda] [short: -ngl]
    #[arg(long, alias = "n-gpu-layers", value_name = "N", value_parser = gpu_layers)]
    gpu_layers: Option<DeviceLayers>,
    /// Keep the experts of all layers on the CPU [short: -cmoe]
    #[arg(long)]
    cpu_moe: bool,
    /// Keep the experts of the first N layers on the CPU [short: -ncmoe]
    #[arg(long, help_heading = ADVANCED, value_name = "N", value_parser = count, conflicts_with = "cpu_moe")]
    n_cpu_moe: Option<usize>,
    /// Place parts of the GPU's layers, a list of attn, ffn and experts, each =gpu or =cpu, such as ffn=gpu,attn=cpu
    #[arg(long, help_heading = ADVANCED, value_name = "LIST")]
    place: Option<PartsRequest>,
    /// Let the CPU compute the GPU's feed-forward networks in steps of fewer than N tokens; auto measures that number and remembers
    /// it. These weights are in the memory of both then
    #[arg(long, help_heading = ADVANCED, value_name = "N", value_parser = gpu_batch)]
    gpu_batch: Option<BatchThreshold>,
    /// Bandwidths by which -ngl auto chooses, in place of measured ones, all four: GB/s of gpu, cpu and the link between them, and microseconds of
    /// a crossing, such as gpu=900,cpu=40,link=25,crossing=15
    #[arg(long, help_heading = ADVANCED, value_name = "LIST")]
    bandwidths: Option<Bandwidths>,
    /// Measure again what -ngl auto and --gpu-batch auto remember of this machine, in $XDG_CACHE_HOME/tokenmill or ~/.cache/tokenmill
    #[arg(long, help_heading = ADVANCED, conflicts_with = "bandwidths")]
    measure_again: bool,
    /// GPUs that compute the model together, each a part of every layer: the first, or the one of --device, and those after it
    /// [default: 1] [short: -tp]
    #[arg(long, value_name = "N", value_parser = positive,
        conflicts_with_all = ["cpu_moe", "n_cpu_moe", "place", "gpu_batch"])]
    tensor_parallel_size: Option<usize>,
    /// How these GPUs add up: nccl, host (in its memory), or auto, which takes NCCL where it is installed [default: auto]
    #[arg(long, help_heading = ADVANCED, value_name = "WAY")]
    all_reduce: Option<AllReduce>,
    /// Give each sequence the same bits whatever other sequences are computed with it; slower on a GPU, always so on the CPU
    #[arg(long, help_heading = ADVANCED, conflicts_with = "gpu_batch")]
    batch_invariant: bool,
    #[command(flatten)]
    pub(crate) fetch: FetchArgs,
}

/// Tokens of a step, and those of a step on a GPU that has room for them.
const STEP_TOKENS: usize = 512;
const ROOMY_STEP_TOKENS: usize = 2048;

/// Most sequences that `serve` computes at a time.
pub(crate) const SERVE_SEQS: usize = 16;

/// Takes the names of the types that keys and values can be stored in.
fn kv_type() -> impl TypedValueParser<Value = KvType> {
    let help = |ty| match ty {
        KvType::F32 => "32-bit floats",
        KvType::F16 => "16-bit floats",
        KvType::Q8_0 => "8 bits with a scale for each 32",
        KvType::E4M3 => {
            "floats of 8 bits up to 448, without a scale, vLLM's fp8; on a GPU for keys and values both"
        }
        KvType::Q4_0 => "4 bits with a scale for each 32, of heads that are rotated first",
    };
    PossibleValuesParser::new(
        KvType::ALL.map(|ty| PossibleValue::new(ty.name()).aliases(ty.aliases()).help(help(ty))),
    )
    .map(|name| {
        name.parse()
            .expect("the parser takes the names of the types only")
    })
}

impl LoadArgs {
    /// The options of a load for one sequence.
    ///
    /// # Errors
    /// Options that cannot be granted.
    pub(crate) fn options(&self) -> Result<LoadOptions, Failure> {
        Ok(LoadOptions {
            n_ctx: self.ctx_size,
            n_seqs: 1,
            kv_cache: KvCache::Contexts(1),
            max_step_tokens: self.ubatch_size.unwrap_or(STEP_TOKENS).min(self.batch_size),
            kv_type: self.cache_type_k,
            kv_value_type: Some(self.cache_type_v),
            compute: self.compute()?,
            quantize: self.quantize,
            ..LoadOptions::default()
        })
    }

    /// Returns the load options that `serve` uses by default.
    ///
    /// # Errors
    /// Fails on options that cannot be satisfied.
    pub(crate) fn serve_options(&self) -> Result<LoadOptions, Failure> {
        let defaults = LoadOptions::default();
        Ok(LoadOptions {
            n_seqs: SERVE_SEQS,
            kv_cache: defaults.kv_cache,
            ..self.options()?
        })
    }

    /// Returns the compute options.
    ///
    /// # Errors
    /// Options that cannot be granted.
    fn compute(&self) -> Result<Compute, Failure> {
        Ok(Compute {
            device: self.device()?,
            n_threads: Some(self.n_threads()),
            n_prefill_threads: self.threads_batch,
            places: self.places(),
            is_traced: false,
            gpu: self.gpu_options()?,
            roomy_step_tokens: match self.ubatch_size {
                None => Some(ROOMY_STEP_TOKENS.min(self.batch_size)),
                Some(_) => None,
            },
            n_gpus: self.n_gpus()?,
            all_reduce: self.all_reduce()?,
            cpu_features: self.cpu_features()?,
            // The CPU has no placement.
            placement: match (self.device()?, self.placement()?) {
                (Device::Cpu, _) => PlacementRequest::default(),
                (_, placement) => placement,
            },
            measurements: self.measurements()?,
            on_plan: Some(PlanObserver(telling::say_plan)),
            on_split: Some(SplitObserver(telling::say_split)),
            on_gpu_check: Some(GpuCheckObserver(telling::tell)),
            is_quiet: false,
            is_all_in_memory: self.no_mmap,
        })
    }

    /// Returns the context size of the command line.
    pub(crate) fn n_ctx_given(&self) -> Option<usize> {
        self.ctx_size
    }

    /// Returns the number of compute threads.
    pub(crate) fn n_threads(&self) -> usize {
        // Places that cannot be had are refused when the threads are started.
        self.threads
            .unwrap_or_else(|| n_processors(&self.places()).unwrap_or(1))
    }

    /// Where the threads run.
    fn places(&self) -> Places {
        Places {
            cpus: self.cpu_range.clone(),
            is_strict: self.cpu_strict == 1,
            numa: self.numa.unwrap_or_default(),
        }
    }

    /// The instruction sets to compute with.
    fn cpu_features(&self) -> Result<CpuFeatures, Failure> {
        const VARIABLE: &str = "TOKENMILL_CPU_FEATURES";
        if let Some(features) = self.cpu_features {
            return Ok(features);
        }
        match env::var(VARIABLE) {
            Ok(names) if !names.is_empty() => {
                (names.parse()).map_err(|error| Failure::usage(format!("{VARIABLE}: {error}")))
            }
            _ => Ok(CpuFeatures::detect()),
        }
    }

    /// Reads how a GPU is used. Eight variables test the GPU path itself: `TOKENMILL_CUDA_APART` for compute-sanitizer,
    /// `TOKENMILL_CUDA_CUBINS` for drivers without a compiler, `TOKENMILL_CUDA_IN_ORDER` for launches one after the other,
    /// `TOKENMILL_CUDA_NO_WIDE` for matrix products without warpgroups, `TOKENMILL_CUDA_NO_SHARED` for sequences that each read shared
    /// pages for themselves, `TOKENMILL_CUDA_NO_GRAPHS` for steps that are queued launch by launch, `TOKENMILL_CUDA_NO_CARVEOUT` for the
    /// driver's default split of shared memory and L1 cache, and `TOKENMILL_CUDA_NO_CHECK` to skip the check at first use.
    ///
    /// # Errors
    /// A file of kernels that cannot be read.
    pub(crate) fn gpu_options(&self) -> Result<GpuOptions, Failure> {
        const CUBINS: &str = "TOKENMILL_CUDA_CUBINS";
        let cubins = match env::var_os(CUBINS) {
            Some(path) if !path.is_empty() => {
                let bytes = fs::read(&path).map_err(|error| {
                    let path = Path::new(&path).display();
                    Failure::usage(format!("{CUBINS}: cannot read {path}: {error}"))
                })?;
                Some(bytes.into())
            }
            _ => None,
        };
        let is_set = |name: &str| env::var(name).is_ok_and(|value| value == "1");
        Ok(GpuOptions {
            is_batch_invariant: self.batch_invariant,
            has_buffers_apart: is_set("TOKENMILL_CUDA_APART"),
            cubins,
            launches_in_order: is_set("TOKENMILL_CUDA_IN_ORDER"),
            warpgroup_products: if is_set("TOKENMILL_CUDA_NO_WIDE") {
                WarpgroupProducts::Never
            } else {
                WarpgroupProducts::WhereThere
            },
            reads_apart: is_set("TOKENMILL_CUDA_NO_SHARED"),
            without_graphs: is_set("TOKENMILL_CUDA_NO_GRAPHS"),
            driver_divides_memory: is_set("TOKENMILL_CUDA_NO_CARVEOUT"),
            is_unchecked: is_set("TOKENMILL_CUDA_NO_CHECK"),
        })
    }

    /// Returns the types of the stored keys and values.
    pub(crate) fn cache_types(&self) -> (KvType, KvType) {
        (self.cache_type_k, self.cache_type_v)
    }
}
