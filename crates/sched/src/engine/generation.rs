//! [`Generation`]: a caller's handle to a request, as a stream of events.
//!
//! It lives on the caller's thread. Invariants: every sample ends with exactly one [`Event::Finished`] or
//! [`Event::Failed`], after which it has no more events; dropping a generation cancels it.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use futures_core::Stream;

use crate::{
    error::EngineError,
    queue::{
        event::{Event, FinishReason, RequestId},
        mailbox::{Command, EngineState, Mailbox},
    },
    sync::{
        Arc,
        channel::{Received, Receiver},
    },
};

/// A submitted request: a blocking iterator over its events. Dropping it cancels unfinished samples.
///
/// An asynchronous caller uses [`Self::next_event`] or [`Self::into_stream`]; no runtime is needed.
#[derive(Debug)]
pub struct Generation {
    request: RequestId,
    events: Receiver<Event>,
    mailbox: Arc<Mailbox>,
    samples: Vec<Sample>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    n_tokens: usize,
    is_stopped: bool,
    has_ended: bool,
}

impl Generation {
    pub(crate) fn new(
        request: RequestId,
        n_samples: u32,
        events: Receiver<Event>,
        mailbox: Arc<Mailbox>,
    ) -> Self {
        Self {
            request,
            events,
            mailbox,
            samples: vec![Sample::default(); n_samples as usize],
        }
    }

    /// Cancels every unfinished sample. Tokens in flight still arrive, then each sample finishes as
    /// [`FinishReason::Cancelled`].
    pub fn cancel(&self) {
        self.mailbox.post(Command::Cancel(self.request));
    }

    /// Ends a sample after the tokens received so far, for instance because they end in a stop string. Its
    /// tokens in flight are dropped, and it finishes as [`FinishReason::Stop`].
    pub fn stop(&mut self, sample: u32) {
        if let Some(state) = self.samples.get_mut(sample as usize)
            && !state.is_stopped
            && !state.has_ended
        {
            state.is_stopped = true;
            self.mailbox.post(Command::Stop {
                request: self.request,
                sample,
            });
        }
    }

    /// Returns a handle that cancels this request from elsewhere.
    pub fn canceller(&self) -> Canceller {
        Canceller {
            request: self.request,
            mailbox: Arc::clone(&self.mailbox),
        }
    }

    /// Returns the next event if there is one; never waits. `None` also after the last.
    pub fn try_next(&mut self) -> Option<Event> {
        while !self.has_ended() {
            let received = self.events.try_recv()?;
            if let Some(event) = self.admit(received) {
                return Some(event);
            }
        }
        None
    }

    /// Waits for the next event without blocking the thread; `None` after the last.
    pub async fn next_event(&mut self) -> Option<Event> {
        std::future::poll_fn(|context| self.poll_event(context)).await
    }

    /// Polls for the next event; `None` after the last.
    pub fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        while !self.has_ended() {
            let Poll::Ready(received) = self.events.poll_recv(context) else {
                return Poll::Pending;
            };
            if let Some(event) = self.admit(received) {
                return Poll::Ready(Some(event));
            }
        }
        Poll::Ready(None)
    }

    /// Turns the generation into an asynchronous stream.
    pub fn into_stream(self) -> EventStream {
        EventStream(self)
    }

    /// Returns whether every sample has ended.
    pub fn has_ended(&self) -> bool {
        self.samples.iter().all(|sample| sample.has_ended)
    }

    /// Updates the state for an event, and returns it unless the caller should not see it.
    fn admit(&mut self, received: Received<Event>) -> Option<Event> {
        if received.has_room_again {
            self.mailbox.post(Command::Resume(self.request));
        }
        let Some(mut event) = received.item else {
            return self.fail_next_sample();
        };
        match &mut event {
            Event::Token(token) => {
                let sample = &mut self.samples[token.sample as usize];
                sample.n_tokens += usize::from(!sample.is_stopped);
                (!sample.is_stopped).then_some(event)
            }
            Event::Finished(finished) => {
                let sample = &mut self.samples[finished.sample as usize];
                sample.has_ended = true;
                if sample.is_stopped {
                    finished.reason = FinishReason::Stop;
                    finished.usage.completion_tokens = sample.n_tokens;
                    finished.timings.tokens.truncate(sample.n_tokens);
                }
                Some(event)
            }
            Event::Failed { sample, .. } => {
                self.samples[*sample as usize].has_ended = true;
                Some(event)
            }
            Event::Prefill(_) | Event::Rows(_) => Some(event),
        }
    }

    /// Fails the next unfinished sample, because the engine disappeared without sending its end.
    fn fail_next_sample(&mut self) -> Option<Event> {
        let sample = self.samples.iter().position(|sample| !sample.has_ended)?;
        self.samples[sample].has_ended = true;
        let error = match self.mailbox.state() {
            EngineState::Ended(reason) => reason,
            _ => EngineError::Stopped,
        };
        Some(Event::Failed {
            sample: sample as u32,
            error,
        })
    }
}

impl Iterator for Generation {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        while !self.has_ended() {
            let received = self.events.recv();
            if let Some(event) = self.admit(received) {
                return Some(event);
            }
        }
        None
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if !self.has_ended() {
            self.cancel();
        }
    }
}

/// Cancels one request; does nothing once it has ended.
#[derive(Clone, Debug)]
pub struct Canceller {
    request: RequestId,
    mailbox: Arc<Mailbox>,
}

impl Canceller {
    /// Cancels every unfinished sample of the request.
    pub fn cancel(&self) {
        self.mailbox.post(Command::Cancel(self.request));
    }
}

/// A [`Generation`] as an asynchronous stream.
#[derive(Debug)]
pub struct EventStream(Generation);

impl EventStream {
    /// Returns the generation, to stop samples or cancel it.
    pub fn generation(&mut self) -> &mut Generation {
        &mut self.0
    }
}

impl Stream for EventStream {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.0.poll_event(context)
    }
}
