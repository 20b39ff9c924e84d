//! [`short_conv`]: a causal convolution of a few rows, channel by channel.

use tokenmill_backend::ShortConv;
use tokenmill_cpu_kernels::conv_row;

use crate::{
    Host, StateStore, StepStates,
    pool::Columns,
    states::{Run, begin},
};

/// Channels that one thread takes.
const BLOCK: usize = 64;
/// The most rows that a value is made of.
const MAX_TAPS: usize = 16;

/// Convolves each sequence's rows; see [`ShortConv`]. `input`, `output`: `[n_tokens, n_channels]`.
///
/// # Panics
/// When the shapes contradict each other, or there are more than 16 taps.
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
    let layer = states.layer(conv.state_idx);
    assert_eq!(layer.conv_len, n_channels * n_past, "states of a convolution");
    let parts = (
        Columns::new(&mut layer.conv, layer.conv_len, BLOCK * n_past),
        Columns::new(output, n_channels, BLOCK),
    );
    host.pool()
        .for_each_part(parts, |part_idx, (mut states, mut output)| {
            let first = part_idx * BLOCK;
            let n = BLOCK.min(n_channels - first);
            let input_row = |token_idx: usize| &input[token_idx * n_channels + first..][..n];
            let mut weights = [0.0; BLOCK * MAX_TAPS];
            for (c, taps) in conv.weight[first * n_taps..]
                .chunks_exact(n_taps)
                .take(n)
                .enumerate()
            {
                for (tap, weight) in taps.iter().enumerate() {
                    weights[tap * n + c] = *weight;
                }
            }
            let bias = conv.bias.map(|bias| &bias[first..first + n]);
            for run in step.runs() {
                begin(&mut states, &run);
                let past = past_rows(states.row(run.to), n, n_past);
                // The row `back` rows before a token.
                let row = |token_idx: usize, back: usize| match token_idx.checked_sub(back) {
                    Some(idx) if idx >= run.tokens.start => input_row(idx),
                    _ => {
                        let age = back - (token_idx - run.tokens.start);
                        &past[(n_past - age) * n..][..n]
                    }
                };
                let mut remember = |token_idx: usize, slot: usize| {
                    for (tap, back) in (0..n_past).rev().enumerate() {
                        let values = row(token_idx, back);
                        let state = states.row(slot);
                        for (c, value) in values.iter().enumerate() {
                            state[c * n_past + tap] = *value;
                        }
                    }
                };
                for token_idx in run.tokens.clone() {
                    let mut rows = [&[][..]; MAX_TAPS];
                    for (tap, back) in (0..n_taps).rev().enumerate() {
                        rows[tap] = row(token_idx, back);
                    }
                    let (weights, rows) = (&weights[..n_taps * n], &rows[..n_taps]);
                    let out = output.row(token_idx);
                    conv_row(host.features(), weights, rows, bias, conv.has_silu, out);
                }
                let Run { tokens, to, save, .. } = &run;
                if let Some((token_idx, slot)) = *save {
                    remember(token_idx, slot);
                }
                remember(tokens.end - 1, *to);
            }
        });
}

/// The rows before a sequence's first token, `[n_past, n]`, oldest first, from a state `[n, n_past]`.
fn past_rows(state: &[f32], n: usize, n_past: usize) -> [f32; BLOCK * MAX_TAPS] {
    let mut past = [0.0; BLOCK * MAX_TAPS];
    for (c, taps) in state.chunks_exact(n_past).enumerate() {
        for (tap, value) in taps.iter().enumerate() {
            past[tap * n + c] = *value;
        }
    }
    past
}
