//! Adapters in the engine: what is asked of its thread, and what it knows of them.
//!
//! Plain data, separate from the two sides of the mailbox, `adapter_calls.rs` and `adapter_changes.rs`. Invariants: an id is given
//! once; pages computed with an adapter are found by no other, and go when it goes.

use std::{collections::VecDeque, num::NonZeroU32};

use tokenmill_backend::{Adapter, AdapterError, AdapterId};

use crate::sync::{Arc, mpsc};

/// What a caller wants done with adapters.
#[derive(Debug)]
pub(crate) enum AdapterCommand {
    Add {
        id: AdapterId,
        adapter: Arc<Adapter>,
        strength: f32,
        /// A hash of the matrices, where pages are kept outside.
        matrices: Option<u64>,
        reply: Reply,
    },
    Copy {
        from: AdapterId,
        id: AdapterId,
        strength: f32,
        reply: Reply,
    },
    /// No later request has it.
    Remove(AdapterId),
}

pub(crate) type Reply = mpsc::Sender<Result<(), AdapterError>>;

/// The adapters of requests that did not end yet, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdaptersInUse {
    /// Those of sequences that take part in steps.
    pub running: Vec<AdapterId>,
    /// Those of sequences that wait.
    pub waiting: Vec<AdapterId>,
}

/// The adapters that the engine's thread knows of.
#[derive(Debug, Default)]
pub(crate) struct CoreAdapters {
    /// On their way to the executor, the first of them in part.
    pub(crate) coming: VecDeque<ComingAdapter>,
    /// Removed, but some sequence may still have it.
    pub(crate) leaving: Vec<AdapterId>,
    pub(crate) n_loaded: usize,
}

/// An adapter of which some weights are uploaded.
#[derive(Debug)]
pub(crate) struct ComingAdapter {
    pub(crate) id: AdapterId,
    pub(crate) adapter: Arc<Adapter>,
    pub(crate) strength: f32,
    /// Weights that are uploaded.
    pub(crate) n_done: usize,
    pub(crate) reply: Reply,
}

/// Counts ids from 1.
#[derive(Debug)]
pub(crate) struct AdapterNumbers(NonZeroU32);

impl AdapterNumbers {
    pub(crate) fn new() -> Self {
        Self(NonZeroU32::MIN)
    }

    pub(crate) fn take(&mut self) -> NonZeroU32 {
        let number = self.0;
        self.0 = number
            .checked_add(1)
            .expect("fewer adapters than 2^32 are loaded in an engine's life");
        number
    }
}
