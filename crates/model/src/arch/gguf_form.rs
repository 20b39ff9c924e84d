//! [`GgufForm`]: the GGUF form of a folder: the keys and tensors that a converter writes for it.
//!
//! Folders and files share the architectures' descriptions. Invariant: the rule of an architecture is in its own file, and
//! the views that change tensors belong to the safetensors folder.

use tokenmill_gguf::Metadata;

use crate::{
    Descriptor, LoadError,
    hf_layout::{DRAFT_NAMES, Drafts, MTP_NAMES, Recasts, Share},
};

use super::{Architecture, GgufKeys, HfConfig, HfLayout};

/// The GGUF architecture and tensor changes for the folder of a network.
pub(crate) struct GgufForm {
    /// `general.architecture`.
    pub(crate) arch: &'static str,
    row: &'static Architecture,
}

impl GgufForm {
    /// Returns the form of a network, whose folder has the class of a row.
    pub(super) fn of(row: &'static Architecture, descriptor: &Descriptor) -> Self {
        let has_experts = descriptor.layers.iter().any(|layer| layer.ffn.moe().is_some());
        let row = match row.hf_layout.arch_with_experts {
            Some(name) if has_experts => Architecture::named(name),
            _ => row,
        };
        Self { arch: row.name, row }
    }

    /// Returns the tensor changes by suffix of the tensor's name, in the order in which they apply.
    pub(crate) fn recasts(&self) -> Recasts {
        self.row.hf_layout.recasts
    }

    /// Adds the keys of the architecture to a file's metadata.
    pub(crate) fn write_keys(&self, config: &HfConfig, metadata: &mut Metadata) -> Result<(), LoadError> {
        let mut keys = GgufKeys::new(self.row, config)?;
        (self.row.rule)(&mut keys)?;
        keys.write(metadata)?;
        Ok(())
    }

    /// Returns whether files have weights for the query and key norms that have none in folders.
    pub(crate) fn has_plain_norms(&self) -> bool {
        self.row.hf_layout.has_plain_norms
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
        match self.row.hf_layout.drafts {
            Drafts::Network => {
                let rest = hf_name.strip_prefix("mtp.")?;
                let Some(rest) = rest.strip_prefix("layers.") else {
                    return named(MTP_NAMES, n_layers, rest);
                };
                let (layer, rest) = rest.split_once('.')?;
                let layer_idx = n_layers.checked_add(layer.parse().ok()?)?;
                layout.gguf_name(&format!("{}{layer_idx}.{rest}", layout.layers))
            }
            Drafts::Layers => {
                let layer_idx = layout
                    .layer_idx(hf_name)
                    .filter(|&layer_idx| layer_idx >= n_layers)?;
                let (_, rest) = hf_name.split_once(layout.layers)?;
                let (_, rest) = rest.split_once('.')?;
                named(DRAFT_NAMES, layer_idx, rest).or_else(|| layout.gguf_name(hf_name))
            }
            Drafts::Left => None,
        }
    }
}
