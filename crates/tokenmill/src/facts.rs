//! [`ModelFacts`]: facts from a model's files, kept after the load.
//!
//! The opened network is dropped once its weights are loaded. Invariant: counts and bytes are those of the
//! files, whatever form the weights have on the device.

use std::collections::BTreeMap;

use tokenmill_convert::Preset;
use tokenmill_gguf::GgufFile;
use tokenmill_model::{Model as Network, PooledOutput};

use crate::decision::family::{family_name, has_pointer_head};

/// The task that a model was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// To continue texts.
    Text,
    /// To make vectors of texts.
    Embeddings,
    /// To say how well documents answer a query.
    Ranks,
    /// To answer typed questions, and nothing else.
    Decisions,
}

impl Task {
    /// The task of an opened network.
    pub fn of(network: &Network) -> Self {
        let descriptor = network.descriptor();
        if has_pointer_head(network) {
            return Self::Decisions;
        }
        match descriptor.pooling.as_ref().map(|pooling| pooling.output) {
            Some(PooledOutput::Rank) => Self::Ranks,
            Some(_) => Self::Embeddings,
            None if descriptor.decision.is_some() => Self::Decisions,
            None if descriptor.is_encoder() => Self::Embeddings,
            None if has_rank_prompt(network) => Self::Ranks,
            None => Self::Text,
        }
    }
}

/// Whether a file that predicts tokens has a prompt to rank documents with.
fn has_rank_prompt(network: &Network) -> bool {
    let metadata = network.gguf().map(GgufFile::metadata);
    metadata.is_some_and(|metadata| metadata.get("tokenizer.chat_template.rerank").is_some())
}

/// The facts that a model's files state.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModelFacts {
    /// Its architecture, as the files name it.
    pub arch: String,
    /// `gguf` or `safetensors`.
    pub format: &'static str,
    /// Parameters.
    pub n_params: u64,
    /// Bytes of the weights.
    pub weights_bytes: u64,
    /// The kind of quantized file that it says it is, such as `Q4_K_M`, else the type of most of its parameters.
    pub main_type: &'static str,
    /// Positions that it was made for.
    pub n_ctx_train: usize,
    /// The task that it was made for.
    pub task: Task,
    /// The family of models for decisions that it belongs to, with a head or without, such as `laya` or `openjev`.
    pub decision_family: Option<&'static str>,
    /// Its license, as `general.license` says it: most often an SPDX identifier.
    pub license: Option<String>,
}

impl ModelFacts {
    /// The facts of an opened network.
    pub fn of(network: &Network) -> Self {
        let mut n_params = 0;
        let mut weights_bytes = 0;
        let mut params_of: BTreeMap<&'static str, u64> = BTreeMap::new();
        for info in network.weights().infos() {
            let n = info.dims.iter().map(|&dim| dim as u64).product::<u64>();
            let stored = info.stored_form();
            n_params += n;
            weights_bytes += stored.n_bytes as u64;
            *params_of.entry(stored.type_name).or_default() += n;
        }
        let most = params_of
            .iter()
            .max_by_key(|(_, n)| **n)
            .map_or("", |(name, _)| name);
        let descriptor = network.descriptor();
        Self {
            arch: descriptor.arch.clone(),
            format: if network.gguf().is_some() {
                "gguf"
            } else {
                "safetensors"
            },
            n_params,
            weights_bytes,
            main_type: said_type(network).unwrap_or(most),
            n_ctx_train: descriptor.n_ctx_train,
            task: Task::of(network),
            decision_family: family_name(network),
            license: said_license(network),
        }
    }
}

/// Reads `general.license`.
fn said_license(network: &Network) -> Option<String> {
    let license = network.gguf()?.metadata().str("general.license").ok()?;
    Some(license.to_owned())
}

/// The kind of file that `general.file_type` says.
fn said_type(network: &Network) -> Option<&'static str> {
    let number = network.gguf()?.metadata().u32("general.file_type").ok()?;
    let preset = Preset::ALL.iter().find(|preset| preset.file_type() == number)?;
    Some(preset.name())
}
