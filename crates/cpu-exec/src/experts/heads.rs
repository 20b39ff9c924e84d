//! [`heads_linear`]: products of each head's part of a row with the head's own matrix.
//!
//! Heads are experts that every row selects, each with its own part of the row, so the work is cut in the
//! same way. Invariant: an output element is a function of its weight row and its activation row, as with
//! experts.

use tokenmill_backend::HeadsShape;
use tokenmill_cpu_kernels::{TILE_ROWS, n_spans};

use crate::{
    Host, Matrix, Workspace,
    linear::{Product, chunk_tiles, quantize_for},
    pool::{Patches, Rect},
    thread_scratch::grown,
    workspace::WorkspaceSizes,
};

use super::{ExpertScratch, Item};

/// Multiplies each head's part of each row by the head's matrix, which `matrix` holds like an expert's: `x`:
/// `[n_tokens, n_heads, n_cols]`, `out`: `[n_tokens, n_heads, n_rows]`.
///
/// # Panics
/// If the shapes contradict each other.
pub fn heads_linear(host: &Host, workspace: &mut Workspace, x: &[f32], matrix: &Matrix, out: &mut [f32]) {
    let (n_heads, n_rows, n_cols) = (matrix.n_experts(), matrix.n_rows(), matrix.n_cols());
    let n_tokens = x.len() / (n_heads * n_cols);
    assert_eq!(x.len(), n_tokens * n_heads * n_cols, "rows of all heads");
    assert_eq!(out.len(), n_tokens * n_heads * n_rows, "outputs of all heads");
    if n_tokens == 0 {
        return;
    }
    let mut scratch = std::mem::take(&mut workspace.experts);
    let ExpertScratch {
        x: by_head,
        items,
        outs,
        ..
    } = &mut scratch;
    // The rows of one head become adjacent, so that its weights are read once for all of them.
    let by_head: &[f32] = if n_tokens == 1 {
        x
    } else {
        let rows = grown(by_head, x.len());
        crate::ops::rows::by_head(host, x, n_heads, n_cols, rows);
        rows
    };
    let (activations, threads) = quantize_for(host, workspace, by_head, n_cols, [matrix].into_iter());
    items.clear();
    outs.clear();
    let n_tiles = matrix.n_tiles();
    let chunk_tiles = chunk_tiles(host, n_tiles * n_heads);
    for head in 0..n_heads {
        for first in (0..n_tiles).step_by(chunk_tiles) {
            let tiles = first..n_tiles.min(first + chunk_tiles);
            let first_col = head * n_rows;
            outs.push(Rect {
                rows: 0..n_tokens,
                cols: first_col + tiles.start * TILE_ROWS..first_col + n_rows.min(tiles.end * TILE_ROWS),
            });
            items.push(Item {
                expert: head,
                tiles,
                inputs: head * n_tokens..(head + 1) * n_tokens,
            });
        }
    }
    let parts = Patches::new(out, n_heads * n_rows, outs);
    host.pool()
        .for_each_part_with(threads, parts, |thread, item_idx, mut out| {
            let Item {
                expert,
                tiles,
                inputs,
            } = items[item_idx].clone();
            Product::of_expert(matrix, None, expert).compute(
                host,
                thread,
                &activations,
                inputs,
                tiles,
                &mut out,
            );
        });
    workspace.experts = scratch;
}

impl WorkspaceSizes {
    /// Returns the sizes that the products of a layer's heads need.
    pub fn of_heads(max_tokens: usize, heads: &HeadsShape) -> Self {
        let n_rows = max_tokens.saturating_mul(heads.n_heads);
        let n_tiles = heads.widest_output.div_ceil(TILE_ROWS);
        Self {
            activation_blocks: n_rows.saturating_mul(n_spans(heads.widest_input)),
            expert_values: n_rows.saturating_mul(heads.widest_input),
            expert_items: heads.n_heads.saturating_mul(n_tiles.div_ceil(2)),
            ..Self::default()
        }
    }
}
