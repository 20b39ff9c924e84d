//! [`GroupExecutor`]: several executors that compute one network together, each its part of every layer.
//!
//! Separate from [`Placed`](crate::Placed), which computes one part after the other: here all ranks compute at the same time, each on a thread of
//! its own, and meet inside the step to add up what each has made ([`HostGroup`]). Every rank gets every call. What is not divided each computes
//! for itself from the same sums, so all sample the same tokens, and the first one's results are given.
//!
//! Invariants: no rank waits for one that failed; after a step that failed, all ranks stand at the same place again; after a rank was
//! lost, or sampled other tokens than another, every call fails and says which.

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
    /// What took a rank away, or parted the ranks.
    lost: Option<StepError>,
}

/// A rank of a group: what computes, and where that is, in words.
pub struct GroupRank {
    /// What computes.
    pub executor: Box<dyn Executor + Send>,
    /// Where, such as "GPU 1".
    pub place: String,
}

impl GroupExecutor {
    /// Starts a thread for each rank. The backend of each adds up with its end of `group`.
    ///
    /// # Errors
    /// What the system says where a thread cannot be started.
    ///
    /// # Panics
    /// If there are not as many ranks as the group has, or if they take different batches.
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

    /// Fails where a rank was lost, or the ranks have parted.
    fn check_lost(&self) -> Result<(), StepError> {
        self.lost.clone().map_or(Ok(()), Err)
    }

    /// Gives all ranks an order and waits until all have done it.
    fn all(&mut self, order: impl Fn() -> Order) -> Result<Vec<Result<Answer, StepError>>, StepError> {
        self.check_lost()?;
        for rank in &self.ranks {
            rank.give(order());
        }
        Ok(self.ranks.iter().map(RankThread::answer).collect())
    }

    /// The answers, or the error of the rank that failed first, once all are at the same place again.
    fn agree(&mut self, answers: Vec<Result<Answer, StepError>>) -> Result<Vec<Answer>, StepError> {
        let agreed = self.judge(answers);
        if agreed.is_err() {
            self.group.mend();
        }
        agreed
    }

    /// The answers, or the error of the rank that failed first. The group still says that it failed, for ranks that wait for it.
    fn judge(&mut self, answers: Vec<Result<Answer, StepError>>) -> Result<Vec<Answer>, StepError> {
        if answers.iter().all(Result::is_ok) {
            return Ok(answers.into_iter().flatten().collect());
        }
        let failure = self.group.failure();
        let is_lost = |answer: &Result<_, _>| matches!(answer, Err(StepError::DeviceLost { .. }));
        let found = match failure {
            // What the others say is that this one failed.
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
            // Those that submitted the step have a ticket that no caller has.
            let open = || (self.ranks.iter().zip(&submitted)).filter(|(_, is_open)| **is_open);
            open().for_each(|(rank, _)| rank.give(Order::Forget));
            let mut lost = None;
            for (rank, _) in open() {
                // What it says of a step that failed changes nothing, unless it says nothing.
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
            // Each continues from its own token, so steps that are under way, and what they have stored, are of no use either.
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
