//! How a step begins, runs and is read on both sides.
//!
//! Separate from the operations because it decides nothing about them. Both sides get the values of a step. The device samples;
//! the host, which makes rows of tokens where it has the first layer, needs the ids of tokens that the device sampled a step
//! before. What the device computes between two borders of a decode step is recorded, in a second pass that runs nothing, and
//! replayed when a step of that shape comes again. Invariant: a step's results are given once, in order, whoever asked for its tokens first.

use tokenmill_backend::{
    BackendError, ForwardBatch, NetworkPart, Recorded, Side, SplitOperations, StepOutput, StepShape,
    TokenSource,
};

use crate::{
    Placed,
    placed::{Mode, Pass, Results},
};

impl<H: SplitOperations, D: SplitOperations> Placed<H, D> {
    pub(crate) fn begin(&mut self, batch: &ForwardBatch) -> Result<StepShape, BackendError> {
        self.choose_route(batch.n_tokens(), batch.n_seqs());
        let is_known = |token: &TokenSource| matches!(token, TokenSource::Id(_));
        let host = if batch.tokens.iter().all(is_known) {
            self.host.begin_part(batch)?
        } else {
            self.take_all();
            let results = &mut self.results;
            results.batch.copy_from(batch);
            for token in &mut results.batch.tokens {
                if let TokenSource::SampledRow(row) = *token {
                    let id = id_of(results.newest.as_deref(), row);
                    *token = TokenSource::Id(id.ok_or_else(|| BackendError::Failed {
                        operation: "a step whose tokens come from the one before",
                        source: "that step has no results".into(),
                    })?);
                }
            }
            self.host.begin_part(&results.batch)?
        };
        let device = self.device.begin_part(batch)?;
        self.shapes = [Some(host), Some(device)];
        Ok(device)
    }

    pub(crate) fn run(
        &mut self,
        shape: StepShape,
        body: &mut dyn FnMut(&mut Self, StepShape) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let shapes = Side::ALL.map(|side| self.shape_on(side));
        let _entered = (
            self.host.enter_step(&shapes[0]),
            self.device.enter_step(&shapes[1]),
        );
        let recorded = self.device.recorded(&shapes[1]);
        let mode = if recorded == Recorded::Yes {
            Mode::Replay
        } else {
            Mode::Run
        };
        self.pass(mode, shape, body)?;
        self.host.end_part(&shapes[0], false)?;
        self.device.end_part(&shapes[1], true)?;
        if recorded == Recorded::NotYet {
            // The step has run; a second pass runs nothing.
            let outcome = self.pass(Mode::Record, shape, body);
            self.device.keep_segments(&shapes[1], outcome.is_ok());
            self.pass = Pass::new(Mode::Run);
            if let Err(error @ BackendError::Lost { .. }) = outcome {
                return Err(error);
            }
        }
        self.results.n_open += 1;
        Ok(())
    }

    /// Goes over the operations of the step once.
    fn pass(
        &mut self,
        mode: Mode,
        shape: StepShape,
        body: &mut dyn FnMut(&mut Self, StepShape) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        self.pass = Pass::new(mode);
        self.now = self.placement.side(NetworkPart::Input, true, Side::Device);
        body(self, shape)?;
        self.leave_device()
    }

    /// Takes the results of all steps from the device.
    fn take_all(&mut self) {
        while self.results.n_open > 0 {
            self.results.n_open -= 1;
            let mut output = self.results.spare.take().unwrap_or_default();
            let outcome = self.device.read(&mut output);
            let taken = self.results.note(outcome, &output);
            self.results.taken.push_back(taken.map(|()| output));
        }
    }

    pub(crate) fn read_step(&mut self, output: &mut StepOutput) -> Result<(), BackendError> {
        match self.results.taken.pop_front() {
            Some(Ok(mut taken)) => {
                std::mem::swap(output, &mut taken);
                self.results.spare = Some(taken);
                Ok(())
            }
            Some(Err(error)) => Err(error),
            None => {
                self.results.n_open = self.results.n_open.saturating_sub(1);
                let outcome = self.device.read(output);
                self.results.note(outcome, output)
            }
        }
    }
}

/// The token that a row of the newest step sampled.
fn id_of(newest: Option<&[u32]>, row: u32) -> Option<u32> {
    newest?.get(row as usize).copied()
}

impl Results {
    /// Notes the tokens of a step that was read. Of one that failed there are none, and an earlier step's must not stand for them.
    fn note(&mut self, outcome: Result<(), BackendError>, output: &StepOutput) -> Result<(), BackendError> {
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
