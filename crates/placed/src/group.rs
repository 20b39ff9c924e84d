//! [`GroupExecutor`]: several executors that compute one network together, each with its part of every layer.
//!
//! [`Placed`](crate::Placed) computes one part after the other; here all ranks compute at the same time, each
//! on its own thread, and meet inside the step to sum their results ([`HostGroup`]). Every rank gets every
//! call. Undivided parts are computed by each rank from the same sums, so all sample the same tokens, and the
//! first rank's results are returned.
//!
//! Invariants: no rank waits for a failed one; after a failed step, all ranks are in the same state again;
//! after a rank was lost, or sampled other tokens than another, every call fails and names it.

mod rank;

use std::sync::{Arc, PoisonError, RwLock};

use tokenmill_backend::{
    Executor, ExecutorLimits, ForwardBatch, GroupError, HostGroup, PageCopy, PageGroup, StepError,
    StepOutput, StepTrace, Ticket,
};

use rank::{Answer, Order, RankThread};

/// Several executors as one.
pub struct GroupExecutor {
    ranks: Vec<RankThread>,
    group: HostGroup,
    limits: ExecutorLimits,
    input_row_width: Option<usize>,
    /// The step that the ranks are about to compute.
    batch: Arc<RwLock<ForwardBatch>>,
    n_submitted: u64,
    /// The error that lost a rank, or made the ranks diverge.
    lost: Option<StepError>,
}

/// A rank of a group: its executor, and its place in words.
pub struct GroupRank {
    /// The executor.
    pub executor: Box<dyn Executor + Send>,
    /// The place, such as "GPU 1".
    pub place: String,
}

impl GroupExecutor {
    /// Starts a thread for each rank. The backend of each sums through its endpoint of `group`.
    ///
    /// # Errors
    /// The system's error if a thread cannot be started.
    ///
    /// # Panics
    /// If the number of ranks differs from the group's, or if their limits differ.
    pub fn start(ranks: Vec<GroupRank>, group: HostGroup) -> std::io::Result<Self> {
        assert_eq!(ranks.len(), group.n_ranks(), "an executor for each rank");
        let limits = ranks[0].executor.limits().clone();
        let input_row_width = ranks[0].executor.input_row_width();
        assert!(
            ranks.iter().all(|rank| *rank.executor.limits() == limits),
            "all ranks take the same batches"
        );
        let batch = Arc::default();
        let ranks = (ranks.into_iter().enumerate())
            .map(|(idx, rank)| RankThread::start(idx, rank, group.clone(), Arc::clone(&batch)))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            ranks,
            group,
            limits,
            input_row_width,
            batch,
            n_submitted: 0,
            lost: None,
        })
    }

    /// Fails if a rank was lost, or the ranks have diverged.
    fn check_lost(&self) -> Result<(), StepError> {
        self.lost.clone().map_or(Ok(()), Err)
    }

    /// Sends an order to all ranks and waits until all have executed it.
    fn all(&mut self, order: impl Fn() -> Order) -> Result<Vec<Result<Answer, StepError>>, StepError> {
        self.check_lost()?;
        for rank in &self.ranks {
            rank.give(order());
        }
        Ok(self.ranks.iter().map(RankThread::answer).collect())
    }

    /// Returns the answers, or the error of the rank that failed first, once all are in the same state again.
    fn agree(&mut self, answers: Vec<Result<Answer, StepError>>) -> Result<Vec<Answer>, StepError> {
        let agreed = self.judge(answers);
        if agreed.is_err() {
            self.group.mend();
        }
        agreed
    }

    /// Returns the answers, or the error of the rank that failed first. The group stays marked as failed, for
    /// ranks that wait in it.
    fn judge(&mut self, answers: Vec<Result<Answer, StepError>>) -> Result<Vec<Answer>, StepError> {
        if answers.iter().all(Result::is_ok) {
            return Ok(answers.into_iter().flatten().collect());
        }
        let failure = self.group.failure();
        let is_lost = |answer: &Result<_, _>| matches!(answer, Err(StepError::DeviceLost { .. }));
        let found = match failure {
            // The others only report that this one failed.
            Some(GroupError::RankFailed { rank }) => Some(rank),
            _ => None,
        };
        let first = answers
            .iter()
            .position(is_lost)
            .or(found.filter(|&rank| answers[rank].is_err()));
        let first = first
            .or_else(|| answers.iter().position(Result::is_err))
            .unwrap_or(0);
        let refused = matches!(answers[first], Err(StepError::InvalidBatch(_)));
        let error = match answers.into_iter().nth(first) {
            Some(Err(error)) if refused => error,
            Some(Err(error)) => self.ranks[first].name(error),
            _ => unreachable!("an answer that is an error was found"),
        };
        if let StepError::DeviceLost { .. } = error {
            self.lost = Some(error.clone());
        }
        Err(error)
    }
}

impl Executor for GroupExecutor {
    fn limits(&self) -> &ExecutorLimits {
        &self.limits
    }

    fn input_row_width(&self) -> Option<usize> {
        self.input_row_width
    }

    fn submit(&mut self, batch: &ForwardBatch) -> Result<Ticket, StepError> {
        // A rank that hangs still reads the batch of its step.
        self.check_lost()?;
        let mut own_batch = self.batch.write().unwrap_or_else(PoisonError::into_inner);
        own_batch.copy_from(batch);
        drop(own_batch);
        let answers = self.all(|| Order::Submit)?;
        let submitted: Vec<bool> = answers.iter().map(Result::is_ok).collect();
        if let Err(error) = self.judge(answers) {
            // Ranks that submitted the step have a ticket that no caller knows.
            let open = || (self.ranks.iter().zip(&submitted)).filter(|(_, is_open)| **is_open);
            open().for_each(|(rank, _)| rank.give(Order::Forget));
            let mut lost = None;
            for (rank, _) in open() {
                // The result of a failed step is ignored, but a missing answer is not.
                if let Err(error @ StepError::DeviceLost { .. }) = rank.answer() {
                    lost.get_or_insert(rank.name(error));
                }
            }
            self.lost = self.lost.take().or(lost);
            self.group.mend();
            self.check_lost()?;
            return Err(error);
        }
        self.n_submitted += 1;
        Ok(Ticket(self.n_submitted - 1))
    }

    fn wait(&mut self, ticket: Ticket, output: &mut StepOutput) -> Result<(), StepError> {
        let answers = self.all(|| Order::Wait(ticket.0))?;
        let mut outputs = self
            .agree(answers)?
            .into_iter()
            .filter_map(|answer| match answer {
                Answer::Results(results) => Some(results),
                _ => None,
            });
        let first = outputs.next().expect("every rank gives results");
        if let Some(rank) = outputs.position(|other| other.sampled != first.sampled) {
            // Each rank continues from its own token, so steps in flight and their stored keys are useless
            // too.
            let parted = StepError::DeviceLost {
                operation: "sampling",
                reason: format!("rank {} of the group sampled other tokens than rank 0", rank + 1),
            };
            self.lost = Some(parted.clone());
            return Err(parted);
        }
        *output = *first;
        Ok(())
    }

    fn copy_pages(&mut self, group: PageGroup, copies: &[PageCopy]) -> Result<(), StepError> {
        let copies: Arc<[PageCopy]> = copies.into();
        let answers = self.all(|| Order::CopyPages(group, Arc::clone(&copies)))?;
        self.agree(answers).map(|_| ())
    }

    fn trace(&self) -> Option<StepTrace> {
        if self.lost.is_some() {
            return None;
        }
        self.ranks[0].give(Order::Trace);
        match self.ranks[0].answer() {
            Ok(Answer::Trace(trace)) => trace,
            _ => None,
        }
    }
}
