//! Constraints on their way from text to the engine, which knows only tokens.
//!
//! Only this file joins the two. Invariant: a constraint is compiled on the caller's thread, never on the
//! engine's.

use std::sync::Arc;

use tokenmill_sched::{ConstraintFailure, ConstraintSource, TokenConstraint};
pub use tokenmill_text::constraint::{ConstraintError, ConstraintKind, ConstraintLimits};
use tokenmill_text::{
    calls::ReplyFormat,
    constraint::{CompiledConstraint, Constraint, ConstraintMatcher},
};

/// Head of the text for the reader in an answer of channels.
const FINAL_CHANNEL: &str = "<|channel|>final<|message|>";
/// Start of that text's head; models may write words such as `<|constrain|>json` after it.
const FINAL_HEAD: &str = "<|channel|>final";
const HEAD_END: &str = "<|message|>";
const ANALYSIS_CHANNEL: &str = "<|channel|>analysis<|message|>";

/// Ends a message of such an answer, and begins the next head.
const MESSAGE_END: &str = "<|end|>";
const NEXT_MESSAGE: &str = "<|end|><|start|>assistant";

/// The part of an answer that a constraint applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// The text for the reader.
    Text,
    /// Required calls.
    Calls,
    /// Nothing, or calls once they begin.
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
                constraint.begins_after_head(FINAL_HEAD, HEAD_END),
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

/// Begins `compiled`, which was made of `constraint`, for each sample. `end_ids` are the tokens that may end one, which do not come before `min_tokens` others unless
/// nothing else may.
pub(crate) fn source(
    constraint: &Constraint,
    compiled: CompiledConstraint,
    end_ids: Vec<u32>,
    min_tokens: usize,
) -> ConstraintSource {
    // All that the masks are made of, as text.
    let name = format!("{min_tokens} {end_ids:?} {constraint:?}");
    let end_ids: Arc<[u32]> = end_ids.into();
    let source = ConstraintSource::new(move || {
        Box::new(Sample {
            matcher: compiled.matcher(&end_ids),
            end_ids: Arc::clone(&end_ids),
            min_tokens,
            n_tokens: 0,
        })
    });
    source.named(name)
}

struct Sample {
    matcher: ConstraintMatcher,
    end_ids: Arc<[u32]>,
    min_tokens: usize,
    /// Tokens so far.
    n_tokens: usize,
}

impl TokenConstraint for Sample {
    fn mask(&mut self, words: &mut [u32]) -> Result<(), ConstraintFailure> {
        self.matcher.mask(words).map_err(failure)?;
        if self.n_tokens < self.min_tokens {
            forbid_ends(words, &self.end_ids);
        }
        Ok(())
    }

    fn commit(&mut self, token: u32) -> Result<(), ConstraintFailure> {
        self.matcher.commit(token).map_err(failure)?;
        self.n_tokens += 1;
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.matcher.is_complete()
    }

    fn rollback(&mut self, n_tokens: usize) -> Result<(), ConstraintFailure> {
        self.matcher.rollback(n_tokens).map_err(failure)?;
        self.n_tokens -= n_tokens;
        Ok(())
    }

    fn has_left(&self) -> bool {
        self.matcher.has_left()
    }

    fn forced(&self, words: &[u32]) -> Option<u32> {
        self.matcher.forced(words)
    }
}

/// Takes the tokens that end a sample out of a mask, unless it allows no others.
fn forbid_ends(words: &mut [u32], end_ids: &[u32]) {
    let is_end = |word_idx: usize| {
        let of_word = end_ids.iter().filter(move |&&id| id as usize / 32 == word_idx);
        of_word.fold(0, |bits, id| bits | 1u32 << (id % 32))
    };
    let has_others = |(word_idx, word): (usize, &u32)| word & !is_end(word_idx) != 0;
    if words
        .iter()
        .enumerate()
        .filter(|(_, word)| **word != 0)
        .any(has_others)
    {
        for &id in end_ids {
            if let Some(word) = words.get_mut(id as usize / 32) {
                *word &= !(1 << (id % 32));
            }
        }
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
    fn ends_are_forbidden_where_something_else_may_come() {
        let check = |mut words: Vec<u32>, expected: &[u32]| {
            forbid_ends(&mut words, &[1, 33, 34, 900]);
            assert_eq!(words, expected);
        };
        check(vec![0b11, 0b110], &[0b01, 0]);
        check(vec![0b10, 0b111], &[0, 0b001]);
        check(vec![0b10, 0b110], &[0b10, 0b110]);
        check(vec![0, 0], &[0, 0]);
        check(vec![0b100, 0b1], &[0b100, 0b1]);
    }

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
            plain.begins_after_head(FINAL_HEAD, HEAD_END)
        );
    }
}
