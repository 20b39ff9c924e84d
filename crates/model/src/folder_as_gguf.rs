//! [`FolderAsGguf`]: a Hugging Face folder in the form of the GGUF file that a converter makes from it.
//!
//! [`Model`](crate::Model) needs no keys and computes with the folder's own tensors. Invariant: opening reads
//! headers; the bytes of a tensor are read, and converted, on access.

mod agreement;

use std::path::Path;

use tokenmill_backend::Weigh;
use tokenmill_gguf::{Metadata, Value};

use crate::{
    Descriptor, LoadError, ModelOptions, WeightInfo, WeightSource,
    arch::{self, GgufForm, HfNetwork},
    gguf_header::GgufHeader,
    hf_config::HfConfig,
    plan::plan,
    safetensors_folder::SafetensorsFolder,
};

/// A folder with the names, shapes and keys of a GGUF file.
pub struct FolderAsGguf {
    form: GgufForm,
    keys: Metadata,
    descriptor: Descriptor,
    weights: SafetensorsFolder,
    config: HfConfig,
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

    /// Does the same as [`Self::open`], with a configuration that was already read.
    pub(crate) fn open_with(folder: &Path, config: &HfConfig) -> Result<Self, LoadError> {
        let HfNetwork {
            descriptor,
            form,
            layout,
            config,
        } = arch::describe_hf(config)?;
        let mut keys = Metadata::new();
        form.write_keys(&config, &mut keys)?;
        let weights =
            SafetensorsFolder::open(folder, &layout, &descriptor, config.fp8_scales()?, Some(&form))?;
        let (weights, numbers) = weights.into_gguf_form(&form, &descriptor)?;
        for (key, numbers) in numbers {
            keys.insert(key, numbers)?;
        }
        let mut file = Self {
            form,
            keys,
            descriptor,
            weights,
            config: config.clone(),
        };
        file.add_windows()?;
        Ok(file)
    }

    /// Adds the windows if the architecture's own keys omit them, as keys that all architectures share: the
    /// width and, if necessary, the layers that have one.
    fn add_windows(&mut self) -> Result<(), LoadError> {
        let windows = windows(&self.descriptor);
        let Some(width) = windows
            .iter()
            .flatten()
            .next()
            .and_then(|&width| u32::try_from(width).ok())
        else {
            return Ok(());
        };
        let pattern: Vec<bool> = windows.iter().map(Option::is_some).collect();
        for (key, value) in [
            ("attention.sliding_window", Value::from(width)),
            ("attention.sliding_window_pattern", Value::from(pattern)),
        ] {
            // A header that cannot be read is refused later.
            let Ok(of_file) = self.descriptor_of_file() else {
                return Ok(());
            };
            if self::windows(&of_file) == windows {
                return Ok(());
            }
            self.set_key(&format!("{}.{key}", self.form.arch), value)?;
        }
        Ok(())
    }

    /// Sets a key, replacing an existing value.
    fn set_key(&mut self, key: &str, value: Value) -> Result<(), LoadError> {
        let mut keys = Metadata::new();
        for (known, value) in self.keys.iter().filter(|(known, _)| *known != key) {
            keys.insert(known, value.clone())?;
        }
        keys.insert(key, value)?;
        self.keys = keys;
        Ok(())
    }

    /// Returns `general.architecture`.
    pub fn architecture(&self) -> &'static str {
        self.form.arch
    }

    /// Checks that the file describes the same network as the folder: reads its header as a load does,
    /// compares the two networks field by field, and does a dry run of loading the file.
    ///
    /// # Errors
    /// [`LoadError::NotInGguf`] with the fields that readers of the file would misread;
    /// [`LoadError::FileWouldNotLoad`].
    pub fn check(&self, backend: &dyn Weigh) -> Result<(), LoadError> {
        let of_file = self.descriptor_of_file().map_err(would_not_load)?;
        let found = self.form.disagreement(&self.descriptor, &of_file, &self.weights);
        if let Some(error) = self.form.cannot_say(found, &self.config) {
            return Err(error);
        }
        // This finds tensors that a reader would miss or not use.
        plan(&of_file, &self.weights, backend, &ModelOptions::default()).map_err(would_not_load)?;
        Ok(())
    }

    /// Returns the network as a reader of the file would see it.
    fn descriptor_of_file(&self) -> Result<Descriptor, LoadError> {
        arch::describe_header(GgufHeader::of_form(
            self.form.arch,
            &self.keys,
            &self.tensor_infos(),
        ))
    }

    /// Returns the architecture's keys: sizes and other properties of the network.
    pub fn keys(&self) -> &Metadata {
        &self.keys
    }

    /// Returns the network's descriptor.
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// Returns the tensors, with the names and shapes of the file.
    pub(crate) fn tensor_infos(&self) -> Vec<WeightInfo> {
        self.weights.infos()
    }

    /// Returns the tensors, in the folder's types.
    pub fn weights(&self) -> &dyn WeightSource {
        &self.weights
    }
}

/// Returns the window of each layer; `None` for a layer without one.
fn windows(descriptor: &Descriptor) -> Vec<Option<usize>> {
    let layers = descriptor.layers.iter();
    layers
        .map(|layer| layer.mixer.attention().and_then(|attention| attention.window))
        .collect()
}

fn would_not_load(source: LoadError) -> LoadError {
    LoadError::FileWouldNotLoad {
        source: Box::new(source),
    }
}
