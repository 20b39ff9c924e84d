//! [`FolderAsGguf`]: a Hugging Face folder as the GGUF file that a converter makes of it.
//!
//! Separate from [`Model`](crate::Model), which needs no keys and computes with what a folder has. Invariant: opening reads headers;
//! the bytes of a tensor are read, and changed, when they are asked for.

use std::{collections::BTreeMap, path::Path};

use tokenmill_gguf::Metadata;

use crate::{
    Descriptor, LoadError, WeightInfo, WeightSource,
    arch::{self, GgufForm, HfConfig},
    safetensors_folder::SafetensorsFolder,
};

/// A folder under the names, shapes and keys of a GGUF file.
pub struct FolderAsGguf {
    arch: &'static str,
    keys: Metadata,
    descriptor: Descriptor,
    weights: SafetensorsFolder,
}

impl FolderAsGguf {
    /// Opens a folder with `config.json` and safetensors files.
    ///
    /// # Errors
    /// As [`Model::open`](crate::Model::open).
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, LoadError> {
        let folder = folder.as_ref();
        Self::open_with(folder, &HfConfig::open(&folder.join("config.json"))?)
    }

    /// As [`Self::open`], with a configuration that was read.
    pub(crate) fn open_with(folder: &Path, config: &HfConfig) -> Result<Self, LoadError> {
        let (descriptor, layout) = arch::describe_hf(config)?;
        let form = GgufForm::of(&descriptor)?;
        let mut keys = Metadata::new();
        form.write_keys(config, &descriptor, &mut keys)?;
        let weights =
            SafetensorsFolder::open(folder, layout, &descriptor, config.fp8_scales()?, Some(&form))?;
        let (weights, numbers) = weights.into_gguf_form(&form, &descriptor)?;
        for (key, numbers) in numbers {
            keys.insert(key, numbers)?;
        }
        Ok(Self {
            arch: form.arch,
            keys,
            descriptor,
            weights,
        })
    }

    /// `general.architecture`.
    pub fn architecture(&self) -> &'static str {
        self.arch
    }

    /// The keys of the architecture: sizes, and what else describes the network.
    pub fn keys(&self) -> &Metadata {
        &self.keys
    }

    /// The network.
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// The tensors by name.
    pub(crate) fn tensor_infos(&self) -> BTreeMap<String, WeightInfo> {
        let infos = self.weights.infos().into_iter();
        infos.map(|info| (info.name.clone(), info)).collect()
    }

    /// The tensors, in the types that the folder has them in.
    pub fn weights(&self) -> &dyn WeightSource {
        &self.weights
    }
}
