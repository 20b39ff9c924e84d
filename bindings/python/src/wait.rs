//! Waiting for the engine with the interpreter free.
//!
//! Invariant: Ctrl-C ends a wait within a tenth of a second, because Python's signals are looked at in between.

use std::{
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use pyo3::prelude::*;

/// How long a wait lasts before signals are looked at.
pub(crate) const BETWEEN_SIGNALS: Duration = Duration::from_millis(100);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls until there is a result, with the interpreter free for other threads.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T> + Send,
) -> PyResult<T> {
    loop {
        let poll = &mut poll;
        let polled = py.detach(move || {
            let waker = Waker::from(Arc::new(Unpark(thread::current())));
            let mut context = Context::from_waker(&waker);
            match poll(&mut context) {
                Poll::Ready(value) => Poll::Ready(value),
                Poll::Pending => {
                    thread::park_timeout(BETWEEN_SIGNALS);
                    poll(&mut context)
                }
            }
        });
        match polled {
            Poll::Ready(value) => return Ok(value),
            Poll::Pending => py.check_signals()?,
        }
    }
}
