//! [`PrefixReader`] and [`PrefixWriter`]: transfer the memory of a prefix as bytes out of an engine or into
//! one.
//!
//! The engine's thread transfers one chunk at a time between two steps. Invariants: the chunks of a prefix
//! have the same lengths for readers and writers; a dropped handle releases what it held, and an incompletely
//! written prefix is never found.

use std::ops::Range;

use tokenmill_backend::PAGE_TOKENS;

use crate::{
    engine::Engine,
    error::EngineError,
    pages::key::first_visible_page,
    queue::{
        mailbox::{Command, EngineState, Mailbox},
        prefix_command::{Held, MemoryCommand, Reply},
    },
    sync::{Arc, mpsc},
};

/// Maximum bytes of a chunk, unless one place has more: the amount that the engine copies between two steps.
const CHUNK_BYTES: usize = 4 << 20;

type Answer<T> = mpsc::Receiver<Result<T, EngineError>>;

/// A chunk of a prefix's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Chunk {
    places: Range<usize>,
    n_bytes: usize,
}

/// Divides places into chunks, given the bytes of each.
fn chunks_of(place_bytes: &[usize]) -> Vec<Chunk> {
    let mut chunks: Vec<Chunk> = Vec::new();
    for (place, &n_bytes) in place_bytes.iter().enumerate() {
        match chunks.last_mut() {
            Some(chunk) if chunk.n_bytes + n_bytes <= CHUNK_BYTES => {
                chunk.places.end = place + 1;
                chunk.n_bytes += n_bytes;
            }
            _ => chunks.push(Chunk {
                places: place..place + 1,
                n_bytes,
            }),
        }
    }
    chunks
}

/// A prefix held for a handle.
#[derive(Debug)]
struct Transfer {
    hold: u64,
    n_tokens: usize,
    snapshots: Vec<u32>,
    chunks: Vec<Chunk>,
    n_done: usize,
    mailbox: Arc<Mailbox>,
}

impl Transfer {
    fn begin(
        engine: &Engine,
        command: impl FnOnce(Reply<Held>) -> MemoryCommand,
    ) -> Result<Self, EngineError> {
        let mailbox = Arc::clone(engine.mailbox());
        let held = ask(&mailbox, command)?;
        Ok(Self {
            hold: held.hold,
            n_tokens: held.n_tokens,
            snapshots: held.snapshots,
            chunks: chunks_of(&held.place_bytes),
            n_done: 0,
            mailbox,
        })
    }

    /// Sends `command` for the next chunk; `None` after the last.
    fn order(
        &mut self,
        command: impl FnOnce(u64, Range<usize>, Reply<Vec<u8>>) -> MemoryCommand,
    ) -> Option<Answer<Vec<u8>>> {
        let places = self.chunks.get(self.n_done)?.places.clone();
        self.n_done += 1;
        let (reply, answer) = mpsc::channel();
        self.mailbox
            .post(Command::Memory(command(self.hold, places, reply)));
        Some(answer)
    }

    fn n_bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.n_bytes as u64).sum()
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.mailbox
            .post(Command::Memory(MemoryCommand::LetGo { hold: self.hold }));
    }
}

/// Sends a command to the engine's thread, and waits for the answer.
fn ask<T>(mailbox: &Mailbox, command: impl FnOnce(Reply<T>) -> MemoryCommand) -> Result<T, EngineError> {
    let (reply, answer) = mpsc::channel();
    mailbox.post(Command::Memory(command(reply)));
    await_answer(mailbox, &answer)
}

fn await_answer<T>(mailbox: &Mailbox, answer: &Answer<T>) -> Result<T, EngineError> {
    // No answer means that the engine has ended.
    answer.recv().unwrap_or_else(|_| {
        Err(match mailbox.state() {
            EngineState::Ended(reason) => reason,
            EngineState::Running | EngineState::Draining => EngineError::Stopped,
        })
    })
}

/// Reads the memory of a cached prefix, which stays until the handle is dropped. Calls block.
#[derive(Debug)]
pub struct PrefixReader {
    transfer: Transfer,
    /// The chunk being read.
    pending: Option<Answer<Vec<u8>>>,
}

impl PrefixReader {
    /// Returns the number of tokens whose memory it is: whole pages from the first token on, 0 if nothing was
    /// cached.
    pub fn n_tokens(&self) -> usize {
        self.transfer.n_tokens
    }

    /// Returns the numbers of tokens that its recurrent states have seen, ascending; empty for a model
    /// without states.
    pub fn snapshots(&self) -> &[u32] {
        &self.transfer.snapshots
    }

    /// Returns the bytes of all chunks.
    pub fn n_bytes(&self) -> u64 {
        self.transfer.n_bytes()
    }

    /// Returns the number of chunks.
    pub fn n_chunks(&self) -> usize {
        self.transfer.chunks.len()
    }

    /// Returns the next chunk; `None` after the last. The buffer `spare` is reused for a later one.
    ///
    /// # Errors
    /// A device error, or the end of the engine.
    pub fn read_chunk(&mut self, spare: Vec<u8>) -> Result<Option<Vec<u8>>, EngineError> {
        if self.pending.is_none() {
            self.pending = self.order(Vec::new());
        }
        let Some(answer) = self.pending.take() else {
            return Ok(None);
        };
        let chunk = await_answer(&self.transfer.mailbox, &answer)?;
        // It is read while the caller processes this one.
        self.pending = self.order(spare);
        Ok(Some(chunk))
    }

    fn order(&mut self, mut bytes: Vec<u8>) -> Option<Answer<Vec<u8>>> {
        bytes.clear();
        self.transfer.order(|hold, places, reply| MemoryCommand::Read {
            hold,
            places,
            bytes,
            reply,
        })
    }
}

/// Writes the memory of a prefix computed elsewhere. Prompts find it once [`Self::publish`] returns. Calls
/// block.
#[derive(Debug)]
pub struct PrefixWriter {
    transfer: Transfer,
    /// The chunk being written.
    pending: Option<Answer<Vec<u8>>>,
}

impl PrefixWriter {
    /// Returns the bytes of all chunks.
    pub fn n_bytes(&self) -> u64 {
        self.transfer.n_bytes()
    }

    /// Returns the number of chunks.
    pub fn n_chunks(&self) -> usize {
        self.transfer.chunks.len()
    }

    /// Returns the bytes of the next chunk to write; `None` after the last.
    pub fn next_chunk_bytes(&self) -> Option<usize> {
        Some(self.transfer.chunks.get(self.transfer.n_done)?.n_bytes)
    }

    /// Writes the next chunk. Returns the buffer of an earlier one.
    ///
    /// # Errors
    /// A device error for this chunk or an earlier one, or the end of the engine.
    ///
    /// # Panics
    /// If the length of `bytes` is not [`Self::next_chunk_bytes`].
    pub fn write_chunk(&mut self, bytes: Vec<u8>) -> Result<Vec<u8>, EngineError> {
        assert_eq!(Some(bytes.len()), self.next_chunk_bytes(), "bytes of a chunk");
        let written = self.settle()?;
        self.pending = self.transfer.order(|hold, places, reply| MemoryCommand::Write {
            hold,
            places,
            bytes,
            reply,
        });
        Ok(written)
    }

    /// Publishes the prefix in the prefix cache.
    ///
    /// # Errors
    /// As [`Self::write_chunk`].
    ///
    /// # Panics
    /// If a chunk was not written.
    pub fn publish(mut self) -> Result<(), EngineError> {
        assert_eq!(self.next_chunk_bytes(), None, "chunks that were not written");
        self.settle()?;
        let hold = self.transfer.hold;
        ask(&self.transfer.mailbox, |reply| MemoryCommand::Publish {
            hold,
            reply,
        })
    }

    /// Waits for the chunk being written, and returns its buffer.
    fn settle(&mut self) -> Result<Vec<u8>, EngineError> {
        match self.pending.take() {
            Some(answer) => await_answer(&self.transfer.mailbox, &answer),
            None => Ok(Vec::new()),
        }
    }
}

impl Engine {
    /// Returns the bytes of each chunk of a [`PrefixWriter`] for `n_tokens` tokens and `n_snapshots`
    /// snapshots, in order; `None` if the executor's memory cannot be written. Neither reserves memory nor
    /// contacts the engine's thread.
    pub fn prefix_chunk_bytes(&self, n_tokens: usize, n_snapshots: usize) -> Option<Vec<usize>> {
        let format = self.memory_format()?;
        let n_pages = n_tokens / PAGE_TOKENS;
        let mut place_bytes = Vec::new();
        for ((_, limits), page_bytes) in self.limits().groups().zip(format.page_bytes) {
            let first_page = first_visible_page(n_pages * PAGE_TOKENS, limits.window);
            place_bytes.extend(std::iter::repeat_n(page_bytes, n_pages - first_page));
        }
        place_bytes.extend(std::iter::repeat_n(format.state_bytes, n_snapshots));
        Some(
            chunks_of(&place_bytes)
                .into_iter()
                .map(|chunk| chunk.n_bytes)
                .collect(),
        )
    }

    /// Holds the longest cached prefix of `tokens` for requests with this salt, to read its memory. Blocks
    /// until the current step is done.
    ///
    /// # Errors
    /// [`EngineError::MemoryNotReadable`], [`EngineError::NoRoomForPrefix`], or the end of the engine.
    pub fn read_prefix(&self, tokens: &[u32], cache_salt: u64) -> Result<PrefixReader, EngineError> {
        let (tokens, salt) = (tokens.to_vec(), cache_salt);
        Ok(PrefixReader {
            transfer: Transfer::begin(self, |reply| MemoryCommand::Hold { tokens, salt, reply })?,
            pending: None,
        })
    }

    /// Reserves memory for the whole pages of `tokens`, to write what [`Self::read_prefix`] returned
    /// elsewhere. That engine must have the same model and an equal [`Self::memory_format`], and `snapshots`
    /// must be its snapshots. Prompts with this prefix and salt find it afterwards.
    ///
    /// # Errors
    /// As [`Self::read_prefix`]; [`EngineError::BadSnapshots`].
    pub fn write_prefix(
        &self,
        tokens: &[u32],
        snapshots: &[u32],
        cache_salt: u64,
    ) -> Result<PrefixWriter, EngineError> {
        let (tokens, snapshots, salt) = (tokens.to_vec(), snapshots.to_vec(), cache_salt);
        Ok(PrefixWriter {
            transfer: Transfer::begin(self, |reply| MemoryCommand::Reserve {
                tokens,
                snapshots,
                salt,
                reply,
            })?,
            pending: None,
        })
    }

    /// Drops the unused cached pages of a prefix.
    ///
    /// # Errors
    /// The end of the engine.
    pub fn forget_prefix(&self, tokens: &[u32], cache_salt: u64) -> Result<(), EngineError> {
        let (tokens, salt) = (tokens.to_vec(), cache_salt);
        ask(self.mailbox(), |reply| MemoryCommand::Forget {
            tokens,
            salt,
            reply,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_whole_places() {
        let check = |place_bytes: &[usize], expected: &[(Range<usize>, usize)]| {
            let chunks: Vec<_> = (chunks_of(place_bytes).into_iter())
                .map(|chunk| (chunk.places, chunk.n_bytes))
                .collect();
            assert_eq!(chunks, expected);
        };
        let half = CHUNK_BYTES / 2;
        check(&[], &[]);
        check(&[0, 0], &[(0..2, 0)]);
        check(&[half, half, 1], &[(0..2, CHUNK_BYTES), (2..3, 1)]);
        check(
            &[1, 3 * CHUNK_BYTES, 1],
            &[(0..1, 1), (1..2, 3 * CHUNK_BYTES), (2..3, 1)],
        );
    }
}
