//! Types that a [`Registry`] shares with its callers: [`Lookup`] answers a request for a model, [`Step`]
//! directs the thread that loads.
//!
//! Invariant: they hold answers, and decide nothing.

use std::time::Duration;

use tokio::sync::oneshot;

use super::KeepAlive;
#[cfg(doc)]
use super::registry::Registry;
use crate::ApiError;

/// Settings of a model that hold in every state.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    /// The name that errors carry.
    pub(crate) name: String,
    /// Whether it stays once it is loaded.
    pub(crate) is_pinned: bool,
    /// How long it stays loaded without requests.
    pub(crate) keep_alive: KeepAlive,
}

/// The purpose for which a request asks for a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To use it, and to have it stay for a time afterwards, where it says so.
    Use(Option<KeepAlive>),
    /// To look at it, which does not count as use.
    Look,
}

/// The outcome of a request for a model.
#[derive(Debug)]
pub(crate) enum Lookup<A, L> {
    /// It runs; [`Registry::release`] is to be called when it has ended.
    Runs(A),
    /// It waits for the answer.
    Waits(oneshot::Receiver<Result<L, ApiError>>),
    /// It is refused.
    Refused(ApiError),
}

/// An answer to a waiting request, to be sent without the lock: its lease may release the model again.
#[derive(Debug)]
pub(crate) struct Answer<A, L> {
    pub(crate) idx: usize,
    pub(crate) purpose: Purpose,
    pub(crate) to: oneshot::Sender<Result<L, ApiError>>,
    pub(crate) reply: Result<A, ApiError>,
}

/// The next action of the thread that loads.
#[derive(Debug)]
pub(crate) enum Step<A, L> {
    /// Find out the memory of a model, and report it to [`Registry::measured`].
    Measure(usize),
    /// Load a model, and tell [`Registry::loaded`].
    Load(usize),
    /// Unload a model, and tell [`Registry::unloaded`].
    Unload(usize, A),
    /// Send these.
    Answer(Vec<Answer<A, L>>),
    /// Warn that a model, which was ordered, never has room, for this reason; and send these.
    Refuse(usize, ApiError, Vec<Answer<A, L>>),
    /// Nothing before something happens, or this time is over.
    Wait(Option<Duration>),
}
