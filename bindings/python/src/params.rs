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
use tokenmill::{
    Constraint, SamplingParams, TextParams,
    sampling::{DynamicTemperature, Mirostat, MirostatVersion, SamplerStep, Xtc},
};

use crate::json;

/// Reads the keyword arguments of a request, which is computed with the adapter `default` where they are silent about it.
pub(crate) fn read(arguments: Option<&Bound<'_, PyDict>>, default: Option<&str>) -> PyResult<TextParams> {
    let mut params = TextParams {
        adapter: default.map(str::to_owned),
        ..TextParams::default()
    };
    let (mut mirostat, mut tau, mut eta) = (0_u8, 5.0, 0.1);
    let mut steps = None;
    for (name, value) in arguments.into_iter().flatten() {
        let name: String = name.extract()?;
        if value.is_none() {
            continue;
        }
        match name.as_str() {
            "mirostat" => mirostat = number(&name, &value)?,
            "mirostat_tau" => tau = number(&name, &value)?,
            "mirostat_eta" => eta = number(&name, &value)?,
            "samplers" => steps = Some(steps_of(&number::<Vec<String>>(&name, &value)?)?),
            _ => set(&mut params, &name, &value)?,
        }
    }
    let version = match mirostat {
        0 => None,
        1 => Some(MirostatVersion::One),
        2 => Some(MirostatVersion::Two),
        other => {
            return Err(PyValueError::new_err(format!(
                "`mirostat` is {other}, expected 0, 1 or 2"
            )));
        }
    };
    params.sampling.mirostat = version.map(|version| Mirostat::new(version, tau, eta));
    if let Some(steps) = steps {
        params.sampling = params.sampling.with_steps(&steps);
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
        "top_n_sigma" => sampling.top_n_sigma = number(name, value)?,
        "xtc_probability" => xtc(sampling).probability = number(name, value)?,
        "xtc_threshold" => xtc(sampling).threshold = number(name, value)?,
        "dynatemp_range" => dynamic_temperature(sampling).range = number(name, value)?,
        "dynatemp_exponent" => dynamic_temperature(sampling).exponent = number(name, value)?,
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
        "lora" => {
            params.adapter = match value.extract::<bool>() {
                Ok(false) => None,
                Ok(true) => return Err(PyTypeError::new_err("lora: say the name of an adapter, or False")),
                Err(_) => Some(number(name, value)?),
            };
        }
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

/// Parses sampling steps by llama.cpp's names.
fn steps_of(names: &[String]) -> PyResult<Vec<SamplerStep>> {
    let steps = names.iter().map(|name| {
        SamplerStep::from_name(name).ok_or_else(|| {
            PyValueError::new_err(format!("`samplers` names `{name}`, which is not a sampling step"))
        })
    });
    steps.collect()
}

/// Returns XTC's parameters, which are off by default.
fn xtc(sampling: &mut SamplingParams) -> &mut Xtc {
    sampling.xtc.get_or_insert(Xtc {
        probability: 0.0,
        threshold: 0.1,
    })
}

/// Returns the dynamic temperature's parameters, which are off by default.
fn dynamic_temperature(sampling: &mut SamplingParams) -> &mut DynamicTemperature {
    sampling.dynamic_temperature.get_or_insert(DynamicTemperature {
        range: 0.0,
        exponent: 1.0,
    })
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
