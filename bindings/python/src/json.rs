//! Python values as JSON and back, by Python's own `json`.
//!
//! Messages, tools and schemas are JSON in the library. Invariant: what `json.dumps` refuses is an error that names the
//! argument.

use pyo3::{exceptions::PyTypeError, prelude::*};
use serde_json::Value;

/// Turns `value`, the argument `name`, into JSON.
pub(crate) fn from_python(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Value> {
    let refused = |error: &dyn std::fmt::Display| PyTypeError::new_err(format!("{name}: {error}"));
    let json = value.py().import("json")?;
    let text: String = json
        .call_method1("dumps", (value,))
        .and_then(|text| text.extract())
        .map_err(|error| refused(&error))?;
    serde_json::from_str(&text).map_err(|error| refused(&error))
}

/// Turns JSON text into a Python value, with numbers of any size.
pub(crate) fn to_python<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("json")?.call_method1("loads", (text,))
}
