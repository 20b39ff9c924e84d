//! The keyword arguments of a request.
//!
//! Separate because `complete`, `chat`, `stream`, `chat_stream` and `batch` take the same. Invariant: an unknown name is an
//! error, as for any Python function; the ranges are checked by the engine.

use std::time::Duration;

use pyo3::{
    exceptions::{PyTypeError, PyValueError},
    prelude::*,
    types::{PyDict, PyString},
};
use tokenmill::{Constraint, TextParams};

use crate::json;

/// Reads the keyword arguments of a request.
pub(crate) fn read(arguments: Option<&Bound<'_, PyDict>>) -> PyResult<TextParams> {
    let mut params = TextParams::default();
    for (name, value) in arguments.into_iter().flatten() {
        let name: String = name.extract()?;
        if !value.is_none() {
            set(&mut params, &name, &value)?;
        }
    }
    Ok(params)
}

fn set(params: &mut TextParams, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
    let sampling = &mut params.sampling;
    match name {
        "max_tokens" => params.max_tokens = Some(number(name, value)?),
        "min_tokens" => params.min_tokens = number(name, value)?,
        "temperature" => sampling.temperature = number(name, value)?,
        "top_k" => sampling.top_k = number(name, value)?,
        "top_p" => sampling.top_p = number(name, value)?,
        "min_p" => sampling.min_p = number(name, value)?,
        "typical_p" => sampling.typical_p = number(name, value)?,
        "repeat_penalty" => sampling.repeat_penalty = number(name, value)?,
        "presence_penalty" => sampling.presence_penalty = number(name, value)?,
        "frequency_penalty" => sampling.frequency_penalty = number(name, value)?,
        "penalty_last_n" => sampling.penalty_last_n = number(name, value)?,
        "seed" => sampling.seed = number(name, value)?,
        "logprobs" => sampling.n_logprobs = Some(number(name, value)?),
        "logit_bias" => {
            let biases: std::collections::BTreeMap<u32, f32> = number(name, value)?;
            sampling.logit_bias = biases.into_iter().collect();
        }
        "stop" => {
            params.stops = match value.cast::<PyString>() {
                Ok(stop) => vec![stop.to_string()],
                Err(_) => number(name, value)?,
            };
        }
        "schema" => {
            return constrain(
                params,
                name,
                Constraint::json_schema(json::from_python(name, value)?),
            );
        }
        "regex" => return constrain(params, name, Constraint::regex(number::<String>(name, value)?)),
        "choice" => {
            return constrain(
                params,
                name,
                Constraint::choice(number::<Vec<String>>(name, value)?),
            );
        }
        "grammar" => return constrain(params, name, Constraint::grammar(number::<String>(name, value)?)),
        "thinking_budget" => params.thinking_budget = Some(number(name, value)?),
        "ignore_eos" => params.ignore_eos = number(name, value)?,
        "timeout" => {
            let seconds: f64 = number(name, value)?;
            let deadline = Duration::try_from_secs_f64(seconds)
                .map_err(|error| PyValueError::new_err(format!("{name}: {error}")))?;
            params.deadline = Some(deadline);
        }
        _ => {
            return Err(PyTypeError::new_err(format!(
                "unexpected keyword argument '{name}'"
            )));
        }
    }
    Ok(())
}

/// A value of the type that the parameter has.
fn number<'py, T: FromPyObjectOwned<'py>>(name: &str, value: &Bound<'py, PyAny>) -> PyResult<T> {
    value.extract().map_err(|error: T::Error| {
        let error: PyErr = error.into();
        let text = error.value(value.py()).to_string();
        PyTypeError::new_err(format!("{name}: {text}"))
    })
}

/// Sets the shape of the answer, of which there is one.
fn constrain(params: &mut TextParams, name: &str, constraint: Constraint) -> PyResult<()> {
    match params.constraint.replace(constraint) {
        Some(_) => Err(PyTypeError::new_err(format!(
            "{name}: only one of schema, regex, choice and grammar can be given"
        ))),
        None => Ok(()),
    }
}
