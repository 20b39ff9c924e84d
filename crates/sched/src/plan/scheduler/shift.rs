//! Shifting: a sequence with a full context drops its oldest tokens, and is computed again from the rest.
//!
//! Part of [`Sequence`] and [`Scheduler`], used only on request. Invariant: a shifted sequence continues like
//! a new one with its tokens.

use crate::{
    arena::SeqId,
    draft::drafter::Drafter,
    plan::{
        scheduler::Scheduler,
        sequence::{Sequence, Stage, Work},
    },
};

/// The effect of a context shift.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shifted {
    /// Number of dropped tokens.
    pub(crate) n_dropped: usize,
}

impl Sequence {
    /// Returns the number of tokens at which it ends or, with a context shift, is shifted.
    pub(crate) fn end_len(&self) -> usize {
        let Work::Generate { max_len, .. } = self.work else {
            return usize::MAX;
        };
        let end = max_len - self.n_dropped;
        self.shift.map_or(end, |shift| shift.n_ctx.min(end))
    }

    /// Returns whether its context is full and its text is not finished.
    pub(crate) fn is_to_shift(&self) -> bool {
        let Work::Generate { max_len, .. } = self.work else {
            return false;
        };
        let is_full = self.shift.is_some_and(|shift| self.tokens.len() >= shift.n_ctx);
        is_full && self.tokens.len() < max_len - self.n_dropped
    }

    /// Drops its oldest tokens; the rest becomes its prompt. Returns the number of dropped tokens.
    pub(crate) fn cut(&mut self) -> usize {
        let dropped = (self.shift).map_or(0..0, |shift| shift.dropped(self.tokens.len()));
        let n_dropped = self.tokens.drain(dropped).len();
        self.n_dropped += n_dropped;
        self.n_prompt = self.tokens.len();
        self.page_keys.clear();
        // The snapshot stays for prompts that begin like the earlier text.
        self.rolling = None;
        n_dropped
    }
}

impl Scheduler {
    /// Shifts a sequence with a full context: it releases its pages and waits, like a preempted one, to be
    /// computed from the remaining tokens.
    pub(crate) fn shift(&mut self, id: SeqId) -> Shifted {
        self.leave_stage(id);
        self.release_pages(id);
        let acceptance = self.acceptance;
        let sequence = &mut self.sequences[id];
        debug_assert_eq!(sequence.n_pending, 0, "no input lies behind a full context");
        sequence.let_go();
        let n_dropped = sequence.cut();
        // Its drafter refers to positions in the earlier text.
        if sequence.drafter.is_some() {
            sequence.drafter = Some(Drafter::new(acceptance));
        }
        debug_assert_eq!(sequence.stage, Stage::Waiting);
        self.counters.context_shifts += 1;
        self.counters.dropped_tokens += n_dropped as u64;
        self.queue_if_eligible(id);
        Shifted { n_dropped }
    }
}
