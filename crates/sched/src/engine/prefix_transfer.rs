//! [`PrefixReader`] and [`PrefixWriter`]: transfer the memory of a prefix as bytes out of an engine or into
//! one.
//!
//! The engine's thread transfers one portion at a time between two steps. Invariants: readers and writers use
//! the same order of parts; a dropped handle releases what it held, and an incompletely written page is never
//! found.

use crate::{
    engine::Engine,
    error::EngineError,
    pages::store::{PORTION_BYTES, PageSink, PrefixPart},
    plan::scheduler::held_prefix::HeldPart,
    queue::{
        mailbox::{Command, EngineState, Mailbox},
        prefix_command::{Held, MemoryCommand, Reply},
    },
    sync::{Arc, mpsc},
};

type Answer<T> = mpsc::Receiver<Result<T, EngineError>>;

/// Sends a command to the engine's thread.
fn order<T>(mailbox: &Mailbox, command: impl FnOnce(Reply<T>) -> MemoryCommand) -> Answer<T> {
    let (reply, answer) = mpsc::channel();
    mailbox.post(Command::Memory(command(reply)));
    answer
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

/// Sends a command to the engine's thread, and waits for the answer.
fn ask<T>(mailbox: &Mailbox, command: impl FnOnce(Reply<T>) -> MemoryCommand) -> Result<T, EngineError> {
    await_answer(mailbox, &order(mailbox, command))
}

/// Reads the memory of a cached prefix, which stays until the handle is dropped. Calls block.
#[derive(Debug)]
pub struct PrefixReader {
    hold: u64,
    n_tokens: usize,
    parts: Vec<PrefixPart>,
    n_read: usize,
    /// The portion being read.
    pending: Option<Answer<Vec<Vec<u8>>>>,
    mailbox: Arc<Mailbox>,
}

impl PrefixReader {
    /// Returns the number of tokens whose memory it is: whole pages from the first token on, 0 if nothing was
    /// cached.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Returns the parts of the memory in the order in which they are read: pages from the first one that a window
    /// still shows, and recurrent states after some of them.
    pub fn parts(&self) -> &[PrefixPart] {
        &self.parts
    }

    /// Returns the bytes of the next parts, some MiB in all; empty after the last.
    ///
    /// # Errors
    /// A device error, or the end of the engine.
    pub fn read_portion(&mut self) -> Result<Vec<Vec<u8>>, EngineError> {
        let Some(answer) = self.pending.take().or_else(|| self.order_next()) else {
            return Ok(Vec::new());
        };
        let portion = await_answer(&self.mailbox, &answer)?;
        self.n_read += portion.len();
        // It is read while the caller processes this one.
        self.pending = self.order_next();
        Ok(portion)
    }

    fn order_next(&self) -> Option<Answer<Vec<Vec<u8>>>> {
        let (hold, from) = (self.hold, self.n_read);
        let has_more = from < self.parts.len();
        has_more.then(|| order(&self.mailbox, |reply| MemoryCommand::Read { hold, from, reply }))
    }
}

impl Drop for PrefixReader {
    fn drop(&mut self) {
        let hold = self.hold;
        self.mailbox.post(Command::Memory(MemoryCommand::LetGo { hold }));
    }
}

/// Writes the memory of a prefix that was kept elsewhere. If it is dropped, prompts find the pages that are
/// complete. Calls block.
#[derive(Debug)]
pub struct PrefixWriter {
    hold: u64,
    /// Parts that are not handed over yet.
    portion: Vec<Vec<u8>>,
    n_bytes: usize,
    /// The portion being written.
    pending: Option<Answer<()>>,
    mailbox: Arc<Mailbox>,
}

impl PrefixWriter {
    /// Creates the writer of a held prefix.
    pub(crate) fn new(hold: u64, mailbox: Arc<Mailbox>) -> Self {
        Self {
            hold,
            portion: Vec::new(),
            n_bytes: 0,
            pending: None,
            mailbox,
        }
    }

    /// Writes the bytes of the next missing part. Some are collected and handed over together, once the ones before
    /// are in place; so two portions are in memory at a time.
    ///
    /// # Errors
    /// A device error for an earlier part, the end of the engine, or no one waits for the prefix any more.
    pub fn push(&mut self, bytes: Vec<u8>) -> Result<(), EngineError> {
        self.n_bytes += bytes.len();
        self.portion.push(bytes);
        if self.n_bytes >= PORTION_BYTES {
            self.hand_over()?;
        }
        Ok(())
    }

    /// Waits until all is written, and publishes the complete pages in the prefix cache.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn publish(mut self) -> Result<(), EngineError> {
        self.hand_over()?;
        self.settle()?;
        let hold = self.hold;
        ask(&self.mailbox, |reply| MemoryCommand::Publish {
            hold,
            reply: Some(reply),
        })
    }

    fn hand_over(&mut self) -> Result<(), EngineError> {
        self.settle()?;
        self.n_bytes = 0;
        let (hold, contents) = (self.hold, std::mem::take(&mut self.portion));
        if !contents.is_empty() {
            self.pending = Some(order(&self.mailbox, |reply| MemoryCommand::Write {
                hold,
                contents,
                reply,
            }));
        }
        Ok(())
    }

    /// Waits for the portion being written.
    fn settle(&mut self) -> Result<(), EngineError> {
        match self.pending.take() {
            Some(answer) => await_answer(&self.mailbox, &answer),
            None => Ok(()),
        }
    }
}

impl PageSink for PrefixWriter {
    fn push(&mut self, bytes: Vec<u8>) -> bool {
        Self::push(self, bytes).is_ok()
    }
}

impl Drop for PrefixWriter {
    fn drop(&mut self) {
        if !self.portion.is_empty() {
            // No one learns of an error; what could not be written is computed again.
            let _ = self.hand_over();
        }
        // No effect after `publish` or a failed write: the engine has released the prefix.
        let (hold, reply) = (self.hold, None);
        self.mailbox
            .post(Command::Memory(MemoryCommand::Publish { hold, reply }));
    }
}

impl Engine {
    /// Holds the longest cached prefix of `tokens` for requests with this salt, to read its memory. Blocks
    /// until the current step is done.
    ///
    /// # Errors
    /// [`EngineError::MemoryNotReadable`], [`EngineError::NoRoomForPrefix`], or the end of the engine.
    pub fn read_prefix(&self, tokens: &[u32], cache_salt: u64) -> Result<PrefixReader, EngineError> {
        let held = self.hold_prefix(tokens, &[], cache_salt)?;
        Ok(PrefixReader {
            hold: held.hold,
            n_tokens: held.n_tokens,
            parts: held.parts.iter().map(|held| held.part).collect(),
            n_read: 0,
            pending: None,
            mailbox: Arc::clone(self.mailbox()),
        })
    }

    /// Reserves memory for the longest prefix of `tokens` that the cache and `stored` have together: parts that
    /// [`Self::read_prefix`] read elsewhere, in the same order, from an engine with the same model and an equal
    /// [`Self::memory_format`]. Returns the length of the prefix in tokens, the parts that are not cached, in the order
    /// in which to write them, and their writer.
    ///
    /// # Errors
    /// As [`Self::read_prefix`].
    pub fn write_prefix(
        &self,
        tokens: &[u32],
        stored: &[PrefixPart],
        cache_salt: u64,
    ) -> Result<(usize, Vec<PrefixPart>, PrefixWriter), EngineError> {
        let held = self.hold_prefix(tokens, stored, cache_salt)?;
        let missing = held.parts.iter().filter(|held| !held.is_cached);
        Ok((
            held.n_tokens,
            missing.map(|held: &HeldPart| held.part).collect(),
            PrefixWriter::new(held.hold, Arc::clone(self.mailbox())),
        ))
    }

    fn hold_prefix(&self, tokens: &[u32], stored: &[PrefixPart], salt: u64) -> Result<Held, EngineError> {
        let (tokens, stored) = (tokens.to_vec(), stored.to_vec());
        ask(self.mailbox(), |reply| MemoryCommand::Hold {
            tokens,
            stored,
            salt,
            reply,
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
