//! The parts of requests that several APIs share: how a body is received, bounded, checked against its table and read.
//!
//! Invariant: nothing here knows the request types of one API, which are in [`dialects`](crate::dialects).

pub(crate) mod constraints;
pub(crate) mod earlier_calls;
pub(crate) mod effort;
pub mod fields;
pub(crate) mod foreign;
pub(crate) mod images;
pub(crate) mod intake;
pub(crate) mod off_thread;
pub(crate) mod paths;
pub(crate) mod raw_prompt;
pub(crate) mod request_table;
pub mod sampling;
pub(crate) mod shape_sizes;
mod silent_fields;
pub(crate) mod tools;
mod value_words;
mod zstd_body;
