//! [`SamplingKey`]: everything besides the prompt that determines an answer.
//!
//! One request may draft its answer from another's only if their sampling keys are equal. Invariant: two answers to
//! one prompt with one sampling key are the same text, except for where they end and for rounding that depends on the
//! other rows of a step.

use std::sync::Arc;

use tokenmill_backend::{Dry, SamplingParams};

use crate::params::GenerateParams;

/// Identifies how the tokens of an answer are chosen, if the choice is deterministic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SamplingKey(Arc<[u8]>);

impl SamplingKey {
    /// Returns the sampling key of a request; `None` if its tokens are drawn randomly or given, or if its
    /// constraint has no name.
    pub(crate) fn of(params: &GenerateParams) -> Option<Self> {
        // The pattern lists every field, so that a new one cannot be overlooked.
        let SamplingParams {
            // No effect on the likeliest token.
            temperature: _,
            top_k: _,
            top_p: _,
            min_p: _,
            typical_p: _,
            seed: _,
            // These fields affect only drawn tokens.
            top_n_sigma: _,
            xtc: _,
            dynamic_temperature: _,
            mirostat: _,
            order: _,
            n_logprobs: _,
            scores_draw: _,
            repeat_penalty,
            presence_penalty,
            frequency_penalty,
            penalty_last_n,
            dry,
            logit_bias,
        } = &params.sampling;
        if !params.sampling.is_greedy() || params.follows.is_some() {
            return None;
        }
        let mut bytes = Vec::new();
        // Each part begins with its number, and a list with its length, so that different sampling keys never have
        // the same bytes.
        if params.sampling.penalizes_tokens() {
            bytes.push(1);
            for penalty in [repeat_penalty, presence_penalty, frequency_penalty] {
                bytes.extend(penalty.to_le_bytes());
            }
            bytes.extend(penalty_last_n.to_le_bytes());
        }
        if let Some(Dry {
            multiplier,
            base,
            allowed_length,
            last_n,
            breakers,
        }) = dry
        {
            bytes.push(2);
            bytes.extend(
                [multiplier, base]
                    .into_iter()
                    .flat_map(|number| number.to_le_bytes()),
            );
            bytes.extend(
                [allowed_length, last_n]
                    .into_iter()
                    .flat_map(|number| number.to_le_bytes()),
            );
            extend_with_ids(&mut bytes, breakers);
        }
        if !logit_bias.is_empty() {
            bytes.push(3);
            bytes.extend((logit_bias.len() as u64).to_le_bytes());
            for (id, bias) in logit_bias {
                bytes.extend(id.to_le_bytes());
                bytes.extend(bias.to_le_bytes());
            }
        }
        if params.min_tokens > 0 {
            bytes.push(4);
            bytes.extend((params.min_tokens as u64).to_le_bytes());
            extend_with_ids(&mut bytes, &params.stop_tokens);
        }
        if let Some(constraint) = &params.constraint {
            bytes.push(5);
            bytes.extend_from_slice(constraint.name()?);
        }
        Some(Self(bytes.into()))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

fn extend_with_ids(bytes: &mut Vec<u8>, ids: &[u32]) {
    bytes.extend((ids.len() as u64).to_le_bytes());
    bytes.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::masks::constraint::ConstraintSource;

    fn of(change: impl Fn(&mut GenerateParams)) -> Option<SamplingKey> {
        let mut params = GenerateParams::default();
        change(&mut params);
        SamplingKey::of(&params)
    }

    #[test]
    fn what_decides_the_choice_makes_another_manner() {
        let dry = |params: &mut GenerateParams, last_n| {
            params.sampling.dry = Some(Dry {
                multiplier: 0.8,
                base: 1.75,
                allowed_length: 2,
                last_n,
                breakers: vec![1],
            });
        };
        let begin =
            || -> Box<dyn crate::masks::constraint::TokenConstraint> { unreachable!("it is not begun") };
        let keys = [
            of(|_| {}),
            of(|params| params.sampling.repeat_penalty = 1.1),
            of(|params| params.sampling.presence_penalty = 0.1),
            of(|params| params.sampling.frequency_penalty = 0.1),
            of(|params| {
                params.sampling.frequency_penalty = 0.1;
                params.sampling.penalty_last_n = 8;
            }),
            of(|params| dry(params, 64)),
            of(|params| dry(params, 65)),
            of(|params| params.sampling.logit_bias = vec![(1, 0.5)]),
            of(|params| params.sampling.logit_bias = vec![(1, 0.25)]),
            of(|params| params.sampling.logit_bias = vec![(2, 0.5)]),
            of(|params| params.min_tokens = 3),
            of(|params| {
                params.min_tokens = 3;
                params.stop_tokens = vec![7];
            }),
            of(|params| params.constraint = Some(ConstraintSource::new(begin).named(b"a".to_vec()))),
            of(|params| params.constraint = Some(ConstraintSource::new(begin).named(b"b".to_vec()))),
        ];
        for (at, key) in keys.iter().enumerate() {
            assert!(key.is_some() && !keys[..at].contains(key), "{at}");
        }
        assert_eq!(
            of(|params| params.constraint = Some(ConstraintSource::new(begin))),
            None
        );
    }

    #[test]
    fn what_decides_nothing_makes_none() {
        let plain = of(|_| {});
        let same = |change: &dyn Fn(&mut GenerateParams)| assert_eq!(of(change), plain);
        same(&|params| params.sampling.seed = 5);
        same(&|params| params.sampling.top_p = 0.5);
        same(&|params| params.sampling.n_logprobs = Some(3));
        same(&|params| params.sampling.penalty_last_n = 5);
        same(&|params| params.max_tokens = Some(5));
        same(&|params| params.stop_tokens = vec![7]);
        same(&|params| {
            params.sampling.temperature = 0.8;
            params.sampling.top_k = 1;
        });
        assert_eq!(
            of(|params| params.sampling.temperature = 0.8),
            None,
            "it is drawn"
        );
        assert_eq!(
            of(|params| params.follows = Some(Arc::new([5]))),
            None,
            "it is given"
        );
    }
}
