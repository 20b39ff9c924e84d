//! [`LoadFlags`]: the options that determine how and where a model is loaded.
//!
//! The fields of [`LoadOptions`](crate::LoadOptions) are the choices that follow from them. Invariant: an
//! option that sets a field names it in its row; the fields of the others depend on several options, and
//! their reader refuses contradictions.

use tokenmill_backend::KvType;
use tokenmill_convert::Preset;
use tokenmill_cpu_exec::{CpuList, Numa};
use tokenmill_placed::{Bandwidths, BatchThreshold, DeviceLayers, PartsRequest};
use tokenmill_quant::CpuFeatures;

use super::option::{
    EngineOption, Look, OptionGroup, SWITCH, Values, count, number, parsed, positive, value,
};
use crate::{LoadOptions, all_reduce::AllReduce, compute::Device};

/// A number, a list, and a switch that few need, and a type of keys or values.
const N: Look = value("N").advanced();
const LIST: Look = value("LIST").advanced();
const RARE: Look = SWITCH.advanced();
const KV_TYPE: Look = Look {
    values: Values::KvTypes,
    default: Some("f16"),
    ..value("TYPE")
};

option_group! {
    /// Holds the given options of a load.
    LoadFlags "Loading" {
        /// Context size in tokens; 0 takes the model's training context [default: 4096, or the model's if that is less]
        ctx_size "ctx-size": usize {
            letter: Some('c'),
            elsewhere: &[("vLLM", &["--max-model-len", "--max-seq-len", "--context-length"], "`-c N` is the size of the context")],
            hints: &[("context", "`-c N`", "`LoadOptions::context`")]
        } = value("N"), count => |options, n| options.n_ctx = Some(n);
        /// Threads [default: one for each processor]
        threads "threads": usize { letter: Some('t') } = value("N"), positive => |options, n| options.compute.n_threads = Some(n);
        /// Threads for prompts [default: the same as --threads]
        threads_batch "threads-batch": usize { letters: Some("-tb") } = N, positive
            => |options, n| options.compute.n_prefill_threads = Some(n);
        /// Processors that the threads may use, as 0-3 or 0-3,8 [default: all that the process may use]
        cpu_range "cpu-range": CpuList {
            letters: Some("-Cr"),
            elsewhere: &[("llama.cpp", &["-C", "--cpu-mask"], "`--cpu-range 0-3,8` names the processors to use")]
        } = LIST, parsed => |options, cpus| options.compute.places.cpus = Some(cpus);
        /// Give each thread its own processor, if there are enough: 0 or 1
        cpu_strict "cpu-strict": usize { value: Some("0|1"), default: Some("0") } = number(0, 1).advanced(), count
            => |options, n| options.compute.places.is_strict = n == 1;
        /// Placement of threads on memory nodes: distribute (evenly on all, each with the weights that it reads), isolate (all on the node on
        /// which the program starts) or numactl (as the program was placed) [default: numactl]
        numa "numa": Numa = value("HOW").advanced(), parsed => |options, numa| options.compute.places.numa = numa;
        /// Load all weights into memory. By default a token embedding of 64 MiB or more stays in the file on the CPU
        no_mmap "no-mmap": bool = RARE, parsed => |options, is_on| options.compute.is_all_in_memory = is_on;
        /// Tokens of a prompt in one batch
        batch_size "batch-size": usize { letter: Some('b'), default: Some("2048") } = N, positive;
        /// Tokens computed in one step, at most a batch [default: 512, or 2048 if all of the model is on a GPU with enough memory]
        ubatch_size "ubatch-size": usize {
            letters: Some("-ub"), hints: &[("step", "`-ub N`", "`LoadOptions::max_step_tokens`")]
        } = N, positive;
        /// Type of the keys in the KV cache
        cache_type_k "cache-type-k": KvType { letters: Some("-ctk") } = KV_TYPE, parsed => |options, ty| options.kv_type = ty;
        /// Type of the values in the KV cache
        cache_type_v "cache-type-v": KvType { letters: Some("-ctv") } = KV_TYPE, parsed => |options, ty| options.kv_value_type = Some(ty);
        /// Instruction sets to use: a list of avx2, avxvnni and avx512vnni (on ARM: neon, dotprod and i8mm), or scalar
        /// [default: all available; also TOKENMILL_CPU_FEATURES]
        cpu_features "cpu-features": CpuFeatures = LIST, parsed => |options, features| options.compute.cpu_features = features;
        /// Where to compute: auto, cpu, cuda or cuda:N; auto takes the first usable GPU [default: auto]
        device "device": Device {
            elsewhere: &[("llama.cpp", &["-mg", "--main-gpu"], "`--device cuda:N` chooses the GPU")],
            hints: &[("cpu", "`--device cpu`", "`Device::Cpu`"), ("device", "`--device`", "`Compute::device`")]
        } = value("DEVICE"), parsed;
        /// Quantize the weights of a Hugging Face folder while they load, to q8_0, q4_k_m or another type that needs no
        /// importance matrix
        quantize "quantize": Preset { values: Values::Presets } = value("TYPE"), parsed => |options, preset| options.quantize = Some(preset);
        /// Layers on the GPU, counted from the last: a number, or all; auto puts everything there if it fits, else the parts that make a token
        /// fastest by measured bandwidths. The CPU computes the rest [default: auto, and all with --device cuda]
        gpu_layers "gpu-layers": DeviceLayers {
            letters: Some("-ngl"),
            alias: Some("n-gpu-layers"),
            hints: &[
                ("layers", "`-ngl N`", "`DeviceLayers::Last`"),
                ("layers-auto", "`-ngl auto`", "`DeviceLayers::Auto`"),
                ("layers-none", "`-ngl 0`", "`DeviceLayers::Last(0)`"),
            ]
        } = value("N"), gpu_layers;
        /// Keep the experts of all layers on the CPU
        cpu_moe "cpu-moe": bool { letters: Some("-cmoe") } = SWITCH, parsed;
        /// Keep the experts of the first N layers on the CPU
        n_cpu_moe "n-cpu-moe": usize { letters: Some("-ncmoe"), conflicts: &["cpu_moe"] } = N, count;
        /// Place parts of the GPU's layers: a list of attn, ffn and experts, each with =gpu or =cpu, such as ffn=gpu,attn=cpu
        place "place": PartsRequest = LIST, parsed;
        /// Let the CPU compute the GPU's feed-forward networks in steps of fewer than N tokens; auto measures N and remembers it. Both
        /// then hold these weights in memory
        gpu_batch "gpu-batch": BatchThreshold = N, gpu_batch;
        /// Bandwidths for -ngl auto in place of measured ones, all four: gpu, cpu and the link between them in GB/s, and a crossing in microseconds,
        /// such as gpu=900,cpu=40,link=25,crossing=15
        bandwidths "bandwidths": Bandwidths = LIST, parsed;
        /// Repeat the measurements that -ngl auto and --gpu-batch auto keep for this machine in $XDG_CACHE_HOME/tokenmill or ~/.cache/tokenmill
        measure_again "measure-again": bool { conflicts: &["bandwidths"] } = RARE, parsed;
        /// Number of GPUs that share the model, each with a part of every layer: the first GPU, or the one of --device, and the next ones
        /// [default: 1]
        tensor_parallel_size "tensor-parallel-size": usize {
            letters: Some("-tp"),
            conflicts: &["cpu_moe", "n_cpu_moe", "place", "gpu_batch"],
            elsewhere: &[
                ("llama.cpp", &["-sm", "--split-mode", "-ts", "--tensor-split"],
                    "`--tensor-parallel-size N` divides a model evenly among N GPUs, from the one of `--device cuda:N` on"),
                ("vLLM", &["-pp", "--pipeline-parallel-size", "-dp", "--data-parallel-size"],
                    "`--tensor-parallel-size N` divides each layer among N GPUs; there is no other way to use several"),
            ],
            hints: &[("gpus", "`--tensor-parallel-size N`", "`Compute::n_gpus`")]
        } = value("N"), positive;
        /// How the GPUs of --tensor-parallel-size add up their results: nccl, host (in main memory), or auto, which takes NCCL if it is installed [default: auto]
        all_reduce "all-reduce": AllReduce {
            elsewhere: &[("vLLM", &["--disable-custom-all-reduce"],
                "GPUs add up by NCCL or in the host's memory, never by kernels of this program; `--all-reduce nccl|host` chooses")]
        } = value("WAY").advanced(), parsed;
        /// Give each sequence the same bits in any batch; slower on a GPU, always true on the CPU
        batch_invariant "batch-invariant": bool { conflicts: &["gpu_batch"] } = RARE, parsed
            => |options, is_on| options.compute.gpu.is_batch_invariant = is_on;
    }
}

/// Reads the value of `-ngl`.
fn gpu_layers(text: &str) -> Result<DeviceLayers, String> {
    match text {
        "all" => Ok(DeviceLayers::All),
        "auto" => Ok(DeviceLayers::Auto),
        _ => (text.parse().map(DeviceLayers::Last))
            .map_err(|_| "expected a number of layers, `all` or `auto`".to_owned()),
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
    use super::*;

    #[test]
    fn layers_and_steps_are_numbers_or_words() {
        assert_eq!(gpu_layers("auto"), Ok(DeviceLayers::Auto));
        assert_eq!(gpu_layers("0"), Ok(DeviceLayers::Last(0)));
        assert_eq!(gpu_batch("auto"), Ok(BatchThreshold::Measured));
        assert_eq!(gpu_batch("1"), Ok(BatchThreshold::Tokens(1)));
        for wrong in ["-1", "many", ""] {
            assert!(gpu_layers(wrong).is_err(), "{wrong}");
            assert!(gpu_batch(wrong).is_err(), "{wrong}");
        }
        assert!(gpu_batch("0").is_err());
    }
}
