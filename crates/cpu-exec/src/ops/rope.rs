//! [`rope`]: rotary position embeddings.
//!
//! The angles of a step's positions ([`RopeAngles`]) are computed once and used by queries and keys of every
//! layer that shares a [`Rope`]. Invariant: nothing here knows a scaling scheme; the code that loads a model
//! turns linear scaling, `rope_freqs` or YaRN into frequencies and a magnitude.

use tokenmill_backend::{Rope, RopeStyle};

use crate::Host;

/// The cosines and sines for the positions of one step, times the magnitude.
#[derive(Clone, Debug, Default)]
pub struct RopeAngles {
    /// `[n_tokens, n_pairs]`.
    cos_sin: Vec<[f32; 2]>,
    n_pairs: usize,
    n_tokens: usize,
}

impl RopeAngles {
    /// Computes the angles of `positions`, one for each token; keeps its memory from step to step.
    pub fn fill(&mut self, rope: &Rope<&[f32]>, positions: &[u32]) {
        self.n_pairs = rope.inv_freqs.len();
        self.n_tokens = positions.len();
        self.cos_sin.clear();
        self.cos_sin.reserve(self.n_tokens * self.n_pairs);
        for &position in positions {
            let turn = |freq: &f32| cos_sin(position, *freq, rope.magnitude);
            self.cos_sin.extend(rope.inv_freqs.iter().map(turn));
        }
    }

    /// Computes the angles of tokens with three positions each, as [`Self::fill`] does.
    pub fn fill_axes(&mut self, rope: &Rope<&[f32]>, positions: &[u32], axes: &[[u32; 3]]) {
        self.n_pairs = rope.inv_freqs.len();
        self.n_tokens = positions.len();
        self.cos_sin.clear();
        self.cos_sin.reserve(self.n_tokens * self.n_pairs);
        for (&position, places) in positions.iter().zip(axes) {
            let turn = |(pair, freq): (usize, &f32)| {
                let position = rope.axes.of_pair(pair).map_or(position, |axis| places[axis]);
                cos_sin(position, *freq, rope.magnitude)
            };
            self.cos_sin.extend(rope.inv_freqs.iter().enumerate().map(turn));
        }
    }
}

fn cos_sin(position: u32, freq: f32, magnitude: f32) -> [f32; 2] {
    let (sin, cos) = (position as f32 * freq).sin_cos();
    [cos * magnitude, sin * magnitude]
}

/// The number of tokens per chunk, so low that the few tokens of a decode step stay on the calling thread.
const TOKENS_PER_CHUNK: usize = 8;

/// Rotates `x`, `[n_tokens, n_heads, head_dim]`, in place by the angles of its tokens.
///
/// # Panics
/// If the shapes contradict each other.
pub fn rope(
    host: &Host,
    style: RopeStyle,
    angles: &RopeAngles,
    x: &mut [f32],
    n_heads: usize,
    head_dim: usize,
) {
    let n_pairs = angles.n_pairs;
    assert!(
        2 * n_pairs <= head_dim,
        "{n_pairs} rotated pairs in a head of {head_dim}"
    );
    let token_len = n_heads * head_dim;
    assert_eq!(
        x.len(),
        angles.n_tokens * token_len,
        "values of {} tokens",
        angles.n_tokens
    );
    if x.is_empty() || n_pairs == 0 {
        return;
    }
    host.pool()
        .for_each_chunk(x, token_len * TOKENS_PER_CHUNK, |chunk_idx, tokens| {
            for (i, token) in tokens.chunks_exact_mut(token_len).enumerate() {
                let cos_sin = &angles.cos_sin[(chunk_idx * TOKENS_PER_CHUNK + i) * n_pairs..][..n_pairs];
                for head in token.chunks_exact_mut(head_dim) {
                    match style {
                        RopeStyle::Norm => {
                            for (pair, &[cos, sin]) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos_sin) {
                                let [a, b] = *pair;
                                *pair = [a * cos - b * sin, a * sin + b * cos];
                            }
                        }
                        RopeStyle::Neox => {
                            let (first, second) = head.split_at_mut(n_pairs);
                            for ((a, b), &[cos, sin]) in first.iter_mut().zip(second).zip(cos_sin) {
                                (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
                            }
                        }
                    }
                }
            }
        });
}

#[cfg(test)]
mod tests {
    use tokenmill_backend::RopeAxes;
    use tokenmill_quant::CpuFeatures;

    use super::*;

    fn rotated(style: RopeStyle, head: &[f32], positions: &[u32], freqs: &[f32]) -> Vec<f32> {
        let host = Host::new(2, CpuFeatures::detect()).unwrap();
        let table = Rope {
            style,
            head_dim: head.len(),
            n_dims: 2 * freqs.len(),
            inv_freqs: freqs,
            magnitude: 1.0,
            axes: RopeAxes::One,
        };
        let mut angles = RopeAngles::default();
        angles.fill(&table, positions);
        let mut x = head.repeat(positions.len());
        rope(&host, style, &angles, &mut x, 1, head.len());
        x
    }

    #[test]
    fn pairs_turn_by_position_times_frequency() {
        let quarter = std::f32::consts::FRAC_PI_2;
        let check = |style, expected: [f32; 5]| {
            let x = rotated(style, &[1.0, 2.0, 3.0, 4.0, 5.0], &[0, 1], &[quarter, 0.0]);
            assert_eq!(x[..5], [1.0, 2.0, 3.0, 4.0, 5.0]);
            assert!(
                x[5..].iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6),
                "{x:?}"
            );
        };
        check(RopeStyle::Norm, [-2.0, 1.0, 3.0, 4.0, 5.0]);
        check(RopeStyle::Neox, [-3.0, 2.0, 1.0, 4.0, 5.0]);
    }

    #[test]
    fn pairs_turn_by_the_position_of_their_axis() {
        let freqs = [1.0, 0.7, 0.5, 0.3, 0.2, 0.1];
        let check = |axes, expected: [u32; 6]| {
            let rope = Rope {
                style: RopeStyle::Neox,
                head_dim: 12,
                n_dims: 12,
                inv_freqs: &freqs[..],
                magnitude: 1.0,
                axes,
            };
            let mut angles = RopeAngles::default();
            angles.fill_axes(&rope, &[9], &[[3, 4, 5]]);
            let turn = |(position, freq)| cos_sin(position, freq, 1.0);
            let expected: Vec<[f32; 2]> = expected.into_iter().zip(freqs).map(turn).collect();
            assert_eq!(angles.cos_sin, expected, "{axes:?}");
        };
        check(RopeAxes::One, [9; 6]);
        check(RopeAxes::Sections([1, 2, 3]), [3, 4, 4, 5, 5, 5]);
        check(RopeAxes::Interleaved([3, 2, 1]), [3, 4, 5, 3, 4, 3]);
    }

    #[test]
    fn many_tokens_are_rotated_like_one() {
        let head: Vec<f32> = (0..8).map(|i| i as f32).collect();
        let freqs = [1.0, 0.1, 0.01];
        let positions: Vec<u32> = (0..50).map(|i| i * 3).collect();
        let together = rotated(RopeStyle::Neox, &head, &positions, &freqs);
        for (&position, together) in positions.iter().zip(together.chunks(8)) {
            assert_eq!(rotated(RopeStyle::Neox, &head, &[position], &freqs), together);
        }
    }
}
