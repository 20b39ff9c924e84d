//! [`TowerTensors`]: an encoder's tensors by the names that networks know.
//!
//! Separate from the encoder because it is names only. Invariant: what a network of the tower does not use is listed under the
//! file's own name, so that the load refuses it.

use std::collections::BTreeMap;

use tokenmill_gguf::TensorType;

use crate::{WeightInfo, WeightSource, WeightTensor};

use super::{VisionFamily, VisionShape};

/// Parts of a layer that files of encoders call by other names: those, and the usual ones.
const PARTS: [(&str, &str); 3] = [
    ("ln1", "attn_norm"),
    ("ln2", "ffn_norm"),
    ("attn_out", "attn_output"),
];

/// Whether a tensor of an encoder stands before or behind its layers.
pub(super) fn is_around(name: &str, family: VisionFamily) -> bool {
    name.starts_with("v.patch_embd.")
        || name.starts_with("v.deepstack.")
        || family == VisionFamily::Qwen3Vl && name.starts_with("v.position_embd.")
}

/// The tensors of a tower.
pub(super) struct TowerTensors<'a> {
    source: &'a dyn WeightSource,
    /// Those of the layers as the file has them, by the usual names.
    infos: BTreeMap<String, WeightInfo>,
    /// The embedding of the one token that there is, which is never looked up: zeros.
    no_token: Vec<u8>,
}

impl<'a> TowerTensors<'a> {
    pub(super) fn of(source: &'a dyn WeightSource, shape: &VisionShape) -> Self {
        // Files of early 2025 call the two matrices of a feed-forward network by each other's names.
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

/// The usual name of a tensor of a tower.
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

/// The name in files of a tensor of a tower.
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

/// The layer, part and suffix of `blk.LAYER.PART.SUFFIX`.
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

    fn contains(&self, name: &str) -> bool {
        self.tensor(name).is_some()
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
        // What stands around the tower has its own name.
        let name = self.infos.get(name).map_or(name, |info| info.name.as_str());
        let mut tensor = self.source.tensor(name)?;
        let dims = &mut tensor.dims;
        // A convolution whose steps are as wide as its window is a matrix.
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
