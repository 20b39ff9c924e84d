//! Constraints on their way from text to the engine, which knows tokens only.
//!
//! Separate from the words because it is the one place that joins the two. Invariant: a constraint is compiled on the thread
//! of whoever asks, never on the engine's.

use tokenmill_sched::{ConstraintFailure, ConstraintSource, TokenConstraint};
use tokenmill_text::{
    calls::ReplyFormat,
    constraint::{CompiledConstraint, Constraint, ConstraintError, ConstraintMatcher},
};

/// What an answer in channels has before its text for the reader, and before what it thinks.
const FINAL_CHANNEL: &str = "<|channel|>final<|message|>";
const ANALYSIS_CHANNEL: &str = "<|channel|>analysis<|message|>";

/// What ends a message of such an answer, and begins the head of the next.
const MESSAGE_END: &str = "<|end|>";
const NEXT_MESSAGE: &str = "<|end|><|start|>assistant";

/// What a constraint is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// Of the text for the reader.
    Text,
    /// Of calls that are required.
    Calls,
    /// Of nothing, or of calls once they begin.
    Nothing,
}

/// Lets `constraint` begin where the reasoning of an answer ends, of which the prompt ends in `tail`. Reasoning of more tokens
/// than `budget` is ended.
pub(crate) fn after_reasoning(
    constraint: Constraint,
    holds: Holds,
    budget: Option<usize>,
    format: &ReplyFormat,
    tail: &str,
) -> Constraint {
    let at_most = |constraint: Constraint, end: &str, not_next: &str| match budget {
        Some(n_tokens) => constraint.thinks_at_most(n_tokens, end, not_next),
        None => constraint,
    };
    if format.has_reasoning() && format.has_heads() {
        if !format.opens_head(tail) {
            return constraint;
        }
        return match holds {
            Holds::Text => at_most(
                constraint.begins_after(FINAL_CHANNEL),
                &format!("{NEXT_MESSAGE}{FINAL_CHANNEL}"),
                "",
            ),
            Holds::Calls => at_most(
                constraint.opens_and_begins_after(ANALYSIS_CHANNEL, MESSAGE_END),
                MESSAGE_END,
                "",
            ),
            Holds::Nothing => at_most(
                constraint.thinks_between(ANALYSIS_CHANNEL, MESSAGE_END),
                &format!("{NEXT_MESSAGE}<|channel|>"),
                "analysis",
            ),
        };
    }
    match (format.reasoning_open(), format.reasoning_close()) {
        (_, Some(close)) if format.opens_reasoning(tail) => {
            at_most(constraint.begins_after(close), close, "")
        }
        (Some(open), Some(close)) => at_most(constraint.may_begin_after(open.trim_end(), close), close, ""),
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

    fn has_left(&self) -> bool {
        self.0.has_left()
    }

    fn forced(&self, words: &[u32]) -> Option<u32> {
        self.0.forced(words)
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
            after_reasoning(
                Constraint::regex("a"),
                Holds::Text,
                None,
                &ReplyFormat::of_template(template),
                tail,
            )
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
