//! Masks: which tokens a constrained sequence may continue with, computed by worker threads while steps run.
//!
//! The engine's loop orders masks and collects them (`engine/core/masks.rs`). Invariant: this module knows
//! constraints and tokens, and neither steps nor pages.

pub(crate) mod constraint;
pub(crate) mod next_mask;
pub(crate) mod text;
pub(crate) mod times;
pub(crate) mod workers;
