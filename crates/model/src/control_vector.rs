//! [`ControlVector`]: directions that are added to the stream after layers, for all sequences alike.
//!
//! Adapters, in contrast, change weights and are chosen by each request. Invariant: the numbers are finite.
//!
//! Source: llama.cpp, `common/common.cpp` (`common_control_vector_load`) and `src/llama-adapter.cpp`, for the
//! file format and the layers: `direction.N` is added after layer `N`, counted from 0; layer 0 has none.

use std::{collections::BTreeMap, ops::RangeInclusive, path::Path};

use tokenmill_gguf::{GgufFile, TensorType};

use crate::{Descriptor, LoadError};

/// The directions of a file, by layer.
#[derive(Clone, Debug, PartialEq)]
pub struct ControlVector {
    directions: BTreeMap<usize, Vec<f32>>,
}

impl ControlVector {
    /// Reads a GGUF file whose `general.architecture` is `controlvector`: tensors `direction.N`, `[n_embd]` F32.
    ///
    /// # Errors
    /// [`LoadError::Gguf`], or [`LoadError::BadAdapter`] with the reason.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        Self::from_gguf(&GgufFile::open(path)?, path)
    }

    /// Reads an opened file; `path` is used in errors.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn from_gguf(file: &GgufFile, path: &Path) -> Result<Self, LoadError> {
        let bad = |reason: String| LoadError::BadAdapter {
            path: path.to_owned(),
            reason,
        };
        let arch = file.metadata().str("general.architecture")?;
        if arch != "controlvector" {
            return Err(bad(format!(
                "`general.architecture` is {arch}, expected controlvector"
            )));
        }
        let mut directions = BTreeMap::new();
        for info in file.tensors() {
            let layer = info
                .name
                .strip_prefix("direction.")
                .and_then(|layer| layer.parse().ok());
            let layer = layer.filter(|&layer: &usize| layer > 0).ok_or_else(|| {
                bad(format!(
                    "tensor `{}` is none of `direction.1` and so on",
                    info.name
                ))
            })?;
            if info.ty != TensorType::F32 || info.dims.iter().skip(1).any(|&dim| dim != 1) {
                return Err(bad(format!(
                    "tensor `{}` is of type {} and shape {:?}, expected a vector of F32",
                    info.name,
                    info.ty.name(),
                    info.dims
                )));
            }
            let view = file.tensor(&info.name).expect("a listed tensor");
            let bytes = view.bytes.to_vec().map_err(|source| LoadError::ReadTensor {
                name: info.name.clone(),
                source,
            })?;
            let values: Vec<f32> = (bytes.as_chunks().0.iter())
                .map(|bytes| f32::from_le_bytes(*bytes))
                .collect();
            if let Some(value) = values.iter().find(|value| !value.is_finite()) {
                return Err(bad(format!(
                    "tensor `{}` holds {value}, which is not finite",
                    info.name
                )));
            }
            directions.insert(layer, values);
        }
        if directions.is_empty() {
            return Err(bad("it has no directions".to_owned()));
        }
        Ok(Self { directions })
    }

    /// Adds `scale` times the directions of some layers to the sum that a network adds after its layers.
    pub(crate) fn add_to(
        &self,
        descriptor: &mut Descriptor,
        scale: f32,
        layers: &RangeInclusive<usize>,
    ) -> Result<(), LoadError> {
        if descriptor.alt_up.is_some() {
            return Err(LoadError::UnsupportedFeature {
                arch: descriptor.arch.clone(),
                feature: "a control vector".to_owned(),
            });
        }
        let n_embd = descriptor.n_embd;
        if let Some((layer, found)) = (self.directions.iter()).find(|(_, values)| values.len() != n_embd) {
            return Err(LoadError::WrongShape {
                name: format!("direction.{layer}"),
                expected: vec![n_embd],
                found: vec![found.len()],
            });
        }
        let n_layers = descriptor.layers.len();
        descriptor.control.resize(n_layers, Vec::new());
        for (&layer, values) in self.directions.iter().filter(|(layer, _)| layers.contains(layer)) {
            let Some(sum) = descriptor.control.get_mut(layer) else {
                return Err(LoadError::BadOption {
                    option: "control vector",
                    found: layer,
                    expected: format!("directions of layers below {n_layers}"),
                });
            };
            sum.resize(n_embd, 0.0);
            for (sum, value) in sum.iter_mut().zip(values) {
                *sum += scale * value;
            }
            if sum.iter().any(|value| !value.is_finite()) {
                return Err(LoadError::InfiniteControl { layer });
            }
        }
        Ok(())
    }
}
