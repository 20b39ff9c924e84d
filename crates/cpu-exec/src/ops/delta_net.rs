//! [`delta_net`]: the gated delta rule, token by token.
//!
//! Threads share the columns of the value heads, of which each has its own part of every state: no sum goes across threads,
//! and one order serves prompts and decoding alike.

use tokenmill_backend::{DeltaNet, DeltaNetRows};
use tokenmill_cpu_kernels::{DeltaStep, delta_step};

use crate::{
    Host, StateStore, StepStates,
    pool::Columns,
    states::{begin, lanes_of},
};

use super::ssm_scan::softplus;

/// Tokens that one thread prepares at a time.
const TOKEN_BLOCK: usize = 8;
/// Added to a sum of squares before its root divides.
const EPS: f32 = 1e-6;

/// Runs the rule over each sequence's rows; see [`DeltaNet`]. `output`: `[n_tokens, n_v_heads * head_dim_v]`.
///
/// # Panics
/// When the shapes contradict each other.
pub fn delta_net(
    host: &Host,
    net: &DeltaNet<&[f32]>,
    step: &StepStates<'_>,
    states: &mut StateStore,
    rows: DeltaNetRows<'_, [f32]>,
    output: &mut [f32],
) {
    let DeltaNetRows { qkv, alpha, beta } = rows;
    prepare(host, net, qkv, alpha, beta);
    let (decays, rates): (&[f32], &[f32]) = (alpha, beta);
    let qkv: &[f32] = qkv;
    let (dim_k, dim_v) = (net.head_dim_k, net.head_dim_v);
    let (qkv_width, v_width) = (net.qkv_width(), net.n_v_heads * dim_v);
    let n_lanes = lanes_of(dim_v);
    let layer = states.layer(net.state_idx);
    assert_eq!(layer.matrix_len, v_width * dim_k, "states of a delta rule");
    let parts = (
        Columns::new(&mut layer.matrix, layer.matrix_len, n_lanes * dim_k),
        Columns::new(output, v_width, n_lanes),
    );
    host.pool()
        .for_each_part(parts, |part_idx, (mut states, mut output)| {
            let column = part_idx * n_lanes;
            let v_head = column / dim_v;
            let q_start = net.key_head(v_head) * dim_k;
            let k_start = net.n_k_heads * dim_k + q_start;
            let v_start = 2 * net.n_k_heads * dim_k + column;
            for run in step.runs() {
                begin(&mut states, &run);
                for token_idx in run.tokens {
                    let row = &qkv[token_idx * qkv_width..][..qkv_width];
                    let gate_idx = token_idx * net.n_v_heads + v_head;
                    let n_decays = net.decays_of_head();
                    delta_step(
                        host.features(),
                        DeltaStep {
                            state: states.row(run.to),
                            q: &row[q_start..][..dim_k],
                            k: &row[k_start..][..dim_k],
                            v: &row[v_start..][..n_lanes],
                            decays: &decays[gate_idx * n_decays..][..n_decays],
                            rate: rates[gate_idx],
                            out: output.row(token_idx),
                        },
                    );
                    if let Some((last, slot)) = run.save
                        && last == token_idx
                    {
                        states.copy_row(run.to, slot);
                    }
                }
            }
        });
}

/// Scales queries and keys to their length, and turns `alpha` into decays and `beta` into rates.
fn prepare(host: &Host, net: &DeltaNet<&[f32]>, qkv: &mut [f32], alpha: &mut [f32], beta: &mut [f32]) {
    let n_heads = net.n_v_heads;
    let (dim_k, width) = (net.head_dim_k, net.qkv_width());
    let q_scale = 1.0 / (dim_k as f32).sqrt();
    let n_decays = net.decays_of_head();
    let (n_qkv, n_alpha, n_beta) = (qkv.len(), alpha.len(), beta.len());
    let gates = (
        Columns::new(alpha, n_alpha, TOKEN_BLOCK * n_heads * n_decays),
        Columns::new(beta, n_beta, TOKEN_BLOCK * n_heads),
    );
    let parts = (Columns::new(qkv, n_qkv, TOKEN_BLOCK * width), gates);
    host.pool()
        .for_each_part(parts, |_, (mut qkv, (mut alpha, mut beta))| {
            for row in qkv.row(0).chunks_exact_mut(width) {
                let (q, rest) = row.split_at_mut(net.n_k_heads * dim_k);
                let k = &mut rest[..net.n_k_heads * dim_k];
                for (heads, scale) in [(q, q_scale), (k, 1.0)] {
                    for head in heads.chunks_exact_mut(dim_k) {
                        let squares: f32 = head.iter().map(|x| x * x).sum();
                        let factor = scale / (squares + EPS).sqrt();
                        for x in head {
                            *x *= factor;
                        }
                    }
                }
            }
            for row in alpha.row(0).chunks_exact_mut(n_heads * n_decays) {
                let heads = row
                    .chunks_exact_mut(n_decays)
                    .zip(net.dt_bias.chunks_exact(n_decays));
                for ((head, biases), a) in heads.zip(net.a) {
                    for (x, bias) in head.iter_mut().zip(biases) {
                        *x = (a * softplus(*x + bias)).exp();
                    }
                }
            }
            for x in beta.row(0) {
                *x = 1.0 / (1.0 + (-*x).exp());
            }
        });
}
