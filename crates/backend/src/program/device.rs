//! [`ProgramDevice`]: a device that runs the programs of one network.
//!
//! It is object-safe, so the code that loads and runs a network is compiled once, whatever the devices are. A step is one
//! call. Invariant: a device keeps its own form of every weight at the index under which the program names it.
//!
//! ```text
//! at any time   weigh, trace, takes_late_masks, takes_rows, sequences (their format)
//! a load        prepare, share (if weights are shared), weights, alloc
//! then          run_step, read, copy_pages, adapters, sequences; host_rows, with further weights for them
//! ```

use std::any::Any;

use crate::{
    Activation, AdapterError, AdapterId, BackendError, ExecutorLimits, ForwardBatch, KvLayout, MatrixData,
    MemoryPlan, NetworkShape, PageCopy, PageGroup, SequenceMemory, StateLayout, StepOutput, StepTrace, Weigh,
};

use super::{LinearId, MatrixId, NormId, Prepared, WeightStore};

/// A device with the memory of one network. Every error is a device error.
///
/// [`Bridge`](super::Bridge) makes one of a [`Backend`](crate::Backend); a split network's implements it itself. A provided method
/// says that the device lacks something, which its callers ask before they use it.
#[expect(
    clippy::missing_errors_doc,
    reason = "the calls fail alike, which the trait's documentation says"
)]
pub trait ProgramDevice: Any + Send {
    /// Returns the facts about the device that a memory plan needs.
    fn weigh(&self) -> &dyn Weigh;

    /// Returns whether [`RowMask::Late`](crate::RowMask::Late) is awaited when rows are sampled, not when a step begins.
    fn takes_late_masks(&self) -> bool {
        false
    }

    /// Returns whether steps may have non-token inputs, and tokens that see later ones ([`ForwardBatch::input_rows`],
    /// [`ForwardBatch::last_seen`]).
    fn takes_rows(&self) -> bool {
        false
    }

    /// Returns how the steps read so far spent their time; `None` if the device does not measure it, or was
    /// not asked to.
    fn trace(&self) -> Option<StepTrace>;

    /// Prepares a load: with the widths of the network, the largest step, the KV store, and the memory planned for all
    /// of them.
    fn prepare(
        &mut self,
        network: &NetworkShape,
        limits: &ExecutorLimits,
        kv: &KvLayout,
        plan: &MemoryPlan,
    ) -> Result<(), BackendError>;

    /// Sets the matrices that [`WeightStore::share_matrix`] takes, in this order, from a network that another value of the
    /// same type has on the same hardware.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] if the backend cannot share matrices or `other` has another type.
    ///
    /// # Panics
    /// If the other network has no matrix with one of these indices.
    fn share(&mut self, other: &dyn ProgramDevice, matrices: &[MatrixId]) -> Result<(), BackendError>;

    /// Returns the store of weights, which numbers them in order.
    fn weights(&mut self) -> &mut dyn WeightStore;

    /// Allocates the KV store, the recurrent states if the network has some, and the memory of the programs, which the
    /// device keeps and runs. Called once, after the weights and before the first step.
    fn alloc(
        &mut self,
        prepared: Prepared,
        kv: &KvLayout,
        states: Option<&StateLayout>,
    ) -> Result<(), BackendError>;

    /// Begins a validated step and runs its program.
    ///
    /// A [`TokenSource::SampledRow`](crate::TokenSource::SampledRow) refers to a row sampled in the previous
    /// step, whose results may not have been read yet.
    fn run_step(&mut self, batch: &ForwardBatch) -> Result<(), BackendError>;

    /// Waits for the oldest unread step and writes its results: the sampled rows, log-probabilities, raw
    /// logits and hidden states that its batch requested.
    fn read(&mut self, output: &mut StepOutput) -> Result<(), BackendError>;

    /// Copies whole KV pages of a group in order, between the steps begun earlier and those begun later. The
    /// pages are in range.
    fn copy_pages(&mut self, group: PageGroup, copies: &[PageCopy]) -> Result<(), BackendError>;

    /// Returns the memory of sequences, for its format.
    fn sequences(&self) -> &dyn SequenceMemory;

    /// Returns the memory of sequences, to read and write it.
    fn sequences_mut(&mut self) -> &mut dyn SequenceMemory;

    /// Returns whether steps may name an adapter.
    fn has_adapter(&self, id: AdapterId) -> bool {
        let _ = id;
        false
    }

    /// Returns the store of adapters; `None` if the device does not compute with them.
    fn adapters(&mut self) -> Option<&mut dyn AdapterStore> {
        None
    }

    /// Returns the operations on rows of the host; `None` if the device's rows are elsewhere.
    fn host_rows(&mut self) -> Option<&mut dyn HostRows> {
        None
    }

    /// Returns the backend, for settings and counters that only its type has.
    fn backend(&self) -> &dyn Any;

    /// Returns the backend mutably, for settings between steps.
    fn backend_mut(&mut self) -> &mut dyn Any;
}

/// The adapters on a device. An adapter's changes are uploaded one by one; then it is added as a whole.
pub trait AdapterStore {
    /// Begins an adapter of `n_bytes`, which changes some of `n_places` weights, unless it has begun.
    ///
    /// # Errors
    /// [`AdapterError::Device`] with the needed and the available bytes.
    fn begin(&mut self, id: AdapterId, n_bytes: usize, n_places: usize) -> Result<(), AdapterError>;

    /// Uploads a begun adapter's change of the weight at `place`
    /// ([`Linear::adapter_place`](crate::Linear::adapter_place)), unless it is on the device.
    ///
    /// # Errors
    /// A device error.
    fn upload(&mut self, id: AdapterId, place: usize, change: &ChangeData<'_>) -> Result<(), AdapterError>;

    /// Adds the adapter of the uploaded changes, multiplied by `strength`: completely or not at all.
    ///
    /// # Errors
    /// [`AdapterError::Strength`] if a change becomes infinite, or a device error.
    fn add(&mut self, id: AdapterId, strength: f32) -> Result<(), AdapterError>;

    /// Adds an adapter that shares another's changes and has its own strength.
    ///
    /// # Errors
    /// [`AdapterError::NotLoaded`], and those of [`Self::add`].
    fn copy(&mut self, from: AdapterId, id: AdapterId, strength: f32) -> Result<(), AdapterError>;

    /// Forgets the uploaded changes of an adapter that is not whole.
    fn discard(&mut self, id: AdapterId);

    /// Removes an adapter, whole or begun, that no later step uses.
    fn remove(&mut self, id: AdapterId);
}

/// An adapter's change of one weight, as read from a file.
#[derive(Clone, Copy, Debug)]
pub struct ChangeData<'a> {
    /// `[rank, n_in]`.
    pub a: MatrixData<'a>,
    /// `[n_out, rank]`.
    pub b: MatrixData<'a>,
    /// Number of rows of `a` and columns of `b`.
    pub rank: usize,
    /// Factor of the change.
    pub scale: f32,
}

/// Operations on rows in the host's memory, outside of any step. Every error is a device error.
#[expect(
    clippy::missing_errors_doc,
    clippy::ptr_arg,
    reason = "the calls fail alike, which the trait's documentation says; rows are the device's own buffers"
)]
pub trait HostRows {
    /// Multiplies as [`Op::Linear`](super::Op::Linear) does.
    fn linear(
        &mut self,
        linear: LinearId,
        x: &Vec<f32>,
        n_rows: usize,
        y: &mut Vec<f32>,
    ) -> Result<(), BackendError>;

    /// Normalizes as [`Op::Norm`](super::Op::Norm) does.
    fn norm(
        &mut self,
        norm: NormId,
        x: &Vec<f32>,
        n_rows: usize,
        y: &mut Vec<f32>,
    ) -> Result<(), BackendError>;

    /// Applies an activation in place, `[n_rows, width]`.
    fn activation(
        &mut self,
        activation: Activation,
        n_rows: usize,
        width: usize,
        rows: &mut Vec<f32>,
    ) -> Result<(), BackendError>;

    /// Adds `delta` to `rows`, `[n_rows, width]`.
    fn add(
        &mut self,
        n_rows: usize,
        width: usize,
        rows: &mut Vec<f32>,
        delta: &Vec<f32>,
    ) -> Result<(), BackendError>;

    /// Returns a copy of the first rows, `[n_rows, width]`, of a value that the program kept of the step that ran last:
    /// by index among its [`Op::Tap`](super::Op::Tap)s, in the order of layers. `None` if there are not so many.
    fn tap(&self, tap_idx: usize, n_rows: usize) -> Option<Vec<f32>>;
}
