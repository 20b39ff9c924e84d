//! The GGUF form of a folder: the keys and tensors that a converter writes for it.
//!
//! Folders and files share the architectures' descriptions. Invariant: this folder holds data and key rules;
//! the views that change tensors belong to the safetensors folder.

mod agreement;
mod expert_rules;
mod gemma_rules;
mod groups;
mod keys;
mod recast;
mod recurrent_rules;
mod rules;

use tokenmill_gguf::Metadata;

use crate::{Descriptor, LoadError};

use super::{HfConfig, HfLayout, Share};

pub(crate) use recast::{Recast, recasts_of};

/// Largest accepted number of MTP layers. It bounds the size of lists.
const MAX_DRAFT_LAYERS: usize = 64;

/// The GGUF architecture and tensor changes for the folder of a network.
pub(crate) struct GgufForm {
    /// `general.architecture`.
    pub(crate) arch: &'static str,
    rule: rules::Rule,
    /// Tensor changes by suffix of the tensor's name, applied in order.
    pub(crate) recasts: &'static [(&'static str, Recast)],
}

impl GgufForm {
    /// Returns the form of a network.
    ///
    /// # Errors
    /// [`LoadError::UnsupportedFeature`] if its architecture has none.
    pub(crate) fn of(descriptor: &Descriptor) -> Result<Self, LoadError> {
        let has_experts = descriptor.layers.iter().any(|layer| layer.ffn.moe().is_some());
        let name = match descriptor.arch.as_str() {
            // Both use the same class of folders.
            "nemotron_h" if has_experts => "nemotron_h_moe",
            name => name,
        };
        let arch = super::architectures().into_iter().find(|known| *known == name);
        match arch.and_then(|arch| Some((arch, rules::rule_of(arch)?))) {
            Some((arch, rule)) => Ok(Self {
                arch,
                rule,
                recasts: recast::recasts_of(arch),
            }),
            None => Err(LoadError::UnsupportedFeature {
                arch: name.to_owned(),
                feature: "a GGUF file as output".to_owned(),
            }),
        }
    }

    /// Adds the keys of the architecture to a file's metadata.
    pub(crate) fn write_keys(
        &self,
        config: &HfConfig,
        descriptor: &Descriptor,
        metadata: &mut Metadata,
    ) -> Result<(), LoadError> {
        let mut keys = keys::GgufKeys::new(self.arch, config, descriptor);
        (self.rule)(&mut keys)?;
        keys.write(metadata)
    }

    /// Returns whether files have weights for the query and key norms that have none in folders.
    pub(crate) fn has_plain_norms(&self) -> bool {
        self.arch == "muse-glimmer"
    }

    /// Returns the GGUF name of an MTP layer's tensor, counted from `n_layers` on; `None` for other tensors,
    /// and if the file omits MTP layers.
    pub(crate) fn draft_name(
        &self,
        layout: &HfLayout,
        hf_name: &str,
        n_layers: usize,
    ) -> Option<(String, Share)> {
        let named = |names: &[(&str, &str)], layer_idx: usize, rest: &str| {
            let (stem, part) = rest.rsplit_once('.')?;
            let (_, name) = names.iter().find(|(known, _)| *known == stem)?;
            Some((format!("blk.{layer_idx}.{name}.{part}"), Share::Whole))
        };
        match self.arch {
            "qwen35" | "qwen35moe" => {
                let rest = hf_name.strip_prefix("mtp.")?;
                let Some(rest) = rest.strip_prefix("layers.") else {
                    return named(recast::MTP_NAMES, n_layers, rest);
                };
                let (layer, rest) = rest.split_once('.')?;
                let layer_idx = n_layers.checked_add(layer.parse().ok()?)?;
                layout.gguf_name(&format!("{}{layer_idx}.{rest}", layout.layers))
            }
            "glm4moe" => {
                let layer_idx = layout
                    .layer_idx(hf_name)
                    .filter(|&layer_idx| layer_idx >= n_layers)?;
                let (_, rest) = hf_name.split_once(layout.layers)?;
                let (_, rest) = rest.split_once('.')?;
                named(recast::DRAFT_NAMES, layer_idx, rest).or_else(|| layout.gguf_name(hf_name))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_architecture_has_a_form() {
        for arch in crate::architectures() {
            assert!(rules::rule_of(arch).is_some(), "{arch}");
        }
    }
}
