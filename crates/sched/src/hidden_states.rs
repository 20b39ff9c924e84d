//! [`HiddenStates`]: the hidden states that a layer which guesses further tokens reads, from the step that gave them to the pass that reads
//! them.
//!
//! Separate from the drafting model, which only such a layer needs them for. A row of the first model's steps is kept until the
//! layer has computed the input behind it. Invariant: a state that is not known is zeros, which costs guesses and nothing else.

use std::collections::HashMap;

use crate::arena::SeqId;

/// Bytes that are kept at most, of all sequences.
const MAX_KEPT_BYTES: usize = 256 << 20;

/// Rows that a sequence gets room for between two drafts.
const LIKELY_ROWS: usize = 32;

/// Steps of a sequence that no draft followed, behind which its states are dropped.
const MAX_UNREAD_STEPS: u32 = 512;

/// Bytes of hidden states, of `n_embd` numbers each, that an engine keeps at most for a layer that guesses further tokens: those of all
/// `n_ctx` inputs of `n_seqs` sequences, or 256 MiB.
pub fn hidden_states_bytes(n_ctx: usize, n_seqs: usize, n_embd: usize) -> usize {
    let n_inputs = n_ctx.saturating_mul(n_seqs);
    (n_inputs.saturating_mul(n_embd).saturating_mul(size_of::<f32>())).min(MAX_KEPT_BYTES)
}

/// Hidden states; see the module.
#[derive(Debug)]
pub(crate) struct HiddenStates {
    width: usize,
    /// Of the first model's sequences, those that it gave.
    given: HashMap<SeqId, Given>,
    /// Numbers that there is room for in them.
    n_kept: usize,
    /// The most that there may be.
    max_kept: usize,
    /// Of the layer's own sequences.
    own: HashMap<SeqId, Own>,
    /// Of nothing.
    zeros: Vec<f32>,
}

/// The states behind neighbouring positions, the first of which is `first`.
#[derive(Debug)]
struct Given {
    first: usize,
    rows: Vec<f32>,
    /// Steps that gave some since the layer read them.
    n_unread_steps: u32,
}

/// What the layer knows of its own sequence.
#[derive(Debug, Default)]
struct Own {
    /// Inputs that were known, not guessed, in the last draft.
    n_sure: usize,
    /// The position computed last, and the layer's own state behind it.
    last: Option<(usize, Vec<f32>)>,
}

impl HiddenStates {
    /// Nothing yet, of states of `width` numbers, of which `max_bytes` may be kept.
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

    /// Takes what a step of the first model gave for inputs of `seq` from `first` on. What was given for these positions before belonged to
    /// guesses. What there is no room for is not kept, nor what no draft has read for long.
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
                // Half as many more, so that a state a step is not copied again each time.
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

    /// The state that the input at `position` of the layer's sequence `own` is made of: the first model's own as far as inputs are
    /// known, else what the layer computed.
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

    /// Inputs of a sequence that were known in its last draft. What is behind them was computed of states that the layer guessed.
    pub(crate) fn n_sure(&self, own: SeqId) -> usize {
        self.own.get(&own).map_or(0, |own| own.n_sure)
    }

    /// Begins a draft of a sequence of which `n_sure` inputs are known.
    pub(crate) fn begin(&mut self, own: SeqId, n_sure: usize) {
        self.own.entry(own).or_default().n_sure = n_sure;
    }

    /// Takes the layer's own state behind `position`.
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

    /// Drops the states behind positions below `position`, which the layer has read.
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
        // A few more come with the next step; those of a prompt do not come again.
        let n_likely = given.rows.len() + LIKELY_ROWS * self.width;
        if given.rows.capacity() > 2 * n_likely {
            given.rows.shrink_to(n_likely);
        }
        self.n_kept += given.rows.capacity();
    }

    /// Forgets a sequence of the first model.
    pub(crate) fn forget(&mut self, seq: SeqId) {
        if let Some(given) = self.given.remove(&seq) {
            self.n_kept -= given.rows.capacity();
        }
    }

    /// Forgets what the first model gave.
    pub(crate) fn drop_given(&mut self) {
        self.given.clear();
        self.n_kept = 0;
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.given.clear();
        self.own.clear();
        self.n_kept = 0;
    }

    /// Forgets a sequence of the layer.
    pub(crate) fn forget_own(&mut self, own: SeqId) {
        self.own.remove(&own);
    }

    /// Sequences of the first model, and of the layer, of which something is kept.
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
        // Two guesses were verified, of which the first was right.
        states.drop_before(seq, 3);
        states.give(seq, 3, &[4.0, 4.0, 5.0, 5.0, 6.0, 6.0]);
        states.give(seq, 5, &[9.0, 9.0]);
        states.begin(own, 7);
        for (position, expected) in [(3, 0.0), (4, 4.0), (5, 5.0), (6, 9.0)] {
            check(&states, position, expected);
        }
        assert_eq!(states.given[&seq].rows.len(), 6);
        // It was computed again from a position that was cached.
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
        // A chunk that is larger than all room.
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
