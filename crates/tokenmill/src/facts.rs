//! [`ModelFacts`]: what a model's files say of it, kept after the load.
//!
//! Separate from the network, which is gone once its weights are loaded. Invariant: counts and bytes are those of the files,
//! whatever form the device holds the weights in.

use std::collections::BTreeMap;

use tokenmill_convert::Preset;
use tokenmill_model::Model as Network;

/// What a model's files say of it.
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
        }
    }
}

/// The kind of file that `general.file_type` says.
fn said_type(network: &Network) -> Option<&'static str> {
    let number = network.gguf()?.metadata().u32("general.file_type").ok()?;
    let preset = Preset::ALL.iter().find(|preset| preset.file_type() == number)?;
    Some(preset.name())
}
