//! [`embed`]: looks up rows of a table, in memory or in its file.
//!
//! Unlike a product, it may fail, because a table in a file is read while a step runs. Invariant: both places
//! return the file's values to the bit.

use std::{io, sync::OnceLock};

use crate::{Host, Matrix, pool::Columns};

/// Writes row `ids[t]` of `table` to row `t` of `out`, `[n_tokens, n_cols]`. All threads read the rows of a
/// table in a file, each into its own of `buffers`, which grow if necessary.
///
/// # Errors
/// Only a table in a file returns errors: the file was changed, or the system's error. The message names the
/// table.
///
/// # Panics
/// If an id is not a row of the table, or `out` has another length.
pub fn embed(
    host: &Host,
    table: &Matrix,
    ids: &[u32],
    buffers: &mut Vec<Vec<u8>>,
    out: &mut [f32],
) -> io::Result<()> {
    assert_eq!(out.len(), ids.len() * table.n_cols(), "outputs of an embedding");
    if out.is_empty() {
        return Ok(());
    }
    let Some(file) = table.file() else {
        host.pool().for_each_chunk(out, table.n_cols(), |token_idx, row| {
            table.dequantize_row(ids[token_idx] as usize, row);
        });
        return Ok(());
    };
    file.check_unchanged()?;
    let n_buffers = buffers.len().max(host.pool().n_threads());
    buffers.resize_with(n_buffers, Vec::new);
    let failure = OnceLock::new();
    let n_values = out.len();
    let rows = Columns::new(out, n_values, table.n_cols());
    host.pool()
        .for_each_part_with(buffers, rows, |buffer, token_idx, mut row| {
            if let Err(error) = table.read_row(file, ids[token_idx] as usize, buffer, row.row(0)) {
                // If several threads fail, the error of the first one is reported.
                let _ = failure.set(error);
            }
        });
    failure.into_inner().map_or(Ok(()), Err)
}
