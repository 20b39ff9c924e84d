//! [`NextnFile`]: a file of its own for the layer behind a network's last that guesses further tokens.
//!
//! Separate from layers that are part of their model, which need no comparison. Invariant: of such a file the layer is read, with its
//! norms; embedding and head are the model's own, whether the file has them once more or not, unless they are the layer's alone.
//!
//! Source: llama.cpp, `convert_hf_to_gguf.py --mtp`: the model's metadata, the tensors of the layer, and the model's embedding, last norm
//! and head.

use std::path::Path;

use tokenmill_gguf::{GgufFile, Metadata};

use crate::{
    LoadError, Model, Nextn, WeightInfo,
    arch::{self, GgufHeader},
    nextn_layer::NextnWeights,
};

/// A GGUF file with a model's layer for further tokens.
pub struct NextnFile(GgufFile);

impl NextnFile {
    /// Opens a file; only headers are read. One of a whole model that has such a layer is one too.
    ///
    /// # Errors
    /// [`LoadError::Gguf`], and [`LoadError::NoNextn`] of a file without such a layer.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        let file = Self(GgufFile::open(path)?);
        let n_decoding = file.n_decoding()?;
        if file.0.tensor(&first_tensor(n_decoding)).is_none() {
            return Err(LoadError::NoNextn);
        }
        Ok(file)
    }

    /// The model's metadata, as the file has it once more.
    pub fn metadata(&self) -> &Metadata {
        self.0.metadata()
    }

    /// The layer, to guess for `model`.
    ///
    /// # Errors
    /// [`LoadError::NextnOfOther`] of a layer that belongs to another model, and what the headers show to be wrong with it.
    pub fn layer_for<'a>(&'a self, model: &'a Model) -> Result<Nextn<'a>, LoadError> {
        let n_decoding = self.n_decoding()?;
        self.compare(model, n_decoding)?;
        // What a description asks of the other tensors, such as whether there are experts, it asks of the model's.
        let start = format!("blk.{n_decoding}.");
        let of_model = model.weights().infos().into_iter();
        let of_layer = self.0.tensors().filter(|info| info.name.starts_with(&start));
        let infos: Vec<WeightInfo> = of_model
            .filter(|info| !info.name.starts_with(&start))
            .chain(of_layer.map(WeightInfo::from))
            .collect();
        let header = GgufHeader::of_form(&model.descriptor().arch, self.metadata(), &infos);
        let (descriptor, layer_idx) = arch::describe_nextn(header)?.ok_or(LoadError::NoNextn)?;
        let weights = NextnWeights::Beside { file: &self.0, model };
        Ok(Nextn::new(descriptor, weights, layer_idx))
    }

    /// Looks whether the layer belongs to a model: what both say of themselves, and the sizes of what both have.
    fn compare(&self, model: &Model, n_decoding: usize) -> Result<(), LoadError> {
        let descriptor = model.descriptor();
        let same = |what: &'static str, found: String, expected: String| {
            if found == expected {
                Ok(())
            } else {
                Err(LoadError::NextnOfOther {
                    what,
                    found,
                    expected,
                })
            }
        };
        let arch = self.architecture()?;
        same("architecture", arch.to_owned(), descriptor.arch.clone())?;
        let n_layers = descriptor.layers.len();
        same("layer count", n_decoding.to_string(), n_layers.to_string())?;
        let n_embd = self.metadata().usize(&format!("{arch}.embedding_length"))?;
        same("width", n_embd.to_string(), descriptor.n_embd.to_string())?;
        for name in ["token_embd.weight", "output.weight"] {
            let rows = self
                .0
                .tensor(name)
                .and_then(|view| view.info.dims.get(1).copied());
            if let Some(n_vocab) = rows {
                same(
                    "vocabulary",
                    format!("{n_vocab} rows"),
                    format!("{} rows", descriptor.n_vocab),
                )?;
            }
        }
        Ok(())
    }

    fn architecture(&self) -> Result<&str, LoadError> {
        Ok(self.metadata().str("general.architecture")?)
    }

    /// The layers of the model that decode, which is the index of the first that guesses.
    fn n_decoding(&self) -> Result<usize, LoadError> {
        let (arch, metadata) = (self.architecture()?, self.metadata());
        let n_nextn = metadata.opt_usize(&format!("{arch}.nextn_predict_layers"))?;
        let n_layers = metadata.opt_usize(&format!("{arch}.block_count"))?;
        match (n_layers, n_nextn) {
            (Some(n_layers), Some(n_nextn)) if n_nextn > 0 => Ok(n_layers.saturating_sub(n_nextn)),
            _ => Err(LoadError::NoNextn),
        }
    }
}

/// What every layer for further tokens has.
fn first_tensor(layer_idx: usize) -> String {
    format!("blk.{layer_idx}.nextn.eh_proj.weight")
}
