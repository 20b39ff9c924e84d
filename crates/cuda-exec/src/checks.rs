//! [`check_kernels`]: the kernels that a model will use against plain loops in this process, on small shapes.
//!
//! For the first use of a GPU: no test of this project has run its kernels on every card and with every driver. Separate from what uses the
//! answer. Invariants: what is expected is computed here without a kernel, from what the kernels are given; a check that fails names its kernel and
//! what can be turned off so that another takes its place.

mod attention;
mod expected;
mod ladder;
mod products;
mod rows;
mod steps;

use std::fmt;

use tokenmill_backend::KvType;
use tokenmill_gguf::TensorType;

pub use self::{
    ladder::FirstUse,
    steps::{CHECKED_TOKENS, Way, compare_steps, compare_ways},
};
use crate::{CudaExecError, Device, NotedLaunch, Ops, error::Result, modules::WIDE_ATTENTION};

/// What can be turned off of a GPU's use, each of which leaves other kernels or another way to launch in its place, in the order in which it is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StepDown {
    /// Launches no longer begin before those before them are done.
    InOrder,
    /// No matrix operations of warpgroups.
    NoWide,
    /// Pages that sequences share are read by each for itself.
    Apart,
    /// Steps that decode are queued launch by launch.
    Eager,
}

impl StepDown {
    /// All, in order.
    pub const ALL: [Self; 4] = [Self::InOrder, Self::NoWide, Self::Apart, Self::Eager];

    /// A name for files.
    pub fn name(self) -> &'static str {
        match self {
            Self::InOrder => "in_order",
            Self::NoWide => "no_wide",
            Self::Apart => "apart",
            Self::Eager => "eager",
        }
    }

    /// The one of a name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|step| step.name() == name)
    }

    /// The one that takes the place of a kernel by another; `None` where no other does what it does.
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
            Self::NoWide => "no matrix operations of warpgroups",
            Self::Apart => "shared pages are read apart",
            Self::Eager => "steps are not captured",
        })
    }
}

/// What kernels a model needs, as far as they are checked by themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Types of the matrices that are multiplied.
    pub types: Vec<TensorType>,
    /// Types of keys and values.
    pub kv_types: [KvType; 2],
    /// Width of heads that have keys and values of their own, where there are such.
    pub head_dim: Option<usize>,
}

/// A check that failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// What was checked.
    pub check: String,
    /// The kernel that was launched last, as `module/kernel`; empty where none was.
    pub kernel: String,
    /// What was wrong.
    pub reason: String,
    /// What is turned off, so that another kernel takes its place.
    pub remedy: Option<StepDown>,
    /// Whether the device is lost: it has to be opened again.
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

/// Why a check failed: the device's error, or numbers that are too far from what is expected.
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
    fn new(check: String, launches: &[NotedLaunch], wrong: Wrong) -> Self {
        let last = launches.last();
        let (reason, is_lost) = match wrong {
            Wrong::Device(error) => (error.to_string(), matches!(error, CudaExecError::Lost { .. })),
            Wrong::Numbers(reason) => (reason, false),
        };
        // Of the kernels that a check launches, one that another can take the place of is the one that it is about.
        let remedy = (launches.iter()).find_map(|launch| StepDown::instead_of(&launch.module));
        Self {
            check,
            kernel: last.map_or_else(String::new, |launch| format!("{}/{}", launch.module, launch.name)),
            reason,
            remedy,
            is_lost,
        }
    }
}

/// Runs one check.
fn check(device: &Device, what: String, run: impl FnOnce() -> Result<(), Wrong>) -> Result<(), Finding> {
    let (result, launches) = device.launches_of(run);
    result.map_err(|wrong| Finding::new(what, &launches, wrong))
}

/// Checks the kernels of a model. Gives how many checks there were.
///
/// # Errors
/// The first that failed.
pub fn check_kernels(device: &Device, needs: &Needs) -> Result<usize, Finding> {
    let load = || -> Result<Ops> {
        let mut ops = Ops::load(device)?;
        if needs.head_dim.is_some() {
            ops.load_store(needs.kv_types)?;
            ops.load_runs(needs.kv_types)?;
        }
        ops.allow_splits()?;
        ops.allow_halves(products::MOST_ROWS, products::WIDTH)?;
        Ok(ops)
    };
    let ops = load().map_err(|error| Finding::new("loading kernels".to_owned(), &[], error.into()))?;
    let n_rows = rows::check_all(device, &ops)?;
    let n_products = products::check_all(device, &ops, &needs.types)?;
    let n_attention = match needs.head_dim {
        Some(dim) => attention::check_all(device, &ops, needs.kv_types, dim)?,
        None => 0,
    };
    Ok(n_rows + n_products + n_attention)
}
