//! [`GpuSteps`]: which steps run on the GPU when both sides hold the weights.
//!
//! A loaded model reports it, with and without CUDA. Invariant: a written value reads back unchanged.

#[cfg(any(feature = "cuda", test))]
use serde_json::{Value, json};
#[cfg(feature = "cuda")]
use tokenmill_placed::StepThresholds;

/// From how many tokens of a step on the GPU computes the feed-forward networks that both sides have; `None` where it never does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuSteps {
    /// Sequences of a step in which each has one token.
    pub decode: Option<usize>,
    /// Tokens of a step with prompts.
    pub prompts: Option<usize>,
}

impl GpuSteps {
    /// The same of all steps.
    pub fn of_all(n_tokens: usize) -> Self {
        Self {
            decode: Some(n_tokens),
            prompts: Some(n_tokens),
        }
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn thresholds(self) -> StepThresholds {
        StepThresholds {
            decode: self.decode.unwrap_or(usize::MAX),
            other: self.prompts.unwrap_or(usize::MAX),
        }
    }

    /// Writes the thresholds in the form that [`Self::from_json`] reads.
    #[cfg(any(feature = "cuda", test))]
    pub(crate) fn to_json(self) -> Value {
        json!({ "decode": self.decode, "prompts": self.prompts })
    }

    /// Reads stored thresholds; `None` if the value has another form.
    #[cfg(any(feature = "cuda", test))]
    pub(crate) fn from_json(values: &Value) -> Option<Self> {
        let steps = |name: &str| match values.get(name)? {
            Value::Null => Some(None),
            number => {
                let number = usize::try_from(number.as_u64()?).ok()?;
                (number > 0).then_some(Some(number))
            }
        };
        Some(Self {
            decode: steps("decode")?,
            prompts: steps("prompts")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_read_as_they_were_written() {
        for (decode, prompts) in [(Some(1), Some(8)), (None, Some(2)), (None, None)] {
            let steps = GpuSteps { decode, prompts };
            assert_eq!(GpuSteps::from_json(&steps.to_json()), Some(steps));
        }
        for wrong in [
            json!({}),
            json!({ "decode": 1 }),
            json!({ "decode": 0, "prompts": 1 }),
            json!({ "decode": "many", "prompts": 1 }),
        ] {
            assert_eq!(GpuSteps::from_json(&wrong), None, "{wrong}");
        }
    }
}
