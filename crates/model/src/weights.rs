//! [`WeightSource`]: the source of a network's tensors.
//!
//! GGUF files, safetensors folders and networks made in memory load alike. Invariant: tensors go by their
//! GGUF names, whatever the source calls them.

use tokenmill_gguf::{GgufFile, TensorBytes, TensorInfo, TensorType};

/// A set of named tensors.
pub trait WeightSource {
    /// Returns all tensors.
    fn infos(&self) -> Vec<WeightInfo>;

    /// Returns whether there is a tensor with this GGUF name.
    fn contains(&self, name: &str) -> bool {
        self.tensor(name).is_some()
    }

    /// Returns the tensor with this GGUF name, if there is one. Its bytes are read on access.
    fn tensor(&self, name: &str) -> Option<WeightTensor<'_>>;

    /// Returns the source's own name of the tensor with this GGUF name, or the name that it would have, if it
    /// differs.
    fn own_name(&self, name: &str) -> Option<String> {
        let _ = name;
        None
    }
}

/// The facts about a tensor that are known without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightInfo {
    /// Its GGUF name.
    pub name: String,
    /// Type of its elements.
    pub ty: TensorType,
    /// Its dimensions, the contiguous one first.
    pub dims: Vec<usize>,
    /// Size in bytes in this type.
    pub n_bytes: usize,
    /// The stored form, if the tensor is converted as it is read.
    pub stored: Option<StoredForm>,
}

/// The form in which a file stores a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredForm {
    /// The name of the stored type.
    pub type_name: &'static str,
    /// Size in bytes as stored, including scales.
    pub n_bytes: usize,
}

impl WeightInfo {
    /// Returns the form in which the file stores the tensor.
    pub fn stored_form(&self) -> StoredForm {
        self.stored.unwrap_or(StoredForm {
            type_name: self.ty.name(),
            n_bytes: self.n_bytes,
        })
    }
}

/// A tensor of a [`WeightSource`].
#[derive(Clone, Debug)]
pub struct WeightTensor<'a> {
    /// Type of its elements.
    pub ty: TensorType,
    /// Its dimensions, the contiguous one first.
    pub dims: Vec<usize>,
    /// Its bytes, row after row.
    pub bytes: TensorBytes<'a>,
}

impl From<&TensorInfo> for WeightInfo {
    fn from(info: &TensorInfo) -> Self {
        Self {
            name: info.name.clone(),
            ty: info.ty,
            dims: info.dims.clone(),
            n_bytes: info.n_bytes,
            stored: None,
        }
    }
}

impl WeightSource for GgufFile {
    fn infos(&self) -> Vec<WeightInfo> {
        self.tensors().map(WeightInfo::from).collect()
    }

    fn tensor(&self, name: &str) -> Option<WeightTensor<'_>> {
        self.tensor(name).map(|view| WeightTensor {
            ty: view.info.ty,
            dims: view.info.dims.clone(),
            bytes: view.bytes,
        })
    }
}
