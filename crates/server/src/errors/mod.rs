//! Refusals and failures: one type, its form in each API, and the table from which they are documented.

pub(crate) mod api_error;
pub(crate) mod decide_error;
pub(crate) mod dialect;
mod engine_error;
pub(crate) mod error_table;
mod field_path;
