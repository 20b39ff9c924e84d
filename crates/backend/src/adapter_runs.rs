//! [`AdapterRuns`]: the adapter of each row of a step.
//!
//! Products see three kinds of rows: of all tokens, of the outputs, and of the logits. Invariant: runs ascend
//! and do not overlap; rows between them have no adapter.

use std::ops::Range;

use crate::{AdapterId, ForwardBatch};

/// Consecutive rows with the same adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterRun {
    /// The adapter.
    pub adapter: AdapterId,
    /// The rows.
    pub rows: Range<usize>,
}

/// The runs of a step's rows, by kind of row.
#[derive(Clone, Debug, Default)]
pub struct AdapterRuns {
    tokens: Runs,
    outputs: Runs,
    logits: Runs,
}

#[derive(Clone, Debug, Default)]
struct Runs {
    n_rows: usize,
    runs: Vec<AdapterRun>,
}

impl AdapterRuns {
    /// Sets the runs of a step with these output tokens, ascending.
    pub fn set(&mut self, batch: &ForwardBatch, outputs: &[u32]) {
        for runs in [&mut self.tokens, &mut self.outputs, &mut self.logits] {
            runs.n_rows = 0;
            runs.runs.clear();
        }
        if batch.adapters.iter().all(Option::is_none) {
            return;
        }
        let mut seq_idx = 0;
        let mut fill = |runs: &mut Runs, tokens: &mut dyn Iterator<Item = usize>| {
            seq_idx = 0;
            for token_idx in tokens {
                while batch.seq_starts[seq_idx + 1] as usize <= token_idx {
                    seq_idx += 1;
                }
                runs.push(batch.adapters.get(seq_idx).copied().flatten());
            }
        };
        fill(&mut self.tokens, &mut (0..batch.n_tokens()));
        fill(&mut self.outputs, &mut outputs.iter().map(|&row| row as usize));
        fill(
            &mut self.logits,
            &mut batch.logit_rows.iter().map(|&row| row as usize),
        );
    }

    /// Returns whether no row of the step has an adapter.
    pub fn is_empty(&self) -> bool {
        self.tokens.runs.is_empty()
    }

    /// Returns the runs of a product of `n_rows` rows: those of all tokens, of the outputs or of the logits.
    /// If two of these have the same number of rows, they are the same rows.
    ///
    /// # Panics
    /// If the step has adapters, and `n_rows` is not one of the three numbers.
    pub fn of(&self, n_rows: usize) -> &[AdapterRun] {
        if self.is_empty() {
            return &[];
        }
        let kinds = [&self.tokens, &self.outputs, &self.logits];
        let found = kinds.into_iter().find(|runs| runs.n_rows == n_rows);
        &found
            .expect("a product is of a step's tokens, outputs or logits")
            .runs
    }
}

impl Runs {
    fn push(&mut self, adapter: Option<AdapterId>) {
        let row = self.n_rows;
        self.n_rows += 1;
        let Some(adapter) = adapter else { return };
        match self.runs.last_mut() {
            Some(run) if run.adapter == adapter && run.rows.end == row => run.rows.end += 1,
            _ => self.runs.push(AdapterRun {
                adapter,
                rows: row..row + 1,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::TokenSource;

    #[test]
    fn runs_follow_the_sequences_of_rows() {
        let id = |number| AdapterId::new(NonZeroU32::new(number).unwrap());
        let mut batch = ForwardBatch::default();
        for (n_tokens, page, adapter) in [
            (3, 0, Some(id(1))),
            (1, 1, None),
            (2, 2, Some(id(2))),
            (1, 3, Some(id(2))),
        ] {
            batch.push_sequence((0..n_tokens).map(TokenSource::Id), 0, &[page]);
            batch.set_adapter(adapter);
        }
        batch.logit_rows = vec![2, 6];
        let run = |number, rows| AdapterRun {
            adapter: id(number),
            rows,
        };
        let mut runs = AdapterRuns::default();
        runs.set(&batch, &[2, 3, 6]);
        assert_eq!(runs.of(7), [run(1, 0..3), run(2, 4..7)]);
        assert_eq!(runs.of(3), [run(1, 0..1), run(2, 2..3)]);
        assert_eq!(runs.of(2), [run(1, 0..1), run(2, 1..2)]);
        batch.adapters.clear();
        runs.set(&batch, &[2, 3, 6]);
        assert!(runs.is_empty() && runs.of(5).is_empty());
    }
}
