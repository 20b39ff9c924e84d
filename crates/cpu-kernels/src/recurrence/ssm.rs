//! [`ssm_run`]: selective state space models.

use tokenmill_quant::CpuFeatures;

use crate::{
    math,
    simd::{Kernel, Simd, dispatch},
};

use super::{MAX_LANES, N_SUMS, StridedRows, fold, fold_vector};

/// Some tokens of a state space model, for some channels of one group.
#[derive(Debug)]
pub struct SsmRun<'a> {
    /// `[n_state, n_lanes]`; there are 1, 2, 4, 8 or 16 channels.
    pub state: &'a mut [f32],
    /// The channels, `[n_tokens, n_lanes]`.
    pub x: StridedRows<'a>,
    /// The step size of each channel, `[n_tokens, n_lanes]`.
    pub dt: StridedRows<'a>,
    /// The factors of the state's decay.
    pub decays: Decays<'a>,
    /// The factor of `x` that is added to the output of each channel, `[n_lanes]`.
    pub skip: &'a [f32],
    /// The weights of writes to the state, `[n_tokens, n_state]`.
    pub b: StridedRows<'a>,
    /// The weights of reads from the state.
    pub c: StridedRows<'a>,
    /// The same channels of the output, `[n_tokens, n_lanes]`.
    pub out: &'a mut [f32],
}

/// The factors by which a token decays a state.
#[derive(Clone, Copy, Debug)]
pub enum Decays<'a> {
    /// One factor for each channel, `[n_tokens, n_lanes]`.
    OfChannels(StridedRows<'a>),
    /// `exp(dt * a)`, with a row for each index of the state, `[n_state, n_lanes]`.
    OfStates(StridedRows<'a>),
}

/// Processes the tokens in order.
///
/// # Panics
/// If the lengths contradict each other.
pub fn ssm_run(features: CpuFeatures, run: SsmRun<'_>) {
    let (n_lanes, n_state) = (run.x.width, run.b.width);
    let n_tokens = run.out.len() / n_lanes;
    let (decays, n_decays) = match run.decays {
        Decays::OfChannels(decays) => (decays, n_tokens),
        Decays::OfStates(a) => (a, n_state),
    };
    let inputs = [run.x, run.dt, run.b, run.c];
    assert!(
        run.state.len() == n_state * n_lanes
            && [run.dt.width, decays.width, run.skip.len()] == [n_lanes; 3]
            && run.c.width == n_state
            && run.out.len() == n_tokens * n_lanes
            && decays.n_rows() >= n_decays
            && inputs.iter().all(|rows| rows.n_rows() >= n_tokens),
        "lengths of a run of a state space model"
    );
    // SAFETY: the lengths above are those of the kernels' contracts.
    unsafe {
        match n_lanes {
            1 => dispatch(features, SsmLanes::<1>(run)),
            2 => dispatch(features, SsmLanes::<2>(run)),
            4 => dispatch(features, SsmLanes::<4>(run)),
            8 => dispatch(features, SsmLanes::<8>(run)),
            MAX_LANES => dispatch(features, SsmWide(run)),
            _ => unreachable!("a run of {n_lanes} lanes"),
        }
    }
}

/// A run of fewer channels than a vector has.
struct SsmLanes<'a, const N: usize>(SsmRun<'a>);

impl<const N: usize> Kernel for SsmLanes<'_, N> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let run = self.0;
        let (state, _) = run.state.as_chunks_mut::<N>();
        for (token, out) in run.out.chunks_exact_mut(N).enumerate() {
            let (x, dt) = (run.x.row(token), run.dt.row(token));
            let mut scaled = [0.0; N];
            for lane in 0..N {
                scaled[lane] = dt[lane] * x[lane];
            }
            let mut sums = [[0.0; N]; N_SUMS];
            for (i, ((row, b), c)) in state
                .iter_mut()
                .zip(run.b.row(token))
                .zip(run.c.row(token))
                .enumerate()
            {
                let mut decays = [0.0; N];
                match run.decays {
                    Decays::OfChannels(factors) => decays.copy_from_slice(factors.row(token)),
                    Decays::OfStates(a) => {
                        let mut lanes = [0.0; MAX_LANES];
                        for (lane, a) in a.row(i).iter().enumerate() {
                            lanes[lane] = dt[lane] * a;
                        }
                        // SAFETY: the array holds whole vectors, and the processor has the features of `S`.
                        unsafe { exp_lanes::<S>(&mut lanes, N) };
                        decays.copy_from_slice(&lanes[..N]);
                    }
                }
                let sum = &mut sums[i % N_SUMS];
                for lane in 0..N {
                    row[lane] = decays[lane].mul_add(row[lane], scaled[lane] * b);
                    sum[lane] = c.mul_add(row[lane], sum[lane]);
                }
            }
            let sums = fold(sums);
            for lane in 0..N {
                out[lane] = run.skip[lane].mul_add(x[lane], sums[lane]);
            }
        }
    }
}

/// Replaces the first `n` lanes, and perhaps more, by their exponentials.
#[inline(always)]
unsafe fn exp_lanes<S: Simd>(lanes: &mut [f32; MAX_LANES], n: usize) {
    for at in (0..n).step_by(S::LANES) {
        // SAFETY: the vector is inside the array, and the caller vouches for the features.
        unsafe {
            let ptr = lanes.as_mut_ptr().add(at);
            S::store_f32(ptr, math::exp::<S>(S::load_f32(ptr)));
        }
    }
}

/// A run of [`MAX_LANES`] channels, a vector at a time.
struct SsmWide<'a>(SsmRun<'a>);

impl Kernel for SsmWide<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let run = self.0;
        let n_tokens = run.out.len() / MAX_LANES;
        let (state, out) = (run.state.as_mut_ptr(), run.out.as_mut_ptr());
        for first_lane in (0..MAX_LANES).step_by(S::LANES) {
            // SAFETY: rows of the state and of the output have `MAX_LANES` values.
            let vector = unsafe {
                SsmVector {
                    state: state.add(first_lane),
                    x: run.x,
                    dt: run.dt,
                    decays: run.decays,
                    skip: run.skip,
                    b: run.b,
                    c: run.c,
                    first_lane,
                    out: out.add(first_lane),
                    n_tokens,
                }
            };
            // SAFETY: the vector is inside the state and the output.
            unsafe { S::call(vector) }
        }
    }
}

/// A vector of channels. `state` and `out` point to it in their first row, of [`MAX_LANES`] values each.
struct SsmVector<'a> {
    state: *mut f32,
    x: StridedRows<'a>,
    dt: StridedRows<'a>,
    decays: Decays<'a>,
    skip: &'a [f32],
    b: StridedRows<'a>,
    c: StridedRows<'a>,
    first_lane: usize,
    out: *mut f32,
    n_tokens: usize,
}

impl Kernel for SsmVector<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the tokens are those of every input, and the vector is in their rows.
        unsafe {
            let skip = S::load_f32(self.skip.as_ptr().add(self.first_lane));
            for token in 0..self.n_tokens {
                let x = S::load_f32(self.x.ptr(token).add(self.first_lane));
                let dt = S::load_f32(self.dt.ptr(token).add(self.first_lane));
                let scaled = S::mul(dt, x);
                let read = match self.decays {
                    Decays::OfChannels(decays) => {
                        let decay = S::load_f32(decays.ptr(token).add(self.first_lane));
                        self.pass::<S>(token, scaled, |_| decay)
                    }
                    Decays::OfStates(a) => self.pass::<S>(token, scaled, |row_idx| {
                        let a = S::load_f32(a.ptr(row_idx).add(self.first_lane));
                        math::exp::<S>(S::mul(dt, a))
                    }),
                };
                let out = self.out.add(token * MAX_LANES);
                S::store_f32(out, S::fma(skip, x, read));
            }
        }
    }
}

impl SsmVector<'_> {
    /// Passes over the state once; returns the values read.
    #[inline(always)]
    unsafe fn pass<S: Simd>(&self, token: usize, scaled: S::F, decay_of: impl Fn(usize) -> S::F) -> S::F {
        let n_state = self.b.width;
        // SAFETY: the state has `n_state` rows, and rows of `b` and `c` as many values.
        unsafe {
            let (b, c) = (self.b.ptr(token), self.c.ptr(token));
            let mut sums = [S::splat_f32(0.0); N_SUMS];
            let n_whole = n_state / N_SUMS * N_SUMS;
            for first in (0..n_whole).step_by(N_SUMS) {
                for i in 0..N_SUMS {
                    let row_idx = first + i;
                    sums[i] = self.row::<S>(row_idx, scaled, decay_of(row_idx), [b, c], sums[i]);
                }
            }
            for i in 0..N_SUMS - 1 {
                let row_idx = n_whole + i;
                if row_idx < n_state {
                    sums[i] = self.row::<S>(row_idx, scaled, decay_of(row_idx), [b, c], sums[i]);
                }
            }
            fold_vector::<S>(sums)
        }
    }

    /// Processes one row of the state; returns the sum with the row's values added.
    #[inline(always)]
    unsafe fn row<S: Simd>(
        &self,
        row_idx: usize,
        scaled: S::F,
        decay: S::F,
        [b, c]: [*const f32; 2],
        sum: S::F,
    ) -> S::F {
        // SAFETY: as in `pass`.
        unsafe {
            let at = self.state.add(row_idx * MAX_LANES);
            let written = S::mul(scaled, S::splat_f32(*b.add(row_idx)));
            let state = S::fma(decay, S::load_f32(at), written);
            S::store_f32(at, state);
            S::fma(S::splat_f32(*c.add(row_idx)), state, sum)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::values, *};

    /// Runs `n_tokens` tokens, `n_each` at a time; returns the outputs and the state.
    fn run(
        features: CpuFeatures,
        [n_state, n_lanes]: [usize; 2],
        has_own_decays: bool,
        n_tokens: usize,
        n_each: usize,
    ) -> (Vec<f32>, Vec<f32>) {
        let width = n_lanes + 2 * n_state;
        let xbc = values(n_tokens * width, 1);
        let dt: Vec<f32> = values(n_tokens * n_lanes, 2).iter().map(|x| x + 1.0).collect();
        let decays: Vec<f32> = values(n_tokens * n_lanes, 3).iter().map(|x| x * 0.9).collect();
        let a: Vec<f32> = (values(n_state * (n_lanes + 3), 4).iter())
            .map(|x| x - 1.1)
            .collect();
        let skip = values(n_lanes, 5);
        let mut state = values(n_state * n_lanes, 6);
        let mut out = vec![0.0; n_tokens * n_lanes];
        for (i, out) in out.chunks_mut(n_each * n_lanes).enumerate() {
            let first = i * n_each;
            let part =
                |start: usize, part_width| StridedRows::new(&xbc[first * width + start..], width, part_width);
            let lanes = |values| StridedRows::new(values, n_lanes, n_lanes);
            ssm_run(
                features,
                SsmRun {
                    state: &mut state,
                    x: part(0, n_lanes),
                    dt: lanes(&dt[first * n_lanes..]),
                    decays: if has_own_decays {
                        Decays::OfStates(StridedRows::new(&a, n_lanes + 3, n_lanes))
                    } else {
                        Decays::OfChannels(lanes(&decays[first * n_lanes..]))
                    },
                    skip: &skip,
                    b: part(n_lanes, n_state),
                    c: part(n_lanes + n_state, n_state),
                    out,
                },
            );
        }
        (out, state)
    }

    #[test]
    fn a_run_gives_the_bits_of_its_tokens_one_at_a_time_on_every_instruction_set() {
        for shape in [[1, 1], [5, 2], [16, 4], [33, 8], [16, 16], [7, 16], [64, 16]] {
            for has_own_decays in [false, true] {
                let expected = run(CpuFeatures::scalar(), shape, has_own_decays, 6, 1);
                for features in CpuFeatures::each_path() {
                    for n_each in [1, 2, 4, 6] {
                        assert!(
                            run(features, shape, has_own_decays, 6, n_each) == expected,
                            "{features}, {shape:?}, {n_each} tokens at a time"
                        );
                    }
                }
            }
        }
    }
}
