//! [`RankThread`]: the thread on which a rank computes.
//!
//! The group addresses all ranks at once. Invariants: every order has one answer; a rank that fails, or whose
//! thread ends, notifies the others before it answers; no wait is unbounded, whatever the order.

use std::{
    cell::Cell,
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, PoisonError, RwLock,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tokenmill_backend::{
    Executor, ForwardBatch, HostGroup, PageCopy, PageGroup, StepError, StepOutput, StepTrace, Ticket,
};

use super::GroupRank;

/// An order to a rank.
pub(super) enum Order {
    /// Submit the step.
    Submit,
    /// Wait for the step of a ticket.
    Wait(u64),
    /// Wait for the newest step, and discard its result.
    Forget,
    CopyPages(PageGroup, Arc<[PageCopy]>),
    Trace,
}

/// The result of an order.
pub(super) enum Answer {
    Done,
    Results(Box<StepOutput>),
    Trace(Option<StepTrace>),
}

/// A rank and its thread.
pub(super) struct RankThread {
    idx: usize,
    n_ranks: usize,
    place: String,
    /// `None` once the thread should end.
    orders: Option<Sender<Order>>,
    answers: Receiver<Result<Answer, StepError>>,
    thread: Option<JoinHandle<()>>,
    group: HostGroup,
    /// Time of the last order.
    given: Cell<Instant>,
    /// Whether it was given up, so that no call waits for it any more.
    is_given_up: Cell<bool>,
}

/// Polling interval for failures of other ranks while one does not answer.
const GLANCE: Duration = Duration::from_millis(500);
/// Polling interval for the end of a thread.
const END_GLANCE: Duration = Duration::from_millis(1);
/// Time limit of an order, as a multiple of the ranks' patience: once to miss another rank, and once for
/// itself.
const ORDER_TAKES: u32 = 2;

impl RankThread {
    pub(super) fn start(
        idx: usize,
        rank: GroupRank,
        group: HostGroup,
        batch: Arc<RwLock<ForwardBatch>>,
    ) -> std::io::Result<Self> {
        let (orders, taken) = channel();
        let (sender, answers) = channel();
        let (n_ranks, own_group) = (group.n_ranks(), group.clone());
        let mut work = RankWork {
            executor: rank.executor,
            batch,
            open: VecDeque::new(),
            ready: VecDeque::new(),
        };
        let thread = thread::Builder::new()
            .name(format!("rank {idx}"))
            .spawn(move || {
                while let Ok(order) = taken.recv() {
                    let outcome = catch_unwind(AssertUnwindSafe(|| work.obey(order)));
                    let is_alive = outcome.is_ok();
                    let answer = outcome.unwrap_or_else(|_| {
                        Err(StepError::DeviceLost {
                            operation: "computing a step",
                            reason: "its thread panicked".to_owned(),
                        })
                    });
                    if answer.is_err() {
                        group.fail(idx);
                    }
                    if sender.send(answer).is_err() || !is_alive {
                        break;
                    }
                }
            })?;
        Ok(Self {
            idx,
            n_ranks,
            place: rank.place,
            orders: Some(orders),
            answers,
            thread: Some(thread),
            group: own_group,
            given: Cell::new(Instant::now()),
            is_given_up: Cell::new(false),
        })
    }

    pub(super) fn give(&self, order: Order) {
        self.given.set(Instant::now());
        // If the thread has ended, the missing answer is noticed later.
        let _ = self.orders.as_ref().map(|orders| orders.send(order));
    }

    /// Waits for the answer to an order. A rank is lost if it takes longer than the ranks' patience after
    /// another has failed, or twice that otherwise: a call into a driver that never returns cannot be
    /// aborted.
    pub(super) fn answer(&self) -> Result<Answer, StepError> {
        let patience = self.group.patience();
        let mut failed_since = None;
        let reason = loop {
            if self.is_given_up.get() {
                break "it did not answer";
            }
            match self.answers.recv_timeout(GLANCE.min(patience)) {
                Ok(answer) => return answer,
                Err(RecvTimeoutError::Disconnected) => break "its thread has ended",
                Err(RecvTimeoutError::Timeout) => {
                    if self.group.failure().is_some() {
                        failed_since.get_or_insert_with(Instant::now);
                    }
                    let is_missed = failed_since.is_some_and(|since| since.elapsed() > patience);
                    let is_late = self.given.get().elapsed() > ORDER_TAKES * patience;
                    self.is_given_up.set(is_missed || is_late);
                }
            }
        };
        Err(StepError::DeviceLost {
            operation: "computing a step",
            reason: reason.to_owned(),
        })
    }

    /// Adds the rank's place to an error.
    pub(super) fn name(&self, error: StepError) -> StepError {
        let named = |reason: &str| format!("{}, rank {} of {}: {reason}", self.place, self.idx, self.n_ranks);
        match error {
            StepError::Device { operation, reason } => StepError::Device {
                operation,
                reason: named(&reason),
            },
            StepError::DeviceLost { operation, reason } => StepError::DeviceLost {
                operation,
                reason: named(&reason),
            },
            other => other,
        }
    }
}

impl Drop for RankThread {
    fn drop(&mut self) {
        self.orders = None;
        let Some(thread) = self.thread.take() else {
            return;
        };
        // Closing a device may hang as well.
        let began = Instant::now();
        while !self.is_given_up.get() && !thread.is_finished() {
            thread::sleep(END_GLANCE);
            self.is_given_up
                .set(began.elapsed() > ORDER_TAKES * self.group.patience());
        }
        if thread.is_finished() {
            // A thread that panicked has already reported it.
            let _ = thread.join();
        }
    }
}

/// The state of a rank's thread.
struct RankWork {
    executor: Box<dyn Executor + Send>,
    batch: Arc<RwLock<ForwardBatch>>,
    /// Steps not awaited yet, by ticket number.
    open: VecDeque<u64>,
    /// Results of steps that had to be awaited before the caller asked.
    ready: VecDeque<Result<Box<StepOutput>, StepError>>,
}

impl RankWork {
    fn obey(&mut self, order: Order) -> Result<Answer, StepError> {
        match order {
            Order::Submit => {
                let batch = self.batch.read().unwrap_or_else(PoisonError::into_inner);
                let ticket = self.executor.submit(&batch)?;
                self.open.push_back(ticket.0);
                Ok(Answer::Done)
            }
            Order::Wait(ticket) => match self.ready.pop_front() {
                Some(results) => results.map(Answer::Results),
                None if self.open.is_empty() => Err(StepError::UnexpectedTicket { found: ticket }),
                None => self.read().map(Answer::Results),
            },
            Order::Forget => {
                while !self.open.is_empty() {
                    let results = self.read();
                    self.ready.push_back(results);
                }
                self.ready.pop_back();
                Ok(Answer::Done)
            }
            Order::CopyPages(group, copies) => {
                self.executor.copy_pages(group, &copies)?;
                Ok(Answer::Done)
            }
            Order::Trace => Ok(Answer::Trace(self.executor.trace())),
        }
    }

    /// Waits for the oldest open step.
    fn read(&mut self) -> Result<Box<StepOutput>, StepError> {
        let ticket = self.open.pop_front().expect("a step is open");
        let mut output = Box::<StepOutput>::default();
        self.executor.wait(Ticket(ticket), &mut output)?;
        Ok(output)
    }
}
