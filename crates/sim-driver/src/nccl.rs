//! [`Communicator`]: simulated GPUs that sum and gather, by NCCL's rules.
//!
//! Invariants: the n-th call of one rank meets the n-th of every other, whatever streams and graphs they come
//! from; parts are summed, or placed, in the order of the ranks, so all have the same bits; a call that does
//! not match the others' never ends, like a kernel of NCCL, and the communicator's state reports it.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Results of calls, as NCCL's header numbers them.
pub(crate) const SUCCESS: i32 = 0;
pub(crate) const UNHANDLED_CUDA_ERROR: i32 = 1;
pub(crate) const SYSTEM_ERROR: i32 = 2;
pub(crate) const INVALID_ARGUMENT: i32 = 4;
pub(crate) const INVALID_USAGE: i32 = 5;
/// `ncclFloat32` and `ncclSum`, the only simulated type and operation.
const FLOAT32: i32 = 7;
const SUM: i32 = 0;
/// How long a call waits for missing ranks; a real NCCL would wait forever.
const PATIENCE: Duration = Duration::from_secs(30);

/// A collective call of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    kind: Kind,
    /// The number of values of each rank.
    n_values: usize,
}

/// The operation on the values of the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Each rank receives the sum.
    Sum,
    /// Each rank receives the values of all.
    Gather,
}

impl Call {
    /// Returns the call for a sum of floats; anything else is not simulated.
    pub(crate) fn sum(n_values: usize, data_type: i32, operation: i32) -> Option<Self> {
        let kind = Kind::Sum;
        (data_type == FLOAT32 && operation == SUM).then_some(Self { kind, n_values })
    }

    /// Returns the call for a gather of floats.
    pub(crate) fn gather(n_values: usize, data_type: i32) -> Option<Self> {
        let kind = Kind::Gather;
        (data_type == FLOAT32).then_some(Self { kind, n_values })
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn n_bytes(&self) -> usize {
        self.n_values * size_of::<f32>()
    }
}

/// The outcome of a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Met {
    /// The bytes that each rank receives.
    All(Vec<u8>),
    /// Some ranks have not called yet.
    Pending,
    /// Some ranks did not call within a test's patience.
    Missed,
    Aborted,
}

/// GPUs that compute collectively.
#[derive(Debug)]
pub(crate) struct Communicator {
    meeting: Mutex<Meeting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Meeting {
    /// By rank: its device, once it joined.
    devices: Vec<Option<i32>>,
    /// Calls that some rank has reached and some has not left.
    open: VecDeque<Open>,
    /// The number of the first of these calls.
    first: u64,
    /// The error code that the ranks receive.
    error: i32,
}

#[derive(Debug)]
struct Open {
    call: Call,
    parts: Vec<Option<Vec<u8>>>,
    n_left: usize,
}

/// A rank's end of a communicator.
#[derive(Debug)]
pub(crate) struct RankEnd {
    communicator: Arc<Communicator>,
    rank: usize,
    device: i32,
    place: Mutex<Place>,
}

/// The progress of a rank.
#[derive(Debug, Default)]
struct Place {
    n_met: u64,
    has_come: bool,
    is_aborted: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Communicator {
    pub(crate) fn new(n_ranks: usize) -> Self {
        Self {
            meeting: Mutex::new(Meeting {
                devices: vec![None; n_ranks],
                ..Meeting::default()
            }),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn n_ranks(&self) -> usize {
        lock(&self.meeting).devices.len()
    }

    /// Joins as a rank on a device and waits for the others.
    pub(crate) fn join(self: &Arc<Self>, rank: usize, device: i32) -> Result<RankEnd, i32> {
        let mut meeting = lock(&self.meeting);
        if meeting.devices.contains(&Some(device)) {
            return Err(INVALID_USAGE);
        }
        match meeting.devices.get_mut(rank) {
            Some(slot @ None) => *slot = Some(device),
            _ => return Err(INVALID_ARGUMENT),
        }
        self.changed.notify_all();
        let is_waiting = |meeting: &mut Meeting| meeting.devices.contains(&None);
        let (meeting, found) = (self.changed.wait_timeout_while(meeting, PATIENCE, is_waiting))
            .unwrap_or_else(PoisonError::into_inner);
        drop(meeting);
        if found.timed_out() {
            return Err(SYSTEM_ERROR);
        }
        Ok(RankEnd {
            communicator: Arc::clone(self),
            rank,
            device,
            place: Mutex::default(),
        })
    }
}

impl RankEnd {
    pub(crate) fn device(&self) -> i32 {
        self.device
    }

    /// Returns the error code of the communicator.
    pub(crate) fn error(&self) -> i32 {
        lock(&self.communicator.meeting).error
    }

    /// Ends all calls of this rank, now and later.
    pub(crate) fn abort(&self) {
        lock(&self.place).is_aborted = true;
        // Holds the lock of the waiting ranks, so that none of them can fall asleep now.
        let _meeting = lock(&self.communicator.meeting);
        self.communicator.changed.notify_all();
    }

    /// Enters the rank's next call with its part, and returns the result once every rank has entered.
    pub(crate) fn meet<E>(
        &self,
        call: Call,
        read: impl FnOnce() -> Result<Vec<u8>, E>,
        waits: bool,
    ) -> Result<Met, E> {
        let (nth, has_come) = {
            let place = lock(&self.place);
            if place.is_aborted {
                return Ok(Met::Aborted);
            }
            (place.n_met, place.has_come)
        };
        let Communicator { meeting, changed } = &*self.communicator;
        let part = if has_come { None } else { Some(read()?) };
        let mut meeting = lock(meeting);
        if let Some(part) = part {
            meeting.come(nth, self.rank, call, part);
            lock(&self.place).has_come = true;
            changed.notify_all();
        }
        let began = Instant::now();
        loop {
            if lock(&self.place).is_aborted {
                return Ok(Met::Aborted);
            }
            if let Some(bytes) = meeting.leave(nth) {
                let mut place = lock(&self.place);
                place.n_met += 1;
                place.has_come = false;
                return Ok(Met::All(bytes));
            }
            if !waits {
                return Ok(Met::Pending);
            }
            let Some(rest) = PATIENCE.checked_sub(began.elapsed()) else {
                return Ok(Met::Missed);
            };
            meeting = (changed.wait_timeout(meeting, rest))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

impl Meeting {
    fn come(&mut self, nth: u64, rank: usize, call: Call, part: Vec<u8>) {
        let n_ranks = self.devices.len();
        let index = (nth - self.first) as usize;
        if index == self.open.len() {
            self.open.push_back(Open {
                call,
                parts: vec![None; n_ranks],
                n_left: 0,
            });
        }
        let open = &mut self.open[index];
        if open.call == call {
            open.parts[rank] = Some(part);
        } else {
            self.error = INVALID_USAGE;
        }
    }

    /// Returns the result of a call, once all ranks have made it.
    fn leave(&mut self, nth: u64) -> Option<Vec<u8>> {
        let open = &mut self.open[(nth - self.first) as usize];
        let parts: Vec<&Vec<u8>> = open.parts.iter().flatten().collect();
        if parts.len() < open.parts.len() {
            return None;
        }
        let value = |part: &[u8], index: usize| {
            let bytes: [u8; 4] = part[4 * index..4 * index + 4].try_into().expect("four bytes");
            f32::from_le_bytes(bytes)
        };
        let bytes = match open.call.kind {
            Kind::Sum => (0..open.call.n_values)
                .flat_map(|index| {
                    (parts.iter().fold(0.0, |total, part| total + value(part, index))).to_le_bytes()
                })
                .collect(),
            Kind::Gather => parts.into_iter().flatten().copied().collect(),
        };
        open.n_left += 1;
        if open.n_left == open.parts.len() {
            // All ranks entered the earlier calls before, and have left them.
            self.open.pop_front();
            self.first += 1;
        }
        Some(bytes)
    }
}
