//! [`Bridge`]: a [`Backend`] as a [`ProgramDevice`].
//!
//! Invariant: the memory of programs is allocated before the first step.

use std::{
    any::{Any, TypeId},
    collections::VecDeque,
};

use crate::{
    Activation, AdapterError, AdapterId, Backend, BackendError, ExecutorLimits, ForwardBatch, KvLayout,
    MatrixData, Memory, MemoryPlan, NetworkPart, NetworkShape, PageCopy, PageGroup, SequenceMemory,
    StateLayout, StepOutput, StepShape, StepTrace, Weigh,
};

use super::{
    AdapterStore, ChangeData, HostRows, Interpreter, LinearId, MatrixId, NormId, Prepared, ProgramDevice,
    WeightStore, changes::Changes,
};

/// A backend with the weights, the adapters and the memory of one network's programs.
pub struct Bridge<B: Backend> {
    own: Interpreter<B>,
    changes: Changes<B::Matrix>,
    /// The matrices of another network that this one shares.
    shared: VecDeque<B::Matrix>,
    /// `None` until memory is allocated.
    prepared: Option<Prepared>,
    /// The shape of the step that ran last.
    last_shape: Option<StepShape>,
}

impl<B: Backend> Bridge<B> {
    /// Makes a device of a backend.
    ///
    /// A crate with a backend calls it in an `impl From<YourBackend> for Box<dyn ProgramDevice>`, so that the code that runs
    /// programs on it is compiled in that crate alone.
    pub fn boxed(backend: B) -> Box<dyn ProgramDevice> {
        Box::new(Self {
            own: Interpreter::new(backend),
            changes: Changes::default(),
            shared: VecDeque::new(),
            prepared: None,
            last_shape: None,
        })
    }
}

impl<B: Backend> ProgramDevice for Bridge<B> {
    fn weigh(&self) -> &dyn Weigh {
        &self.own.backend
    }

    fn takes_late_masks(&self) -> bool {
        self.own.backend.takes_late_masks()
    }

    fn takes_rows(&self) -> bool {
        self.own.backend.takes_rows()
    }

    fn trace(&self) -> Option<StepTrace> {
        self.own.backend.trace()
    }

    fn prepare(
        &mut self,
        network: &NetworkShape,
        limits: &ExecutorLimits,
        kv: &KvLayout,
        plan: &MemoryPlan,
    ) -> Result<(), BackendError> {
        self.own.backend.prepare(network, limits, kv, plan)
    }

    fn share(&mut self, other: &dyn ProgramDevice, matrices: &[MatrixId]) -> Result<(), BackendError> {
        let share = |other: &Self| {
            let matrix = |&id: &MatrixId| other.own.tables.matrix(id).expect("a matrix of the network");
            let matrices = matrices.iter().map(matrix);
            matrices.map(B::share_matrix).collect()
        };
        let shared: Option<VecDeque<B::Matrix>> = (other as &dyn Any).downcast_ref().and_then(share);
        self.shared = shared.ok_or_else(|| BackendError::Unsupported {
            feature: "matrices of another network".to_owned(),
            device: B::NAME,
        })?;
        Ok(())
    }

    fn weights(&mut self) -> &mut dyn WeightStore {
        self
    }

    fn alloc(
        &mut self,
        prepared: Prepared,
        kv: &KvLayout,
        states: Option<&StateLayout>,
    ) -> Result<(), BackendError> {
        self.own.backend.alloc_kv(kv)?;
        if let Some(states) = states {
            self.own.backend.alloc_states(states)?;
        }
        self.own.alloc(prepared.slots().iter().map(Some))?;
        self.prepared = Some(prepared);
        Ok(())
    }

    fn run_step(&mut self, batch: &ForwardBatch) -> Result<(), BackendError> {
        let Self {
            own: Interpreter { backend, tables },
            prepared,
            last_shape,
            ..
        } = self;
        let prepared = prepared
            .as_ref()
            .expect("memory is allocated before the first step");
        let shape = backend.begin_step(batch)?;
        *last_shape = Some(shape);
        backend.run_step(shape, |backend, shape| prepared.run(backend, tables, &shape))
    }

    fn read(&mut self, output: &mut StepOutput) -> Result<(), BackendError> {
        self.own.backend.read(output)
    }

    fn copy_pages(&mut self, group: PageGroup, copies: &[PageCopy]) -> Result<(), BackendError> {
        self.own.backend.copy_pages(group, copies)
    }

    fn sequences(&self) -> &dyn SequenceMemory {
        &self.own.backend
    }

    fn sequences_mut(&mut self) -> &mut dyn SequenceMemory {
        &mut self.own.backend
    }

    fn has_adapter(&self, id: AdapterId) -> bool {
        self.changes.has(id)
    }

    fn adapters(&mut self) -> Option<&mut dyn AdapterStore> {
        let takes_adapters = self.own.backend.takes_adapters();
        takes_adapters.then_some(self as &mut dyn AdapterStore)
    }

    fn host_rows(&mut self) -> Option<&mut dyn HostRows> {
        let is_on_host = TypeId::of::<B::Buffer>() == TypeId::of::<Vec<f32>>();
        is_on_host.then_some(self as &mut dyn HostRows)
    }

    fn backend(&self) -> &dyn Any {
        &self.own.backend
    }

    fn backend_mut(&mut self) -> &mut dyn Any {
        &mut self.own.backend
    }
}

impl<B: Backend> WeightStore for Bridge<B> {
    fn enter(&mut self, _: NetworkPart) {}

    fn store_matrix(&mut self, data: &MatrixData<'_>) -> Result<(), BackendError> {
        self.own.store_matrix(Some(data))
    }

    fn share_matrix(&mut self) {
        let matrix = self.shared.pop_front().expect("as many as the network shares");
        self.own.tables.matrices.push(Some(matrix));
    }

    fn store_vector(&mut self, values: &[f32]) -> Result<(), BackendError> {
        self.own.store_vector(Some(values))
    }
}

impl<B: Backend> AdapterStore for Bridge<B> {
    fn begin(&mut self, id: AdapterId, n_bytes: usize, n_places: usize) -> Result<(), AdapterError> {
        if !self.changes.has_begun(id) {
            self.own.backend.check_adapter_room(n_bytes)?;
            self.changes.begin(id, n_places);
        }
        Ok(())
    }

    fn upload(&mut self, id: AdapterId, place: usize, change: &ChangeData<'_>) -> Result<(), AdapterError> {
        self.changes.upload(&mut self.own.backend, id, place, change)
    }

    fn add(&mut self, id: AdapterId, strength: f32) -> Result<(), AdapterError> {
        self.changes.add(&mut self.own.backend, id, strength)
    }

    fn copy(&mut self, from: AdapterId, id: AdapterId, strength: f32) -> Result<(), AdapterError> {
        self.changes.copy(&mut self.own.backend, from, id, strength)
    }

    fn discard(&mut self, id: AdapterId) {
        self.changes.discard(id);
    }

    fn remove(&mut self, id: AdapterId) {
        self.own.backend.remove_adapter(id);
        self.changes.remove(id);
    }
}

impl<B: Backend> HostRows for Bridge<B> {
    fn linear(
        &mut self,
        linear: LinearId,
        x: &Vec<f32>,
        n_rows: usize,
        y: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let (x, y) = (buffer::<B>(x), buffer_mut::<B>(y));
        let bound = self.own.tables.take_linear(linear);
        let done = self.own.backend.linear(&bound, x, n_rows, y);
        self.own.tables.return_linear(linear, bound);
        done
    }

    fn norm(
        &mut self,
        norm: NormId,
        x: &Vec<f32>,
        n_rows: usize,
        y: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let (x, y) = (buffer::<B>(x), buffer_mut::<B>(y));
        let (bound, ids) = self.own.tables.take_vectors(norm);
        let done = self.own.backend.norm(&bound, x, n_rows, y);
        self.own.tables.return_vectors::<NormId>(bound, ids);
        done
    }

    fn activation(
        &mut self,
        activation: Activation,
        n_rows: usize,
        width: usize,
        rows: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        self.own
            .backend
            .activation(activation, n_rows, width, buffer_mut::<B>(rows), None)
    }

    fn add(
        &mut self,
        n_rows: usize,
        width: usize,
        rows: &mut Vec<f32>,
        delta: &Vec<f32>,
    ) -> Result<(), BackendError> {
        let (rows, delta) = (buffer_mut::<B>(rows), buffer::<B>(delta));
        self.own.backend.add(1.0, n_rows, width, rows, delta)
    }

    fn tap(&self, tap_idx: usize, n_rows: usize) -> Option<Vec<f32>> {
        let (prepared, shape) = (self.prepared.as_ref()?, self.last_shape.as_ref()?);
        let (tap, width) = prepared.tap(&self.own.tables, shape, tap_idx)?;
        let rows: &Vec<f32> = (tap as &dyn Any).downcast_ref().expect(ON_HOST);
        Some(rows[..n_rows * width].to_vec())
    }
}

/// Returns rows of the host as the backend's buffer.
fn buffer<B: Backend>(rows: &dyn Any) -> &<B as Memory>::Buffer {
    rows.downcast_ref().expect(ON_HOST)
}

fn buffer_mut<B: Backend>(rows: &mut dyn Any) -> &mut <B as Memory>::Buffer {
    rows.downcast_mut().expect(ON_HOST)
}

const ON_HOST: &str = "`host_rows` has compared the types";
