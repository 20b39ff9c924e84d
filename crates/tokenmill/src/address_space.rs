//! The limit of a process's address space (`ulimit -v`), and the unused part of it.
//!
//! Addresses count here even if they hold nothing yet, unlike in `machine_memory`. Invariant: without a
//! limit, nothing is limited.

/// Bytes that a load leaves to stacks of threads and to small allocations, which cannot fail with an error.
#[cfg(target_os = "linux")]
const RESERVE_BYTES: u64 = 32 << 20;

/// Returns the bytes that a load of this process can still map; `None` without a limit.
#[cfg(target_os = "linux")]
pub(crate) fn address_room_bytes() -> Option<u64> {
    use rustix::process::{Resource, getrlimit};

    let limit_bytes = getrlimit(Resource::As).current?;
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    room_of(limit_bytes, &status)
}

/// Returns `None`: other systems have no such limit, or do not report the unused part.
#[cfg(not(target_os = "linux"))]
pub(crate) fn address_room_bytes() -> Option<u64> {
    None
}

/// Returns the rest of a limit, after `/proc/self/status` and the reserve.
#[cfg(target_os = "linux")]
fn room_of(limit_bytes: u64, status: &str) -> Option<u64> {
    let mapped_bytes = crate::proc_field::field_bytes(status, "VmSize:")?;
    Some(limit_bytes.saturating_sub(mapped_bytes.saturating_add(RESERVE_BYTES)))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_room_is_what_is_not_mapped() {
        let status = "Name:\ttokenmill\nVmPeak:\t  300 kB\nVmSize:\t  200 kB\n";
        assert_eq!(room_of(RESERVE_BYTES + (300 << 10), status), Some(100 << 10));
        assert_eq!(room_of(300 << 10, status), Some(0));
        assert_eq!(room_of(1, "Name:\ttokenmill\n"), None);
    }
}
