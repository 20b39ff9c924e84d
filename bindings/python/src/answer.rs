//! Answers as Python objects: plain data that cannot be changed.
//!
//! Invariant: field names are the library's own, so that its documentation holds here too.

use pyo3::{prelude::*, types::PyDict};
use serde_json::Value;
use tokenmill::FinishReason;

use crate::json;

/// A tool that the model calls.
#[pyclass(frozen, module = "tokenmill")]
#[derive(Clone)]
pub(crate) struct ToolCall(tokenmill::ToolCall);

impl From<&tokenmill::ToolCall> for ToolCall {
    fn from(call: &tokenmill::ToolCall) -> Self {
        Self(call.clone())
    }
}

#[pymethods]
impl ToolCall {
    /// Names the call when its result is sent back.
    #[getter]
    fn id(&self) -> &str {
        &self.0.id
    }

    /// The tool.
    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    /// The arguments as a dict; of a call that was cut, those that are certainly whole. Each access makes a new one.
    #[getter]
    fn arguments<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match json::to_python(py, &self.0.arguments) {
            Ok(arguments) if arguments.is_instance_of::<PyDict>() => Ok(arguments),
            _ => json::to_python(py, &Value::Object(self.0.whole_arguments()).to_string()),
        }
    }

    /// The arguments as the model wrote them, a JSON object as text; of a call that was cut, its beginning, or empty.
    #[getter]
    fn arguments_json(&self) -> &str {
        &self.0.arguments
    }

    /// As it stands in `tool_calls` of a message that goes back to the model.
    fn to_openai<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        json::to_python(py, &self.0.to_openai().to_string())
    }

    fn __repr__(&self) -> String {
        format!("ToolCall(name={:?}, arguments={})", self.0.name, self.0.arguments)
    }
}

/// A token with its log-probability.
#[pyclass(frozen, get_all, module = "tokenmill")]
#[derive(Clone)]
pub(crate) struct ScoredToken {
    /// The token.
    id: u32,
    /// Its log-probability; `None` unless `logprobs` was given.
    logprob: Option<f32>,
    /// The likeliest tokens in its place with their log-probabilities.
    top: Vec<(u32, f32)>,
}

impl From<tokenmill::stream::ScoredToken> for ScoredToken {
    fn from(token: tokenmill::stream::ScoredToken) -> Self {
        Self {
            id: token.id,
            logprob: token.logprob,
            top: token.top.iter().map(|top| (top.id, top.logprob)).collect(),
        }
    }
}

/// The tokens that an answer took.
#[pyclass(frozen, get_all, module = "tokenmill")]
#[derive(Clone)]
#[expect(
    clippy::struct_field_names,
    reason = "the names that the library and OpenAI's API have"
)]
pub(crate) struct Usage {
    /// Tokens of the prompt.
    prompt_tokens: usize,
    /// Tokens of the prompt that were in the prefix cache.
    cached_tokens: usize,
    /// Tokens generated.
    completion_tokens: usize,
    /// Generated tokens that are reasoning.
    reasoning_tokens: usize,
}

#[pymethods]
impl Usage {
    fn __repr__(&self) -> String {
        format!(
            "Usage(prompt_tokens={}, cached_tokens={}, completion_tokens={}, reasoning_tokens={})",
            self.prompt_tokens, self.cached_tokens, self.completion_tokens, self.reasoning_tokens
        )
    }
}

/// A finished answer.
#[pyclass(frozen, module = "tokenmill")]
pub(crate) struct Answer(tokenmill::Answer);

impl From<tokenmill::Answer> for Answer {
    fn from(answer: tokenmill::Answer) -> Self {
        Self(answer)
    }
}

#[pymethods]
impl Answer {
    /// The text; neither reasoning nor calls are part of it.
    #[getter]
    fn text(&self) -> &str {
        &self.0.text
    }

    /// The model's reasoning before the answer, where its format marks it.
    #[getter]
    fn reasoning(&self) -> &str {
        &self.0.reasoning
    }

    /// The tools that it calls.
    #[getter]
    fn calls(&self) -> Vec<ToolCall> {
        self.0.calls.iter().map(ToolCall::from).collect()
    }

    /// The call within which a limit of tokens cut it. Its `arguments` are those that are whole.
    #[getter]
    fn cut_call(&self) -> Option<ToolCall> {
        self.0.cut_call.as_ref().map(ToolCall::from)
    }

    /// The tokens of the text.
    #[getter]
    fn tokens(&self) -> Vec<ScoredToken> {
        self.0.tokens.iter().cloned().map(ScoredToken::from).collect()
    }

    /// Why it ended: `stop`, `length`, `tool_calls` or `cancelled`.
    #[getter]
    fn finish_reason(&self) -> &'static str {
        match self.0.finish {
            FinishReason::Stop if !self.0.calls.is_empty() => "tool_calls",
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Cancelled => "cancelled",
        }
    }

    /// The tokens that the answer took.
    #[getter]
    fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.0.usage.prompt_tokens,
            cached_tokens: self.0.usage.cached_tokens,
            completion_tokens: self.0.usage.completion_tokens,
            reasoning_tokens: self.0.reasoning_tokens,
        }
    }

    /// Seconds from the request to its first token.
    #[getter]
    fn seconds_to_first_token(&self) -> f64 {
        self.0.timings.first_token.as_secs_f64()
    }

    /// Seconds from the request to its end.
    #[getter]
    fn seconds(&self) -> f64 {
        self.0.timings.total.as_secs_f64()
    }

    fn __str__(&self) -> &str {
        &self.0.text
    }

    fn __repr__(&self) -> String {
        format!(
            "Answer(text={:?}, finish_reason={:?})",
            self.0.text,
            self.finish_reason()
        )
    }
}

/// The next piece of an answer.
#[pyclass(frozen, get_all, module = "tokenmill")]
pub(crate) struct Piece {
    /// More text; may be empty.
    text: String,
    /// More reasoning; may be empty.
    reasoning: String,
    /// The tokens that became text.
    tokens: Vec<ScoredToken>,
}

impl From<tokenmill::Delta> for Piece {
    fn from(delta: tokenmill::Delta) -> Self {
        let reasoning = delta.parts.iter().filter_map(|part| match part {
            tokenmill::tools::Part::Reasoning(text) => Some(text.as_str()),
            _ => None,
        });
        Self {
            reasoning: reasoning.collect(),
            text: delta.text,
            tokens: delta.tokens.into_iter().map(ScoredToken::from).collect(),
        }
    }
}

#[pymethods]
impl Piece {
    fn __str__(&self) -> &str {
        &self.text
    }

    fn __repr__(&self) -> String {
        format!("Piece(text={:?}, reasoning={:?})", self.text, self.reasoning)
    }
}
