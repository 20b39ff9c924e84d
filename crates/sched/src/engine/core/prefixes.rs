//! Prefixes that are held, to read or write their memory.
//!
//! Part of [`Core`], but not of a step: each command is short and runs between two steps. Sessions hold prefixes
//! through handles, and the page store's fetches (`store/fetch.rs`) do as well. Invariant: a held prefix is
//! released by its handle, by the end of its fetch, or by the end of the engine.

use tokenmill_backend::{AdapterId, MemoryPlace, StepError};

use crate::{
    engine::core::Core,
    error::EngineError,
    pages::store::PORTION_BYTES,
    plan::{
        scheduler::held_prefix::{HeldPrefix, NoRoom},
        step_plan::StepPlan,
    },
    queue::{
        prefix_command::{Held, MemoryCommand, Reply},
        submission::Submission,
    },
};

/// How long a draining engine waits for idle readers and writers of prefixes, in microseconds.
const HOLD_PATIENCE_US: u64 = 5_000_000;

/// The prefixes that are held.
#[derive(Debug, Default)]
pub(super) struct Holds {
    next: u64,
    open: Vec<Hold>,
    /// Start of the period in which only held prefixes are left and no caller has used them.
    alone_since_us: Option<u64>,
}

/// A prefix with its number.
#[derive(Debug)]
struct Hold {
    id: u64,
    prefix: HeldPrefix,
    /// Number of its missing parts that are written.
    n_written: usize,
}

impl Holds {
    pub(super) fn open(&mut self, prefix: HeldPrefix) -> u64 {
        let id = self.next;
        self.next += 1;
        self.open.push(Hold {
            id,
            prefix,
            n_written: 0,
        });
        id
    }

    fn get(&mut self, id: u64) -> Result<&mut Hold, EngineError> {
        let mut open = self.open.iter_mut();
        open.find(|hold| hold.id == id).ok_or(EngineError::Stopped)
    }

    fn take(&mut self, id: u64) -> Option<Hold> {
        let at = self.open.iter().position(|hold| hold.id == id)?;
        Some(self.open.swap_remove(at))
    }

    pub(super) fn prefix(&self, id: u64) -> Option<&HeldPrefix> {
        let hold = self.open.iter().find(|hold| hold.id == id)?;
        Some(&hold.prefix)
    }

    /// Returns the adapters that held prefixes were computed with.
    pub(super) fn adapters(&self) -> impl Iterator<Item = AdapterId> {
        self.open.iter().filter_map(|hold| hold.prefix.adapter)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}

impl Core {
    /// Releases prefixes that no caller has used for a while, if nothing else is left: they would keep a
    /// draining engine alive forever.
    pub(crate) fn end_forgotten_holds(&mut self, now_us: u64) {
        let is_busy = !self.scheduler.is_empty() || self.has_step_in_flight() || self.n_fetching() > 0;
        if is_busy || self.holds.is_empty() {
            self.holds.alone_since_us = None;
            return;
        }
        let since_us = *self.holds.alone_since_us.get_or_insert(now_us);
        if now_us.saturating_sub(since_us) >= HOLD_PATIENCE_US {
            for hold in self.holds.open.drain(..) {
                self.scheduler.let_prefix_go(hold.prefix);
            }
        }
    }

    /// Executes a command about the memory of a prefix.
    pub(super) fn transfer(&mut self, command: MemoryCommand, now_us: u64) {
        self.holds.alone_since_us = None;
        match command {
            MemoryCommand::Hold {
                tokens,
                stored,
                salt,
                reply,
            } => {
                let held = self.scheduler.hold_prefix(&tokens, salt, &stored);
                answer(&reply, self.open_hold(held));
            }
            MemoryCommand::Read { hold, from, reply } => {
                answer(&reply, self.read_parts(hold, from));
            }
            MemoryCommand::Write {
                hold,
                contents,
                reply,
            } => {
                let written = self.write_parts(hold, &contents);
                if written.is_ok() {
                    self.note_fetched(hold, now_us);
                } else {
                    self.end_and_look_again(hold, now_us);
                }
                answer(&reply, written);
            }
            MemoryCommand::Publish { hold, reply } => {
                self.end_and_look_again(hold, now_us);
                if let Some(reply) = reply {
                    answer(&reply, Ok(()));
                }
            }
            MemoryCommand::LetGo { hold } => {
                if let Some(hold) = self.holds.take(hold) {
                    self.scheduler.let_prefix_go(hold.prefix);
                }
            }
            MemoryCommand::Forget { tokens, salt, reply } => {
                self.scheduler.forget_prefix(&tokens, salt);
                answer(&reply, Ok(()));
            }
        }
    }

    fn open_hold(&mut self, held: Result<HeldPrefix, NoRoom>) -> Result<Held, EngineError> {
        let prefix = held
            .map_err(|NoRoom { needed, n_available }| EngineError::NoRoomForPrefix { needed, n_available })?;
        if self.executor.memory_format().is_none() {
            self.scheduler.let_prefix_go(prefix);
            return Err(EngineError::MemoryNotReadable);
        }
        let (n_tokens, parts) = (prefix.tokens.len(), prefix.parts.clone());
        Ok(Held {
            hold: self.hold(prefix)?,
            n_tokens,
            parts,
        })
    }

    /// Executes the copies that holding a prefix requires, and assigns it a number. If they fail, the prefix is
    /// released.
    pub(super) fn hold(&mut self, prefix: HeldPrefix) -> Result<u64, StepError> {
        // Making room evicted other pages, which may have to be copied.
        self.keep_evicted_pages();
        let mut plan = StepPlan::default();
        self.scheduler.take_copies(&mut plan);
        match self.copy_planned(&plan) {
            Ok(()) => Ok(self.holds.open(prefix)),
            Err(error) => {
                self.scheduler.let_prefix_go(prefix);
                Err(error)
            }
        }
    }

    fn read_parts(&mut self, hold: u64, from: usize) -> Result<Vec<Vec<u8>>, EngineError> {
        let format = self
            .executor
            .memory_format()
            .ok_or(EngineError::MemoryNotReadable)?;
        let parts = &self.holds.get(hold)?.prefix.parts;
        let (mut places, mut n_bytes) = (Vec::new(), 0);
        for held in parts.get(from..).unwrap_or_default() {
            n_bytes += format.bytes_of(held.place);
            if n_bytes > PORTION_BYTES && !places.is_empty() {
                break;
            }
            places.push(held.place);
        }
        Ok(self.read_places(&places)?)
    }

    /// Returns the bytes of each place.
    pub(super) fn read_places(&mut self, places: &[MemoryPlace]) -> Result<Vec<Vec<u8>>, StepError> {
        let mut contents = Vec::with_capacity(places.len());
        let mut take = |bytes: &[u8]| contents.push(bytes.to_vec());
        self.executor.read_memory(places, &mut take)?;
        Ok(contents)
    }

    fn write_parts(&mut self, hold: u64, contents: &[Vec<u8>]) -> Result<(), EngineError> {
        let format = self
            .executor
            .memory_format()
            .ok_or(EngineError::MemoryNotReadable)?;
        let hold = self.holds.get(hold)?;
        let missing = hold.prefix.missing().skip(hold.n_written);
        let writes: Vec<_> = (missing.zip(contents))
            .map(|(held, bytes)| (held.place, &bytes[..]))
            .filter(|&(place, bytes)| bytes.len() == format.bytes_of(place))
            .collect();
        if writes.len() < contents.len() {
            return Err(EngineError::BadParts);
        }
        self.executor.write_memory(&writes)?;
        hold.n_written += contents.len();
        Ok(())
    }

    /// Publishes the complete pages of a held prefix, and starts the request that waited for them. Returns the
    /// requests that waited with it.
    pub(super) fn end_hold(&mut self, id: u64) -> Vec<Submission> {
        if let Some(hold) = self.holds.take(id) {
            self.scheduler.publish_prefix(hold.prefix, hold.n_written);
        }
        let Some(fetch) = self.store.as_mut().and_then(|link| link.take_fetch(id)) else {
            return Vec::new();
        };
        self.accept(fetch.submission);
        fetch.followers
    }
}

/// The caller may be gone.
fn answer<T>(reply: &Reply<T>, answer: Result<T, EngineError>) {
    let _ = reply.send(answer);
}
