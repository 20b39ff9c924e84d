//! Tests of pages: what a reader of page events knows.

mod events;
pub(crate) mod known;
