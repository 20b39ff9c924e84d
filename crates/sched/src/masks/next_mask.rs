//! [`LaneMask`]: how far a constrained sequence's next mask is.
//!
//! The core holds one per sequence. Invariant: it holds the mask of the next token together with those after
//! draft tokens, or none.

use std::{
    fmt,
    time::{Duration, Instant},
};

use tokenmill_backend::LateMask;

use crate::{
    masks::{
        constraint::{ConstraintFailure, ConstraintSource},
        text::SharedText,
    },
    sync::{Arc, Condvar, Mutex},
};

/// The mask of a constrained sequence.
pub(crate) enum LaneMask {
    /// The constraint has not begun.
    Waiting(ConstraintSource),
    /// A worker is computing it.
    Ordered,
    /// A worker is computing it, and a step may begin before it is ready.
    Promised,
    /// The mask of the next token, followed by those after the draft tokens.
    Ready(Arc<SharedText>, Vec<u32>),
    /// The constraint cannot continue.
    Failed(ConstraintFailure),
}

/// Whether steps may begin before a sequence's masks are ready.
#[derive(Debug, Default)]
pub(crate) struct Promises {
    /// Where promised masks arrive.
    arrival: Option<Arc<Arrival>>,
    /// Number of masks that are not promised, because an earlier one took too long.
    n_withheld: u32,
    /// The last such number.
    penalty: u32,
    /// Number of steps without the sequence since its last mask.
    n_missed_steps: u64,
}

/// Number of masks that are not promised after one took too long: initially, and at most. It doubles each
/// time.
const FIRST_PENALTY: u32 = 2;
const LAST_PENALTY: u32 = 256;

impl Promises {
    /// Counts a step without the sequence. Returns the number of such steps since its last mask.
    pub(crate) fn miss_step(&mut self) -> u64 {
        self.n_missed_steps += 1;
        self.n_missed_steps
    }

    /// Records that its mask is ready.
    pub(crate) fn take_part(&mut self) {
        self.n_missed_steps = 0;
    }

    /// Returns where the next mask should arrive, if it is promised.
    pub(crate) fn next(&mut self) -> Option<Arc<Arrival>> {
        if let Some(n_left) = self.n_withheld.checked_sub(1) {
            self.n_withheld = n_left;
            return None;
        }
        let arrival = self.arrival.get_or_insert_with(|| Arc::new(Arrival::new()));
        arrival.begin();
        Some(Arc::clone(arrival))
    }

    /// Returns where the last promised mask arrives.
    pub(crate) fn arrival(&self) -> Option<&Arc<Arrival>> {
        self.arrival.as_ref()
    }

    /// Returns how long a step waited for the last promised mask. A long wait withholds promises for a while.
    pub(crate) fn note_wait(&mut self, tolerated: Duration) -> Duration {
        let waited = (self.arrival.as_ref()).map_or(Duration::ZERO, |arrival| arrival.waited());
        self.note_time(waited, tolerated);
        waited
    }

    /// Records the time that a mask cost a step. More than `tolerated` withholds promises for a while.
    pub(crate) fn note_time(&mut self, took: Duration, tolerated: Duration) {
        if took > tolerated {
            self.penalty = (2 * self.penalty).clamp(FIRST_PENALTY, LAST_PENALTY);
            self.n_withheld = self.penalty;
        }
    }
}

/// The mask with which a row samples.
pub(crate) enum NextMask<'m> {
    /// These words.
    Words(&'m [u32]),
    /// The mask that arrives here, after this number of draft tokens.
    Late(&'m Arc<Arrival>, usize),
}

/// Where a worker leaves a mask for a step that has begun.
pub(crate) struct Arrival {
    parcel: Mutex<Parcel>,
    has_come: Condvar,
}

#[derive(Default)]
struct Parcel {
    state: ParcelState,
    /// Masks of `n_words` words each.
    words: Vec<u32>,
    n_words: usize,
    /// How long a step waited for it.
    waited: Duration,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum ParcelState {
    #[default]
    OnItsWay,
    Here,
    /// The sequence ends instead.
    NotNeeded,
}

const NOT_POISONED: &str = "nothing panics while it holds this lock";

impl Arrival {
    pub(crate) fn new() -> Self {
        Self {
            parcel: Mutex::new(Parcel::default()),
            has_come: Condvar::new(),
        }
    }

    /// Marks the next mask as pending.
    pub(crate) fn begin(&self) {
        let mut parcel = self.parcel.lock().expect(NOT_POISONED);
        (parcel.state, parcel.waited) = (ParcelState::OnItsWay, Duration::ZERO);
    }

    /// Stores the words; no step reads them before [`Self::hand_over`].
    pub(crate) fn put(&self, words: &[u32], n_words: usize) {
        let mut parcel = self.parcel.lock().expect(NOT_POISONED);
        parcel.n_words = n_words;
        parcel.words.clear();
        parcel.words.extend_from_slice(words);
    }

    /// Makes the words available to the step, or tells it that none will come.
    pub(crate) fn hand_over(&self, is_needed: bool) {
        let mut parcel = self.parcel.lock().expect(NOT_POISONED);
        parcel.state = if is_needed {
            ParcelState::Here
        } else {
            ParcelState::NotNeeded
        };
        drop(parcel);
        self.has_come.notify_all();
    }

    /// Returns how long the step waited for the mask.
    pub(crate) fn waited(&self) -> Duration {
        self.parcel.lock().expect(NOT_POISONED).waited
    }
}

impl Arrival {
    /// Does the same as [`LateMask::wait`], for the mask after `n_drafted` draft tokens. After a draft token that is not
    /// allowed or ends the text, it returns an earlier token's mask: nothing in that row counts.
    fn wait_behind(&self, n_drafted: usize, words: &mut Vec<u32>) -> bool {
        let mut parcel = self.parcel.lock().expect(NOT_POISONED);
        if parcel.state == ParcelState::OnItsWay {
            let started = Instant::now();
            while parcel.state == ParcelState::OnItsWay {
                parcel = self.has_come.wait(parcel).expect(NOT_POISONED);
            }
            parcel.waited = started.elapsed();
        }
        words.clear();
        if parcel.state != ParcelState::Here {
            return false;
        }
        let n_words = parcel.n_words;
        let start = n_drafted * n_words;
        let start = start.min(parcel.words.len() - n_words);
        words.extend_from_slice(&parcel.words[start..start + n_words]);
        true
    }
}

impl LateMask for Arrival {
    fn wait(&self, words: &mut Vec<u32>) -> bool {
        self.wait_behind(0, words)
    }
}

/// The mask after draft tokens, which arrives with that of the next token.
#[derive(Debug)]
pub(crate) struct ArrivalBehind {
    pub(crate) arrival: Arc<Arrival>,
    pub(crate) n_drafted: usize,
}

impl LateMask for ArrivalBehind {
    fn wait(&self, words: &mut Vec<u32>) -> bool {
        self.arrival.wait_behind(self.n_drafted, words)
    }
}

impl fmt::Debug for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arrival").finish_non_exhaustive()
    }
}
