//! Uploads adapters to a device: compares the shape of each change with the weight that it changes, then
//! uploads it.
//!
//! Invariant: an adapter is added completely or not at all.

use std::{borrow::Cow, sync::Arc};

use tokenmill_backend::{
    Adapter, AdapterError, AdapterId, AdapterMatrices, AdapterWeight, Backend, LowRank, MatrixData,
    MatrixUsage,
};

use crate::{ModelExecutor, loader::AdaptableWeight};

impl<B: Backend> ModelExecutor<B> {
    /// Uploads the parts of an adapter that [`Self::install_weight`] has not uploaded, and adds the whole
    /// adapter.
    pub(crate) fn install_adapter(
        &mut self,
        id: AdapterId,
        adapter: &Adapter,
        strength: f32,
    ) -> Result<(), AdapterError> {
        for weight_idx in 0..adapter.weights.len() {
            if let Err(error) = self.install_weight(id, adapter, weight_idx) {
                self.coming.remove(&id);
                return Err(error);
            }
        }
        if !self.backend.takes_adapters() {
            return Err(AdapterError::Unsupported { device: B::NAME });
        }
        let by_weight = self.coming.remove(&id).unwrap_or_default();
        let matrices = Arc::new(AdapterMatrices::new(by_weight));
        if !matrices.takes_strength(strength) {
            return Err(AdapterError::Strength);
        }
        self.backend.add_adapter(id, Arc::clone(&matrices), strength)?;
        self.adapters.insert(id, matrices);
        Ok(())
    }

    /// Uploads the change of one of an adapter's weights, unless it is already on the device.
    pub(crate) fn install_weight(
        &mut self,
        id: AdapterId,
        adapter: &Adapter,
        weight_idx: usize,
    ) -> Result<(), AdapterError> {
        if !self.backend.takes_adapters() {
            return Err(AdapterError::Unsupported { device: B::NAME });
        }
        let weight = &adapter.weights[weight_idx];
        if adapter.weights[..weight_idx]
            .iter()
            .any(|other| other.tensor == weight.tensor)
        {
            return Err(AdapterError::Twice {
                tensor: weight.tensor.clone(),
            });
        }
        if !self.coming.contains_key(&id) {
            self.backend.check_adapter_room(adapter.n_bytes())?;
        }
        let n_adaptable = self.network.adaptable.len();
        let by_weight = self.coming.entry(id).or_default();
        by_weight.resize_with(n_adaptable, || None);
        let places = (self.network.adaptable.iter().zip(by_weight))
            .filter(|(adaptable, _)| adaptable.name == weight.tensor);
        let mut is_known = false;
        for (adaptable, place) in places {
            check_shape(weight, adaptable)?;
            if place.is_none() {
                *place = Some(upload(&mut self.backend, weight, adaptable)?);
            }
            is_known = true;
        }
        if is_known {
            return Ok(());
        }
        Err(AdapterError::UnknownWeight {
            tensor: weight.tensor.clone(),
        })
    }

    /// Adds an adapter that shares another's matrices and has its own strength.
    pub(crate) fn install_copy(
        &mut self,
        from: AdapterId,
        id: AdapterId,
        strength: f32,
    ) -> Result<(), AdapterError> {
        let matrices = self
            .adapters
            .get(&from)
            .ok_or(AdapterError::NotLoaded { id: from })?;
        let matrices = Arc::clone(matrices);
        if !matrices.takes_strength(strength) {
            return Err(AdapterError::Strength);
        }
        self.backend.add_adapter(id, Arc::clone(&matrices), strength)?;
        self.adapters.insert(id, matrices);
        Ok(())
    }
}

fn check_shape(weight: &AdapterWeight, adaptable: &AdaptableWeight) -> Result<(), AdapterError> {
    let (expected, found) = ([adaptable.n_total(), adaptable.n_in], [weight.n_out, weight.n_in]);
    if expected == found {
        return Ok(());
    }
    Err(AdapterError::Shape {
        tensor: weight.tensor.clone(),
        expected,
        found,
    })
}

/// Uploads the change of a weight. If a matrix of the network holds only some of the weight's rows, only
/// those are uploaded.
fn upload<B: Backend>(
    backend: &mut B,
    weight: &AdapterWeight,
    adaptable: &AdaptableWeight,
) -> Result<LowRank<B::Matrix>, AdapterError> {
    let row_bytes = weight.b.bytes.len() / weight.n_out;
    let b = match adaptable.rows() {
        None => Cow::Borrowed(&weight.b.bytes[..]),
        Some(runs) => {
            let runs = runs.map(|(first, n_rows)| &weight.b.bytes[first * row_bytes..][..n_rows * row_bytes]);
            Cow::Owned(runs.collect::<Vec<_>>().concat())
        }
    };
    let mut matrix = |ty, n_out, n_in, bytes: &[u8]| {
        backend.upload_matrix(&MatrixData {
            name: &weight.tensor,
            ty,
            n_out,
            n_in,
            bytes: bytes.into(),
            usage: MatrixUsage::Adapter,
        })
    };
    Ok(LowRank {
        a: matrix(weight.a.ty, weight.rank, weight.n_in, &weight.a.bytes)?,
        b: matrix(weight.b.ty, b.len() / row_bytes, weight.rank, &b)?,
        rank: weight.rank,
        scale: weight.scale,
    })
}
