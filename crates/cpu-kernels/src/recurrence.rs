//! [`conv_row`], [`delta_step`], [`ssm_step`]: one token's step of a recurrent layer, for some neighbouring channels.
//!
//! Separate from the products because a state is read, changed and written at every token. A state is kept as
//! `[n, n_lanes]`: the channels of a step are the lanes, so that no sum goes across lanes. Invariant: sums over `n` add
//! elements `4 i + k` to sum `k` in order, then `(0 + 1) + (2 + 3)`; a lane depends on its own channel alone.

use tokenmill_quant::CpuFeatures;

use crate::{
    activation::SILU,
    math,
    simd::{Kernel, Simd, TILE_ROWS, dispatch},
};

/// The most channels a step takes.
pub const MAX_LANES: usize = TILE_ROWS;

/// One row of a convolution: `out[c] = bias[c] + sum_j weights[j][c] * rows[j][c]`, then SiLU where asked for.
///
/// `weights`: `[rows.len(), out.len()]`.
///
/// # Panics
/// When the lengths contradict each other.
pub fn conv_row(
    features: CpuFeatures,
    weights: &[f32],
    rows: &[&[f32]],
    bias: Option<&[f32]>,
    has_silu: bool,
    out: &mut [f32],
) {
    let n = out.len();
    assert!(
        weights.len() == rows.len() * n && rows.iter().all(|row| row.len() == n),
        "rows of a convolution over {n} channels"
    );
    match bias {
        Some(bias) => out.copy_from_slice(bias),
        None => out.fill(0.0),
    }
    // SAFETY: the kernel holds references only.
    unsafe {
        dispatch(
            features,
            ConvRow {
                weights,
                rows,
                out: &mut *out,
            },
        );
    }
    if has_silu {
        SILU.apply(features, out, None);
    }
}

struct ConvRow<'a> {
    weights: &'a [f32],
    rows: &'a [&'a [f32]],
    out: &'a mut [f32],
}

impl Kernel for ConvRow<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let n = self.out.len();
        for (row, weights) in self.rows.iter().zip(self.weights.chunks_exact(n.max(1))) {
            for ((out, x), weight) in self.out.iter_mut().zip(*row).zip(weights) {
                *out = weight.mul_add(*x, *out);
            }
        }
    }
}

/// One token's step of the gated delta rule, for some columns of a value head.
#[derive(Debug)]
pub struct DeltaStep<'a> {
    /// `[q.len(), v.len()]`.
    pub state: &'a mut [f32],
    /// Query, normalized and scaled.
    pub q: &'a [f32],
    /// Key, normalized.
    pub k: &'a [f32],
    /// Columns of the value; 1, 2, 4, 8 or 16.
    pub v: &'a [f32],
    /// What is kept of the state: one factor, or one for each row.
    pub decays: &'a [f32],
    /// How much of the value's error is written.
    pub rate: f32,
    /// The same columns of the output.
    pub out: &'a mut [f32],
}

/// Takes the step.
///
/// # Panics
/// When the lengths contradict each other.
pub fn delta_step(features: CpuFeatures, step: DeltaStep<'_>) {
    let n_lanes = step.v.len();
    assert!(
        step.k.len() == step.q.len()
            && (step.decays.len() == 1 || step.decays.len() == step.q.len())
            && step.state.len() == step.q.len() * n_lanes
            && step.out.len() == n_lanes,
        "lengths of a step of the delta rule"
    );
    // SAFETY: the kernels hold references only.
    unsafe {
        match n_lanes {
            1 => dispatch(features, DeltaLanes::<1>(step)),
            2 => dispatch(features, DeltaLanes::<2>(step)),
            4 => dispatch(features, DeltaLanes::<4>(step)),
            8 => dispatch(features, DeltaLanes::<8>(step)),
            16 => dispatch(features, DeltaLanes::<16>(step)),
            _ => unreachable!("a step of {n_lanes} lanes"),
        }
    }
}

struct DeltaLanes<'a, const N: usize>(DeltaStep<'a>);

impl<const N: usize> Kernel for DeltaLanes<'_, N> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let DeltaStep {
            state,
            q,
            k,
            v,
            decays,
            rate,
            out,
        } = self.0;
        let (state, _) = state.as_chunks_mut::<N>();
        let mut recalled = [[0.0; N]; 4];
        let stride = usize::from(decays.len() > 1);
        for (i, (row, k)) in state.iter_mut().zip(k).enumerate() {
            let (sum, decay) = (&mut recalled[i % 4], decays[i * stride]);
            for lane in 0..N {
                row[lane] *= decay;
                sum[lane] = k.mul_add(row[lane], sum[lane]);
            }
        }
        let recalled = fold(recalled);
        let mut change = [0.0; N];
        for lane in 0..N {
            change[lane] = rate * (v[lane] - recalled[lane]);
        }
        let mut sums = [[0.0; N]; 4];
        for (i, ((row, k), q)) in state.iter_mut().zip(k).zip(q).enumerate() {
            let sum = &mut sums[i % 4];
            for lane in 0..N {
                row[lane] = k.mul_add(change[lane], row[lane]);
                sum[lane] = q.mul_add(row[lane], sum[lane]);
            }
        }
        out.copy_from_slice(&fold(sums));
    }
}

/// One token's step of a state space model, for some channels of one group.
#[derive(Debug)]
pub struct SsmStep<'a> {
    /// `[b.len(), x.len()]`.
    pub state: &'a mut [f32],
    /// The channels; 1, 2, 4, 8 or 16.
    pub x: &'a [f32],
    /// Each channel's step size.
    pub dt: &'a [f32],
    /// What is kept of the state.
    pub decays: Decays<'a>,
    /// Each channel's part of `x` that goes into the output as it is.
    pub skip: &'a [f32],
    /// Writes to the state.
    pub b: &'a [f32],
    /// Reads from it.
    pub c: &'a [f32],
    /// The same channels of the output.
    pub out: &'a mut [f32],
}

/// What a step keeps of a state.
#[derive(Clone, Copy, Debug)]
pub enum Decays<'a> {
    /// One factor for each channel.
    OfChannels(&'a [f32]),
    /// `exp(dt * a)`, with a row of `stride` values for each index of the state, of which the channels' come first.
    OfStates {
        /// The rows.
        a: &'a [f32],
        /// Values from one to the next.
        stride: usize,
    },
}

/// Takes the step.
///
/// # Panics
/// When the lengths contradict each other.
pub fn ssm_step(features: CpuFeatures, step: SsmStep<'_>) {
    let (n_lanes, n_state) = (step.x.len(), step.b.len());
    let has_decays = match step.decays {
        Decays::OfChannels(decays) => decays.len() == n_lanes,
        Decays::OfStates { a, stride } => a.len() >= n_state.saturating_sub(1) * stride + n_lanes,
    };
    assert!(
        step.state.len() == n_state * n_lanes
            && step.c.len() == n_state
            && [step.dt.len(), step.skip.len(), step.out.len()] == [n_lanes; 3]
            && has_decays,
        "lengths of a step of a state space model"
    );
    // SAFETY: the kernels hold references only.
    unsafe {
        match n_lanes {
            1 => dispatch(features, SsmLanes::<1>(step)),
            2 => dispatch(features, SsmLanes::<2>(step)),
            4 => dispatch(features, SsmLanes::<4>(step)),
            8 => dispatch(features, SsmLanes::<8>(step)),
            16 => dispatch(features, SsmLanes::<16>(step)),
            _ => unreachable!("a step of {n_lanes} lanes"),
        }
    }
}

struct SsmLanes<'a, const N: usize>(SsmStep<'a>);

impl<const N: usize> Kernel for SsmLanes<'_, N> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let step = self.0;
        let mut scaled = [0.0; N];
        for lane in 0..N {
            scaled[lane] = step.dt[lane] * step.x[lane];
        }
        let mut sums = [[0.0; N]; 4];
        let (state, _) = step.state.as_chunks_mut::<N>();
        for (i, ((row, b), c)) in state.iter_mut().zip(step.b).zip(step.c).enumerate() {
            let mut decays = [0.0; N];
            match step.decays {
                Decays::OfChannels(factors) => decays.copy_from_slice(factors),
                Decays::OfStates { a, stride } => {
                    let mut lanes = [0.0; TILE_ROWS];
                    for lane in 0..N {
                        lanes[lane] = step.dt[lane] * a[i * stride + lane];
                    }
                    // SAFETY: the array holds whole vectors, and the features of `S` are there.
                    unsafe { exp_lanes::<S>(&mut lanes, N) };
                    decays.copy_from_slice(&lanes[..N]);
                }
            }
            let sum = &mut sums[i % 4];
            for lane in 0..N {
                row[lane] = decays[lane].mul_add(row[lane], scaled[lane] * b);
                sum[lane] = c.mul_add(row[lane], sum[lane]);
            }
        }
        let sums = fold(sums);
        for lane in 0..N {
            step.out[lane] = step.skip[lane].mul_add(step.x[lane], sums[lane]);
        }
    }
}

/// Replaces the first `n` lanes, and perhaps more, by their exponentials.
#[inline(always)]
unsafe fn exp_lanes<S: Simd>(lanes: &mut [f32; TILE_ROWS], n: usize) {
    for at in (0..n).step_by(S::LANES) {
        // SAFETY: the vector is inside the array, and the caller vouches for the features.
        unsafe {
            let ptr = lanes.as_mut_ptr().add(at);
            S::store_f32(ptr, math::exp::<S>(S::load_f32(ptr)));
        }
    }
}

#[inline(always)]
fn fold<const N: usize>([a, b, c, d]: [[f32; N]; 4]) -> [f32; N] {
    let mut sum = [0.0; N];
    for lane in 0..N {
        sum[lane] = (a[lane] + b[lane]) + (c[lane] + d[lane]);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(n: usize, seed: usize) -> Vec<f32> {
        let value = |i: usize| ((i * 37 + seed * 101) % 97) as f32 / 48.0 - 1.0;
        (0..n).map(value).collect()
    }

    #[test]
    fn steps_give_the_same_bits_on_every_instruction_set() {
        for (n_state, n_lanes) in [(1, 1), (5, 2), (16, 4), (33, 8), (64, 16)] {
            let (b, c) = (values(n_state, 1), values(n_state, 2));
            let (x, dt, skip) = (values(n_lanes, 3), values(n_lanes, 4), values(n_lanes, 5));
            let a = values(n_state * (n_lanes + 3), 6);
            let run = |features| {
                let mut state = values(n_state * n_lanes, 7);
                let mut out = [vec![0.0; n_lanes], vec![0.0; n_lanes], vec![0.0; n_lanes]];
                delta_step(
                    features,
                    DeltaStep {
                        state: &mut state,
                        q: &b,
                        k: &c,
                        v: &x,
                        decays: &[0.9],
                        rate: 0.4,
                        out: &mut out[0],
                    },
                );
                let own = Decays::OfStates {
                    a: &a,
                    stride: n_lanes + 3,
                };
                for (decays, out) in [own, Decays::OfChannels(&dt)].into_iter().zip(&mut out[1..]) {
                    ssm_step(
                        features,
                        SsmStep {
                            state: &mut state,
                            x: &x,
                            dt: &dt,
                            decays,
                            skip: &skip,
                            b: &b,
                            c: &c,
                            out,
                        },
                    );
                }
                (state, out)
            };
            let expected = run(CpuFeatures::scalar());
            for features in CpuFeatures::each_path() {
                assert!(run(features) == expected, "{features}, {n_lanes} lanes");
            }
        }
    }

    #[test]
    fn a_step_of_the_delta_rule_writes_what_it_recalls() {
        // With a rate of 1 and a key of length 1, the value comes back for a query equal to the key.
        let mut state = values(4 * 2, 1);
        let key = [0.5; 4];
        let mut out = [0.0; 2];
        delta_step(
            CpuFeatures::detect(),
            DeltaStep {
                state: &mut state,
                q: &key,
                k: &key,
                v: &[3.0, -7.0],
                decays: &[0.5],
                rate: 1.0,
                out: &mut out,
            },
        );
        assert!(
            (out[0] - 3.0).abs() < 1e-5 && (out[1] + 7.0).abs() < 1e-5,
            "{out:?}"
        );
    }
}
