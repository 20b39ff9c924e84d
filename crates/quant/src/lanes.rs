//! The order in which every dot product adds floats, whatever the instruction set.
//!
//! Sums over many small blocks or single values run in `N` independent lanes: term `i` goes to lane `i % N`, and the
//! lanes are added at the end, the upper half onto the lower until one is left. That is what a vector register does
//! naturally, so scalar code that does the same returns the same bits. Invariant: nothing in this crate sums floats of
//! a dot product in another order.

/// Lanes of the formats with 32 weights a block: one block's term goes to one lane.
pub(crate) const BLOCK_LANES: usize = 8;

/// Lanes of the formats without blocks: one product goes to one lane.
pub(crate) const VALUE_LANES: usize = 32;

/// Adds the lanes: the upper half onto the lower until one is left. `N` is a power of two.
#[inline]
pub(crate) fn add_lanes<const N: usize>(mut lanes: [f32; N]) -> f32 {
    let mut half = N / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// Sums one term per block, in [`BLOCK_LANES`] lanes.
#[inline]
pub(crate) fn sum_blocks<W, A>(weights: &[W], activations: &[A], term: impl Fn(&W, &A) -> f32) -> f32 {
    let mut lanes = [0.0; BLOCK_LANES];
    for (i, (w, a)) in weights.iter().zip(activations).enumerate() {
        lanes[i % BLOCK_LANES] += term(w, a);
    }
    add_lanes(lanes)
}

/// Sums one term per block of 256 weights, one after another: such a block is long enough for its integer sum to be
/// added across lanes first.
#[inline]
pub(crate) fn sum_superblocks<W, A>(weights: &[W], activations: &[A], term: impl Fn(&W, &A) -> f32) -> f32 {
    (weights.iter().zip(activations)).fold(0.0, |sum, (w, a)| sum + term(w, a))
}

/// Sums the products of two rows of values, in [`VALUE_LANES`] lanes.
#[inline]
pub(crate) fn sum_products<W, A>(
    weights: &[W],
    activations: &[A],
    weight: impl Fn(&W) -> f32,
    activation: impl Fn(&A) -> f32,
) -> f32 {
    let (w_chunks, w_tail) = weights.as_chunks::<VALUE_LANES>();
    let (a_chunks, a_tail) = activations.as_chunks::<VALUE_LANES>();
    let mut lanes = [0.0; VALUE_LANES];
    for (w, a) in w_chunks.iter().zip(a_chunks) {
        for i in 0..VALUE_LANES {
            lanes[i] += weight(&w[i]) * activation(&a[i]);
        }
    }
    for (lane, (w, a)) in lanes.iter_mut().zip(w_tail.iter().zip(a_tail)) {
        *lane += weight(w) * activation(a);
    }
    add_lanes(lanes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_add_by_halves() {
        // 1e8 + 1 is lost in f32, so the order shows.
        assert_eq!(add_lanes([1e8, 1.0, -1e8, 1.0]), 2.0);
        assert_eq!(add_lanes([1e8, -1e8, 1.0, 1.0]), 0.0);
        assert_eq!(add_lanes([7.0]), 7.0);
    }
}
