//! [`short_conv`]: a causal convolution of a few rows, channel by channel.
//!
//! Threads share the channels in blocks. A block's state is its last rows, `[n_taps - 1, n]`, oldest first.

use tokenmill_backend::ShortConv;
use tokenmill_cpu_kernels::{ConvRun, MAX_TAPS, StridedRows, conv_run};

use crate::{
    Host, StateStore, StepStates,
    pool::Columns,
    states::{RUN_TOKENS, begin},
};

/// The maximum number of channels that one thread takes.
const MAX_BLOCK: usize = 64;
/// The maximum number of values that a block has of the rows before a sequence's first token.
const MAX_PAST: usize = 256;

/// Returns the number of channels that one thread takes.
fn block_of(n_past: usize) -> usize {
    const NARROW: usize = MAX_PAST / (MAX_TAPS - 1);
    if n_past * MAX_BLOCK <= MAX_PAST {
        MAX_BLOCK
    } else {
        // The number is a multiple of a vector's lanes.
        NARROW / 16 * 16
    }
}

/// Convolves each sequence's rows; see [`ShortConv`]. `input`, `output`: `[n_tokens, n_channels]`.
///
/// # Panics
/// If the shapes contradict each other, or there are more than 16 taps.
pub fn short_conv(
    host: &Host,
    conv: &ShortConv<&[f32]>,
    step: &StepStates<'_>,
    states: &mut StateStore,
    input: &[f32],
    output: &mut [f32],
) {
    let (n_channels, n_taps) = (conv.n_channels, conv.n_taps);
    assert!((2..=MAX_TAPS).contains(&n_taps), "a convolution of {n_taps} taps");
    assert_eq!(input.len(), output.len(), "inputs and outputs of a convolution");
    let n_past = n_taps - 1;
    let block = block_of(n_past);
    let layer = states.layer(conv.state_idx);
    assert_eq!(layer.conv_len, n_channels * n_past, "states of a convolution");
    let parts = (
        Columns::new(&mut layer.conv, layer.conv_len, block * n_past),
        Columns::new(output, n_channels, block),
    );
    host.pool()
        .for_each_part(parts, |part_idx, (mut states, mut output)| {
            let first = part_idx * block;
            let n = block.min(n_channels - first);
            let weights = tap_rows(&conv.weight[first * n_taps..][..n * n_taps], n_taps);
            let bias = conv.bias.map(|bias| &bias[first..first + n]);
            let input = |token_idx: usize| &input[token_idx * n_channels + first..];
            let (mut past, mut out) = ([0.0; MAX_PAST], [0.0; RUN_TOKENS * MAX_BLOCK]);
            for run in step.runs() {
                begin(&mut states, &run);
                for (tokens, snapshot) in run.blocks(RUN_TOKENS) {
                    past[..n_past * n].copy_from_slice(states.row(run.to));
                    let rows = StridedRows::new(input(tokens.start), n_channels, n);
                    let out = &mut out[..tokens.len() * n];
                    conv_run(
                        host.features(),
                        n_taps,
                        ConvRun {
                            weights: StridedRows::new(&weights, n, n),
                            bias,
                            has_silu: conv.has_silu,
                            past: StridedRows::new(&past, n, n),
                            rows,
                            out,
                        },
                    );
                    for (token_idx, row) in tokens.clone().zip(out.chunks_exact(n)) {
                        output.row(token_idx).copy_from_slice(row);
                    }
                    let kept = states.row(run.to).chunks_exact_mut(n);
                    for (tap, kept) in kept.enumerate() {
                        // The state takes the last of the earlier rows and the block's rows.
                        let row_idx = tokens.len() + tap;
                        kept.copy_from_slice(match row_idx.checked_sub(n_past) {
                            Some(row_idx) => &input(tokens.start + row_idx)[..n],
                            None => &past[row_idx * n..][..n],
                        });
                    }
                    if let Some(slot) = snapshot {
                        states.copy_row(run.to, slot);
                    }
                }
            }
        });
}

/// Transposes `[n, n_taps]` to `[n_taps, n]`.
fn tap_rows(weight: &[f32], n_taps: usize) -> [f32; MAX_BLOCK * MAX_TAPS] {
    let n = weight.len() / n_taps;
    let mut rows = [0.0; MAX_BLOCK * MAX_TAPS];
    for (c, taps) in weight.chunks_exact(n_taps).enumerate() {
        for (tap, weight) in taps.iter().enumerate() {
            rows[tap * n + c] = *weight;
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_before_a_block_fit_with_any_number_of_taps() {
        for n_past in 1..MAX_TAPS {
            let block = block_of(n_past);
            assert!(block > 0 && block * n_past <= MAX_PAST, "{n_past} rows");
        }
    }
}
