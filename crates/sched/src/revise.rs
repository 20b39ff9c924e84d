//! Revision: a sequence gets other tokens, and keeps what was computed of those that stay.
//!
//! A part of [`Scheduler`] that stands apart because only a drafting model's sequences change their minds: what they guessed gives way
//! to what was sampled. Invariant: no page that others can find is written again; the prefix cache copies it before.

use tokenmill_backend::{ForwardBatch, PAGE_TOKENS};

use crate::{arena::SeqId, scheduler::Scheduler, sequence::Sequence};

impl Scheduler {
    /// Gives a sequence of which no step is on its way other tokens, at least one. The last of them is computed in any case.
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

    /// Says how many tokens at the start of a sequence count as its prompt.
    pub(crate) fn set_n_given(&mut self, id: SeqId, n_tokens: usize) {
        self.sequences[id].n_given = n_tokens;
    }

    /// Inputs of a sequence that are computed; 0 once it has ended.
    pub(crate) fn n_computed(&self, id: SeqId) -> usize {
        self.sequences.get(id).map_or(0, |sequence| sequence.n_committed)
    }

    /// Forgets what was computed behind the first `n_kept` inputs; all of it where what they need is no longer there.
    fn roll_back(&mut self, id: SeqId, n_kept: usize) {
        let sequence = &self.sequences[id];
        let n_pages = n_kept.div_ceil(PAGE_TOKENS);
        let is_whole = (self.groups.iter().zip(&sequence.tables)).all(|(group, pages)| {
            let visible = group.first_visible_page(n_kept).min(n_pages)..n_pages;
            (pages.get(visible)).is_some_and(|pages| !pages.contains(&ForwardBatch::UNMAPPED_PAGE))
        });
        // A recurrent state cannot forget a token; the prefix cache has the snapshots that it can continue from.
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

    /// Takes a sequence's pages away and lets it wait again.
    pub(crate) fn restart(&mut self, id: SeqId) {
        self.leave_stage(id);
        self.release_pages(id);
        self.sequences[id].let_go();
        self.queue_if_eligible(id);
    }
}
