//! [`Gate`]: the protocol by which a leader publishes a job and workers join it, leave it, and sleep between jobs.
//!
//! Loom checks it without threads, chunks or closures.
//!
//! One word holds all state: `epoch << 32 | OPEN | number of workers inside`. A worker enters by a
//! compare-exchange that succeeds only while the job is open, so the leader never waits for a worker that
//! comes late (descheduled, still asleep). Invariant: between [`Gate::publish`] and the return of
//! [`Gate::close`] the job's data is alive, and a worker accesses it only between a successful
//! [`Gate::try_enter`] and [`Gate::leave`].

use super::sync::{AtomicU64, AtomicUsize, Condvar, Mutex, Ordering, fence, spin_loop, yield_now};

const OPEN: u64 = 1 << 31;
const INSIDE: u64 = OPEN - 1;

/// The number of polls before a waiting thread gives up its processor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// The number of polls with a pause instruction between them.
    pub(super) spins: u32,
    /// The number of polls with a yield to the scheduler between them, after the spins.
    pub(super) yields: u32,
}

/// The state word, and a condition variable for workers that have waited long enough.
pub(super) struct Gate {
    state: AtomicU64,
    n_sleepers: AtomicUsize,
    is_shut_down: Mutex<bool>,
    wake: Condvar,
}

impl Gate {
    pub(super) fn new() -> Self {
        Self {
            state: AtomicU64::new(0),
            n_sleepers: AtomicUsize::new(0),
            is_shut_down: Mutex::new(false),
            wake: Condvar::new(),
        }
    }

    /// Opens the next job. Only the leader calls it, after it wrote the job and while no job is open.
    pub(super) fn publish(&self) {
        let state = self.state.load(Ordering::Relaxed);
        debug_assert_eq!(state & (OPEN | INSIDE), 0, "a job is still open");
        let next_epoch = (state >> 32).wrapping_add(1) << 32;
        self.state.store(next_epoch | OPEN, Ordering::Release);
        // This fence pairs with the fence between the sleeper's count and its second load: either the leader
        // sees the sleeper or the sleeper sees the job.
        fence(Ordering::SeqCst);
        self.wake_sleepers();
    }

    /// Wakes the workers without a job, so that they are awake when the next job comes.
    pub(super) fn wake_sleepers(&self) {
        if self.n_sleepers.load(Ordering::Relaxed) > 0 {
            drop(
                self.is_shut_down
                    .lock()
                    .expect("no holder of this lock can panic"),
            );
            self.wake.notify_all();
        }
    }

    /// Closes the job and waits for the workers inside. Afterwards no worker reads the job.
    pub(super) fn close(&self, patience: Patience) {
        let mut state = self.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut n_polls = 0;
        while state & INSIDE != 0 {
            if n_polls < patience.spins {
                n_polls += 1;
                spin_loop();
            } else {
                yield_now();
            }
            state = self.state.load(Ordering::Acquire);
        }
    }

    /// Enters the open job if its epoch is not `last_epoch`, and returns the epoch.
    pub(super) fn try_enter(&self, last_epoch: u32) -> Option<u32> {
        let mut state = self.state.load(Ordering::Acquire);
        loop {
            let epoch = (state >> 32) as u32;
            if state & OPEN == 0 || epoch == last_epoch {
                return None;
            }
            match self
                .state
                .compare_exchange_weak(state, state + 1, Ordering::Acquire, Ordering::Acquire)
            {
                Ok(_) => return Some(epoch),
                Err(now) => state = now,
            }
        }
    }

    /// Leaves a job entered before; all writes of the worker are visible to the leader once `close` returns.
    pub(super) fn leave(&self) {
        self.state.fetch_sub(1, Ordering::Release);
    }

    /// Waits for a job other than `last_epoch` and enters it: spins, yields, then sleeps. Returns `None`
    /// after [`Gate::shut_down`]. Calls `patience` for every poll.
    pub(super) fn wait_and_enter(&self, last_epoch: u32, patience: impl Fn() -> Patience) -> Option<u32> {
        let mut n_polls = 0;
        loop {
            if let Some(epoch) = self.try_enter(last_epoch) {
                return Some(epoch);
            }
            let Patience { spins, yields } = patience();
            if n_polls < spins {
                spin_loop();
            } else if n_polls < spins.saturating_add(yields) {
                yield_now();
            } else {
                let mut is_shut_down = self
                    .is_shut_down
                    .lock()
                    .expect("no holder of this lock can panic");
                if *is_shut_down {
                    return None;
                }
                self.n_sleepers.fetch_add(1, Ordering::Relaxed);
                fence(Ordering::SeqCst);
                let state = self.state.load(Ordering::Relaxed);
                if state & OPEN == 0 || (state >> 32) as u32 == last_epoch {
                    is_shut_down = self
                        .wake
                        .wait(is_shut_down)
                        .expect("no holder of this lock can panic");
                }
                self.n_sleepers.fetch_sub(1, Ordering::Relaxed);
                if *is_shut_down {
                    return None;
                }
                n_polls = 0;
                continue;
            }
            n_polls += 1;
        }
    }

    /// Makes every waiting worker return `None`. No job may be open.
    pub(super) fn shut_down(&self) {
        *self
            .is_shut_down
            .lock()
            .expect("no holder of this lock can panic") = true;
        self.wake.notify_all();
    }
}

/// The protocol under loom. Loom runs it in every order of its steps and with every value that the orderings
/// allow a load to return:
/// `RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -p tokenmill-cpu-exec --lib model`.
///
/// The models failed for each of these mistakes, planted one at a time: a relaxed order in `publish`,
/// `try_enter`, `leave` or the loop of `close`; either fence left out; no wake, or one without the lock; a
/// sleeper that does not load the state again; a `close` that does not wait; a job that can be entered twice.
/// A lost wake appears as a leader that yields forever, which loom reports as too many branches.
#[cfg(all(test, loom))]
mod model {
    use loom::{
        cell::UnsafeCell,
        sync::Arc,
        thread::{self, JoinHandle},
    };

    use super::*;

    /// The job is the epoch in which workers should read it.
    struct Shared {
        gate: Gate,
        job: UnsafeCell<u32>,
        n_entered: AtomicUsize,
    }

    // SAFETY: `job` is written while no job is open and read by the workers inside; the model checks this.
    unsafe impl Sync for Shared {}

    impl Shared {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                gate: Gate::new(),
                job: UnsafeCell::new(0),
                n_entered: AtomicUsize::new(0),
            })
        }

        fn start_worker(shared: &Arc<Self>, patience: Patience) -> JoinHandle<()> {
            let shared = Arc::clone(shared);
            thread::spawn(move || {
                let mut epoch = 0;
                while let Some(entered) = shared.gate.wait_and_enter(epoch, || patience) {
                    assert_ne!(entered, epoch, "a job is entered once");
                    epoch = entered;
                    shared.n_entered.fetch_add(1, Ordering::SeqCst);
                    // SAFETY: the worker is inside.
                    let job = shared.job.with(|job| unsafe { *job });
                    assert_eq!(job, epoch, "the job of this epoch is read");
                    shared.gate.leave();
                }
            })
        }

        fn write_job(&self, epoch: u32) {
            // SAFETY: no job is open.
            self.job.with_mut(|job| unsafe { *job = epoch });
        }
    }

    /// Explores every order with up to `n_preemptions`; without this bound, two workers take hours.
    fn explore(n_preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(n_preemptions);
        builder.check(body);
    }

    fn check(n_preemptions: usize, n_workers: usize, n_jobs: u32, patience: Patience) {
        explore(n_preemptions, move || {
            let shared = Shared::new();
            let workers: Vec<_> = (0..n_workers)
                .map(|_| Shared::start_worker(&shared, patience))
                .collect();
            for epoch in 1..=n_jobs {
                shared.write_job(epoch);
                shared.gate.publish();
                shared.gate.close(patience);
            }
            shared.gate.shut_down();
            for worker in workers {
                worker.join().unwrap();
            }
        });
    }

    const ASLEEP: Patience = Patience { spins: 0, yields: 0 };

    #[test]
    fn the_job_is_never_read_while_it_is_written() {
        check(3, 1, 2, ASLEEP);
        check(3, 1, 2, Patience { spins: 1, yields: 1 });
    }

    #[test]
    fn two_workers_come_and_go() {
        check(2, 2, 1, ASLEEP);
    }

    /// A leader that waits for the worker ends only if no wake is lost.
    #[test]
    fn a_sleeper_is_woken_by_a_job() {
        explore(3, || {
            let shared = Shared::new();
            let worker = Shared::start_worker(&shared, ASLEEP);
            shared.write_job(1);
            shared.gate.publish();
            while shared.n_entered.load(Ordering::SeqCst) == 0 {
                yield_now();
            }
            shared.gate.close(ASLEEP);
            shared.gate.shut_down();
            worker.join().unwrap();
        });
    }
}
