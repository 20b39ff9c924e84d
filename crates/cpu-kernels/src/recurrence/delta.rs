//! [`delta_run`]: the gated delta rule.
//!
//! For each token the state is decayed, the value of the key is recalled, its error is written, and the
//! query's value is read. The first two steps need the state as the last two leave it. So the last two of a
//! token and the first two of the next token share a pass over the state: one load and one store of it per
//! token.

use tokenmill_quant::CpuFeatures;

use crate::simd::{Kernel, Simd, dispatch};

use super::{MAX_LANES, N_SUMS, StridedRows, fold, fold_vector};

/// Some tokens of the gated delta rule, for some columns of a value head.
#[derive(Debug)]
pub struct DeltaRun<'a> {
    /// `[n_groups, head_dim_k, n_lanes]`.
    pub state: &'a mut [f32],
    /// The number of columns of a group; 1, 2, 4, 8 or 16.
    pub n_lanes: usize,
    /// The queries, normalized and scaled, `[n_tokens, head_dim_k]`.
    pub q: StridedRows<'a>,
    /// The keys, normalized.
    pub k: StridedRows<'a>,
    /// The columns of the values, `[n_tokens, n_groups * n_lanes]`.
    pub v: StridedRows<'a>,
    /// The factors of the state's decay: one factor, or one for each row, `[n_tokens, 1]` or
    /// `[n_tokens, head_dim_k]`.
    pub decays: StridedRows<'a>,
    /// The fraction of a value's error that is written, `[n_tokens, 1]`.
    pub rates: StridedRows<'a>,
    /// The same columns of the output, `[n_tokens, n_groups * n_lanes]`.
    pub out: &'a mut [f32],
}

/// Processes the tokens in order.
///
/// # Panics
/// If the lengths contradict each other.
pub fn delta_run(features: CpuFeatures, run: DeltaRun<'_>) {
    let (dim_k, n_columns) = (run.q.width, run.v.width);
    let n_tokens = run.out.len() / n_columns;
    let inputs = [run.q, run.k, run.v, run.decays, run.rates];
    assert!(
        run.k.width == dim_k
            && (run.decays.width == 1 || run.decays.width == dim_k)
            && run.rates.width == 1
            && run.n_lanes > 0
            && n_columns.is_multiple_of(run.n_lanes)
            && run.state.len() == n_columns * dim_k
            && run.out.len() == n_tokens * n_columns
            && inputs.iter().all(|rows| rows.n_rows() >= n_tokens),
        "lengths of a run of the delta rule"
    );
    if n_tokens == 0 {
        return;
    }
    // SAFETY: the lengths above are those of the kernels' contracts.
    unsafe {
        match run.n_lanes {
            1 => dispatch(features, DeltaLanes::<1>(run)),
            2 => dispatch(features, DeltaLanes::<2>(run)),
            4 => dispatch(features, DeltaLanes::<4>(run)),
            8 => dispatch(features, DeltaLanes::<8>(run)),
            MAX_LANES => dispatch(features, DeltaWide(run)),
            n_lanes => unreachable!("a run of {n_lanes} lanes"),
        }
    }
}

/// Groups of fewer columns than a vector has, token by token.
struct DeltaLanes<'a, const N: usize>(DeltaRun<'a>);

impl<const N: usize> Kernel for DeltaLanes<'_, N> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let run = self.0;
        let n_columns = run.v.width;
        for (group, state) in run.state.chunks_exact_mut(run.q.width * N).enumerate() {
            let (state, _) = state.as_chunks_mut::<N>();
            for (token, out) in run.out.chunks_exact_mut(n_columns).enumerate() {
                let (q, k, decays) = (run.q.row(token), run.k.row(token), run.decays.row(token));
                let v = &run.v.row(token)[group * N..][..N];
                let rate = run.rates.row(token)[0];
                let mut recalled = [[0.0; N]; N_SUMS];
                let stride = usize::from(decays.len() > 1);
                for (i, (row, k)) in state.iter_mut().zip(k).enumerate() {
                    let (sum, decay) = (&mut recalled[i % N_SUMS], decays[i * stride]);
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
                let mut sums = [[0.0; N]; N_SUMS];
                for (i, ((row, k), q)) in state.iter_mut().zip(k).zip(q).enumerate() {
                    let sum = &mut sums[i % N_SUMS];
                    for lane in 0..N {
                        row[lane] = k.mul_add(change[lane], row[lane]);
                        sum[lane] = q.mul_add(row[lane], sum[lane]);
                    }
                }
                out[group * N..][..N].copy_from_slice(&fold(sums));
            }
        }
    }
}

/// Groups of [`MAX_LANES`] columns; it takes as many vectors at a time as there are registers for their sums.
struct DeltaWide<'a>(DeltaRun<'a>);

impl Kernel for DeltaWide<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let DeltaRun {
            state,
            q,
            k,
            v,
            decays,
            rates,
            out,
            ..
        } = self.0;
        let n_columns = v.width;
        let n_tokens = out.len() / n_columns;
        let (state, out) = (state.as_mut_ptr(), out.as_mut_ptr());
        let vectors = |column: usize| DeltaVectors {
            // SAFETY: the column is one of the state's, of which a group has a row for each value of a key.
            state: unsafe { state.add(column / MAX_LANES * (q.width * MAX_LANES) + column % MAX_LANES) },
            q,
            k,
            v,
            decays,
            rates,
            column,
            out,
            n_tokens,
        };
        // SAFETY: the columns exist, and vectors of two groups have the distance of the groups.
        unsafe {
            let mut column = 0;
            while column < n_columns {
                let has_two = S::HALVES == 1 && column + 2 * MAX_LANES <= n_columns;
                match (has_two, decays.width > 1) {
                    (true, false) => S::call(Vectors::<2, false>(vectors(column))),
                    (true, true) => S::call(Vectors::<2, true>(vectors(column))),
                    (false, false) => S::call(Vectors::<1, false>(vectors(column))),
                    (false, true) => S::call(Vectors::<1, true>(vectors(column))),
                }
                column += S::LANES * (1 + usize::from(has_two));
            }
        }
    }
}

/// The arguments of [`Vectors`]. `state` points to the vector in the first row of the group of `column`.
#[derive(Clone, Copy)]
struct DeltaVectors<'a> {
    state: *mut f32,
    q: StridedRows<'a>,
    k: StridedRows<'a>,
    v: StridedRows<'a>,
    decays: StridedRows<'a>,
    rates: StridedRows<'a>,
    column: usize,
    out: *mut f32,
    n_tokens: usize,
}

/// The columns of `V` vectors, in as many adjacent groups. With `OWN` each row of the state has its own decay.
struct Vectors<'a, const V: usize, const OWN: bool>(DeltaVectors<'a>);

/// The inputs of a pass that writes a token's error to the state and reads the query's value.
struct Write<F, const V: usize> {
    q: *const f32,
    k: *const f32,
    change: [F; V],
}

/// The inputs of a pass that decays the state and recalls the next token's value.
struct Recall {
    k: *const f32,
    decays: *const f32,
}

impl<const V: usize, const OWN: bool> Kernel for Vectors<'_, V, OWN> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let run = self.0;
        let n_columns = run.v.width;
        // SAFETY: the tokens are those of every input, and the columns of the vectors exist.
        unsafe {
            let recall = |token: usize| Recall {
                k: run.k.ptr(token),
                decays: run.decays.ptr(token),
            };
            let nothing = Write {
                q: run.q.ptr(0),
                k: run.k.ptr(0),
                change: [S::splat_f32(0.0); V],
            };
            let (_, mut recalled) = self.pass::<S, false, true>(&nothing, &recall(0));
            for token in 0..run.n_tokens {
                let v = run.v.ptr(token).add(run.column);
                let rate = S::splat_f32(*run.rates.ptr(token));
                let mut change = recalled;
                for i in 0..V {
                    let v = S::load_f32(v.add(i * S::LANES));
                    change[i] = S::mul(rate, S::sub(v, recalled[i]));
                }
                let write = Write {
                    q: run.q.ptr(token),
                    k: run.k.ptr(token),
                    change,
                };
                let read;
                (read, recalled) = if token + 1 < run.n_tokens {
                    self.pass::<S, true, true>(&write, &recall(token + 1))
                } else {
                    self.pass::<S, true, false>(&write, &recall(token))
                };
                let out = run.out.add(token * n_columns + run.column);
                for i in 0..V {
                    S::store_f32(out.add(i * S::LANES), read[i]);
                }
            }
        }
    }
}

impl<const V: usize, const OWN: bool> Vectors<'_, V, OWN> {
    /// Passes over the state once; returns the values read and recalled.
    #[inline(always)]
    unsafe fn pass<S: Simd, const WRITES: bool, const RECALLS: bool>(
        &self,
        write: &Write<S::F, V>,
        recall: &Recall,
    ) -> ([S::F; V], [S::F; V]) {
        let dim_k = self.0.q.width;
        // SAFETY: rows of the inputs have `dim_k` values, except for a single decay, and a group has as many rows.
        unsafe {
            let zero = S::splat_f32(0.0);
            let (mut read, mut recalled) = ([[zero; N_SUMS]; V], [[zero; N_SUMS]; V]);
            let decay = S::splat_f32(*recall.decays);
            let n_whole = dim_k / N_SUMS * N_SUMS;
            for first in (0..n_whole).step_by(N_SUMS) {
                for sum in 0..N_SUMS {
                    self.row::<S, WRITES, RECALLS>(
                        first + sum,
                        sum,
                        write,
                        recall,
                        decay,
                        &mut read,
                        &mut recalled,
                    );
                }
            }
            for sum in 0..N_SUMS - 1 {
                if n_whole + sum < dim_k {
                    self.row::<S, WRITES, RECALLS>(
                        n_whole + sum,
                        sum,
                        write,
                        recall,
                        decay,
                        &mut read,
                        &mut recalled,
                    );
                }
            }
            let (mut reads, mut recalls) = ([zero; V], [zero; V]);
            for i in 0..V {
                reads[i] = fold_vector::<S>(read[i]);
                recalls[i] = fold_vector::<S>(recalled[i]);
            }
            (reads, recalls)
        }
    }

    /// Processes one row of the state.
    #[inline(always)]
    unsafe fn row<S: Simd, const WRITES: bool, const RECALLS: bool>(
        &self,
        row_idx: usize,
        sum: usize,
        write: &Write<S::F, V>,
        recall: &Recall,
        decay: S::F,
        read: &mut [[S::F; N_SUMS]; V],
        recalled: &mut [[S::F; N_SUMS]; V],
    ) {
        // SAFETY: as in `pass`.
        unsafe {
            for i in 0..V {
                let at = self.0.state.add((i * self.0.q.width + row_idx) * MAX_LANES);
                let mut state = S::load_f32(at);
                if WRITES {
                    state = S::fma(S::splat_f32(*write.k.add(row_idx)), write.change[i], state);
                    read[i][sum] = S::fma(S::splat_f32(*write.q.add(row_idx)), state, read[i][sum]);
                }
                if RECALLS {
                    let decay = if OWN {
                        S::splat_f32(*recall.decays.add(row_idx))
                    } else {
                        decay
                    };
                    state = S::mul(state, decay);
                    recalled[i][sum] = S::fma(S::splat_f32(*recall.k.add(row_idx)), state, recalled[i][sum]);
                }
                S::store_f32(at, state);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::values, *};

    /// Runs `n_tokens` tokens, `n_each` at a time; returns the outputs and the state.
    fn run(
        features: CpuFeatures,
        [dim_k, n_groups, n_lanes]: [usize; 3],
        has_own_decays: bool,
        n_tokens: usize,
        n_each: usize,
    ) -> (Vec<f32>, Vec<f32>) {
        let n_columns = n_groups * n_lanes;
        let stride = 2 * dim_k + n_columns + 3;
        let qkv: Vec<f32> = values(n_tokens * stride, 1).iter().map(|x| x * 0.3).collect();
        let n_decays = if has_own_decays { dim_k } else { 1 };
        let decays: Vec<f32> = (values(n_tokens * n_decays, 2).iter())
            .map(|x| 0.9 + 0.05 * x)
            .collect();
        let rates = values(n_tokens, 3);
        let mut state = values(dim_k * n_columns, 4);
        let mut out = vec![0.0; n_tokens * n_columns];
        for (i, out) in out.chunks_mut(n_each * n_columns).enumerate() {
            let first = i * n_each;
            let part = |start: usize, width| StridedRows::new(&qkv[first * stride + start..], stride, width);
            delta_run(
                features,
                DeltaRun {
                    state: &mut state,
                    n_lanes,
                    q: part(0, dim_k),
                    k: part(dim_k, dim_k),
                    v: part(2 * dim_k, n_columns),
                    decays: StridedRows::new(&decays[first * n_decays..], n_decays, n_decays),
                    rates: StridedRows::new(&rates[first..], 1, 1),
                    out,
                },
            );
        }
        (out, state)
    }

    #[test]
    fn a_run_gives_the_bits_of_its_tokens_one_at_a_time_on_every_instruction_set() {
        for shape in [
            [1, 1, 1],
            [5, 3, 2],
            [16, 2, 4],
            [33, 1, 8],
            [64, 1, 16],
            [7, 2, 16],
            [128, 3, 16],
        ] {
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

    #[test]
    fn wide_groups_give_the_bits_of_narrow_ones() {
        let dim_k = 13;
        let from_zeros = |n_lanes: usize| {
            let mut state = vec![0.0; dim_k * 16];
            let qkv = values(3 * (2 * dim_k + 16), 9);
            let stride = 2 * dim_k + 16;
            let part = |start: usize, width| StridedRows::new(&qkv[start..], stride, width);
            let mut out = vec![0.0; 3 * 16];
            delta_run(
                CpuFeatures::detect(),
                DeltaRun {
                    state: &mut state,
                    n_lanes,
                    q: part(0, dim_k),
                    k: part(dim_k, dim_k),
                    v: part(2 * dim_k, 16),
                    decays: StridedRows::new(&[0.9, 0.8, 0.7], 1, 1),
                    rates: StridedRows::new(&[0.5, 0.4, 0.3], 1, 1),
                    out: &mut out,
                },
            );
            out
        };
        assert_eq!(from_zeros(16), from_zeros(8));
        assert_eq!(from_zeros(16), from_zeros(2));
    }

    #[test]
    fn a_step_of_the_delta_rule_writes_what_it_recalls() {
        // With a rate of 1 and a key of length 1, a query equal to the key reads the value back.
        let mut state = values(4 * 2, 1);
        let key = [0.5; 4];
        let mut out = [0.0; 2];
        delta_run(
            CpuFeatures::detect(),
            DeltaRun {
                state: &mut state,
                n_lanes: 2,
                q: StridedRows::new(&key, 4, 4),
                k: StridedRows::new(&key, 4, 4),
                v: StridedRows::new(&[3.0, -7.0], 2, 2),
                decays: StridedRows::new(&[0.5], 1, 1),
                rates: StridedRows::new(&[1.0], 1, 1),
                out: &mut out,
            },
        );
        assert!(
            (out[0] - 3.0).abs() < 1e-5 && (out[1] + 7.0).abs() < 1e-5,
            "{out:?}"
        );
    }
}
