//! [`Grid`]: the points of a format's grid, and the search for the scale that fits a group of values best.
//!
//! Seven formats round to a grid when they encode. A code that is not on the grid is rounded to one of the
//! nearby points in a table: computing them would be much slower than looking them up. Invariant: every float
//! operation happens in the reference's order, and equally good points are tried in its order.
//!
//! Source: ggml-org/llama.cpp, `ggml/src/ggml-quants.c` (`iq2xs_init_impl`, `iq2_find_best_neighbour`, `quantize_row_iq2_xs_impl` and
//! the like for other formats).

use crate::scale_search::nearest_int;

/// Different digits of a point, at most.
const N_DIGITS: usize = 8;

/// The points of `D` digits, and for every other code the points nearby.
#[derive(Debug)]
pub(super) struct Grid<const D: usize> {
    points: Vec<[u8; D]>,
    max_digit: u8,
    /// The place of each code.
    places: Vec<Place>,
    /// Points that [`Place::Near`] refers to.
    nearby: Vec<u16>,
}

/// The place of a code.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// It is this point of the grid.
    On(u16),
    /// It is not on the grid; the `len` points from `first` on are nearest.
    Near { first: u32, len: u16 },
}

/// The parameters of a scale search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Search {
    /// Difference between consecutive inverse scales.
    pub(super) step: f32,
    /// Number of scales to try on each side of the initial one.
    pub(super) n_steps: i32,
    /// The codes to round again with the final scale.
    pub(super) refit: Refit,
}

/// The codes to round again with the final scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refit {
    /// The codes that were not on the grid.
    OffGrid,
    /// All codes, if one was not on the grid.
    AllIfOneOff,
    /// All codes.
    All,
}

impl<const D: usize> Grid<D> {
    /// Number of bits of a digit in a code.
    const BITS: usize = if D == 8 { 2 } else { 3 };

    /// Builds the tables of a grid from its points as codes, with digit `i` in [`Self::BITS`] bits from
    /// `i * BITS` on. The points nearby a code off the grid are those at its `n_distances` smallest distances.
    pub(super) fn new(codes: &[u16], max_digit: u8, n_distances: usize) -> Self {
        let digits =
            |code: usize| std::array::from_fn(|i| (code >> (Self::BITS * i) & ((1 << Self::BITS) - 1)) as u8);
        let points: Vec<[u8; D]> = codes.iter().map(|&code| digits(usize::from(code))).collect();
        let mut nearby = Vec::new();
        let mut by_distance = vec![Vec::new(); D * usize::from(max_digit).pow(2) + 1];
        let nowhere = Place::Near { first: 0, len: 0 };
        let mut places = vec![nowhere; 1 << (Self::BITS * D)];
        for (place, &code) in codes.iter().enumerate() {
            places[usize::from(code)] = Place::On(place as u16);
        }
        for (code, place) in places.iter_mut().enumerate() {
            let own: [u8; D] = digits(code);
            if matches!(place, Place::On(_)) || own.iter().any(|&digit| digit > max_digit) {
                continue;
            }
            for (idx, point) in points.iter().enumerate() {
                let squares = own
                    .iter()
                    .zip(point)
                    .map(|(a, b)| usize::from(a.abs_diff(*b)).pow(2));
                by_distance[squares.sum::<usize>()].push(idx as u16);
            }
            let first = nearby.len();
            for list in by_distance
                .iter()
                .filter(|list| !list.is_empty())
                .take(n_distances)
            {
                nearby.extend(list);
            }
            *place = Place::Near {
                first: first as u32,
                len: (nearby.len() - first) as u16,
            };
            by_distance.iter_mut().for_each(Vec::clear);
        }
        Self {
            points,
            max_digit,
            places,
            nearby,
        }
    }

    /// Returns the digits of a point.
    pub(super) fn point(&self, place: u16) -> &[u8; D] {
        &self.points[usize::from(place)]
    }

    /// Returns the point with these digits, or the first nearby point with the least error; and whether it has exactly these digits.
    /// `error` of a place and a digit is that place's part of the error. The parts are computed once and added in the order of the
    /// digits, since points share their digits.
    pub(super) fn nearest(&self, digits: &[u8; D], error: impl Fn(usize, u8) -> f32) -> (u16, bool) {
        let code = (digits.iter().rev()).fold(0, |code, &digit| code << Self::BITS | usize::from(digit));
        match self.places[code] {
            Place::On(place) => (place, true),
            Place::Near { first, len } => {
                let mut parts = [[0.0f32; N_DIGITS]; D];
                for (i, parts) in parts.iter_mut().enumerate() {
                    for digit in 0..=self.max_digit {
                        parts[usize::from(digit) % N_DIGITS] = error(i, digit);
                    }
                }
                let nearby = &self.nearby[first as usize..][..usize::from(len)];
                let (mut best, mut least) = (nearby[0], f32::MAX);
                for &place in nearby {
                    let point = self.point(place);
                    let mut error = 0.0;
                    for i in 0..D {
                        error += parts[i][usize::from(point[i]) % N_DIGITS];
                    }
                    if error < least {
                        (best, least) = (place, error);
                    }
                }
                (best, false)
            }
        }
    }

    /// Finds the scale of a group of magnitudes, and their points. A digit means twice its value plus 1.
    /// `max` is the largest magnitude; if no scale fits, the result is `first_scale`.
    pub(super) fn search<const K: usize>(
        &self,
        search: &Search,
        magnitudes: &[[f32; D]; K],
        weights: &[[f32; D]; K],
        max: f32,
        first_scale: f32,
    ) -> (f32, [u16; K]) {
        let max_digit = i32::from(self.max_digit);
        let roots = weights.map(|weights| weights.map(f32::sqrt));
        let round = |k: usize, inverse: f32, scale: f32| {
            let digits =
                magnitudes[k].map(|x| nearest_int(0.5 * (inverse * x - 1.0)).clamp(0, max_digit) as u8);
            self.nearest(&digits, |i, digit| {
                let difference = scale * f32::from(2 * digit + 1) - magnitudes[k][i];
                roots[k][i] * difference * difference
            })
        };
        // Sums of weight * value * quant and weight * quant^2.
        let sums = |places: &[u16; K]| {
            let (mut value_quant, mut quant_quant) = (0.0, 0.0);
            for k in 0..K {
                let point = self.point(places[k]);
                for i in 0..D {
                    let (weight, quant) = (weights[k][i], f32::from(2 * point[i] + 1));
                    value_quant += weight * magnitudes[k][i] * quant;
                    quant_quant += weight * quant * quant;
                }
            }
            (value_quant, quant_quant)
        };

        let (mut scale, mut best) = (first_scale, 0.0);
        let mut places = [0; K];
        let mut are_on_grid = [search.refit == Refit::OffGrid; K];
        for step in -search.n_steps..=search.n_steps {
            let inverse = ((2 * max_digit + 1) as f32 + step as f32 * search.step) / max;
            let tried: [(u16, bool); K] = std::array::from_fn(|k| round(k, inverse, 1.0 / inverse));
            let tried_places = tried.map(|(place, _)| place);
            let (value_quant, quant_quant) = sums(&tried_places);
            if quant_quant > 0.0 && value_quant * value_quant > best * quant_quant {
                scale = value_quant / quant_quant;
                best = scale * value_quant;
                (places, are_on_grid) = (tried_places, tried.map(|(_, is_on_grid)| is_on_grid));
            }
        }
        let is_refitted = search.refit == Refit::All || are_on_grid.contains(&false);
        if is_refitted && scale > 0.0 {
            for k in 0..K {
                if search.refit != Refit::OffGrid || !are_on_grid[k] {
                    places[k] = round(k, 1.0 / scale, scale).0;
                }
            }
            let (value_quant, quant_quant) = sums(&places);
            if quant_quant > 0.0 {
                scale = value_quant / quant_quant;
            }
        }
        (scale, places)
    }
}

/// Returns the magnitudes of values, and their signs: bit `i` is set if value `i` is negative.
pub(super) fn split_signs(values: &[f32; 8]) -> ([f32; 8], u8) {
    let is_negative = values.map(|x| u8::from(x < 0.0));
    let magnitudes = std::array::from_fn(|i| {
        if is_negative[i] == 1 {
            -values[i]
        } else {
            values[i]
        }
    });
    (magnitudes, (0..8).fold(0, |signs, i| signs | is_negative[i] << i))
}

/// Does the same with an even number of minuses, of which seven bits are kept. If the number is odd, the
/// value with the least weight gets its sign flipped, and so a negative magnitude.
pub(super) fn split_even_signs(values: &[f32; 8], weights: &[f32; 8]) -> ([f32; 8], u8) {
    let (mut magnitudes, mut signs) = split_signs(values);
    if signs.count_ones() % 2 == 1 {
        let cost = |i: usize| weights[i] * values[i] * values[i];
        let least = (1..8).fold(0, |least, i| if cost(i) < cost(least) { i } else { least });
        magnitudes[least] = -magnitudes[least];
        signs ^= 1 << least;
    }
    (magnitudes, signs & 0x7f)
}

/// Returns the largest of some magnitudes.
pub(super) fn greatest(magnitudes: &[f32]) -> f32 {
    (magnitudes.iter()).fold(magnitudes[0], |max, &x| if max > x { max } else { x })
}

/// Returns the stored form of a group's scale: the `n` for which `2 * n + 1` multiplies the block's scale.
pub(super) fn stored_scale(inverse: f32, scale: f32, max: i32) -> u8 {
    nearest_int(0.5 * (inverse * scale - 1.0)).clamp(0, max) as u8
}
