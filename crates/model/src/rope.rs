//! [`RopeDescriptor`]: a rotary embedding, and its frequencies under every scaling.
//!
//! All scalings become a table of frequencies and a magnitude here, once and on the host, so backends know
//! none of them.

use std::f64::consts::TAU;

use tokenmill_backend::{RopeAxes, RopeStyle};

use crate::{
    LoadError,
    error::{check, check_positive},
};

/// A rotary embedding before its frequencies are computed.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeDescriptor {
    /// Which values form a pair.
    pub style: RopeStyle,
    /// Width of a head.
    pub head_dim: usize,
    /// Number of rotated values per head.
    pub n_dims: usize,
    /// Base of the geometric series of wavelengths.
    pub base: f32,
    /// The adjustment of frequencies for longer contexts.
    pub scaling: RopeScaling,
    /// Whether the file may have a tensor `rope_freqs.weight` with divisors of the frequencies.
    pub has_freq_factors: bool,
    /// The position that rotates each pair, for image inputs.
    pub axes: RopeAxes,
}

/// A change of the frequencies that extends a model's context beyond that of its training.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// Divides all frequencies by `factor`.
    Linear {
        /// The divisor.
        factor: f32,
    },
    /// Uses a larger base for contexts longer than the trained one, and no scaling up to it.
    ///
    /// Source: transformers, `rope_type: dynamic`, which uses the length of the text so far as the context.
    /// Here it is the maximum length of a sequence, so that stored keys stay valid.
    Dynamic {
        /// Growth of the base with the context.
        factor: f32,
        /// Context length of the training.
        original_context: usize,
    },
    /// Divides low frequencies by `factor`, keeps high ones, with a ramp between them. Source: Llama 3.1,
    /// `rope_type: llama3` of Hugging Face's configurations.
    Llama3 {
        /// The divisor.
        factor: f32,
        /// Wavelengths above `original_context / low_freq_factor` are scaled in full.
        low_freq_factor: f32,
        /// Wavelengths below `original_context / high_freq_factor` are kept.
        high_freq_factor: f32,
        /// Context length of the training.
        original_context: usize,
    },
    /// Source: "YaRN: Efficient Context Window Extension of Large Language Models", Peng et al. 2023, section 3.
    Yarn {
        /// The divisor of the low frequencies.
        factor: f32,
        /// Context length of the training.
        original_context: usize,
        /// Pairs that rotate more often than this over the original context are kept.
        beta_fast: f32,
        /// Pairs that rotate less often than this are scaled in full.
        beta_slow: f32,
        /// Factor of rotated values; `None` means the paper's `0.1 ln(factor) + 1`.
        magnitude: Option<f32>,
        /// Whether the ends of the ramp are rounded to whole pairs.
        rounding: YarnRounding,
    },
    /// The frequencies of half a head, once for rows and once for columns.
    ///
    /// Source: transformers, the rotary embeddings of `models/qwen2_vl/modeling_qwen2_vl.py`'s encoder.
    Plane,
    /// Uses the frequencies of a whole head, but rotates only the first pairs.
    ///
    /// Source: transformers, `rope_type: proportional` (Gemma 4).
    Proportional {
        /// Number of rotated values per head.
        n_rotated: usize,
    },
    /// Divides each frequency by its own factor, with one set of factors for contexts up to the trained
    /// length and another for longer ones.
    ///
    /// Source: "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens", Ding et al. 2024; `rope_type: longrope` of
    /// Hugging Face's configurations.
    LongRope {
        /// Context length of the training.
        original_context: usize,
        /// Factor of rotated values.
        magnitude: f32,
        /// The factors; `None` if they are in the file's tensors `rope_factors_short.weight` and
        /// `rope_factors_long.weight`.
        factors: Option<LongRopeFactors>,
    },
}

/// The factors of [`RopeScaling::LongRope`], one per pair.
#[derive(Clone, Debug, PartialEq)]
pub struct LongRopeFactors {
    /// For contexts up to the trained length.
    pub short: Vec<f32>,
    /// For longer ones.
    pub long: Vec<f32>,
}

/// The rounding of the ends of YaRN's ramp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum YarnRounding {
    /// Down and up to whole pairs.
    Outwards,
    /// No rounding.
    None,
}

/// Returns YaRN's factor of rotated values: `0.1 multiplier ln(factor) + 1`.
pub(crate) fn yarn_magnitude(factor: f32, multiplier: f32) -> f32 {
    if factor <= 1.0 {
        return 1.0;
    }
    0.1 * multiplier * factor.ln() + 1.0
}

impl RopeDescriptor {
    /// Checks that all numbers are usable.
    pub(crate) fn validate(&self) -> Result<(), LoadError> {
        check(
            "rope dimension count",
            self.n_dims,
            self.n_dims > 0 && self.n_dims.is_multiple_of(2),
            "even and at least 2",
        )?;
        check(
            "rope base",
            self.base,
            self.base > 1.0 && self.base.is_finite(),
            "a number above 1",
        )?;
        let n_pairs: usize = match self.axes {
            RopeAxes::One => self.n_dims / 2,
            RopeAxes::Sections(n_pairs) | RopeAxes::Interleaved(n_pairs) => {
                n_pairs.iter().fold(0, |sum, &n| sum.saturating_add(n))
            }
        };
        check(
            "sum of the rope's sections",
            n_pairs,
            n_pairs == self.n_dims / 2,
            "half the rope dimension count",
        )?;
        let (factor, original_context) = match self.scaling {
            RopeScaling::None | RopeScaling::Plane | RopeScaling::Proportional { .. } => (1.0, 1),
            RopeScaling::Linear { factor } => (factor, 1),
            RopeScaling::Dynamic {
                factor,
                original_context,
            }
            | RopeScaling::Llama3 {
                factor,
                original_context,
                ..
            }
            | RopeScaling::Yarn {
                factor,
                original_context,
                ..
            } => (factor, original_context),
            RopeScaling::LongRope { original_context, .. } => (1.0, original_context),
        };
        check(
            "rope scaling factor",
            factor,
            factor > 0.0 && factor.is_finite(),
            "a positive number",
        )?;
        check(
            "original context length of the rope scaling",
            original_context,
            original_context > 0,
            "at least 1",
        )?;
        match self.scaling {
            RopeScaling::None | RopeScaling::Linear { .. } => Ok(()),
            RopeScaling::Dynamic { factor, .. } => {
                check(
                    "rope scaling factor",
                    factor,
                    factor >= 1.0,
                    "at least 1 with a base that grows",
                )?;
                // The base grows by a power of `n_dims / (n_dims - 2)`.
                check("rope dimension count", self.n_dims, self.n_dims > 2, "at least 4")
            }
            RopeScaling::Plane => check(
                "rope dimension count",
                self.n_dims,
                self.n_dims.is_multiple_of(4),
                "a multiple of 4",
            ),
            RopeScaling::Proportional { n_rotated } => check(
                "number of rotated values",
                n_rotated,
                n_rotated <= self.n_dims,
                "at most the rope dimension count",
            ),
            RopeScaling::Llama3 {
                low_freq_factor,
                high_freq_factor,
                ..
            } => {
                check_positive("low frequency factor of the rope scaling", low_freq_factor)?;
                check_positive("high frequency factor of the rope scaling", high_freq_factor)?;
                // The ramp between them is divided by their difference.
                check(
                    "high frequency factor of the rope scaling",
                    high_freq_factor,
                    high_freq_factor > low_freq_factor,
                    "above the low frequency factor",
                )
            }
            RopeScaling::Yarn {
                beta_fast,
                beta_slow,
                magnitude,
                rounding: _,
                ..
            } => {
                check_positive("beta_fast of the rope scaling", beta_fast)?;
                check_positive("beta_slow of the rope scaling", beta_slow)?;
                check_positive("attention factor of the rope scaling", magnitude.unwrap_or(1.0))
            }
            RopeScaling::LongRope {
                magnitude,
                ref factors,
                ..
            } => {
                check_positive("attention factor of the rope scaling", magnitude)?;
                let Some(LongRopeFactors { short, long }) = factors else {
                    return Ok(());
                };
                for factors in [short, long] {
                    let what = "number of factors of the rope scaling";
                    check(
                        what,
                        factors.len(),
                        factors.len() == self.n_dims / 2,
                        "half the rope dimension count",
                    )?;
                    for &factor in factors {
                        check_positive("factor of the rope scaling", factor)?;
                    }
                }
                Ok(())
            }
        }
    }

    /// Returns the divisors that converters write for [`RopeScaling::Llama3`], one per frequency,
    /// `[n_dims / 2]`, computed in single precision as there. Empty for another scaling.
    pub(crate) fn llama3_divisors(&self) -> Vec<f32> {
        let RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_context,
        } = self.scaling
        else {
            return Vec::new();
        };
        let context = original_context as f32;
        let divisor = |pair: usize| {
            let freq = 1.0 / self.base.powf((2 * pair) as f32 / self.n_dims as f32);
            let wavelength = std::f32::consts::TAU / freq;
            if wavelength < context / high_freq_factor {
                1.0
            } else if wavelength > context / low_freq_factor {
                factor
            } else {
                let kept = (context / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
                1.0 / ((1.0 - kept) / factor + kept)
            }
        };
        (0..self.n_dims / 2).map(divisor).collect()
    }

    /// Returns the rope for sequences of up to `n_ctx` positions.
    pub(crate) fn for_context(&self, n_ctx: usize) -> Self {
        let mut rope = self.clone();
        if let RopeScaling::Dynamic {
            factor,
            original_context,
        } = self.scaling
            && n_ctx > original_context
        {
            let (factor, n_dims) = (f64::from(factor), self.n_dims as f64);
            let stretch = factor * n_ctx as f64 / original_context as f64 - (factor - 1.0);
            rope.base = (f64::from(self.base) * stretch.powf(n_dims / (n_dims - 2.0))) as f32;
        }
        rope
    }

    /// Returns the radians per position of each pair, `[n_dims / 2]`, and the magnitude. `factors` are
    /// divisors from the file.
    pub fn frequencies(&self, factors: Option<&[f32]>) -> (Vec<f32>, f32) {
        let mut freqs: Vec<f64> = (0..self.n_dims / 2)
            .map(|pair| f64::from(self.base).powf(-2.0 * pair as f64 / self.n_dims as f64))
            .collect();
        for (freq, &factor) in freqs.iter_mut().zip(factors.unwrap_or_default()) {
            *freq /= f64::from(factor);
        }
        let mut magnitude = 1.0;
        match self.scaling {
            RopeScaling::None | RopeScaling::Dynamic { .. } => {}
            RopeScaling::Plane => {
                let n_half = freqs.len() / 2;
                for (pair, freq) in freqs.iter_mut().enumerate() {
                    let power = -2.0 * (pair % n_half) as f64 / (self.n_dims / 2) as f64;
                    *freq = f64::from(self.base).powf(power);
                }
            }
            RopeScaling::Linear { factor } => freqs.iter_mut().for_each(|freq| *freq /= f64::from(factor)),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_context,
            } => {
                let [factor, low, high] = [factor, low_freq_factor, high_freq_factor].map(f64::from);
                for freq in &mut freqs {
                    // The number of rotations over the original context decides how much of the frequency is
                    // kept.
                    let turns = original_context as f64 * *freq / TAU;
                    let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                    *freq = (1.0 - kept) * *freq / factor + kept * *freq;
                }
            }
            RopeScaling::Yarn {
                factor,
                original_context,
                beta_fast,
                beta_slow,
                magnitude: given,
                rounding,
            } => {
                let factor = f64::from(factor);
                // Returns the (fractional) pair that rotates `turns` times over the original context.
                let pair_of = |turns: f32| {
                    self.n_dims as f64 * (original_context as f64 / (f64::from(turns) * TAU)).ln()
                        / (2.0 * f64::from(self.base).ln())
                };
                let (low, high) = match rounding {
                    YarnRounding::Outwards => (pair_of(beta_fast).floor(), pair_of(beta_slow).ceil()),
                    YarnRounding::None => (pair_of(beta_fast), pair_of(beta_slow)),
                };
                let (low, high) = (low.max(0.0), high.min(self.n_dims as f64 - 1.0));
                for (pair, freq) in freqs.iter_mut().enumerate() {
                    let scaled = ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                    *freq = scaled * *freq / factor + (1.0 - scaled) * *freq;
                }
                magnitude = given.unwrap_or_else(|| yarn_magnitude(factor as f32, 1.0));
            }
            RopeScaling::Proportional { n_rotated } => {
                freqs.iter_mut().skip(n_rotated / 2).for_each(|freq| *freq = 0.0);
            }
            RopeScaling::LongRope { magnitude: given, .. } => magnitude = given,
        }
        (freqs.iter().map(|&freq| freq as f32).collect(), magnitude)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(scaling: RopeScaling) -> RopeDescriptor {
        RopeDescriptor {
            style: RopeStyle::Norm,
            head_dim: 8,
            n_dims: 8,
            base: 10_000.0,
            scaling,
            has_freq_factors: false,
            axes: RopeAxes::One,
        }
    }

    #[track_caller]
    fn check(scaling: RopeScaling, expected: [f32; 4], expected_magnitude: f32) {
        let (freqs, magnitude) = rope(scaling).frequencies(None);
        for (found, expected) in freqs.iter().zip(expected) {
            // The round numbers below are those for 628.3 positions.
            assert!((found / expected - 1.0).abs() < 1e-3, "{freqs:?}");
        }
        assert!((magnitude - expected_magnitude).abs() < 1e-6);
    }

    #[test]
    fn scalings_change_the_frequencies_they_should() {
        check(RopeScaling::None, [1.0, 0.1, 0.01, 0.001], 1.0);
        check(
            RopeScaling::Linear { factor: 4.0 },
            [0.25, 0.025, 0.0025, 0.00025],
            1.0,
        );
        // Over 628.3 positions the pairs rotate 100, 10, 1 and 0.1 times: kept, kept, scaled, scaled; with
        // bounds of 5 and 15 rotations the second is halfway.
        check(
            RopeScaling::Llama3 {
                factor: 4.0,
                low_freq_factor: 5.0,
                high_freq_factor: 15.0,
                original_context: 628,
            },
            [1.0, 0.0625, 0.0025, 0.00025],
            1.0,
        );
        check(
            RopeScaling::Yarn {
                factor: 4.0,
                original_context: 628,
                beta_fast: 10.1,
                beta_slow: 0.101,
                magnitude: None,
                rounding: YarnRounding::Outwards,
            },
            // Pairs 0.99 and 2.99 bound the ramp, rounded outwards to 0 and 3.
            [1.0, 0.075, 0.005, 0.00025],
            0.1 * 4f32.ln() + 1.0,
        );
    }

    #[test]
    fn a_dynamic_base_grows_with_contexts_beyond_the_training() {
        let dynamic = rope(RopeScaling::Dynamic {
            factor: 2.0,
            original_context: 100,
        });
        dynamic.validate().unwrap();
        assert_eq!(dynamic.for_context(100).base, 10_000.0);
        // (2 * 3 - 1)^(8 / 6).
        let expected = 10_000.0 * 5f32.powf(8.0 / 6.0);
        assert!((dynamic.for_context(300).base / expected - 1.0).abs() < 1e-6);
        let mut narrow = dynamic;
        narrow.n_dims = 2;
        assert!(narrow.validate().is_err());
    }

    #[test]
    fn factors_of_the_file_divide() {
        let (freqs, _) = rope(RopeScaling::None).frequencies(Some(&[1.0, 2.0, 4.0, 8.0]));
        assert!((freqs[1] - 0.05).abs() < 1e-7 && (freqs[3] - 0.000_125).abs() < 1e-9);
    }

    #[test]
    fn scalings_that_would_divide_by_zero_are_refused_by_name() {
        let llama3 = |low_freq_factor, high_freq_factor| RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor,
            high_freq_factor,
            original_context: 8192,
        };
        let yarn = |beta_fast, beta_slow, magnitude| RopeScaling::Yarn {
            factor: 4.0,
            original_context: 8192,
            beta_fast,
            beta_slow,
            magnitude,
            rounding: YarnRounding::Outwards,
        };
        for sound in [
            llama3(1.0, 4.0),
            yarn(32.0, 1.0, None),
            yarn(32.0, 1.0, Some(1.2)),
        ] {
            rope(sound).validate().unwrap();
        }
        for (scaling, expected) in [
            (
                llama3(4.0, 4.0),
                "high frequency factor of the rope scaling is 4, expected above the low frequency factor",
            ),
            (
                llama3(f32::NAN, 4.0),
                "low frequency factor of the rope scaling is NaN, expected a positive number",
            ),
            (
                llama3(1.0, f32::INFINITY),
                "high frequency factor of the rope scaling is inf, expected a positive number",
            ),
            (
                yarn(0.0, 1.0, None),
                "beta_fast of the rope scaling is 0, expected a positive number",
            ),
            (
                yarn(32.0, f32::NAN, None),
                "beta_slow of the rope scaling is NaN, expected a positive number",
            ),
            (
                yarn(32.0, 1.0, Some(f32::INFINITY)),
                "attention factor of the rope scaling is inf, expected a positive number",
            ),
        ] {
            let error = rope(scaling).validate().unwrap_err();
            assert_eq!(error.to_string(), format!("the model's {expected}"));
        }
    }
}
