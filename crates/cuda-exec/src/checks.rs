//! [`check_kernels`] compares the kernels that a model will use with plain loops on the CPU, on small shapes.
//!
//! They run at the first use of a GPU, because no test of this project has run its kernels on every card and driver. Invariants: the
//! expected values are computed here without a kernel, from the kernels' inputs; a failed check names its kernel and the feature that can
//! be turned off to replace it.

mod adapters;
mod attention;
mod checked_layer;
mod expected;
mod experts;
mod joined;
mod known;
mod ladder;
mod products;
mod recurrence;
mod rows;
mod sampling;
mod shared_pages;
mod steps;
mod tokens;
mod ways;

use std::{collections::BTreeSet, fmt};

use tokenmill_backend::KvType;
use tokenmill_gguf::TensorType;

pub use self::{
    ladder::FirstUse,
    steps::{CHECKED_TOKENS, Way, compare_steps, compare_ways},
};
use crate::{CudaExecError, Device, NotedLaunch, Ops, error::Result, modules::WIDE_ATTENTION};

/// Names a feature that can be turned off, so that other kernels or another way of launching replace it. Features are turned off in this
/// order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StepDown {
    /// A launch begins only after the launches before it are done.
    InOrder,
    /// No warpgroup matrix operations (wgmma).
    NoWide,
    /// Each sequence reads shared pages separately.
    Apart,
    /// Decode steps are queued launch by launch, without CUDA graphs.
    Eager,
}

impl StepDown {
    /// Lists all features, in order.
    pub const ALL: [Self; 4] = [Self::InOrder, Self::NoWide, Self::Apart, Self::Eager];

    /// Returns the name that is written to files.
    pub fn name(self) -> &'static str {
        match self {
            Self::InOrder => "in_order",
            Self::NoWide => "no_wide",
            Self::Apart => "apart",
            Self::Eager => "eager",
        }
    }

    /// Finds a feature by its name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|step| step.name() == name)
    }

    /// Returns the feature to turn off so that another kernel replaces that of `module`; `None` if there is no other.
    pub fn instead_of(module: &str) -> Option<Self> {
        if module.starts_with("matmul_wide")
            || module == WIDE_ATTENTION
            || module == crate::modules::WIDE_ROWS
        {
            Some(Self::NoWide)
        } else if ["attention_shared", "attention_rest"].contains(&module) {
            Some(Self::Apart)
        } else {
            None
        }
    }
}

impl fmt::Display for StepDown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InOrder => "launches follow each other in order",
            Self::NoWide => "matrix products do not use warpgroups",
            Self::Apart => "each sequence reads shared pages for itself",
            Self::Eager => "steps are not captured",
        })
    }
}

/// Lists the kernels that a model needs and that can be checked without it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Types of the weight matrices that are multiplied.
    pub types: Vec<TensorType>,
    /// Types of the tables in which tokens are looked up.
    pub table_types: Vec<TensorType>,
    /// Types of the matrices of experts.
    pub expert_types: Vec<TensorType>,
    /// Types of keys and values.
    pub kv_types: [KvType; 2],
    /// Attention heads of the layers; layers with latent keys and values have none.
    pub heads: Vec<HeadsNeed>,
    /// Whether there are recurrent layers.
    pub is_recurrent: bool,
    /// Whether a row's results may not depend on how many rows there are, for which other kernels are used.
    pub is_batch_invariant: bool,
}

/// Describes the attention heads of a layer, as far as they determine the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeadsNeed {
    /// Width of a key.
    pub dim: usize,
    /// Query heads for each head of keys and values.
    pub group: usize,
}

/// Describes a failed check.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// Name of the check.
    pub check: String,
    /// The last launched kernel, as `module/kernel`; empty if none was launched.
    pub kernel: String,
    /// Cause of the failure.
    pub reason: String,
    /// Feature to turn off, so that another kernel is used.
    pub remedy: Option<StepDown>,
    /// Whether the context is lost; the device must then be opened again.
    pub is_lost: bool,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            check,
            kernel,
            reason,
            ..
        } = self;
        if kernel.is_empty() {
            write!(f, "{check}: {reason}")
        } else {
            write!(f, "{check} ({kernel}): {reason}")
        }
    }
}

/// Holds the cause of a failed check: the device's error, or numbers that are too far from the expected ones.
#[derive(Debug)]
pub(crate) enum Wrong {
    Device(CudaExecError),
    Numbers(String),
}

impl From<CudaExecError> for Wrong {
    fn from(error: CudaExecError) -> Self {
        Self::Device(error)
    }
}

impl Finding {
    /// Describes a failure after some launches. The last one is at fault, or the last one of the module that the check is about.
    fn new(check: String, launches: &[NotedLaunch], about: Option<&str>, wrong: Wrong) -> Self {
        let of_module = |module| launches.iter().rfind(|launch| launch.module == module);
        let at_fault = about.and_then(of_module).or(launches.last());
        let (reason, is_lost) = match wrong {
            Wrong::Device(error) => (error.to_string(), matches!(error, CudaExecError::Lost { .. })),
            Wrong::Numbers(reason) => (reason, false),
        };
        // The check is about the first kernel that can be replaced.
        let remedy = (launches.iter()).find_map(|launch| StepDown::instead_of(&launch.module));
        Self {
            check,
            kernel: at_fault.map_or_else(String::new, |launch| format!("{}/{}", launch.module, launch.name)),
            reason,
            remedy,
            is_lost,
        }
    }
}

/// Runs one check, whose last launch is the one that it is about.
fn check(device: &Device, what: String, run: impl FnOnce() -> Result<(), Wrong>) -> Result<(), Finding> {
    check_about(device, what, None, run)
}

/// Runs one check, which is about the launch of a module.
fn check_about(
    device: &Device,
    what: String,
    module: Option<&str>,
    run: impl FnOnce() -> Result<(), Wrong>,
) -> Result<(), Finding> {
    let (result, launches) = device.launches_of(run);
    result.map_err(|wrong| Finding::new(what, &launches, module, wrong))
}

/// Checks the kernels of a model and returns the number of checks.
///
/// # Errors
/// Returns the first check that failed.
pub fn check_kernels(device: &Device, needs: &Needs) -> Result<usize, Finding> {
    let may_share = !device.options().reads_apart && !needs.is_batch_invariant;
    let shares = |dim: usize| may_share && Ops::can_share(shared_pages::layer(dim), needs.kv_types);
    let load = || -> Result<Ops> {
        let mut ops = Ops::load(device)?;
        ops.set_batch_invariance(needs.is_batch_invariant);
        for pair in products::pairs_of(&needs.types) {
            ops.load_pair(pair)?;
        }
        if !needs.expert_types.is_empty() {
            // They have the kernels of other experts, and some more.
            ops.expect_float_experts();
        }
        if !needs.heads.is_empty() {
            ops.load_store(needs.kv_types)?;
            ops.load_runs(needs.kv_types)?;
        }
        if needs.is_recurrent {
            ops.load_recurrence()?;
        }
        ops.load_adapters()?;
        if needs.heads.iter().any(|heads| shares(heads.dim)) {
            ops.load_shared()?;
        }
        ops.allow_splits()?;
        ops.allow_halves(products::MOST_ROWS, ways::WIDTH)?;
        Ok(ops)
    };
    let ops = load().map_err(|error| Finding::new("loading kernels".to_owned(), &[], None, error.into()))?;
    let mut n_checks = rows::check_all(device, &ops)?;
    n_checks += tokens::check_all(device, &ops, &needs.table_types)?;
    n_checks += sampling::check_all(device, &ops)?;
    n_checks += adapters::check_all(device, &ops)?;
    n_checks += products::check_all(device, &ops, &needs.types)?;
    n_checks += products::check_pairs(device, &ops, &needs.types)?;
    if !needs.is_batch_invariant {
        n_checks += ways::check_all(device, &ops, &needs.types)?;
    }
    n_checks += joined::check_all(device, &ops, &needs.types)?;
    n_checks += experts::check_all(device, &ops, &needs.expert_types)?;
    for &heads in &needs.heads {
        n_checks += attention::check_all(device, &ops, needs.kv_types, heads)?;
    }
    let dims: BTreeSet<usize> = needs.heads.iter().map(|heads| heads.dim).collect();
    for dim in dims.into_iter().filter(|&dim| shares(dim)) {
        n_checks += shared_pages::check_all(device, &ops, dim)?;
    }
    if needs.is_recurrent {
        n_checks += recurrence::check_all(device, &ops)?;
    }
    Ok(n_checks)
}
