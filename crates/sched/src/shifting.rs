//! Shifting: a sequence that has filled its context loses its oldest tokens, and is computed again from the tokens that are left.
//!
//! A part of [`Sequence`] and [`Scheduler`] that stands apart because it happens only where it is asked for. Invariant: a shifted sequence continues as a
//! new one with its tokens would.

use crate::{
    arena::SeqId,
    drafting::Drafter,
    scheduler::Scheduler,
    sequence::{Sequence, Stage, Work},
};

/// What a sequence lost that had filled its context.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shifted {
    /// Tokens.
    pub(crate) n_dropped: usize,
}

impl Sequence {
    /// Tokens at which it ends or, where it continues behind a full context, is shifted.
    pub(crate) fn end_len(&self) -> usize {
        let Work::Generate { max_len, .. } = self.work else {
            return usize::MAX;
        };
        let end = max_len - self.n_dropped;
        self.shift.map_or(end, |shift| shift.n_ctx.min(end))
    }

    /// Whether its context is full and its text is not at its end.
    pub(crate) fn is_to_shift(&self) -> bool {
        let Work::Generate { max_len, .. } = self.work else {
            return false;
        };
        let is_full = self.shift.is_some_and(|shift| self.tokens.len() >= shift.n_ctx);
        is_full && self.tokens.len() < max_len - self.n_dropped
    }

    /// Drops its oldest tokens. What is left is its prompt from here on. Returns how many they were.
    pub(crate) fn cut(&mut self) -> usize {
        let dropped = (self.shift).map_or(0..0, |shift| shift.dropped(self.tokens.len()));
        let n_dropped = self.tokens.drain(dropped).len();
        self.n_dropped += n_dropped;
        self.n_prompt = self.tokens.len();
        self.page_keys.clear();
        // The snapshot stays for whoever begins like the text before.
        self.rolling = None;
        n_dropped
    }
}

impl Scheduler {
    /// Shifts a sequence whose context is full: it gives its pages back and waits, as one that was preempted does, to be computed
    /// from the tokens that are left.
    pub(crate) fn shift(&mut self, id: SeqId) -> Shifted {
        self.leave_stage(id);
        self.release_pages(id);
        let (acceptance, model_acceptance) = (self.acceptance, self.model_acceptance);
        let sequence = &mut self.sequences[id];
        debug_assert_eq!(sequence.n_pending, 0, "no input lies behind a full context");
        sequence.let_go();
        let n_dropped = sequence.cut();
        // It looks up places in the text before.
        if sequence.drafter.is_some() {
            sequence.drafter = Some(Drafter::new(acceptance, model_acceptance));
        }
        debug_assert_eq!(sequence.stage, Stage::Waiting);
        self.counters.context_shifts += 1;
        self.counters.dropped_tokens += n_dropped as u64;
        self.queue_if_eligible(id);
        Shifted { n_dropped }
    }
}
