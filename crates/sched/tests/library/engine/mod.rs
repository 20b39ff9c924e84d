//! Tests of the whole engine without its thread.

pub(crate) mod prompts_and_streams;
mod queue_counts;
mod simulation;
mod world;
