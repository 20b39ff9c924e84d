//! Checks attention, of single tokens and of runs, over a KV cache of a model's types.

use tokenmill_backend::{KvType, PAGE_TOKENS};

use super::{
    Finding, HeadsNeed, Wrong, check,
    checked_layer::CheckedLayer,
    expected::{Numbers, compare},
};
use crate::{AttentionStep, Device, NewRows, Ops, TokenRuns, error::Result};

const N_KV_HEADS: usize = 2;
/// Most query heads for a KV head: kernels take larger groups by parts.
const MAX_GROUP: usize = 8;
/// Number of positions: three splits, the last of which is not full.
const N_TOKENS: usize = 165;
/// New tokens at the end: one, few, and as many as the kernels for runs take.
const N_NEW: [usize; 3] = [1, 3, 140];

/// Checks all attention kernels for such heads.
pub(super) fn check_all(
    device: &Device,
    ops: &Ops,
    types: [KvType; 2],
    HeadsNeed { dim, group }: HeadsNeed,
) -> Result<usize, Finding> {
    let [keys, values] = types;
    let group = group.clamp(1, MAX_GROUP);
    let over = format!("over {keys} keys and {values} values of {dim} in groups of {group}");
    let heads = CheckedLayer {
        n_heads: N_KV_HEADS * group,
        n_kv_heads: N_KV_HEADS,
        dim,
    };
    for n_new in N_NEW {
        let what = format!("attention of {n_new} tokens {over}");
        check(device, what, || attention(device, ops, types, heads, n_new))?;
    }
    let what = format!("attention of a token that is stored with it {over}");
    check(device, what, || turned(device, ops, types, heads))?;
    Ok(N_NEW.len() + 1)
}

fn attention(
    device: &Device,
    ops: &Ops,
    types: [KvType; 2],
    heads: CheckedLayer,
    n_new: usize,
) -> Result<(), Wrong> {
    let (dim, n_heads) = (heads.dim, heads.n_heads);
    let mut numbers = Numbers(11);
    let rows = [(); 2].map(|()| numbers.take(N_TOKENS * N_KV_HEADS * dim));
    let store = heads.filled(device, ops, types, &rows)?;
    let queries = numbers.take(n_new * n_heads * dim);
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
    let mut scratch = heads.scratch(device, [n_new, 1], n_pages)?;
    let q = device.upload("the check of kernels", &queries)?;
    let mut output = device.alloc::<f32>("the check of kernels", n_new * n_heads * dim)?;
    ops.attention(
        &heads.attention(),
        &step,
        store.layer(0),
        q.view(),
        output.view_mut(),
        None,
        &mut scratch,
    )?;
    let found = device.download(output.view())?;
    let seen = |token: usize| (0..=N_TOKENS - n_new + token).collect();
    compare(&found, &heads.attended(types, &rows, &queries, seen)?)
}

/// Checks the attention that stores the token's key and value itself, if there is such a kernel.
fn turned(device: &Device, ops: &Ops, types: [KvType; 2], heads: CheckedLayer) -> Result<(), Wrong> {
    let kv_width = N_KV_HEADS * heads.dim;
    let mut numbers = Numbers(12);
    let rows = [(); 2].map(|()| numbers.take(N_TOKENS * kv_width));
    let n_before = (N_TOKENS - 1) * kv_width;
    // The last slot holds zeros until the kernel stores the token.
    let before = rows.clone().map(|mut rows| {
        rows[n_before..].fill(0.0);
        rows
    });
    let mut store = heads.filled(device, ops, types, &before)?;
    let queries = numbers.take(heads.n_heads * heads.dim);
    let upload = |values: &[u32]| device.upload("the check of kernels", values);
    let n_pages = N_TOKENS.div_ceil(PAGE_TOKENS);
    let place = upload(&[N_TOKENS as u32 - 1])?;
    let seq_of = upload(&[0])?;
    let page_starts = upload(&[0, n_pages as u32])?;
    let pages = upload(&(0..n_pages as u32).collect::<Vec<_>>())?;
    let step = AttentionStep {
        positions: place.view(),
        seq_of: seq_of.view(),
        page_starts: page_starts.view(),
        pages: pages.view(),
        max_pages: n_pages,
        is_one_each: true,
        runs: None,
        shared: None,
    };
    if !Ops::can_turn(&heads.attention(), &step, heads.layer(), types) {
        return Ok(());
    }
    let floats = |values: &[f32]| device.upload("the check of kernels", values);
    let (q, k, v) = (
        floats(&queries)?,
        floats(&rows[0][n_before..])?,
        floats(&rows[1][n_before..])?,
    );
    let new = NewRows {
        q: q.view(),
        k: k.view(),
        v: v.view(),
        slots: place.view(),
        norms: [None; 2],
        eps: 0.0,
    };
    let mut scratch = heads.scratch(device, [1; 2], n_pages)?;
    let mut output = device.alloc::<f32>("the check of kernels", heads.n_heads * heads.dim)?;
    ops.turn_attention(
        &heads.attention(),
        &step,
        None,
        new,
        store.layer_mut(0),
        output.view_mut(),
        None,
        &mut scratch,
    )?;
    let found = device.download(output.view())?;
    let seen = |_| (0..N_TOKENS).collect();
    compare(&found, &heads.attended(types, &rows, &queries, seen)?)
}
