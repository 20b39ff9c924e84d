//! [`CudaBackend`]: the operations of the seam on a GPU.
//!
//! This module only chooses launches; everything else about a kernel is in its own file. One file a subject: loading ([`load`]), running, capturing
//! and replaying a step ([`run`]), the operations in the order of the trait ([`operations`]; on experts in [`experts`], on recurrent states in
//! [`recurrence`], on latent rows in [`latent`], on streams in [`streams`], those that few networks need in [`layers`]), memory of sequences as
//! bytes ([`memory`]), activations ([`buffer`]). Values of a step are uploaded in one copy ([`step`]); results are copied after the step and waited
//! for once ([`results`]). Invariant: all memory is allocated in [`Backend::prepare`](tokenmill_backend::Backend::prepare) and the load that
//! follows, and operations inside [`Backend::run_step`](tokenmill_backend::Backend::run_step) only launch, so a decode step is captured once for
//! its shape and replayed.

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
mod program_device;
mod recurrence;
mod results;
mod run;
pub(crate) mod sampling;
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

/// Runs the operations on one GPU.
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
    /// Copies the memory of sequences as bytes; made at the first request.
    staging: Option<Staging>,
    workspace: Option<Workspace>,
    graphs: crate::GraphCache<run::StepKey, Sources>,
    /// Counts the reallocations of buffers that captured steps use.
    epoch: u64,
    uses_graphs: bool,
    /// Reason of the newest failed capture since captures were last turned on or off.
    capture_failure: Option<String>,
    uses_shared_pages: bool,
    tracer: Option<Tracer>,
    border: split::Border,
    /// The end of the group, if this is a rank. Declared after the graphs, which must be dropped first.
    group_end: Option<GroupEnd>,
    adapters: adapters::Adapters,
}

/// Holds the buffers of steps other than weights, activations and the KV cache.
struct Workspace {
    inputs: StepInputs,
    results: Results,
    attention: crate::AttentionScratch,
    argmax: crate::ArgmaxScratch,
    /// Tokens picked by the newest step that sampled on the device; token ids first.
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
    /// Makes a backend of an opened device.
    ///
    /// # Errors
    /// The device's, for instance if its driver rejects the kernels.
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

    /// Returns why a decode step could not be captured since captures were last turned on or off. The launches of such steps are queued one by one.
    pub fn capture_failure(&self) -> Option<&str> {
        self.capture_failure.as_deref()
    }

    /// Sets whether pages that several rows of a decode step share are read once for all of them. By default the device's options decide.
    /// Batch-invariant steps never do this.
    #[must_use]
    pub fn with_shared_pages(mut self, uses_shared_pages: bool) -> Self {
        self.uses_shared_pages = uses_shared_pages;
        self
    }

    /// Sets whether a sequence's results have the same bits whatever other sequences are in its steps. Off by default, because it is slower: when
    /// it is off, the order in which products add depends on the number of a step's rows.
    #[must_use]
    pub fn with_batch_invariance(mut self, is_batch_invariant: bool) -> Self {
        self.ops.set_batch_invariance(is_batch_invariant);
        self
    }

    /// Measures from now on how steps spend their time.
    ///
    /// # Errors
    /// The driver's.
    pub fn with_trace(mut self) -> Result<Self, crate::CudaExecError> {
        self.tracer = Some(Tracer::new(&self.device)?);
        Ok(self)
    }

    /// Returns the device.
    pub fn device(&self) -> &crate::Device {
        &self.device
    }

    /// Lists the types of the matrices with a use in all plans of this backend, by name.
    pub fn planned_types(&self, has_use: impl Fn(crate::MatrixUse) -> bool) -> Vec<TensorType> {
        self.planned.types(has_use)
    }

    /// Returns the number of captured steps.
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
