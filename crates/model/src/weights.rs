//! [`WeightSource`]: where a network's tensors come from.
//!
//! Separate so that GGUF files, safetensors folders and networks made in memory load alike. Invariant: tensors go by
//! their GGUF names, whatever the source calls them.

use tokenmill_gguf::{GgufFile, TensorBytes, TensorInfo, TensorType};

/// A set of named tensors.
pub trait WeightSource {
    /// All tensors.
    fn infos(&self) -> Vec<WeightInfo>;

    /// Whether there is a tensor with this GGUF name.
    fn contains(&self, name: &str) -> bool;

    /// The tensor with this GGUF name, if there is one. Its bytes are read when they are asked for.
    fn tensor(&self, name: &str) -> Option<WeightTensor<'_>>;

    /// What the source itself calls the tensor with this GGUF name, or would call it, where that is another name.
    fn own_name(&self, name: &str) -> Option<String> {
        let _ = name;
        None
    }
}

/// What is known of a tensor without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightInfo {
    /// Its GGUF name.
    pub name: String,
    /// Type of its elements.
    pub ty: TensorType,
    /// Its dimensions, the contiguous one first.
    pub dims: Vec<usize>,
    /// Bytes it takes in this type.
    pub n_bytes: usize,
    /// How its file stores it, where that is in a type which is converted while it is read.
    pub stored: Option<StoredForm>,
}

/// The form in which a file stores a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredForm {
    /// The type's name there.
    pub type_name: &'static str,
    /// Bytes it takes there, those of its scales included.
    pub n_bytes: usize,
}

impl WeightInfo {
    /// The form in which the file stores it.
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
    /// Its bytes, rows one after the other.
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

    fn contains(&self, name: &str) -> bool {
        self.tensor(name).is_some()
    }

    fn tensor(&self, name: &str) -> Option<WeightTensor<'_>> {
        self.tensor(name).map(|view| WeightTensor {
            ty: view.info.ty,
            dims: view.info.dims.clone(),
            bytes: view.bytes,
        })
    }
}
