//! [`QueueGauge`]: the engine thread's side of the count of waiting sequences.
//!
//! A sequence counts from its submission until it begins or ends, but not while its request is paused: then
//! it waits for its own consumer and blocks no other. Such sequences still hold their prompts, so the number
//! that may leave the count this way is limited to the count's own limit. Invariants: each sequence is
//! removed once for each time that it is added; the mailbox has all changes before a caller has an event, so that a
//! caller who waits for the end of its request finds the room that it leaves.

use crate::{queue::mailbox::Mailbox, sync::Arc};

/// The state of a sequence in the count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Waits to begin.
    Queued,
    /// Waits for its consumer.
    Parked,
    /// Has begun or ended.
    Left,
}

/// Numbers of sequences and prompt tokens.
pub(crate) type Count = (usize, usize);

/// Changes the count that the mailbox keeps.
#[derive(Debug)]
pub(crate) struct QueueGauge {
    mailbox: Arc<Mailbox>,
    /// The changes that the mailbox does not have yet.
    left: Count,
    returned: Count,
    n_parked: usize,
    max_parked: usize,
}

impl QueueGauge {
    /// With at most `max_parked` sequences that wait for their consumers outside the count.
    pub(crate) fn new(mailbox: Arc<Mailbox>, max_parked: usize) -> Self {
        Self {
            mailbox,
            left: (0, 0),
            returned: (0, 0),
            n_parked: 0,
            max_parked,
        }
    }

    /// Records that a sequence with `n_tokens` prompt tokens begins or ends.
    pub(crate) fn leave(&mut self, place: &mut Place, n_tokens: usize) {
        match std::mem::replace(place, Place::Left) {
            Place::Queued => add(&mut self.left, n_tokens),
            Place::Parked => self.n_parked -= 1,
            Place::Left => {}
        }
    }

    /// Records that its request was paused or resumed.
    pub(crate) fn set_parked(&mut self, place: &mut Place, n_tokens: usize, is_parked: bool) {
        match (*place, is_parked) {
            (Place::Queued, true) if self.n_parked < self.max_parked => {
                *place = Place::Parked;
                self.n_parked += 1;
                add(&mut self.left, n_tokens);
            }
            (Place::Parked, false) => {
                *place = Place::Queued;
                self.n_parked -= 1;
                add(&mut self.returned, n_tokens);
            }
            _ => {}
        }
    }

    /// Returns the number of sequences that wait for their consumers.
    pub(crate) fn n_parked(&self) -> usize {
        self.n_parked
    }

    /// Passes the changes to the mailbox. Returns whether there were any.
    pub(crate) fn flush(&mut self) -> bool {
        let changes = (std::mem::take(&mut self.returned), std::mem::take(&mut self.left));
        let has_changed = changes != ((0, 0), (0, 0));
        if has_changed {
            self.mailbox.change_queue(changes.0, changes.1);
        }
        has_changed
    }
}

fn add(count: &mut Count, n_tokens: usize) {
    count.0 += 1;
    count.1 += n_tokens;
}
