//! [`CudaBackend`]: the operations of the seam on a GPU.
//!
//! Only the choice of launches stands here; the kernels' own files have the rest. One file a subject: what a load does
//! ([`load`]), how a step is run, captured and replayed ([`run`]), the operations in the order of the trait
//! ([`operations`]; on experts in [`experts`], on recurrent states in [`recurrence`], on latent rows in [`latent`], on streams in [`streams`], and those that few networks need
//! in [`layers`]), memory of sequences as bytes ([`memory`]), activations ([`buffer`]). Values of a step go up in one copy
//! ([`step`]), results come down after the step and are waited for once ([`results`]). Invariant: everything is
//! allocated in [`Backend::prepare`](tokenmill_backend::Backend::prepare) and the load that follows, and operations inside
//! [`Backend::run_step`](tokenmill_backend::Backend::run_step) only launch, so a decode step is captured once for its shape and replayed.

mod adapters;
mod attention;
mod buffer;
mod experts;
mod group;
mod hidden;
mod input_rows;
mod latent;
mod layers;
mod load;
mod memory;
mod operations;
mod places;
mod planned;
mod products;
mod recurrence;
mod results;
mod run;
mod sampling;
mod segments;
mod shared_pages;
mod split;
mod step;
mod streams;
mod trace;

use tokenmill_backend::{Backend, BackendError, KvLayerShape, KvStores};
use tokenmill_gguf::TensorType;

pub use self::buffer::CudaBuffer;
use self::{
    group::GroupEnd,
    hidden::HiddenInputs,
    input_rows::InputRows,
    memory::Staging,
    results::{PickedLayout, Results, Sources},
    step::StepInputs,
    trace::Tracer,
};

/// A GPU.
pub struct CudaBackend {
    device: crate::Device,
    ops: crate::Ops,
    uploader: crate::Uploader,
    /// Kinds of matrices in the plans.
    planned: planned::Planned,
    /// Types of the matrices that are multiplied.
    factor_types: Vec<TensorType>,
    kv: Option<KvStores<crate::KvStore>>,
    kv_heads: Vec<KvLayerShape>,
    /// `None` for a network without recurrent layers.
    states: Option<crate::StateSlots>,
    /// For the memory of sequences as bytes, once it was asked for.
    staging: Option<Staging>,
    workspace: Option<Workspace>,
    graphs: crate::GraphCache<run::StepKey, Sources>,
    /// Counts the moves of what captured steps hold.
    epoch: u64,
    uses_graphs: bool,
    /// Reason of the newest failed capture since captures were last turned on or off.
    capture_failure: Option<String>,
    uses_shared_pages: bool,
    tracer: Option<Tracer>,
    border: split::Border,
    /// Where this is a rank of a group: its end of it. Behind the graphs, which have to go before it does.
    group_end: Option<GroupEnd>,
    adapters: adapters::Adapters,
}

/// Holds the buffers of steps other than weights, activations and the KV cache.
struct Workspace {
    inputs: StepInputs,
    results: Results,
    attention: crate::AttentionScratch,
    argmax: crate::ArgmaxScratch,
    /// Picks of the newest step that sampled on the device; tokens first.
    picked: crate::Buffer<u32>,
    picked_layout: PickedLayout,
    /// Tokens of the step before it.
    previous: crate::Buffer<u32>,
    sampling: crate::SampleScratch,
    /// `None` without a layer that drafts tokens.
    hidden: Option<HiddenInputs>,
    input_rows: InputRows,
}

impl CudaBackend {
    /// Takes an opened device.
    ///
    /// # Errors
    /// A device error: a driver that does not take the kernels.
    pub fn new(device: crate::Device) -> Result<Self, crate::CudaExecError> {
        Ok(Self {
            ops: crate::Ops::load(&device)?,
            uploader: crate::Uploader::new(&device),
            planned: planned::Planned::default(),
            factor_types: Vec::new(),
            kv: None,
            kv_heads: Vec::new(),
            states: None,
            staging: None,
            workspace: None,
            graphs: crate::GraphCache::default(),
            epoch: 0,
            uses_graphs: !device.options().runs_eagerly,
            capture_failure: None,
            uses_shared_pages: !device.options().reads_apart,
            tracer: None,
            border: split::Border::default(),
            group_end: None,
            adapters: adapters::Adapters::default(),
            device,
        })
    }

    /// Turns the capture of decode steps on or off; by default the device's options decide.
    #[must_use]
    pub fn with_graphs(mut self, uses_graphs: bool) -> Self {
        self.uses_graphs = uses_graphs;
        self
    }

    /// Turns the capture of decode steps on or off, and drops the captured graphs.
    pub fn set_graphs(&mut self, uses_graphs: bool) {
        self.uses_graphs = uses_graphs;
        self.capture_failure = None;
        self.epoch += 1;
    }

    /// Returns why a decode step could not be captured since captures were last turned on or off. Such steps are queued launch by launch.
    pub fn capture_failure(&self) -> Option<&str> {
        self.capture_failure.as_deref()
    }

    /// Turns the reading of pages that rows of a decode step share, once for all of them, on or off; at first it is as the device's options say. It has no
    /// part in batch-invariant steps.
    #[must_use]
    pub fn with_shared_pages(mut self, uses_shared_pages: bool) -> Self {
        self.uses_shared_pages = uses_shared_pages;
        self
    }

    /// Says whether a sequence's results have the same bits whatever other sequences are in its steps; off at first, since that is slower.
    /// Where it is off, products add in an order that depends on the number of a step's rows.
    #[must_use]
    pub fn with_batch_invariance(mut self, is_batch_invariant: bool) -> Self {
        self.ops.set_batch_invariance(is_batch_invariant);
        self
    }

    /// Measures from now on what the time of steps goes to.
    ///
    /// # Errors
    /// The driver's.
    pub fn with_trace(mut self) -> Result<Self, crate::CudaExecError> {
        self.tracer = Some(Tracer::new(&self.device)?);
        Ok(self)
    }

    /// The device.
    pub fn device(&self) -> &crate::Device {
        &self.device
    }

    /// Lists the types of multiplied matrices in all plans of this backend.
    pub fn planned_types(&self) -> Vec<TensorType> {
        self.planned.types()
    }

    /// Captured steps.
    pub fn n_graphs(&self) -> usize {
        self.graphs.n_graphs()
    }

    fn workspace(&mut self) -> &mut Workspace {
        prepared(&mut self.workspace)
    }
}

fn prepared(workspace: &mut Option<Workspace>) -> &mut Workspace {
    workspace.as_mut().expect("the load prepares before it uploads")
}

impl From<crate::CudaExecError> for BackendError {
    fn from(error: crate::CudaExecError) -> Self {
        match error {
            crate::CudaExecError::OutOfMemory {
                purpose,
                needed_bytes,
                free_bytes,
            } => Self::OutOfMemory {
                purpose,
                needed_bytes,
                free_bytes,
                device: CudaBackend::NAME,
            },
            crate::CudaExecError::Lost { operation, reason } => Self::Lost {
                operation,
                source: reason.into(),
            },
            crate::CudaExecError::Failed { operation, reason } => Self::Failed {
                operation,
                source: reason.into(),
            },
            crate::CudaExecError::Unsupported { feature } => Self::Unsupported {
                feature,
                device: CudaBackend::NAME,
            },
            source @ (crate::CudaExecError::NoDriver
            | crate::CudaExecError::NoDevice { .. }
            | crate::CudaExecError::NoSuchDevice { .. }
            | crate::CudaExecError::ComputeCapability { .. }
            | crate::CudaExecError::DriverTooOld { .. }
            | crate::CudaExecError::NoJitCompiler { .. }) => Self::Unavailable {
                source: Box::new(source),
            },
            other => Self::Failed {
                operation: "a CUDA operation",
                source: other.into(),
            },
        }
    }
}
