//! [`choose`]: chooses the experts of a row, by the formula of [`Router`].
//!
//! Invariant: a row's choices depend only on its own logits, best first.

use tokenmill_backend::{ExpertScore, GroupMeasure, MIN_SCORE_SUM, Router};

/// An expert that a row uses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The expert.
    pub expert: usize,
    /// The weight of its output.
    pub weight: f32,
}

/// Chooses the experts of one row, or computes the weights of given ones.
pub(crate) fn choose(router: &Router<Vec<f32>>, logits: &[f32], given: Option<&[u32]>) -> Vec<Choice> {
    let scores: Vec<f32> = match router.score {
        ExpertScore::Sigmoid => logits.iter().map(|&x| sigmoid(x)).collect(),
        ExpertScore::Softmax => {
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f32 = logits.iter().map(|x| (x - max).exp()).sum();
            logits.iter().map(|x| (x - max).exp() / sum).collect()
        }
    };
    let mut ranks: Vec<f32> = scores.clone();
    if let Some(bias) = &router.choice_bias {
        ranks.iter_mut().zip(bias).for_each(|(rank, bias)| *rank += bias);
    }
    let mut candidates: Vec<usize> = (0..router.n_experts).collect();
    if let Some(groups) = router.groups {
        let group_len = router.n_experts / groups.n_groups;
        let measures: Vec<f32> = (ranks.chunks_exact(group_len))
            .map(|ranks| {
                let best = best_of(0..group_len, ranks, 2);
                match (groups.measure, best[..].len()) {
                    (GroupMeasure::Best, _) | (_, 1) => ranks[best[0]],
                    (GroupMeasure::TwoBest, _) => ranks[best[0]] + ranks[best[1]],
                }
            })
            .collect();
        let chosen = best_of(0..groups.n_groups, &measures, groups.n_used);
        candidates.retain(|expert| chosen.contains(&(expert / group_len)));
    }
    let chosen = match given {
        Some(given) => given.iter().map(|&expert| expert as usize).collect(),
        None => best_of(candidates.into_iter(), &ranks, router.n_used),
    };
    let sum: f32 = chosen.iter().map(|&expert| scores[expert]).sum();
    let divisor = if router.is_normalized {
        sum + MIN_SCORE_SUM
    } else {
        1.0
    };
    (chosen.into_iter())
        .map(|expert| {
            let own_scale = router.expert_scales.as_ref().map_or(1.0, |scales| scales[expert]);
            let weight = router.scale * own_scale * (scores[expert] / divisor);
            Choice { expert, weight }
        })
        .collect()
}

/// Returns the indices of the `n` largest values, largest first, the first among equals.
fn best_of(candidates: impl Iterator<Item = usize>, values: &[f32], n: usize) -> Vec<usize> {
    let mut sorted: Vec<usize> = candidates.collect();
    sorted.sort_by(|&a, &b| values[b].total_cmp(&values[a]).then(a.cmp(&b)));
    sorted.truncate(n);
    sorted
}

/// `1 / (1 + exp(-x))`.
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
