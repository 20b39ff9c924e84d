//! [`Places`] decides which client compiles a constraint next.
//!
//! Invariants: at most [`MAX_RUNNING`] constraints compile at a time; one client never holds all places; waiting clients without a
//! place are served before others.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

/// Constraints that compile at a time; a hostile one occupies a thread for a while.
pub(super) const MAX_RUNNING: usize = 4;

/// Places that one client may hold.
const MAX_OF_CLIENT: usize = MAX_RUNNING - 1;

#[derive(Debug, Default)]
pub(super) struct Places {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Client of each occupied place.
    running: Vec<u64>,
    /// Waiting requests in order of arrival, each with its number and its client.
    waiting: Vec<(u64, u64)>,
    next: u64,
}

impl State {
    fn n_of(&self, client: u64) -> usize {
        self.running.iter().filter(|other| **other == client).count()
    }

    /// Returns the number of the next request, if a place is free.
    fn next(&self) -> Option<u64> {
        if self.running.len() >= MAX_RUNNING {
            return None;
        }
        let fitting = (self.waiting.iter()).filter(|(_, client)| self.n_of(*client) < MAX_OF_CLIENT);
        fitting
            .min_by_key(|(number, client)| (self.n_of(*client), *number))
            .map(|(number, _)| *number)
    }
}

/// Holds a place until it is dropped.
#[derive(Debug)]
pub(super) struct Place<'a> {
    places: &'a Places,
    client: u64,
}

impl Places {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the occupied places.
    pub(super) fn n_running(&self) -> usize {
        self.lock().running.len()
    }

    /// Waits for a place until the deadline. Returns whether it got one, which the caller must pass to [`Self::held`].
    pub(super) fn enter(&self, client: u64, deadline: Instant) -> bool {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.waiting.push((number, client));
        loop {
            let is_next = state.next() == Some(number);
            let left = deadline.saturating_duration_since(Instant::now());
            if is_next || left.is_zero() {
                state.waiting.retain(|(other, _)| *other != number);
                if is_next {
                    state.running.push(client);
                }
                // The next request may be allowed now.
                self.changed.notify_all();
                return is_next;
            }
            let waited = self.changed.wait_timeout(state, left);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Wraps the place of a client that has entered.
    pub(super) fn held(&self, client: u64) -> Place<'_> {
        Place { places: self, client }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.places.lock();
        if let Some(at) = state.running.iter().position(|client| *client == self.client) {
            state.running.swap_remove(at);
        }
        drop(state);
        self.places.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread, time::Duration};

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(30)
    }

    #[test]
    fn one_client_leaves_a_place_for_others() {
        let places = Places::default();
        let mut held = Vec::new();
        for _ in 0..MAX_OF_CLIENT {
            assert!(places.enter(7, soon()));
            held.push(places.held(7));
        }
        assert!(!places.enter(7, soon()), "it has all that it may have");
        assert!(places.enter(8, soon()));
        held.push(places.held(8));
        assert_eq!(places.n_running(), MAX_RUNNING);
        assert!(!places.enter(9, soon()), "there is none");
        held.remove(0);
        // A client's first request goes before another client's third.
        assert!(places.enter(9, soon()));
        drop((places.held(9), held));
        assert_eq!(places.n_running(), 0);
    }

    #[test]
    fn clients_without_a_place_are_served_first() {
        let places = Arc::new(Places::default());
        let held = [1, 1, 1, 2].map(|client| {
            assert!(places.enter(client, soon()));
            client
        });
        let wait = |client: u64| {
            let places = Arc::clone(&places);
            thread::spawn(move || places.enter(client, Instant::now() + Duration::from_secs(20)))
        };
        let greedy: Vec<_> = (0..8).map(|_| wait(2)).collect();
        while places.lock().waiting.len() < greedy.len() {
            thread::yield_now();
        }
        let honest = wait(3);
        while places.lock().waiting.len() <= greedy.len() {
            thread::yield_now();
        }
        drop(places.held(held[0]));
        assert!(honest.join().expect("no panic"));
        assert_eq!(
            places
                .lock()
                .running
                .iter()
                .filter(|client| **client == 3)
                .count(),
            1
        );
        drop(places.held(3));
        for _ in 0..greedy.len() {
            // Each request that enters makes room for the next.
            while places.lock().n_of(2) < 2 && !places.lock().waiting.is_empty() {
                thread::yield_now();
            }
            drop(places.held(2));
        }
        for waiting in greedy {
            assert!(waiting.join().expect("no panic"));
        }
    }
}
