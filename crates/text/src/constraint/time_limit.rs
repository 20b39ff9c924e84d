//! [`ThreadClock`] and [`TimeLeft`]: the time that a constraint may take to compile.
//!
//! Invariants: the compiler's own work is measured, so that other work of the machine refuses no constraint; a caller still waits for a
//! bounded time.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Reads how much CPU time a thread has used, from any thread.
///
/// Linux counts it for each thread. Elsewhere it is the time since the clock was made.
#[derive(Debug)]
pub(super) struct ThreadClock {
    /// The thread's folder in `/proc`.
    folder: Option<PathBuf>,
    begun: Instant,
}

impl ThreadClock {
    /// Makes a clock for the current thread, which must be new.
    pub(super) fn of_this_thread() -> Self {
        let folder = fs::read_link("/proc/thread-self").ok();
        let clock = Self {
            folder: folder.map(|folder| Path::new("/proc").join(folder)),
            begun: Instant::now(),
        };
        match clock.cpu_time() {
            Some(_) => clock,
            None => Self {
                folder: None,
                ..clock
            },
        }
    }

    /// Returns the time that the thread has used.
    pub(super) fn used(&self) -> Duration {
        self.cpu_time().unwrap_or_else(|| self.begun.elapsed())
    }

    /// Reads the nanoseconds that the scheduler has given to the thread; `None` if it keeps no count, or the thread has ended.
    fn cpu_time(&self) -> Option<Duration> {
        let text = fs::read_to_string(self.folder.as_ref()?.join("schedstat")).ok()?;
        let mut counts = text.split_whitespace().map(str::parse::<u64>);
        let nanos = counts.next()?.ok()?;
        // A thread that runs has had a turn, even if its time is still counted as zero.
        let n_turns = counts.nth(1)?.ok()?;
        (n_turns > 0).then(|| Duration::from_nanos(nanos))
    }
}

/// Holds the time that is left for a constraint.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeLeft {
    /// CPU time of the compiling thread.
    pub(super) cpu: Duration,
    /// Moment at which the caller stops waiting, however busy the machine is.
    pub(super) deadline: Instant,
}

impl TimeLeft {
    /// Returns three quarters of it.
    pub(super) fn three_quarters(self) -> Self {
        let now = Instant::now();
        let wall = self.deadline.saturating_duration_since(now);
        Self {
            cpu: self.cpu / 4 * 3,
            deadline: now + wall / 4 * 3,
        }
    }

    /// Returns how long to wait before the work is measured again; zero if the time is over.
    pub(super) fn next_wait(&self, used: Duration) -> Duration {
        /// Shortest wait that is worth a measurement.
        const LEAST: Duration = Duration::from_millis(5);
        let wall = self.deadline.saturating_duration_since(Instant::now());
        match self.cpu.saturating_sub(used) {
            Duration::ZERO => Duration::ZERO,
            left => left.max(LEAST).min(wall),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;

    #[test]
    fn work_of_a_thread_counts_and_its_sleep_does_not() {
        let (send, clocks) = mpsc::channel();
        let (finish, finished) = mpsc::channel::<()>();
        let worker = thread::spawn(move || {
            send.send(ThreadClock::of_this_thread()).unwrap();
            // Waits for the test's end.
            let _ = finished.recv();
        });
        let clock = clocks.recv().unwrap();
        thread::sleep(Duration::from_millis(300));
        if clock.folder.is_some() {
            assert!(clock.used() < Duration::from_millis(200), "{:?}", clock.used());
        }
        drop(finish);
        worker.join().unwrap();
        let own = thread::spawn(|| {
            let clock = ThreadClock::of_this_thread();
            let begun = Instant::now();
            let mut n_turns = 0_u64;
            while clock.used() < Duration::from_millis(50) && begun.elapsed() < Duration::from_mins(1) {
                n_turns = std::hint::black_box(n_turns + 1);
            }
            clock.used()
        });
        assert!(own.join().unwrap() >= Duration::from_millis(50));
    }

    #[test]
    fn a_wait_ends_with_the_work_or_with_the_callers_patience() {
        let left = TimeLeft {
            cpu: Duration::from_millis(700),
            deadline: Instant::now() + Duration::from_mins(1),
        };
        assert_eq!(left.next_wait(Duration::ZERO), Duration::from_millis(700));
        assert_eq!(
            left.next_wait(Duration::from_millis(699)),
            Duration::from_millis(5)
        );
        assert_eq!(left.next_wait(Duration::from_millis(700)), Duration::ZERO);
        let late = TimeLeft {
            deadline: Instant::now(),
            ..left
        };
        assert_eq!(late.next_wait(Duration::ZERO), Duration::ZERO);
    }
}
