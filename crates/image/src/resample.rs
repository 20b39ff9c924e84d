//! [`Rgb::resized`]: Pillow's resampling, with its fixed-point coefficients.
//!
//! An image is resized along its rows and along its columns, one after the other, with windows that widen as
//! the image shrinks. Invariant: the result equals Pillow's to the bit: coefficients have 22 fractional bits,
//! and values are rounded to 8 bits between the two passes.
//!
//! Source: Pillow, `src/libImaging/Resample.c`.

use crate::Rgb;

/// A resampling filter: the weights of neighbouring pixels by distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// A triangle.
    Bilinear,
    /// Catmull-Rom's cubic, `a = -0.5`.
    Bicubic,
}

/// Number of fractional bits of a coefficient.
const PRECISION_BITS: u32 = 22;

impl Filter {
    /// Returns the radius of the filter.
    fn support(self) -> f64 {
        match self {
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        let x = x.abs();
        match self {
            Self::Bilinear => (1.0 - x).max(0.0),
            Self::Bicubic => {
                const A: f64 = -0.5;
                if x < 1.0 {
                    ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
                } else if x < 2.0 {
                    (((x - 5.0) * x + 8.0) * x - 4.0) * A
                } else {
                    0.0
                }
            }
        }
    }
}

/// Returns whether the columns are resized before the rows: if the height loses more than twice as many
/// pixels as the width.
///
/// Source: Pillow 13.0.0, observed on pictures of random sizes; earlier versions always begin with the rows.
fn is_columns_first([width, height]: [usize; 2], [new_width, new_height]: [usize; 2]) -> bool {
    let lost = |old: usize, new: usize| old as i64 - new as i64;
    let lost_rows = lost(height, new_height);
    lost_rows > 0 && lost_rows > 2 * lost(width, new_width)
}

/// The window of input values for one output value, with their weights.
struct Window {
    first: usize,
    weights: Vec<i32>,
}

/// Returns the windows for `n_out` output values from `n_in` input values.
fn windows(n_in: usize, n_out: usize, filter: Filter) -> Vec<Window> {
    let scale = n_in as f64 / n_out as f64;
    let widening = scale.max(1.0);
    let support = filter.support() * widening;
    let window = |out: usize| {
        let center = (out as f64 + 0.5) * scale;
        let first = (center - support + 0.5).max(0.0) as usize;
        let end = ((center + support + 0.5) as usize).min(n_in);
        let weights = (first..end).map(|at| filter.weight((at as f64 - center + 0.5) * (1.0 / widening)));
        let weights: Vec<f64> = weights.collect();
        let sum: f64 = weights.iter().sum();
        let fixed = |weight: f64| {
            let scaled = weight / sum * f64::from(1 << PRECISION_BITS);
            // Rounds half away from zero, as a cast after adding a half does.
            (scaled + 0.5f64.copysign(scaled)) as i32
        };
        Window {
            first,
            weights: weights.into_iter().map(fixed).collect(),
        }
    };
    (0..n_out).map(window).collect()
}

/// Returns an output value; `value` returns the input values.
fn weighed(window: &Window, value: impl Fn(usize) -> u8) -> u8 {
    let half = 1i32 << (PRECISION_BITS - 1);
    let sum = (window.first..)
        .zip(&window.weights)
        .fold(half, |sum, (at, &weight)| {
            sum.wrapping_add(i32::from(value(at)).wrapping_mul(weight))
        });
    (sum >> PRECISION_BITS).clamp(0, 255) as u8
}

impl Rgb {
    /// Returns the image at another size.
    ///
    /// # Panics
    /// If a side is 0.
    #[must_use]
    pub fn resized(&self, width: usize, height: usize, filter: Filter) -> Self {
        assert!(width > 0 && height > 0, "an image has a pixel");
        if is_columns_first([self.width, self.height], [width, height]) {
            return self.resized_columns(height, filter).resized_rows(width, filter);
        }
        self.resized_rows(width, filter).resized_columns(height, filter)
    }

    fn resized_rows(&self, width: usize, filter: Filter) -> Self {
        if width == self.width {
            return self.clone();
        }
        let windows = windows(self.width, width, filter);
        let mut bytes = Vec::with_capacity(width * self.height * 3);
        for row in self.bytes.chunks_exact(self.width * 3) {
            for window in &windows {
                bytes.extend((0..3).map(|channel| weighed(window, |at| row[3 * at + channel])));
            }
        }
        Self::new(width, self.height, bytes)
    }

    fn resized_columns(&self, height: usize, filter: Filter) -> Self {
        if height == self.height {
            return self.clone();
        }
        let row_len = self.width * 3;
        let mut bytes = Vec::with_capacity(row_len * height);
        for window in windows(self.height, height, filter) {
            bytes.extend((0..row_len).map(|at| weighed(&window, |row| self.bytes[row * row_len + at])));
        }
        Self::new(self.width, height, bytes)
    }
}
