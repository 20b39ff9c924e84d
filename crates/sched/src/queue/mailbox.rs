//! [`Mailbox`]: commands from callers to the engine's thread.
//!
//! It is the only state that both sides change. Invariants: a request counts in the gauges from its
//! acceptance until it begins or ends, except while its consumer keeps it waiting; after [`Mailbox::close`]
//! nothing is accepted any more, and the reason is kept.

use std::{collections::BTreeSet, num::NonZeroU32, time::Duration};

use tokenmill_backend::AdapterId;

use crate::{
    error::EngineError,
    queue::{
        adapters::{AdapterCommand, AdapterNumbers},
        event::RequestId,
        gauge::Count,
        prefix_command::MemoryCommand,
        submission::Submission,
    },
    sync::{Arc, Condvar, Mutex},
};

/// A caller's command to the engine.
#[derive(Debug)]
pub(crate) enum Command {
    Submit(Box<Submission>),
    /// The caller cancels a request.
    Cancel(RequestId),
    /// The caller stops one sample of a request.
    Stop {
        request: RequestId,
        sample: u32,
    },
    /// The consumer of a request has caught up.
    Resume(RequestId),
    /// Empty the prefix cache.
    ForgetCache,
    /// Load or forget an adapter.
    Adapter(AdapterCommand),
    /// Read or write the memory of a prefix.
    Memory(MemoryCommand),
}

/// Whether an engine accepts requests.
#[derive(Clone, Debug, PartialEq)]
pub enum EngineState {
    /// It accepts requests.
    Running,
    /// It finishes the accepted requests and accepts no more.
    Draining,
    /// It has ended, for this reason.
    Ended(EngineError),
}

/// Limits for waiting requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLimits {
    pub(crate) max_queued: usize,
    pub(crate) max_queued_tokens: usize,
}

#[derive(Debug)]
pub(crate) struct Mailbox {
    inbox: Mutex<Inbox>,
    changed: Condvar,
    ended: Condvar,
    limits: QueueLimits,
}

#[derive(Debug)]
struct Inbox {
    commands: Vec<Command>,
    next_request: u64,
    /// The adapters that requests may use.
    adapters: BTreeSet<AdapterId>,
    adapter_numbers: AdapterNumbers,
    n_queued: usize,
    n_queued_tokens: usize,
    state: EngineState,
    /// Whether every handle is gone, so that no caller needs the remaining results.
    is_abandoned: bool,
}

/// Whether a submission needs room in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It is refused if there is none.
    Bounded,
    /// It and this number of further sequences and prompt tokens are refused if there is none.
    BoundedWith { n_sequences: usize, n_tokens: usize },
    /// It belongs to an accepted request.
    Granted,
}

/// How the engine's loop continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    Serve,
    EndWhenEmpty,
    EndNow,
}

impl Mailbox {
    pub(crate) fn new(limits: QueueLimits) -> Arc<Self> {
        Arc::new(Self {
            inbox: Mutex::new(Inbox {
                commands: Vec::new(),
                next_request: 0,
                adapters: BTreeSet::new(),
                adapter_numbers: AdapterNumbers::new(),
                n_queued: 0,
                n_queued_tokens: 0,
                state: EngineState::Running,
                is_abandoned: false,
            }),
            changed: Condvar::new(),
            ended: Condvar::new(),
            limits,
        })
    }

    fn with<R>(&self, change: impl FnOnce(&mut Inbox) -> R) -> R {
        change(
            &mut self
                .inbox
                .lock()
                .expect("nothing panics while it holds this lock"),
        )
    }

    /// Accepts a request of `n_sequences` sequences and `n_tokens` prompt tokens, or refuses it.
    pub(crate) fn submit(
        &self,
        n_sequences: usize,
        n_tokens: usize,
        adapter: Option<AdapterId>,
        admission: Admission,
        make: impl FnOnce(RequestId) -> Submission,
    ) -> Result<RequestId, EngineError> {
        let QueueLimits {
            max_queued,
            max_queued_tokens,
        } = self.limits;
        let id = self.with(|inbox| {
            match &inbox.state {
                EngineState::Running => {}
                EngineState::Draining => return Err(EngineError::Draining),
                EngineState::Ended(reason) => return Err(reason.clone()),
            }
            if let Some(id) = adapter.filter(|id| !inbox.adapters.contains(id)) {
                return Err(EngineError::UnknownAdapter { id });
            }
            let (n_further, n_further_tokens) = match admission {
                Admission::BoundedWith {
                    n_sequences,
                    n_tokens,
                } => (n_sequences, n_tokens),
                Admission::Bounded | Admission::Granted => (0, 0),
            };
            let is_bounded = admission != Admission::Granted && inbox.n_queued > 0;
            // A request with more sequences than the limit must not be refused forever.
            if is_bounded && inbox.n_queued + n_sequences + n_further > max_queued {
                let queued = inbox.n_queued;
                return Err(EngineError::QueueFull {
                    queued,
                    maximum: max_queued,
                });
            }
            // Neither must a single prompt above the token limit.
            if is_bounded && inbox.n_queued_tokens + n_tokens + n_further_tokens > max_queued_tokens {
                return Err(EngineError::QueueTokensFull {
                    queued: inbox.n_queued_tokens,
                    provided: n_tokens + n_further_tokens,
                    maximum: max_queued_tokens,
                });
            }
            let id = RequestId::new(inbox.next_request);
            inbox.next_request += 1;
            inbox.n_queued += n_sequences;
            inbox.n_queued_tokens += n_tokens;
            inbox.commands.push(Command::Submit(Box::new(make(id))));
            Ok(id)
        })?;
        self.changed.notify_all();
        Ok(id)
    }

    /// Posts a command; no effect after the engine has ended.
    pub(crate) fn post(&self, command: Command) {
        self.with(|inbox| {
            if !matches!(inbox.state, EngineState::Ended(_)) {
                inbox.commands.push(command);
            }
        });
        self.changed.notify_all();
    }

    /// Returns a number that no adapter has had.
    pub(crate) fn next_adapter(&self) -> NonZeroU32 {
        self.with(|inbox| inbox.adapter_numbers.take())
    }

    /// Accepts requests with an adapter from now on.
    pub(crate) fn offer_adapter(&self, id: AdapterId) {
        self.with(|inbox| inbox.adapters.insert(id));
    }

    /// Stops accepting requests with an adapter, and tells the engine after those already accepted; `false`
    /// if it was not offered.
    pub(crate) fn withdraw_adapter(&self, id: AdapterId) -> bool {
        let was_offered = self.with(|inbox| {
            let was_offered = inbox.adapters.remove(&id);
            if was_offered && !matches!(inbox.state, EngineState::Ended(_)) {
                inbox.commands.push(Command::Adapter(AdapterCommand::Remove(id)));
            }
            was_offered
        });
        self.changed.notify_all();
        was_offered
    }

    /// Adds returned sequences and their tokens to the gauges, and removes those that left.
    pub(crate) fn change_queue(&self, returned: Count, left: Count) {
        self.with(|inbox| {
            inbox.n_queued = inbox.n_queued + returned.0 - left.0;
            inbox.n_queued_tokens = inbox.n_queued_tokens + returned.1 - left.1;
        });
    }

    /// Moves all commands into `commands`.
    pub(crate) fn take(&self, commands: &mut Vec<Command>) -> Intent {
        self.with(|inbox| {
            commands.append(&mut inbox.commands);
            match inbox.state {
                _ if inbox.is_abandoned => Intent::EndNow,
                EngineState::Running => Intent::Serve,
                EngineState::Draining | EngineState::Ended(_) => Intent::EndWhenEmpty,
            }
        })
    }

    /// Waits for a command, a change of state, or `timeout`.
    pub(crate) fn wait(&self, timeout: Duration, seen: Intent) {
        let inbox = self
            .inbox
            .lock()
            .expect("nothing panics while it holds this lock");
        let has_news = !inbox.commands.is_empty()
            || inbox.is_abandoned
            || (seen == Intent::Serve && inbox.state != EngineState::Running);
        if !has_news {
            drop(
                self.changed
                    .wait_timeout(inbox, timeout)
                    .expect("nothing panics while it holds this lock"),
            );
        }
    }

    /// Stops accepting requests.
    pub(crate) fn drain(&self) {
        self.with(|inbox| {
            if inbox.state == EngineState::Running {
                inbox.state = EngineState::Draining;
            }
        });
        self.changed.notify_all();
    }

    /// Tells the engine that no caller is left.
    pub(crate) fn abandon(&self) {
        self.with(|inbox| inbox.is_abandoned = true);
        self.changed.notify_all();
    }

    /// Closes the engine's side. The first reason is kept.
    pub(crate) fn close(&self, reason: EngineError) {
        let commands = self.with(|inbox| {
            if !matches!(inbox.state, EngineState::Ended(_)) {
                inbox.state = EngineState::Ended(reason);
            }
            inbox.n_queued = 0;
            inbox.n_queued_tokens = 0;
            std::mem::take(&mut inbox.commands)
        });
        // Dropped submissions drop their senders, which wakes the receivers.
        drop(commands);
        self.ended.notify_all();
    }

    /// Waits until the engine has ended; returns `false` if `timeout` expires first.
    pub(crate) fn wait_for_end(&self, timeout: Duration) -> bool {
        let mut inbox = self
            .inbox
            .lock()
            .expect("nothing panics while it holds this lock");
        let start = std::time::Instant::now();
        while !matches!(inbox.state, EngineState::Ended(_)) {
            let Some(left) = timeout
                .checked_sub(start.elapsed())
                .filter(|left| !left.is_zero())
            else {
                return false;
            };
            let waited = self.ended.wait_timeout(inbox, left);
            (inbox, _) = waited.expect("nothing panics while it holds this lock");
        }
        true
    }

    pub(crate) fn state(&self) -> EngineState {
        self.with(|inbox| inbox.state.clone())
    }

    /// Returns the numbers of waiting sequences and prompt tokens.
    pub(crate) fn n_queued(&self) -> (usize, usize) {
        self.with(|inbox| (inbox.n_queued, inbox.n_queued_tokens))
    }
}
