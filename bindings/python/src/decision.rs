//! Decisions as Python objects: probabilities of the options of a question.
//!
//! Apart from answers, which have text. Invariant: options have the names that the question gives them.

use pyo3::{prelude::*, types::PyDict};
use tokenmill::decide::{Question, QuestionKind};

/// The answer to a typed question.
#[pyclass(frozen, module = "tokenmill")]
pub(crate) struct Decision {
    options: Vec<String>,
    kind: &'static str,
    answer: tokenmill::decide::Decision,
}

impl Decision {
    pub(crate) fn new(question: &Question, decision: tokenmill::decide::Decision) -> Self {
        let (kind, options) = match &question.kind {
            QuestionKind::Predicate { .. } => ("noul", vec!["yes".to_owned(), "no".to_owned()]),
            QuestionKind::Choice(options) => {
                let names = options.iter().map(|option| option.name.clone());
                ("choice", names.collect())
            }
            QuestionKind::Score(levels) => ("score", levels.clone()),
        };
        Self {
            options,
            kind,
            answer: decision,
        }
    }
}

#[pymethods]
impl Decision {
    /// The type of the question: `noul`, `choice` or `score`.
    #[getter]
    fn r#type(&self) -> &'static str {
        self.kind
    }

    /// The likeliest option: a name of a choice, a level of a score, `yes` or `no`.
    #[getter]
    fn choice(&self) -> &str {
        &self.options[self.answer.likeliest()]
    }

    /// The probability of each option, in the order of the question.
    #[getter]
    fn probabilities<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let probabilities = PyDict::new(py);
        for (option, probability) in self.options.iter().zip(&self.answer.probabilities) {
            probabilities.set_item(option, probability)?;
        }
        Ok(probabilities)
    }

    /// The probability of yes; `None` unless the question is a `noul`.
    #[getter]
    fn noul(&self) -> Option<f64> {
        (self.kind == "noul").then(|| self.answer.probabilities[0])
    }

    /// The expected level, counted from 0; `None` unless the question is a `score`.
    #[getter]
    fn score(&self) -> Option<f64> {
        (self.kind == "score").then(|| self.answer.expected_level())
    }

    /// How sure a choice or a score is, from 0 to 1; `None` for a `noul`.
    #[getter]
    fn confidence(&self) -> Option<f64> {
        match self.kind {
            "choice" => Some(self.answer.choice_confidence()),
            "score" => Some(self.answer.score_confidence()),
            _ => None,
        }
    }

    /// The share that the labels of the options have of the probability of all tokens, from 0 to 1. Near 0 the model wanted to write
    /// something else, and the probabilities mean little. Always 1 for a decision head.
    #[getter]
    fn label_mass(&self) -> f64 {
        self.answer.label_mass
    }

    fn __repr__(&self) -> String {
        let probability = self.answer.probabilities[self.answer.likeliest()];
        format!(
            "Decision(type={:?}, choice={:?}, probability={probability:.3})",
            self.kind,
            self.choice()
        )
    }
}
