//! [`SamplingParams`]: how a token is chosen from a row of logits.
//!
//! Parameters only; the sampler is in its own module. Invariant: a value that passed
//! [`SamplingParams::validate`] makes no sampler panic, whatever the logits are.

use crate::{DynamicTemperature, Mirostat, SamplerStep, Xtc};

/// Parameters for choosing a token from a row of logits. The default is greedy with nothing else applied.
///
/// The logit bias and the mask come first, the draw last. Between them, unless [`Self::order`] differs, come the penalties, DRY and
/// top-n-sigma, then the greedy choice or top-k, typical, top-p, min-p, XTC and temperature.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 chooses greedily.
    pub temperature: f32,
    /// Keeps the `k` most likely tokens; 0 keeps all, 1 chooses greedily.
    pub top_k: u32,
    /// Keeps the smallest set of most likely tokens whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens at least this many times as likely as the likeliest; 0 keeps all.
    pub min_p: f32,
    /// Keeps the tokens whose surprise is nearest to the entropy, up to this probability; 1 keeps all.
    pub typical_p: f32,
    /// Keeps tokens whose logits are at most this many standard deviations below the highest; 0 keeps all.
    pub top_n_sigma: f32,
    /// Removes the likeliest tokens at random.
    pub xtc: Option<Xtc>,
    /// Varies the temperature with the entropy of the tokens.
    pub dynamic_temperature: Option<DynamicTemperature>,
    /// Keeps the surprise near a target, in place of all filters and penalties.
    pub mirostat: Option<Mirostat>,
    /// Steps in their order, if it is not [`SamplerStep::DEFAULT_ORDER`]; other steps are skipped.
    pub order: Option<Vec<SamplerStep>>,
    /// Divides positive logits and multiplies negative ones of tokens seen in the history; 1 does nothing.
    pub repeat_penalty: f32,
    /// Subtracted once from the logit of each token seen in the history.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a token once per occurrence in the history.
    pub frequency_penalty: f32,
    /// Number of newest tokens that the three penalties count.
    pub penalty_last_n: u32,
    /// Penalizes tokens that would continue a repeated run.
    pub dry: Option<Dry>,
    /// Added to the logits of these tokens; negative infinity forbids one.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the counter-based generator.
    pub seed: u64,
    /// Number of likeliest tokens to report with their log-probabilities; `Some(0)` reports only the chosen one.
    pub n_logprobs: Option<u32>,
    /// Whether the reported log-probabilities are those of the draw, after all steps, and not those of the model. A token that a step removed
    /// has negative infinity.
    pub scores_draw: bool,
}

/// "Don't repeat yourself": a token that would extend a run already seen costs `multiplier * base^(n - allowed)`, where
/// `n` is the length of the run it repeats.
#[derive(Clone, Debug, PartialEq)]
pub struct Dry {
    /// Scale of the penalty.
    pub multiplier: f32,
    /// Base of its growth.
    pub base: f32,
    /// Runs up to this length cost nothing.
    pub allowed_length: u32,
    /// Number of newest tokens that are searched.
    pub last_n: u32,
    /// Tokens that end a run (sequence breakers).
    pub breakers: Vec<u32>,
}

/// Returns DRY turned off, with llama.cpp's base, length and window, and without breakers.
impl Default for Dry {
    fn default() -> Self {
        Self {
            multiplier: 0.0,
            base: 1.75,
            allowed_length: 2,
            last_n: u32::MAX,
            breakers: Vec::new(),
        }
    }
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            top_n_sigma: 0.0,
            xtc: None,
            dynamic_temperature: None,
            mirostat: None,
            order: None,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_last_n: 64,
            dry: None,
            logit_bias: Vec::new(),
            seed: 0,
            n_logprobs: None,
            scores_draw: false,
        }
    }
}

impl SamplingParams {
    /// Returns llama.cpp's defaults.
    ///
    /// Source: llama.cpp, `common/common.h`.
    pub fn llama_cpp() -> Self {
        Self {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            ..Self::default()
        }
    }

    /// Returns whether the likeliest token is always taken.
    pub fn is_greedy(&self) -> bool {
        !self.goes_by_steps() && (self.temperature == 0.0 || self.top_k == 1)
    }

    /// Returns whether the host runs the steps one after the other, which other orders, some samplers and the
    /// log-probabilities of the draw need.
    pub fn goes_by_steps(&self) -> bool {
        self.order.is_some()
            || (self.scores_draw && self.n_logprobs.is_some())
            || self.mirostat.is_some()
            || self.top_n_sigma > 0.0
            || self.xtc.is_some_and(|xtc| xtc.probability > 0.0)
            || self
                .dynamic_temperature
                .is_some_and(|dynamic| dynamic.range > 0.0)
    }

    /// Returns the parameters with only these steps, in this order. Steps in the default order need no [`Self::order`]; the missing steps
    /// are turned off.
    #[must_use]
    pub fn with_steps(mut self, steps: &[SamplerStep]) -> Self {
        // Mirostat replaces all steps except the temperature.
        if self.mirostat.is_some() {
            return self;
        }
        let place = |step: &SamplerStep| SamplerStep::DEFAULT_ORDER.iter().position(|other| other == step);
        if !steps.is_sorted_by(|a, b| place(a) < place(b)) {
            self.order = Some(steps.to_vec());
            return self;
        }
        for step in SamplerStep::DEFAULT_ORDER {
            if !steps.contains(&step) {
                self.switch_off(step);
            }
        }
        self.order = None;
        self
    }

    fn switch_off(&mut self, step: SamplerStep) {
        let off = Self::default();
        match step {
            SamplerStep::Penalties => {
                self.repeat_penalty = off.repeat_penalty;
                self.presence_penalty = off.presence_penalty;
                self.frequency_penalty = off.frequency_penalty;
            }
            SamplerStep::Dry => self.dry = None,
            SamplerStep::TopNSigma => self.top_n_sigma = off.top_n_sigma,
            SamplerStep::TopK => self.top_k = off.top_k,
            SamplerStep::Typical => self.typical_p = off.typical_p,
            SamplerStep::TopP => self.top_p = off.top_p,
            SamplerStep::MinP => self.min_p = off.min_p,
            SamplerStep::Xtc => self.xtc = None,
            SamplerStep::Temperature => {
                self.temperature = 1.0;
                self.dynamic_temperature = None;
            }
        }
    }

    /// Returns how many of a sequence's newest tokens the sampler reads; 0 without penalties.
    pub fn history_len(&self) -> usize {
        let penalty_last_n = if self.penalizes_tokens() {
            self.penalty_last_n
        } else {
            0
        };
        penalty_last_n.max(self.dry.as_ref().map_or(0, |dry| dry.last_n)) as usize
    }

    /// Returns whether the repetition, presence or frequency penalty is on.
    pub fn penalizes_tokens(&self) -> bool {
        self.repeat_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// Returns whether the choice uses other logits than the model's, because of a bias, a penalty or DRY.
    pub fn changes_logits(&self) -> bool {
        !self.logit_bias.is_empty() || self.penalizes_tokens() || self.dry.is_some()
    }

    /// Returns whether the likeliest token of the model's own logits is taken and nothing else is reported.
    pub fn is_plain_argmax(&self) -> bool {
        self.is_greedy() && !self.changes_logits() && self.n_logprobs.is_none()
    }

    /// Checks that every number is in its range and every token in the vocabulary.
    ///
    /// # Errors
    /// The first invalid parameter, with its value and range.
    pub fn validate(&self, n_vocab: usize) -> Result<(), SamplingParamsError> {
        let in_range = |name, value: f32, minimum: f32, maximum: f32| {
            if (minimum..=maximum).contains(&value) {
                Ok(())
            } else {
                Err(SamplingParamsError::OutOfRange {
                    name,
                    value,
                    minimum,
                    maximum,
                })
            }
        };
        in_range("temperature", self.temperature, 0.0, f32::MAX)?;
        in_range("top_p", self.top_p, 0.0, 1.0)?;
        in_range("min_p", self.min_p, 0.0, 1.0)?;
        in_range("typical_p", self.typical_p, 0.0, 1.0)?;
        in_range("repeat_penalty", self.repeat_penalty, f32::MIN_POSITIVE, f32::MAX)?;
        in_range("presence_penalty", self.presence_penalty, f32::MIN, f32::MAX)?;
        in_range("frequency_penalty", self.frequency_penalty, f32::MIN, f32::MAX)?;
        in_range("top_n_sigma", self.top_n_sigma, f32::MIN, f32::MAX)?;
        if let Some(xtc) = self.xtc {
            in_range("xtc_probability", xtc.probability, 0.0, 1.0)?;
            in_range("xtc_threshold", xtc.threshold, 0.0, 1.0)?;
        }
        if let Some(dynamic) = self.dynamic_temperature {
            in_range("dynatemp_range", dynamic.range, 0.0, f32::MAX)?;
            in_range("dynatemp_exponent", dynamic.exponent, 0.0, f32::MAX)?;
        }
        if let Some(mirostat) = &self.mirostat {
            in_range("mirostat_tau", mirostat.target, 0.0, f32::MAX)?;
            in_range("mirostat_eta", mirostat.rate, 0.0, f32::MAX)?;
        }
        if let Some(dry) = &self.dry {
            in_range("dry_multiplier", dry.multiplier, 0.0, f32::MAX)?;
            in_range("dry_base", dry.base, 1.0, f32::MAX)?;
        }
        for &(id, bias) in &self.logit_bias {
            if id as usize >= n_vocab {
                return Err(SamplingParamsError::UnknownToken { id, n_vocab });
            }
            if bias.is_nan() || bias == f32::INFINITY {
                return Err(SamplingParamsError::Bias { id, bias });
            }
        }
        match self.n_logprobs {
            Some(n) if n as usize > n_vocab => Err(SamplingParamsError::TooManyLogprobs {
                asked: n as usize,
                n_vocab,
            }),
            _ => Ok(()),
        }
    }
}

/// The reason why sampling parameters were refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplingParamsError {
    /// A number is outside its range (including NaN).
    #[error("`{name}` is {value}, expected {}", range_text(*minimum, *maximum))]
    OutOfRange {
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: f32,
        /// Smallest value allowed.
        minimum: f32,
        /// Largest value allowed.
        maximum: f32,
    },
    /// A biased token is not in the vocabulary.
    #[error("`logit_bias` names token {id}, but the vocabulary has {n_vocab} tokens")]
    UnknownToken {
        /// The token.
        id: u32,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// A bias is NaN or positive infinity.
    #[error("`logit_bias` of token {id} is {bias}, expected a number or negative infinity")]
    Bias {
        /// The token.
        id: u32,
        /// The bias.
        bias: f32,
    },
    /// More log-probabilities are requested than there are tokens.
    #[error("{asked} log-probabilities were requested, but the vocabulary has {n_vocab} tokens")]
    TooManyLogprobs {
        /// Requested number.
        asked: usize,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
}

impl SamplingParamsError {
    /// Returns the range that a number should have been in, such as `a number from 0 to 1`; `None` for other
    /// errors.
    pub fn expected_range(&self) -> Option<String> {
        match *self {
            Self::OutOfRange { minimum, maximum, .. } => Some(range_text(minimum, maximum)),
            _ => None,
        }
    }
}

/// Describes a range. The ends of the type are omitted, because they are not meaningful bounds.
fn range_text(minimum: f32, maximum: f32) -> String {
    match (minimum, maximum) {
        (f32::MIN, f32::MAX) => "a finite number".to_owned(),
        (f32::MIN_POSITIVE, f32::MAX) => "a number above 0".to_owned(),
        (minimum, f32::MAX) => format!("a number of at least {minimum}"),
        _ => format!("a number from {minimum} to {maximum}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_without_an_end_name_none() {
        for (minimum, maximum, expected) in [
            (0.0, 1.0, "a number from 0 to 1"),
            (0.0, f32::MAX, "a number of at least 0"),
            (f32::MIN_POSITIVE, f32::MAX, "a number above 0"),
            (f32::MIN, f32::MAX, "a finite number"),
        ] {
            assert_eq!(range_text(minimum, maximum), expected);
        }
    }

    #[test]
    fn validate_refuses_what_is_not_a_number() {
        for name in ["temperature", "top_p", "min_p", "repeat_penalty"] {
            let mut params = SamplingParams::default();
            let field = match name {
                "temperature" => &mut params.temperature,
                "top_p" => &mut params.top_p,
                "min_p" => &mut params.min_p,
                _ => &mut params.repeat_penalty,
            };
            *field = f32::NAN;
            let error = params.validate(10).unwrap_err();
            assert!(
                error.to_string().starts_with(&format!("`{name}` is NaN")),
                "{error}"
            );
        }
    }

    #[test]
    fn steps_in_the_usual_order_switch_the_others_off() {
        use SamplerStep::{MinP, Temperature, TopK, TopP};
        let asked = SamplingParams {
            temperature: 0.7,
            top_k: 40,
            top_p: 0.9,
            min_p: 0.1,
            repeat_penalty: 1.3,
            ..Default::default()
        };
        let found = asked.clone().with_steps(&[TopK, MinP]);
        let expected = SamplingParams {
            temperature: 1.0,
            top_k: 40,
            min_p: 0.1,
            ..Default::default()
        };
        assert_eq!(found, expected);
        assert_eq!(asked.clone().with_steps(&SamplerStep::DEFAULT_ORDER), asked);
        // Another order, and a repeated step.
        for steps in [[Temperature, TopP], [TopP, TopP]] {
            let found = asked.clone().with_steps(&steps);
            assert_eq!(found.order.as_deref(), Some(&steps[..]));
            assert_eq!(found.min_p, 0.1);
        }
    }

    #[test]
    fn history_is_needed_only_by_penalties() {
        assert_eq!(SamplingParams::default().history_len(), 0);
        assert_eq!(
            SamplingParams {
                repeat_penalty: 1.1,
                ..Default::default()
            }
            .history_len(),
            64
        );
    }
}
