//! [`Collective`]: how the ranks of a group add up what each has computed a part of; [`HostGroup`], which does it in the host's memory.
//!
//! Separate from the devices, since ranks meet outside of any of them. Invariants: every rank gets the same bits, added in the order of
//! the ranks; a rank that fails releases those that wait for it, and none waits for ever.

use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::BackendError;

/// A rank's end of a group. All ranks make the same calls in the same order.
pub trait Collective: Send {
    /// Replaces `values` by their sum over the ranks, of which each has as many.
    ///
    /// # Errors
    /// [`BackendError::Failed`] with [`GroupError`] as its source, where another rank failed or did not come.
    fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), BackendError>;
}

/// Rows whose columns the ranks of a group have computed a part of each: rank 0 the first `part_width`, the next rank those behind them, the
/// last one the last `part_width`, of which the rank before it may have some too.
#[derive(Debug)]
pub struct ColumnGather<'a, T> {
    /// Rows.
    pub n_rows: usize,
    /// Columns of a whole row.
    pub width: usize,
    /// Columns of each rank.
    pub part_width: usize,
    /// The rank's own columns, `[n_rows, part_width]`.
    pub part: &'a mut T,
    /// Room for the parts of all ranks, one behind the other.
    pub parts: &'a mut T,
    /// The whole rows, `[n_rows, width]`.
    pub rows: &'a mut T,
}

/// Why ranks could not add up.
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
        /// How long it was waited for.
        waited_s: u64,
    },
    /// The ranks do not compute the same step.
    #[error("the ranks of the group add up {found} and {expected} values")]
    LengthsDiffer {
        /// Values of one rank.
        expected: usize,
        /// Values of another.
        found: usize,
    },
}

/// How long a rank waits for the others: longer than any step takes.
const PATIENCE: Duration = Duration::from_mins(2);
/// How often a rank looks whether the others have come before it sleeps.
const N_LOOKS: u32 = 2_000;

/// Ranks that meet in the host's memory: each lays its values down, adds up a slice of all, and takes the sums of the others.
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
    /// Is told when all have come, or one has failed.
    changed: Condvar,
    /// Counts meetings that all came to; as in `meeting`, to be looked at without a lock.
    n_met: AtomicU64,
    /// What each rank laid down.
    parts: Vec<RwLock<Vec<f32>>>,
    /// The slice of the sum that each rank made.
    sums: Vec<RwLock<Vec<f32>>>,
}

#[derive(Debug, Default)]
struct Meeting {
    n_arrived: usize,
    n_met: u64,
    failure: Option<GroupError>,
}

impl HostGroup {
    /// A group of so many ranks.
    ///
    /// # Panics
    /// If there are none.
    pub fn new(n_ranks: usize) -> Self {
        Self::with_patience(n_ranks, PATIENCE)
    }

    /// A group whose ranks wait so long for each other.
    ///
    /// # Panics
    /// If there are none.
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

    /// Ranks there are.
    pub fn n_ranks(&self) -> usize {
        self.shared.parts.len()
    }

    /// How long a rank waits for the others.
    pub fn patience(&self) -> Duration {
        self.shared.patience
    }

    /// The end of a rank, which has one.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn rank(&self, rank: usize) -> HostRank {
        assert!(rank < self.n_ranks(), "a rank of the group");
        HostRank {
            rank,
            shared: Arc::clone(&self.shared),
        }
    }

    /// Says that a rank failed: those that wait for it, and come to meet it, fail too.
    pub fn fail(&self, rank: usize) {
        self.shared.fail(GroupError::RankFailed { rank });
    }

    /// What went wrong first since the group was mended.
    pub fn failure(&self) -> Option<GroupError> {
        self.shared.lock().failure
    }

    /// Lets the ranks meet again after a failure. None of them may be on its way.
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
        // Ranks come within microseconds of each other, and waking a thread takes longer.
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
        // From here on no rank reads parts. Sums are written again once all have read them and come to the next meeting.
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

    /// Every rank adds up some lists one after the other; what each has then.
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
            // Numbers whose sum depends on the order, of lengths that the ranks do not divide.
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
