//! Commit: applies the results of a step.
//!
//! Part of [`Scheduler`]; only commit learns sampled tokens. Invariants: pages enter the prefix cache only
//! here, after the step that filled them has succeeded; a sequence that has ended gets no more results.

use tokenmill_backend::{ForwardBatch, PAGE_TOKENS, PageCopy, PageGroup, SeqState};

use crate::{
    arena::SeqId,
    draft::{drafter::Verified, tokens::DraftSource},
    media::content_in,
    pages::events::Lineage,
    plan::{
        outcome::{End, Outcome, RowResult, SeqSummary},
        scheduler::{Scheduler, shift::Shifted},
        sequence::{Stage, Work},
        step_plan::{PlannedOutput, PlannedRow, StepPlan},
    },
};

/// Returns whether nothing was sampled after the first `n_drafted` tokens of a draft, although they are
/// right.
fn is_unsampled(results: &[RowResult], n_drafted: usize) -> bool {
    n_drafted > 0 && results[n_drafted] == RowResult::Advanced
}

impl Scheduler {
    /// Applies the results of a step, in planning order: one for each row of its plan, and one more for each
    /// token of the row's draft.
    pub fn commit(&mut self, plan: &StepPlan, results: &[RowResult], outcomes: &mut Vec<Outcome>) {
        let mut results = results;
        for row in &plan.rows {
            let (of_row, rest) = results.split_at(1 + row.draft.len());
            results = rest;
            let Some(sequence) = self.sequences.get_mut(row.seq) else {
                continue;
            };
            sequence.n_pending -= usize::from(row.output == PlannedOutput::Sample);
            if !row.draft.is_empty() {
                sequence.has_draft = false;
            }
            match self.commit_row(row, plan.draft_of(row), of_row, outcomes) {
                Some(end) => self.end(row.seq, end, outcomes),
                None => self.queue_if_eligible(row.seq),
            }
        }
    }

    /// Commits a row's inputs and the token sampled after them. As long as the draft predicted that token,
    /// its inputs follow one by one, each as if it had a step of its own.
    fn commit_row(
        &mut self,
        row: &PlannedRow,
        draft: &[u32],
        results: &[RowResult],
        outcomes: &mut Vec<Outcome>,
    ) -> Option<End> {
        let sequence = &self.sequences[row.seq];
        let is_here = sequence.stay == row.stay && sequence.stage != Stage::Waiting;
        let n_right = (draft.iter().zip(results))
            .take_while(|&(&id, &result)| result == RowResult::Token(id))
            .count();
        // A recurrent state that has seen a wrong draft token is useless, so the next step computes the right
        // ones again. The same holds for a draft token after which nothing was sampled for lack of a mask.
        let is_whole = n_right == draft.len() && !is_unsampled(results, n_right);
        let is_kept = row.state.is_none() || is_whole;
        if is_here && !is_kept {
            self.drop_states(row);
        }
        let mut n_accepted = 0;
        let end = loop {
            if is_unsampled(results, n_accepted) {
                break None;
            }
            let result = results[n_accepted];
            if result == RowResult::Failed {
                self.distrust_pages(row.seq);
                break Some(End::RowFailed);
            }
            let n_inputs = row.sure_end() as usize + n_accepted;
            if is_here && is_kept {
                let sequence = &mut self.sequences[row.seq];
                sequence.n_committed = n_inputs;
                sequence.n_planned = sequence.n_planned.max(n_inputs);
                self.settle_pages(row.seq);
                if n_accepted == draft.len() {
                    self.settle_state(row);
                }
            }
            let RowResult::Token(id) = result else {
                break self.commit_inputs(row.seq, n_inputs);
            };
            let logit_row = row.first_logit_row + n_accepted as u32;
            if let Some(end) = self.commit_token(row.seq, logit_row, id, outcomes) {
                break Some(end);
            }
            if draft.get(n_accepted) != Some(&id) {
                break None;
            }
            n_accepted += 1;
        };
        if row.output == PlannedOutput::Sample {
            self.counters.sampling_rows += 1;
            let is_tried = n_accepted < draft.len() && !is_unsampled(results, n_accepted);
            let sampled = match results[0] {
                RowResult::Token(id) => Some(id),
                _ => None,
            };
            let verified = Verified {
                n_drafted: draft.len(),
                n_accepted,
                n_tried: n_accepted + usize::from(is_tried),
                sampled,
            };
            self.note_draft(row.seq, verified);
        }
        // Shift only now: the draft belongs to the text before.
        if end.is_none() && self.sequences[row.seq].is_to_shift() {
            let Shifted { n_dropped } = self.shift(row.seq);
            outcomes.push(Outcome::Shifted {
                seq: row.seq,
                n_dropped,
            });
        }
        end
    }

    /// Counts a draft, and updates the sequence's acceptance rates.
    fn note_draft(&mut self, seq: SeqId, verified: Verified) {
        let sequence = &mut self.sequences[seq];
        let Some(drafter) = &mut sequence.drafter else {
            return;
        };
        let classes = drafter.observe(verified, &mut self.acceptance);
        let Verified {
            n_drafted,
            n_accepted,
            ..
        } = verified;
        if n_drafted == 0 {
            return;
        }
        sequence.n_drafted += n_drafted;
        sequence.n_accepted += n_accepted;
        self.counters.drafts.add(n_drafted, n_accepted);
        for (counters, source) in [
            (&mut self.counters.model_drafts, DraftSource::Model),
            (&mut self.counters.earlier_drafts, DraftSource::Earlier),
            (&mut self.counters.forced_drafts, DraftSource::Constraint),
        ] {
            let n_of_source = |n: usize| {
                let of_source = classes.iter().take(n).filter(|class| class.source() == source);
                of_source.count()
            };
            if n_of_source(n_drafted) > 0 {
                counters.add(n_of_source(n_drafted), n_of_source(n_accepted));
            }
        }
    }

    fn commit_token(
        &mut self,
        seq: SeqId,
        logit_row: u32,
        id: u32,
        outcomes: &mut Vec<Outcome>,
    ) -> Option<End> {
        let sequence = &mut self.sequences[seq];
        let Work::Generate { ref stop_tokens, .. } = sequence.work else {
            unreachable!("only a sequence that generates samples");
        };
        if stop_tokens.contains(&id) {
            return Some(End::Stop);
        }
        sequence.tokens.push(id);
        outcomes.push(Outcome::Token { seq, logit_row, id });
        if sequence.is_to_shift() {
            return None;
        }
        (sequence.tokens.len() >= sequence.end_len()).then_some(End::Length)
    }

    /// Ends a forward pass after its last input.
    fn commit_inputs(&self, seq: SeqId, end: usize) -> Option<End> {
        let sequence = &self.sequences[seq];
        let is_forward = !matches!(sequence.work, Work::Generate { .. });
        (is_forward && end >= sequence.tokens.len()).then_some(End::Length)
    }

    /// Publishes a sequence's full pages in the prefix cache, and releases those that fell out of the window.
    fn settle_pages(&mut self, id: SeqId) {
        debug_assert!(self.sequences[id].n_committed <= self.sequences[id].tokens.len());
        let n_whole = self.sequences[id].n_committed / PAGE_TOKENS;
        if self.sequences[id].uses_prefix_cache && self.sequences[id].n_registered < n_whole {
            self.ensure_page_keys(id, n_whole);
            let sequence = &mut self.sequences[id];
            for page_idx in sequence.n_registered..n_whole {
                let inputs = page_idx * PAGE_TOKENS..(page_idx + 1) * PAGE_TOKENS;
                let tokens = &sequence.tokens[inputs.clone()];
                let key = sequence.page_keys[page_idx];
                let lineage = Lineage {
                    parent: page_idx.checked_sub(1).map(|idx| sequence.page_keys[idx]),
                    salt: sequence.salt,
                    adapter: sequence.adapter,
                    media: content_in(&sequence.media, &inputs),
                };
                for (group, pages) in self.groups.iter_mut().zip(&sequence.tables) {
                    group.pool.register(pages[page_idx], key, tokens, lineage);
                }
            }
            sequence.n_registered = n_whole;
        }
        let sequence = &mut self.sequences[id];
        for (group, pages) in self.groups.iter_mut().zip(&mut sequence.tables) {
            let first_page = group.first_visible_page(sequence.n_committed);
            let prompt_end = sequence.n_prompt.saturating_sub(1) / PAGE_TOKENS * PAGE_TOKENS;
            let prompt_pages = group.first_visible_page(prompt_end)..prompt_end / PAGE_TOKENS;
            for (page_idx, page) in pages[..first_page].iter_mut().enumerate().rev() {
                if *page == ForwardBatch::UNMAPPED_PAGE {
                    break;
                }
                let left = std::mem::replace(page, ForwardBatch::UNMAPPED_PAGE);
                group.pool.release_left(left, prompt_pages.contains(&page_idx));
            }
        }
        let is_prompt_done = sequence.n_committed + 1 >= sequence.n_prompt;
        if is_prompt_done {
            self.let_followers_go(id);
        }
    }

    /// Goes back to the state before a row; its inputs are then planned again.
    fn drop_states(&mut self, row: &PlannedRow) {
        let sequence = &mut self.sequences[row.seq];
        sequence.n_planned = row.first_position as usize;
        let save = row.state.and_then(|state| state.save).map(|save| save.slot);
        sequence.saves.retain(|&slot| Some(slot) != save);
        for slot in sequence.spare.take().into_iter().chain(save) {
            self.groups[0].pool.states.release(slot);
        }
    }

    /// Publishes the snapshot that a row has taken, and releases the one that it began from. The state after
    /// a draft becomes the sequence's own.
    fn settle_state(&mut self, row: &PlannedRow) {
        let Some(SeqState { from, to, save }) = row.state else {
            return;
        };
        let sequence = &mut self.sequences[row.seq];
        let pool = &mut self.groups[0].pool;
        if from != to && sequence.state_from.take().is_some() {
            pool.states.release(from);
        }
        let sequence = &mut self.sequences[row.seq];
        // A row before the draft's may still be in flight.
        if sequence.spare == Some(to) {
            sequence.spare = None;
            if let Some(old) = sequence.state.replace(to) {
                pool.states.release(old);
            }
        }
        let Some(save) = save else { return };
        sequence.saves.retain(|&slot| slot != save.slot);
        let n_pages = save.n_tokens as usize / PAGE_TOKENS;
        self.ensure_page_keys(row.seq, n_pages);
        let sequence = &mut self.sequences[row.seq];
        let key = sequence.page_keys[n_pages - 1];
        let pool = &mut self.groups[0].pool;
        if !pool.contains(key) {
            pool.states.release(save.slot);
            return;
        }
        pool.states.register(save.slot, key);
        // While decoding, only the newest snapshot is kept, in addition to that of the prompt.
        if row.first_position as usize >= sequence.n_prompt
            && let Some(older) = sequence.rolling.replace(key)
            && older != key
        {
            pool.states.forget(older);
        }
    }

    fn distrust_pages(&mut self, id: SeqId) {
        for (group, pages) in self.groups.iter_mut().zip(&self.sequences[id].tables) {
            for &page in pages.iter().filter(|&&page| page != ForwardBatch::UNMAPPED_PAGE) {
                group.pool.forget(page);
            }
        }
    }

    /// Ends every sequence of a failed step. The contents that it stored are undefined and were never cached.
    pub fn fail_step(&mut self, plan: &StepPlan, outcomes: &mut Vec<Outcome>) {
        for row in &plan.rows {
            self.end(row.seq, End::StepFailed, outcomes);
        }
    }

    /// Ends every sequence of a step whose page copies failed, and invalidates the copies' target pages: the
    /// prefix cache is emptied, and other sequences that hold such a page compute it again.
    pub fn fail_copies(&mut self, plan: &StepPlan, outcomes: &mut Vec<Outcome>) {
        self.fail_step(plan, outcomes);
        self.forget_cache();
        let is_undefined = |copies: &[PageCopy], page: &u32| {
            copies.iter().any(|copy| match copy {
                PageCopy::Duplicate { to, .. } | PageCopy::Upload { page: to, .. } => to == page,
                PageCopy::Download { .. } => false,
            })
        };
        let sequences = self.sequences.iter();
        let holders: Vec<SeqId> = sequences
            .filter(|(_, sequence)| {
                (sequence.tables.iter().zip(&plan.copies))
                    .any(|(pages, copies)| pages.iter().any(|page| is_undefined(copies, page)))
            })
            .map(|(id, _)| id)
            .collect();
        for id in holders {
            self.preempt(id, &mut StepPlan::default());
        }
    }

    /// Drops the cached page that was to be copied to a page of the host tier, because the copy failed.
    pub fn forget_host_page(&mut self, group: PageGroup, host_page: u32) {
        self.groups[group.index()].pool.forget_host(host_page);
    }

    /// Ends a sequence in any stage. Does nothing if it has already ended.
    pub fn end(&mut self, id: SeqId, end: End, outcomes: &mut Vec<Outcome>) {
        if self.sequences.get(id).is_none() {
            return;
        }
        self.leave_stage(id);
        self.list_left_pages(id);
        self.release_pages(id);
        self.let_followers_go(id);
        let sequence = self.sequences.remove(id).expect("it is alive");
        self.forget_deadlines(id, &sequence);
        self.keep_answer(&sequence, end);
        outcomes.push(Outcome::Ended {
            seq: id,
            end,
            summary: SeqSummary {
                n_prompt: sequence.n_given,
                n_generated: sequence.n_generated(),
                n_dropped: sequence.n_dropped,
                n_cached: sequence.n_cached,
                miss: sequence.miss,
                n_drafted: sequence.n_drafted,
                n_accepted: sequence.n_accepted,
                has_begun: sequence.stay > 0,
            },
        });
    }

    fn let_followers_go(&mut self, leader: SeqId) {
        for follower in std::mem::take(&mut self.sequences[leader].followers) {
            if let Some(sequence) = self.sequences.get_mut(follower) {
                sequence.is_held = false;
                self.queue_if_eligible(follower);
            }
        }
    }
}
