//! [`at_low_priority`]: runs work that yields to other work on this machine.
//!
//! Only this file knows how a system ranks threads. Invariant: the caller's thread keeps its priority;
//! threads that the work starts have the low one.

use std::{
    panic,
    sync::{Mutex, PoisonError},
    thread,
};

/// Does work on a thread of low priority where the system has such threads (Linux), and waits for it. Threads that the work
/// starts have the low priority too, and keep it. If the system starts no thread, the work has the caller's priority.
pub fn at_low_priority<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    at_low_priority_by(thread::Builder::new(), work)
}

fn at_low_priority_by<T: Send>(builder: thread::Builder, work: impl FnOnce() -> T + Send) -> T {
    // A thread that does not start drops its arguments.
    let work = Mutex::new(Some(work));
    let take = || {
        let work = work.lock().unwrap_or_else(PoisonError::into_inner).take();
        work.expect("it is done once")
    };
    thread::scope(|scope| {
        let started = builder.spawn_scoped(scope, || {
            lower_priority();
            take()()
        });
        match started {
            Ok(thread) => thread
                .join()
                .unwrap_or_else(|payload| panic::resume_unwind(payload)),
            Err(_) => take()(),
        }
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
    fn the_caller_does_the_work_if_no_thread_starts() {
        // More than any machine can map.
        let builder = thread::Builder::new().stack_size(1 << 62);
        let caller = thread::current().id();
        assert_eq!(at_low_priority_by(builder, || thread::current().id()), caller);
    }

    #[test]
    fn a_panic_is_passed_on() {
        let caught = panic::catch_unwind(|| at_low_priority(|| panic!("in the work")));
        assert!(caught.is_err());
    }
}
