//! [`Routes`]: the experts of each row of a step, and the rows of each expert.
//!
//! The products only follow the routes. Invariants: a row's choices depend on its own logits only, and the
//! rows of an expert are in ascending order; choices are sorted by expert, so that an expert's rows are
//! adjacent.

use std::{cmp::Ordering, ops::Range};

use tokenmill_backend::{ExpertScore, GroupMeasure, MIN_SCORE_SUM, Router};

use crate::{CpuExecError, Host, pool::Columns, workspace::reserve};

/// The number of rows that one thread routes at a time, so low that the few rows of a decode step stay on the
/// calling thread.
const ROWS_PER_CHUNK: usize = 8;

/// The routes of a step's rows, sorted both ways.
#[derive(Debug, Default)]
pub struct Routes {
    n_rows: usize,
    n_used: usize,
    /// The scores and the values that experts are chosen by, `[n_rows, 2, n_experts]`.
    scores: Vec<f32>,
    /// The choices of each row, best first, `[n_rows, n_used]`.
    experts: Vec<u32>,
    weights: Vec<f32>,
    /// The place of each choice among the choices sorted by expert.
    places: Vec<u32>,
    /// The row of each sorted choice.
    rows: Vec<u32>,
    /// The index of each expert's first sorted choice; an expert's choices end where the next expert's begin.
    starts: Vec<u32>,
}

impl Routes {
    /// Reserves memory for the routes of `max_rows` rows to `n_used` of `n_experts` experts each.
    ///
    /// # Errors
    /// [`CpuExecError::OutOfMemory`].
    pub fn new(max_rows: usize, n_experts: usize, n_used: usize) -> Result<Self, CpuExecError> {
        let mut routes = Self::default();
        let n_choices = max_rows.saturating_mul(n_used);
        reserve(&mut routes.scores, max_rows.saturating_mul(2 * n_experts))?;
        reserve(&mut routes.weights, n_choices)?;
        for list in [&mut routes.experts, &mut routes.places, &mut routes.rows] {
            reserve(list, n_choices)?;
        }
        reserve(&mut routes.starts, n_experts + 1)?;
        Ok(routes)
    }

    /// Returns the number of bytes that [`Self::new`] reserves.
    pub fn room_bytes(max_rows: usize, n_experts: usize, n_used: usize) -> usize {
        let n_choices = max_rows.saturating_mul(n_used);
        (max_rows.saturating_mul(2 * n_experts))
            .saturating_add(n_choices.saturating_mul(4))
            .saturating_add(n_experts + 1)
            .saturating_mul(size_of::<f32>())
    }

    /// Chooses the experts of each row by its logits, `[n_rows, n_experts]`.
    ///
    /// # Panics
    /// If the logits are not a whole number of rows, or there are fewer experts than a row uses.
    pub fn fill(&mut self, host: &Host, router: &Router<&[f32]>, logits: &[f32]) {
        let (n_experts, n_used) = (router.n_experts, router.n_used);
        assert!(n_used <= n_experts, "{n_used} of {n_experts} experts");
        assert_eq!(logits.len() % n_experts, 0, "rows of logits");
        self.n_rows = logits.len() / n_experts;
        self.n_used = n_used;
        let n_choices = self.n_rows * n_used;
        self.scores.resize(self.n_rows * 2 * n_experts, 0.0);
        self.experts.resize(n_choices, 0);
        self.weights.resize(n_choices, 0.0);
        let parts = (
            Columns::new(
                &mut self.scores,
                self.n_rows * 2 * n_experts,
                ROWS_PER_CHUNK * 2 * n_experts,
            ),
            (
                Columns::new(&mut self.experts, n_choices, ROWS_PER_CHUNK * n_used),
                Columns::new(&mut self.weights, n_choices, ROWS_PER_CHUNK * n_used),
            ),
        );
        host.pool()
            .for_each_part(parts, |chunk_idx, (mut scores, (mut experts, mut weights))| {
                let logits = &logits[chunk_idx * ROWS_PER_CHUNK * n_experts..];
                (logits.chunks_exact(n_experts))
                    .zip(scores.row(0).chunks_exact_mut(2 * n_experts))
                    .zip(experts.row(0).chunks_exact_mut(n_used))
                    .zip(weights.row(0).chunks_exact_mut(n_used))
                    .for_each(|(((logits, scores), experts), weights)| {
                        choose(router, logits, scores, experts, weights);
                    });
            });
        self.sort(n_experts);
    }

    /// Counts the rows of each expert and sets the place of each choice.
    fn sort(&mut self, n_experts: usize) {
        self.starts.clear();
        self.starts.resize(n_experts + 1, 0);
        for &expert in &self.experts {
            self.starts[expert as usize + 1] += 1;
        }
        for expert in 0..n_experts {
            self.starts[expert + 1] += self.starts[expert];
        }
        self.places.resize(self.experts.len(), 0);
        self.rows.resize(self.experts.len(), 0);
        for (choice, &expert) in self.experts.iter().enumerate() {
            // An expert's start is the cursor of its choices here and is restored below.
            let next = &mut self.starts[expert as usize];
            self.places[choice] = *next;
            self.rows[*next as usize] = (choice / self.n_used) as u32;
            *next += 1;
        }
        self.starts.rotate_right(1);
        self.starts[0] = 0;
    }

    /// Returns the experts of each row, best first.
    pub(crate) fn experts(&self) -> &[u32] {
        &self.experts
    }

    pub(crate) fn n_rows(&self) -> usize {
        self.n_rows
    }

    pub(crate) fn n_choices(&self) -> usize {
        self.rows.len()
    }

    /// Returns the row of each sorted choice.
    pub(crate) fn rows(&self) -> &[u32] {
        &self.rows
    }

    /// Returns the experts with rows, each with its sorted choices.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
        (self.starts.windows(2).enumerate())
            .map(|(expert, bounds)| (expert, bounds[0] as usize..bounds[1] as usize))
            .filter(|(_, choices)| !choices.is_empty())
    }

    /// Returns the choices of a row, best first: the place of each among the sorted choices, and its weight.
    pub(crate) fn of_row(&self, row_idx: usize) -> impl Iterator<Item = (usize, f32)> + '_ {
        let choices = row_idx * self.n_used..(row_idx + 1) * self.n_used;
        (self.places[choices.clone()].iter().zip(&self.weights[choices]))
            .map(|(&place, &weight)| (place as usize, weight))
    }
}

/// Chooses the experts of one row. `scores`: `[2, n_experts]` of scratch.
fn choose(
    router: &Router<&[f32]>,
    logits: &[f32],
    scores: &mut [f32],
    experts: &mut [u32],
    weights: &mut [f32],
) {
    let (scores, ranks) = scores.split_at_mut(router.n_experts);
    match router.score {
        ExpertScore::Sigmoid => {
            for (score, logit) in scores.iter_mut().zip(logits) {
                *score = 1.0 / (1.0 + (-logit).exp());
            }
        }
        ExpertScore::Softmax => {
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut sum = 0.0;
            for (score, logit) in scores.iter_mut().zip(logits) {
                *score = (logit - max).exp();
                sum += *score;
            }
            for score in &mut *scores {
                *score /= sum;
            }
        }
    }
    ranks.copy_from_slice(scores);
    if let Some(bias) = router.choice_bias {
        ranks.iter_mut().zip(bias).for_each(|(rank, bias)| *rank += bias);
    }
    if let Some(groups) = router.groups {
        let group_len = router.n_experts / groups.n_groups;
        let measure = |group: usize| {
            let ranks = &ranks[group * group_len..][..group_len];
            let mut best = Best::default();
            let first = best.next(ranks.iter().copied()).map_or(0.0, |at| ranks[at]);
            match groups.measure {
                GroupMeasure::Best => first,
                GroupMeasure::TwoBest => first + best.next(ranks.iter().copied()).map_or(0.0, |at| ranks[at]),
            }
        };
        // The groups after the chosen ones in the order of their scores are excluded.
        let mut best = Best::default();
        for _ in 0..groups.n_used {
            best.next((0..groups.n_groups).map(measure));
        }
        let (last, last_rank) = (best.last, best.rank);
        let is_out = |group: usize| is_after(measure(group), group, last_rank, last);
        let mut bits = [0u64; MAX_GROUPS / 64];
        for group in (0..groups.n_groups).filter(|&group| is_out(group)) {
            bits[group / 64] |= 1 << (group % 64);
        }
        for (expert, rank) in ranks.iter_mut().enumerate() {
            let group = expert / group_len;
            if bits[group / 64] >> (group % 64) & 1 == 1 {
                *rank = OUT;
            }
        }
    }
    let mut best = Best::default();
    let mut sum = 0.0;
    for (expert, weight) in experts.iter_mut().zip(&mut *weights) {
        let chosen = best.next(ranks.iter().copied()).unwrap_or(0);
        *expert = chosen as u32;
        *weight = scores[chosen];
        sum += scores[chosen];
    }
    let divisor = if router.is_normalized {
        sum + MIN_SCORE_SUM
    } else {
        1.0
    };
    for (expert, weight) in experts.iter().zip(weights) {
        let own_scale = router
            .expert_scales
            .map_or(1.0, |scales| scales[*expert as usize]);
        *weight = router.scale * own_scale * (*weight / divisor);
    }
}

/// The maximum number of groups; more are refused at load.
pub(crate) const MAX_GROUPS: usize = 1024;

/// The rank of experts that may not be chosen: after every number, and after NaN.
const OUT: f32 = f32::from_bits(0xffff_ffff);

/// An iterator over ranks from the largest to the smallest; equal ranks come in order.
struct Best {
    rank: f32,
    last: usize,
    is_first: bool,
}

impl Default for Best {
    fn default() -> Self {
        Self {
            rank: 0.0,
            last: 0,
            is_first: true,
        }
    }
}

impl Best {
    /// Returns the index of the next rank; `None` after the last.
    fn next(&mut self, ranks: impl Iterator<Item = f32>) -> Option<usize> {
        let mut found: Option<(usize, f32)> = None;
        for (at, rank) in ranks.enumerate() {
            let is_left = self.is_first || is_after(rank, at, self.rank, self.last);
            if is_left && found.is_none_or(|(_, best)| rank.total_cmp(&best) == Ordering::Greater) {
                found = Some((at, rank));
            }
        }
        let (at, rank) = found?;
        *self = Self {
            rank,
            last: at,
            is_first: false,
        };
        Some(at)
    }
}

/// Returns whether a rank comes after another in the order of [`Best`].
fn is_after(rank: f32, at: usize, other: f32, other_at: usize) -> bool {
    match rank.total_cmp(&other) {
        Ordering::Less => true,
        Ordering::Equal => at > other_at,
        Ordering::Greater => false,
    }
}
