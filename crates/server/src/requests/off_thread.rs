//! [`off_thread`]: runs work that waits for files or for the engine apart from the threads of connections.
//!
//! The runtime's own pool panics or waits without end if the system starts no thread. Invariants: a thread
//! that cannot be started is an error of the request that needs it; work that keeps a processor busy waits
//! for its turn in a queue of its own, without a thread.

use std::{
    future::Future,
    sync::{Arc, Weak},
    thread,
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::{Semaphore, oneshot},
    time::timeout,
};

use crate::ApiError;

/// Threads at a time. Further work waits for one of them to end.
const MAX_THREADS: usize = 512;

/// The places of threads.
static PLACES: Semaphore = Semaphore::const_new(MAX_THREADS);

/// How many requests may wait for a turn, and how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLimits {
    /// Requests that may wait.
    pub(crate) max_waiting: usize,
    /// How long one may wait for its turn.
    pub(crate) wait: Option<Duration>,
    /// How long one may wait and be worked on.
    pub(crate) whole: Option<Duration>,
}

/// Runs `work` on a thread of its own. It runs to its end even if the request is gone.
///
/// # Errors
/// [`ApiError::Internal`] if no thread can be started, and if the work panics.
pub(crate) async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    run_on(thread::Builder::new().name("work".to_owned()), work).await
}

/// The request for which a thread works, as long as it waits for the result.
#[derive(Debug)]
pub(crate) struct Requester(Weak<()>);

impl Requester {
    pub(crate) fn is_waiting(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// Does the same as [`off_thread`] with work that ends early once its request is gone.
///
/// # Errors
/// Returns the errors of [`off_thread`].
pub(crate) async fn off_thread_while_wanted<T: Send + 'static>(
    work: impl FnOnce(&Requester) -> T + Send + 'static,
) -> Result<T, ApiError> {
    let request = Arc::new(());
    let requester = Requester(Arc::downgrade(&request));
    let made = off_thread(move || work(&requester)).await;
    drop(request);
    made
}

async fn run_on<T: Send + 'static>(
    thread: thread::Builder,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    let place = PLACES.acquire().await.expect("the semaphore is never closed");
    let runtime = Handle::current();
    let (done, answer) = oneshot::channel();
    let started = thread.spawn(move || {
        let _runtime = runtime.enter();
        // The request may be gone.
        let _unread = done.send(work());
        drop(place);
    });
    started.map_err(|error| ApiError::Internal {
        reason: format!("the system starts no thread: {error}"),
    })?;
    answer.await.map_err(|_| ApiError::Internal {
        reason: "the work for this request failed".to_owned(),
    })
}

/// Waits for work, at most for a time.
///
/// # Errors
/// [`ApiError::DeadlineExceeded`].
pub(crate) async fn within<T>(limit: Option<Duration>, work: impl Future<Output = T>) -> Result<T, ApiError> {
    match limit {
        None => Ok(work.await),
        Some(limit) => (timeout(limit, work).await).map_err(|_| ApiError::DeadlineExceeded),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_learns_that_its_request_is_gone() {
        assert_eq!(off_thread_while_wanted(Requester::is_waiting).await, Ok(true));
        let (tell, told) = oneshot::channel();
        let work = |requester: &Requester| {
            while requester.is_waiting() {
                thread::yield_now();
            }
            let _ = tell.send(());
        };
        let soon = Some(Duration::from_millis(20));
        let late = within(soon, off_thread_while_wanted(work)).await;
        assert_eq!(late, Err(ApiError::DeadlineExceeded));
        assert!(told.await.is_ok(), "the work ended");
    }

    #[tokio::test]
    async fn a_thread_that_cannot_be_started_and_a_panic_are_errors() {
        assert_eq!(off_thread(|| 7).await, Ok(7));
        let without_room = thread::Builder::new().stack_size(1 << 60);
        let refused = run_on(without_room, || 7).await.unwrap_err();
        assert!(refused.to_string().contains("starts no thread"), "{refused}");
        let failed = off_thread(|| -> u32 { panic!("on purpose") }).await;
        assert!(matches!(failed, Err(ApiError::Internal { .. })), "{failed:?}");
        // Each place comes back, a moment after its answer; other tests hold some of them for a while.
        let all = PLACES.acquire_many(MAX_THREADS as u32);
        let all = timeout(Duration::from_mins(1), all).await;
        assert!(all.is_ok(), "{} places are left", PLACES.available_permits());
    }
}
