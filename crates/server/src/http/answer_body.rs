//! [`AnswerBody`] is the body of every response; [`StreamExecutor`] resets HTTP/2 streams that the client
//! does not read.
//!
//! [`WriteTimeout`](crate::sockets::write_timeout) watches only the connection, and over HTTP/2 a client can
//! read the connection and not the stream. Invariants: a stream whose client reads nothing for the time limit
//! is reset and freed; the library gets the end of an answer only when all of it can be sent, because it
//! cannot reset the stream after that.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::body::{Body, Bytes, HttpBody};
use hyper::{
    body::{Frame, SizeHint},
    rt::Executor,
};
use tokio::time::{Instant, sleep, sleep_until};

use crate::http::connections::RequestGuard;

/// Bytes that the HTTP/2 library gets at a time. It buffers them until the client has room.
const PART_BYTES: usize = 16 << 10;

tokio::task_local! {
    /// The HTTP/2 stream that a task serves.
    static STREAM: Arc<Progress>;
}

/// Tracks whether a stream's client reads its answer.
#[derive(Debug, Default)]
struct Progress(Mutex<Option<Instant>>);

impl Progress {
    /// Returns the time since which a part waits for the client; `None` while the client waits for the server.
    fn waiting_since(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, since: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }

    /// Waits until a part has waited for `limit`.
    async fn stalled(&self, limit: Duration) {
        loop {
            match self.waiting_since() {
                Some(since) if since.elapsed() >= limit => return,
                Some(since) => sleep_until(since + limit).await,
                None => sleep(limit).await,
            }
        }
    }
}

/// Runs the streams of HTTP/2 connections and drops the stalled ones, which the library then resets.
#[derive(Clone, Debug)]
pub(crate) struct StreamExecutor {
    limit: Duration,
}

impl StreamExecutor {
    /// Creates an executor that lets a stream stall for at most `limit`.
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit }
    }
}

impl<F> Executor<F> for StreamExecutor
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let (progress, limit) = (Arc::<Progress>::default(), self.limit);
        let running = STREAM.scope(Arc::clone(&progress), stream);
        tokio::spawn(async move {
            tokio::select! {
                _ = running => {}
                () = progress.stalled(limit) => tracing::info!(
                    limit_s = limit.as_secs_f64(),
                    "an HTTP/2 stream was reset because its client did not read the answer"
                ),
            }
        });
    }
}

/// Holds a response's body; its request counts as running until this is dropped.
pub(crate) struct AnswerBody {
    body: Body,
    /// `None` over HTTP/1.
    stream: Option<Arc<Progress>>,
    /// Rest of the newest part of the body.
    rest: Bytes,
    _busy: RequestGuard,
}

impl AnswerBody {
    /// Wraps the body of a response; must be called in the task that sends it.
    pub(crate) fn new(body: Body, busy: RequestGuard) -> Self {
        Self {
            body,
            stream: STREAM.try_with(Arc::clone).ok(),
            rest: Bytes::new(),
            _busy: busy,
        }
    }
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let me = &mut *self;
        let Some(stream) = &me.stream else {
            return Pin::new(&mut me.body).poll_frame(context);
        };
        stream.set(None);
        if me.rest.is_empty() {
            match ready!(Pin::new(&mut me.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => me.rest = data,
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                other => return Poll::Ready(other),
            }
        }
        stream.set(Some(Instant::now()));
        // Send the last byte by itself. The library takes a part only when all before it can be sent, so when it has the last byte and the
        // end, nothing else waits for the client.
        let n_bytes = me.rest.len().saturating_sub(1).clamp(1, PART_BYTES);
        let part = me.rest.split_to(n_bytes.min(me.rest.len()));
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (hint, n_rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut with_rest = SizeHint::new();
        with_rest.set_lower(hint.lower() + n_rest);
        if let Some(upper) = hint.upper() {
            with_rest.set_upper(upper + n_rest);
        }
        with_rest
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::http::connections::Connections;

    async fn body_of(data: Bytes) -> AnswerBody {
        let busy = Connections::new(1).enter().await.tracker().begin();
        AnswerBody::new(Body::from(data), busy)
    }

    async fn parts_of(mut body: AnswerBody) -> Vec<Bytes> {
        let mut parts = Vec::new();
        while let Some(frame) = body.frame().await {
            parts.push(frame.expect("no error").into_data().expect("data"));
        }
        parts
    }

    #[tokio::test]
    async fn an_answer_over_http2_comes_in_small_parts_and_its_last_byte_apart() {
        for n_bytes in [0, 1, 2, 100, PART_BYTES, PART_BYTES + 1, 5 * PART_BYTES + 7] {
            let data = Bytes::from(vec![7; n_bytes]);
            let whole = parts_of(body_of(data.clone()).await).await;
            assert!(whole.len() <= 1, "over HTTP/1.1 it stays as it is");
            let parts = STREAM
                .scope(Arc::default(), async {
                    let body = body_of(data.clone()).await;
                    assert_eq!(body.size_hint().exact(), Some(n_bytes as u64));
                    assert_eq!(body.is_end_stream(), n_bytes == 0);
                    parts_of(body).await
                })
                .await;
            assert_eq!(parts.concat(), data);
            assert!(parts.iter().all(|part| (1..=PART_BYTES).contains(&part.len())));
            assert!(n_bytes == 0 || parts.last().is_some_and(|part| part.len() == 1));
        }
    }

    #[tokio::test]
    async fn only_a_stream_that_its_client_holds_up_is_dropped() {
        struct Told(Option<tokio::sync::oneshot::Sender<()>>);
        impl Drop for Told {
            fn drop(&mut self) {
                let _ = self.0.take().expect("once").send(());
            }
        }
        let limit = Duration::from_secs(1);
        let executor = StreamExecutor::new(limit);
        let (sender, dropped) = tokio::sync::oneshot::channel();
        let (read, has_read) = tokio::sync::oneshot::channel();
        executor.execute(async move {
            let _told = Told(Some(sender));
            // The model reasons for long and then the client reads for long, but neither stalls.
            sleep(limit * 5 / 4).await;
            let mut body = body_of(Bytes::from(vec![0; 12 * PART_BYTES])).await;
            for _ in 0..10 {
                body.frame().await.expect("a part").expect("no error");
                sleep(limit / 8).await;
            }
            let _ = read.send(Instant::now());
            std::future::pending::<()>().await;
        });
        let has_read = has_read.await.expect("it is not dropped while the client reads");
        dropped.await.expect("it is dropped");
        assert!(has_read.elapsed() >= limit / 2, "{:?}", has_read.elapsed());
    }
}
