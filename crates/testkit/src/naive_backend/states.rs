//! [`NaiveStates`]: the recurrent operations of the naive backend as their formulas.
//!
//! They share one store. Invariant: a slot that was never written holds NaN, so that a read of it shows.

use tokenmill_backend::{
    BackendError, DeltaDecays, DeltaNet, DeltaNetRows, ForwardBatch, RecurrentOperations, ShortConv, SsmRows,
    SsmScan, StateLayout, StepShape,
};

use super::NaiveBackend;

/// States of all layers: for each slot, the convolution's rows and the matrices.
#[derive(Default)]
pub(crate) struct NaiveStates {
    layers: Vec<Vec<State>>,
}

#[derive(Clone)]
struct State {
    conv: Vec<f32>,
    matrix: Vec<f32>,
}

/// Runs `token` over each sequence's tokens with its state in hand.
fn run(layer: &mut [State], batch: &ForwardBatch, mut token: impl FnMut(&mut State, usize), part: Part) {
    for (seq_idx, slots) in batch.states.iter().enumerate() {
        let tokens = batch.tokens_of(seq_idx);
        let mut state = layer[slots.from as usize].clone();
        if batch.positions[tokens.start] == 0 {
            state.conv.fill(0.0);
            state.matrix.fill(0.0);
        }
        let mut keep = |slot: u32, state: &State| {
            let kept = &mut layer[slot as usize];
            match part {
                Part::Conv => kept.conv.clone_from(&state.conv),
                Part::Matrix => kept.matrix.clone_from(&state.matrix),
            }
        };
        for token_idx in tokens {
            token(&mut state, token_idx);
            if let Some(save) = slots.save
                && save.n_tokens == batch.positions[token_idx] + 1
            {
                keep(save.slot, &state);
            }
        }
        keep(slots.to, &state);
    }
}

/// Selects the part of a state that an operation owns.
#[derive(Clone, Copy)]
enum Part {
    Conv,
    Matrix,
}

impl NaiveStates {
    pub(crate) fn new(layout: &StateLayout) -> Self {
        let layers = layout.layers.iter().map(|layer| {
            let state = State {
                conv: vec![f32::NAN; layer.conv_len],
                matrix: vec![f32::NAN; layer.matrix_len],
            };
            vec![state; layout.n_states]
        });
        Self {
            layers: layers.collect(),
        }
    }

    pub(crate) fn short_conv(
        &mut self,
        conv: &ShortConv<Vec<f32>>,
        batch: &ForwardBatch,
        input: &[f32],
        output: &mut [f32],
    ) {
        let (n_channels, n_taps) = (conv.n_channels, conv.n_taps);
        let step = |state: &mut State, token_idx: usize| {
            let row = &input[token_idx * n_channels..][..n_channels];
            let out = &mut output[token_idx * n_channels..][..n_channels];
            for c in 0..n_channels {
                let past = &mut state.conv[c * (n_taps - 1)..][..n_taps - 1];
                let weight = &conv.weight[c * n_taps..][..n_taps];
                let sum: f32 = past.iter().chain([&row[c]]).zip(weight).map(|(x, w)| x * w).sum();
                let sum = sum + conv.bias.as_ref().map_or(0.0, |bias| bias[c]);
                out[c] = if conv.has_silu { sum * sigmoid(sum) } else { sum };
                past.rotate_left(1);
                past[n_taps - 2] = row[c];
            }
        };
        run(&mut self.layers[conv.state_idx], batch, step, Part::Conv);
    }

    pub(crate) fn delta_net(
        &mut self,
        net: &DeltaNet<Vec<f32>>,
        batch: &ForwardBatch,
        rows: &DeltaNetRows<'_, Vec<f32>>,
        output: &mut [f32],
    ) {
        let (dim_k, dim_v, n_heads) = (net.head_dim_k, net.head_dim_v, net.n_v_heads);
        let step = |state: &mut State, token_idx: usize| {
            let row = &rows.qkv[token_idx * net.qkv_width()..][..net.qkv_width()];
            let (q, rest) = row.split_at(net.n_k_heads * dim_k);
            let (k, v) = rest.split_at(net.n_k_heads * dim_k);
            for head in 0..n_heads {
                let key_head = net.key_head(head) * dim_k;
                let (q, k) = (unit(&q[key_head..][..dim_k]), unit(&k[key_head..][..dim_k]));
                let v = &v[head * dim_v..][..dim_v];
                let decay = |i: usize| {
                    let at = match net.decays {
                        DeltaDecays::OfHeads => head,
                        DeltaDecays::OfChannels => head * dim_k + i,
                    };
                    let alpha = rows.alpha[token_idx * net.dt_bias.len() + at] + net.dt_bias[at];
                    (net.a[head] * softplus(alpha)).exp()
                };
                let rate = sigmoid(rows.beta[token_idx * n_heads + head]);
                let state = &mut state.matrix[head * dim_k * dim_v..][..dim_k * dim_v];
                for j in 0..dim_v {
                    let column = |i: usize| i * dim_v + j;
                    (0..dim_k).for_each(|i| state[column(i)] *= decay(i));
                    let recalled: f32 = (0..dim_k).map(|i| state[column(i)] * k[i]).sum();
                    let change = rate * (v[j] - recalled);
                    (0..dim_k).for_each(|i| state[column(i)] += k[i] * change);
                    let answer: f32 = (0..dim_k).map(|i| state[column(i)] * q[i]).sum();
                    output[(token_idx * n_heads + head) * dim_v + j] = answer / (dim_k as f32).sqrt();
                }
            }
        };
        run(&mut self.layers[net.state_idx], batch, step, Part::Matrix);
    }

    pub(crate) fn ssm_scan(
        &mut self,
        scan: &SsmScan<Vec<f32>>,
        batch: &ForwardBatch,
        rows: &SsmRows<'_, Vec<f32>>,
        output: &mut [f32],
    ) {
        let (n_heads, head_dim, n_state) = (scan.n_heads, scan.head_dim, scan.n_state);
        let [x, b, c] = [&rows.x, &rows.b, &rows.c].map(|columns| columns.map(Vec::as_slice));
        let step = |state: &mut State, token_idx: usize| {
            for head in 0..n_heads {
                let dt = softplus(rows.dt[token_idx * n_heads + head] + scan.dt_bias[head]);
                let group = head / (n_heads / scan.n_groups) * n_state;
                let b = b.part(token_idx, group, n_state);
                let c = c.part(token_idx, group, n_state);
                for p in 0..head_dim {
                    let channel = head * head_dim + p;
                    let x = x.part(token_idx, channel, 1)[0];
                    let state = &mut state.matrix[channel * n_state..][..n_state];
                    let mut y = scan.skip[head] * x;
                    for n in 0..n_state {
                        let a = scan.a[if scan.has_own_decays {
                            n * n_heads + head
                        } else {
                            head
                        }];
                        state[n] = (dt * a).exp() * state[n] + dt * x * b[n];
                        y += c[n] * state[n];
                    }
                    output[token_idx * n_heads * head_dim + channel] = y;
                }
            }
        };
        run(&mut self.layers[scan.state_idx], batch, step, Part::Matrix);
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

fn unit(x: &[f32]) -> Vec<f32> {
    let length = (x.iter().map(|x| x * x).sum::<f32>() + 1e-6).sqrt();
    x.iter().map(|x| x / length).collect()
}

impl RecurrentOperations for NaiveBackend {
    fn short_conv(
        &mut self,
        conv: &ShortConv<Vec<f32>>,
        _: &StepShape,
        input: &Vec<f32>,
        output: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        self.states.short_conv(conv, self.step.batch(), input, output);
        Ok(())
    }

    fn delta_net(
        &mut self,
        net: &DeltaNet<Vec<f32>>,
        _: &StepShape,
        rows: DeltaNetRows<'_, Vec<f32>>,
        output: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        self.states.delta_net(net, self.step.batch(), &rows, output);
        Ok(())
    }

    fn ssm_scan(
        &mut self,
        scan: &SsmScan<Vec<f32>>,
        _: &StepShape,
        rows: SsmRows<'_, Vec<f32>>,
        output: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        self.states.ssm_scan(scan, self.step.batch(), &rows, output);
        Ok(())
    }
}
