//! Reads the kinds of layers from Hugging Face configurations: windows, recurrent layers, experts.
//!
//! Invariant: a list has an entry for each layer, and every entry is a known kind.

use serde_json::Value;

use crate::LoadError;

use super::HfConfig;

/// The key of the list of layers' mixers.
pub(super) const KINDS: &str = "layer_types";
/// The kinds of attention in it.
const ATTENTIONS: [&str; 2] = ["full_attention", "sliding_attention"];

impl HfConfig {
    /// Returns the window of each layer: from `layer_types`, or else from `is_sliding`, called with the layer's
    /// index.
    pub(super) fn windows(
        &self,
        n_layers: usize,
        is_sliding: impl Fn(usize) -> bool,
    ) -> Result<Vec<Option<usize>>, LoadError> {
        let listed = self.layers_of_two_kinds(KINDS, ATTENTIONS, n_layers)?;
        let window = self.opt_usize("sliding_window")?;
        if window.is_none() && listed.as_ref().is_some_and(|listed| listed.contains(&true)) {
            return Err(self.wrong(
                "sliding_window",
                "a count, since `layer_types` has layers with a window",
            ));
        }
        let has_window = listed.unwrap_or_else(|| (0..n_layers).map(is_sliding).collect());
        Ok(has_window.into_iter().map(|has| window.filter(|_| has)).collect())
    }

    /// Returns whether windows are enabled. `layer_types` may name layers with a window only then.
    pub(super) fn uses_windows(&self, n_layers: usize) -> Result<bool, LoadError> {
        let key = "use_sliding_window";
        let is_used = self.is(key)?;
        let listed = self.layers_of_two_kinds(KINDS, ATTENTIONS, n_layers)?;
        if !is_used && listed.is_some_and(|listed| listed.contains(&true)) {
            return Err(self.wrong(key, "true, since `layer_types` has layers with a window"));
        }
        Ok(is_used)
    }

    /// Returns the kinds of the layers, under the first of some keys that exists.
    pub(super) fn layer_kinds(&self, keys: &[&str]) -> Result<Option<Vec<&str>>, LoadError> {
        let Some(key) = keys.iter().find(|key| self.get(key).is_some()) else {
            return Ok(None);
        };
        let kinds = self.get(key).and_then(Value::as_array);
        let kinds = kinds.and_then(|kinds| kinds.iter().map(Value::as_str).collect());
        kinds
            .map(Some)
            .ok_or_else(|| self.wrong(key, "the name of a kind for each layer"))
    }

    /// Refuses a list of kinds whose length is not the number of layers.
    pub(super) fn check_kinds(&self, key: &str, n_kinds: usize, n_layers: usize) -> Result<(), LoadError> {
        if n_kinds == n_layers {
            Ok(())
        } else {
            Err(self.wrong(key, &format!("a kind for each of {n_layers} layers")))
        }
    }

    /// Returns whether each layer is of the second of two kinds, if there is a list of them under a key.
    pub(super) fn layers_of_two_kinds(
        &self,
        key: &str,
        [first, second]: [&str; 2],
        n_layers: usize,
    ) -> Result<Option<Vec<bool>>, LoadError> {
        let Some(kinds) = self.layer_kinds(&[key])? else {
            return Ok(None);
        };
        self.check_kinds(key, kinds.len(), n_layers)?;
        if !kinds.iter().all(|&kind| kind == first || kind == second) {
            return Err(self.wrong(key, &format!("`{first}` or `{second}` for each layer")));
        }
        Ok(Some(kinds.into_iter().map(|kind| kind == second).collect()))
    }

    /// Returns whether each layer has experts: as `mlp_layer_types` lists it, or all after the first
    /// `first_k_dense_replace`.
    pub(super) fn expert_layers_behind_dense(&self, n_layers: usize) -> Result<Vec<bool>, LoadError> {
        if let Some(listed) = self.layers_of_two_kinds("mlp_layer_types", ["dense", "sparse"], n_layers)? {
            return Ok(listed);
        }
        let n_dense = self.opt_usize("first_k_dense_replace")?.unwrap_or(0);
        Ok((0..n_layers).map(|layer_idx| layer_idx >= n_dense).collect())
    }

    /// Returns whether each layer has experts, as `decoder_sparse_step` and `mlp_only_layers` say.
    pub(super) fn expert_layers_by_step(&self, n_layers: usize) -> Result<Vec<bool>, LoadError> {
        let step = self.opt_usize("decoder_sparse_step")?.unwrap_or(1);
        if step == 0 {
            return Err(self.wrong("decoder_sparse_step", "a count above 0"));
        }
        let dense = self.counts("mlp_only_layers")?.unwrap_or_default();
        Ok((0..n_layers)
            .map(|layer_idx| !dense.contains(&layer_idx) && (layer_idx + 1).is_multiple_of(step))
            .collect())
    }
}
