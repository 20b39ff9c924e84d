//! [`join_rows`], [`take_columns`], [`by_head`]: rows made of parts of other rows.
//!
//! Unlike in the element-wise passes, values change their places. Invariant: values are copied, never
//! computed.

use tokenmill_backend::Columns;

use crate::Host;

/// The number of rows per chunk, so low that the few rows of a decode step stay on the calling thread.
const ROWS_PER_CHUNK: usize = 16;

fn for_each_row(host: &Host, width: usize, out: &mut [f32], f: impl Fn(usize, &mut [f32]) + Sync) {
    host.pool()
        .for_each_chunk(out, width * ROWS_PER_CHUNK, |chunk_idx, rows| {
            for (i, row) in rows.chunks_exact_mut(width).enumerate() {
                f(chunk_idx * ROWS_PER_CHUNK + i, row);
            }
        });
}

/// Joins the rows of two buffers: `out[r] = [left[r], right[r]]`, rows of these widths.
///
/// # Panics
/// If there are fewer rows than `out` has.
pub fn join_rows(
    host: &Host,
    [left, right]: [&[f32]; 2],
    [left_width, right_width]: [usize; 2],
    out: &mut [f32],
) {
    for_each_row(host, left_width + right_width, out, |row_idx, row| {
        let (start, end) = row.split_at_mut(left_width);
        start.copy_from_slice(&left[row_idx * left_width..][..left_width]);
        end.copy_from_slice(&right[row_idx * right_width..][..right_width]);
    });
}

/// Copies columns: `out[r] = input[r][..width]`, starting at the first of the columns.
///
/// # Panics
/// If there are fewer rows, or columns, than `out` has.
pub fn take_columns(host: &Host, input: &Columns<'_, [f32]>, width: usize, out: &mut [f32]) {
    for_each_row(host, width, out, |row_idx, row| {
        row.copy_from_slice(input.part(row_idx, 0, width));
    });
}

/// Reorders rows from `[n_tokens, n_heads, width]` to `[n_heads, n_tokens, width]`.
///
/// # Panics
/// If the lengths differ.
pub(crate) fn by_head(host: &Host, x: &[f32], n_heads: usize, width: usize, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "rows to bring into another order");
    let n_tokens = x.len() / (n_heads * width);
    for_each_row(host, width, out, |row_idx, row| {
        let (head, token_idx) = (row_idx / n_tokens, row_idx % n_tokens);
        row.copy_from_slice(&x[(token_idx * n_heads + head) * width..][..width]);
    });
}

#[cfg(test)]
mod tests {
    use tokenmill_quant::CpuFeatures;

    use super::*;

    /// More rows than a chunk, and no multiple of a chunk.
    const N_ROWS: usize = 2 * ROWS_PER_CHUNK + 5;

    fn numbers(n: usize) -> Vec<f32> {
        (0..n as u32).map(|number| number as f32).collect()
    }

    #[test]
    fn rows_of_every_chunk_come_from_their_places() {
        let host = Host::new(2, CpuFeatures::detect()).unwrap();
        let (left, right) = (numbers(3 * N_ROWS), numbers(2 * N_ROWS));
        let mut out = vec![-1.0; 5 * N_ROWS];
        join_rows(&host, [&left, &right], [3, 2], &mut out);
        for row_idx in 0..N_ROWS {
            let expected = [&left[3 * row_idx..][..3], &right[2 * row_idx..][..2]].concat();
            assert_eq!(out[5 * row_idx..][..5], expected, "joined row {row_idx}");
        }
        let mut columns = vec![-1.0; 2 * N_ROWS];
        let input = Columns {
            rows: left.as_slice(),
            row_width: 3,
            first: 1,
        };
        take_columns(&host, &input, 2, &mut columns);
        for row_idx in 0..N_ROWS {
            assert_eq!(
                columns[2 * row_idx..][..2],
                left[3 * row_idx + 1..][..2],
                "row {row_idx}"
            );
        }
        let mut heads = vec![-1.0; 3 * N_ROWS];
        by_head(&host, &left, 3, 1, &mut heads);
        for (row_idx, &found) in heads.iter().enumerate() {
            let (head, token_idx) = (row_idx / N_ROWS, row_idx % N_ROWS);
            assert_eq!(
                found,
                left[3 * token_idx + head],
                "token {token_idx} of head {head}"
            );
        }
    }
}
