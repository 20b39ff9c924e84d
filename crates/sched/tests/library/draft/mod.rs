//! Tests of drafts: their gain in times of the test's own.

pub(crate) mod two_in_flight;
pub(crate) mod worth;
