//! [`EncoderQueue`]: requests with images, which wait for the encoder before the engine knows of them.
//!
//! The encoder works on one request at a time, apart from the engine's steps. Invariants: one request's
//! images are encoded at a time, on one thread, even if requests are cancelled; waiting requests are counted,
//! and their wait has an end.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    ApiError,
    requests::off_thread::{QueueLimits, Requester, off_thread_while_wanted, within},
};

/// The turns of an encoder.
#[derive(Debug)]
pub(crate) struct EncoderQueue {
    turn: Arc<Semaphore>,
    n_waiting: AtomicUsize,
}

/// A place among those that wait.
struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Default for EncoderQueue {
    fn default() -> Self {
        Self {
            turn: Arc::new(Semaphore::new(1)),
            n_waiting: AtomicUsize::new(0),
        }
    }
}

impl EncoderQueue {
    /// Runs `work` on a thread of its own once it is its turn, which lasts until the work ends, though its request may be gone by then.
    ///
    /// # Errors
    /// [`ApiError::QueueFull`], [`ApiError::DeadlineExceeded`], and a panic of the work.
    pub(crate) async fn run<T, W>(&self, limits: QueueLimits, work: W) -> Result<T, ApiError>
    where
        T: Send + 'static,
        W: FnOnce(&Requester) -> T + Send + 'static,
    {
        let nothing = async { Ok(()) };
        self.run_with(limits, nothing, move |(), requester| work(requester))
            .await
    }

    /// Does the same with work that needs one thing more, which is waited for in the turn and not before it: a request that waits for the
    /// encoder holds nothing that others need.
    ///
    /// # Errors
    /// Returns the errors of [`Self::run`], and that of the thing.
    pub(crate) async fn run_with<N, T, W>(
        &self,
        limits: QueueLimits,
        needed: impl Future<Output = Result<N, ApiError>>,
        work: W,
    ) -> Result<T, ApiError>
    where
        N: Send + 'static,
        T: Send + 'static,
        W: FnOnce(N, &Requester) -> T + Send + 'static,
    {
        let begun = Instant::now();
        let turn = self.turn(limits).await?;
        let made = async {
            let needed = needed.await?;
            off_thread_while_wanted(move |requester| {
                let made = work(needed, requester);
                drop(turn);
                made
            })
            .await
        };
        let rest = limits.whole.map(|whole| whole.saturating_sub(begun.elapsed()));
        within(rest, made).await?
    }

    async fn turn(&self, limits: QueueLimits) -> Result<OwnedSemaphorePermit, ApiError> {
        if let Ok(turn) = Arc::clone(&self.turn).try_acquire_owned() {
            return Ok(turn);
        }
        let waiting = self.n_waiting.fetch_add(1, Ordering::Relaxed);
        let _place = Place(&self.n_waiting);
        if waiting >= limits.max_waiting {
            return Err(ApiError::QueueFull {
                waiting,
                // Images take seconds each.
                retry_after_s: 5,
            });
        }
        let limit = limits.wait.into_iter().chain(limits.whole).min();
        let turn = within(limit, Arc::clone(&self.turn).acquire_owned()).await?;
        Ok(turn.expect("the semaphore is never closed"))
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use tokio::task::{JoinHandle, yield_now};

    use super::*;

    const SOON: Duration = Duration::from_millis(20);

    fn limits(max_waiting: usize, wait: Option<Duration>, whole: Option<Duration>) -> QueueLimits {
        QueueLimits {
            max_waiting,
            wait,
            whole,
        }
    }

    /// Work that lasts until the sender says so, and tells whether it is still wanted then.
    fn start(
        queue: &Arc<EncoderQueue>,
    ) -> (
        JoinHandle<Result<(), ApiError>>,
        mpsc::Sender<()>,
        mpsc::Receiver<bool>,
    ) {
        let (end, ended) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let queue = Arc::clone(queue);
        let task = tokio::spawn(async move {
            let work = move |requester: &Requester| {
                let _ = ended.recv();
                let _ = tell.send(requester.is_waiting());
            };
            queue.run(limits(8, None, None), work).await
        });
        (task, end, told)
    }

    async fn until(what: impl Fn() -> bool) {
        while !what() {
            yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_turn_lasts_until_the_work_ends_though_its_request_is_gone() {
        let queue = Arc::new(EncoderQueue::default());
        let (first, end, told) = start(&queue);
        until(|| queue.turn.available_permits() == 0).await;
        first.abort();
        assert!(first.await.is_err_and(|error| error.is_cancelled()));
        assert_eq!(queue.turn.available_permits(), 0);
        let refused = queue.run(limits(8, Some(SOON), None), |_| ()).await;
        assert!(matches!(refused, Err(ApiError::DeadlineExceeded)), "{refused:?}");
        end.send(()).expect("it works");
        assert!(!told.recv().expect("it ends"));
        assert_eq!(
            queue.run(limits(8, None, None), Requester::is_waiting).await.ok(),
            Some(true)
        );
        assert_eq!(queue.n_waiting.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn more_than_may_wait_are_refused() {
        let queue = Arc::new(EncoderQueue::default());
        // No request may wait; one that need not wait is accepted.
        assert!(queue.run(limits(0, None, None), |_| ()).await.is_ok());
        let (first, end, _told) = start(&queue);
        until(|| queue.turn.available_permits() == 0).await;
        let (second, end_of_second, _) = start(&queue);
        until(|| queue.n_waiting.load(Ordering::Relaxed) == 1).await;
        let refused = queue.run(limits(1, None, None), |_| ()).await;
        assert!(
            matches!(refused, Err(ApiError::QueueFull { waiting: 1, .. })),
            "{refused:?}"
        );
        drop((end, end_of_second));
        assert!(first.await.is_ok_and(|made| made.is_ok()));
        assert!(second.await.is_ok_and(|made| made.is_ok()));
    }

    #[tokio::test]
    async fn work_waits_for_what_it_needs_in_its_turn_only() {
        let queue = Arc::new(EncoderQueue::default());
        let (first, end, _told) = start(&queue);
        until(|| queue.turn.available_permits() == 0).await;
        let shared = Arc::new(Semaphore::new(1));
        let second = {
            let (queue, shared) = (Arc::clone(&queue), Arc::clone(&shared));
            tokio::spawn(async move {
                let needed = async { Ok(shared.acquire_owned().await.expect("it stays open")) };
                let work = |held: OwnedSemaphorePermit, _: &Requester| held.num_permits();
                queue.run_with(limits(8, None, None), needed, work).await
            })
        };
        until(|| queue.n_waiting.load(Ordering::Relaxed) == 1).await;
        assert_eq!(shared.available_permits(), 1, "it holds nothing while it waits");
        end.send(()).expect("it works");
        assert!(first.await.is_ok_and(|made| made.is_ok()));
        assert_eq!(second.await.expect("it ends"), Ok(1));
        assert_eq!(shared.available_permits(), 1);
        // The wait for it counts against the time of the request, and its failure ends the turn.
        let never = std::future::pending::<Result<(), ApiError>>();
        let late = queue
            .run_with(limits(8, None, Some(SOON)), never, |(), _| ())
            .await;
        assert!(matches!(late, Err(ApiError::DeadlineExceeded)), "{late:?}");
        let failed = async { Err::<(), _>(ApiError::DeadlineExceeded) };
        let refused = queue.run_with(limits(8, None, None), failed, |(), _| ()).await;
        assert!(matches!(refused, Err(ApiError::DeadlineExceeded)), "{refused:?}");
        assert_eq!(queue.turn.available_permits(), 1);
    }

    #[tokio::test]
    async fn work_that_takes_longer_than_its_request_may_is_given_up() {
        let queue = EncoderQueue::default();
        let work = |requester: &Requester| {
            while requester.is_waiting() {
                std::thread::yield_now();
            }
        };
        let late = queue.run(limits(8, None, Some(SOON)), work).await;
        assert!(matches!(late, Err(ApiError::DeadlineExceeded)), "{late:?}");
        until(|| queue.turn.available_permits() == 1).await;
    }
}
