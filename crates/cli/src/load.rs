//! [`LoadArgs`]: the options that determine how a model is loaded. `place` chooses the devices,
//! `report` loads and reports.
//!
//! Every command that computes takes them. Invariant: an option is obeyed or refused by name.

mod place;
mod report;

use std::{env, fs, path::Path};

use clap::Args;
use tokenmill::{
    Device, KvCache, LoadOptions,
    gpu::{GpuCheckObserver, GpuOptions, WarpgroupProducts},
    load::{Compute, KvType, LimitFlags, LoadFlags, OptionGroup, PlanObserver},
    machine::n_processors,
    placement::{PlacementRequest, SplitObserver},
};
use tokenmill_quant::CpuFeatures;

use crate::{engine_args::EngineArgs, failure::Failure, model_name::FetchArgs};

pub(crate) use report::{
    about_cut_context, about_long_context, about_threads, load, load_network, load_opened,
};

/// How a model is loaded.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Loading")]
pub(crate) struct LoadArgs {
    #[command(flatten)]
    flags: EngineArgs<LoadFlags>,
    #[command(flatten)]
    pub(crate) fetch: FetchArgs,
}

/// Tokens of a step, and those of a step on a GPU that has room for them.
const STEP_TOKENS: usize = 512;
const ROOMY_STEP_TOKENS: usize = 2048;

impl LoadArgs {
    /// Returns the options of a load as far as one flag sets each.
    fn direct(&self) -> LoadOptions {
        let mut options = LoadOptions::default();
        self.flags.0.clone().add_to(&mut options);
        options
    }

    /// The options of a load for one sequence.
    ///
    /// # Errors
    /// Options that cannot be granted.
    pub(crate) fn options(&self) -> Result<LoadOptions, Failure> {
        let direct = self.direct();
        Ok(LoadOptions {
            n_seqs: 1,
            kv_cache: KvCache::Contexts(1),
            max_step_tokens: self
                .flags
                .ubatch_size
                .unwrap_or(STEP_TOKENS)
                .min(self.batch_tokens()),
            compute: self.compute(direct.compute)?,
            ..direct
        })
    }

    /// Tokens of a prompt in one batch.
    fn batch_tokens(&self) -> usize {
        self.flags.batch_size.unwrap_or(usize::MAX)
    }

    /// Returns the load options that `serve` uses by default.
    ///
    /// # Errors
    /// Fails on options that cannot be satisfied.
    pub(crate) fn serve_options(&self) -> Result<LoadOptions, Failure> {
        let mut options = LoadOptions {
            kv_cache: LoadOptions::default().kv_cache,
            ..self.options()?
        };
        LimitFlags::by_default().add_to(&mut options);
        Ok(options)
    }

    /// Completes the compute options.
    ///
    /// # Errors
    /// Options that cannot be granted.
    fn compute(&self, direct: Compute) -> Result<Compute, Failure> {
        Ok(Compute {
            device: self.device()?,
            n_threads: Some(n_threads(&direct)),
            gpu: self.gpu_options()?,
            roomy_step_tokens: match self.flags.ubatch_size {
                None => Some(ROOMY_STEP_TOKENS.min(self.batch_tokens())),
                Some(_) => None,
            },
            n_gpus: self.n_gpus()?,
            all_reduce: self.all_reduce()?,
            cpu_features: self.cpu_features(direct.cpu_features)?,
            // The CPU has no placement.
            placement: match (self.device()?, self.placement()?) {
                (Device::Cpu, _) => PlacementRequest::default(),
                (_, placement) => placement,
            },
            measurements: self.measurements()?,
            on_plan: Some(PlanObserver(report::say_plan)),
            on_split: Some(SplitObserver(report::say_split)),
            on_gpu_check: Some(GpuCheckObserver(report::tell)),
            ..direct
        })
    }

    /// Returns the context size of the command line.
    pub(crate) fn n_ctx_given(&self) -> Option<usize> {
        self.flags.ctx_size
    }

    /// Returns the number of compute threads.
    pub(crate) fn n_threads(&self) -> usize {
        n_threads(&self.direct().compute)
    }

    /// The instruction sets to compute with, where the variable says no others.
    fn cpu_features(&self, direct: CpuFeatures) -> Result<CpuFeatures, Failure> {
        const VARIABLE: &str = "TOKENMILL_CPU_FEATURES";
        match env::var(VARIABLE) {
            Ok(names) if !names.is_empty() && self.flags.cpu_features.is_none() => {
                (names.parse()).map_err(|error| Failure::usage(format!("{VARIABLE}: {error}")))
            }
            _ => Ok(direct),
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
            ..self.direct().compute.gpu
        })
    }

    /// Returns the types of the stored keys and values.
    pub(crate) fn cache_types(&self) -> (KvType, KvType) {
        let direct = self.direct();
        (direct.kv_type, direct.kv_value_type.unwrap_or(direct.kv_type))
    }
}

/// The number of compute threads.
fn n_threads(compute: &Compute) -> usize {
    // Places that cannot be had are refused when the threads are started.
    (compute.n_threads).unwrap_or_else(|| n_processors(&compute.places).unwrap_or(1))
}
