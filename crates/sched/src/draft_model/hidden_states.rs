//! [`HiddenStates`]: the hidden states that an MTP layer reads, from the step that produced them to the pass
//! that reads them.
//!
//! Only an MTP layer needs them, not draft models in general. A row of the first model's steps is kept until
//! the layer has computed the input after it. Invariant: an unknown state is all zeros, which only makes
//! drafts worse.

use std::collections::HashMap;

use crate::arena::SeqId;

/// Maximum bytes kept, for all sequences.
const MAX_KEPT_BYTES: usize = 256 << 20;

/// Number of rows reserved for a sequence between two drafts.
const LIKELY_ROWS: usize = 32;

/// Number of steps of a sequence without a draft after which its states are dropped.
const MAX_UNREAD_STEPS: u32 = 512;

/// Returns the maximum bytes of hidden states, with `n_embd` numbers each, that an engine keeps for an MTP
/// layer: those of all `n_ctx` inputs of `n_seqs` sequences, or 256 MiB.
pub fn hidden_states_bytes(n_ctx: usize, n_seqs: usize, n_embd: usize) -> usize {
    let n_inputs = n_ctx.saturating_mul(n_seqs);
    (n_inputs.saturating_mul(n_embd).saturating_mul(size_of::<f32>())).min(MAX_KEPT_BYTES)
}

/// Hidden states; see the module.
#[derive(Debug)]
pub(crate) struct HiddenStates {
    width: usize,
    /// Hidden states from the first model, by its sequences.
    given: HashMap<SeqId, Given>,
    /// Capacity of these, in numbers.
    n_kept: usize,
    /// Maximum of `n_kept`.
    max_kept: usize,
    /// States of the layer's own sequences.
    own: HashMap<SeqId, Own>,
    /// A state of zeros.
    zeros: Vec<f32>,
}

/// The states after consecutive positions, beginning with `first`.
#[derive(Debug)]
struct Given {
    first: usize,
    rows: Vec<f32>,
    /// Number of steps that gave states since the layer last read them.
    n_unread_steps: u32,
}

/// The layer's state of its own sequence.
#[derive(Debug, Default)]
struct Own {
    /// Number of inputs that were known, not drafted, at the last draft.
    n_sure: usize,
    /// The position computed last, and the layer's own state after it.
    last: Option<(usize, Vec<f32>)>,
}

impl HiddenStates {
    /// Creates an empty store for states of `width` numbers and at most `max_bytes`.
    pub(crate) fn new(width: usize, max_bytes: usize) -> Self {
        Self {
            width,
            given: HashMap::new(),
            n_kept: 0,
            max_kept: max_bytes / size_of::<f32>(),
            own: HashMap::new(),
            zeros: vec![0.0; width],
        }
    }

    /// Stores the rows that a step of the first model gave for inputs of `seq` from `first` on. They replace
    /// earlier rows for these positions, which belonged to draft tokens. Rows beyond the capacity, and rows
    /// that no draft has read for long, are dropped.
    pub(crate) fn give(&mut self, seq: SeqId, first: usize, rows: &[f32]) {
        let mut given = self.given.remove(&seq).unwrap_or(Given {
            first,
            rows: Vec::new(),
            n_unread_steps: 0,
        });
        self.n_kept -= given.rows.capacity();
        given.n_unread_steps += 1;
        let n_before = (first.checked_sub(given.first))
            .map(|n_rows| n_rows * self.width)
            .filter(|n_before| *n_before <= given.rows.len() && given.n_unread_steps <= MAX_UNREAD_STEPS);
        match n_before {
            Some(n_before) => given.rows.truncate(n_before),
            None => {
                given = Given {
                    first,
                    rows: Vec::new(),
                    n_unread_steps: 1,
                }
            }
        }
        let n_room = self.max_kept - self.n_kept;
        let n_needed = given.rows.len() + rows.len();
        if n_needed <= n_room {
            if n_needed > given.rows.capacity() {
                // Reserve half as much again, so that one state per step does not cause a copy each time.
                let n_wanted = (n_needed + n_needed / 2).min(n_room);
                given.rows.reserve_exact(n_wanted - given.rows.len());
            }
            if given.rows.capacity() <= n_room {
                given.rows.extend_from_slice(rows);
            }
        }
        if !given.rows.is_empty() && given.rows.capacity() <= n_room {
            self.n_kept += given.rows.capacity();
            self.given.insert(seq, given);
        }
    }

    /// Returns the state from which the input at `position` of the layer's sequence `own` is computed: the
    /// first model's for known inputs, else the layer's own.
    pub(crate) fn before(&self, seq: SeqId, own: SeqId, position: usize) -> &[f32] {
        let known = self.own.get(&own);
        let n_sure = known.map_or(0, |own| own.n_sure);
        let found = position.checked_sub(1).and_then(|at| {
            if position < n_sure {
                let given = self.given.get(&seq)?;
                let start = at.checked_sub(given.first)? * self.width;
                return given.rows.get(start..start + self.width);
            }
            let (last, state) = known?.last.as_ref()?;
            (*last == at).then_some(&state[..])
        });
        found.unwrap_or(&self.zeros)
    }

    /// Returns the number of inputs of a sequence that were known at its last draft. Later ones were computed
    /// from states that the layer predicted.
    pub(crate) fn n_sure(&self, own: SeqId) -> usize {
        self.own.get(&own).map_or(0, |own| own.n_sure)
    }

    /// Begins a draft of a sequence with `n_sure` known inputs.
    pub(crate) fn begin(&mut self, own: SeqId, n_sure: usize) {
        self.own.entry(own).or_default().n_sure = n_sure;
    }

    /// Stores the layer's own state after `position`.
    pub(crate) fn note(&mut self, own: SeqId, position: usize, state: &[f32]) {
        let last = &mut self.own.entry(own).or_default().last;
        match last {
            Some((at, known)) => {
                *at = position;
                known.copy_from_slice(state);
            }
            None => *last = Some((position, state.to_vec())),
        }
    }

    /// Drops the states after positions below `position`, which the layer has read.
    pub(crate) fn drop_before(&mut self, seq: SeqId, position: usize) {
        let Some(given) = self.given.get_mut(&seq) else {
            return;
        };
        self.n_kept -= given.rows.capacity();
        let n_before = position.saturating_sub(given.first) * self.width;
        let n_dropped = n_before.min(given.rows.len());
        given.rows.drain(..n_dropped);
        given.first += n_dropped / self.width;
        given.n_unread_steps = 0;
        // The next step adds only a few rows; a prompt's rows do not come again.
        let n_likely = given.rows.len() + LIKELY_ROWS * self.width;
        if given.rows.capacity() > 2 * n_likely {
            given.rows.shrink_to(n_likely);
        }
        self.n_kept += given.rows.capacity();
    }

    /// Drops a sequence of the first model.
    pub(crate) fn forget(&mut self, seq: SeqId) {
        if let Some(given) = self.given.remove(&seq) {
            self.n_kept -= given.rows.capacity();
        }
    }

    /// Drops the states from the first model.
    pub(crate) fn drop_given(&mut self) {
        self.given.clear();
        self.n_kept = 0;
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        self.given.clear();
        self.own.clear();
        self.n_kept = 0;
    }

    /// Drops a sequence of the layer.
    pub(crate) fn forget_own(&mut self, own: SeqId) {
        self.own.remove(&own);
    }

    /// Returns the number of sequences of the first model, and of the layer, with stored states.
    #[cfg(test)]
    pub(crate) fn in_use(&self) -> (usize, usize) {
        (self.given.len(), self.own.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;

    #[test]
    fn the_first_models_states_go_before_the_layers_own() {
        let mut arena = Arena::new();
        let (seq, own) = (arena.insert(()), arena.insert(()));
        let mut states = HiddenStates::new(2, 1 << 10);
        let check = |states: &HiddenStates, position, expected: f32| {
            assert_eq!(states.before(seq, own, position), [expected; 2], "at {position}");
        };
        states.give(seq, 0, &[1.0, 1.0, 2.0, 2.0, 3.0, 3.0]);
        states.begin(own, 4);
        check(&states, 0, 0.0);
        check(&states, 1, 1.0);
        check(&states, 3, 3.0);
        check(&states, 4, 0.0);
        states.note(own, 3, &[7.0, 7.0]);
        check(&states, 4, 7.0);
        check(&states, 5, 0.0);
        states.note(own, 4, &[8.0, 8.0]);
        check(&states, 5, 8.0);
        check(&states, 4, 0.0);
        // Two draft tokens were verified, and the first was right.
        states.drop_before(seq, 3);
        states.give(seq, 3, &[4.0, 4.0, 5.0, 5.0, 6.0, 6.0]);
        states.give(seq, 5, &[9.0, 9.0]);
        states.begin(own, 7);
        for (position, expected) in [(3, 0.0), (4, 4.0), (5, 5.0), (6, 9.0)] {
            check(&states, position, expected);
        }
        assert_eq!(states.given[&seq].rows.len(), 6);
        // It was computed again from a cached position.
        states.give(seq, 1, &[1.5, 1.5]);
        states.begin(own, 3);
        check(&states, 2, 1.5);
        check(&states, 1, 0.0);
        states.forget(seq);
        states.forget_own(own);
        assert_eq!((states.n_kept, states.in_use()), (0, (0, 0)));
    }

    #[test]
    fn no_more_is_kept_than_there_is_room_for() {
        let mut arena = Arena::new();
        let seqs: Vec<SeqId> = (0..6).map(|_| arena.insert(())).collect();
        let mut states = HiddenStates::new(2, 100 * size_of::<f32>());
        let in_use = |states: &HiddenStates| -> usize {
            let rows = states.given.values().map(|given| given.rows.capacity());
            rows.sum()
        };
        for at in 0..40 {
            for &seq in &seqs {
                states.give(seq, at, &[1.0, 1.0]);
                assert_eq!(in_use(&states), states.n_kept);
                assert!(states.n_kept <= 100, "{} numbers", states.n_kept);
            }
        }
        // A chunk larger than the capacity.
        states.give(seqs[0], 40, &[1.0; 200]);
        assert!(in_use(&states) == states.n_kept && states.n_kept <= 100);
        for &seq in &seqs {
            states.forget(seq);
        }
        states.give(seqs[1], 0, &[1.0; 90]);
        assert_eq!(states.given[&seqs[1]].rows.len(), 90);
        states.drop_before(seqs[1], 45);
        assert!(states.n_kept <= 100);
        states.clear();
        assert_eq!((states.n_kept, states.in_use()), (0, (0, 0)));
    }

    #[test]
    fn room_is_given_back_and_what_is_never_read_is_dropped() {
        let mut arena = Arena::new();
        let (prompt, idle) = (arena.insert(()), arena.insert(()));
        let mut states = HiddenStates::new(2, 1 << 20);
        states.give(prompt, 0, &vec![1.0; 20_000]);
        states.drop_before(prompt, 9_999);
        assert!(states.n_kept <= 4 * LIKELY_ROWS, "{} numbers", states.n_kept);
        for at in 0..2000 {
            states.give(idle, at, &[1.0, 1.0]);
            let given = &states.given[&idle];
            assert!(given.rows.len() <= 2 * MAX_UNREAD_STEPS as usize);
            assert_eq!(given.first + given.rows.len() / 2, at + 1);
        }
    }

    #[test]
    fn a_small_engine_needs_no_more_than_its_inputs() {
        assert_eq!(hidden_states_bytes(512, 1, 128), 512 * 128 * 4);
        assert_eq!(hidden_states_bytes(1 << 20, 64, 128), 256 << 20);
    }
}
