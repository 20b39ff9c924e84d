//! Partial selection of candidates: the best `k`, or the best until a weight is reached, without a full sort.
//!
//! Filters and log-probabilities share it. Invariant: the order is total (the lower id first among equals),
//! so the outcome does not depend on the algorithm.

use std::cmp::Ordering;

use super::allowed::Allowed;

/// A token that may still be picked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) id: u32,
    pub(super) logit: f32,
}

impl Candidate {
    /// Orders the likelier first, then the lower id.
    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "the signature that selection and sorting call"
    )]
    pub(super) fn by_likelihood(a: &Self, b: &Self) -> Ordering {
        b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
    }
}

/// Writes the `k` likeliest allowed tokens to `best`, likeliest first.
pub(super) fn best_k(row: Allowed<'_>, k: usize, best: &mut Vec<Candidate>) {
    best.clear();
    if k == 0 {
        return;
    }
    // Tokens above the threshold collect until there are twice as many as wanted; then the better half stays and
    // raises the threshold. Ids ascend, so a later token that equals the threshold cannot displace an earlier one.
    let capacity = (2 * k).max(k + 64);
    let mut threshold = f32::NEG_INFINITY;
    row.for_each(|candidate| {
        if candidate.logit > threshold || best.len() < k {
            best.push(candidate);
            if best.len() == capacity {
                best.select_nth_unstable_by(k - 1, Candidate::by_likelihood);
                threshold = best[k - 1].logit;
                best.truncate(k);
            }
        }
    });
    if best.len() > k {
        best.select_nth_unstable_by(k - 1, Candidate::by_likelihood);
        best.truncate(k);
    }
    best.sort_unstable_by(Candidate::by_likelihood);
}

/// Keeps the first candidates in `order` until their weights reach `target`, including the one that reaches
/// it; at least one stays.
pub(super) fn keep_nucleus(
    candidates: &mut Vec<Candidate>,
    target: f64,
    weight: impl Fn(&Candidate) -> f64,
    order: impl Fn(&Candidate, &Candidate) -> Ordering,
) {
    let mut sum = 0.0;
    let mut n_sorted = 0;
    let mut n_next = 64;
    while n_sorted < candidates.len() {
        let end = (n_sorted + n_next).min(candidates.len());
        if end < candidates.len() {
            candidates[n_sorted..].select_nth_unstable_by(end - n_sorted, &order);
        }
        candidates[n_sorted..end].sort_unstable_by(&order);
        for index in n_sorted..end {
            sum += weight(&candidates[index]);
            if sum >= target {
                candidates.truncate(index + 1);
                return;
            }
        }
        n_sorted = end;
        n_next *= 4;
    }
}
