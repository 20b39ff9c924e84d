//! [`LaneMask`]: how far a constrained sequence's next mask is.
//!
//! Separate from the code that orders masks, because the core holds one for each sequence. Invariant: it holds the mask of
//! the next token, with those behind guesses, or none.

use std::{
    fmt,
    time::{Duration, Instant},
};

use tokenmill_backend::LateMask;

use crate::{
    constraint::{ConstraintFailure, ConstraintSource},
    masked_text::SharedText,
    sync::{Arc, Condvar, Mutex},
};

/// The mask of a constrained sequence.
pub(crate) enum LaneMask {
    /// Not begun.
    Waiting(ConstraintSource),
    /// A worker has it.
    Ordered,
    /// A worker has it, and a step may begin before it is there.
    Promised,
    /// The mask of the next token, and behind it those behind the tokens that are guessed.
    Ready(Arc<SharedText>, Vec<u32>),
    /// It cannot be followed further.
    Failed(ConstraintFailure),
}

/// Whether steps begin before a sequence's masks are there.
#[derive(Debug, Default)]
pub(crate) struct Promises {
    /// Where its masks come that are promised.
    arrival: Option<Arc<Arrival>>,
    /// Masks that are not promised, since an earlier one took too long.
    n_withheld: u32,
    /// How many that were the last time.
    penalty: u32,
    /// Steps that went without the sequence since its last mask.
    n_missed_steps: u64,
}

/// Masks that are not promised after one took too long, the first time and at most; each time it is twice as many.
const FIRST_PENALTY: u32 = 2;
const LAST_PENALTY: u32 = 256;

impl Promises {
    /// A step goes without the sequence. Gives how many have since its last mask.
    pub(crate) fn miss_step(&mut self) -> u64 {
        self.n_missed_steps += 1;
        self.n_missed_steps
    }

    /// Its mask is there.
    pub(crate) fn take_part(&mut self) {
        self.n_missed_steps = 0;
    }

    /// Where the next mask is to come, where it is promised.
    pub(crate) fn next(&mut self) -> Option<Arc<Arrival>> {
        if let Some(n_left) = self.n_withheld.checked_sub(1) {
            self.n_withheld = n_left;
            return None;
        }
        let arrival = self.arrival.get_or_insert_with(|| Arc::new(Arrival::new()));
        arrival.begin();
        Some(Arc::clone(arrival))
    }

    /// Where the mask comes that was promised last.
    pub(crate) fn arrival(&self) -> Option<&Arc<Arrival>> {
        self.arrival.as_ref()
    }

    /// How long a step has waited for the mask that was promised last. Where that was long, promises are withheld for a while.
    pub(crate) fn note_wait(&mut self, tolerated: Duration) -> Duration {
        let waited = (self.arrival.as_ref()).map_or(Duration::ZERO, |arrival| arrival.waited());
        self.note_time(waited, tolerated);
        waited
    }

    /// What a mask took of a step. More than is tolerated withholds promises for a while.
    pub(crate) fn note_time(&mut self, took: Duration, tolerated: Duration) {
        if took > tolerated {
            self.penalty = (2 * self.penalty).clamp(FIRST_PENALTY, LAST_PENALTY);
            self.n_withheld = self.penalty;
        }
    }
}

/// The mask that a row samples with.
pub(crate) enum NextMask<'m> {
    /// These words.
    Words(&'m [u32]),
    /// What comes here, behind so many guesses.
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
    /// Masks of `n_words` each.
    words: Vec<u32>,
    n_words: usize,
    /// How long a step has waited for it.
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

    /// The next mask is on its way.
    pub(crate) fn begin(&self) {
        let mut parcel = self.parcel.lock().expect(NOT_POISONED);
        (parcel.state, parcel.waited) = (ParcelState::OnItsWay, Duration::ZERO);
    }

    /// Puts the words there, which no step takes before [`Self::hand_over`].
    pub(crate) fn put(&self, words: &[u32], n_words: usize) {
        let mut parcel = self.parcel.lock().expect(NOT_POISONED);
        parcel.n_words = n_words;
        parcel.words.clear();
        parcel.words.extend_from_slice(words);
    }

    /// Lets a step take the words, or tells it that none come.
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

    /// How long the step that took the mask has waited for it.
    pub(crate) fn waited(&self) -> Duration {
        self.parcel.lock().expect(NOT_POISONED).waited
    }
}

impl Arrival {
    /// As [`LateMask::wait`], for the mask behind `n_guessed` guesses. Behind a guess that is not allowed, or that ends the text, it is
    /// that of an earlier token: nothing of the row counts.
    fn wait_behind(&self, n_guessed: usize, words: &mut Vec<u32>) -> bool {
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
        let start = n_guessed * n_words;
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

/// The mask behind guesses, which comes with that of the next token.
#[derive(Debug)]
pub(crate) struct ArrivalBehind {
    pub(crate) arrival: Arc<Arrival>,
    pub(crate) n_guessed: usize,
}

impl LateMask for ArrivalBehind {
    fn wait(&self, words: &mut Vec<u32>) -> bool {
        self.arrival.wait_behind(self.n_guessed, words)
    }
}

impl fmt::Debug for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arrival").finish_non_exhaustive()
    }
}
