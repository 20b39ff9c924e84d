//! [`CompileQueue`]: requests whose constraints wait for a processor that compiles them.
//!
//! The places of [`off_thread`] are for work that ends soon; a hostile constraint occupies a processor for
//! most of a second. Invariants: few constraints compile at a time; a request that waits has no thread; one
//! client never has all places, and a client without a place goes before others.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Instant,
};

use tokio::sync::oneshot;

use crate::{
    ApiError,
    requests::off_thread::{QueueLimits, off_thread, within},
};

/// Most places of a server, as many as the compiler of one model has.
const MAX_PLACES: usize = 4;

/// When a client whose request finds no room is to ask again: a constraint compiles for a second at most.
const RETRY_AFTER_S: u64 = 1;

/// The places of a server in which constraints compile.
#[derive(Debug)]
pub(crate) struct CompileQueue {
    n_places: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Client of each occupied place.
    running: Vec<u64>,
    /// In order of arrival.
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    client: u64,
    called: oneshot::Sender<Place>,
}

/// Holds a place until it is dropped.
#[derive(Debug)]
struct Place {
    queue: Arc<CompileQueue>,
    client: u64,
}

impl Default for CompileQueue {
    fn default() -> Self {
        let n_processors = thread::available_parallelism().map_or(1, usize::from);
        Self::with_places(n_processors.min(MAX_PLACES))
    }
}

impl State {
    fn n_of(&self, client: u64) -> usize {
        self.running.iter().filter(|other| **other == client).count()
    }

    /// Takes the next request, if a place is free. Requests that have given up are forgotten.
    fn next(&mut self, n_places: usize) -> Option<Waiting> {
        self.waiting.retain(|waiting| !waiting.called.is_closed());
        if self.running.len() >= n_places {
            return None;
        }
        let fitting = self.waiting.iter().enumerate();
        let fitting = fitting.map(|(at, waiting)| (self.n_of(waiting.client), at));
        let (_, at) = fitting.filter(|(n_held, _)| n_held + 1 < n_places).min()?;
        let next = self.waiting.remove(at);
        self.running.push(next.client);
        Some(next)
    }
}

impl CompileQueue {
    /// Creates `n_places` places, and two at least: one client may have all but one.
    fn with_places(n_places: usize) -> Self {
        Self {
            n_places: n_places.max(2),
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` on a thread of its own once its client has a place, which it keeps until the work ends, though its request may be gone
    /// by then.
    ///
    /// # Errors
    /// [`ApiError::QueueFull`], [`ApiError::DeadlineExceeded`], and the errors of [`off_thread`].
    pub(crate) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        client: u64,
        limits: QueueLimits,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let begun = Instant::now();
        let place = self.enter(client, limits).await?;
        let made = off_thread(move || {
            let made = work();
            drop(place);
            made
        });
        let left = limits.whole.map(|whole| whole.saturating_sub(begun.elapsed()));
        within(left, made).await?
    }

    async fn enter(self: &Arc<Self>, client: u64, limits: QueueLimits) -> Result<Place, ApiError> {
        let (called, mut place) = oneshot::channel();
        let waiting = {
            let mut state = self.lock();
            state.waiting.retain(|waiting| !waiting.called.is_closed());
            state.waiting.push(Waiting { client, called });
            state.waiting.len() - 1
        };
        self.call();
        if waiting >= limits.max_waiting {
            // One that need not wait is accepted even if none may wait.
            return place.try_recv().map_err(|_| ApiError::QueueFull {
                waiting,
                retry_after_s: RETRY_AFTER_S,
            });
        }
        let limit = limits.wait.into_iter().chain(limits.whole).min();
        let place = within(limit, place).await?;
        Ok(place.expect("a request is forgotten only when it has given up"))
    }

    /// Gives the free places to the next requests.
    fn call(self: &Arc<Self>) {
        loop {
            let Some(next) = self.lock().next(self.n_places) else {
                return;
            };
            let place = Place {
                queue: Arc::clone(self),
                client: next.client,
            };
            // A request that has just gone gives its place back by dropping it.
            drop(next.called.send(place));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        if let Some(at) = state.running.iter().position(|client| *client == self.client) {
            state.running.swap_remove(at);
        }
        drop(state);
        self.queue.call();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use tokio::{
        task::{JoinHandle, yield_now},
        time::timeout,
    };

    use super::*;

    const SOON: Duration = Duration::from_millis(20);
    const LIMITS: QueueLimits = QueueLimits {
        max_waiting: 2000,
        wait: None,
        whole: None,
    };

    type Task = JoinHandle<Result<u64, ApiError>>;

    /// Starts work of a client that lasts until its sender is dropped.
    fn start(queue: &Arc<CompileQueue>, client: u64, limits: QueueLimits) -> (Task, mpsc::Sender<()>) {
        let (end, ended) = mpsc::channel();
        let queue = Arc::clone(queue);
        let task = tokio::spawn(async move {
            let work = move || {
                let _ = ended.recv();
                client
            };
            queue.run(client, limits, work).await
        });
        (task, end)
    }

    async fn until(is_so: impl Fn() -> bool) {
        while !is_so() {
            yield_now().await;
        }
    }

    #[tokio::test]
    async fn any_number_of_waiting_constraints_leaves_other_work_its_places() {
        let queue = Arc::new(CompileQueue::with_places(4));
        let greedy: Vec<_> = (0..600).map(|_| start(&queue, 1, LIMITS)).collect();
        until(|| queue.lock().waiting.len() == 600 - 3).await;
        // A file of a slot, or a look through the folder of models.
        let look = timeout(Duration::from_secs(10), off_thread(|| 7)).await;
        assert_eq!(look.expect("it waits for no constraint"), Ok(7));
        // One client leaves a place to others, and a client without a place goes before its further requests.
        let (honest, end) = start(&queue, 2, LIMITS);
        drop(end);
        assert_eq!(honest.await.expect("no panic"), Ok(2));
        assert_eq!(queue.lock().running, [1, 1, 1]);
        for (task, end) in greedy {
            drop(end);
            assert_eq!(task.await.expect("no panic"), Ok(1));
        }
        until(|| queue.lock().running.is_empty()).await;
    }

    #[tokio::test]
    async fn a_wait_past_the_deadline_is_given_up_and_a_place_is_kept_until_the_work_ends() {
        let queue = Arc::new(CompileQueue::with_places(2));
        let hurried = QueueLimits {
            whole: Some(SOON),
            ..LIMITS
        };
        let (compiled, end) = start(&queue, 1, hurried);
        let (waiting, _end) = start(&queue, 1, hurried);
        for task in [compiled, waiting] {
            assert_eq!(task.await.expect("no panic"), Err(ApiError::DeadlineExceeded));
        }
        assert_eq!(queue.lock().running, [1], "its work has not ended");
        let few = QueueLimits {
            max_waiting: 0,
            ..LIMITS
        };
        let refused = queue.run(1, few, || 7).await;
        assert!(
            matches!(refused, Err(ApiError::QueueFull { waiting: 0, .. })),
            "{refused:?}"
        );
        assert_eq!(queue.run(2, few, || 7).await, Ok(7));
        drop(end);
        assert_eq!(queue.run(1, LIMITS, || 7).await, Ok(7));
    }
}
