//! [`delta_net`]: the gated delta rule.
//!
//! Threads share the columns of the value heads. Each column has its own part of every state, so no sum goes
//! across threads. A thread takes the tokens of its columns in blocks, so that their part of the state stays
//! in its first-level cache; one order of operations serves prompts and decoding alike.

use tokenmill_backend::{DeltaNet, DeltaNetRows};
use tokenmill_cpu_kernels::{DeltaRun, MAX_LANES, StridedRows, delta_run};

use crate::{
    Host, StateStore, StepStates,
    pool::Columns,
    states::{RUN_TOKENS, begin, lanes_of},
};

use super::{norm::lane_sum, ssm_scan::softplus};

/// The number of tokens that one thread prepares at a time.
const TOKEN_BLOCK: usize = 8;
/// The value added to a sum of squares before the division by its root.
const EPS: f32 = 1e-6;
/// The number of groups of columns that one thread takes, if a head has as many: they share the loads of
/// queries and keys.
const N_GROUPS: usize = 2;

/// Applies the rule to each sequence's rows; see [`DeltaNet`]. `output`:
/// `[n_tokens, n_v_heads * head_dim_v]`.
///
/// # Panics
/// If the shapes contradict each other.
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
    let has_groups = dim_v.is_multiple_of(N_GROUPS * n_lanes);
    let n_columns = if has_groups { N_GROUPS * n_lanes } else { n_lanes };
    let n_decays = net.decays_of_head();
    let layer = states.layer(net.state_idx);
    assert_eq!(layer.matrix_len, v_width * dim_k, "states of a delta rule");
    let parts = (
        Columns::new(&mut layer.matrix, layer.matrix_len, n_columns * dim_k),
        Columns::new(output, v_width, n_columns),
    );
    host.pool()
        .for_each_part(parts, |part_idx, (mut states, mut output)| {
            let column = part_idx * n_columns;
            let v_head = column / dim_v;
            let q_start = net.key_head(v_head) * dim_k;
            let k_start = net.n_k_heads * dim_k + q_start;
            let v_start = 2 * net.n_k_heads * dim_k + column;
            let mut out = [0.0; RUN_TOKENS * N_GROUPS * MAX_LANES];
            for run in step.runs() {
                begin(&mut states, &run);
                for (tokens, snapshot) in run.blocks(RUN_TOKENS) {
                    let qkv = |start: usize, width| {
                        StridedRows::new(&qkv[tokens.start * qkv_width + start..], qkv_width, width)
                    };
                    let gate_idx = tokens.start * net.n_v_heads + v_head;
                    let out = &mut out[..tokens.len() * n_columns];
                    delta_run(
                        host.features(),
                        DeltaRun {
                            state: states.row(run.to),
                            n_lanes,
                            q: qkv(q_start, dim_k),
                            k: qkv(k_start, dim_k),
                            v: qkv(v_start, n_columns),
                            decays: StridedRows::new(
                                &decays[gate_idx * n_decays..],
                                net.n_v_heads * n_decays,
                                n_decays,
                            ),
                            rates: StridedRows::new(&rates[gate_idx..], net.n_v_heads, 1),
                            out,
                        },
                    );
                    for (token_idx, row) in tokens.zip(out.chunks_exact(n_columns)) {
                        output.row(token_idx).copy_from_slice(row);
                    }
                    if let Some(slot) = snapshot {
                        states.copy_row(run.to, slot);
                    }
                }
            }
        });
}

/// Normalizes keys to length 1 and queries to `1 / sqrt(head_dim_k)`, and turns `alpha` into decays and
/// `beta` into rates.
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
                        let squares = lane_sum(head, |x| x * x);
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
