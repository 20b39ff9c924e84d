//! Sizes and memory plans as text for people.

use tokenmill_backend::MemoryPlan;

/// Returns a number of bytes with a unit: `512 B`, `1.5 MiB`, `2.00 GiB`.
pub fn size(n_bytes: usize) -> String {
    let mut value = n_bytes as f64;
    for unit in ["B", "KiB", "MiB"] {
        if value < 1024.0 {
            return if unit == "B" {
                format!("{n_bytes} B")
            } else {
                format!("{value:.1} {unit}")
            };
        }
        value /= 1024.0;
    }
    format!("{value:.2} GiB")
}

/// Returns the memory plan of a load with a context of `n_ctx` tokens, part by part.
pub fn plan_text(plan: &MemoryPlan, n_ctx: usize) -> String {
    let part = |name: &str, n_bytes: usize| match n_bytes {
        0 => String::new(),
        _ => format!(", {name} {}", size(n_bytes)),
    };
    format!(
        "{} with a context of {n_ctx} tokens: weights {}, keys and values {}{}, activations {}, workspace {}{}",
        size(plan.total_bytes()),
        size(plan.weights_bytes),
        size(plan.kv_bytes),
        part("recurrent states", plan.states_bytes),
        size(plan.activations_bytes),
        size(plan.workspace_bytes),
        part("adapters", plan.adapters_bytes),
    )
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
