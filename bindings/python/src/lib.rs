//! The Python module `tokenmill._native`: the front door for Python programs.
//!
//! Separate from the library because it speaks Python's types. The package around it (`python/tokenmill`) holds what is
//! easier to say in Python: asynchronous iteration and the plug-in for `llm`. Invariant: no thread waits for the engine
//! while it holds the interpreter.

#![forbid(unsafe_code)]
#![expect(
    clippy::needless_pass_by_value,
    reason = "Python's lists become vectors, which these functions own"
)]

mod adapters;
mod answer;
mod decision;
mod error;
mod fetch;
mod json;
mod model;
mod params;
mod stream;
mod wait;

use pyo3::prelude::*;

/// The native part of the package `tokenmill`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("Error", py.get_type::<error::Error>())?;
    module.add("LoadError", py.get_type::<error::LoadError>())?;
    module.add("RequestError", py.get_type::<error::RequestError>())?;
    module.add_class::<answer::Answer>()?;
    module.add_class::<answer::Piece>()?;
    module.add_class::<answer::ScoredToken>()?;
    module.add_class::<answer::ToolCall>()?;
    module.add_class::<decision::Decision>()?;
    module.add_class::<answer::Usage>()?;
    module.add_class::<model::Model>()?;
    module.add_class::<stream::Stream>()
}
