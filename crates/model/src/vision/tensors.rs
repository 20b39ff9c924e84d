//! [`TowerTensors`]: an encoder's tensors under the names that networks use.
//!
//! Invariant: a tensor that the tower does not use keeps the file's name, so that the load refuses it.

use std::collections::BTreeMap;

use tokenmill_gguf::TensorType;

use crate::{WeightInfo, WeightSource, WeightTensor};

use super::{VisionFamily, VisionShape};

/// Parts of a layer with other names in encoder files: the file's name and the usual one.
const PARTS: [(&str, &str); 3] = [
    ("ln1", "attn_norm"),
    ("ln2", "ffn_norm"),
    ("attn_out", "attn_output"),
];

/// Returns whether a tensor of an encoder belongs before or after its layers.
pub(super) fn is_around(name: &str, family: VisionFamily) -> bool {
    name.starts_with("v.patch_embd.")
        || name.starts_with("v.deepstack.")
        || family == VisionFamily::Qwen3Vl && name.starts_with("v.position_embd.")
}

/// The tensors of a tower.
pub(super) struct TowerTensors<'a> {
    source: &'a dyn WeightSource,
    /// The tensors of the layers as in the file, by their usual names.
    infos: BTreeMap<String, WeightInfo>,
    /// The embedding of the only token, all zeros. It is never looked up.
    no_token: Vec<u8>,
}

impl<'a> TowerTensors<'a> {
    pub(super) fn of(source: &'a dyn WeightSource, shape: &VisionShape) -> Self {
        // Files of early 2025 swap the names of the two feed-forward matrices.
        let is_swapped = source.tensor("v.blk.0.ffn_down.weight").is_some_and(|down| {
            down.dims[..] == [shape.n_vision, shape.n_ff] && shape.n_vision != shape.n_ff
        });
        let infos: BTreeMap<_, _> = (source.infos().into_iter())
            .filter(|info| info.name.starts_with("v.") && !is_around(&info.name, shape.family))
            .map(|info| (usual_name(&info.name, is_swapped), info))
            .collect();
        Self {
            source,
            infos,
            no_token: vec![0; shape.n_vision * size_of::<f32>()],
        }
    }
}

/// Returns the usual name of a tower's tensor.
fn usual_name(name: &str, is_swapped: bool) -> String {
    let own = &name["v.".len()..];
    if let Some(suffix) = own.strip_prefix("post_ln.") {
        return format!("output_norm.{suffix}");
    }
    let Some((layer, part, suffix)) = split_layer(own) else {
        return own.to_owned();
    };
    let part = match (part, is_swapped) {
        ("ffn_up", true) => "ffn_down",
        ("ffn_down", true) => "ffn_up",
        _ => part,
    };
    let usual = PARTS.iter().find(|(other, _)| *other == part);
    format!("blk.{layer}.{}.{suffix}", usual.map_or(part, |(_, usual)| usual))
}

/// Returns the file's name of a tower's tensor.
fn name_in_files(usual: &str) -> String {
    if let Some(suffix) = usual.strip_prefix("output_norm.") {
        return format!("v.post_ln.{suffix}");
    }
    let Some((layer, part, suffix)) = split_layer(usual) else {
        return usual.to_owned();
    };
    let own = PARTS.iter().find(|(_, usual)| *usual == part);
    format!("v.blk.{layer}.{}.{suffix}", own.map_or(part, |(own, _)| own))
}

/// Returns the layer, part and suffix of `blk.LAYER.PART.SUFFIX`.
fn split_layer(name: &str) -> Option<(&str, &str, &str)> {
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let (part, suffix) = rest.rsplit_once('.')?;
    Some((layer, part, suffix))
}

const NO_TOKEN: &str = "token_embd.weight";

impl WeightSource for TowerTensors<'_> {
    fn infos(&self) -> Vec<WeightInfo> {
        let own = self.infos.iter().map(|(usual, info)| WeightInfo {
            name: usual.clone(),
            ..info.clone()
        });
        own.collect()
    }

    fn own_name(&self, name: &str) -> Option<String> {
        match self.infos.get(name) {
            Some(info) => self.source.own_name(&info.name),
            None => self.source.own_name(&name_in_files(name)),
        }
    }

    fn tensor(&self, name: &str) -> Option<WeightTensor<'_>> {
        if name == NO_TOKEN {
            return Some(WeightTensor {
                ty: TensorType::F32,
                dims: vec![self.no_token.len() / size_of::<f32>(), 1],
                bytes: self.no_token.as_slice().into(),
            });
        }
        // Tensors outside the layers keep the file's names.
        let name = self.infos.get(name).map_or(name, |info| info.name.as_str());
        let mut tensor = self.source.tensor(name)?;
        let dims = &mut tensor.dims;
        // A convolution with equal stride and window is a matrix.
        if name.starts_with("v.patch_embd.weight") && dims.len() == 4 {
            *dims = vec![dims[..3].iter().product(), dims[3]];
        }
        Some(tensor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_of_a_tower_have_the_names_of_other_networks() {
        for (name, expected) in [
            ("v.blk.3.ln1.weight", "blk.3.attn_norm.weight"),
            ("v.blk.3.ln2.bias", "blk.3.ffn_norm.bias"),
            ("v.blk.12.attn_out.weight", "blk.12.attn_output.weight"),
            ("v.blk.12.attn_q.bias", "blk.12.attn_q.bias"),
            ("v.blk.0.ffn_up.weight", "blk.0.ffn_up.weight"),
            ("v.post_ln.weight", "output_norm.weight"),
            ("v.position_embd.weight", "position_embd.weight"),
            ("v.blk.nothing", "blk.nothing"),
        ] {
            assert_eq!(usual_name(name, false), expected);
            if name.starts_with("v.blk.") && !name.ends_with("nothing") || name.starts_with("v.post_ln") {
                assert_eq!(name_in_files(expected), name);
            }
        }
        assert_eq!(usual_name("v.blk.0.ffn_up.bias", true), "blk.0.ffn_down.bias");
        assert_eq!(usual_name("v.blk.0.ffn_down.bias", true), "blk.0.ffn_up.bias");
    }
}
