//! The memory of this machine, and whether a load on the CPU can ever fit into it.
//!
//! Separate because only this file knows where a system says what memory it has. Invariant: a load is refused where the
//! whole machine is too small, or where its weights do not fit into what is available now; where a size is unknown,
//! nothing is refused.

use std::fs;

use tokenmill::Compute;
use tokenmill_backend::MemoryPlan;
use tokenmill_model::{Model, ModelOptions};

use crate::{commands::inspect::size, failure::Failure};

/// Bytes of memory that a program can have here at most, swap included; `None` where the system does not say.
pub(crate) fn machine_bytes() -> Option<u64> {
    // Neither file exists on other systems, and the second only within a control group.
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let limit = fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    most_bytes(&meminfo, limit.as_deref())
}

/// What `/proc/meminfo` and the `memory.max` of a control group allow, in bytes. Such a limit is one of main memory, which
/// leaves the swap.
fn most_bytes(meminfo: &str, memory_max: Option<&str>) -> Option<u64> {
    let main = field_bytes(meminfo, "MemTotal:")?;
    let swap = field_bytes(meminfo, "SwapTotal:").unwrap_or(0);
    // Without a limit it says `max`.
    let limit = memory_max.and_then(|text| text.trim().parse().ok());
    Some(main.min(limit.unwrap_or(u64::MAX)).saturating_add(swap))
}

/// A field of `/proc/meminfo`, in bytes.
fn field_bytes(meminfo: &str, name: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(1024)
}

/// Why a load of this plan cannot fit into `machine_bytes`, if it cannot.
pub(crate) fn refusal(plan: &MemoryPlan, machine_bytes: Option<u64>) -> Option<Failure> {
    let machine_bytes = machine_bytes?;
    let needed_bytes = plan.total_bytes();
    if needed_bytes as u64 <= machine_bytes {
        return None;
    }
    let hint = if needed_bytes.saturating_sub(plan.kv_bytes) as u64 > machine_bytes {
        "no context is small enough; take a model of fewer or smaller weights"
    } else {
        "give a smaller context with -c, or a smaller --kv-cache-tokens where that is given"
    };
    let failure = Failure::input(format!(
        "the model needs {} of memory, {} of it for keys and values, and this machine has {} in all",
        size(needed_bytes),
        size(plan.kv_bytes),
        size(machine_bytes as usize)
    ));
    Some(failure.hint(hint))
}

/// Bytes of memory that are available now, swap included: free, or used for what can be dropped.
fn available_bytes() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let limit = fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let main = field_bytes(&meminfo, "MemAvailable:")?;
    let swap = field_bytes(&meminfo, "SwapFree:").unwrap_or(0);
    Some(
        main.saturating_add(swap)
            .min(most_bytes(&meminfo, limit.as_deref())?),
    )
}

/// Why the weights of this plan do not fit into what is available, if they do not. Keys, values and activations take memory
/// only as they are written.
fn refusal_now(plan: &MemoryPlan, available_bytes: Option<u64>) -> Option<Failure> {
    let available_bytes = available_bytes?;
    if plan.weights_bytes as u64 <= available_bytes {
        return None;
    }
    let failure = Failure::input(format!(
        "the model's weights take {} of memory, and {} are available now",
        size(plan.weights_bytes),
        size(available_bytes as usize)
    ));
    Some(failure.hint("end other programs, or take a model of fewer or smaller weights"))
}

/// A plan in words.
pub(crate) fn plan_text(plan: &MemoryPlan, n_ctx: usize) -> String {
    format!(
        "{} with a context of {n_ctx} tokens: weights {}, keys and values {}, activations {}, workspace {}",
        size(plan.total_bytes()),
        size(plan.weights_bytes),
        size(plan.kv_bytes),
        size(plan.activations_bytes),
        size(plan.workspace_bytes),
    )
}

/// What to say about a plan that may come to take more than is available.
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

/// Plans a load on the CPU, and refuses one that cannot fit into this machine. `None` where the plan fails, which is left to
/// the load to say.
///
/// # Errors
/// A plan of more memory than the machine has, or weights beyond what is available.
pub(crate) fn check(
    model: &Model,
    options: &ModelOptions,
    compute: &Compute,
) -> Result<Option<MemoryPlan>, Failure> {
    // One thread is enough to plan, and its workspace is the smallest.
    let one_thread = Compute {
        n_threads: Some(1),
        n_prefill_threads: None,
        ..compute.clone()
    };
    let plan = (one_thread.cpu_backend())
        .and_then(|backend| model.plan(&backend, options))
        .ok();
    let refused = plan
        .as_ref()
        .and_then(|plan| refusal(plan, machine_bytes()).or_else(|| refusal_now(plan, available_bytes())));
    refused.map_or(Ok(plan), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str =
        "MemTotal:       24684092 kB\nMemFree:          123456 kB\nSwapTotal:          1024 kB\n";

    #[test]
    fn the_machines_memory_is_read_with_the_limit_of_a_group() {
        let main = 24_684_092 << 10;
        let swap = 1 << 20;
        for (limit, expected) in [
            (None, main + swap),
            (Some("max\n"), main + swap),
            (Some("4294967296\n"), (4 << 30) + swap),
            (Some("18446744073709551615\n"), main + swap),
        ] {
            assert_eq!(most_bytes(MEMINFO, limit), Some(expected), "{limit:?}");
        }
        assert_eq!(most_bytes("MemTotal: 2 kB\n", None), Some(2048));
        for unknown in ["", "MemFree: 2 kB\n", "MemTotal: 2\n", "MemTotal: many kB\n"] {
            assert_eq!(most_bytes(unknown, Some("1")), None, "{unknown:?}");
        }
    }

    #[test]
    fn only_a_plan_beyond_the_whole_memory_is_refused() {
        let plan = MemoryPlan {
            weights_bytes: 1 << 20,
            kv_bytes: 6 << 20,
            kv_page_bytes: 1 << 20,
            n_pages: 6,
            activations_bytes: 1 << 20,
            workspace_bytes: 0,
        };
        let line = |machine_bytes| refusal(&plan, machine_bytes).map(|failure| failure.line());
        assert_eq!(line(None), None);
        assert_eq!(line(Some(8 << 20)), None);
        insta::assert_snapshot!(
            line(Some((8 << 20) - 1)).unwrap(),
            @"error: the model needs 8.0 MiB of memory, 6.0 MiB of it for keys and values, and this machine has 8.0 MiB in all (hint: give a smaller context with -c, or a smaller --kv-cache-tokens where that is given)"
        );
        insta::assert_snapshot!(
            line(Some(1 << 20)).unwrap(),
            @"error: the model needs 8.0 MiB of memory, 6.0 MiB of it for keys and values, and this machine has 1.0 MiB in all (hint: no context is small enough; take a model of fewer or smaller weights)"
        );
    }

    #[test]
    fn weights_beyond_what_is_available_are_refused() {
        let plan = MemoryPlan {
            weights_bytes: 2 << 20,
            kv_bytes: 6 << 20,
            kv_page_bytes: 1 << 20,
            n_pages: 6,
            activations_bytes: 1 << 20,
            workspace_bytes: 0,
        };
        assert!(refusal_now(&plan, None).is_none());
        assert!(refusal_now(&plan, Some(2 << 20)).is_none());
        insta::assert_snapshot!(
            refusal_now(&plan, Some(1 << 20)).unwrap().line(),
            @"error: the model's weights take 2.0 MiB of memory, and 1.0 MiB are available now (hint: end other programs, or take a model of fewer or smaller weights)"
        );
    }
}
