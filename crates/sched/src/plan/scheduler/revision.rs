//! Revision: gives a sequence other tokens, and keeps the results for unchanged ones.
//!
//! Part of [`Scheduler`], used only by a draft model: its sequences replace draft tokens by sampled ones.
//! Invariant: a page that others can find is never overwritten; it is copied first.

use tokenmill_backend::{ForwardBatch, PAGE_TOKENS};

use crate::{
    arena::SeqId,
    plan::{scheduler::Scheduler, sequence::Sequence},
};

impl Scheduler {
    /// Replaces the tokens, at least one, of a sequence without steps in flight. The last of them is computed
    /// in any case.
    pub(crate) fn revise(&mut self, id: SeqId, tokens: &[u32]) {
        let sequence = &mut self.sequences[id];
        debug_assert!(sequence.n_pending == 0 && !tokens.is_empty());
        let n_same = (sequence.tokens.iter().zip(tokens))
            .take_while(|(old, new)| old == new)
            .count();
        sequence.tokens.truncate(n_same);
        sequence.tokens.extend_from_slice(&tokens[n_same..]);
        sequence.page_keys.truncate(n_same / PAGE_TOKENS);
        let n_kept = n_same.min(tokens.len() - 1);
        if n_kept < sequence.n_committed {
            self.roll_back(id, n_kept);
        }
    }

    /// Sets how many tokens at the start of a sequence count as its prompt.
    pub(crate) fn set_n_given(&mut self, id: SeqId, n_tokens: usize) {
        self.sequences[id].n_given = n_tokens;
    }

    /// Returns the number of computed inputs of a sequence; 0 once it has ended.
    pub(crate) fn n_computed(&self, id: SeqId) -> usize {
        self.sequences.get(id).map_or(0, |sequence| sequence.n_committed)
    }

    /// Drops the results after the first `n_kept` inputs, or all of them if pages that those need are gone.
    fn roll_back(&mut self, id: SeqId, n_kept: usize) {
        let sequence = &self.sequences[id];
        let n_pages = n_kept.div_ceil(PAGE_TOKENS);
        let is_whole = (self.groups.iter().zip(&sequence.tables)).all(|(group, pages)| {
            let visible = group.first_visible_page(n_kept).min(n_pages)..n_pages;
            (pages.get(visible)).is_some_and(|pages| !pages.contains(&ForwardBatch::UNMAPPED_PAGE))
        });
        // A recurrent state cannot be rolled back; the prefix cache has the snapshots to continue from.
        if sequence.state.is_some() || !is_whole {
            return self.restart(id);
        }
        let Sequence { tables, .. } = &mut self.sequences[id];
        for (group, pages) in self.groups.iter_mut().zip(tables) {
            while pages.len() > n_pages {
                match pages.pop() {
                    Some(ForwardBatch::UNMAPPED_PAGE) | None => {}
                    Some(page) => group.pool.release(page),
                }
            }
        }
        let sequence = &mut self.sequences[id];
        sequence.n_planned = n_kept;
        sequence.n_committed = n_kept;
        sequence.n_registered = sequence.n_registered.min(n_kept / PAGE_TOKENS);
    }

    /// Releases a sequence's pages and makes it wait again.
    pub(crate) fn restart(&mut self, id: SeqId) {
        self.leave_stage(id);
        self.release_pages(id);
        self.sequences[id].let_go();
        self.queue_if_eligible(id);
    }
}
