//! Prefixes that callers hold, to read or write their memory.
//!
//! Part of [`Core`], but not of a step: each command is short and runs between two steps. Invariant: a held
//! prefix is released by its handle, or by the end of the engine.

use std::ops::Range;

use tokenmill_backend::{MemoryFormat, MemoryPlace, StepError};

use crate::{
    engine::core::Core,
    error::EngineError,
    plan::{
        scheduler::held_prefix::{HeldPrefix, HoldError},
        step_plan::StepPlan,
    },
    queue::prefix_command::{Held, MemoryCommand, Reply},
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
    places: Vec<MemoryPlace>,
}

impl Holds {
    fn places(&self, id: u64, places: Range<usize>) -> Result<&[MemoryPlace], EngineError> {
        let hold = self.open.iter().find(|hold| hold.id == id);
        (hold.and_then(|hold| hold.places.get(places))).ok_or(EngineError::Stopped)
    }

    fn take(&mut self, id: u64) -> Option<HeldPrefix> {
        let at = self.open.iter().position(|hold| hold.id == id)?;
        Some(self.open.swap_remove(at).prefix)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}

impl Core {
    /// Releases prefixes that no caller has used for a while, if nothing else is left: they would keep a
    /// draining engine alive forever.
    pub(crate) fn end_forgotten_holds(&mut self, now_us: u64) {
        if !self.scheduler.is_empty() || self.has_step_in_flight() || self.holds.is_empty() {
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
    pub(super) fn transfer(&mut self, command: MemoryCommand) {
        self.holds.alone_since_us = None;
        match command {
            MemoryCommand::Hold { tokens, salt, reply } => {
                let held = self.scheduler.hold_prefix(&tokens, salt);
                answer(&reply, self.open_hold(held));
            }
            MemoryCommand::Reserve {
                tokens,
                snapshots,
                salt,
                reply,
            } => {
                let held = self.scheduler.reserve_prefix(&tokens, &snapshots, salt);
                answer(&reply, self.open_hold(held));
            }
            MemoryCommand::Read {
                hold,
                places,
                bytes,
                reply,
            } => {
                answer(&reply, self.read_places(hold, places, bytes));
            }
            MemoryCommand::Write {
                hold,
                places,
                bytes,
                reply,
            } => {
                answer(&reply, self.write_places(hold, places, bytes));
            }
            MemoryCommand::Publish { hold, reply } => {
                if let Some(prefix) = self.holds.take(hold) {
                    self.scheduler.publish_prefix(prefix);
                }
                answer(&reply, Ok(()));
            }
            MemoryCommand::LetGo { hold } => {
                if let Some(prefix) = self.holds.take(hold) {
                    self.scheduler.let_prefix_go(prefix);
                }
            }
            MemoryCommand::Forget { tokens, salt, reply } => {
                self.scheduler.forget_prefix(&tokens, salt);
                answer(&reply, Ok(()));
            }
        }
    }

    /// Executes the copies that holding a prefix requires, and assigns it a number.
    fn open_hold(&mut self, held: Result<HeldPrefix, HoldError>) -> Result<Held, EngineError> {
        let format = self.executor.memory_format();
        let prefix = held.map_err(|error| match error {
            HoldError::NoRoom { needed, n_available } => EngineError::NoRoomForPrefix { needed, n_available },
            HoldError::BadSnapshots => EngineError::BadSnapshots,
        })?;
        let made = match format {
            Some(format) => self.copy_for_prefix().map(|()| format).map_err(EngineError::from),
            None => Err(EngineError::MemoryNotReadable),
        };
        let format: MemoryFormat = match made {
            Ok(format) => format,
            Err(error) => {
                self.scheduler.let_prefix_go(prefix);
                return Err(error);
            }
        };
        let places = prefix.places();
        let held = Held {
            hold: self.holds.next,
            n_tokens: prefix.n_tokens(),
            snapshots: prefix.snapshots(),
            place_bytes: places.iter().map(|&place| format.bytes_of(place)).collect(),
        };
        self.holds.next += 1;
        self.holds.open.push(Hold {
            id: held.hold,
            prefix,
            places,
        });
        Ok(held)
    }

    /// Executes the copies between the tiers that reserving pages caused.
    pub(super) fn copy_for_prefix(&mut self) -> Result<(), StepError> {
        self.keep_evicted_pages();
        let mut plan = StepPlan::default();
        self.scheduler.take_copies(&mut plan);
        self.copy_planned(&plan)
    }

    fn read_places(
        &mut self,
        hold: u64,
        places: Range<usize>,
        mut bytes: Vec<u8>,
    ) -> Result<Vec<u8>, EngineError> {
        let places = self.holds.places(hold, places)?;
        let mut take = |own: &[u8]| bytes.extend_from_slice(own);
        self.executor.read_memory(places, &mut take)?;
        Ok(bytes)
    }

    fn write_places(
        &mut self,
        hold: u64,
        places: Range<usize>,
        bytes: Vec<u8>,
    ) -> Result<Vec<u8>, EngineError> {
        let format = self
            .executor
            .memory_format()
            .ok_or(EngineError::MemoryNotReadable)?;
        let mut rest = &bytes[..];
        let contents: Vec<_> = (self.holds.places(hold, places)?.iter())
            .map(|&place| {
                let (own, others) = rest.split_at(format.bytes_of(place));
                rest = others;
                (place, own)
            })
            .collect();
        self.executor.write_memory(&contents)?;
        Ok(bytes)
    }
}

/// The caller may be gone.
fn answer<T>(reply: &Reply<T>, answer: Result<T, EngineError>) {
    let _ = reply.send(answer);
}
