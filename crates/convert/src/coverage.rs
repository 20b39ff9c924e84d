//! [`check_is_of_model`]: checks whether an importance matrix was measured on the model being quantized.
//!
//! The matrix itself knows no model, and shapes alone do not distinguish models of the same width. Invariant:
//! tensors that measuring skips are not reported as missing.

use std::collections::{BTreeMap, BTreeSet};

use crate::{ConvertError, ImportanceMatrix, planned::Planned};

/// Tensors of layers that measuring skips, because they are multiplied head by head.
const NEVER_MEASURED: [&str; 3] = ["attn_kv_b.weight", "attn_k_b.weight", "attn_v_b.weight"];

/// Refuses a matrix of another model: one without an entry for any tensor. Unless a partial matrix is
/// allowed, also refuses one that lacks all tensors of a kind, such as all experts, or of a layer, or that
/// has additional kinds or layers.
///
/// # Errors
/// [`ConvertError::OtherModel`], [`ConvertError::ImportanceLacks`], [`ConvertError::ImportanceKinds`] and [`ConvertError::ImportanceLayers`].
pub(crate) fn check_is_of_model(
    matrix: &ImportanceMatrix,
    planned: &[Planned<'_>],
) -> Result<(), ConvertError> {
    if !(planned.iter()).any(|tensor| matrix.get(&tensor.view.info.name).is_some()) {
        return Err(ConvertError::OtherModel {
            n_entries: matrix.n_entries(),
        });
    }
    if matrix.is_partial_allowed() {
        return Ok(());
    }
    check_kinds_and_layers(matrix, planned)
}

/// Checks kinds and layers. MTP layers are not computed while a matrix is measured.
fn check_kinds_and_layers(matrix: &ImportanceMatrix, planned: &[Planned<'_>]) -> Result<(), ConvertError> {
    let of_layers = planned
        .iter()
        .filter_map(|tensor| Some((layer_and_kind(&tensor.view.info.name)?, tensor)));
    let of_layers: Vec<_> = of_layers.collect();
    let predicting: BTreeSet<usize> = (of_layers.iter())
        .filter(|((_, kind), _)| is_of_nextn(kind))
        .map(|((layer_idx, _), _)| *layer_idx)
        .collect();
    // For each kind and each layer: the number of quantized tensors, and how many of them have importance.
    let mut kinds: BTreeMap<&str, [usize; 2]> = BTreeMap::new();
    let mut layers: BTreeMap<usize, [usize; 2]> = BTreeMap::new();
    for &((layer_idx, kind), tensor) in &of_layers {
        let is_measured = !NEVER_MEASURED.contains(&kind) && !predicting.contains(&layer_idx);
        if !is_measured || tensor.choice.ty == tensor.before {
            continue;
        }
        let n_entries = usize::from(matrix.get(&tensor.view.info.name).is_some());
        for counts in [
            kinds.entry(kind).or_default(),
            layers.entry(layer_idx).or_default(),
        ] {
            counts[0] += 1;
            counts[1] += n_entries;
        }
    }
    let lacking_kinds: Vec<String> = (kinds.iter())
        .filter(|(_, counts)| counts[1] == 0)
        .map(|(kind, _)| (*kind).to_owned())
        .collect();
    let lacking_layers: Vec<usize> = (layers.iter())
        .filter(|(_, counts)| counts[1] == 0)
        .map(|(layer_idx, _)| *layer_idx)
        .collect();
    if !lacking_kinds.is_empty() || !lacking_layers.is_empty() {
        return Err(ConvertError::ImportanceLacks {
            kinds: lacking_kinds,
            layers: lacking_layers,
            n_lacking: layers.values().map(|counts| counts[0] - counts[1]).sum(),
            n_quantized: layers.values().map(|counts| counts[0]).sum(),
        });
    }
    let known: BTreeSet<&str> = of_layers.iter().map(|&((_, kind), _)| kind).collect();
    let foreign: BTreeSet<&str> = (matrix.names().filter_map(layer_and_kind))
        .map(|(_, kind)| kind)
        .filter(|kind| !known.contains(kind) && !NEVER_MEASURED.contains(kind) && !is_of_nextn(kind))
        .collect();
    if !foreign.is_empty() {
        return Err(ConvertError::ImportanceKinds {
            kinds: foreign.into_iter().map(str::to_owned).collect(),
        });
    }
    let n_layers = (of_layers
        .iter()
        .map(|((layer_idx, _), _)| layer_idx.saturating_add(1)))
    .max();
    let entries = || matrix.names().filter_map(layer_and_kind);
    let measured_nextn: BTreeSet<usize> = entries()
        .filter(|(_, kind)| is_of_nextn(kind))
        .map(|(layer_idx, _)| layer_idx)
        .collect();
    let last = entries()
        .map(|(layer_idx, _)| layer_idx)
        .filter(|layer_idx| !measured_nextn.contains(layer_idx))
        .max();
    match (last, n_layers) {
        (Some(last), Some(n_layers)) if last >= n_layers => Err(ConvertError::ImportanceLayers {
            n_measured: last.saturating_add(1),
            n_layers,
        }),
        _ => Ok(()),
    }
}

/// Returns the layer of a tensor, and its name without it.
fn layer_and_kind(name: &str) -> Option<(usize, &str)> {
    let (layer, kind) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((layer.parse().ok()?, kind))
}

/// Returns whether a tensor belongs to an MTP layer.
fn is_of_nextn(kind: &str) -> bool {
    kind.starts_with("nextn.")
}
