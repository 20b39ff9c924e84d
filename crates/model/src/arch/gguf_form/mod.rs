//! The GGUF form of a folder: which keys and tensors the file has that a converter makes of it.
//!
//! Separate from the architectures' descriptions, which folders and files share. Invariant: what stands here is data and rules of
//! keys; the views that change tensors are with the folder.

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

/// More layers that predict further tokens than any network has; a larger count must not size a list.
const MAX_DRAFT_LAYERS: usize = 64;

/// What the folder of a network becomes.
pub(crate) struct GgufForm {
    /// `general.architecture`.
    pub(crate) arch: &'static str,
    rule: rules::Rule,
    /// How tensors change, by the end of their name, one after the other.
    pub(crate) recasts: &'static [(&'static str, Recast)],
}

impl GgufForm {
    /// The form of a network.
    ///
    /// # Errors
    /// [`LoadError::UnsupportedFeature`] where there is none for its architecture.
    pub(crate) fn of(descriptor: &Descriptor) -> Result<Self, LoadError> {
        let has_experts = descriptor.layers.iter().any(|layer| layer.ffn.moe().is_some());
        let name = match descriptor.arch.as_str() {
            // The class of the folders is the same.
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

    /// Whether norms of queries and keys that have no weights in folders have some in files.
    pub(crate) fn has_plain_norms(&self) -> bool {
        self.arch == "muse-glimmer"
    }

    /// The GGUF name of a tensor of the layers that predict further tokens, of which no other use is made; `None` of other tensors,
    /// and where the file leaves these layers out. They are counted from `n_layers` on.
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
