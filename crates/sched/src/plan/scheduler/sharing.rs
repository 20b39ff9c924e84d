//! Sharing: how many tokens of a step each sequence gets, and whose pages make room.
//!
//! Part of [`Scheduler`]; only sharing weighs sequences against each other. Invariant: the first in rank gets
//! what it needs; only a sequence of lower rank, or one that is paused, loses its pages.

use std::cmp::Reverse;

use tokenmill_backend::{PAGE_TOKENS, StateSave};

use crate::{
    arena::SeqId,
    draft::budget::DraftBudget,
    pages::group::Group,
    plan::{
        scheduler::{Scheduler, StepBudget},
        sequence::Work,
        step_plan::StepPlan,
    },
};

impl Scheduler {
    /// Returns the number of prefill tokens that the step may have, given the number of decoding rows.
    pub(crate) fn prefill_budget(&self, budget: StepBudget, n_decode: usize) -> usize {
        let left = self.config.max_step_tokens.saturating_sub(n_decode);
        let delays_nobody = n_decode == 0 && self.n_streams_without_mask() == 0;
        if delays_nobody || self.config.limits.is_encoder {
            left
        } else {
            left.min(budget.prefill_beside_decode.max(1))
        }
    }

    /// Divides the step. Every decoding sequence gets one token. Prefill tokens are shared: each sequence in turn
    /// (within a priority) gets half of the rest, so that a short prompt after a long one gets through;
    /// unused tokens go to the first.
    pub(crate) fn share_step(&mut self, budget: StepBudget) {
        self.wants.clear();
        self.wants
            .extend(self.running.iter().map(|&id| self.sequences[id].n_to_plan()));
        self.shares.clone_from(&self.wants);
        let n_decode = self.wants.iter().filter(|&&want| want == 1).count();
        let mut left = self.prefill_budget(budget, n_decode);
        if self.config.limits.is_encoder {
            self.share_whole(left);
            return;
        }
        let mut next = self.next_prefill(0);
        while let Some(idx) = next {
            next = self.next_prefill(idx + 1);
            let is_contended = next.is_some_and(|next| self.priority_at(next) == self.priority_at(idx));
            let share = if is_contended { left.div_ceil(2) } else { left };
            self.shares[idx] = self.wants[idx].min(share);
            left -= self.shares[idx];
        }
        for (share, &want) in self.shares.iter_mut().zip(&self.wants) {
            let extra = left.min(want - *share);
            *share += extra;
            left -= extra;
        }
        self.share_uncut();
    }

    /// Adjusts shares so that no row separates inputs that attend to each other: a row gets all of them if
    /// the step has room, or ends before them. Rows first in rank take room from others, so that they always
    /// continue. A sequence that found no room in the previous step has priority in this one over those that
    /// would take one token in every step.
    fn share_uncut(&mut self) {
        let has_media = |id: &SeqId| !self.sequences[*id].media.is_empty();
        if !self.running.iter().any(has_media) {
            return;
        }
        let waiting = (self.running.iter()).position(|&id| self.sequences[id].waits_for_step);
        let mut kept = 0;
        if let Some(idx) = waiting {
            kept = self.sequences[self.running[idx]].beyond_cut(1);
            self.shares[idx] = self.shares[idx].max(1);
        }
        let mut left = self.config.max_step_tokens.saturating_sub(kept);
        for (idx, (share, &id)) in self.shares.iter_mut().zip(&self.running).enumerate() {
            if waiting == Some(idx) {
                left += kept;
            }
            let sequence = &mut self.sequences[id];
            let whole = sequence.beyond_cut(*share);
            *share = if whole <= left {
                whole
            } else {
                sequence.before_cut((*share).min(left))
            };
            left -= *share;
            sequence.waits_for_step = *share == 0 && sequence.beyond_cut(1) > 1;
        }
    }

    /// Divides the step among sequences that cannot be cut: in rank order, each gets everything or waits.
    fn share_whole(&mut self, mut left: usize) {
        for share in self.shares.iter_mut().filter(|share| **share > 1) {
            if *share <= left {
                left -= *share;
            } else {
                *share = 0;
            }
        }
    }

    fn next_prefill(&self, from: usize) -> Option<usize> {
        (from..self.wants.len()).find(|&idx| self.wants[idx] > 1)
    }

    fn priority_at(&self, running_idx: usize) -> Reverse<i32> {
        self.sequences[self.running[running_idx]].rank.priority
    }

    /// Plans a row for every running sequence, in rank order. If pages run out, later sequences are
    /// preempted, since they have no row yet.
    pub(crate) fn fill_rows(&mut self, mut drafts: DraftBudget, plan: &mut StepPlan) {
        let mut logit_rows_left = self.config.limits.max_logit_rows;
        let mut idx = 0;
        while let Some(&id) = self.running.get(idx) {
            // Each later sequence may need a logit row too.
            let n_after = self.running.len() - idx - 1;
            let sequence = &self.sequences[id];
            let mut want = sequence.cut_row(self.shares[idx]);
            if let Work::Logits { from } = sequence.work {
                let n_without_row = from.saturating_sub(sequence.n_planned);
                want = want.min(n_without_row + logit_rows_left.saturating_sub(n_after));
            }
            let n_tokens = if want == 0 {
                0
            } else {
                self.secure_pages(idx, want, plan)
            };
            if n_tokens > 0 {
                let first_logit_row = self.config.limits.max_logit_rows - logit_rows_left;
                // The row's own token takes one, and so does each later sequence.
                let n_draft_rows = logit_rows_left.saturating_sub(n_after + 1);
                let draft = self.plan_draft(id, n_tokens, n_draft_rows, &mut drafts, &mut plan.drafts);
                let save = self.plan_snapshot(id, n_tokens + draft.len());
                let mut row = self.sequences[id].plan_row(id, n_tokens, draft, first_logit_row as u32, save);
                row.gives_hidden = self.gives_hidden && self.sequences[id].may_ask_model();
                logit_rows_left -= row.n_logit_rows() as usize;
                self.counters.planned_tokens += u64::from(row.n_tokens);
                plan.rows.push(row);
            }
            idx += 1;
        }
        self.counters.steps += u64::from(!plan.is_empty());
    }

    /// Reserves a slot for the snapshot that the next `n_tokens` inputs should leave, if one is available.
    fn plan_snapshot(&mut self, id: SeqId, n_tokens: usize) -> Option<StateSave> {
        let sequence = &mut self.sequences[id];
        sequence.state?;
        let first = sequence.n_planned;
        let at = sequence.snapshot_in(first, first + n_tokens)?;
        let slot = self.groups[0].pool.states.allocate()?;
        sequence.saves.push(slot);
        Some(StateSave {
            n_tokens: at as u32,
            slot,
        })
    }

    /// Reserves pages for the next `want` inputs of the running sequence at `idx`, or for as many as fit.
    fn secure_pages(&mut self, idx: usize, want: usize, plan: &mut StepPlan) -> usize {
        let id = self.running[idx];
        loop {
            let room = self.grow(id, want);
            let n_tokens = self.sequences[id].before_cut(room);
            let is_enough = n_tokens == want || !self.config.limits.is_encoder;
            if n_tokens > 0 && is_enough {
                return n_tokens;
            }
            let victim = self
                .paused
                .last()
                .copied()
                .or_else(|| self.running[idx + 1..].last().copied());
            match victim {
                Some(victim) => self.preempt(victim, plan),
                // Earlier sequences continue, and their pages become free eventually.
                None => return 0,
            }
        }
    }

    /// Extends a sequence's page tables for its next `want` inputs as far as pages are available, and makes
    /// the pages that it writes next exclusive. Returns the number of inputs that fit.
    pub(crate) fn grow(&mut self, id: SeqId, want: usize) -> usize {
        let sequence = &mut self.sequences[id];
        let first = sequence.n_planned;
        let mut room = want;
        for (Group { pool, .. }, pages) in self.groups.iter_mut().zip(&mut sequence.tables) {
            if let Some(page) = pages.get_mut(first / PAGE_TOKENS)
                && !pool.is_exclusive(*page)
            {
                match pool.own(*page) {
                    Some(own) => *page = own,
                    None => return 0,
                }
            }
            while pages.len() * PAGE_TOKENS < first + room {
                match pool.allocate() {
                    Some(page) => pages.push(page),
                    None => break,
                }
            }
            room = room.min((pages.len() * PAGE_TOKENS).saturating_sub(first));
        }
        room
    }

    /// Releases a sequence's pages and makes it wait again. Its whole pages become idle, so it finds them
    /// again in the pool or the host tier unless another sequence needed their place; missing ones are
    /// computed again.
    pub(crate) fn preempt(&mut self, id: SeqId, plan: &mut StepPlan) {
        self.restart(id);
        self.counters.preemptions += 1;
        plan.preempted.push(id);
    }
}
