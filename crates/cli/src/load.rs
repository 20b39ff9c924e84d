//! [`LoadArgs`]: the options that say how a model is loaded. The load itself is in `telling`, what is refused of it before in `refused`.
//!
//! Separate because every command that computes takes them. Invariant: an option is granted or refused by name.

mod refused;
mod telling;

use std::{env, fs, path::Path, sync::Once};

use clap::{
    Args,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};
use tokenmill::{
    Device, KvCache, LoadOptions,
    convert::Preset,
    gpu::{AllReduce, GpuCheckObserver, GpuOptions, WarpgroupProducts},
    load::{Compute, KvType, PlanObserver, Side},
    machine::{CpuList, Numa, Places, n_processors},
    placement::{
        Bandwidths, BatchThreshold, DeviceLayers, Measurements, PartsRequest, PlacementRequest, SplitObserver,
    },
};
use tokenmill_quant::CpuFeatures;

use crate::{
    failure::Failure,
    model_name::{FetchArgs, cache_folder},
    numbers::{count, positive},
    type_names::preset,
};

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
    #[arg(long, value_name = "N", value_parser = positive)]
    threads_batch: Option<usize>,
    /// Processors that the threads may use, as 0-3 or 0-3,8 [default: all that the process may use] [short: -Cr]
    #[arg(long, value_name = "LIST")]
    cpu_range: Option<CpuList>,
    /// Give each thread a processor of its own, as far as there are enough: 0 or 1
    #[arg(long, value_name = "0|1", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1))]
    cpu_strict: u8,
    /// How threads are placed on memory nodes: distribute, evenly on all, each with the weights that it reads; isolate, all on the node on
    /// which the program starts; numactl, as the program was placed [default: numactl]
    #[arg(long, value_name = "HOW")]
    numa: Option<Numa>,
    /// Load all weights into memory. By default a token embedding of 64 MiB or more stays in the file on the CPU
    #[arg(long)]
    no_mmap: bool,
    /// Tokens of a prompt in one batch
    #[arg(short, long, value_name = "N", default_value_t = 2048, value_parser = positive)]
    batch_size: usize,
    /// Tokens computed in one step, at most a batch [default: 512, and 2048 where a GPU with room for it has all of the model] [short: -ub]
    #[arg(long, value_name = "N", value_parser = positive)]
    ubatch_size: Option<usize>,
    /// Type of the stored keys [short: -ctk]
    #[arg(long, value_name = "TYPE", value_parser = kv_type(), default_value_t = KvType::F16)]
    cache_type_k: KvType,
    /// Type of the stored values [short: -ctv]
    #[arg(long, value_name = "TYPE", value_parser = kv_type(), default_value_t = KvType::F16)]
    cache_type_v: KvType,
    /// Instruction sets to use, a list of avx2, avxvnni and avx512vnni, on ARM of neon, dotprod and i8mm, or scalar
    /// [default: all that there are; also TOKENMILL_CPU_FEATURES]
    #[arg(long, value_name = "LIST")]
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
    #[arg(long, value_name = "N", value_parser = count, conflicts_with = "cpu_moe")]
    n_cpu_moe: Option<usize>,
    /// Place parts of the GPU's layers, a list of attn, ffn and experts, each =gpu or =cpu, such as ffn=gpu,attn=cpu
    #[arg(long, value_name = "LIST")]
    place: Option<PartsRequest>,
    /// Let the CPU compute the GPU's feed-forward networks in steps of fewer than N tokens; auto measures that number and remembers
    /// it. These weights are in the memory of both then
    #[arg(long, value_name = "N", value_parser = gpu_batch)]
    gpu_batch: Option<BatchThreshold>,
    /// Bandwidths by which -ngl auto chooses, in place of measured ones, all four: GB/s of gpu, cpu and the link between them, and microseconds of
    /// a crossing, such as gpu=900,cpu=40,link=25,crossing=15
    #[arg(long, value_name = "LIST")]
    bandwidths: Option<Bandwidths>,
    /// Measure again what -ngl auto and --gpu-batch auto remember of this machine, in $XDG_CACHE_HOME/tokenmill or ~/.cache/tokenmill
    #[arg(long, conflicts_with = "bandwidths")]
    measure_again: bool,
    /// GPUs that compute the model together, each a part of every layer: the first, or the one of --device, and those behind it
    /// [default: 1] [short: -tp]
    #[arg(long, value_name = "N", value_parser = positive,
        conflicts_with_all = ["cpu_moe", "n_cpu_moe", "place", "gpu_batch"])]
    tensor_parallel_size: Option<usize>,
    /// How these GPUs add up: nccl, host (in its memory), or auto, which takes NCCL where it is installed [default: auto]
    #[arg(long, value_name = "WAY")]
    all_reduce: Option<AllReduce>,
    /// Give each sequence the same bits whatever other sequences are computed with it; slower on a GPU, always so on the CPU
    #[arg(long, conflicts_with = "gpu_batch")]
    batch_invariant: bool,
    #[command(flatten)]
    pub(crate) fetch: FetchArgs,
}

/// Tokens of a step, and those of a step on a GPU that has room for them.
const STEP_TOKENS: usize = 512;
const ROOMY_STEP_TOKENS: usize = 2048;

/// Most sequences that `serve` computes at a time.
pub(crate) const SERVE_SEQS: usize = 16;

/// Selects the first GPU, as `flag` asks, or the CPU if no GPU can be used. Command lines are copied between machines, so only `--device`
/// insists on a GPU.
fn gpu_or_cpu(flag: &str) -> Device {
    static SAID: Once = Once::new();
    if tokenmill::gpu::has_gpu() {
        return Device::Cuda { ordinal: 0 };
    }
    SAID.call_once(|| {
        telling::tell(&format!(
            "`{flag}` asks for a GPU, but no usable one was found: computing on the CPU (`--device cuda` insists on a GPU)"
        ));
    });
    Device::Cpu
}

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

    /// GPUs that compute together.
    ///
    /// # Errors
    /// Several next to something that leaves a part of the model to the CPU.
    fn n_gpus(&self) -> Result<usize, Failure> {
        let n_gpus = self.tensor_parallel_size.unwrap_or(1);
        match self.gpu_layers {
            Some(layers) if n_gpus > 1 && layers != DeviceLayers::All => Err(Failure::usage(format!(
                "`--tensor-parallel-size {n_gpus}` and `-ngl {}` contradict each other: all layers are on all GPUs",
                typed(layers)
            ))),
            _ => Ok(n_gpus),
        }
    }

    /// Returns how several GPUs add up.
    ///
    /// # Errors
    /// A way for one GPU other than the default, and NCCL where results are not to depend on the batch.
    fn all_reduce(&self) -> Result<AllReduce, Failure> {
        let way = self.all_reduce.unwrap_or_default();
        let name = match way {
            AllReduce::Auto => return Ok(way),
            AllReduce::Nccl => "nccl",
            AllReduce::Host => "host",
        };
        if way == AllReduce::Nccl && self.batch_invariant {
            return Err(Failure::usage(
                "`--all-reduce nccl` and `--batch-invariant` contradict each other: NCCL may add in an order that depends on the batch",
            ));
        }
        match self.tensor_parallel_size {
            Some(n_gpus) if n_gpus > 1 => Ok(way),
            Some(n_gpus) => Err(Failure::usage(format!(
                "`--all-reduce {name}` and `--tensor-parallel-size {n_gpus}` contradict each other: one GPU has nothing to add up with"
            ))),
            None => Err(Failure::usage(format!(
                "`--all-reduce {name}` is for several GPUs: one has nothing to add up with"
            ))
            .hint("`--tensor-parallel-size N` takes N of them")),
        }
    }

    /// Returns which parts of the model go to the GPU.
    fn placement(&self) -> Result<PlacementRequest, Failure> {
        let request = self.placement_request();
        let contradiction = |one: &str, other: &str, reason: &str| {
            Err(Failure::usage(format!(
                "`{one}` and `{other}` contradict each other: {reason}"
            )))
        };
        let parts = request.parts;
        if self.cpu_moe && parts.experts == Some(Side::Device) {
            return contradiction("--cpu-moe", "--place experts=gpu", "all experts are the CPU's");
        }
        let has_no_networks = parts.ffn == Some(Side::Host) && parts.experts != Some(Side::Device);
        if self.gpu_batch.is_some() && has_no_networks {
            return contradiction(
                "--gpu-batch",
                "--place ffn=cpu",
                "the GPU has no feed-forward networks",
            );
        }
        Ok(request)
    }

    /// Returns the options of stored measurements.
    ///
    /// # Errors
    /// Flags of measurements that nothing asks for.
    fn measurements(&self) -> Result<Measurements, Failure> {
        let chooses = match (self.gpu_layers, self.device) {
            (_, Some(Device::Cpu)) => false,
            _ if self.group_size().is_some() => false,
            (Some(layers), _) => layers == DeviceLayers::Auto,
            (None, None | Some(Device::Auto)) => self.parting_flag().is_none(),
            (None, Some(Device::Cuda { .. })) => false,
        };
        if self.bandwidths.is_some() && !chooses {
            return Err(Failure::usage(
                "`--bandwidths` does nothing here: what the GPU has is not left open",
            )
            .hint("`-ngl auto` chooses by bandwidths"));
        }
        if self.measure_again && !chooses && self.gpu_batch != Some(BatchThreshold::Measured) {
            return Err(
                Failure::usage("`--measure-again` does nothing here: nothing is measured")
                    .hint("`-ngl auto` and `--gpu-batch auto` choose by what they measure"),
            );
        }
        Ok(Measurements {
            folder: cache_folder(),
            is_made_again: self.measure_again,
            bandwidths: self.bandwidths,
        })
    }

    fn placement_request(&self) -> PlacementRequest {
        PlacementRequest {
            layers: self.gpu_layers.unwrap_or(DeviceLayers::All),
            n_host_experts: if self.cpu_moe {
                usize::MAX
            } else {
                self.n_cpu_moe.unwrap_or(0)
            },
            parts: self.place.unwrap_or_default(),
            threshold: self.gpu_batch.unwrap_or(BatchThreshold::Tokens(1)),
        }
    }

    /// The flag that gives parts of the GPU's layers to the CPU, where there is one.
    fn parting_flag(&self) -> Option<&'static str> {
        [
            (self.cpu_moe, "--cpu-moe"),
            (self.n_cpu_moe.is_some(), "--n-cpu-moe"),
            (self.place.is_some(), "--place"),
            (self.gpu_batch.is_some(), "--gpu-batch"),
        ]
        .into_iter()
        .find_map(|(is_given, flag)| is_given.then_some(flag))
    }

    /// Where to compute.
    ///
    /// # Errors
    /// Numbers of layers that no device gets, and options that contradict each other.
    pub(crate) fn device(&self) -> Result<Device, Failure> {
        let contradiction = |device: &str| {
            let flag = match self.gpu_layers {
                Some(layers) if layers != DeviceLayers::Auto => format!("-ngl {}", typed(layers)),
                _ => self.parting_flag().unwrap_or("-ngl auto").to_owned(),
            };
            Failure::usage(format!("`{flag}` and `--device {device}` contradict each other"))
        };
        let first_gpu = Device::Cuda { ordinal: 0 };
        if let Some(n_gpus) = self.group_size() {
            return match self.device {
                Some(Device::Cpu) => Err(Failure::usage(format!(
                    "`--tensor-parallel-size {n_gpus}` and `--device cpu` contradict each other"
                ))),
                Some(device @ Device::Cuda { .. }) => Ok(device),
                _ => Ok(first_gpu),
            };
        }
        match (self.gpu_layers, self.device) {
            (None | Some(DeviceLayers::Auto), Some(Device::Cpu)) if self.parting_flag().is_some() => {
                Err(contradiction("cpu"))
            }
            (None | Some(DeviceLayers::Auto), None) if self.parting_flag().is_some() => {
                Ok(gpu_or_cpu(self.parting_flag().unwrap_or_default()))
            }
            // Without a driver there is nothing to try, and nothing to say about it to who asked for nothing.
            (None, None) if !tokenmill::gpu::has_gpu_driver() => Ok(Device::Cpu),
            (None | Some(DeviceLayers::Auto), device) => Ok(device.unwrap_or(Device::Auto)),
            (Some(NO_LAYERS), Some(Device::Cuda { .. })) => Err(contradiction("cuda")),
            (Some(NO_LAYERS), _) => match self.parting_flag() {
                Some(flag) => Err(Failure::usage(format!(
                    "`-ngl 0` and `{flag}` contradict each other: the GPU has no layers"
                ))),
                None => Ok(Device::Cpu),
            },
            (Some(_), Some(Device::Cpu)) => Err(contradiction("cpu")),
            (Some(layers), None) => Ok(gpu_or_cpu(&format!("-ngl {}", typed(layers)))),
            (Some(_), Some(device)) => Ok(device),
        }
    }

    /// GPUs that are asked to compute the model together, where they are several.
    pub(crate) fn group_size(&self) -> Option<usize> {
        self.tensor_parallel_size.filter(|&n_gpus| n_gpus > 1)
    }

    /// Whether several devices are asked to compute the model together.
    pub(crate) fn is_divided(&self) -> bool {
        let divides = |layers| layers != DeviceLayers::All && layers != NO_LAYERS;
        self.parting_flag().is_some() || self.group_size().is_some() || self.gpu_layers.is_some_and(divides)
    }

    /// The context as it was given.
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

/// `-ngl 0`.
const NO_LAYERS: DeviceLayers = DeviceLayers::Last(0);

/// Reads the value of `-ngl`.
fn gpu_layers(text: &str) -> Result<DeviceLayers, String> {
    match text {
        "all" => Ok(DeviceLayers::All),
        "auto" => Ok(DeviceLayers::Auto),
        _ => (text.parse().map(DeviceLayers::Last))
            .map_err(|_| "expected a number of layers, `all` or `auto`".to_owned()),
    }
}

/// The value of `-ngl` as it is typed.
fn typed(layers: DeviceLayers) -> String {
    match layers {
        DeviceLayers::All => "all".to_owned(),
        DeviceLayers::Auto => "auto".to_owned(),
        DeviceLayers::Last(n) => n.to_string(),
    }
}

/// Reads the value of `--gpu-batch`.
fn gpu_batch(text: &str) -> Result<BatchThreshold, String> {
    match text {
        "auto" => Ok(BatchThreshold::Measured),
        _ => {
            (positive(text).map(BatchThreshold::Tokens)).map_err(|expected| format!("{expected}, or `auto`"))
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        load: LoadArgs,
    }

    #[test]
    fn layers_and_device_agree_or_are_refused() {
        let check = |args: &[&str], expected: Option<Device>| {
            let command = Command::parse_from([&["tokenmill"], args].concat());
            assert_eq!(command.load.device().ok(), expected, "{args:?}");
        };
        let first = Some(Device::Cuda { ordinal: 0 });
        // Without a GPU the CPU computes requests for one, except those of `--device`.
        let here = if tokenmill::gpu::has_gpu() {
            first
        } else {
            Some(Device::Cpu)
        };
        check(&["--device", "auto"], Some(Device::Auto));
        check(&["--device", "cuda:2"], Some(Device::Cuda { ordinal: 2 }));
        check(&["--gpu-layers", "0"], Some(Device::Cpu));
        check(&["--gpu-layers", "0", "--device", "auto"], Some(Device::Cpu));
        check(&["--gpu-layers", "99"], here);
        check(&["--gpu-layers", "all", "--device", "cuda"], first);
        check(&["--gpu-layers", "0", "--device", "cuda"], None);
        check(&["--gpu-layers", "all", "--device", "cpu"], None);
        check(&["--gpu-layers", "12"], here);
        check(&["--gpu-layers", "12", "--device", "cpu"], None);
        check(&["--cpu-moe"], here);
        check(&["--cpu-moe", "--device", "cpu"], None);
        check(&["--cpu-moe", "--gpu-layers", "0"], None);
        check(
            &["--place", "ffn=gpu,attn=cpu", "--device", "cuda:1"],
            Some(Device::Cuda { ordinal: 1 }),
        );
        check(&["--gpu-batch", "32", "--gpu-layers", "auto"], here);
    }

    #[test]
    fn layers_and_steps_are_numbers_or_words() {
        assert_eq!(gpu_layers("auto"), Ok(DeviceLayers::Auto));
        assert_eq!(gpu_layers("0"), Ok(NO_LAYERS));
        assert_eq!(gpu_batch("auto"), Ok(BatchThreshold::Measured));
        assert_eq!(gpu_batch("1"), Ok(BatchThreshold::Tokens(1)));
        for wrong in ["-1", "many", ""] {
            assert!(gpu_layers(wrong).is_err(), "{wrong}");
            assert!(gpu_batch(wrong).is_err(), "{wrong}");
        }
        assert!(gpu_batch("0").is_err());
    }

    #[test]
    fn flags_of_measurements_are_for_what_is_measured() {
        const BANDWIDTHS: &str = "--bandwidths=gpu=900,cpu=40,link=25,crossing=15";
        let check = |args: &[&str], expected: bool| {
            for (flag, expected) in [
                (BANDWIDTHS, expected),
                ("--measure-again", expected || args.contains(&"auto")),
            ] {
                let command = Command::parse_from([&["tokenmill", flag], args].concat());
                assert_eq!(command.load.measurements().is_ok(), expected, "{flag} {args:?}");
            }
        };
        check(&[], true);
        check(&["--device", "auto"], true);
        check(&["--gpu-layers", "auto"], true);
        check(&["--gpu-layers", "auto", "--device", "cuda"], true);
        check(&["--device", "cuda"], false);
        check(&["--device", "cpu"], false);
        check(&["--gpu-layers", "4"], false);
        check(&["--gpu-layers", "0"], false);
        check(&["--cpu-moe"], false);
        check(&["--gpu-batch", "auto"], false);
        check(&["--gpu-batch", "4"], false);
        check(&["--tensor-parallel-size", "2"], false);
    }
}
