//! [`HiddenStates`]: the hidden states that a layer which guesses further tokens reads, from the step that gave them to the pass that reads
//! them.
//!
//! Separate from the drafting model, which only such a layer needs them for. A row of the first model's steps is kept until the
//! layer has computed the input behind it. Invariant: a state that is not known is zeros, which costs guesses and nothing else.

use std::collections::HashMap;

use crate::arena::SeqId;

/// Numbers that are kept at most, of all sequences: 256 MiB.
const MAX_KEPT: usize = 1 << 26;

/// Hidden states; see the module.
#[derive(Debug)]
pub(crate) struct HiddenStates {
    width: usize,
    /// Of the first model's sequences, those that it gave.
    given: HashMap<SeqId, Given>,
    /// Numbers in them.
    n_kept: usize,
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
    /// Nothing yet, of states of `width` numbers.
    pub(crate) fn new(width: usize) -> Self {
        Self {
            width,
            given: HashMap::new(),
            n_kept: 0,
            own: HashMap::new(),
            zeros: vec![0.0; width],
        }
    }

    /// Takes what a step of the first model gave for inputs of `seq` from `first` on. What was given for these positions before belonged to
    /// guesses.
    pub(crate) fn give(&mut self, seq: SeqId, first: usize, rows: &[f32]) {
        let given = self.given.entry(seq).or_insert(Given {
            first,
            rows: Vec::new(),
        });
        self.n_kept -= given.rows.len();
        let n_before = (first.checked_sub(given.first))
            .map(|n_rows| n_rows * self.width)
            .filter(|n_before| *n_before <= given.rows.len());
        let fits = |n_before: &usize| self.n_kept + n_before + rows.len() <= MAX_KEPT;
        if let Some(n_before) = n_before.filter(fits) {
            given.rows.truncate(n_before);
        } else {
            (given.first, given.rows) = (first, Vec::new());
        }
        given.rows.extend_from_slice(rows);
        self.n_kept += given.rows.len();
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

    /// Drops the states behind positions below `position`.
    pub(crate) fn drop_before(&mut self, seq: SeqId, position: usize) {
        let Some(given) = self.given.get_mut(&seq) else {
            return;
        };
        let n_before = position.saturating_sub(given.first) * self.width;
        let n_dropped = n_before.min(given.rows.len());
        given.rows.drain(..n_dropped);
        given.first += n_dropped / self.width;
        self.n_kept -= n_dropped;
    }

    /// Forgets a sequence of the first model.
    pub(crate) fn forget(&mut self, seq: SeqId) {
        if let Some(given) = self.given.remove(&seq) {
            self.n_kept -= given.rows.len();
        }
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
        let mut states = HiddenStates::new(2);
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
        assert_eq!(states.n_kept, 6);
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
    fn what_is_too_much_is_dropped() {
        let seq = Arena::new().insert(());
        let mut states = HiddenStates::new(MAX_KEPT / 2);
        let row = vec![1.0; MAX_KEPT / 2];
        for at in 0..3 {
            states.give(seq, at, &row);
        }
        assert_eq!((states.given[&seq].first, states.n_kept), (2, MAX_KEPT / 2));
    }
}
