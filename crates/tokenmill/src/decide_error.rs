//! [`DecideError`]: why a model cannot answer questions about a state.
//!
//! Apart from [`Error`](crate::Error), which carries it, because clients of a server read the place of the fault, and apart from
//! `decide`, which uses both. Invariant: an error about one question has its index.

use std::path::PathBuf;

use tokenmill_text::template::TemplateError;

/// Why questions cannot be answered.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DecideError {
    /// There is no question, or there are too many.
    #[error("{found} questions, expected 1 to {maximum}")]
    QuestionCount {
        /// Questions that there are.
        found: usize,
        /// The most that are answered.
        maximum: usize,
    },
    /// A number of orders that cannot be computed.
    #[error("{found} orders of the options, expected 1 to {maximum}")]
    Permutations {
        /// The requested number.
        found: usize,
        /// The largest number.
        maximum: usize,
    },
    /// The questions in all their orders are too many prompts.
    #[error(
        "the questions make {found} prompts with all orders of their options, and the limit is {maximum}"
    )]
    RowCount {
        /// Prompts that there would be.
        found: usize,
        /// The limit.
        maximum: usize,
    },
    /// A temperature that is not finite, or too small.
    #[error("the temperature {found} is not a number of 0.000001 or more")]
    Temperature {
        /// The requested temperature.
        found: f64,
    },
    /// The prompts of all questions together are too long.
    #[error(
        "the prompts of all questions have {found_bytes} bytes, since each repeats the state, and the limit is {maximum_bytes}; \
         shorten the state or ask fewer questions in a request"
    )]
    TextTooLong {
        /// Bytes of all prompts.
        found_bytes: usize,
        /// The limit.
        maximum_bytes: usize,
    },
    /// The state is too long for a model that was trained for decisions.
    #[error("the state has {found_bytes} bytes, and the limit for this model is {maximum_bytes}")]
    StateTooLong {
        /// Bytes of the state.
        found_bytes: usize,
        /// The limit.
        maximum_bytes: usize,
    },
    /// The objects and lists of a question or of the state take too many bytes in the lines in which a model's template writes them.
    #[error(
        "{found_bytes} bytes with a line for each entry of its objects and lists, and the limit is {maximum_bytes}; nest them \
         less deeply"
    )]
    IndentedTooLong {
        /// Index of the question; `None` where it is the state.
        question_idx: Option<usize>,
        /// Bytes with all indents.
        found_bytes: usize,
        /// The limit.
        maximum_bytes: usize,
    },
    /// The prompts have too many tokens together.
    #[error(
        "the first {n_prompts} prompts of the request have {found} tokens, since each repeats the state, and the limit of all \
         is {maximum}; shorten the state or ask fewer questions in a request"
    )]
    TokenCount {
        /// Prompts that were counted.
        n_prompts: usize,
        /// Their tokens.
        found: usize,
        /// The limit.
        maximum: usize,
    },
    /// The rows that answers are read from take too much memory.
    #[error(
        "the rows of scores of {n_prompts} prompts side by side take {found_bytes} bytes, and the limit is {maximum_bytes}; \
         shorten the options or ask fewer questions in a request"
    )]
    RowsTooLarge {
        /// Prompts whose rows are held at a time.
        n_prompts: usize,
        /// Bytes of their rows.
        found_bytes: usize,
        /// The limit.
        maximum_bytes: usize,
    },
    /// A question has too few or too many options.
    #[error("{found} options, expected {minimum} to {maximum}")]
    OptionCount {
        /// Index of the question.
        question_idx: usize,
        /// Options that it has.
        found: usize,
        /// The least.
        minimum: usize,
        /// The most.
        maximum: usize,
    },
    /// The instructions, or a text of an option, are too long.
    #[error("a text of {found_bytes} bytes, and the limit is {maximum_bytes}")]
    PartTooLong {
        /// Index of the question.
        question_idx: usize,
        /// Bytes of the text.
        found_bytes: usize,
        /// The limit.
        maximum_bytes: usize,
    },
    /// Two options have the same text.
    #[error("options {} and {} have the same text", first_idx + 1, second_idx + 1)]
    SameOptions {
        /// Index of the question.
        question_idx: usize,
        /// The first of the two.
        first_idx: usize,
        /// The second.
        second_idx: usize,
    },
    /// A predicate without instructions and descriptions.
    #[error("it asks nothing; give it instructions, or say when it is true")]
    NothingAsked {
        /// Index of the question.
        question_idx: usize,
    },
    /// A question in JSON that cannot be read.
    #[error("`{path}`: {reason}")]
    Json {
        /// Path of the value.
        path: String,
        /// Cause of the error.
        reason: String,
    },
    /// A field in JSON that is not known.
    #[error("unknown field `{path}`; the fields here are {}", known.join(", "))]
    UnknownField {
        /// Path of the field.
        path: String,
        /// Its name.
        name: String,
        /// The fields that its object may have.
        known: Vec<String>,
    },
    /// The state has too many images.
    #[error("{found} images, and the limit is {maximum}")]
    ImageCount {
        /// Images that there are.
        found: usize,
        /// The limit.
        maximum: usize,
    },
    /// The model has fewer labels than a question has options.
    #[error(
        "{found} options need as many labels, and after this model's prompt {n_labels} are one token each and differ"
    )]
    FewLabels {
        /// Index of the question.
        question_idx: usize,
        /// Options of the question.
        found: usize,
        /// Labels that the model has.
        n_labels: usize,
    },
    /// The chat template makes every answer begin with reasoning.
    #[error(
        "this model's chat template opens the reasoning of every answer and cannot close it, so no probability can be read \
         where an answer begins"
    )]
    OpenReasoning,
    /// The chat template writes something between a prompt and the text of an answer.
    #[error(
        "this model's chat template writes a head before the text of an answer, so no probability can be read where an \
         answer begins"
    )]
    AnswerHead,
    /// The chat template ends the prompt of a question in another way than that of other texts.
    #[error(
        "this model's chat template ends the prompt in another way than usual, as a switch such as `/think` in the text can make \
         it, so no probability can be read there"
    )]
    OtherEnd {
        /// Index of the question.
        question_idx: usize,
    },
    /// The model was trained for decisions of a kind that is not known here.
    #[error("the model was trained for decisions of the type `{found}`, which is not supported; supported are {}", supported.join(", "))]
    UnknownFamily {
        /// The type in its file.
        found: String,
        /// The types that are supported.
        supported: &'static [&'static str],
    },
    /// The file of a model that was trained for decisions lacks a key, or has it wrong.
    #[error("the model's file was made for decisions, and its key `{key}` is not {expected}")]
    FamilyKey {
        /// The key.
        key: String,
        /// The expected content.
        expected: &'static str,
    },
    /// The file of a model that was trained for decisions lacks a token.
    #[error(
        "the model's file was made for decisions, and its vocabulary lacks a token that they need: {token}"
    )]
    FamilyToken {
        /// The token.
        token: &'static str,
    },
    /// The template for decisions in the model's file cannot be used.
    #[error("the template for decisions in the model's file: {0}")]
    FamilyTemplate(TemplateError),
    /// The template for decisions in the model's file wrote a prompt of another form than its family's.
    #[error("the template for decisions in the model's file wrote a prompt without a mark for each option")]
    OtherLayout {
        /// Index of the question.
        question_idx: usize,
    },
    /// The file with fitted temperatures cannot be read or written.
    #[error("{}: {reason}", path.display())]
    TemperatureFile {
        /// Its path.
        path: PathBuf,
        /// Cause of the error.
        reason: String,
    },
    /// The network gave no usable numbers.
    #[error("the model's logits are not numbers; its weights may be damaged")]
    NoNumbers {
        /// Index of the question.
        question_idx: usize,
    },
}

impl DecideError {
    /// Makes a [`DecideError::Json`].
    pub fn json(path: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Json {
            path: path.into(),
            reason: reason.into(),
        }
    }

    /// Returns the index of the question at fault, if it is one.
    pub fn question_idx(&self) -> Option<usize> {
        match *self {
            Self::OptionCount { question_idx, .. }
            | Self::PartTooLong { question_idx, .. }
            | Self::SameOptions { question_idx, .. }
            | Self::NothingAsked { question_idx }
            | Self::FewLabels { question_idx, .. }
            | Self::OtherEnd { question_idx }
            | Self::OtherLayout { question_idx }
            | Self::NoNumbers { question_idx } => Some(question_idx),
            Self::IndentedTooLong { question_idx, .. } => question_idx,
            _ => None,
        }
    }
}
