//! [`Question`]: what is asked about a state, and the bounds of a request.
//!
//! Plain data, apart from the words of a prompt. Invariant: questions that pass [`check`] have options that differ, and texts
//! whose tokens are few enough to be counted before anything is computed.

use crate::decide_error::DecideError;

/// Most questions of a request, as OpenAI's API has it.
pub const MAX_QUESTIONS: usize = 400;

/// Most options of a choice.
pub const MAX_OPTIONS: usize = 255;

/// Most levels of a score, each of which has a digit.
pub const MAX_LEVELS: usize = 10;

/// Most orders of a question's options.
pub const MAX_PERMUTATIONS: usize = 16;

/// Most prompts of a request: each question once for each order of its options.
const MAX_ROWS: usize = 1024;

/// Most bytes of a question's instructions.
const MAX_INSTRUCTION_BYTES: usize = 64 << 10;

/// Most bytes of an option's name and description.
const MAX_OPTION_BYTES: usize = 16 << 10;

/// Most bytes of all prompts of a request, each of which has the state. The tokenizer reads so many in seconds.
const MAX_TEXT_BYTES: usize = 16 << 20;

/// A question about a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The question in words; may be empty where the options say it.
    pub instructions: String,
    /// The possible answers.
    pub kind: QuestionKind,
}

/// The possible answers to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuestionKind {
    /// Whether something is true. Its two options are yes and no, in this order.
    Predicate {
        /// When the answer is yes; may be empty.
        yes: String,
        /// When the answer is no; may be empty.
        no: String,
    },
    /// One of several.
    Choice(Vec<ChoiceOption>),
    /// A place among levels, the lowest first.
    Score(Vec<String>),
}

/// One of the options of a choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChoiceOption {
    /// Its name.
    pub name: String,
    /// When it applies; may be empty.
    pub description: String,
}

impl From<&str> for ChoiceOption {
    fn from(name: &str) -> Self {
        (name, "").into()
    }
}

impl From<(&str, &str)> for ChoiceOption {
    fn from((name, description): (&str, &str)) -> Self {
        Self {
            name: name.to_owned(),
            description: description.to_owned(),
        }
    }
}

impl Question {
    /// Asks whether something is true.
    pub fn predicate(instructions: impl Into<String>) -> Self {
        Self {
            instructions: instructions.into(),
            kind: QuestionKind::Predicate {
                yes: String::new(),
                no: String::new(),
            },
        }
    }

    /// Asks for one of several options: names, or pairs of a name and a description.
    pub fn choice<T: Into<ChoiceOption>>(
        instructions: impl Into<String>,
        options: impl IntoIterator<Item = T>,
    ) -> Self {
        Self {
            instructions: instructions.into(),
            kind: QuestionKind::Choice(options.into_iter().map(Into::into).collect()),
        }
    }

    /// Asks for one of several levels, the lowest first.
    pub fn score<T: Into<String>>(
        instructions: impl Into<String>,
        levels: impl IntoIterator<Item = T>,
    ) -> Self {
        Self {
            instructions: instructions.into(),
            kind: QuestionKind::Score(levels.into_iter().map(Into::into).collect()),
        }
    }

    /// Returns the number of its options.
    pub fn n_options(&self) -> usize {
        match &self.kind {
            QuestionKind::Predicate { .. } => 2,
            QuestionKind::Choice(options) => options.len(),
            QuestionKind::Score(levels) => levels.len(),
        }
    }

    /// Lists the texts of its options: names and descriptions.
    fn option_texts(&self) -> Vec<(&str, &str)> {
        match &self.kind {
            QuestionKind::Predicate { yes, no } => vec![("yes", yes), ("no", no)],
            QuestionKind::Choice(options) => (options.iter())
                .map(|option| (option.name.as_str(), option.description.as_str()))
                .collect(),
            QuestionKind::Score(levels) => levels.iter().map(|level| (level.as_str(), "")).collect(),
        }
    }

    /// Returns the bytes of all its texts.
    pub(crate) fn n_bytes(&self) -> usize {
        let options = self.option_texts();
        let of_options: usize = options.iter().map(|(name, text)| name.len() + text.len()).sum();
        self.instructions.len() + of_options
    }

    /// Checks the number and the texts of its options.
    fn check(&self, question_idx: usize) -> Result<(), DecideError> {
        let (found, maximum) = match &self.kind {
            QuestionKind::Predicate { yes, no } => {
                if [&self.instructions, yes, no]
                    .iter()
                    .all(|text| text.trim().is_empty())
                {
                    return Err(DecideError::NothingAsked { question_idx });
                }
                (2, 2)
            }
            QuestionKind::Choice(options) => (options.len(), MAX_OPTIONS),
            QuestionKind::Score(levels) => (levels.len(), MAX_LEVELS),
        };
        if found == 0 || found > maximum {
            return Err(DecideError::OptionCount {
                question_idx,
                found,
                minimum: 1,
                maximum,
            });
        }
        let options = self.option_texts();
        let parts = options
            .iter()
            .map(|(name, text)| (name.len() + text.len(), MAX_OPTION_BYTES));
        let parts = parts.chain([(self.instructions.len(), MAX_INSTRUCTION_BYTES)]);
        for (found_bytes, maximum_bytes) in parts {
            if found_bytes > maximum_bytes {
                return Err(DecideError::PartTooLong {
                    question_idx,
                    found_bytes,
                    maximum_bytes,
                });
            }
        }
        for (second_idx, option) in options.iter().enumerate() {
            if let Some(first_idx) = options[..second_idx].iter().position(|other| other == option) {
                return Err(DecideError::SameOptions {
                    question_idx,
                    first_idx,
                    second_idx,
                });
            }
        }
        Ok(())
    }

    /// Lists orders in which the options are shown, at most `n` different ones: the given one, then its reverse, then the next
    /// rotation and its reverse. Levels and the two answers of a predicate keep their order or are reversed.
    pub(crate) fn orders(&self, n: usize) -> Vec<Vec<usize>> {
        let n_options = self.n_options();
        let n_pairs = match &self.kind {
            QuestionKind::Choice(_) => n.div_ceil(2),
            QuestionKind::Predicate { .. } | QuestionKind::Score(_) => 1,
        };
        let mut orders: Vec<Vec<usize>> = Vec::new();
        for pair_idx in 0..n_pairs {
            let mut order: Vec<usize> = (0..n_options).collect();
            order.rotate_left(pair_idx * n_options / n_pairs);
            let reversed = order.iter().rev().copied().collect();
            for order in [order, reversed] {
                if orders.len() < n && !orders.contains(&order) {
                    orders.push(order);
                }
            }
        }
        orders
    }
}

/// Checks the number of questions of a request.
pub(crate) fn check_count(found: usize) -> Result<(), DecideError> {
    let maximum = MAX_QUESTIONS;
    if found == 0 || found > maximum {
        return Err(DecideError::QuestionCount { found, maximum });
    }
    Ok(())
}

/// Checks the questions of a request about a state of `state_bytes`, asked in `permutations` orders.
pub(crate) fn check(
    questions: &[Question],
    state_bytes: usize,
    permutations: usize,
) -> Result<(), DecideError> {
    check_count(questions.len())?;
    if permutations == 0 || permutations > MAX_PERMUTATIONS {
        return Err(DecideError::Permutations {
            found: permutations,
            maximum: MAX_PERMUTATIONS,
        });
    }
    let (mut n_rows, mut found_bytes) = (0, 0_usize);
    for (question_idx, question) in questions.iter().enumerate() {
        question.check(question_idx)?;
        let n_orders = question.orders(permutations).len();
        n_rows += n_orders;
        let n_bytes = state_bytes.saturating_add(question.n_bytes());
        found_bytes = found_bytes.saturating_add(n_bytes.saturating_mul(n_orders));
    }
    if n_rows > MAX_ROWS {
        return Err(DecideError::RowCount {
            found: n_rows,
            maximum: MAX_ROWS,
        });
    }
    if found_bytes > MAX_TEXT_BYTES {
        return Err(DecideError::TextTooLong {
            found_bytes,
            maximum_bytes: MAX_TEXT_BYTES,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_differ_and_begin_with_the_given_one() {
        let question = Question::choice("Which?", ["a", "b", "c", "d"]);
        assert_eq!(question.orders(1), [[0, 1, 2, 3]]);
        assert_eq!(question.orders(2), [[0, 1, 2, 3], [3, 2, 1, 0]]);
        assert_eq!(
            question.orders(4),
            [[0, 1, 2, 3], [3, 2, 1, 0], [2, 3, 0, 1], [1, 0, 3, 2]]
        );
        let pair = Question::choice("Which?", ["a", "b"]);
        assert_eq!(pair.orders(MAX_PERMUTATIONS).len(), 2, "there are no more");
        assert_eq!(Question::choice("Which?", ["a"]).orders(4), [[0]]);
        let score = Question::score("How much?", ["little", "some", "much"]);
        assert_eq!(score.orders(8), [[0, 1, 2], [2, 1, 0]]);
        assert_eq!(Question::predicate("Is it?").orders(3), [[0, 1], [1, 0]]);
    }

    #[test]
    fn a_request_is_bounded_before_it_is_read() {
        let predicate = || Question::predicate("Is it?");
        let names = |n: usize| (0..n).map(|idx| idx.to_string()).collect::<Vec<_>>();
        let choice = |n: usize| Question::choice("Which?", names(n).iter().map(String::as_str));
        let long = "x".repeat(1 << 20);
        let checked = |questions: &[Question], permutations| check(questions, 4, permutations);
        for accepted in [vec![predicate(); MAX_QUESTIONS], vec![choice(MAX_OPTIONS)]] {
            assert_eq!(checked(&accepted, 2), Ok(()));
        }
        let refused = |questions: &[Question], permutations, expected: &str| {
            let error = checked(questions, permutations).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        refused(&[], 1, "0 questions, expected 1 to 400");
        refused(&vec![predicate(); 10_000], 1, "10000 questions");
        refused(&[predicate()], 0, "0 orders");
        refused(&[predicate()], 17, "17 orders");
        refused(&vec![choice(9); 400], 4, "1600 prompts");
        refused(&[choice(0)], 1, "0 options, expected 1 to 255");
        refused(&[choice(256)], 1, "256 options");
        refused(
            &[Question::score("How?", names(11))],
            1,
            "11 options, expected 1 to 10",
        );
        refused(
            &[Question::choice("Which?", [long.as_str()])],
            1,
            "a text of 1048576 bytes",
        );
        refused(
            &[Question::predicate(long.as_str())],
            1,
            "a text of 1048576 bytes",
        );
        refused(&[Question::predicate(" ")], 1, "asks nothing");
        refused(
            &[Question::choice("Which?", ["a", "b", "a"])],
            1,
            "options 1 and 3",
        );
        let error = check(&vec![predicate(); 100], 1 << 20, 1).unwrap_err();
        assert!(matches!(error, DecideError::TextTooLong { .. }), "{error}");
    }
}
