//! Tests of masks: when they are computed, and how long steps wait for them.

mod later_steps;
mod missed;
mod missing_threads;
