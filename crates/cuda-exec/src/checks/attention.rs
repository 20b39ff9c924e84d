//! Checks attention, of single tokens and of runs, over a KV cache of a model's types.

use tokenmill_backend::{Attention, AttentionShape, KvLayerShape, KvLayout, KvType, PAGE_TOKENS, PageGroup};

use super::{
    Finding, Wrong, check,
    expected::{Numbers, attend, compare, stored},
};
use crate::{
    AttentionScratch, AttentionStep, Buffer, Device, KvStore, Ops, ScratchNeeds, StepPlaces, TokenRuns,
    error::Result,
};

/// Query heads, and KV heads.
const N_HEADS: usize = 4;
const N_KV_HEADS: usize = 2;
/// Number of positions: three splits, the last of which is not full.
const N_TOKENS: usize = 165;
/// New tokens at the end: one, few, and as many as the kernels for runs take.
const N_NEW: [usize; 3] = [1, 3, 140];

/// Checks all attention kernels.
pub(super) fn check_all(
    device: &Device,
    ops: &Ops,
    types: [KvType; 2],
    dim: usize,
) -> Result<usize, Finding> {
    let [keys, values] = types;
    for n_new in N_NEW {
        let what = format!("attention of {n_new} tokens over {keys} keys and {values} values of {dim}");
        check(device, what, || attention(device, ops, types, dim, n_new))?;
    }
    Ok(N_NEW.len())
}

fn attention(device: &Device, ops: &Ops, types: [KvType; 2], dim: usize, n_new: usize) -> Result<(), Wrong> {
    let mut numbers = Numbers(11);
    let rows = [(); 2].map(|()| numbers.take(N_TOKENS * N_KV_HEADS * dim));
    let store = filled(device, ops, types, dim, &rows)?;
    let queries = numbers.take(n_new * N_HEADS * dim);
    let upload = |values: &[u32]| device.upload("the check of kernels", values);
    let n_pages = N_TOKENS.div_ceil(PAGE_TOKENS);
    let positions = upload(&((N_TOKENS - n_new) as u32..N_TOKENS as u32).collect::<Vec<_>>())?;
    let (seq_of, seq_starts) = (upload(&vec![0; n_new])?, upload(&[0, n_new as u32])?);
    let (page_starts, pages) = (
        upload(&[0, n_pages as u32])?,
        upload(&(0..n_pages as u32).collect::<Vec<_>>())?,
    );
    let step = AttentionStep {
        positions: positions.view(),
        seq_of: seq_of.view(),
        page_starts: page_starts.view(),
        pages: pages.view(),
        max_pages: n_pages,
        is_one_each: n_new == 1,
        runs: (n_new > 1).then(|| TokenRuns {
            seq_starts: seq_starts.view(),
            longest: n_new,
            has_single: false,
            n_leading_single: 0,
        }),
        shared: None,
    };
    let attended: Attention<Buffer<f32>> = Attention {
        layer_idx: 0,
        n_heads: N_HEADS,
        scale: (dim as f32).powf(-0.5),
        is_causal: true,
        window: None,
        is_chunked: false,
        softcap: None,
        sinks: None,
        slopes: None,
    };
    let shape = AttentionShape {
        n_heads: N_HEADS,
        n_kv_heads: N_KV_HEADS,
        head_dim_k: dim,
        head_dim_v: dim,
    };
    let scratch_needs = ScratchNeeds::of([(shape, false)].into_iter(), n_pages);
    let mut scratch = AttentionScratch::new(device, n_new, 1, scratch_needs)?;
    let q = device.upload("the check of kernels", &queries)?;
    let mut output = device.alloc::<f32>("the check of kernels", n_new * N_HEADS * dim)?;
    ops.attention(
        &attended,
        &step,
        store.layer(0),
        q.view(),
        output.view_mut(),
        None,
        &mut scratch,
    )?;
    let found = device.download(output.view())?;

    let as_stored = |ty: KvType, rows: &[f32]| -> Result<Vec<Vec<f32>>, Wrong> {
        rows.chunks(dim).map(|row| stored(ty, row)).collect()
    };
    let (keys, values) = (as_stored(types[0], &rows[0])?, as_stored(types[1], &rows[1])?);
    let mut expected = Vec::with_capacity(found.len());
    for (index, query) in queries.chunks(dim).enumerate() {
        let (token, head) = (index / N_HEADS, index % N_HEADS);
        let n_seen = N_TOKENS - n_new + token + 1;
        let g = head / (N_HEADS / N_KV_HEADS);
        let [keys, values] = [&keys, &values].map(|rows| -> Vec<&[f32]> {
            (0..n_seen).map(|j| rows[j * N_KV_HEADS + g].as_slice()).collect()
        });
        expected.extend(attend(query, &keys, &values));
    }
    compare(&found, &expected)
}

/// Builds a KV cache with one sequence, in page order.
fn filled(
    device: &Device,
    ops: &Ops,
    types: [KvType; 2],
    dim: usize,
    [keys, values]: &[Vec<f32>; 2],
) -> Result<KvStore> {
    let layout = KvLayout {
        layers: vec![KvLayerShape {
            n_kv_heads: N_KV_HEADS,
            head_dim_k: dim,
            head_dim_v: dim,
            has_values_in_keys: false,
        }],
        groups: vec![PageGroup::Main],
        n_pages: N_TOKENS.div_ceil(PAGE_TOKENS),
        n_host_pages: 0,
        n_window_pages: 0,
        n_window_host_pages: 0,
        key_type: types[0],
        value_type: types[1],
    };
    let mut store = KvStore::new(device, &layout)?;
    let tokens: Vec<u32> = (0..N_TOKENS as u32).collect();
    let places = device.upload("the check of kernels", &tokens)?;
    let places = StepPlaces {
        positions: places.view(),
        slots: places.view(),
    };
    let keys = device.upload("the check of kernels", keys)?;
    let values = device.upload("the check of kernels", values)?;
    ops.store_kv(places, [keys.view(), values.view()], store.layer_mut(0))?;
    Ok(store)
}
