//! [`Reference`]: the reference data of one parity fixture.
//!
//! The layout (`ref.json`, `ref.safetensors`) is described in the fixtures' own manifest.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use half::f16;
use safetensors::{Dtype, SafeTensors};

/// Why reference data could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReferenceError {
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// `ref.json` is not as expected.
    #[error("{}: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// `ref.safetensors` is not as expected.
    #[error("{}: {source}", path.display())]
    Tensors {
        /// The file.
        path: PathBuf,
        /// Why.
        source: safetensors::SafeTensorError,
    },
}

/// The reference data of one fixture.
pub struct Reference {
    /// The contents of `ref.json`.
    pub facts: Facts,
    /// The tokens excluded from greedy continuations: in the second set of fixtures those that end an answer.
    pub banned_tokens: Vec<u32>,
    path: PathBuf,
    tensors: Vec<u8>,
}

/// The parts of `ref.json` that the comparison needs.
#[derive(Debug, serde::Deserialize)]
pub struct Facts {
    /// Name of the architecture in GGUF.
    pub gguf_arch: Option<String>,
    /// The output of an encoder, or of a decoder that embeds; absent for networks that generate text.
    pub kind: Option<String>,
    /// Prompts, as token ids.
    pub prompts: Vec<Vec<u32>>,
    /// Greedy continuation of each prompt.
    #[serde(default)]
    pub greedy: Vec<Vec<u32>>,
    /// Leading greedy steps of each prompt whose margin is at least the key.
    #[serde(default)]
    pub greedy_safe_steps: BTreeMap<String, Vec<usize>>,
    /// The GGUF files by type.
    #[serde(default)]
    pub types: BTreeMap<String, FileFacts>,
    /// Limits of the comparison.
    pub tolerance: Tolerance,
    /// The distance of the network's logits from its logits before it was written to files. Only the second
    /// set states it.
    reload_vs_memory_max: Option<f64>,
}

/// Reads the tokens that end an answer from a folder's `config.json`: those of the text network, if the folder has several
/// networks.
///
/// # Errors
/// The reason why the text is not such JSON.
pub fn end_tokens(config: &[u8]) -> serde_json::Result<Vec<u32>> {
    let config: Config = serde_json::from_slice(config)?;
    let of_text = config.text_config.and_then(|text| text.eos_token_id);
    Ok(match of_text.or(config.eos_token_id) {
        None => Vec::new(),
        Some(EndTokens::One(token)) => vec![token],
        Some(EndTokens::Several(tokens)) => tokens,
    })
}

/// The part of a folder's configuration that names the end of an answer.
#[derive(serde::Deserialize)]
struct Config {
    eos_token_id: Option<EndTokens>,
    text_config: Option<Box<Config>>,
}

/// One, or a list of them.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum EndTokens {
    One(u32),
    Several(Vec<u32>),
}

/// One GGUF file of a fixture.
#[derive(Debug, serde::Deserialize)]
pub struct FileFacts {
    /// Its name.
    pub file: String,
}

/// Limits of the comparison, by the kind of arithmetic.
#[derive(Debug, serde::Deserialize)]
pub struct Tolerance {
    /// All in f32.
    pub f32_compute: Limits,
    /// A half-precision KV store.
    #[serde(default)]
    pub f16_kv_cache: Limits,
    /// Half precision throughout, for pooled rows.
    #[serde(default)]
    pub f16_compute: Limits,
    /// f32, and the reference's table of GELU.
    #[serde(default)]
    pub f32_compute_gelu_f16_table: Limits,
    /// Activations quantized to 8 bits, by the file's type.
    #[serde(default)]
    pub q8_activations: BTreeMap<String, Limits>,
}

/// Limits on the difference of logits; absent ones do not apply.
#[derive(Clone, Copy, Debug, Default, serde::Deserialize)]
pub struct Limits {
    /// Largest difference.
    pub max_abs: Option<f64>,
    /// Root of the mean square.
    pub rms: Option<f64>,
    /// Mean divergence of the distributions.
    pub kl_mean: Option<f64>,
}

impl Reference {
    /// Reads a fixture's reference data.
    ///
    /// # Errors
    /// [`ReferenceError`].
    pub fn open(folder: &Path) -> Result<Self, ReferenceError> {
        let read = |name: &str| {
            let path = folder.join(name);
            let bytes = std::fs::read(&path).map_err(|source| ReferenceError::Read {
                path: path.clone(),
                source,
            })?;
            Ok((path, bytes))
        };
        let (json_path, json) = read("ref.json")?;
        let wrong = |path| move |source| ReferenceError::Json { path, source };
        let facts: Facts = serde_json::from_slice(&json).map_err(wrong(json_path))?;
        // The first set's continuations run through the end of an answer, the second set's exclude it.
        let banned_tokens = if facts.reload_vs_memory_max.is_some() {
            let (path, json) = read("hf/config.json")?;
            end_tokens(&json).map_err(wrong(path))?
        } else {
            Vec::new()
        };
        let (path, tensors) = read("ref.safetensors")?;
        Ok(Self {
            facts,
            banned_tokens,
            path,
            tensors,
        })
    }

    /// Returns the type whose reference and limits apply to the Hugging Face folder. Weights are rounded so that BF16, F16 and
    /// F32 hold the same numbers; a network whose files have only one type is published in that type.
    pub fn folder_type(&self) -> &str {
        let types = &self.facts.types;
        match types.first_key_value() {
            Some((ty, _)) if types.len() == 1 => ty,
            _ => "F32",
        }
    }

    /// Returns whether there is a tensor of this name.
    ///
    /// # Errors
    /// [`ReferenceError::Tensors`] if the file is invalid.
    pub fn has(&self, name: &str) -> Result<bool, ReferenceError> {
        let tensors = SafeTensors::deserialize(&self.tensors).map_err(|source| ReferenceError::Tensors {
            path: self.path.clone(),
            source,
        })?;
        Ok(tensors.tensor(name).is_ok())
    }

    /// Returns the numbers of a tensor, whatever their type.
    ///
    /// # Errors
    /// [`ReferenceError::Tensors`] if it is missing.
    pub fn numbers(&self, name: &str) -> Result<Vec<f32>, ReferenceError> {
        let wrong = |source| ReferenceError::Tensors {
            path: self.path.clone(),
            source,
        };
        let tensors = SafeTensors::deserialize(&self.tensors).map_err(wrong)?;
        let tensor = tensors.tensor(name).map_err(wrong)?;
        let quads = || (tensor.data().chunks_exact(4)).map(|quad| [quad[0], quad[1], quad[2], quad[3]]);
        match tensor.dtype() {
            Dtype::F32 => Ok(quads().map(f32::from_le_bytes).collect()),
            Dtype::I32 => Ok(quads().map(|quad| i32::from_le_bytes(quad) as f32).collect()),
            Dtype::F16 => Ok((tensor.data().chunks_exact(2))
                .map(|pair| f16::from_le_bytes([pair[0], pair[1]]).to_f32())
                .collect()),
            _ => Err(wrong(safetensors::SafeTensorError::TensorInvalidInfo)),
        }
    }
}
