//! Puts adapters on a device: compares the shape of each change with the weight that it changes, then
//! uploads it. Invariant: an adapter that is refused changes nothing.

use std::borrow::Cow;

use tokenmill_backend::{
    Adapter, AdapterError, AdapterId, AdapterWeight, MatrixData, MatrixUsage,
    program::{AdapterStore, ChangeData, ProgramDevice},
};

use crate::{ModelExecutor, loader::AdaptableWeight};

impl ModelExecutor {
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
                if let Some(adapters) = self.device.adapters() {
                    adapters.discard(id);
                }
                return Err(error);
            }
        }
        self.adapters()?.add(id, strength)
    }

    /// Returns the device's store of adapters, if it computes with them.
    pub(crate) fn adapters(&mut self) -> Result<&mut dyn AdapterStore, AdapterError> {
        adapters_of(&mut *self.device)
    }

    /// Uploads the change of one of an adapter's weights, unless it is already on the device.
    pub(crate) fn install_weight(
        &mut self,
        id: AdapterId,
        adapter: &Adapter,
        weight_idx: usize,
    ) -> Result<(), AdapterError> {
        let n_places = self.network.adaptable.len();
        let adapters = adapters_of(&mut *self.device)?;
        let weight = &adapter.weights[weight_idx];
        if adapter.weights[..weight_idx]
            .iter()
            .any(|other| other.tensor == weight.tensor)
        {
            return Err(AdapterError::Twice {
                tensor: weight.tensor.clone(),
            });
        }
        adapters.begin(id, adapter.n_bytes(), n_places)?;
        let mut is_known = false;
        for (place, adaptable) in self.network.adaptable.iter().enumerate() {
            if adaptable.name == weight.tensor {
                check_shape(weight, adaptable)?;
                upload(adapters, (id, place), weight, adaptable)?;
                is_known = true;
            }
        }
        if is_known {
            return Ok(());
        }
        Err(AdapterError::UnknownWeight {
            tensor: weight.tensor.clone(),
        })
    }
}

fn adapters_of(device: &mut dyn ProgramDevice) -> Result<&mut dyn AdapterStore, AdapterError> {
    let name = device.weigh().device();
    device
        .adapters()
        .ok_or(AdapterError::Unsupported { device: name })
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
fn upload(
    adapters: &mut dyn AdapterStore,
    (id, place): (AdapterId, usize),
    weight: &AdapterWeight,
    adaptable: &AdaptableWeight,
) -> Result<(), AdapterError> {
    let row_bytes = weight.b.bytes.len() / weight.n_out;
    let b = match adaptable.rows() {
        None => Cow::Borrowed(&weight.b.bytes[..]),
        Some(runs) => {
            let runs = runs.map(|(first, n_rows)| &weight.b.bytes[first * row_bytes..][..n_rows * row_bytes]);
            Cow::Owned(runs.collect::<Vec<_>>().concat())
        }
    };
    let matrix = |ty, n_out, n_in, bytes| MatrixData {
        name: &weight.tensor,
        ty,
        n_out,
        n_in,
        bytes,
        usage: MatrixUsage::Adapter,
    };
    let change = ChangeData {
        a: matrix(weight.a.ty, weight.rank, weight.n_in, weight.a.bytes[..].into()),
        b: matrix(weight.b.ty, b.len() / row_bytes, weight.rank, b[..].into()),
        rank: weight.rank,
        scale: weight.scale,
    };
    adapters.upload(id, place, &change)
}
