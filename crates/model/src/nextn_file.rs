//! [`NextnFile`]: a separate file with the MTP layer of a model.
//!
//! An MTP layer inside its model's file needs no comparison. Invariant: only the layer and its norms are read
//! from the file. Embedding and head are the model's own, even if the file repeats them, unless they belong
//! to the layer alone.
//!
//! Source: llama.cpp, `convert_hf_to_gguf.py --mtp`: the model's metadata, the tensors of the layer, and the
//! model's embedding, last norm and head.

use std::path::Path;

use tokenmill_gguf::{GgufFile, Metadata};

use crate::{LoadError, Model, Nextn, WeightInfo, arch, gguf_header::GgufHeader, nextn_layer::NextnWeights};

/// A GGUF file with a model's MTP layer.
pub struct NextnFile(GgufFile);

impl NextnFile {
    /// Opens a file; only headers are read. The file of a whole model with an MTP layer is accepted too.
    ///
    /// # Errors
    /// [`LoadError::Gguf`], and [`LoadError::NoNextn`] for a file without such a layer.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        let file = Self(GgufFile::open(path)?);
        let n_decoding = file.n_decoding()?;
        if file.0.tensor(&first_tensor(n_decoding)).is_none() {
            return Err(LoadError::NoNextn);
        }
        Ok(file)
    }

    /// Returns the model's metadata, as repeated in the file.
    pub fn metadata(&self) -> &Metadata {
        self.0.metadata()
    }

    /// Returns the layer, to draft for `model`.
    ///
    /// # Errors
    /// [`LoadError::NextnOfOther`] for a layer that belongs to another model, and errors that the headers
    /// reveal.
    pub fn layer_for<'a>(&'a self, model: &'a Model) -> Result<Nextn<'a>, LoadError> {
        let n_decoding = self.n_decoding()?;
        self.compare(model, n_decoding)?;
        // The description also reads other tensors, for example to detect experts; these come from the model.
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

    /// Checks that the layer belongs to a model, by their metadata and the sizes of shared tensors.
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

    /// Returns the number of decoder layers, which is the index of the first MTP layer.
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

/// Returns the name of a tensor that every MTP layer has.
fn first_tensor(layer_idx: usize) -> String {
    format!("blk.{layer_idx}.nextn.eh_proj.weight")
}
