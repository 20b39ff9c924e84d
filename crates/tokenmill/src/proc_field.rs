//! [`field_bytes`]: a size in one of the files of `/proc`.
//!
//! The machine's memory and a process's address space have the same form there. Invariant: a value in another
//! form counts as unknown.
//!
//! Source: `proc_meminfo(5)`, `proc_pid_status(5)`.

/// Returns a field that is given in kB, in bytes.
pub(crate) fn field_bytes(meminfo: &str, name: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(1024)
}
