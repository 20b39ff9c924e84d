//! [`Samplers`] holds the steps of sampling in llama.cpp's notation: a list of names, or letters.

use serde::Deserialize;
use tokenmill_backend::SamplerStep;

use crate::ApiError;

/// Holds sampling steps in llama.cpp's notation.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a list of names, or letters")]
pub(super) enum Samplers {
    Names(Vec<String>),
    Letters(String),
}

/// Most steps of a request: each passes over the vocabulary.
const MAX_STEPS: usize = 32;

impl Samplers {
    /// Lists the steps.
    ///
    /// # Errors
    /// Fails on an unknown step, and on more than [`MAX_STEPS`].
    pub(super) fn steps(&self) -> Result<Vec<SamplerStep>, ApiError> {
        let unknown = |name: &str| {
            let reason = format!(
                "there is no sampler `{}`",
                crate::errors::api_error::shortened(name)
            );
            ApiError::invalid("samplers", reason)
        };
        let n_steps = match self {
            Self::Names(names) => names.len(),
            Self::Letters(letters) => letters.len(),
        };
        if n_steps > MAX_STEPS {
            let reason = format!("{n_steps} steps, at most {MAX_STEPS}");
            return Err(ApiError::invalid("samplers", reason));
        }
        match self {
            Self::Names(names) => names
                .iter()
                .filter(|name| SamplerStep::IDLE.iter().all(|(idle, _)| idle != name))
                .map(|name| SamplerStep::from_name(name).ok_or_else(|| unknown(name)))
                .collect(),
            Self::Letters(letters) => letters
                .chars()
                .filter(|letter| SamplerStep::IDLE.iter().all(|(_, idle)| idle != letter))
                .map(|letter| SamplerStep::from_letter(letter).ok_or_else(|| unknown(&letter.to_string())))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_names_or_letters_and_few() {
        let steps = |json: &str| serde_json::from_str::<Samplers>(json).unwrap().steps();
        assert_eq!(
            steps(r#""kt""#).unwrap(),
            steps(r#"["top_k", "temperature"]"#).unwrap()
        );
        assert!(steps(r#""ia""#).unwrap().is_empty());
        for wrong in [
            r#""?""#,
            r#"["top"]"#,
            &format!("\"{}\"", "t".repeat(MAX_STEPS + 1)),
        ] {
            assert!(steps(wrong).is_err(), "{wrong}");
        }
    }
}
