//! Describes the memory of a load in words.
//!
//! Nothing is refused here. Invariant: nothing is said about an unknown size.

use tokenmill::{
    load::MemoryPlan,
    machine::{MemoryLimit, available_bytes, fits_with_less_context},
};

use crate::numbers::size;
pub(crate) use tokenmill::load::plan_text;

/// Says in a subordinate clause that a load takes more.
pub(crate) fn beyond_text(limit: MemoryLimit) -> &'static str {
    match limit {
        MemoryLimit::Machine { .. } => "which is more than this machine has",
        MemoryLimit::AddressSpace { .. } => "which is more than the limit of `ulimit -v` leaves",
    }
}

/// Warns, before loading, about a model that may need more memory than is available.
pub(crate) fn warning(plan: &MemoryPlan) -> Option<String> {
    let available_bytes = available_bytes()?;
    (plan.total_bytes() as u64 > available_bytes).then(|| {
        let what_helps = if fits_with_less_context(plan, available_bytes) {
            "a smaller context, `-c N`, takes less"
        } else {
            "no context is small enough: end other programs, or take a model of fewer or smaller weights"
        };
        format!(
            "with a full context the model takes {}, and {} are available now; {what_helps}",
            size(plan.total_bytes()),
            size(available_bytes as usize)
        )
    })
}
