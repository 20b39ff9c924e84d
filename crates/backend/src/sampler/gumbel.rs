//! The counter-based generator and the draw.
//!
//! A device repeats exactly this arithmetic: integer operations, and f32 additions, multiplications and
//! divisions that are each rounded once (no fused multiply-add, no library logarithm). Invariant: the random
//! number of a token is a function of (seed, position, token id).

use super::{allowed::Allowed, select::Candidate};

/// Picks the candidate with the highest `(logit - max) / temperature - ln(exponential)`; the lowest id among equals.
///
/// `candidates` is not empty, its logits are finite, `temperature` is positive.
pub(super) fn race(candidates: &[Candidate], temperature: f32, seed: u64, position: u32) -> u32 {
    let favourite = *(candidates.iter())
        .min_by(|a, b| Candidate::by_likelihood(a, b))
        .expect("the filters keep at least one candidate");
    let mut race = Race::new(favourite, temperature, seed, position);
    for &candidate in candidates {
        race.enter(candidate);
    }
    race.best_id
}

/// Does the same as [`race`] over all allowed tokens; `best` is the likeliest, and negative infinity never
/// wins.
pub(super) fn race_all(row: Allowed<'_>, best: u32, temperature: f32, seed: u64, position: u32) -> u32 {
    let favourite = Candidate {
        id: best,
        logit: row.logit(best),
    };
    let mut race = Race::new(favourite, temperature, seed, position);
    row.for_each(|candidate| race.enter(candidate));
    race.best_id
}

/// The leader of a race.
struct Race {
    key: u64,
    temperature: f32,
    /// The highest logit.
    max: f32,
    best_id: u32,
    best_score: f32,
}

impl Race {
    fn new(favourite: Candidate, temperature: f32, seed: u64, position: u32) -> Self {
        let key = stream_key(seed, position);
        Self {
            key,
            temperature,
            max: favourite.logit,
            best_id: favourite.id,
            best_score: -ln(exponential(uniform(key, favourite.id))),
        }
    }

    #[inline]
    fn enter(&mut self, candidate: Candidate) {
        let scaled = (candidate.logit - self.max) / self.temperature;
        // To overtake, -ln(e) must exceed this gap; since e >= u, no u above exp(-gap) can. So most tokens
        // need no logarithm.
        let gap = self.best_score - scaled;
        let Some(&limit) = EXP_OF_MINUS.get(gap.max(0.0) as usize) else {
            return;
        };
        let u = uniform(self.key, candidate.id);
        if u > limit {
            return;
        }
        let score = scaled - ln(exponential(u));
        if score > self.best_score || (score == self.best_score && candidate.id < self.best_id) {
            self.best_id = candidate.id;
            self.best_score = score;
        }
    }
}

/// `exp(-n)` rounded up, until it is below the smallest `uniform`, 2^-33.
const EXP_OF_MINUS: [f32; 24] = [
    1.0, 0.367_88, 0.135_34, 0.049_79, 0.018_316, 6.738e-3, 2.479e-3, 9.119e-4, 3.355e-4, 1.235e-4, 4.541e-5,
    1.671e-5, 6.145e-6, 2.261e-6, 8.316e-7, 3.060e-7, 1.126e-7, 4.140e-8, 1.524e-8, 5.603e-9, 2.062e-9,
    7.583e-10, 2.790e-10, 1.027e-10,
];

/// Returns a random number below 1 for a decision at a position; `id` must not be a token's.
pub(super) fn chance(seed: u64, position: u32, id: u32) -> f32 {
    uniform(stream_key(seed, position), id)
}

/// Returns the start of the stream of random numbers of one position.
fn stream_key(seed: u64, position: u32) -> u64 {
    mix(mix(seed).wrapping_add(u64::from(position)))
}

/// Mixes 64 bits. Source: SplitMix64, Steele, Lea and Flood 2014 (the finalizer's constants are Stafford's variant 13).
fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Returns 32 random bits of token `id`.
fn random_bits(key: u64, id: u32) -> u32 {
    (mix(key.wrapping_add(u64::from(id).wrapping_mul(0x9E37_79B9_7F4A_7C15))) >> 32) as u32
}

/// Returns a number between 2^-33 and 1 - 2^-24 for token `id`: (32 random bits + 1/2) / 2^32, rounded to f32
/// and kept below 1. Small numbers, which decide a race, keep their full precision.
fn uniform(key: u64, id: u32) -> f32 {
    // 2^-32 and 1 - 2^-24 are exact.
    ((random_bits(key, id) as f32 + 0.5) * 2.328_306_4e-10).min(0.999_999_94)
}

/// Returns `-ln(1 - u)`, an exponential random number; at least `u`.
fn exponential(u: f32) -> f32 {
    if u < 2.441_406_2e-4 {
        // Below 2^-12, 1 - u would lose the bits that matter, and u + u^2 / 2 is exact to f32.
        u + 0.5 * u * u
    } else {
        -ln(1.0 - u)
    }
}

/// Returns the natural logarithm of a positive normal number, to about 2 units in the last place.
///
/// `ln(m 2^k) = k ln 2 + 2 atanh((m - 1) / (m + 1))` with `m` in `[2/3, 4/3)`, the series cut after the 9th
/// power.
fn ln(x: f32) -> f32 {
    // Subtracting the bits of 2/3 makes the exponent field count from there.
    let bits = x.to_bits().wrapping_sub(0x3F2A_AAAB);
    let exponent = (bits as i32) >> 23;
    let m = f32::from_bits((bits & 0x007F_FFFF).wrapping_add(0x3F2A_AAAB));
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let series = z * (1.0 / 3.0 + z * (0.2 + z * (1.0 / 7.0 + z * (1.0 / 9.0))));
    let ln_m = 2.0 * s + 2.0 * s * series;
    exponent as f32 * std::f32::consts::LN_2 + ln_m
}

/// Runs the race without its shortcut.
#[cfg(test)]
pub(super) fn race_exhaustively(candidates: &[Candidate], temperature: f32, seed: u64, position: u32) -> u32 {
    let max = candidates
        .iter()
        .fold(f32::NEG_INFINITY, |max, c| max.max(c.logit));
    let key = stream_key(seed, position);
    let score = |c: &Candidate| (c.logit - max) / temperature - ln(exponential(uniform(key, c.id)));
    let best = candidates
        .iter()
        .max_by(|a, b| score(a).total_cmp(&score(b)).then(b.id.cmp(&a.id)));
    best.expect("a candidate").id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ln_agrees_with_the_library() {
        for exponent in -33..4 {
            for step in 0..1000 {
                let x = 2f32.powi(exponent) * (1.0 + step as f32 / 1000.0);
                let expected = f64::from(x).ln();
                let error = (f64::from(ln(x)) - expected).abs();
                // Rounding of k ln 2 and of the sum: below 1.5e-7 of the larger term.
                assert!(
                    error <= 2e-7 * expected.abs().max(1.0),
                    "ln({x}) is off by {error}"
                );
            }
        }
    }

    #[test]
    fn exponential_is_at_least_its_uniform() {
        for id in 0..100_000 {
            let u = uniform(7, id);
            assert!(exponential(u) >= u * (1.0 - 3e-7), "{u}");
        }
    }

    #[test]
    fn the_table_bounds_the_exponential_function() {
        for (n, &bound) in EXP_OF_MINUS.iter().enumerate() {
            let exact = (-(n as f64)).exp();
            assert!(
                f64::from(bound) >= exact && f64::from(bound) < exact * 1.001,
                "exp(-{n})"
            );
        }
        assert!(
            f64::from(EXP_OF_MINUS[23]) < 2f64.powi(-33),
            "beyond the table nothing can win"
        );
    }

    #[test]
    fn the_generator_is_pinned() {
        // A change of these numbers changes every seeded result, on every device.
        let key = stream_key(42, 7);
        assert_eq!((mix(0), mix(1)), (0xE220_A839_7B1D_CDAF, 0x910A_2DEC_8902_5CC1));
        assert_eq!(
            [0, 1, 2].map(|id| random_bits(key, id)),
            [0x149E_5012, 0xF7B0_BA6C, 0x28AC_9D6E]
        );
    }
}
