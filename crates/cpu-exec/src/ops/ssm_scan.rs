//! [`ssm_scan`]: selective state space models, Mamba and Mamba 2.
//!
//! Threads share the channels, each of which has its own part of every state, and take the tokens in blocks,
//! as in a delta net; one order of operations serves prompts and decoding alike.

use tokenmill_backend::{Columns as Of, SsmRows, SsmScan};
use tokenmill_cpu_kernels::{Decays, MAX_LANES, SsmRun, StridedRows, ssm_run};

use crate::{
    Host, StateStore, StepStates,
    pool::Columns,
    states::{RUN_TOKENS, begin, lanes_of},
};

/// The number of step sizes that one thread prepares at a time.
const DT_BLOCK: usize = 256;

/// Runs the model over each sequence's rows; see [`SsmScan`]. `output`: `[n_tokens, n_heads * head_dim]`.
///
/// # Panics
/// If the shapes contradict each other.
pub fn ssm_scan(
    host: &Host,
    scan: &SsmScan<&[f32]>,
    step: &StepStates<'_>,
    states: &mut StateStore,
    rows: SsmRows<'_, [f32]>,
    output: &mut [f32],
) {
    let (n_heads, head_dim, n_state) = (scan.n_heads, scan.head_dim, scan.n_state);
    let SsmRows { x, b, c, dt } = rows;
    host.pool().for_each_chunk(dt, DT_BLOCK, |chunk_idx, chunk| {
        for (i, dt) in (chunk_idx * DT_BLOCK..).zip(chunk) {
            *dt = softplus(*dt + scan.dt_bias[i % n_heads]);
        }
    });
    let dt: &[f32] = dt;
    let width = n_heads * head_dim;
    let group_width = width / scan.n_groups;
    let n_lanes = lanes_of(group_width);
    let layer = states.layer(scan.state_idx);
    assert_eq!(layer.matrix_len, width * n_state, "states of a state space model");
    let parts = (
        Columns::new(&mut layer.matrix, layer.matrix_len, n_lanes * n_state),
        Columns::new(output, width, n_lanes),
    );
    host.pool()
        .for_each_part(parts, |part_idx, (mut states, mut output)| {
            let channel = part_idx * n_lanes;
            let group_start = channel / group_width * n_state;
            let mut skip = [0.0; MAX_LANES];
            let of_lanes = |lanes: &mut [f32], value: &dyn Fn(usize) -> f32| {
                fill_lanes(&mut lanes[..n_lanes], channel, head_dim, value);
            };
            of_lanes(&mut skip, &|head| scan.skip[head]);
            let mut out = [0.0; RUN_TOKENS * MAX_LANES];
            let (mut dts, mut decays) = (out, out);
            for run in step.runs() {
                begin(&mut states, &run);
                for (tokens, snapshot) in run.blocks(RUN_TOKENS) {
                    for (i, token_idx) in tokens.clone().enumerate() {
                        let dt = &dt[token_idx * n_heads..][..n_heads];
                        of_lanes(&mut dts[i * n_lanes..], &|head| dt[head]);
                        if !scan.has_own_decays {
                            let decay = |head: usize| (dt[head] * scan.a[head]).exp();
                            of_lanes(&mut decays[i * n_lanes..], &decay);
                        }
                    }
                    let out = &mut out[..tokens.len() * n_lanes];
                    ssm_run(
                        host.features(),
                        SsmRun {
                            state: states.row(run.to),
                            x: rows_of(&x, tokens.start, channel, n_lanes),
                            dt: StridedRows::new(&dts, n_lanes, n_lanes),
                            decays: if scan.has_own_decays {
                                Decays::OfStates(StridedRows::new(&scan.a[channel..], n_heads, n_lanes))
                            } else {
                                Decays::OfChannels(StridedRows::new(&decays, n_lanes, n_lanes))
                            },
                            skip: &skip[..n_lanes],
                            b: rows_of(&b, tokens.start, group_start, n_state),
                            c: rows_of(&c, tokens.start, group_start, n_state),
                            out,
                        },
                    );
                    for (token_idx, row) in tokens.zip(out.chunks_exact(n_lanes)) {
                        output.row(token_idx).copy_from_slice(row);
                    }
                    if let Some(slot) = snapshot {
                        states.copy_row(run.to, slot);
                    }
                }
            }
        });
}

/// Returns some columns of a buffer's rows, starting at row `first_row`.
fn rows_of<'a>(columns: &Of<'a, [f32]>, first_row: usize, start: usize, width: usize) -> StridedRows<'a> {
    let first = first_row * columns.row_width + columns.first + start;
    StridedRows::new(&columns.rows[first..], columns.row_width, width)
}

/// Writes to each lane the value of its head; the lanes are the channels from `channel` on. A head's value is
/// computed once.
fn fill_lanes(lanes: &mut [f32], channel: usize, head_dim: usize, value: &dyn Fn(usize) -> f32) {
    let mut first = 0;
    while first < lanes.len() {
        let head = (channel + first) / head_dim;
        let end = lanes.len().min((head + 1) * head_dim - channel);
        lanes[first..end].fill(value(head));
        first = end;
    }
}

/// Returns `ln(1 + exp(x))`, which is `x` itself if the difference is below a rounding.
pub(super) fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}
