//! [`NaiveKv`]: keys and values of the layers, and attention over them.
//!
//! Attention is the only operation that looks beyond its own row. Invariant: values are rounded to the store's type when they are
//! written, so that all readers see the same.

use tokenmill_backend::{
    Attention, BackendError, ForwardBatch, KvLayout, KvType, PAGE_TOKENS, PageCopy, PageGroup,
};

use super::{dot, rounding::round_to};

/// The KV store: every layer's keys and values.
#[derive(Default)]
pub(super) struct NaiveKv {
    key_type: KvType,
    value_type: KvType,
    layers: Vec<LayerKv>,
}

/// Keys and values of one layer, a row for each slot of its group.
struct LayerKv {
    group: PageGroup,
    k: Vec<f32>,
    v: Vec<f32>,
    k_width: usize,
    v_width: usize,
    head_dim_k: usize,
    head_dim_v: usize,
    /// Columns of keys and of values that are rotated together, if their type requires it.
    rotations: [usize; 2],
}

impl LayerKv {
    fn n_kv_heads(&self) -> usize {
        self.k_width / self.head_dim_k
    }
}

impl NaiveKv {
    /// Allocates the store for a layout, on behalf of `device`.
    ///
    /// # Errors
    /// Heads that blocks of its types do not divide.
    pub(super) fn new(layout: &KvLayout, device: &'static str) -> Result<Self, BackendError> {
        let mut layers = Vec::new();
        for (layer, &group) in layout.layers.iter().zip(&layout.groups) {
            let n_slots = PAGE_TOKENS
                * match group {
                    PageGroup::Main => layout.n_pages,
                    PageGroup::Window => layout.n_window_pages,
                };
            let (k_width, v_width) = (
                layer.n_kv_heads * layer.head_dim_k,
                layer.n_kv_heads * layer.head_dim_v,
            );
            let is_ragged = |ty: KvType, head_dim: usize| !head_dim.is_multiple_of(ty.block_len());
            if is_ragged(layout.key_type, layer.head_dim_k) || is_ragged(layout.value_type, layer.head_dim_v)
            {
                return Err(BackendError::Unsupported {
                    feature: "a KV store in blocks of 32 with heads that are not a multiple of 32 wide"
                        .to_owned(),
                    device,
                });
            }
            layers.push(LayerKv {
                group,
                k: vec![f32::NAN; n_slots * k_width],
                v: vec![f32::NAN; n_slots * v_width],
                k_width,
                v_width,
                head_dim_k: layer.head_dim_k,
                head_dim_v: layer.head_dim_v,
                rotations: [layer.key_rotation(), layer.value_rotation()],
            });
        }
        Ok(Self {
            key_type: layout.key_type,
            value_type: layout.value_type,
            layers,
        })
    }

    /// Copies pages within a group.
    ///
    /// # Errors
    /// If there is a host tier, which is not supported.
    pub(super) fn copy_pages(
        &mut self,
        group: PageGroup,
        copies: &[PageCopy],
        device: &'static str,
    ) -> Result<(), BackendError> {
        for copy in copies {
            let &PageCopy::Duplicate { from, to } = copy else {
                return Err(BackendError::Unsupported {
                    feature: "a host tier of KV pages".to_owned(),
                    device,
                });
            };
            for layer in self.layers.iter_mut().filter(|layer| layer.group == group) {
                for (rows, width) in [(&mut layer.k, layer.k_width), (&mut layer.v, layer.v_width)] {
                    let page_len = PAGE_TOKENS * width;
                    let start = from as usize * page_len;
                    rows.copy_within(start..start + page_len, to as usize * page_len);
                }
            }
        }
        Ok(())
    }

    /// Writes the keys and values of a layer's new tokens to their slots.
    pub(super) fn store(
        &mut self,
        layer_idx: usize,
        batch: &ForwardBatch,
        n_tokens: usize,
        [k, v]: [&[f32]; 2],
    ) {
        let layer = &mut self.layers[layer_idx];
        for (token_idx, &slot) in batch.slots_in(layer.group)[..n_tokens].iter().enumerate() {
            let slot = slot as usize;
            let stored_k = &mut layer.k[slot * layer.k_width..][..layer.k_width];
            stored_k.copy_from_slice(&k[token_idx * layer.k_width..][..layer.k_width]);
            round_to(self.key_type, layer.head_dim_k, layer.rotations[0], stored_k);
            let stored_v = &mut layer.v[slot * layer.v_width..][..layer.v_width];
            stored_v.copy_from_slice(&v[token_idx * layer.v_width..][..layer.v_width]);
            round_to(self.value_type, layer.head_dim_v, layer.rotations[1], stored_v);
        }
    }

    /// Writes the latent rows of a layer's new tokens to their slots: keys, whose first elements are the values.
    pub(super) fn store_latent(
        &mut self,
        layer_idx: usize,
        batch: &ForwardBatch,
        n_tokens: usize,
        rows: &[f32],
    ) {
        let layer = &mut self.layers[layer_idx];
        for (token_idx, &slot) in batch.slots_in(layer.group)[..n_tokens].iter().enumerate() {
            let slot = slot as usize;
            let key = &mut layer.k[slot * layer.k_width..][..layer.k_width];
            key.copy_from_slice(&rows[token_idx * layer.k_width..][..layer.k_width]);
            round_to(self.key_type, layer.head_dim_k, layer.rotations[0], key);
            // The oracle stores the value separately, as attention reads it.
            layer.v[slot * layer.v_width..][..layer.v_width].copy_from_slice(&key[..layer.v_width]);
        }
    }

    /// Attends from each token of a batch to the tokens that it sees.
    pub(super) fn attend(
        &self,
        attention: &Attention<Vec<f32>>,
        batch: &ForwardBatch,
        q: &[f32],
        output: &mut [f32],
    ) {
        let layer = &self.layers[attention.layer_idx];
        let (head_dim_k, head_dim_v) = (layer.head_dim_k, layer.head_dim_v);
        let mut weights = Vec::new();
        for seq_idx in 0..batch.n_seqs() {
            let pages = batch.table_of(seq_idx, layer.group);
            let slot_of = |position: usize| {
                pages[position / PAGE_TOKENS] as usize * PAGE_TOKENS + position % PAGE_TOKENS
            };
            for token_idx in batch.tokens_of(seq_idx) {
                let position = batch.positions[token_idx] as usize;
                let last = if attention.is_causal {
                    (batch.last_seen.get(token_idx)).map_or(position, |&last| last as usize)
                } else {
                    batch.context_len(seq_idx) - 1
                };
                let in_window = batch.window_seen.get(token_idx);
                let (first, last) = match (attention.window, in_window) {
                    (None, _) => (0, last),
                    (Some(_), Some(&[first, last])) => (first as usize, last as usize),
                    (Some(window), None) if attention.is_chunked => (position - position % window, last),
                    (Some(window), None) => (
                        (position + 1).saturating_sub(window),
                        last.min(position + window - 1),
                    ),
                };
                for head in 0..attention.n_heads {
                    let kv_head = head / (attention.n_heads / layer.n_kv_heads());
                    let query = &q[(token_idx * attention.n_heads + head) * head_dim_k..][..head_dim_k];
                    weights.clear();
                    let slope = attention.slopes.as_ref().map_or(0.0, |slopes| slopes[head]);
                    weights.extend((first..=last).map(|seen| {
                        let start = slot_of(seen) * layer.k_width + kv_head * head_dim_k;
                        let score = attention.scale * dot(query, &layer.k[start..][..head_dim_k]);
                        let score = score - slope * position.abs_diff(seen) as f32;
                        attention.softcap.map_or(score, |cap| cap * (score / cap).tanh())
                    }));
                    let sink = attention.sinks.as_ref().map(|sinks| sinks[head]);
                    let max = weights
                        .iter()
                        .copied()
                        .chain(sink)
                        .fold(f32::NEG_INFINITY, f32::max);
                    let mut sum = sink.map_or(0.0, |sink| (sink - max).exp());
                    for weight in &mut weights {
                        *weight = (*weight - max).exp();
                        sum += *weight;
                    }
                    let out =
                        &mut output[(token_idx * attention.n_heads + head) * head_dim_v..][..head_dim_v];
                    out.fill(0.0);
                    for (position, weight) in (first..).zip(&weights) {
                        let start = slot_of(position) * layer.v_width + kv_head * head_dim_v;
                        for (out, value) in out.iter_mut().zip(&layer.v[start..][..head_dim_v]) {
                            *out += weight / sum * value;
                        }
                    }
                }
            }
        }
    }
}
