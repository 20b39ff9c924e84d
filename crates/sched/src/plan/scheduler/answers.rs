//! Earlier answers: a sequence receives the earlier answer to the same prompt, and leaves its own.
//!
//! Part of [`Scheduler`]; it connects page names, drafts and ends of sequences. Invariant: a sequence that
//! bypasses the prefix cache neither receives nor leaves an answer.

use tokenmill_backend::PAGE_TOKENS;

use crate::{
    arena::SeqId,
    draft::{answer_cache::AnswerName, lookup::EarlierAnswer},
    params::sampling_key::SamplingKey,
    plan::{outcome::End, scheduler::Scheduler, sequence::Sequence},
};

impl Scheduler {
    /// Names the answer of a new sequence, and gives it the earlier one.
    pub(crate) fn give_earlier_answer(&mut self, id: SeqId) {
        let looks_up = self.config.speculation.looks_up();
        let sequence = &self.sequences[id];
        let n_tokens = sequence.tokens.len();
        // Answers are shared exactly where the prefix cache shares pages.
        let is_shared = sequence.uses_prefix_cache && n_tokens >= PAGE_TOKENS && sequence.n_dropped == 0;
        let Some(sampling_key) = sequence.sampling_key.clone().filter(|_| looks_up && is_shared) else {
            return;
        };
        self.ensure_page_keys(id, n_tokens / PAGE_TOKENS);
        let name = self.answer_name(&self.sequences[id], &sampling_key);
        let sequence = &mut self.sequences[id];
        sequence.answer_name = Some(name);
        // Drop it early: the name of a constraint may be a whole grammar.
        sequence.sampling_key = None;
        if let Some(earlier) = self.answers.get(name) {
            let drafter = sequence.drafter.as_mut();
            drafter
                .expect("a sequence that looks up has one")
                .follow(EarlierAnswer::new(earlier, n_tokens));
        }
    }

    fn answer_name(&self, sequence: &Sequence, sampling_key: &SamplingKey) -> AnswerName {
        let n_pages = sequence.tokens.len() / PAGE_TOKENS;
        let name = self.hasher.name_answer(
            sequence.page_keys[n_pages - 1],
            &sequence.tokens[n_pages * PAGE_TOKENS..],
            n_pages * PAGE_TOKENS,
            &sequence.media,
            sampling_key.bytes(),
        );
        AnswerName::new(name)
    }

    /// Keeps the answer of an ended sequence. A sequence that lost tokens diverges from there on, and one
    /// that failed may have been computed from bad values; neither is kept.
    pub(crate) fn keep_answer(&mut self, sequence: &Sequence, end: End) {
        let has_failed = matches!(end, End::RowFailed | End::StepFailed);
        if let Some(name) = sequence.answer_name
            && !has_failed
            && sequence.n_dropped == 0
        {
            let answer = &sequence.tokens[sequence.n_given..];
            self.answers
                .keep(name, answer, sequence.page_keys[0], sequence.adapter);
        }
    }
}
