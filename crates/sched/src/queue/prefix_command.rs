//! [`MemoryCommand`]: commands to the engine's thread for reading or writing a prefix's memory.
//!
//! Sessions and page stores send the same ones. Invariant: each held prefix has its own number.

use crate::{
    error::EngineError, pages::store::PrefixPart, plan::scheduler::held_prefix::HeldPart, sync::mpsc,
};

/// The receiver of a command's answer. The caller may have stopped waiting.
pub(crate) type Reply<T> = mpsc::Sender<Result<T, EngineError>>;

/// A step of reading or writing the memory of a prefix.
#[derive(Debug)]
pub(crate) enum MemoryCommand {
    /// Hold the longest prefix that the cache and `stored` have together. Memory is reserved for the parts that
    /// only `stored` has.
    Hold {
        tokens: Vec<u32>,
        stored: Vec<PrefixPart>,
        salt: u64,
        reply: Reply<Held>,
    },
    /// Read some parts of a held prefix, from one on. There are none after the last.
    Read {
        hold: u64,
        from: usize,
        reply: Reply<Vec<Vec<u8>>>,
    },
    /// Write the next missing parts.
    Write {
        hold: u64,
        contents: Vec<Vec<u8>>,
        reply: Reply<()>,
    },
    /// Publish the complete pages in the prefix cache, and release the prefix.
    Publish { hold: u64, reply: Option<Reply<()>> },
    /// Release the prefix: its reader was dropped.
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
    /// Its parts, in the order of reads and writes.
    pub(crate) parts: Vec<HeldPart>,
}
