//! Commands to the engine's thread about adapters, and the numbers that name adapters.
//!
//! Plain data for the two sides of the mailbox, `engine/adapters.rs` and `engine/core/adapters.rs`. Invariants: an
//! id is never reused; pages computed with an adapter are found only with that adapter, and are dropped with
//! it.

use std::num::NonZeroU32;

use tokenmill_backend::{Adapter, AdapterError, AdapterId};

use crate::sync::{Arc, mpsc};

/// A command about adapters.
#[derive(Debug)]
pub(crate) enum AdapterCommand {
    Add {
        id: AdapterId,
        adapter: Arc<Adapter>,
        strength: f32,
        /// A hash of the matrices, if the engine has a page store.
        matrices: Option<u64>,
        reply: Reply,
    },
    Copy {
        from: AdapterId,
        id: AdapterId,
        strength: f32,
        reply: Reply,
    },
    /// Removes an adapter; no later request uses it.
    Remove(AdapterId),
}

pub(crate) type Reply = mpsc::Sender<Result<(), AdapterError>>;

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
