//! [`GgufHeader`]: what a GGUF file says of a network, read from a file or made of a folder.
//!
//! Separate from `gguf_config`, which asks for one architecture's keys. Invariant: no bytes of tensors are read.

use std::collections::BTreeMap;

use tokenmill_gguf::{GgufFile, Metadata};

use crate::{LoadError, WeightInfo};

/// The metadata and the tensors of a GGUF file, or of the one that a folder would become.
pub(crate) struct GgufHeader<'a> {
    /// The name of the architecture.
    pub(super) arch: &'a str,
    /// The architecture's keys.
    pub(super) metadata: &'a Metadata,
    /// Dimensions by name, the contiguous one first.
    pub(super) tensors: BTreeMap<&'a str, &'a [usize]>,
}

impl<'a> GgufHeader<'a> {
    /// The header of a file.
    ///
    /// # Errors
    /// As [`check_is_model`], and [`LoadError::Gguf`] of a file that names no architecture.
    pub(crate) fn of_file(file: &'a GgufFile) -> Result<Self, LoadError> {
        check_is_model(file.metadata())?;
        let tensors = file.tensors();
        Ok(Self {
            arch: file.metadata().str("general.architecture")?,
            metadata: file.metadata(),
            tensors: (tensors.map(|info| (info.name.as_str(), info.dims.as_slice()))).collect(),
        })
    }

    /// The header of a folder in the form of a file.
    pub(crate) fn of_form(arch: &'a str, keys: &'a Metadata, tensors: &'a [WeightInfo]) -> Self {
        let tensors = tensors.iter();
        Self {
            arch,
            metadata: keys,
            tensors: (tensors.map(|info| (info.name.as_str(), info.dims.as_slice()))).collect(),
        }
    }
}

/// Tells files of other kinds by their `general.type`. What says nothing, or something else, may be a model.
///
/// # Errors
/// [`LoadError::IsImportanceMatrix`] and [`LoadError::IsAdapter`].
pub fn check_is_model(metadata: &Metadata) -> Result<(), LoadError> {
    match metadata.opt_str("general.type") {
        Ok(Some("imatrix")) => Err(LoadError::IsImportanceMatrix),
        Ok(Some("adapter")) => Err(LoadError::IsAdapter),
        _ => Ok(()),
    }
}
