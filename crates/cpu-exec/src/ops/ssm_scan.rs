//! [`ssm_scan`]: selective state space models, Mamba and Mamba 2, token by token.
//!
//! Threads share the channels, of which each has its own part of every state; one order serves prompts and decoding alike.

use tokenmill_backend::{SsmRows, SsmScan};
use tokenmill_cpu_kernels::{Decays, MAX_LANES, SsmStep, ssm_step};

use crate::{
    Host, StateStore, StepStates,
    pool::Columns,
    states::{begin, lanes_of},
};

/// Step sizes that one thread prepares at a time.
const DT_BLOCK: usize = 256;

/// Runs the model over each sequence's rows; see [`SsmScan`]. `output`: `[n_tokens, n_heads * head_dim]`.
///
/// # Panics
/// When the shapes contradict each other.
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
            let of_lanes = |value: &dyn Fn(usize) -> f32| {
                let mut lanes = [0.0; MAX_LANES];
                for (lane, out) in lanes[..n_lanes].iter_mut().enumerate() {
                    *out = value((channel + lane) / head_dim);
                }
                lanes
            };
            let skip = of_lanes(&|head| scan.skip[head]);
            let a = of_lanes(&|head| scan.a[head]);
            for run in step.runs() {
                begin(&mut states, &run);
                for token_idx in run.tokens {
                    let dts = of_lanes(&|head| dt[token_idx * n_heads + head]);
                    let mut decays = [0.0; MAX_LANES];
                    let decays = if scan.has_own_decays {
                        Decays::OfStates {
                            a: &scan.a[channel..],
                            stride: n_heads,
                        }
                    } else {
                        for (decay, (dt, a)) in decays.iter_mut().zip(dts.iter().zip(&a)) {
                            *decay = (dt * a).exp();
                        }
                        Decays::OfChannels(&decays[..n_lanes])
                    };
                    ssm_step(
                        host.features(),
                        SsmStep {
                            state: states.row(run.to),
                            x: x.part(token_idx, channel, n_lanes),
                            dt: &dts[..n_lanes],
                            decays,
                            skip: &skip[..n_lanes],
                            b: b.part(token_idx, group_start, n_state),
                            c: c.part(token_idx, group_start, n_state),
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

/// `ln(1 + exp(x))`, which is `x` itself where the difference is below a rounding.
pub(super) fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}
