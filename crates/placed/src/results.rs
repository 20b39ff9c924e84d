//! [`Results`]: the results of a split network's steps, from the device to the caller.
//!
//! The host may need a step's tokens before the caller reads them, so they are fetched early and kept. Invariant: results are
//! returned once, in the order of the steps.

use std::collections::VecDeque;

use tokenmill_backend::{BackendError, ForwardBatch, StepOutput};

/// Results fetched from the device before the caller asked, because the host needed their tokens.
#[derive(Default)]
pub(crate) struct Results {
    /// For each step that ran and was not fetched, its number of parts, each with a result on the device.
    pub(crate) open: VecDeque<usize>,
    pub(crate) taken: VecDeque<Result<StepOutput, BackendError>>,
    /// The tokens of the newest fetched step, 0 for a row without one; `None` if fetching failed.
    pub(crate) newest: Option<Vec<u32>>,
    pub(crate) spare: Option<StepOutput>,
    /// The results of a second part.
    pub(crate) second: StepOutput,
    /// The current step's batch, with the ids of its tokens.
    pub(crate) batch: ForwardBatch,
}

impl Results {
    /// Records the tokens of a step that was read. A failed step has none, and an earlier step's must not
    /// replace them.
    pub(crate) fn note(
        &mut self,
        outcome: Result<(), BackendError>,
        output: &StepOutput,
    ) -> Result<(), BackendError> {
        if let Err(error) = outcome {
            self.newest = None;
            return Err(error);
        }
        let newest = self.newest.get_or_insert_default();
        newest.clear();
        let ids = (output.sampled.iter()).map(|sampled| match sampled {
            Some(Ok(token)) => token.id,
            _ => 0,
        });
        newest.extend(ids);
        Ok(())
    }
}

/// Returns the token that a row of the newest step sampled.
pub(crate) fn id_of(newest: Option<&[u32]>, row: u32) -> Option<u32> {
    newest?.get(row as usize).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_failed_leaves_no_tokens_of_the_one_before() {
        let mut results = Results::default();
        let output = StepOutput {
            sampled: vec![None, None],
            ..StepOutput::default()
        };
        let rows = |results: &Results| [0, 1, 2].map(|row| id_of(results.newest.as_deref(), row));
        assert_eq!(rows(&results), [None; 3]);
        results.note(Ok(()), &output).unwrap();
        assert_eq!(rows(&results), [Some(0), Some(0), None]);
        let failed = BackendError::Failed {
            operation: "reading",
            source: "a fault".into(),
        };
        assert!(results.note(Err(failed), &output).is_err());
        assert_eq!(rows(&results), [None; 3]);
    }
}
