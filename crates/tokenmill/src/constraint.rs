//! Constraints on their way from text to the engine, which knows tokens only.
//!
//! Separate from the words because it is the one place that joins the two. Invariant: a constraint is compiled on the thread
//! of whoever asks, never on the engine's.

use tokenmill_sched::{ConstraintFailure, ConstraintSource, TokenConstraint};
use tokenmill_text::{
    calls::ReplyFormat,
    constraint::{CompiledConstraint, Constraint, ConstraintError, ConstraintMatcher},
};

/// What an answer in channels has before its text for the reader.
const FINAL_CHANNEL: &str = "<|channel|>final<|message|>";

/// Lets `constraint` begin where the reasoning of an answer ends, of which the prompt ends in `tail`.
pub(crate) fn after_reasoning(constraint: Constraint, format: &ReplyFormat, tail: &str) -> Constraint {
    if format.has_reasoning() && format.opens_head(tail) {
        return constraint.begins_after(FINAL_CHANNEL);
    }
    match (format.reasoning_open(), format.reasoning_close()) {
        (_, Some(close)) if format.opens_reasoning(tail) => constraint.begins_after(close),
        (Some(open), Some(close)) => constraint.may_begin_after(open.trim_end(), close),
        _ => constraint,
    }
}

/// Begins `compiled` for each sample. `end_ids` are the tokens that may end one.
pub(crate) fn source(compiled: CompiledConstraint, end_ids: Vec<u32>) -> ConstraintSource {
    ConstraintSource::new(move || Box::new(Sample(compiled.matcher(&end_ids))))
}

struct Sample(ConstraintMatcher);

impl TokenConstraint for Sample {
    fn mask(&mut self, words: &mut [u32]) -> Result<(), ConstraintFailure> {
        self.0.mask(words).map_err(failure)
    }

    fn commit(&mut self, token: u32) -> Result<(), ConstraintFailure> {
        self.0.commit(token).map_err(failure)
    }

    fn is_done(&self) -> bool {
        self.0.is_complete()
    }

    fn rollback(&mut self, n_tokens: usize) -> Result<(), ConstraintFailure> {
        self.0.rollback(n_tokens).map_err(failure)
    }
}

fn failure(error: ConstraintError) -> ConstraintFailure {
    let reason = match error {
        ConstraintError::Step { reason } => reason,
        other => other.to_string(),
    };
    ConstraintFailure { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constraint_begins_where_reasoning_ends() {
        let begun = |template: &str, tail: &str| {
            after_reasoning(Constraint::regex("a"), &ReplyFormat::of_template(template), tail)
        };
        let plain = Constraint::regex("a");
        assert_eq!(begun("{{ messages }}", "assistant\n"), plain);
        let thinks = "<think>{{ messages }}</think>";
        assert_eq!(
            begun(thinks, "assistant\n<think>\n"),
            plain.clone().begins_after("</think>")
        );
        assert_eq!(
            begun(thinks, "assistant\n"),
            plain.clone().may_begin_after("<think>", "</think>")
        );
        let harmony = "<|start|>assistant<|channel|>analysis<|message|>";
        assert_eq!(
            begun(harmony, "<|start|>assistant"),
            plain.begins_after(FINAL_CHANNEL)
        );
    }
}
