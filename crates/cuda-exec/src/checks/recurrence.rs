//! Checks recurrent layers, token by token and in chunks: convolutions, state space models and delta rules.
//!
//! Separate from a model's steps, whose prompt is shorter than a chunk. Invariant: a sequence has two steps, so that the second reads the state
//! that the first wrote.

use std::ops::Range;

use tokenmill_backend::{
    DeltaDecays, DeltaNet, KeyHeads, SeqState, ShortConv, SsmScan, StateLayerShape, StateLayout,
};

use super::{
    Finding, Wrong, check,
    expected::{Numbers, compare},
};
use crate::{
    Buffer, ColumnsView, Device, NetRows, Ops, ScanRows, StateLayerMut, StateRuns, StateSlots, View, ViewMut,
    error::Result, states::slot_record,
};

/// Tokens of the first step: a whole chunk and some more.
const N_FIRST: usize = 19;
/// Tokens of both steps; the second is shorter than a chunk.
const N_TOKENS: usize = 24;
/// Channels of a convolution.
const N_CHANNELS: usize = 70;
/// Taps of convolutions, one number for each kernel.
const TAPS: [usize; 2] = [4, 5];

/// Shapes of state space models, at least one for each kernel.
const SCANS: [ScanShape; 4] = [
    ScanShape {
        n_heads: 2,
        head_dim: 16,
        n_state: 16,
        has_own_decays: false,
    },
    ScanShape {
        n_heads: 2,
        head_dim: 64,
        n_state: 64,
        has_own_decays: false,
    },
    ScanShape {
        n_heads: 8,
        head_dim: 1,
        n_state: 16,
        has_own_decays: true,
    },
    ScanShape {
        n_heads: 8,
        head_dim: 1,
        n_state: 40,
        has_own_decays: true,
    },
];

/// Key heads and value heads of delta rules.
const NET_HEADS: [usize; 2] = [2, 4];
/// Widths of their keys and values.
const NET_DIMS: [usize; 2] = [64, 16];

/// The counts of a state space model with one group of heads.
#[derive(Clone, Copy)]
struct ScanShape {
    n_heads: usize,
    head_dim: usize,
    n_state: usize,
    has_own_decays: bool,
}

/// Checks all kernels.
pub(super) fn check_all(device: &Device, ops: &Ops) -> Result<usize, Finding> {
    for n_taps in TAPS {
        let what = format!("a convolution of {n_taps} rows");
        check(device, what, || convolve(device, ops, n_taps))?;
    }
    for shape in SCANS {
        let decays = if shape.has_own_decays { "indices" } else { "heads" };
        let what = format!(
            "a state space model with {} values of state and decays of {decays}",
            shape.n_state
        );
        check(device, what, || scan(device, ops, shape))?;
    }
    for (decays, name) in [
        (DeltaDecays::OfHeads, "heads"),
        (DeltaDecays::OfChannels, "channels"),
    ] {
        let what = format!("a delta rule with decays of {name}");
        check(device, what, || correct(device, ops, decays))?;
    }
    Ok(TAPS.len() + SCANS.len() + 2)
}

/// Runs both steps of a sequence and compares the rows of each with the expected ones, `[N_TOKENS, width]`.
fn in_two_steps(
    device: &Device,
    shape: StateLayerShape,
    expected: &[f64],
    mut launch: impl FnMut(Range<usize>, StateRuns<'_>, StateLayerMut<'_>, ViewMut<'_, f32>) -> Result<()>,
) -> Result<(), Wrong> {
    let layout = StateLayout {
        layers: vec![shape],
        n_states: 1,
    };
    let mut states = StateSlots::new(device, &layout)?;
    let width = expected.len() / N_TOKENS;
    for tokens in [0..N_FIRST, N_FIRST..N_TOKENS] {
        let upload = |words: &[u32]| device.upload("the check of kernels", words);
        let seq_starts = upload(&[0, tokens.len() as u32])?;
        let slots = upload(&slot_record(SeqState::own(0), 0, tokens.start as u32))?;
        let positions = upload(&tokens.clone().map(|token| token as u32).collect::<Vec<_>>())?;
        let runs = StateRuns {
            seq_starts: seq_starts.view(),
            slots: slots.view(),
            n_seqs: 1,
            n_tokens: tokens.len(),
            longest: tokens.len(),
            positions: positions.view(),
        };
        let mut output = device.alloc::<f32>("the check of kernels", tokens.len() * width)?;
        launch(tokens.clone(), runs, states.layer_mut(0), output.view_mut())?;
        let expected = &expected[tokens.start * width..tokens.end * width];
        compare(&device.download(output.view())?, expected)?;
    }
    Ok(())
}

fn on_device(device: &Device, values: &[f32]) -> Result<Buffer<f32>> {
    device.upload("the check of kernels", values)
}

/// Returns some tokens' rows of `width` values.
fn rows_of<'a>(rows: &'a Buffer<f32>, tokens: &Range<usize>, width: usize) -> Result<View<'a, f32>> {
    rows.view().range(tokens.start * width..tokens.end * width)
}

/// Returns the same as all columns of their rows.
fn columns<'a>(rows: &'a Buffer<f32>, tokens: &Range<usize>, row_width: usize) -> Result<ColumnsView<'a>> {
    Ok(ColumnsView {
        rows: rows_of(rows, tokens, row_width)?,
        row_width,
        first: 0,
    })
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Returns the rate of a decay.
fn rate(x: f32, bias: f32) -> f64 {
    (f64::from(x) + f64::from(bias)).exp().ln_1p()
}

/// Generates negative decay rates.
fn decays(numbers: &mut Numbers, n: usize) -> Vec<f32> {
    numbers.take(n).into_iter().map(|a| -a.abs() - 0.1).collect()
}

fn convolve(device: &Device, ops: &Ops, n_taps: usize) -> Result<(), Wrong> {
    let mut numbers = Numbers(600 + n_taps as u64);
    let x = numbers.take(N_TOKENS * N_CHANNELS);
    let weight = numbers.take(N_CHANNELS * n_taps);
    let bias = numbers.take(N_CHANNELS);
    let output = |index: usize| {
        let (token, channel) = (index / N_CHANNELS, index % N_CHANNELS);
        let taps = (0..n_taps).filter_map(|tap| {
            let row = (token + tap + 1).checked_sub(n_taps)?;
            Some(f64::from(weight[channel * n_taps + tap]) * f64::from(x[row * N_CHANNELS + channel]))
        });
        let sum = f64::from(bias[channel]) + taps.sum::<f64>();
        sum * sigmoid(sum)
    };
    let expected: Vec<f64> = (0..x.len()).map(output).collect();
    let [x, weight, bias] = [&x, &weight, &bias].map(|values| on_device(device, values));
    let (x, weight, bias) = (x?, weight?, bias?);
    let conv = ShortConv {
        state_idx: 0,
        n_channels: N_CHANNELS,
        n_taps,
        weight: weight.view(),
        bias: Some(bias.view()),
        has_silu: true,
    };
    let shape = StateLayerShape {
        conv_len: N_CHANNELS * (n_taps - 1),
        matrix_len: 0,
        matrix_row: 0,
    };
    in_two_steps(device, shape, &expected, |tokens, runs, layer, y| {
        ops.short_conv(&conv, runs, layer, rows_of(&x, &tokens, N_CHANNELS)?, y)
    })
}

fn scan(device: &Device, ops: &Ops, shape: ScanShape) -> Result<(), Wrong> {
    let ScanShape {
        n_heads,
        head_dim,
        n_state,
        has_own_decays,
    } = shape;
    let mut numbers = Numbers(620 + n_state as u64);
    let width = n_heads * head_dim;
    let x = numbers.take(N_TOKENS * width);
    let [b, c] = [(); 2].map(|()| numbers.take(N_TOKENS * n_state));
    let dt = numbers.take(N_TOKENS * n_heads);
    let n_own = if has_own_decays { n_state } else { 1 };
    let a = decays(&mut numbers, n_own * n_heads);
    let [skip, dt_bias] = [(); 2].map(|()| numbers.take(n_heads));
    let mut state = vec![0.0; width * n_state];
    let mut expected = Vec::with_capacity(x.len());
    for (index, &x) in x.iter().enumerate() {
        let (token, channel) = (index / width, index % width);
        let head = channel / head_dim;
        let (dt, x) = (rate(dt[token * n_heads + head], dt_bias[head]), f64::from(x));
        let mut y = f64::from(skip[head]) * x;
        for (n, value) in state[channel * n_state..][..n_state].iter_mut().enumerate() {
            let a = a[if has_own_decays { n * n_heads + head } else { head }];
            *value = (dt * f64::from(a)).exp() * *value + dt * x * f64::from(b[token * n_state + n]);
            y += f64::from(c[token * n_state + n]) * *value;
        }
        expected.push(y);
    }
    let upload = |values: &[f32]| on_device(device, values);
    let (x, b, c, dt) = (upload(&x)?, upload(&b)?, upload(&c)?, upload(&dt)?);
    let (a, skip, dt_bias) = (upload(&a)?, upload(&skip)?, upload(&dt_bias)?);
    let scan = SsmScan {
        state_idx: 0,
        n_heads,
        head_dim,
        n_groups: 1,
        n_state,
        has_own_decays,
        a: a.view(),
        skip: skip.view(),
        dt_bias: dt_bias.view(),
    };
    let shape = StateLayerShape {
        conv_len: 0,
        matrix_len: width * n_state,
        matrix_row: n_state,
    };
    in_two_steps(device, shape, &expected, |tokens, runs, layer, y| {
        let rows = ScanRows {
            x: columns(&x, &tokens, width)?,
            b: columns(&b, &tokens, n_state)?,
            c: columns(&c, &tokens, n_state)?,
            dt: rows_of(&dt, &tokens, n_heads)?,
        };
        ops.ssm_scan(&scan, runs, layer, rows, y)
    })
}

/// Checks a delta rule.
fn correct(device: &Device, ops: &Ops, decays_of: DeltaDecays) -> Result<(), Wrong> {
    let ([n_k_heads, n_v_heads], [dim_k, dim_v]) = (NET_HEADS, NET_DIMS);
    let (n_decays, key_heads) = match decays_of {
        DeltaDecays::OfHeads => (1, KeyHeads::Grouped),
        DeltaDecays::OfChannels => (dim_k, KeyHeads::Tiled),
    };
    let mut numbers = Numbers(640 + n_decays as u64);
    let a = decays(&mut numbers, n_v_heads);
    let dt_bias = numbers.take(n_v_heads * n_decays);
    let (a_there, dt_bias_there) = (on_device(device, &a)?, on_device(device, &dt_bias)?);
    let net = DeltaNet {
        state_idx: 0,
        n_k_heads,
        n_v_heads,
        head_dim_k: dim_k,
        head_dim_v: dim_v,
        key_heads,
        decays: decays_of,
        a: a_there.view(),
        dt_bias: dt_bias_there.view(),
    };
    let qkv_width = net.qkv_width();
    let qkv = numbers.take(N_TOKENS * qkv_width);
    let alpha = numbers.take(N_TOKENS * n_v_heads * n_decays);
    let beta = numbers.take(N_TOKENS * n_v_heads);
    let mut states = vec![0.0; n_v_heads * dim_v * dim_k];
    let mut expected = Vec::with_capacity(N_TOKENS * n_v_heads * dim_v);
    for (token, row) in qkv.chunks(qkv_width).enumerate() {
        for (head, columns) in states.chunks_mut(dim_v * dim_k).enumerate() {
            let key = net.key_head(head) * dim_k;
            let (query, key) = (
                unit(&row[key..][..dim_k]),
                unit(&row[n_k_heads * dim_k + key..][..dim_k]),
            );
            let values = &row[2 * n_k_heads * dim_k + head * dim_v..];
            let gate = token * n_v_heads + head;
            let biases = &dt_bias[head * n_decays..][..n_decays];
            let kept: Vec<f64> = (alpha[gate * n_decays..].iter().zip(biases))
                .map(|(&alpha, &bias)| (f64::from(a[head]) * rate(alpha, bias)).exp())
                .collect();
            for (column, &value) in columns.chunks_mut(dim_k).zip(values) {
                for (state, kept) in column.iter_mut().zip(kept.iter().cycle()) {
                    *state *= kept;
                }
                let change = sigmoid(beta[gate].into()) * (f64::from(value) - product(column, &key));
                for (state, key) in column.iter_mut().zip(&key) {
                    *state += key * change;
                }
                expected.push(product(column, &query) / (dim_k as f64).sqrt());
            }
        }
    }
    let upload = |values: &[f32]| on_device(device, values);
    let (qkv, alpha, beta) = (upload(&qkv)?, upload(&alpha)?, upload(&beta)?);
    let shape = StateLayerShape {
        conv_len: 0,
        matrix_len: n_v_heads * dim_v * dim_k,
        matrix_row: dim_k,
    };
    in_two_steps(device, shape, &expected, |tokens, runs, layer, y| {
        let rows = NetRows {
            qkv: rows_of(&qkv, &tokens, qkv_width)?,
            alpha: rows_of(&alpha, &tokens, n_v_heads * n_decays)?,
            beta: rows_of(&beta, &tokens, n_v_heads)?,
        };
        ops.delta_net(&net, runs, layer, rows, y)
    })
}

/// Scales a query or a key to the length 1.
fn unit(row: &[f32]) -> Vec<f64> {
    let squares: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum();
    let length = (squares + 1e-6).sqrt();
    row.iter().map(|&x| f64::from(x) / length).collect()
}

fn product(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
