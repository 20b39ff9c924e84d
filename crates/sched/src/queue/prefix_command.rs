//! [`MemoryCommand`]: commands to the engine's thread for reading or writing a prefix's memory.
//!
//! Invariant: each held prefix has its own number.

use std::ops::Range;

use crate::{error::EngineError, sync::mpsc};

/// The receiver of a command's answer. The caller may have stopped waiting.
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
    /// Reserve memory for a prefix to be written.
    Reserve {
        tokens: Vec<u32>,
        snapshots: Vec<u32>,
        salt: u64,
        reply: Reply<Held>,
    },
    /// Read some places of a held prefix, appending to a buffer.
    Read {
        hold: u64,
        places: Range<usize>,
        bytes: Vec<u8>,
        reply: Reply<Vec<u8>>,
    },
    /// Write some places. The buffer is returned.
    Write {
        hold: u64,
        places: Range<usize>,
        bytes: Vec<u8>,
        reply: Reply<Vec<u8>>,
    },
    /// Publish a written prefix in the prefix cache.
    Publish { hold: u64, reply: Reply<()> },
    /// The handle was dropped.
    LetGo { hold: u64 },
    /// Drop the unused pages of a prefix.
    Forget {
        tokens: Vec<u32>,
        salt: u64,
        reply: Reply<()>,
    },
}

/// A prefix that is held.
#[derive(Debug)]
pub(crate) struct Held {
    /// The number by which commands refer to it.
    pub(crate) hold: u64,
    /// Number of tokens whose memory is held.
    pub(crate) n_tokens: usize,
    /// Numbers of tokens that its snapshots have seen.
    pub(crate) snapshots: Vec<u32>,
    /// Bytes of each of its places.
    pub(crate) place_bytes: Vec<usize>,
}
