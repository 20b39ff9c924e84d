//! Describes the memory of a load in words.
//!
//! Separate from the failures because nothing is refused here. Invariant: where a size is unknown, nothing is said.

use tokenmill::{
    load::MemoryPlan,
    machine::{MemoryLimit, available_bytes},
};

use crate::numbers::size;

/// A plan in words.
pub(crate) fn plan_text(plan: &MemoryPlan, n_ctx: usize) -> String {
    let states = if plan.states_bytes > 0 {
        format!(", recurrent states {}", size(plan.states_bytes))
    } else {
        String::new()
    };
    let adapters = if plan.adapters_bytes > 0 {
        format!(", adapters {}", size(plan.adapters_bytes))
    } else {
        String::new()
    };
    format!(
        "{} with a context of {n_ctx} tokens: weights {}, keys and values {}{states}, activations {}, workspace {}{adapters}",
        size(plan.total_bytes()),
        size(plan.weights_bytes),
        size(plan.kv_bytes),
        size(plan.activations_bytes),
        size(plan.workspace_bytes),
    )
}

/// Says how much memory there is at most.
pub(crate) fn limit_text(limit: MemoryLimit) -> String {
    let n_bytes = size(limit.n_bytes() as usize);
    match limit {
        MemoryLimit::Machine { .. } => format!("this machine has {n_bytes} in all"),
        MemoryLimit::AddressSpace { .. } => format!("the limit of `ulimit -v` leaves {n_bytes}"),
    }
}

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
        format!(
            "with a full context the model takes {}, and {} are available now; a smaller context, `-c N`, takes less",
            size(plan.total_bytes()),
            size(available_bytes as usize)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_are_told_where_there_are_some() {
        let plan = |adapters_bytes| MemoryPlan {
            weights_bytes: 4 << 20,
            workspace_bytes: 2 << 20,
            adapters_bytes,
            ..MemoryPlan::default()
        };
        let text = plan_text(&plan(1 << 20), 64);
        assert!(
            text.starts_with("7.0 MiB ") && text.ends_with("workspace 2.0 MiB, adapters 1.0 MiB"),
            "{text}"
        );
        assert!(!plan_text(&plan(0), 64).contains("adapters"));
    }
}
