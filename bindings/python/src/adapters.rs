//! The adapters that a model is loaded with.
//!
//! Separate because the argument has three forms. Invariant: an adapter that is given without a name applies to every request.

use std::path::PathBuf;

use pyo3::{
    exceptions::{PyTypeError, PyValueError},
    prelude::*,
    types::PyDict,
};
use tokenmill::{LoadOptions, adapters::AdapterSource};

/// Names an adapter that is given without a name.
const ONLY: &str = "lora";

/// Adds the adapters of the argument `lora` to a load, and gives the name of the one that all requests take.
pub(crate) fn read(lora: Option<&Bound<'_, PyAny>>, options: &mut LoadOptions) -> PyResult<Option<String>> {
    let Some(lora) = lora else {
        return Ok(None);
    };
    let Ok(named) = lora.cast::<PyDict>() else {
        options.adapters.push(adapter(ONLY.to_owned(), lora)?);
        return Ok(Some(ONLY.to_owned()));
    };
    for (name, lora) in named {
        options.adapters.push(adapter(name.extract()?, &lora)?);
    }
    options.max_adapters = options.max_adapters.max(options.adapters.len());
    Ok(None)
}

/// An adapter by a path, or by a path and its scale.
fn adapter(name: String, lora: &Bound<'_, PyAny>) -> PyResult<AdapterSource> {
    let (path, strength): (PathBuf, f32) = match lora.extract::<PathBuf>() {
        Ok(path) => (path, 1.0),
        Err(_) => lora.extract().map_err(|_| {
            PyTypeError::new_err("lora: say a path, or a path and a scale, or a dict of those by name")
        })?,
    };
    if !strength.is_finite() {
        return Err(PyValueError::new_err(format!(
            "lora: the scale {strength} is no number to multiply with"
        )));
    }
    Ok(AdapterSource { name, path, strength })
}
