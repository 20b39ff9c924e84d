//! A channel that never drops items and never blocks its sender: it tells the sender when its receiver is
//! behind.
//!
//! It is not taken from a runtime, because the engine's thread must not block, callers may block or poll, and
//! a stream that was full must report when it has room again. Invariant: every sent item is received exactly
//! once, in order.

use std::{
    collections::VecDeque,
    task::{Context, Poll, Waker},
};

use crate::sync::{Arc, Condvar, Mutex};

/// Creates a channel that counts as full from `capacity` items on.
pub(crate) fn channel<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Shared {
        state: Mutex::new(State {
            items: VecDeque::new(),
            is_sender_gone: false,
            was_full: false,
            waker: None,
        }),
        changed: Condvar::new(),
        capacity: capacity.max(1),
    });
    (
        Sender {
            shared: Arc::clone(&shared),
        },
        Receiver { shared },
    )
}

#[derive(Debug)]
struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    capacity: usize,
}

#[derive(Debug)]
struct State<T> {
    items: VecDeque<T>,
    is_sender_gone: bool,
    /// The sender has been told that the channel is full, and not yet that it has room.
    was_full: bool,
    waker: Option<Waker>,
}

impl<T> Shared<T> {
    fn with<R>(&self, change: impl FnOnce(&mut State<T>) -> R) -> R {
        change(
            &mut self
                .state
                .lock()
                .expect("nothing panics while it holds this lock"),
        )
    }

    fn wake(&self, waker: Option<Waker>) {
        self.changed.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The engine's end. Dropping it ends the channel after the last item.
#[derive(Debug)]
pub(crate) struct Sender<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Sender<T> {
    /// Sends `item`. Returns whether the channel is now full. The sender should then stop, if possible, until
    /// the receiver reports room.
    pub(crate) fn send(&self, item: T) -> bool {
        let (is_full, waker) = self.shared.with(|state| {
            state.items.push_back(item);
            state.was_full |= state.items.len() >= self.shared.capacity;
            (state.was_full, state.waker.take())
        });
        self.shared.wake(waker);
        is_full
    }

    /// Returns whether the receiver is behind, as reported by the last [`Self::send`].
    pub(crate) fn is_full(&self) -> bool {
        self.shared.with(|state| state.was_full)
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let waker = self.shared.with(|state| {
            state.is_sender_gone = true;
            state.waker.take()
        });
        self.shared.wake(waker);
    }
}

/// The caller's end.
#[derive(Debug)]
pub(crate) struct Receiver<T> {
    shared: Arc<Shared<T>>,
}

/// The result of receiving.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Received<T> {
    /// The item; `None` if the channel is empty and its sender gone.
    pub(crate) item: Option<T>,
    /// Whether the channel was full and is now at most half full, so the sender may resume.
    pub(crate) has_room_again: bool,
}

impl<T> Receiver<T> {
    /// Waits for an item.
    pub(crate) fn recv(&self) -> Received<T> {
        let mut state = self
            .shared
            .state
            .lock()
            .expect("nothing panics while it holds this lock");
        while state.items.is_empty() && !state.is_sender_gone {
            state = self
                .shared
                .changed
                .wait(state)
                .expect("nothing panics while it holds this lock");
        }
        self.take(&mut state)
    }

    /// Takes an item if there is one; the inner `None` is the end of the channel, the outer means "not yet".
    pub(crate) fn try_recv(&self) -> Option<Received<T>> {
        self.shared
            .with(|state| (!state.items.is_empty() || state.is_sender_gone).then(|| self.take(state)))
    }

    /// Takes an item, or registers the waker.
    pub(crate) fn poll_recv(&self, context: &mut Context<'_>) -> Poll<Received<T>> {
        self.shared.with(|state| {
            if state.items.is_empty() && !state.is_sender_gone {
                state.waker = Some(context.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(self.take(state))
        })
    }

    fn take(&self, state: &mut State<T>) -> Received<T> {
        let item = state.items.pop_front();
        let has_room_again = state.was_full && state.items.len() <= self.shared.capacity / 2;
        state.was_full &= !has_room_again;
        Received { item, has_room_again }
    }
}
