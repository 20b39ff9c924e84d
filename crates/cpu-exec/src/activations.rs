//! [`quantize`]: a step's activations as bytes, on all threads.
//!
//! Every product with quantized weights starts with it. Invariant: a block is a function of its own
//! activations alone.

use tokenmill_cpu_kernels::{ActivationBlock, SPAN_COLS, ScaleSpan, n_spans};

use crate::{Host, pool::Columns};

/// The number of tokens per chunk, so low that the few tokens of a decode step stay on the calling thread.
const TOKENS_PER_CHUNK: usize = 4;

/// Quantizes `x`, `[n_tokens, n_cols]`, into `blocks`, `[n_spans, n_tokens]`.
pub(crate) fn quantize(
    host: &Host,
    scale_span: ScaleSpan,
    x: &[f32],
    n_cols: usize,
    blocks: &mut [ActivationBlock],
) {
    let n_tokens = x.len() / n_cols;
    debug_assert_eq!(blocks.len(), n_spans(n_cols) * n_tokens);
    let blocks = Columns::new(blocks, n_tokens, TOKENS_PER_CHUNK);
    host.pool().for_each_part(blocks, |chunk_idx, mut blocks| {
        let rows = x
            .chunks_exact(n_cols)
            .skip(chunk_idx * TOKENS_PER_CHUNK)
            .take(TOKENS_PER_CHUNK);
        for (i, row) in rows.enumerate() {
            for (span_idx, values) in row.chunks(SPAN_COLS).enumerate() {
                blocks.row(span_idx)[i].quantize(host.features(), scale_span, values);
            }
        }
    });
}
