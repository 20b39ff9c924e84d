//! [`Collective`]: how the ranks of a group sum partial results; and [`HostGroup`], which does it in host
//! memory.
//!
//! Ranks meet outside of any device. Invariants: every rank gets the same bits, summed in rank order; a
//! failing rank releases those that wait for it, and none waits forever.

use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::BackendError;

/// A rank's endpoint of a group. All ranks make the same calls in the same order.
pub trait Collective: Send {
    /// Replaces `values` by their sum over the ranks. All ranks have the same number of values.
    ///
    /// # Errors
    /// [`BackendError::Failed`] with [`GroupError`] as its source, if another rank failed or did not come.
    fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), BackendError>;
}

/// Rows whose columns are divided among the ranks of a group: rank 0 has the first `part_width`, the next
/// rank the following ones, and the last rank the last `part_width`, which may overlap those of the rank
/// before it.
#[derive(Debug)]
pub struct ColumnGather<'a, T> {
    /// Number of rows.
    pub n_rows: usize,
    /// Number of columns of a whole row.
    pub width: usize,
    /// Number of columns per rank.
    pub part_width: usize,
    /// This rank's columns, `[n_rows, part_width]`.
    pub part: &'a mut T,
    /// Buffer for the parts of all ranks, concatenated.
    pub parts: &'a mut T,
    /// The whole rows, `[n_rows, width]`.
    pub rows: &'a mut T,
}

/// The reason why ranks could not combine their results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// Another rank failed.
    #[error("rank {rank} of the group failed")]
    RankFailed {
        /// The rank.
        rank: usize,
    },
    /// Some rank did not come in time.
    #[error("a rank of the group did not come within {waited_s} s")]
    RankMissing {
        /// How long the others waited for it.
        waited_s: u64,
    },
    /// The ranks do not compute the same step.
    #[error("the ranks of the group add up {found} and {expected} values")]
    LengthsDiffer {
        /// Number of values of one rank.
        expected: usize,
        /// Number of values of another.
        found: usize,
    },
}

/// How long a rank waits for the others: longer than any step takes.
const PATIENCE: Duration = Duration::from_mins(2);
/// Number of polls before a waiting rank sleeps.
const N_LOOKS: u32 = 2_000;

/// Ranks that meet in host memory: each deposits its values, sums a slice of all, and copies the sums of the
/// others.
#[derive(Clone, Debug)]
pub struct HostGroup {
    shared: Arc<Shared>,
}

/// A rank of a [`HostGroup`].
#[derive(Debug)]
pub struct HostRank {
    rank: usize,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    patience: Duration,
    meeting: Mutex<Meeting>,
    /// Notified when all ranks have come, or one has failed.
    changed: Condvar,
    /// Number of completed meetings; a copy of the one in `meeting` that can be read without a lock.
    n_met: AtomicU64,
    /// The values of each rank.
    parts: Vec<RwLock<Vec<f32>>>,
    /// The slice of the sum computed by each rank.
    sums: Vec<RwLock<Vec<f32>>>,
}

#[derive(Debug, Default)]
struct Meeting {
    n_arrived: usize,
    n_met: u64,
    failure: Option<GroupError>,
}

impl HostGroup {
    /// Creates a group of `n_ranks` ranks.
    ///
    /// # Panics
    /// If `n_ranks` is 0.
    pub fn new(n_ranks: usize) -> Self {
        Self::with_patience(n_ranks, PATIENCE)
    }

    /// Creates a group whose ranks wait for each other up to `patience`.
    ///
    /// # Panics
    /// If `n_ranks` is 0.
    pub fn with_patience(n_ranks: usize, patience: Duration) -> Self {
        assert!(n_ranks > 0, "a group has ranks");
        let rooms = || (0..n_ranks).map(|_| RwLock::default()).collect();
        Self {
            shared: Arc::new(Shared {
                patience,
                meeting: Mutex::default(),
                changed: Condvar::new(),
                n_met: AtomicU64::new(0),
                parts: rooms(),
                sums: rooms(),
            }),
        }
    }

    /// Returns the number of ranks.
    pub fn n_ranks(&self) -> usize {
        self.shared.parts.len()
    }

    /// Returns how long a rank waits for the others.
    pub fn patience(&self) -> Duration {
        self.shared.patience
    }

    /// Returns the endpoint of a rank; each rank has one.
    ///
    /// # Panics
    /// If the rank does not exist.
    pub fn rank(&self, rank: usize) -> HostRank {
        assert!(rank < self.n_ranks(), "a rank of the group");
        HostRank {
            rank,
            shared: Arc::clone(&self.shared),
        }
    }

    /// Records that a rank failed: ranks that wait for it, or will meet it, fail too.
    pub fn fail(&self, rank: usize) {
        self.shared.fail(GroupError::RankFailed { rank });
    }

    /// Returns the first failure since the group was last mended.
    pub fn failure(&self) -> Option<GroupError> {
        self.shared.lock().failure
    }

    /// Allows the ranks to meet again after a failure. No rank may be in a call.
    pub fn mend(&self) {
        let mut meeting = self.shared.lock();
        meeting.n_arrived = 0;
        meeting.failure = None;
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Meeting> {
        self.meeting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, failure: GroupError) {
        self.lock().failure.get_or_insert(failure);
        self.changed.notify_all();
    }

    /// Waits until all ranks have come.
    fn meet(&self) -> Result<(), GroupError> {
        let mut meeting = self.lock();
        if let Some(failure) = meeting.failure {
            return Err(failure);
        }
        meeting.n_arrived += 1;
        if meeting.n_arrived == self.parts.len() {
            meeting.n_arrived = 0;
            meeting.n_met += 1;
            self.n_met.store(meeting.n_met, Ordering::Release);
            drop(meeting);
            self.changed.notify_all();
            return Ok(());
        }
        let until = meeting.n_met;
        drop(meeting);
        // Ranks arrive within microseconds of each other, and waking a thread takes longer.
        for _ in 0..N_LOOKS {
            if self.n_met.load(Ordering::Acquire) != until {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        let began = Instant::now();
        let mut meeting = self.lock();
        while meeting.n_met == until {
            if let Some(failure) = meeting.failure {
                return Err(failure);
            }
            let Some(rest) = self.patience.checked_sub(began.elapsed()) else {
                let failure = GroupError::RankMissing {
                    waited_s: self.patience.as_secs(),
                };
                meeting.failure = Some(failure);
                drop(meeting);
                self.changed.notify_all();
                return Err(failure);
            };
            meeting = (self.changed.wait_timeout(meeting, rest))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        Ok(())
    }
}

impl HostRank {
    fn add_up(&self, values: &mut [f32]) -> Result<(), GroupError> {
        let Shared { parts, sums, .. } = &*self.shared;
        {
            let mut own = parts[self.rank].write().unwrap_or_else(PoisonError::into_inner);
            own.clear();
            own.extend_from_slice(values);
        }
        self.shared.meet()?;
        let (len, slice_len) = (values.len(), values.len().div_ceil(parts.len()));
        let slice = |rank: usize| {
            let start = (rank * slice_len).min(len);
            start..(start + slice_len).min(len)
        };
        {
            let own = slice(self.rank);
            let mut sum = sums[self.rank].write().unwrap_or_else(PoisonError::into_inner);
            sum.clear();
            sum.resize(own.len(), 0.0);
            for part in parts {
                let part = part.read().unwrap_or_else(PoisonError::into_inner);
                if part.len() != values.len() {
                    let failure = GroupError::LengthsDiffer {
                        expected: values.len(),
                        found: part.len(),
                    };
                    self.shared.fail(failure);
                    return Err(failure);
                }
                for (sum, value) in sum.iter_mut().zip(&part[own.clone()]) {
                    *sum += value;
                }
            }
        }
        // From here on no rank reads parts. Sums are overwritten only after all ranks have read them and come
        // to the next meeting.
        self.shared.meet()?;
        for (rank, sum) in sums.iter().enumerate() {
            let sum = sum.read().unwrap_or_else(PoisonError::into_inner);
            values[slice(rank)].copy_from_slice(&sum);
        }
        Ok(())
    }
}

impl Collective for HostRank {
    fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), BackendError> {
        self.add_up(values).map_err(|failure| BackendError::Failed {
            operation: "adding up over the ranks",
            source: failure.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Runs ranks that sum some lists one after the other, and returns each rank's results.
    fn run(
        group: &HostGroup,
        lists: impl Fn(usize) -> Vec<Vec<f32>> + Sync,
    ) -> Vec<Result<Vec<Vec<f32>>, GroupError>> {
        thread::scope(|scope| {
            let ranks: Vec<_> = (0..group.n_ranks())
                .map(|rank| {
                    let (own, lists) = (group.rank(rank), &lists);
                    scope.spawn(move || {
                        lists(rank)
                            .into_iter()
                            .map(|mut values| own.add_up(&mut values).map(|()| values))
                            .collect()
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn every_rank_has_the_sum_in_the_order_of_the_ranks() {
        for n_ranks in [1, 2, 3, 8] {
            // Numbers whose sum depends on the order, with lengths that the ranks do not divide.
            let list = |rank: usize, len: usize| -> Vec<f32> {
                (0..len)
                    .map(|idx| [1e8, 1.0, -1e8, 0.5, 3.0][(rank + idx) % 5])
                    .collect()
            };
            let lens = [0, 1, 7, 64, 5, 1000];
            let expected: Vec<Vec<f32>> = (lens.iter())
                .map(|&len| {
                    let mut sum = vec![0.0; len];
                    for rank in 0..n_ranks {
                        for (sum, value) in sum.iter_mut().zip(list(rank, len)) {
                            *sum += value;
                        }
                    }
                    sum
                })
                .collect();
            let group = HostGroup::new(n_ranks);
            for found in run(&group, |rank| lens.iter().map(|&len| list(rank, len)).collect()) {
                assert_eq!(found.unwrap(), expected, "{n_ranks}");
            }
        }
    }

    #[test]
    fn a_rank_that_fails_releases_the_others_and_the_group_can_be_mended() {
        let group = HostGroup::new(3);
        let outcomes = thread::scope(|scope| {
            let waiting = [0, 1].map(|rank| {
                let own = group.rank(rank);
                scope.spawn(move || own.add_up(&mut [1.0]))
            });
            group.fail(2);
            waiting.map(|rank| rank.join().unwrap())
        });
        let failure = GroupError::RankFailed { rank: 2 };
        assert_eq!(outcomes, [Err(failure); 2]);
        assert_eq!(group.failure(), Some(failure));
        group.mend();
        for found in run(&group, |_| vec![vec![2.0]]) {
            assert_eq!(found, Ok(vec![vec![6.0]]));
        }
    }

    #[test]
    fn a_rank_that_does_not_come_is_not_waited_for_for_ever() {
        let group = HostGroup::with_patience(2, Duration::from_millis(20));
        let missing = GroupError::RankMissing { waited_s: 0 };
        assert_eq!(group.rank(0).add_up(&mut [1.0]), Err(missing));
        assert_eq!(
            group.rank(1).add_up(&mut [1.0]),
            Err(missing),
            "the group is broken"
        );
    }

    #[test]
    fn ranks_that_are_not_at_the_same_place_are_told() {
        let group = HostGroup::new(2);
        let outcomes = run(&group, |rank| vec![vec![0.0; 2 + rank]]);
        assert!(
            outcomes
                .iter()
                .any(|outcome| matches!(outcome, Err(GroupError::LengthsDiffer { .. })))
        );
        assert!(outcomes.iter().all(Result::is_err));
    }
}
