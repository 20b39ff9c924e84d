//! [`MemoryCommand`]: what is asked of the engine's thread to read a prefix's memory, or to write one.
//!
//! Separate from the thread, which obeys, because the mailbox carries it. Invariant: a prefix that is held has a number of its own.

use std::ops::Range;

use tokenmill_backend::MemoryPlace;

use crate::{error::EngineError, held_prefix::HeldPrefix, sync::mpsc};

/// Where the answer to a command goes. No caller may wait for it any more.
pub(crate) type Reply<T> = mpsc::Sender<Result<T, EngineError>>;

/// A step of reading or writing the memory of a prefix.
#[derive(Debug)]
pub(crate) enum MemoryCommand {
    /// Hold the longest prefix that the cache has.
    Hold {
        tokens: Vec<u32>,
        salt: u64,
        reply: Reply<Held>,
    },
    /// Take memory for a prefix that is to be written.
    Reserve {
        tokens: Vec<u32>,
        snapshots: Vec<u32>,
        salt: u64,
        reply: Reply<Held>,
    },
    /// Read some of the places of a held prefix to the end of a buffer.
    Read {
        hold: u64,
        places: Range<usize>,
        bytes: Vec<u8>,
        reply: Reply<Vec<u8>>,
    },
    /// Write them. The buffer comes back.
    Write {
        hold: u64,
        places: Range<usize>,
        bytes: Vec<u8>,
        reply: Reply<Vec<u8>>,
    },
    /// Let prompts find a prefix that was written.
    Publish { hold: u64, reply: Reply<()> },
    /// The handle is gone.
    LetGo { hold: u64 },
    /// Forget the pages of a prefix that no sequence uses.
    Forget {
        tokens: Vec<u32>,
        salt: u64,
        reply: Reply<()>,
    },
}

/// A prefix that is held.
#[derive(Debug)]
pub(crate) struct Held {
    /// The number that commands name it by.
    pub(crate) hold: u64,
    /// Tokens whose memory it is.
    pub(crate) n_tokens: usize,
    /// Tokens that its snapshots have seen.
    pub(crate) snapshots: Vec<u32>,
    /// Bytes of each of its places.
    pub(crate) place_bytes: Vec<usize>,
}

/// The prefixes that are held.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    pub(crate) next: u64,
    pub(crate) open: Vec<Hold>,
}

/// A prefix with its number.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) id: u64,
    pub(crate) prefix: HeldPrefix,
    pub(crate) places: Vec<MemoryPlace>,
}

impl Holds {
    pub(crate) fn places(&self, id: u64, places: Range<usize>) -> Result<&[MemoryPlace], EngineError> {
        let hold = self.open.iter().find(|hold| hold.id == id);
        (hold.and_then(|hold| hold.places.get(places))).ok_or(EngineError::Stopped)
    }

    pub(crate) fn take(&mut self, id: u64) -> Option<HeldPrefix> {
        let at = self.open.iter().position(|hold| hold.id == id)?;
        Some(self.open.swap_remove(at).prefix)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}
