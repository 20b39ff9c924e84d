//! [`open`] and [`DeviceChoice`]: the GPU that commands work with.
//!
//! A program reads the environment, and the library does not. Invariant: a request by a variable is fulfilled or refused.

use std::{env, fs, path::Path};

use anyhow::Context;
use tokenmill_cuda_exec::{
    Buffers, Carveout, Cubins, Device, DeviceOptions, Launches, Recording, WideProducts,
};
use tokenmill_sim_driver::{SimOptions, Simulator};

/// A GPU that a command computes on.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DeviceChoice {
    /// The simulated device.
    Sim,
    /// The first GPU.
    Cuda,
}

impl DeviceChoice {
    /// Opens the device.
    ///
    /// # Errors
    /// Returns the errors of [`open`] for a GPU.
    pub(crate) fn open(self) -> anyhow::Result<Device> {
        match self {
            Self::Sim => Ok(Simulator::new(&SimOptions::default()).device()),
            Self::Cuda => open(),
        }
    }
}

/// Opens the first GPU as the variables say, except for its products by many rows and whether it can record launches.
///
/// # Errors
/// Returns the errors of [`open`].
pub(crate) fn open_with(wide: WideProducts, recording: Recording) -> anyhow::Result<Device> {
    let options = options()?;
    let wide = match options.wide {
        WideProducts::Never => WideProducts::Never,
        WideProducts::WhereThere => wide,
    };
    let options = DeviceOptions {
        wide,
        recording,
        ..options
    };
    Device::open_as(0, options).context("no device")
}

/// Opens the first GPU with the variables `TOKENMILL_CUDA_APART`, `TOKENMILL_CUDA_CUBINS`, `TOKENMILL_CUDA_IN_ORDER`,
/// `TOKENMILL_CUDA_NO_WIDE`, `TOKENMILL_CUDA_NO_SHARED`, `TOKENMILL_CUDA_NO_GRAPHS` and `TOKENMILL_CUDA_NO_CARVEOUT`, as `tokenmill` does.
///
/// # Errors
/// No GPU that can be used, or a file of kernels that cannot be read.
pub(crate) fn open() -> anyhow::Result<Device> {
    Device::open_as(0, options()?).context("no device")
}

/// Reads the options from the variables.
fn options() -> anyhow::Result<DeviceOptions> {
    const CUBINS: &str = "TOKENMILL_CUDA_CUBINS";
    let cubins = match env::var_os(CUBINS) {
        Some(path) if !path.is_empty() => {
            let bytes = fs::read(&path)
                .with_context(|| format!("{CUBINS}: cannot read {}", Path::new(&path).display()))?;
            let cubins = Cubins::new(bytes);
            Some(cubins.with_context(|| format!("{CUBINS}={}", Path::new(&path).display()))?)
        }
        _ => None,
    };
    let is_set = |name: &str| env::var(name).is_ok_and(|value| value == "1");
    let buffers = if is_set("TOKENMILL_CUDA_APART") {
        Buffers::Apart
    } else {
        Buffers::Together
    };
    let launches = if is_set("TOKENMILL_CUDA_IN_ORDER") {
        Launches::InOrder
    } else {
        Launches::Early
    };
    let wide = if is_set("TOKENMILL_CUDA_NO_WIDE") {
        WideProducts::Never
    } else {
        WideProducts::WhereThere
    };
    Ok(DeviceOptions {
        buffers,
        cubins,
        launches,
        wide,
        reads_apart: is_set("TOKENMILL_CUDA_NO_SHARED"),
        carveout: if is_set("TOKENMILL_CUDA_NO_CARVEOUT") {
            Carveout::OfDriver
        } else {
            Carveout::Shared
        },
        runs_eagerly: is_set("TOKENMILL_CUDA_NO_GRAPHS"),
        ..DeviceOptions::default()
    })
}
