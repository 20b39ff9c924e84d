//! [`ThreadPlaces`] and [`LeaderPlace`]: the processors that the threads of a pool are pinned to.
//!
//! The pool's jobs know nothing of processors, and [`Places`] only chooses them. A worker is pinned for good.
//! A leading thread belongs to the caller: it is pinned from the first forward pass that it enters to the
//! last that it leaves. Invariant: a thread that leads no forward pass may run where it could before.

use std::{cell::Cell, vec};

use super::{Pool, affinity};
use crate::{
    CpuExecError, Places,
    places::{Machine, PlacesError},
};

thread_local! {
    /// The number of forward passes that the calling thread has entered, in pools whose threads have places.
    static N_LED: Cell<usize> = const { Cell::new(0) };
}

/// Returns the processors of the calling thread. A thread that leads a forward pass would see only its own
/// place.
fn machine() -> Result<Machine, PlacesError> {
    debug_assert_eq!(N_LED.get(), 0, "places are chosen outside of forward passes");
    affinity::machine()
}

/// The processors of each thread of a pool; empty if the threads are free.
pub(super) struct ThreadPlaces {
    of_threads: vec::IntoIter<Vec<usize>>,
    /// The processors that the process may use.
    allowed: Vec<usize>,
    /// The number of processors available to the pool.
    pub(super) n_cpus: usize,
}

impl ThreadPlaces {
    pub(super) fn of(n_threads: usize, places: &Places) -> Result<Self, CpuExecError> {
        if places.is_free() {
            return Ok(Self {
                of_threads: Vec::new().into_iter(),
                allowed: Vec::new(),
                n_cpus: usize::MAX,
            });
        }
        let machine = machine()?;
        Ok(Self {
            n_cpus: places.n_cpus(&machine)?,
            of_threads: places.of_threads(n_threads, &machine)?.into_iter(),
            allowed: machine.allowed,
        })
    }

    /// Returns the place of the leader, which is the first thread.
    pub(super) fn leader(&mut self) -> Option<LeaderPlace> {
        let own = self.of_threads.next()?;
        Some(LeaderPlace {
            own,
            allowed: self.allowed.clone(),
        })
    }

    /// Returns the processors of the next worker.
    pub(super) fn next_worker(&mut self) -> Option<Vec<usize>> {
        self.of_threads.next()
    }
}

/// The processors of a thread while it leads, and those that it may use otherwise.
pub(super) struct LeaderPlace {
    own: Vec<usize>,
    allowed: Vec<usize>,
}

impl LeaderPlace {
    /// Pins the calling thread, which has entered a forward pass.
    pub(super) fn take(&self) {
        let n_led = N_LED.get();
        N_LED.set(n_led + 1);
        if n_led == 0 {
            // Its workers were pinned in the same way: if pinning fails now, as after a change from outside,
            // the thread stays where it is.
            let _ = affinity::keep_to(&self.own);
        }
    }

    /// Unpins the calling thread, once it has left all forward passes.
    pub(super) fn leave(&self) {
        debug_assert!(N_LED.get() > 0, "left by a thread that has not entered");
        let n_led = N_LED.get().saturating_sub(1);
        N_LED.set(n_led);
        if n_led == 0 {
            // Threads that it starts must not inherit its place.
            let _ = affinity::keep_to(&self.allowed);
        }
    }
}

impl Pool {
    /// Returns the number of processors that `places` allow this process.
    ///
    /// # Errors
    /// [`CpuExecError::Places`] if none are left.
    pub fn n_available_in(places: &Places) -> Result<usize, CpuExecError> {
        if places.is_free() {
            return Ok(Self::n_available());
        }
        Ok(places.n_cpus(&machine()?)?)
    }
}

#[cfg(all(test, target_os = "linux", not(loom)))]
mod tests {
    use std::sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    };

    use super::{super::tests::yield_until, *};

    /// Returns the processors of each thread of a pool; the first is the caller in a forward pass.
    fn cpus_of_threads(pool: &Pool) -> Vec<Vec<usize>> {
        let all: Vec<Mutex<Vec<usize>>> = (0..pool.n_threads()).map(|_| Mutex::default()).collect();
        let n_here = AtomicUsize::new(0);
        let _entered = pool.enter();
        pool.run(pool.n_threads(), |worker_idx, _| {
            *all[worker_idx].lock().unwrap() = affinity::machine().unwrap().allowed;
            // Each thread waits for the others, so that none takes two chunks.
            n_here.fetch_add(1, Ordering::SeqCst);
            yield_until(|| n_here.load(Ordering::SeqCst) == pool.n_threads());
        });
        all.into_iter().map(|cpus| cpus.into_inner().unwrap()).collect()
    }

    #[test]
    fn threads_keep_to_their_places_and_the_leader_until_it_leaves() {
        let given = affinity::machine().unwrap().allowed;
        let strict = Places {
            is_strict: true,
            ..Places::default()
        };
        let n_threads = given.len().min(4);
        let pool = Pool::placed(n_threads, &strict).unwrap();
        let mut found = cpus_of_threads(&pool).concat();
        found.sort_unstable();
        found.dedup();
        assert_eq!(found.len(), n_threads, "a processor each: {found:?}");
        assert_eq!(affinity::machine().unwrap().allowed, given);
        // All threads share one of the processors.
        let last = given[given.len() - 1];
        let one = Places {
            cpus: Some(last.to_string().parse().unwrap()),
            ..Places::default()
        };
        assert_eq!(Pool::n_available_in(&one).unwrap(), 1);
        let pool = Pool::placed(3, &one).unwrap();
        assert_eq!(cpus_of_threads(&pool), vec![vec![last]; 3]);
        assert_eq!(affinity::machine().unwrap().allowed, given);
        let not_there = Places {
            cpus: Some("1023".parse().unwrap()),
            ..Places::default()
        };
        assert!(matches!(
            Pool::placed(1, &not_there),
            Err(CpuExecError::Places(_))
        ));
    }
}
