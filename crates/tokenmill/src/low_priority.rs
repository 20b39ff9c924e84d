//! [`at_low_priority`]: work that gives way to what else runs on this machine.
//!
//! Separate because only this file knows how a system ranks threads. Invariant: the caller's thread keeps its priority; what the work
//! starts has the low one.

use std::{panic, thread};

/// Does work on a thread of low priority where the system has such threads (Linux), and waits for it. Threads that the work
/// starts have the low priority too, and keep it.
pub fn at_low_priority<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            lower_priority();
            work()
        });
        thread
            .join()
            .unwrap_or_else(|payload| panic::resume_unwind(payload))
    })
}

/// A tenth of the time of a thread of usual priority where both want the same processor.
#[cfg(target_os = "linux")]
fn lower_priority() {
    const STEPS: i32 = 10;
    // On Linux a thread has a priority of its own. Without the right to change it, the work is done all the same.
    let _ = rustix::process::nice(STEPS);
}

#[cfg(not(target_os = "linux"))]
fn lower_priority() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn only_the_work_has_the_low_priority() {
        let priority = || rustix::process::nice(0).expect("the system tells the priority");
        let before = priority();
        let (within, started) = at_low_priority(|| {
            let started = thread::spawn(priority).join().expect("it tells");
            (priority(), started)
        });
        assert!(within > before || before >= 19, "{before} {within}");
        assert_eq!(within, started);
        assert_eq!(priority(), before);
    }

    #[test]
    fn a_panic_is_passed_on() {
        let caught = panic::catch_unwind(|| at_low_priority(|| panic!("in the work")));
        assert!(caught.is_err());
    }
}
