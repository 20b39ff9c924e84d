//! [`DecisionFamily`]: how a model that was trained for decisions is asked, as its file says.
//!
//! Such a file names its family, and has the template of its prompts and the temperatures of its answers. Apart from the way in which
//! any chat model is asked, whose wording is this project's. Invariant: control tokens come from the file's template only; in a state
//! or a question, their spelling is text.
//!
//! Source: llama.cpp, `tools/server/server-decision.cpp` and `conversion/`.

mod flattened;
mod layout;
mod open;
mod variables;

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use tokenmill_backend::ExecutorLimits;
use tokenmill_sched::{ForwardParams, ForwardRows};
use tokenmill_text::{
    ChatPrompt, Tokenizer,
    template::{ChatContext, RenderOptions},
};

pub(crate) use self::open::{family_name, has_pointer_head, open_family};
use self::{layout::HeadLayout, variables::json_or_text};
use super::{
    question::{Question, QuestionKind},
    readout::Readout,
};
use crate::{Error, decide_error::DecideError};

/// The families whose files can be asked. Julia's files say that they are Laya's.
pub(crate) const FAMILIES: [&str; 5] = ["kev", "laya", "lev", "nimble", "openjev"];

/// Points of the scale on which Lev answers a yes/no question: certainly no first.
const N_RATINGS: usize = 9;

/// A model that was trained for decisions.
#[derive(Debug)]
pub(crate) struct DecisionFamily {
    kind: FamilyKind,
    prompt: ChatPrompt,
    /// By the type of question, and by that and the number of options.
    temperatures: BTreeMap<String, f64>,
}

/// The families.
#[derive(Debug)]
enum FamilyKind {
    /// A letter for each option.
    OpenJev(Labels),
    /// A code for each option; a choice is asked in two orders, and a yes/no question on a scale.
    Lev(Labels),
    /// A code for each option, with all questions of a request in each prompt.
    Nimble(Labels),
    /// A score at the mark before each option.
    Laya(HeadLayout),
    /// A key at the mark after each option, and a query at the end.
    Kev { mark: u32 },
}

/// The labels that a family has, in their order.
#[derive(Debug, Default)]
struct Labels {
    texts: Vec<String>,
    tokens: Vec<u32>,
}

/// A state in the form in which a family's template gets it.
#[derive(Debug)]
pub(crate) struct FamilyState(Value);

/// A prompt, and how its results become an answer.
#[derive(Debug)]
pub(crate) struct FamilyPrompt {
    pub(crate) tokens: Vec<u32>,
    pub(crate) readout: Readout,
}

impl DecisionFamily {
    /// Checks that there is a label for each option.
    pub(crate) fn check(&self, questions: &[Question]) -> Result<(), DecideError> {
        let maximum = self.max_options();
        for (question_idx, question) in questions.iter().enumerate() {
            let found = question.n_options();
            if found > maximum {
                return Err(DecideError::OptionCount {
                    question_idx,
                    found,
                    minimum: 1,
                    maximum,
                });
            }
        }
        Ok(())
    }

    /// Returns the most options of a question.
    fn max_options(&self) -> usize {
        match &self.kind {
            FamilyKind::OpenJev(labels) | FamilyKind::Lev(labels) | FamilyKind::Nimble(labels) => {
                labels.tokens.len()
            }
            FamilyKind::Laya(_) | FamilyKind::Kev { .. } => super::question::MAX_OPTIONS,
        }
    }

    /// Returns the temperature of a question's answers.
    pub(crate) fn temperature(&self, question: &Question) -> f64 {
        let n = question.n_options();
        let bucket = match &self.kind {
            FamilyKind::Lev(_) => match n {
                ..=8 => "small",
                9..=26 => "mid",
                _ => "large",
            },
            _ => match n {
                ..=2 => "2",
                3..=5 => "3_5",
                6..=10 => "6_10",
                _ => "11",
            },
        };
        let name = variables::type_name(question);
        let found = self.temperatures.get(&format!("{name}.{bucket}"));
        found
            .or_else(|| self.temperatures.get(name))
            .copied()
            .unwrap_or(1.0)
    }

    /// Returns the fewest orders in which a question is asked, and the bytes of questions that each prompt lists.
    pub(crate) fn extent(&self, questions: &[Question]) -> (usize, usize) {
        match &self.kind {
            FamilyKind::OpenJev(_) | FamilyKind::Laya(_) | FamilyKind::Kev { .. } => (1, 0),
            FamilyKind::Lev(_) => (2, 0),
            FamilyKind::Nimble(_) => (1, questions.iter().map(Question::n_bytes).sum()),
        }
    }

    /// Lists the orders in which a question's options are shown, at most `n` unless the family asks for more.
    pub(crate) fn orders(&self, question: &Question, n: usize) -> Vec<Vec<usize>> {
        // Families but one show no before yes.
        let is_predicate = matches!(question.kind, QuestionKind::Predicate { .. });
        let has_no_first = is_predicate && !matches!(self.kind, FamilyKind::OpenJev(_));
        let base = |option_idx: usize| if has_no_first { 1 - option_idx } else { option_idx };
        let n = match (&self.kind, &question.kind) {
            (FamilyKind::Lev(_), QuestionKind::Choice(_)) => n.max(2),
            (FamilyKind::Lev(_), QuestionKind::Predicate { .. }) => 1,
            _ => n,
        };
        let orders = question.orders(n).into_iter();
        orders
            .map(|order| order.into_iter().map(base).collect())
            .collect()
    }

    /// Reads a state, once for all prompts of a request.
    ///
    /// # Errors
    /// [`DecideError::IndentedTooLong`].
    pub(crate) fn read_state(&self, text: &str) -> Result<FamilyState, DecideError> {
        let mut state = json_or_text(text);
        variables::check_bytes([&state], None)?;
        match &self.kind {
            FamilyKind::Lev(_) => variables::sort_keys(&mut state),
            FamilyKind::Kev { .. } => state = flattened::flat_text(&state).into(),
            FamilyKind::OpenJev(_) | FamilyKind::Nimble(_) | FamilyKind::Laya(_) => {}
        }
        Ok(FamilyState(state))
    }

    /// Writes the prompt of a question whose options are shown in this order.
    ///
    /// # Errors
    /// [`DecideError::IndentedTooLong`], [`DecideError::OtherLayout`], and [`Error::Template`] where the file's template fails.
    ///
    /// # Panics
    /// If [`Self::check`] refuses the questions.
    pub(crate) fn prompt(
        &self,
        tokenizer: &Tokenizer,
        state: &FamilyState,
        asked: Asking<'_>,
        question_idx: usize,
        order: &[usize],
    ) -> Result<FamilyPrompt, Error> {
        let question = &asked.questions[question_idx];
        let labels = match &self.kind {
            FamilyKind::Lev(labels) | FamilyKind::Nimble(labels) => Some(&labels.texts[..]),
            FamilyKind::OpenJev(_) | FamilyKind::Laya(_) | FamilyKind::Kev { .. } => None,
        };
        let mut variables = Map::new();
        variables::insert_question(&mut variables, question, asked.name(question_idx), order, labels);
        match &self.kind {
            FamilyKind::Nimble(_) => {
                let all = asked
                    .questions
                    .iter()
                    .enumerate()
                    .map(|(question_idx, question)| {
                        let order = self.orders(question, 1).remove(0);
                        let mut variables = Map::new();
                        let name = asked.name(question_idx);
                        variables::insert_question(&mut variables, question, name, &order, labels);
                        Value::Object(variables)
                    });
                variables.insert("questions".to_owned(), all.collect());
            }
            FamilyKind::Lev(_) => variables.values_mut().for_each(variables::sort_keys),
            FamilyKind::Kev { .. } | FamilyKind::OpenJev(_) | FamilyKind::Laya(_) => {}
        }
        variables::check_bytes(variables.values(), Some(question_idx))?;
        if let FamilyKind::Kev { .. } = &self.kind {
            flattened::flatten_texts(&mut variables);
        }
        variables.insert("state".to_owned(), state.0.clone());
        variables.insert("images".to_owned(), Vec::<String>::new().into());
        let context = ChatContext {
            extra: variables,
            ..ChatContext::default()
        };
        let tokens = self
            .prompt
            .encode(tokenizer, &context, &RenderOptions::default())?;
        let place_of = |option_idx: usize| {
            let place = order.iter().position(|&shown| shown == option_idx);
            place.expect("an order has every option")
        };
        let n_options = question.n_options();
        let places = (0..n_options).map(place_of);
        Ok(match &self.kind {
            FamilyKind::Lev(labels) if matches!(question.kind, QuestionKind::Predicate { .. }) => {
                FamilyPrompt {
                    tokens,
                    readout: Readout::Scale(labels.tokens[..N_RATINGS].to_vec()),
                }
            }
            FamilyKind::OpenJev(labels) | FamilyKind::Lev(labels) | FamilyKind::Nimble(labels) => {
                FamilyPrompt {
                    tokens,
                    readout: Readout::Labels(places.map(|place| labels.tokens[place]).collect()),
                }
            }
            FamilyKind::Kev { mark } => {
                let marks = tokens.iter().enumerate().filter(|&(_, token)| token == mark);
                let marks: Vec<usize> = marks.map(|(place, _)| place).collect();
                if marks.len() != n_options {
                    return Err(DecideError::OtherLayout { question_idx }.into());
                }
                let rows = places.map(|place| marks[place] - marks[0]).collect();
                FamilyPrompt {
                    tokens,
                    readout: Readout::Pointer { rows },
                }
            }
            FamilyKind::Laya(layout) => {
                let (tokens, marks) =
                    (layout.cut(&tokens, n_options)).ok_or(DecideError::OtherLayout { question_idx })?;
                let rows = places.map(|place| marks[place] - marks[0]).collect();
                let column = variables::column(question);
                FamilyPrompt {
                    tokens,
                    readout: Readout::Marks { rows, column },
                }
            }
        })
    }

    /// Returns which rows of a prompt are read.
    pub(crate) fn rows(&self) -> RowsOfPrompt {
        match &self.kind {
            FamilyKind::Laya(layout) => RowsOfPrompt::FromMark(layout.mark),
            FamilyKind::Kev { mark } => RowsOfPrompt::FromMark(*mark),
            _ => RowsOfPrompt::LastLogits,
        }
    }
}

/// The rows of a prompt that make an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RowsOfPrompt {
    /// The logits of the last token.
    LastLogits,
    /// The network's rows from the first mark on.
    FromMark(u32),
}

impl RowsOfPrompt {
    /// Returns the parameters of the pass over a prompt.
    pub(crate) fn params(self, prompt: &[u32]) -> ForwardParams {
        let rows = match self {
            Self::LastLogits => ForwardRows::Logits,
            Self::FromMark(_) => ForwardRows::Hidden,
        };
        ForwardParams::new(rows, self.first(prompt))
    }

    /// Returns the bytes of a prompt's rows, which wait until they are read.
    pub(crate) fn n_bytes(self, prompt: &[u32], limits: &ExecutorLimits) -> usize {
        let width = match self {
            Self::LastLogits => limits.n_vocab,
            Self::FromMark(_) => limits.n_embd,
        };
        (prompt.len() - self.first(prompt)) * width * size_of::<f32>()
    }

    /// Returns the first token that has a row.
    fn first(self, prompt: &[u32]) -> usize {
        let last = prompt.len().saturating_sub(1);
        match self {
            Self::LastLogits => last,
            Self::FromMark(mark) => {
                let first = prompt.iter().position(|&token| token == mark);
                first.unwrap_or(last)
            }
        }
    }
}

/// The questions of a request with their names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking<'a> {
    pub(crate) questions: &'a [Question],
    /// Names, as far as there are any.
    pub(crate) names: &'a [String],
}

impl Asking<'_> {
    /// Returns the name of a question, or one by its number.
    fn name(&self, question_idx: usize) -> String {
        let name = self.names.get(question_idx).filter(|name| !name.is_empty());
        name.cloned()
            .unwrap_or_else(|| format!("question_{}", question_idx + 1))
    }
}
