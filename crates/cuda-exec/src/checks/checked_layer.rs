//! [`CheckedLayer`]: a small attention layer over a filled KV cache, and the results that its attention must
//! have.
//!
//! The checks of attention share it and differ only in the step. Invariant: the expected results come from
//! keys and values as their types store them, and no kernel computes them.

use tokenmill_backend::{Attention, AttentionShape, KvLayerShape, KvLayout, KvType, PAGE_TOKENS, PageGroup};

use super::{
    Wrong,
    expected::{attend, stored},
};
use crate::{AttentionScratch, Buffer, Device, KvStore, Ops, ScratchNeeds, StepPlaces, error::Result};

/// Holds the counts of a layer, whose keys and values have the same width.
#[derive(Clone, Copy, Debug)]
pub(super) struct CheckedLayer {
    /// Query heads.
    pub(super) n_heads: usize,
    pub(super) n_kv_heads: usize,
    /// Width of a head.
    pub(super) dim: usize,
}

impl CheckedLayer {
    /// Returns the layer as a KV cache has it.
    pub(super) fn layer(self) -> KvLayerShape {
        KvLayerShape {
            n_kv_heads: self.n_kv_heads,
            head_dim_k: self.dim,
            head_dim_v: self.dim,
            has_values_in_keys: false,
        }
    }

    /// Returns causal attention over the whole context.
    pub(super) fn attention(self) -> Attention<Buffer<f32>> {
        Attention {
            layer_idx: 0,
            n_heads: self.n_heads,
            scale: (self.dim as f32).powf(-0.5),
            is_causal: true,
            window: None,
            is_chunked: false,
            softcap: None,
            sinks: None,
            slopes: None,
        }
    }

    /// Allocates the memory for the partial results of steps with contexts of up to `n_pages` pages.
    pub(super) fn scratch(
        self,
        device: &Device,
        [n_tokens, n_seqs]: [usize; 2],
        n_pages: usize,
    ) -> Result<AttentionScratch> {
        let shape = AttentionShape {
            n_heads: self.n_heads,
            n_kv_heads: self.n_kv_heads,
            head_dim_k: self.dim,
            head_dim_v: self.dim,
        };
        let needs = ScratchNeeds::of([(shape, false)].into_iter(), n_pages);
        AttentionScratch::new(device, n_tokens, n_seqs, needs)
    }

    /// Builds a KV cache and fills its first slots; keys and values are `[slots, n_kv_heads, dim]`.
    pub(super) fn filled(
        self,
        device: &Device,
        ops: &Ops,
        types: [KvType; 2],
        [keys, values]: &[Vec<f32>; 2],
    ) -> Result<KvStore> {
        let n_slots = keys.len() / (self.n_kv_heads * self.dim);
        let layout = KvLayout {
            layers: vec![self.layer()],
            groups: vec![PageGroup::Main],
            n_pages: n_slots.div_ceil(PAGE_TOKENS),
            n_host_pages: 0,
            n_window_pages: 0,
            n_window_host_pages: 0,
            key_type: types[0],
            value_type: types[1],
        };
        let mut store = KvStore::new(device, &layout)?;
        let slots: Vec<u32> = (0..n_slots as u32).collect();
        let places = device.upload("the check of kernels", &slots)?;
        let places = StepPlaces {
            positions: places.view(),
            slots: places.view(),
        };
        let keys = device.upload("the check of kernels", keys)?;
        let values = device.upload("the check of kernels", values)?;
        ops.store_kv(places, [keys.view(), values.view()], store.layer_mut(0))?;
        Ok(store)
    }

    /// Computes the attention of queries, `[tokens, n_heads, dim]`, over the slots that each token sees.
    pub(super) fn attended(
        self,
        types: [KvType; 2],
        [keys, values]: &[Vec<f32>; 2],
        queries: &[f32],
        slots_of: impl Fn(usize) -> Vec<usize>,
    ) -> Result<Vec<f64>, Wrong> {
        let as_stored = |ty: KvType, rows: &[f32]| -> Result<Vec<Vec<f32>>, Wrong> {
            rows.chunks(self.dim).map(|row| stored(ty, row)).collect()
        };
        let (keys, values) = (as_stored(types[0], keys)?, as_stored(types[1], values)?);
        let mut expected = Vec::with_capacity(queries.len());
        for (token, queries) in queries.chunks(self.n_heads * self.dim).enumerate() {
            let slots = slots_of(token);
            for (head, query) in queries.chunks(self.dim).enumerate() {
                let kv_head = head / (self.n_heads / self.n_kv_heads);
                let [keys, values] = [&keys, &values].map(|rows| -> Vec<&[f32]> {
                    let row = |&slot: &usize| rows[slot * self.n_kv_heads + kv_head].as_slice();
                    slots.iter().map(row).collect()
                });
                expected.extend(attend(query, &keys, &values));
            }
        }
        Ok(expected)
    }
}
