//! [`ModelFacts`]: what a model's files say of it, kept after the load.
//!
//! Separate from the network, which is gone once its weights are loaded. Invariant: counts and bytes are those of the files,
//! whatever form the device holds the weights in.

use std::collections::BTreeMap;

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
    /// The type that most bytes of the weights are in.
    pub main_type: &'static str,
    /// Positions that it was made for.
    pub n_ctx_train: usize,
}

impl ModelFacts {
    /// The facts of an opened network.
    pub fn of(network: &Network) -> Self {
        let mut n_params = 0;
        let mut bytes_of: BTreeMap<&'static str, u64> = BTreeMap::new();
        for info in network.weights().infos() {
            n_params += info.dims.iter().map(|&dim| dim as u64).product::<u64>();
            let stored = info.stored_form();
            *bytes_of.entry(stored.type_name).or_default() += stored.n_bytes as u64;
        }
        let descriptor = network.descriptor();
        Self {
            arch: descriptor.arch.clone(),
            format: if network.gguf().is_some() {
                "gguf"
            } else {
                "safetensors"
            },
            n_params,
            weights_bytes: bytes_of.values().sum(),
            main_type: (bytes_of.iter().max_by_key(|(_, bytes)| **bytes)).map_or("", |(name, _)| name),
            n_ctx_train: descriptor.n_ctx_train,
        }
    }
}
