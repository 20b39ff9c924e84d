//! [`CpuBackend`] runs the operations of the backend trait on the host; each trait's operations have a file of their own.
//!
//! These files only slice buffers; the arithmetic is in the operations' own files. Invariant: buffers are
//! allocated at load, operations take slices of them.

mod adapters;
mod angles;
mod experts;
mod inputs;
mod latent;
mod layers;
mod load;
mod memory;
mod operations;
mod program_device;
mod recurrence;
mod sampling;
mod split;
mod streams;

use std::{collections::BTreeSet, sync::Arc};

use tokenmill_backend::{BackendError, HostStep, KvStores, KvType, Norm, NormKind, StepShape};
use tokenmill_quant::CpuFeatures;

use adapters::Adapters;
use angles::StepAngles;
pub use experts::RouteObserver;
pub use inputs::{InputObserver, ProductInput};
use sampling::Sampling;
pub use split::AwakeThreads;

/// The CPU.
pub struct CpuBackend {
    /// The host, shared so that a step can keep the pool awake while operations borrow the backend.
    host: Arc<crate::Host>,
    /// The processors that its threads use.
    places: crate::Places,
    workspace: crate::Workspace,
    kv: Option<KvStores<PagedStore>>,
    /// The types of the keys and the values in `kv`.
    kv_types: (KvType, KvType),
    states: Option<crate::StateStore>,
    step: HostStep,
    sampling: Sampling,
    scratch: Vec<f32>,
    /// The number of threads in a step with one token per sequence; `n_prefill_threads` is for other steps.
    n_decode_threads: usize,
    n_prefill_threads: usize,
    n_steps: u64,
    n_vectors: usize,
    angles: Vec<StepAngles>,
    adapters: Adapters,
    /// The size in bytes from which tables for [`Backend::embed`](tokenmill_backend::Backend::embed) stay in
    /// their files.
    table_bytes_in_file: Option<usize>,
    /// A buffer per thread for a row of such a table.
    row_buffers: Vec<Vec<u8>>,
    route_observer: Option<RouteObserver>,
    input_observer: Option<InputObserver>,
    /// The tensors whose inputs are reported.
    shown_tensors: BTreeSet<String>,
}

/// The pages of a group of layers.
struct PagedStore {
    pool: crate::KvStore,
    host_tier: Option<crate::KvStore>,
}

/// A weight vector with a number that identifies it.
pub struct CpuVector {
    id: usize,
    values: Vec<f32>,
}

impl CpuBackend {
    /// Starts the threads. `None` starts one for each available processor.
    ///
    /// # Errors
    /// [`BackendError::Failed`] if that many threads cannot be started.
    pub fn new(n_threads: Option<usize>, features: CpuFeatures) -> Result<Self, BackendError> {
        Self::placed(n_threads, features, crate::Places::default())
    }

    /// Does the same as [`Self::new`], with threads pinned to their places. `None` starts one for each
    /// processor of these places.
    ///
    /// # Errors
    /// Returns the errors of [`Self::new`], and an error for places that the process may not use.
    pub fn placed(
        n_threads: Option<usize>,
        features: CpuFeatures,
        places: crate::Places,
    ) -> Result<Self, BackendError> {
        let started = n_threads
            .map_or_else(|| crate::Pool::n_available_in(&places), Ok)
            .and_then(|n_threads| crate::Host::placed(n_threads, features, &places));
        let host = started.map_err(|error| failed("starting threads", error))?;
        let n_threads = host.pool().n_threads();
        Ok(Self {
            places,
            workspace: crate::Workspace::new(&host),
            host: Arc::new(host),
            kv: None,
            kv_types: Default::default(),
            states: None,
            step: HostStep::default(),
            sampling: Sampling::default(),
            scratch: Vec::new(),
            n_decode_threads: n_threads,
            n_prefill_threads: n_threads,
            n_steps: 0,
            n_vectors: 0,
            angles: Vec::new(),
            adapters: Adapters::default(),
            table_bytes_in_file: None,
            row_buffers: Vec::new(),
            route_observer: None,
            input_observer: None,
            shown_tensors: BTreeSet::new(),
        })
    }

    /// Sets another number of threads for steps that compute prompts. Results do not depend on it. Call it
    /// before a model is loaded, because the load reserves the workspace for these threads.
    ///
    /// # Errors
    /// [`BackendError::Failed`] if that many threads cannot be started.
    pub fn set_prefill_threads(&mut self, n_threads: usize) -> Result<(), BackendError> {
        if n_threads == 0 || n_threads > self.host.pool().n_threads() {
            let host = crate::Host::placed(n_threads, self.host.features(), &self.places)
                .map_err(|error| failed("starting threads", error))?;
            self.workspace = crate::Workspace::new(&host);
            self.host = Arc::new(host);
        }
        self.n_prefill_threads = n_threads;
        Ok(())
    }

    /// Sets the number of threads that pack weights. Steps still use all threads.
    pub fn set_load_threads(&mut self, n_threads: usize) {
        self.host.pool().set_width(n_threads);
    }

    /// Leaves tables of embeddings of at least `n_bytes` in their files, if the files hold the rows as they
    /// are, and reads the rows of a step from there. With `None` all tables are in memory. Results do not
    /// depend on it. Call it before a model is loaded.
    pub fn leave_tables_in_files(&mut self, n_bytes: Option<usize>) {
        self.table_bytes_in_file = n_bytes;
    }

    /// Returns the number of bytes reserved for operations to use while they run: the workspace of the memory
    /// plan.
    pub fn held_workspace_bytes(&self) -> usize {
        self.workspace.n_bytes()
    }

    /// Measures how many bytes per second the threads of a decode step read from main memory. It reads at
    /// most `max_bytes` and takes some tenths of a second.
    ///
    /// # Errors
    /// [`BackendError::Failed`] if the memory to read cannot be allocated.
    pub fn measure_read_speed(&self, max_bytes: usize) -> Result<crate::ReadSpeed, BackendError> {
        self.host.pool().set_width(self.n_decode_threads);
        let measured = crate::read_speed::read_speed(self.host.pool(), max_bytes);
        measured.map_err(|error| failed("measuring how fast memory is read", error))
    }

    /// Sets the number of threads that take part in a step of this shape.
    fn set_width(&self, shape: &StepShape) {
        self.host.pool().set_width(if shape.n_tokens > shape.n_seqs {
            self.n_prefill_threads
        } else {
            self.n_decode_threads
        });
    }

    fn normalize(&mut self, norm: &Norm<CpuVector>, rows: &mut [f32]) {
        let (weight, bias) = (values_of(norm.weight.as_ref()), values_of(norm.bias.as_ref()));
        match norm.kind {
            NormKind::Rms => {
                crate::rms_norm_in_place(&self.host, rows, norm.width, weight, norm.eps);
                if let Some(bias) = bias {
                    for row in rows.chunks_exact_mut(norm.width) {
                        crate::add(&self.host, row, bias);
                    }
                }
            }
            NormKind::Layer => {
                self.scratch.clear();
                self.scratch.extend_from_slice(rows);
                crate::layer_norm(
                    &self.host,
                    &self.scratch,
                    norm.width,
                    weight,
                    bias,
                    norm.eps,
                    rows,
                );
            }
        }
    }
}

const KV_ALLOCATED: &str = "the KV store is allocated at load";

fn values_of(vector: Option<&CpuVector>) -> Option<&[f32]> {
    vector.map(|vector| vector.values.as_slice())
}

fn failed(operation: &'static str, error: crate::CpuExecError) -> BackendError {
    BackendError::Failed {
        operation,
        source: error.into(),
    }
}
