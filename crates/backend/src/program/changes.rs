//! [`Changes`]: the matrices of a device's adapters.
//!
//! Invariant: an adapter is added completely or not at all.

use std::{collections::BTreeMap, sync::Arc};

use crate::{AdapterError, AdapterId, AdapterMatrices, Backend, LowRank};

use super::ChangeData;

/// The adapters of a device, whole and begun.
pub(super) struct Changes<M> {
    /// The adapters that steps may name.
    whole: BTreeMap<AdapterId, Arc<AdapterMatrices<M>>>,
    /// The uploaded changes of adapters that are not whole yet, by place.
    begun: BTreeMap<AdapterId, Vec<Option<LowRank<M>>>>,
}

impl<M> Default for Changes<M> {
    fn default() -> Self {
        Self {
            whole: BTreeMap::new(),
            begun: BTreeMap::new(),
        }
    }
}

impl<M> Changes<M> {
    pub(super) fn has_begun(&self, id: AdapterId) -> bool {
        self.begun.contains_key(&id)
    }

    pub(super) fn begin(&mut self, id: AdapterId, n_places: usize) {
        self.begun.insert(id, (0..n_places).map(|_| None).collect());
    }

    pub(super) fn has(&self, id: AdapterId) -> bool {
        self.whole.contains_key(&id)
    }

    pub(super) fn discard(&mut self, id: AdapterId) {
        self.begun.remove(&id);
    }

    pub(super) fn remove(&mut self, id: AdapterId) {
        self.whole.remove(&id);
        self.discard(id);
    }

    pub(super) fn upload<B: Backend<Matrix = M>>(
        &mut self,
        backend: &mut B,
        id: AdapterId,
        place: usize,
        change: &ChangeData<'_>,
    ) -> Result<(), AdapterError> {
        let by_place = self.begun.get_mut(&id).expect("the adapter has begun");
        if by_place[place].is_none() {
            by_place[place] = Some(LowRank {
                a: backend.upload_matrix(&change.a)?,
                b: backend.upload_matrix(&change.b)?,
                rank: change.rank,
                scale: change.scale,
            });
        }
        Ok(())
    }

    pub(super) fn add<B: Backend<Matrix = M>>(
        &mut self,
        backend: &mut B,
        id: AdapterId,
        strength: f32,
    ) -> Result<(), AdapterError> {
        let by_place = self.begun.remove(&id).unwrap_or_default();
        self.add_whole(backend, id, Arc::new(AdapterMatrices::new(by_place)), strength)
    }

    pub(super) fn copy<B: Backend<Matrix = M>>(
        &mut self,
        backend: &mut B,
        from: AdapterId,
        id: AdapterId,
        strength: f32,
    ) -> Result<(), AdapterError> {
        let matrices = self
            .whole
            .get(&from)
            .ok_or(AdapterError::NotLoaded { id: from })?;
        let matrices = Arc::clone(matrices);
        self.add_whole(backend, id, matrices, strength)
    }

    fn add_whole<B: Backend<Matrix = M>>(
        &mut self,
        backend: &mut B,
        id: AdapterId,
        matrices: Arc<AdapterMatrices<M>>,
        strength: f32,
    ) -> Result<(), AdapterError> {
        if !matrices.takes_strength(strength) {
            return Err(AdapterError::Strength);
        }
        backend.add_adapter(id, Arc::clone(&matrices), strength)?;
        self.whole.insert(id, matrices);
        Ok(())
    }
}
