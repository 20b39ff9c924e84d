//! [`GgufHeader`]: the description of a network in a GGUF file, read from a file or made from a folder.
//!
//! Invariant: no bytes of tensors are read.

use std::collections::BTreeMap;

use tokenmill_gguf::{GgufFile, Metadata};

use crate::{LoadError, WeightInfo};

/// The metadata and tensor list of a GGUF file, or of the file that a folder would become.
pub(crate) struct GgufHeader<'a> {
    /// The name of the architecture.
    pub(crate) arch: &'a str,
    /// The keys of the file.
    pub(crate) metadata: &'a Metadata,
    /// Dimensions of each tensor by name, the contiguous one first.
    pub(crate) tensors: BTreeMap<&'a str, &'a [usize]>,
}

impl<'a> GgufHeader<'a> {
    /// Returns the header of a file.
    ///
    /// # Errors
    /// As [`check_is_model`], and [`LoadError::Gguf`] for a file that names no architecture.
    pub(crate) fn of_file(file: &'a GgufFile) -> Result<Self, LoadError> {
        check_is_model(file)?;
        let tensors = file.tensors();
        Ok(Self {
            arch: file.metadata().str("general.architecture")?,
            metadata: file.metadata(),
            tensors: (tensors.map(|info| (info.name.as_str(), info.dims.as_slice()))).collect(),
        })
    }

    /// Returns the header of a folder in GGUF form.
    pub(crate) fn of_form(arch: &'a str, keys: &'a Metadata, tensors: &'a [WeightInfo]) -> Self {
        let tensors = tensors.iter();
        Self {
            arch,
            metadata: keys,
            tensors: (tensors.map(|info| (info.name.as_str(), info.dims.as_slice()))).collect(),
        }
    }
}

/// Refuses files that are not models: by their `general.type`, by the tensor names of adapters, and by the
/// layers present. A file that has no `general.type`, or another one, may be a model.
///
/// # Errors
/// [`LoadError::IsImportanceMatrix`], [`LoadError::IsAdapter`] and [`LoadError::IsNextnAlone`].
pub fn check_is_model(file: &GgufFile) -> Result<(), LoadError> {
    let metadata = file.metadata();
    match metadata.opt_str("general.type") {
        Ok(Some("imatrix")) => return Err(LoadError::IsImportanceMatrix),
        Ok(Some("adapter")) => return Err(LoadError::IsAdapter),
        _ => {}
    }
    let is_low_rank = |name: &str| name.ends_with(".lora_a") || name.ends_with(".lora_b");
    if file.tensors().len() > 0 && file.tensors().all(|info| is_low_rank(&info.name)) {
        return Err(LoadError::IsAdapter);
    }
    if holds_nextn_alone(file) {
        return Err(LoadError::IsNextnAlone);
    }
    Ok(())
}

/// Returns the layer of a tensor with this name, if it is in one.
pub(crate) fn layer_of(name: &str) -> Option<usize> {
    let (layer, _) = name.strip_prefix("blk.")?.split_once('.')?;
    layer.parse().ok()
}

/// Returns whether a file has MTP layers but no decoder layers. Such files are published next to a model.
fn holds_nextn_alone(file: &GgufFile) -> bool {
    let metadata = file.metadata();
    let count = |key: &str| {
        let arch = metadata.opt_str("general.architecture").ok().flatten()?;
        metadata.opt_usize(&format!("{arch}.{key}")).ok().flatten()
    };
    let (Some(n_layers), Some(n_nextn)) = (count("block_count"), count("nextn_predict_layers")) else {
        return false;
    };
    let mut layers = file.tensors().filter_map(|info| layer_of(&info.name)).peekable();
    let n_own = n_layers.saturating_sub(n_nextn);
    n_own > 0 && n_nextn > 0 && layers.peek().is_some() && layers.all(|layer| layer >= n_own)
}
