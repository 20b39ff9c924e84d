//! [`QueueGauge`]: the engine thread's count of waiting sequences.
//!
//! A sequence counts from its submission until it begins or ends, but not while its request is paused: then
//! it waits for its own consumer and blocks no other. Such sequences still hold their prompts, so the number
//! that may leave the count this way is limited to the count's own limit. Invariant: each sequence is added
//! once, and removed once for each time that it is added.

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

/// Changes of the count not reported to the callers' side yet.
#[derive(Debug)]
pub(crate) struct QueueGauge {
    left: Count,
    returned: Count,
    n_parked: usize,
    max_parked: usize,
}

impl QueueGauge {
    pub(crate) fn new(max_parked: usize) -> Self {
        Self {
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

    /// Returns the additions and removals since the last call.
    pub(crate) fn take_changes(&mut self) -> (Count, Count) {
        (std::mem::take(&mut self.returned), std::mem::take(&mut self.left))
    }
}

fn add(count: &mut Count, n_tokens: usize) {
    count.0 += 1;
    count.1 += n_tokens;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parked_sequences_do_not_count_up_to_a_bound() {
        let mut gauge = QueueGauge::new(2);
        let mut places = [Place::Queued; 3];
        for place in &mut places {
            gauge.set_parked(place, 5, true);
        }
        assert_eq!(places, [Place::Parked, Place::Parked, Place::Queued]);
        assert_eq!((gauge.n_parked(), gauge.take_changes()), (2, ((0, 0), (2, 10))));
        gauge.set_parked(&mut places[0], 5, false);
        gauge.set_parked(&mut places[0], 5, false);
        assert_eq!(gauge.take_changes(), ((1, 5), (0, 0)));
        for place in &mut places {
            gauge.leave(place, 5);
            gauge.leave(place, 5);
        }
        assert_eq!((gauge.n_parked(), gauge.take_changes()), (0, ((0, 0), (2, 10))));
    }
}
