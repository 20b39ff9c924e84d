//! The memory of this machine, and whether a load on the CPU can ever fit into it.
//!
//! Only this file knows where a machine reports its memory. Invariants: a limit of the address space counts
//! like too little memory; a load is refused if the whole machine is too small, or if its weights do not fit
//! into the available memory; an unknown size refuses nothing.

use std::fs;

use tokenmill_backend::{BackendError, MemoryPlan};
use tokenmill_cpu_exec::CpuExecError;
use tokenmill_model::LoadError;

use crate::{
    Error, address_space::address_room_bytes, group_memory::GroupMemory, memory_limit::MemoryLimit,
    proc_field::field_bytes,
};

/// Returns the most memory that this process can have; `None` where the system does not say.
pub fn memory_limit() -> Option<MemoryLimit> {
    Some(MemoryLimit::lower(memory_bytes()?, address_room_bytes()))
}

/// Returns the bytes of [`memory_limit`].
pub fn machine_bytes() -> Option<u64> {
    memory_limit().map(MemoryLimit::n_bytes)
}

/// Bytes of memory of this machine or control group, swap included, whatever the limit of the address space.
pub(crate) fn memory_bytes() -> Option<u64> {
    // Other systems have neither this file nor control groups.
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    most_bytes(&meminfo, GroupMemory::of_this_process())
}

/// Combines `/proc/meminfo` and control groups into the largest usable memory, in bytes. A limit of main memory does not limit swap.
fn most_bytes(meminfo: &str, group: GroupMemory) -> Option<u64> {
    let main = field_bytes(meminfo, "MemTotal:")?;
    let swap = field_bytes(meminfo, "SwapTotal:").unwrap_or(0);
    let main = main.min(group.limit_bytes.unwrap_or(u64::MAX));
    Some(main.saturating_add(swap.min(group.swap_limit_bytes.unwrap_or(u64::MAX))))
}

/// Bytes of some plans together, on the GPU and in main memory.
pub(crate) fn bytes_of<'a>(plans: impl IntoIterator<Item = &'a MemoryPlan>) -> u64 {
    plans.into_iter().fold(0, |sum: u64, plan| {
        let on_host = plan.on_host.as_deref().map_or(0, MemoryPlan::total_bytes);
        let n_bytes = plan.total_bytes().saturating_add(on_host);
        sum.saturating_add(n_bytes as u64)
    })
}

/// Bytes of memory that are available now, swap included: free, or used for data that can be dropped.
pub fn available_bytes() -> Option<u64> {
    let (main, swap) = available()?;
    Some(main.saturating_add(swap))
}

/// Does the same as [`available_bytes`], without swap.
pub fn available_main_bytes() -> Option<u64> {
    Some(available()?.0)
}

/// Main memory and swap that are available now.
fn available() -> Option<(u64, u64)> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let (main, swap) = available_of(&meminfo, GroupMemory::of_this_process())?;
    let room = address_room_bytes().unwrap_or(u64::MAX);
    let main = main.min(room);
    Some((main, swap.min(room - main)))
}

/// Returns the available memory by `/proc/meminfo`, or less if a control group has less left.
fn available_of(meminfo: &str, group: GroupMemory) -> Option<(u64, u64)> {
    let main = field_bytes(meminfo, "MemAvailable:")?;
    let swap = field_bytes(meminfo, "SwapFree:").unwrap_or(0);
    let main = main.min(group.left_bytes.unwrap_or(u64::MAX));
    Some((main, swap.min(group.swap_limit_bytes.unwrap_or(u64::MAX))))
}

/// Refuses weights that do not fit into the available memory. Keys, values and activations take memory only as they are
/// written.
pub(crate) fn check_available(plan: &MemoryPlan, available_bytes: Option<u64>) -> Result<(), Error> {
    match available_bytes {
        Some(available_bytes) if plan.weights_bytes as u64 > available_bytes => Err(Error::WeightsTooLarge {
            weights_bytes: plan.weights_bytes,
            available_bytes,
        }),
        _ => Ok(()),
    }
}

/// Refuses a split whose host's part is larger than the machine's memory, the host tier of the device's keys and values
/// included, or whose weights there are larger than what is available.
#[cfg(feature = "cuda")]
pub(crate) fn check_host_part(
    plan: &MemoryPlan,
    machine_bytes: Option<u64>,
    available_bytes: Option<u64>,
) -> Result<(), Error> {
    let Some(on_host) = plan.on_host.as_deref() else {
        return Ok(());
    };
    let all_bytes = on_host.total_bytes().saturating_add(plan.host_tier_bytes);
    let kv_bytes = on_host.kv_bytes.saturating_add(plan.host_tier_bytes);
    for (needed_bytes, kv_bytes, memory_bytes) in [
        (all_bytes as u64, kv_bytes as u64, machine_bytes),
        (on_host.weights_bytes as u64, 0, available_bytes),
    ] {
        match memory_bytes {
            Some(memory_bytes) if needed_bytes > memory_bytes => {
                return Err(Error::HostPartTooLarge {
                    needed_bytes,
                    kv_bytes,
                    memory_bytes,
                });
            }
            _ => {}
        }
    }
    Ok(())
}

/// Refuses a plan of more memory than this process can have, for a load on the CPU.
///
/// # Errors
/// [`Error::NotEnoughMemory`].
pub fn check_memory(plan: &MemoryPlan, limit: Option<MemoryLimit>) -> Result<(), Error> {
    match limit {
        Some(limit) if plan.total_bytes() as u64 > limit.n_bytes() => Err(Error::NotEnoughMemory {
            plan: Box::new(plan.clone()),
            limit,
        }),
        _ => Ok(()),
    }
}

/// Says whether a plan fits into this much memory if its context is small enough.
pub fn fits_with_less_context(plan: &MemoryPlan, n_bytes: u64) -> bool {
    plan.total_bytes().saturating_sub(plan.kv_bytes) as u64 <= n_bytes
}

/// Says whether a load failed because the system had no memory left for it.
pub fn lacks_memory(error: &LoadError) -> bool {
    match error.without_own_name() {
        LoadError::Backend(BackendError::Failed { source, .. }) => matches!(
            source.downcast_ref::<CpuExecError>(),
            Some(CpuExecError::OutOfMemory { .. })
        ),
        _ => false,
    }
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
        for (limit_bytes, swap_limit_bytes, expected) in [
            (None, None, main + swap),
            (Some(4 << 30), None, (4 << 30) + swap),
            (Some(u64::MAX), Some(u64::MAX), main + swap),
            (Some(4 << 30), Some(0), 4 << 30),
        ] {
            let group = GroupMemory {
                limit_bytes,
                swap_limit_bytes,
                ..GroupMemory::default()
            };
            assert_eq!(most_bytes(MEMINFO, group), Some(expected), "{group:?}");
        }
        let none = GroupMemory::default();
        assert_eq!(most_bytes("MemTotal: 2 kB\n", none), Some(2048));
        for unknown in ["", "MemFree: 2 kB\n", "MemTotal: 2\n", "MemTotal: many kB\n"] {
            assert_eq!(most_bytes(unknown, none), None, "{unknown:?}");
        }
    }

    #[test]
    fn what_a_group_holds_already_is_not_available() {
        let meminfo = "MemAvailable: 8388608 kB\nSwapFree: 1024 kB\n";
        let (main, swap) = (8 << 30, 1 << 20);
        for (left_bytes, swap_limit_bytes, expected) in [
            (None, None, (main, swap)),
            (Some(1 << 30), None, (1 << 30, swap)),
            (Some(0), Some(5), (0, 5)),
        ] {
            let group = GroupMemory {
                left_bytes,
                swap_limit_bytes,
                ..GroupMemory::default()
            };
            assert_eq!(available_of(meminfo, group), Some(expected), "{group:?}");
        }
        assert_eq!(available_of("MemTotal: 2 kB\n", GroupMemory::default()), None);
    }

    #[test]
    fn only_a_plan_beyond_the_whole_memory_is_refused() {
        let plan = MemoryPlan {
            weights_bytes: 1 << 20,
            kv_bytes: 6 << 20,
            activations_bytes: 1 << 20,
            ..MemoryPlan::default()
        };
        assert!(check_memory(&plan, None).is_ok());
        let check = |memory_bytes, room_bytes| {
            let checked = check_memory(&plan, Some(MemoryLimit::lower(memory_bytes, room_bytes)));
            checked.map_err(|error| error.to_string())
        };
        let enough = 8 << 20;
        for room_bytes in [None, Some(enough), Some(u64::MAX)] {
            assert_eq!(check(enough, room_bytes), Ok(()));
        }
        let needed = "the model needs 8.0 MiB of memory, 6.0 MiB of it for keys and values";
        let of_machine = Err(format!("{needed}, and this machine has 8.0 MiB in all"));
        for room_bytes in [None, Some(enough - 1), Some(enough)] {
            assert_eq!(check(enough - 1, room_bytes), of_machine);
        }
        assert_eq!(
            check(enough, Some(enough - 1)),
            Err(format!("{needed}, and the limit of `ulimit -v` leaves 8.0 MiB"))
        );
    }

    #[test]
    fn weights_beyond_what_is_available_are_refused() {
        let plan = MemoryPlan {
            weights_bytes: 2 << 20,
            kv_bytes: 6 << 20,
            activations_bytes: 1 << 20,
            ..MemoryPlan::default()
        };
        assert!(check_available(&plan, None).is_ok());
        assert!(check_available(&plan, Some(2 << 20)).is_ok());
        let error = check_available(&plan, Some(1 << 20)).expect_err("a MiB is missing");
        assert_eq!(
            error.to_string(),
            "the model's weights take 2.0 MiB of memory, and 1.0 MiB are available now"
        );
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn the_hosts_part_of_a_split_counts_the_devices_host_tier() {
        let on_host = MemoryPlan {
            weights_bytes: 2 << 20,
            kv_bytes: 1 << 20,
            ..MemoryPlan::default()
        };
        let plan = MemoryPlan {
            kv_bytes: 5 << 20,
            host_tier_bytes: 4 << 20,
            on_host: Some(Box::new(on_host.clone())),
            ..on_host
        };
        assert_eq!(plan.device_bytes(), 3 << 20);
        assert!(check_host_part(&plan, None, None).is_ok());
        assert!(check_host_part(&plan, Some(7 << 20), Some(2 << 20)).is_ok());
        let check = |machine, available, expected: &str, is_context_named: bool| {
            let error = check_host_part(&plan, machine, available).expect_err("a byte is missing");
            assert_eq!(error.to_string(), expected);
            let hint = error.hint().expect("a hint").for_program();
            assert_eq!(hint.contains("smaller context"), is_context_named, "{hint}");
        };
        check(
            Some((7 << 20) - 1),
            None,
            "the CPU's part of the model needs 7 MiB of memory, and there are 6 MiB",
            true,
        );
        check(
            Some(1 << 20),
            None,
            "the CPU's part of the model needs 7 MiB of memory, and there are 1 MiB",
            false,
        );
        check(
            Some(7 << 20),
            Some(1 << 20),
            "the CPU's part of the model needs 2 MiB of memory, and there are 1 MiB",
            false,
        );
    }
}
