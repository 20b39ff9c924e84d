//! [`DecisionTemperatures`]: one temperature for each type of question, fitted to questions with known answers.
//!
//! A file next to the model holds them. They divide the logarithms of finished answers, after the temperatures of the model's file.
//! Invariant: a temperature changes no order of options.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use tokenmill_gguf::RegularFile;

use super::{answer::Decision, question::QuestionKind};
use crate::{Error, decide_error::DecideError, model_source::ModelSource};

/// The name of the file in a folder, and what follows the name of a model's file.
const FILE: &str = "decisions.json";

/// Longest file that is read.
const MAX_BYTES: usize = 64 << 10;

/// Range of temperatures that are fitted.
const RANGE: [f64; 2] = [0.05, 20.0];

/// How far from the bounds of the range, as a part of them, a temperature counts as inside.
const MARGIN: f64 = 1e-3;

/// Steps of the search; each makes the range of the logarithm smaller by a third.
const N_STEPS: usize = 60;

/// Bins of the calibration error.
const N_BINS: usize = 10;

/// A temperature for each type of question; 1 changes nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecisionTemperatures {
    /// For yes/no questions.
    pub noul: f64,
    /// For choices.
    pub choice: f64,
    /// For scores.
    pub score: f64,
}

impl Default for DecisionTemperatures {
    fn default() -> Self {
        Self {
            noul: 1.0,
            choice: 1.0,
            score: 1.0,
        }
    }
}

impl DecisionTemperatures {
    /// Returns the temperature of a type of question.
    pub fn of(&self, kind: &QuestionKind) -> f64 {
        match kind {
            QuestionKind::Predicate { .. } => self.noul,
            QuestionKind::Choice(_) => self.choice,
            QuestionKind::Score(_) => self.score,
        }
    }

    /// Sets the temperature of a type of question.
    pub fn set(&mut self, kind: &QuestionKind, temperature: f64) {
        *match kind {
            QuestionKind::Predicate { .. } => &mut self.noul,
            QuestionKind::Choice(_) => &mut self.choice,
            QuestionKind::Score(_) => &mut self.score,
        } = temperature;
    }

    /// Returns the path of the temperatures of a model; `None` for the built-in one.
    pub fn path_of(source: &ModelSource) -> Option<PathBuf> {
        match source {
            ModelSource::Demo => None,
            ModelSource::Folder(folder) => Some(folder.join(FILE)),
            ModelSource::File(path) => {
                let mut name = path.file_name()?.to_owned();
                name.push(".");
                name.push(FILE);
                Some(path.with_file_name(name))
            }
        }
    }

    /// Reads the temperatures next to a model; `None` if there are none.
    ///
    /// # Errors
    /// [`DecideError::TemperatureFile`].
    pub(crate) fn read(source: &ModelSource) -> Result<Option<Self>, Error> {
        let Some(path) = Self::path_of(source).filter(|path| path.exists()) else {
            return Ok(None);
        };
        let fault = |reason: String| DecideError::TemperatureFile {
            path: path.clone(),
            reason,
        };
        let bytes = RegularFile::read(&path, MAX_BYTES).map_err(|error| fault(error.to_string()))?;
        let file: Value = serde_json::from_slice(&bytes).map_err(|error| fault(error.to_string()))?;
        let of = |name: &str| {
            let found = file.get(name).and_then(Value::as_f64);
            found
                .filter(|temperature| *temperature > 0.0 && temperature.is_finite())
                .ok_or_else(|| fault(format!("`{name}` is not a positive number")))
        };
        Ok(Some(Self {
            noul: of("noul")?,
            choice: of("choice")?,
            score: of("score")?,
        }))
    }

    /// Writes them.
    ///
    /// # Errors
    /// [`DecideError::TemperatureFile`].
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let Self { noul, choice, score } = self;
        let text = format!(
            "{:#}\n",
            json!({ "noul": noul, "choice": choice, "score": score })
        );
        fs::write(path, text).map_err(|error| {
            DecideError::TemperatureFile {
                path: path.to_owned(),
                reason: error.to_string(),
            }
            .into()
        })
    }
}

/// Answers to questions of one type with the options that are right.
#[derive(Clone, Debug, Default)]
pub struct KnownAnswers {
    answers: Vec<(Decision, usize)>,
}

impl KnownAnswers {
    /// Returns an empty list.
    pub const fn new() -> Self {
        Self { answers: Vec::new() }
    }

    /// Adds an answer, and the index of the option that is right.
    ///
    /// # Panics
    /// If there is no such option.
    pub fn push(&mut self, answer: Decision, right: usize) {
        assert!(right < answer.probabilities.len(), "option {right} of {answer:?}");
        self.answers.push((answer, right));
    }

    /// Returns the number of answers.
    pub fn len(&self) -> usize {
        self.answers.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    /// Returns the temperature at which the right options are likeliest together, from 0.05 to 20. `None` where it is not between them:
    /// answers that are all right want the lowest, and answers that are no better than guesses the highest.
    pub fn fit(&self) -> Option<f64> {
        let [mut low, mut high] = RANGE.map(f64::ln);
        for _ in 0..N_STEPS {
            let third = (high - low) / 3.0;
            let (left, right) = (low + third, high - third);
            if self.loss(left.exp()) <= self.loss(right.exp()) {
                high = right;
            } else {
                low = left;
            }
        }
        let found = f64::midpoint(low, high).exp();
        // A search without a least value inside ends at a bound.
        let [least, most] = RANGE;
        (found > least * (1.0 + MARGIN) && found < most / (1.0 + MARGIN)).then_some(found)
    }

    /// Returns the mean of the negative logarithms of the right options' probabilities.
    fn loss(&self, temperature: f64) -> f64 {
        let losses = self.answers.iter().map(|(answer, right)| {
            let tempered = answer.tempered(temperature);
            -tempered.probabilities[*right].max(f64::MIN_POSITIVE).ln()
        });
        losses.sum::<f64>() / self.answers.len().max(1) as f64
    }

    /// Returns the expected calibration error: how far the probability of the likeliest option is from the share of answers in which
    /// it is right, in ten bins of equal width, weighed by the answers in each.
    ///
    /// Source: "On Calibration of Modern Neural Networks", Guo et al. 2017, equation 5.
    pub fn calibration_error(&self, temperature: f64) -> f64 {
        let mut bins = [[0.0; 2]; N_BINS];
        for (answer, right) in &self.answers {
            let tempered = answer.tempered(temperature);
            let likeliest = tempered.likeliest();
            let top = tempered.probabilities[likeliest];
            let bin = &mut bins[((top * N_BINS as f64) as usize).min(N_BINS - 1)];
            bin[0] += top;
            bin[1] += f64::from(u8::from(likeliest == *right));
        }
        let gaps = bins.iter().map(|[tops, rights]| (tops - rights).abs());
        gaps.sum::<f64>() / self.answers.len().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(yes: f64) -> Decision {
        Decision {
            probabilities: vec![yes, 1.0 - yes],
            label_mass: 1.0,
        }
    }

    #[test]
    fn an_overconfident_model_is_cooled_to_its_share_of_right_answers() {
        let mut known = KnownAnswers::default();
        for idx in 0..100 {
            known.push(answer(0.99), usize::from(idx >= 80));
        }
        let before = known.calibration_error(1.0);
        assert!((before - 0.19).abs() < 1e-9, "{before}");
        let temperature = known.fit().unwrap();
        // The logit of 0.99 becomes that of 0.8.
        let expected = (99f64).ln() / 4f64.ln();
        assert!(
            (temperature - expected).abs() < 1e-3,
            "{temperature}, expected {expected}"
        );
        let after = known.calibration_error(temperature);
        assert!(after < 1e-3, "{after}");
    }

    #[test]
    fn certain_answers_have_finite_losses() {
        let mut known = KnownAnswers::default();
        known.push(answer(1.0), 1);
        known.push(answer(1.0), 0);
        for temperature in RANGE {
            assert!(known.loss(temperature).is_finite(), "at {temperature}");
        }
    }

    #[test]
    fn answers_without_a_best_temperature_are_not_fitted() {
        let check = |answers: &[(f64, usize)]| {
            let mut known = KnownAnswers::default();
            for &(yes, right) in answers {
                known.push(answer(yes), right);
            }
            assert_eq!(known.fit(), None, "{answers:?}");
        };
        check(&[]);
        check(&[(0.9, 0)]);
        check(&[(0.9, 0), (0.2, 1), (0.6, 0)]);
        check(&[(0.9, 1), (0.2, 0)]);
        // As often right as wrong.
        check(&[(0.9, 0), (0.9, 1)]);
        check(&[(0.5, 0), (0.5, 0), (0.5, 1)]);
    }

    #[test]
    fn the_path_follows_the_model() {
        let path = |source| DecisionTemperatures::path_of(&source);
        assert_eq!(path(ModelSource::Demo), None);
        assert_eq!(
            path(ModelSource::File("a/b.gguf".into())),
            Some("a/b.gguf.decisions.json".into())
        );
        assert_eq!(
            path(ModelSource::Folder("a/b".into())),
            Some("a/b/decisions.json".into())
        );
    }
}
