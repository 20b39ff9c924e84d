//! [`FolderAsGguf`]: a Hugging Face folder as the GGUF file that a converter makes of it.
//!
//! Separate from [`Model`](crate::Model), which needs no keys and computes with what a folder has. Invariant: opening reads headers;
//! the bytes of a tensor are read, and changed, when they are asked for.

use std::path::Path;

use tokenmill_backend::Backend;
use tokenmill_gguf::{Metadata, Value};

use crate::{
    Descriptor, LoadError, ModelOptions, WeightInfo, WeightSource,
    arch::{self, GgufForm, GgufHeader, HfConfig, HfNetwork},
    model::plan,
    safetensors_folder::SafetensorsFolder,
};

/// A folder under the names, shapes and keys of a GGUF file.
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

    /// As [`Self::open`], with a configuration that was read.
    pub(crate) fn open_with(folder: &Path, config: &HfConfig) -> Result<Self, LoadError> {
        let HfNetwork {
            descriptor,
            layout,
            config,
        } = arch::describe_hf(config)?;
        let form = GgufForm::of(&descriptor)?;
        let mut keys = Metadata::new();
        form.write_keys(&config, &descriptor, &mut keys)?;
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

    /// Adds the windows where the architecture's own keys leave them out, in the form that all architectures have in common: their width,
    /// and, where that is not enough, which layers have one.
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

    /// Sets a key, in the place of another value.
    fn set_key(&mut self, key: &str, value: Value) -> Result<(), LoadError> {
        let mut keys = Metadata::new();
        for (known, value) in self.keys.iter().filter(|(known, _)| *known != key) {
            keys.insert(known, value.clone())?;
        }
        keys.insert(key, value)?;
        self.keys = keys;
        Ok(())
    }

    /// `general.architecture`.
    pub fn architecture(&self) -> &'static str {
        self.form.arch
    }

    /// Checks that the file says what the folder does: reads its header as a load does, compares the two networks field by field, and
    /// runs a load of the file dry.
    ///
    /// # Errors
    /// [`LoadError::NotInGguf`] with the fields that readers of the file would take for something else;
    /// [`LoadError::FileWouldNotLoad`].
    pub fn check<B: Backend>(&self, backend: &B) -> Result<(), LoadError> {
        let of_file = self.descriptor_of_file().map_err(would_not_load)?;
        let found = self.form.disagreement(&self.descriptor, &of_file, &self.weights);
        if let Some(error) = self.form.cannot_say(found, &self.config) {
            return Err(error);
        }
        // Tensors that a reader would miss, or not use, are found so.
        plan(&of_file, &self.weights, backend, &ModelOptions::default()).map_err(would_not_load)?;
        Ok(())
    }

    /// What a reader of the file would take the network for.
    fn descriptor_of_file(&self) -> Result<Descriptor, LoadError> {
        arch::describe_header(GgufHeader::of_form(
            self.form.arch,
            &self.keys,
            &self.tensor_infos(),
        ))
    }

    /// The keys of the architecture: sizes, and what else describes the network.
    pub fn keys(&self) -> &Metadata {
        &self.keys
    }

    /// The network.
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// The tensors, in the names and shapes of the file.
    pub(crate) fn tensor_infos(&self) -> Vec<WeightInfo> {
        self.weights.infos()
    }

    /// The tensors, in the types that the folder has them in.
    pub fn weights(&self) -> &dyn WeightSource {
        &self.weights
    }
}

/// The window of each layer that has one.
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
