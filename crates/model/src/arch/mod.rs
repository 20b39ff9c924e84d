//! The table of architectures: from a file's metadata to a [`Descriptor`].
//!
//! One file per architecture and one row here; how the two kinds of files name things is in `gguf_config` and `hf_config`.
//! Invariant: an architecture's file says only what is different about it, and nothing outside this folder knows an
//! architecture's name.

mod gguf_config;
mod hf_config;
mod llama;
mod olmo2;
mod qwen2;
mod qwen3;

use tokenmill_gguf::GgufFile;

use crate::{Descriptor, LoadError};

use gguf_config::GgufConfig;
pub(crate) use hf_config::HfConfig;

/// One architecture.
struct Architecture {
    /// Its name in `general.architecture`.
    name: &'static str,
    /// GGUF metadata to descriptor.
    from_gguf: fn(&GgufConfig<'_>) -> Result<Descriptor, LoadError>,
    /// The classes of Hugging Face's configurations that it covers.
    hf_classes: &'static [&'static str],
    /// Hugging Face and GGUF names of a layer's tensors, where they are not the usual ones.
    hf_names: HfNames,
    /// Hugging Face configuration to descriptor.
    from_hf: fn(&HfConfig) -> Result<Descriptor, LoadError>,
}

/// All architectures.
const ARCHITECTURES: &[Architecture] = &[
    llama::ARCHITECTURE,
    olmo2::ARCHITECTURE,
    qwen2::ARCHITECTURE,
    qwen3::ARCHITECTURE,
];

/// The names of all architectures that can be loaded.
pub fn architectures() -> Vec<&'static str> {
    ARCHITECTURES.iter().map(|row| row.name).collect()
}

/// Describes the network in a GGUF file.
pub(crate) fn describe_gguf(file: &GgufFile) -> Result<Descriptor, LoadError> {
    let found = file.metadata().str("general.architecture")?;
    let row = (ARCHITECTURES.iter())
        .find(|row| row.name == found)
        .ok_or_else(|| LoadError::UnknownArchitecture {
            found: found.to_owned(),
            supported: architectures(),
        })?;
    let embedding = file
        .tensor("token_embd.weight")
        .ok_or_else(|| LoadError::MissingTensor {
            name: "token_embd.weight".to_owned(),
        })?;
    let config = GgufConfig {
        metadata: file.metadata(),
        arch: row.name,
        n_vocab: embedding.info.n_rows(),
        n_tensors: file.tensors().len(),
    };
    let descriptor = (row.from_gguf)(&config)?;
    descriptor.validate()?;
    Ok(descriptor)
}

/// The names of a layer's tensors in a Hugging Face folder, where they are not the usual ones.
pub(crate) type HfNames = &'static [(&'static str, &'static str)];

/// Describes the network of a Hugging Face folder, and says what its tensors are called.
pub(crate) fn describe_hf(config: &HfConfig) -> Result<(Descriptor, HfNames), LoadError> {
    let found = config.class()?;
    let row = (ARCHITECTURES.iter())
        .find(|row| row.hf_classes.contains(&found))
        .ok_or_else(|| LoadError::UnknownArchitecture {
            found: found.to_owned(),
            supported: ARCHITECTURES
                .iter()
                .flat_map(|row| row.hf_classes)
                .copied()
                .collect(),
        })?;
    let mut descriptor = (row.from_hf)(config)?;
    row.name.clone_into(&mut descriptor.arch);
    descriptor.validate()?;
    Ok((descriptor, row.hf_names))
}
