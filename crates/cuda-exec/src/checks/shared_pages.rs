//! Checks attention to pages that sequences share, and to the pages after them that each sequence has for
//! itself.
//!
//! Steps of other checks of attention share nothing. Invariant: the kernels for shared pages were launched;
//! the check fails if the step would attend in another way.

use tokenmill_backend::{KvLayerShape, KvType, PAGE_TOKENS};

use super::{
    Finding, Wrong, check, check_about,
    checked_layer::CheckedLayer,
    expected::{Numbers, compare},
};
use crate::{AttentionStep, Device, Ops, SharedPages, error::Result};

/// Query heads, and KV heads.
const N_HEADS: usize = 8;
const N_KV_HEADS: usize = 2;
/// Sequences, each with one token: their query heads fill a tile of the kernel, and part of a second one.
const N_SEQS: usize = 17;
/// Pages that all of them begin with, in two items, and the most pages that each has after these.
const OF_ITEMS: [usize; 2] = [6, 2];
const N_SHARED_PAGES: usize = OF_ITEMS[0] + OF_ITEMS[1];
const MAX_OWN_PAGES: usize = 3;
/// Types of keys and values.
const TYPES: [KvType; 2] = [KvType::F16; 2];

/// Selects the pages that are read once for all sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shared {
    /// None, so the kernel for the pages after the shared ones reads all.
    Nothing,
    /// All common pages.
    CommonPages,
}

fn heads(dim: usize) -> CheckedLayer {
    CheckedLayer {
        n_heads: N_HEADS,
        n_kv_heads: N_KV_HEADS,
        dim,
    }
}

/// Returns the layer that [`check_all`] checks.
pub(super) fn layer(dim: usize) -> KvLayerShape {
    heads(dim).layer()
}

/// Checks both kernels for heads of a width. The kernel for the pages after the shared ones is checked first and alone, so that a finding
/// names the kernel at fault.
pub(super) fn check_all(device: &Device, ops: &Ops, dim: usize) -> Result<usize, Finding> {
    let of_heads = format!("attention of {N_SEQS} sequences with heads of {dim}");
    let what = format!("{of_heads} beside shared pages");
    check(device, what, || attention(device, ops, dim, Shared::Nothing))?;
    let what = format!("{of_heads} to shared pages");
    check_about(device, what, Some("attention_shared"), || {
        attention(device, ops, dim, Shared::CommonPages)
    })?;
    Ok(2)
}

/// Returns the pages of each sequence: the common ones, which are not in order, and its own ones.
fn tables() -> Vec<Vec<u32>> {
    let mut next = N_SHARED_PAGES as u32;
    let mut own_pages = |seq: usize| {
        let first = next;
        next += (1 + seq % MAX_OWN_PAGES) as u32;
        first..next
    };
    (0..N_SEQS)
        .map(|seq| (0..N_SHARED_PAGES as u32).rev().chain(own_pages(seq)).collect())
        .collect()
}

fn attention(device: &Device, ops: &Ops, dim: usize, shared: Shared) -> Result<(), Wrong> {
    let heads = heads(dim);
    let tables = tables();
    let pages = tables.concat();
    let n_pages = 1 + pages.iter().copied().max().unwrap_or(0) as usize;
    let mut numbers = Numbers(13);
    let rows = [(); 2].map(|()| numbers.take(n_pages * PAGE_TOKENS * N_KV_HEADS * dim));
    let store = heads.filled(device, ops, TYPES, &rows)?;
    let queries = numbers.take(N_SEQS * N_HEADS * dim);

    // Sequences end at different positions of their last page.
    let n_seen = |seq: usize| tables[seq].len() * PAGE_TOKENS - seq % PAGE_TOKENS;
    let mut starts = vec![0];
    starts.extend(tables.iter().scan(0, |end, table| {
        *end += table.len() as u32;
        Some(*end)
    }));
    // Each item has the first of its rows, their number, its first page, the number of pages, and its record.
    let (n, [first, second]) = (N_SEQS as u32, OF_ITEMS.map(|n_pages| n_pages as u32));
    let (items, n_done, n_records) = match shared {
        Shared::Nothing => (vec![0; SharedPages::ITEM_WORDS], 0, 0),
        Shared::CommonPages => (
            vec![0, n, 0, first, 0, 0, n, first, second, 1],
            N_SHARED_PAGES * PAGE_TOKENS,
            OF_ITEMS.len(),
        ),
    };
    let upload = |values: &[u32]| device.upload("the check of kernels", values);
    let positions = upload(&(0..N_SEQS).map(|seq| n_seen(seq) as u32 - 1).collect::<Vec<_>>())?;
    let seqs = upload(&(0..n).collect::<Vec<_>>())?;
    let (page_starts, pages, items) = (upload(&starts)?, upload(&pages)?, upload(&items)?);
    let (tokens, n_records_of) = (
        upload(&[n_done as u32; N_SEQS])?,
        upload(&[n_records as u32; N_SEQS])?,
    );
    let max_pages = N_SHARED_PAGES + MAX_OWN_PAGES;
    let step = AttentionStep {
        positions: positions.view(),
        seq_of: seqs.view(),
        page_starts: page_starts.view(),
        pages: pages.view(),
        max_pages,
        is_one_each: true,
        runs: None,
        shared: Some(SharedPages {
            items: items.view(),
            rows: seqs.view(),
            tokens: tokens.view(),
            n_records_of: n_records_of.view(),
            longest: N_SEQS,
            n_records: OF_ITEMS.len(),
            max_rest_pages: max_pages,
        }),
    };
    let (attended, types) = (heads.attention(), TYPES);
    // The records of the shared pages take as much room as longer contexts.
    let mut scratch = heads.scratch(device, [N_SEQS; 2], 8 * max_pages)?;
    if !ops.attends_shared(&attended, &step, heads.layer(), types, &scratch) {
        return Err(Wrong::Numbers("the kernels do not take the step".to_owned()));
    }
    let q = device.upload("the check of kernels", &queries)?;
    let mut output = device.alloc::<f32>("the check of kernels", N_SEQS * N_HEADS * dim)?;
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
    let seen = |seq: usize| -> Vec<usize> {
        let slot = |position: usize| {
            tables[seq][position / PAGE_TOKENS] as usize * PAGE_TOKENS + position % PAGE_TOKENS
        };
        (0..n_seen(seq)).map(slot).collect()
    };
    compare(&found, &heads.attended(types, &rows, &queries, seen)?)
}
