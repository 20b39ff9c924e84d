//! Networks on backends, as boxed executors: the naive backend, the CPU, the simulated GPU, and backends split between two sides.
//!
//! Invariant: an executor remembers the type of its backend, so a test can read the counters that only that type has.
//!
//! ```
//! use tokenmill_gguf::TensorType;
//! use tokenmill_model::ModelOptions;
//! use tokenmill_testkit::{NaiveBackend, TinyModel, engines, generate::greedy, tiny_llama};
//!
//! let model = TinyModel::random(tiny_llama(), TensorType::F32, 1);
//! let options = ModelOptions::default();
//! let mut naive = engines::tiny(&model, NaiveBackend::new(), &options);
//! let mut cpu = engines::tiny(&model, engines::cpu(2), &options);
//! assert_eq!(greedy(&mut naive, &[5, 6, 7], 4)?, greedy(&mut cpu, &[5, 6, 7], 4)?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod parity;

use std::any::Any;

use tokenmill_backend::{Executor, program::ProgramDevice};
use tokenmill_cpu_exec::CpuBackend;
use tokenmill_cuda_exec::CudaBackend;
use tokenmill_model::{Descriptor, LoadError, Model, ModelExecutor, ModelOptions, Nextn, WeightSource};
use tokenmill_quant::CpuFeatures;
use tokenmill_sim_driver::{SimOptions, Simulator};

use crate::{NaiveBackend, TinyModel};

pub use parity::{CPU, NAIVE, SIM};

/// A network on a device.
pub type Loaded<B> = Box<dyn OnBackend<B> + Send>;

/// An executor that gives access to its device.
pub trait OnBackend<B: Any>: Executor {
    /// Returns the device, for data that only it has, such as counters.
    fn backend(&self) -> &B;

    /// Returns the device for settings that only it has, between steps.
    fn backend_mut(&mut self) -> &mut B;

    /// Returns the network, for a layer that computes with its embedding and head.
    fn network(&self) -> &ModelExecutor;
}

impl<B: Any> OnBackend<B> for ModelExecutor {
    fn backend(&self) -> &B {
        self.backend()
    }

    fn backend_mut(&mut self) -> &mut B {
        self.backend_mut()
    }

    fn network(&self) -> &ModelExecutor {
        self
    }
}

/// A device on which networks can be loaded.
pub trait Loadable: Any + Into<Box<dyn ProgramDevice>> {}

impl<B: Any + Into<Box<dyn ProgramDevice>>> Loadable for B {}

/// Loads a network of any descriptor and weights.
///
/// # Errors
/// As [`tokenmill_model::build`].
pub fn build<B: Loadable>(
    descriptor: &Descriptor,
    source: &dyn WeightSource,
    backend: B,
    options: &ModelOptions,
) -> Result<Loaded<B>, LoadError> {
    let executor = tokenmill_model::build(descriptor, source, backend, options, &mut |_| {})?;
    Ok(Box::new(executor))
}

/// Loads an opened model.
///
/// # Errors
/// As [`Model::load_on`].
pub fn load<B: Loadable>(model: &Model, backend: B, options: &ModelOptions) -> Result<Loaded<B>, LoadError> {
    build(model.descriptor(), model.weights(), backend, options)
}

/// Loads a tiny model.
///
/// # Panics
/// If it does not load.
#[track_caller]
pub fn tiny<B: Loadable>(model: &TinyModel, backend: B, options: &ModelOptions) -> Loaded<B> {
    build(&model.descriptor, model, backend, options).expect("a tiny model loads")
}

/// Loads an MTP layer, next to its network.
///
/// # Errors
/// As [`Nextn::load_on`].
pub fn guesser(
    nextn: &Nextn<'_>,
    options: &ModelOptions,
    network: &dyn OnBackend<NaiveBackend>,
) -> Result<Loaded<NaiveBackend>, LoadError> {
    let layer = nextn.load_on(NaiveBackend::new(), options, network.network(), &mut |_| {})?;
    Ok(Box::new(layer))
}

/// Makes the CPU's backend, with the instructions of this machine.
///
/// # Panics
/// If the threads cannot be started.
pub fn cpu(n_threads: usize) -> CpuBackend {
    CpuBackend::new(Some(n_threads), CpuFeatures::detect()).expect("a few threads")
}

/// Makes the CUDA backend on a new simulated GPU.
///
/// # Panics
/// If the simulator rejects the kernels.
pub fn gpu() -> CudaBackend {
    gpu_of(&Simulator::new(&SimOptions::default()))
}

/// Makes the CUDA backend on a given simulated GPU, whose counts the test reads.
///
/// # Panics
/// If the simulator rejects the kernels.
pub fn gpu_of(simulator: &Simulator) -> CudaBackend {
    CudaBackend::new(simulator.device()).expect("the simulator loads the kernels")
}
