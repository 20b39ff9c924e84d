//! The order of sampling steps, and the samplers XTC, dynamic temperature and mirostat, as llama.cpp and KoboldCpp name them.
//!
//! Invariant: values that sample alike compare equal, so equality ignores mirostat's progress in a sequence.

use std::{
    fmt,
    sync::{Mutex, PoisonError},
};

/// A step between the logit bias and the draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamplerStep {
    /// Applies the repetition, presence and frequency penalties.
    Penalties,
    /// Applies DRY ("don't repeat yourself").
    Dry,
    /// Keeps tokens whose logits are near the highest.
    TopNSigma,
    /// Keeps the k likeliest tokens.
    TopK,
    /// Keeps the tokens whose surprise is nearest to the entropy.
    Typical,
    /// Keeps the likeliest tokens up to a cumulative probability.
    TopP,
    /// Keeps tokens by their probability relative to the likeliest.
    MinP,
    /// Removes the likeliest tokens at random.
    Xtc,
    /// Divides logits by the temperature.
    Temperature,
}

/// Describes a step as llama.cpp does.
#[derive(Clone, Copy)]
struct Described {
    step: SamplerStep,
    letter: char,
    name: &'static str,
    /// Further names, without `_` and `-`.
    others: &'static [&'static str],
}

const fn described(
    step: SamplerStep,
    letter: char,
    name: &'static str,
    others: &'static [&'static str],
) -> Described {
    Described {
        step,
        letter,
        name,
        others,
    }
}

/// Describes the steps in the order of [`SamplerStep`], which is llama.cpp's default order.
///
/// Source: llama.cpp, `common/sampling.cpp`.
const STEPS: [Described; 9] = [
    described(SamplerStep::Penalties, 'e', "penalties", &[]),
    described(SamplerStep::Dry, 'd', "dry", &[]),
    described(SamplerStep::TopNSigma, 's', "top_n_sigma", &[]),
    described(SamplerStep::TopK, 'k', "top_k", &[]),
    described(
        SamplerStep::Typical,
        'y',
        "typ_p",
        &["typ", "typical", "typicalp"],
    ),
    described(SamplerStep::TopP, 'p', "top_p", &["nucleus"]),
    described(SamplerStep::MinP, 'm', "min_p", &[]),
    described(SamplerStep::Xtc, 'x', "xtc", &[]),
    described(SamplerStep::Temperature, 't', "temperature", &["temp"]),
];

impl SamplerStep {
    /// Lists the steps in llama.cpp's default order.
    pub const DEFAULT_ORDER: [Self; STEPS.len()] = {
        let mut order = [Self::Penalties; STEPS.len()];
        let mut at = 0;
        while at < STEPS.len() {
            order[at] = STEPS[at].step;
            at += 1;
        }
        order
    };

    /// Lists the names and letters of llama.cpp's samplers that change nothing here: the one of `/infill`, which prefers endings, and one
    /// that is off.
    pub const IDLE: [(&'static str, char); 2] = [("infill", 'i'), ("adaptive_p", 'a')];

    /// Finds a step by llama.cpp's name for it, in any spelling that llama.cpp accepts.
    pub fn from_name(name: &str) -> Option<Self> {
        let plain = |name: &str| -> String {
            let signs = name.chars().filter(|sign| !matches!(sign, '_' | '-'));
            signs.map(|sign| sign.to_ascii_lowercase()).collect()
        };
        let wanted = plain(name);
        let found = STEPS
            .iter()
            .find(|row| plain(row.name) == wanted || row.others.contains(&wanted.as_str()));
        found.map(|row| row.step)
    }

    /// Finds a step by llama.cpp's letter for it.
    pub fn from_letter(letter: char) -> Option<Self> {
        let found = STEPS.iter().find(|row| row.letter == letter);
        found.map(|row| row.step)
    }

    /// Returns llama.cpp's name of the step.
    pub fn name(self) -> &'static str {
        self.described().name
    }

    /// Returns llama.cpp's letter of the step.
    pub fn letter(self) -> char {
        self.described().letter
    }

    fn described(self) -> Described {
        STEPS[self as usize]
    }
}

/// Removes, at random, all tokens above a probability threshold except the least likely of them ("exclude top choices").
///
/// Source: the XTC sampler of p-e-w (oobabooga/text-generation-webui); llama.cpp, `src/llama-sampler.cpp`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xtc {
    /// Probability that tokens are removed; 0 turns XTC off.
    pub probability: f32,
    /// Lowest probability of a token that XTC may remove; above 0.5 XTC does nothing.
    pub threshold: f32,
}

/// Returns XTC turned off, with llama.cpp's threshold.
impl Default for Xtc {
    fn default() -> Self {
        Self {
            probability: 0.0,
            threshold: 0.1,
        }
    }
}

/// Varies the temperature between `temperature - range` and `temperature + range`; it rises with the entropy of the tokens.
///
/// Source: the dynamic temperature of kalomaze (KoboldCpp); llama.cpp, `src/llama-sampler.cpp`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DynamicTemperature {
    /// Distance to either side of the temperature; 0 turns it off.
    pub range: f32,
    /// Exponent of the normalized entropy.
    pub exponent: f32,
}

/// Returns the dynamic temperature turned off, with llama.cpp's exponent.
impl Default for DynamicTemperature {
    fn default() -> Self {
        Self {
            range: 0.0,
            exponent: 1.0,
        }
    }
}

/// Keeps the surprise of tokens near a target: it removes tokens above a bound, which it moves after each drawn token. Mirostat replaces
/// the penalties and the other filters, as in llama.cpp, but not the temperature.
///
/// Source: "Mirostat: A Neural Text Decoding Algorithm that Directly Controls Perplexity", Basu et al. 2020; llama.cpp,
/// `src/llama-sampler.cpp`.
#[derive(Debug)]
pub struct Mirostat {
    /// Version of the algorithm.
    pub version: MirostatVersion,
    /// Target surprise, in bits (tau).
    pub target: f32,
    /// Learning rate of the bound (eta).
    pub rate: f32,
    progress: Progress,
}

/// Selects a version of mirostat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirostatVersion {
    /// Turns the bound into a top-k, by an estimate of how steeply probabilities fall.
    One = 1,
    /// Bounds the surprise of each token.
    Two = 2,
}

impl MirostatVersion {
    /// Finds a version by its number.
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::One, Self::Two]
            .into_iter()
            .find(|version| version.number() == number)
    }

    /// Returns the version's number.
    pub fn number(self) -> u8 {
        self as u8
    }
}

impl Mirostat {
    /// llama.cpp's target surprise, in bits.
    pub const DEFAULT_TARGET: f32 = 5.0;
    /// llama.cpp's learning rate.
    pub const DEFAULT_RATE: f32 = 0.1;

    /// Creates mirostat for a new sequence.
    pub fn new(version: MirostatVersion, target: f32, rate: f32) -> Self {
        Self {
            version,
            target,
            rate,
            progress: Progress::default(),
        }
    }

    /// Returns the bound on the surprise of the token at a position, in bits.
    pub(crate) fn bound(&self, position: u32) -> f32 {
        let bounds = self.progress.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = bounds.iter().rev().find(|(at, _)| *at <= position);
        known.map_or(2.0 * self.target, |&(_, bound)| bound)
    }

    /// Moves the bound after a token of this surprise, in bits. It drops the bounds of later positions, which belonged to rejected drafts.
    pub(crate) fn observe(&self, position: u32, surprise: f32) {
        let bound = self.bound(position) - self.rate * (surprise - self.target);
        let mut bounds = self.progress.0.lock().unwrap_or_else(PoisonError::into_inner);
        bounds.retain(|(at, _)| *at <= position);
        bounds.push((position + 1, bound));
    }
}

/// Clones the parameters for another sequence, without the progress.
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

/// The bounds of a sequence, each with the position of its token.
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
        for (idx, step) in SamplerStep::DEFAULT_ORDER.into_iter().enumerate() {
            assert_eq!(
                (step as usize, STEPS[idx].step),
                (idx, step),
                "the table is in order"
            );
        }
        assert_eq!(
            SamplerStep::DEFAULT_ORDER.map(SamplerStep::letter),
            ['e', 'd', 's', 'k', 'y', 'p', 'm', 'x', 't']
        );
        for step in SamplerStep::DEFAULT_ORDER {
            assert_eq!(SamplerStep::from_letter(step.letter()), Some(step));
        }
        assert_eq!(SamplerStep::from_letter('?'), None);
        for name in ["typ", "typical", "typ-p", "typical_p"] {
            assert_eq!(SamplerStep::from_name(name), Some(SamplerStep::Typical));
        }
        let numbers = [0, 1, 2, 3].map(MirostatVersion::from_number);
        assert_eq!(
            numbers,
            [None, Some(MirostatVersion::One), Some(MirostatVersion::Two), None]
        );
    }

    #[test]
    fn bounds_follow_the_tokens_and_guesses_are_forgotten() {
        let mirostat = Mirostat::new(MirostatVersion::Two, 3.0, 0.5);
        assert_eq!(mirostat.bound(7), 6.0);
        mirostat.observe(7, 5.0);
        assert_eq!((mirostat.bound(7), mirostat.bound(8)), (6.0, 5.0));
        mirostat.observe(8, 3.0);
        assert_eq!(mirostat.bound(9), 5.0);
        // The token at 7 is drawn again, as after a rejected draft.
        mirostat.observe(7, 3.0);
        assert_eq!((mirostat.bound(8), mirostat.bound(9)), (6.0, 6.0));
        let copy = mirostat.clone();
        assert_eq!((copy.bound(9), copy == mirostat), (6.0, true));
        mirostat.observe(8, 4.0);
        assert_eq!((copy.bound(9), mirostat.bound(9)), (6.0, 5.5));
    }
}
