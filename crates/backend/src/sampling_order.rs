//! [`SamplerStep`], [`Xtc`], [`DynamicTemperature`] and [`Mirostat`]: what of sampling users of llama.cpp and KoboldCpp can name beyond the
//! usual filters, and in which order.
//!
//! Separate from the parameters, of which these are parts. Invariant: two values that sample alike are equal; how far mirostat has come
//! with a sequence is no part of that.

use std::{
    fmt,
    sync::{Mutex, PoisonError},
};

/// A step of sampling, between the bias of logits and the draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamplerStep {
    /// The repetition, presence and frequency penalties.
    Penalties,
    /// DRY.
    Dry,
    /// The logits that are near to the highest.
    TopNSigma,
    /// The likeliest tokens, by their number.
    TopK,
    /// The tokens nearest to the expected surprise.
    Typical,
    /// The likeliest tokens, by their probability.
    TopP,
    /// The tokens that are likely enough compared with the likeliest.
    MinP,
    /// Not the likeliest tokens.
    Xtc,
    /// The temperature.
    Temperature,
}

impl SamplerStep {
    /// The order where nothing is said, which is llama.cpp's.
    pub const DEFAULT_ORDER: [Self; 9] = [
        Self::Penalties,
        Self::Dry,
        Self::TopNSigma,
        Self::TopK,
        Self::Typical,
        Self::TopP,
        Self::MinP,
        Self::Xtc,
        Self::Temperature,
    ];

    /// The step that llama.cpp knows by this name, in any of the ways in which it is written.
    ///
    /// Source: llama.cpp, `common/sampling.cpp`, for the names.
    pub fn from_name(name: &str) -> Option<Self> {
        let name: String = name
            .chars()
            .filter(|sign| !matches!(sign, '_' | '-'))
            .map(|sign| sign.to_ascii_lowercase())
            .collect();
        Some(match name.as_str() {
            "penalties" => Self::Penalties,
            "dry" => Self::Dry,
            "topnsigma" => Self::TopNSigma,
            "topk" => Self::TopK,
            "typp" | "typ" | "typical" | "typicalp" => Self::Typical,
            "topp" | "nucleus" => Self::TopP,
            "minp" => Self::MinP,
            "xtc" => Self::Xtc,
            "temperature" | "temp" => Self::Temperature,
            _ => return None,
        })
    }

    /// The step that llama.cpp knows by this letter.
    pub fn from_letter(letter: char) -> Option<Self> {
        Some(match letter {
            'e' => Self::Penalties,
            'd' => Self::Dry,
            's' => Self::TopNSigma,
            'k' => Self::TopK,
            'y' => Self::Typical,
            'p' => Self::TopP,
            'm' => Self::MinP,
            'x' => Self::Xtc,
            't' => Self::Temperature,
            _ => return None,
        })
    }

    /// llama.cpp's name of it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Penalties => "penalties",
            Self::Dry => "dry",
            Self::TopNSigma => "top_n_sigma",
            Self::TopK => "top_k",
            Self::Typical => "typ_p",
            Self::TopP => "top_p",
            Self::MinP => "min_p",
            Self::Xtc => "xtc",
            Self::Temperature => "temperature",
        }
    }
}

/// "Exclude top choices": of the tokens that are likely enough, all but the least likely go, by chance.
///
/// Source: the XTC sampler of p-e-w (oobabooga/text-generation-webui); llama.cpp, `src/llama-sampler.cpp`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xtc {
    /// How often they go; 0 turns it off.
    pub probability: f32,
    /// From which probability on a token is likely enough; above 0.5 nothing happens.
    pub threshold: f32,
}

/// A temperature between `temperature - range` and `temperature + range`, the higher the less certain the model is.
///
/// Source: the dynamic temperature of kalomaze (KoboldCpp); llama.cpp, `src/llama-sampler.cpp`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DynamicTemperature {
    /// How far it goes to either side; 0 turns it off.
    pub range: f32,
    /// Power of the entropy's share of what it can be at most.
    pub exponent: f32,
}

/// Keeps the surprise of the tokens near to a target, by cutting off those that surprise more than a bound which moves with what is drawn.
/// Penalties and the other filters are then left out, as in llama.cpp; the temperature is not.
///
/// Source: "Mirostat: A Neural Text Decoding Algorithm that Directly Controls Perplexity", Basu et al. 2020; llama.cpp,
/// `src/llama-sampler.cpp`.
#[derive(Debug)]
pub struct Mirostat {
    /// Which of its two versions.
    pub version: MirostatVersion,
    /// The surprise that is aimed at, in bits (tau).
    pub target: f32,
    /// How quickly the bound follows (eta).
    pub rate: f32,
    progress: Progress,
}

/// A version of mirostat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirostatVersion {
    /// The bound becomes a number of likeliest tokens, by an estimate of how steeply probabilities fall.
    One,
    /// The bound is one of a token's surprise.
    Two,
}

impl Mirostat {
    /// Mirostat of a sequence that has not begun.
    pub fn new(version: MirostatVersion, target: f32, rate: f32) -> Self {
        Self {
            version,
            target,
            rate,
            progress: Progress::default(),
        }
    }

    /// The bound of surprise for the token at a position, in bits.
    pub(crate) fn bound(&self, position: u32) -> f32 {
        let bounds = self.progress.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = bounds.iter().rev().find(|(at, _)| *at <= position);
        known.map_or(2.0 * self.target, |&(_, bound)| bound)
    }

    /// Moves the bound behind a token of this surprise, in bits. What was known of later positions is forgotten: they were guesses.
    pub(crate) fn observe(&self, position: u32, surprise: f32) {
        let bound = self.bound(position) - self.rate * (surprise - self.target);
        let mut bounds = self.progress.0.lock().unwrap_or_else(PoisonError::into_inner);
        bounds.retain(|(at, _)| *at <= position);
        bounds.push((position + 1, bound));
    }
}

/// A copy is for another sequence, which has not begun.
impl Clone for Mirostat {
    fn clone(&self) -> Self {
        Self::new(self.version, self.target, self.rate)
    }
}

impl PartialEq for Mirostat {
    fn eq(&self, other: &Self) -> bool {
        (self.version, self.target, self.rate) == (other.version, other.target, other.rate)
    }
}

/// The bounds that a sequence has had, by the position of the token that each was for.
#[derive(Default)]
struct Progress(Mutex<Vec<(u32, f32)>>);

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_known_by_all_their_names() {
        for step in SamplerStep::DEFAULT_ORDER {
            assert_eq!(SamplerStep::from_name(step.name()), Some(step));
        }
        for name in ["top-k", "topk", "TOP_K"] {
            assert_eq!(SamplerStep::from_name(name), Some(SamplerStep::TopK));
        }
        assert_eq!(SamplerStep::from_name("infill"), None);
        let letters: Vec<_> = "edskypmxt".chars().filter_map(SamplerStep::from_letter).collect();
        assert_eq!(letters, SamplerStep::DEFAULT_ORDER);
        assert_eq!(SamplerStep::from_letter('?'), None);
    }

    #[test]
    fn bounds_follow_the_tokens_and_guesses_are_forgotten() {
        let mirostat = Mirostat::new(MirostatVersion::Two, 3.0, 0.5);
        assert_eq!(mirostat.bound(7), 6.0);
        mirostat.observe(7, 5.0);
        assert_eq!((mirostat.bound(7), mirostat.bound(8)), (6.0, 5.0));
        mirostat.observe(8, 3.0);
        assert_eq!(mirostat.bound(9), 5.0);
        // The token at 7 is drawn again, as behind a draft that was not taken.
        mirostat.observe(7, 3.0);
        assert_eq!((mirostat.bound(8), mirostat.bound(9)), (6.0, 6.0));
        let copy = mirostat.clone();
        assert_eq!((copy.bound(9), copy == mirostat), (6.0, true));
        mirostat.observe(8, 4.0);
        assert_eq!((copy.bound(9), mirostat.bound(9)), (6.0, 5.5));
    }
}
