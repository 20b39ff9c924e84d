//! The words of a prompt: a state, a question about it, and its options with labels.
//!
//! Text only, apart from tokens, so that the wording has one version. Invariant: the state comes first, so that the prompts of all
//! questions about it have a common beginning.

use std::fmt::Write as _;

use serde_json::Value;

use super::state::State;
use crate::decision::question::{Question, QuestionKind};

/// The version of the wording. A change of any prompt makes a new one.
pub const DECISION_PROMPT_VERSION: u32 = 1;

/// The kinds of labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LabelKind {
    /// A word for yes and one for no.
    YesNo,
    /// The number of a level.
    Digits,
    /// A letter, or two beyond the 26th.
    Letters,
}

/// The labels of a prompt.
#[derive(Clone, Debug)]
pub(super) struct Labels {
    pub(super) kind: LabelKind,
    /// As many as the question has options.
    pub(super) texts: Vec<String>,
}

/// Returns the index of each option's label where the options are shown in this order. The label of a choice belongs to its
/// place in the list, that of a level or of yes and no to its option.
pub(super) fn labels_of_options(order: &[usize], question: &Question) -> Vec<usize> {
    let belong_to_places = matches!(question.kind, QuestionKind::Choice(_));
    let mut labels = vec![0; order.len()];
    for (place, &option_idx) in order.iter().enumerate() {
        labels[option_idx] = if belong_to_places { place } else { option_idx };
    }
    labels
}

/// Writes the content of a message: the state, then a question whose options are shown in this order.
pub(super) fn message(state: &State, question: &Question, order: &[usize], labels: &Labels) -> Value {
    let of_options = labels_of_options(order, question);
    let label = |option_idx: usize| labels.texts[of_options[option_idx]].as_str();
    let mut text = String::new();
    if !state.is_empty() {
        text += "\n\n";
    }
    let asked = match (&question.kind, question.instructions.as_str()) {
        (_, instructions) if !instructions.trim().is_empty() => instructions,
        (QuestionKind::Predicate { .. }, _) => "Which answer is right?",
        (QuestionKind::Choice(_), _) => "Which option fits best?",
        (QuestionKind::Score(_), _) => "Which level fits best?",
    };
    text += asked;
    text += "\n\n";
    for &option_idx in order {
        let (name, description) = match &question.kind {
            QuestionKind::Choice(options) => (
                options[option_idx].name.as_str(),
                options[option_idx].description.as_str(),
            ),
            QuestionKind::Score(levels) => (levels[option_idx].as_str(), ""),
            QuestionKind::Predicate { yes, no } => {
                let (word, text) = [("Yes", yes), ("No", no)][option_idx];
                match labels.kind {
                    // The label says it.
                    LabelKind::YesNo if text.is_empty() => continue,
                    LabelKind::YesNo => (text.as_str(), ""),
                    LabelKind::Digits | LabelKind::Letters => (word, text.as_str()),
                }
            }
        };
        let _ = write!(text, "{}: {name}", label(option_idx));
        if !description.is_empty() {
            let _ = write!(text, " - {description}");
        }
        text += "\n";
    }
    if !text.ends_with("\n\n") {
        text += "\n";
    }
    if let QuestionKind::Score(_) = question.kind {
        let is_rising = order.is_sorted();
        text += if is_rising {
            "The levels are in ascending order. "
        } else {
            "The levels are in descending order. "
        };
    }
    let shown = |place: usize| order.get(place).map_or("", |&option_idx| label(option_idx));
    let (first, last) = (shown(0), shown(order.len().saturating_sub(1)));
    let _ = match labels.kind {
        LabelKind::YesNo => write!(text, "Answer with {first} or {last} and nothing else."),
        LabelKind::Digits => write!(
            text,
            "Answer with the number of one level, from {first} to {last}, and nothing else."
        ),
        LabelKind::Letters => write!(
            text,
            "Answer with the letter of one option, from {first} to {last}, and nothing else."
        ),
    };
    state.content_before(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(kind: LabelKind, texts: &[&str]) -> Labels {
        Labels {
            kind,
            texts: texts.iter().map(|&text| text.to_owned()).collect(),
        }
    }

    /// A change here needs a new [`DECISION_PROMPT_VERSION`].
    #[test]
    fn version_1_reads_so() {
        let letters = labels(LabelKind::Letters, &["A", "B"]);
        let choice = Question::choice("Who takes it?", [("cards", "card desk"), ("loans", "")]);
        assert_eq!(
            message(&"Card was stolen.".into(), &choice, &[0, 1], &letters),
            "Card was stolen.\n\nWho takes it?\n\nA: cards - card desk\nB: loans\n\nAnswer with the letter of one option, \
             from A to B, and nothing else."
        );
        assert_eq!(
            message(&"".into(), &choice, &[1, 0], &letters),
            "Who takes it?\n\nA: loans\nB: cards - card desk\n\nAnswer with the letter of one option, from A to B, and \
             nothing else."
        );
        assert_eq!(labels_of_options(&[1, 0], &choice), [1, 0]);
        let digits = labels(LabelKind::Digits, &["0", "1", "2"]);
        let score = Question::score("", ["can wait", "today", "now"]);
        assert_eq!(
            message(&"Help!".into(), &score, &[0, 1, 2], &digits),
            "Help!\n\nWhich level fits best?\n\n0: can wait\n1: today\n2: now\n\nThe levels are in ascending order. Answer with \
             the number of one level, from 0 to 2, and nothing else."
        );
        assert_eq!(
            message(&"Help!".into(), &score, &[2, 1, 0], &digits),
            "Help!\n\nWhich level fits best?\n\n2: now\n1: today\n0: can wait\n\nThe levels are in descending order. Answer \
             with the number of one level, from 2 to 0, and nothing else."
        );
        assert_eq!(labels_of_options(&[2, 1, 0], &score), [0, 1, 2]);
        let words = labels(LabelKind::YesNo, &["Yes", "No"]);
        let mut predicate = Question::predicate("Is it fraud?");
        assert_eq!(
            message(&"Help!".into(), &predicate, &[0, 1], &words),
            "Help!\n\nIs it fraud?\n\nAnswer with Yes or No and nothing else."
        );
        predicate.kind = QuestionKind::Predicate {
            yes: "a thief".to_owned(),
            no: String::new(),
        };
        assert_eq!(
            message(&"Help!".into(), &predicate, &[1, 0], &words),
            "Help!\n\nIs it fraud?\n\nYes: a thief\n\nAnswer with No or Yes and nothing else."
        );
        assert_eq!(
            message(&"Help!".into(), &predicate, &[0, 1], &letters),
            "Help!\n\nIs it fraud?\n\nA: Yes - a thief\nB: No\n\nAnswer with the letter of one option, from A to B, and nothing \
             else."
        );
    }
}
