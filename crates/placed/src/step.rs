//! How a step begins, runs and is read on both sides.
//!
//! Both sides get the values of a step. The device samples. The host needs the ids of tokens that the device
//! sampled in the previous step, if it has the first layer and so creates rows of tokens. A step of many rows
//! may have two parts, which are begun and run one after the other; the device still works on the first when
//! the host computes the second. Invariant: a step's results are returned once, in order, even if its tokens
//! were needed earlier.

use tokenmill_backend::{
    BackendError, ForwardBatch, Recorded, Side, SplitOperations, StepOutput, TokenSource,
};

use crate::{
    Placed,
    pass::{Mode, Pass},
    programs::Programs,
    results::id_of,
};

/// Maximum number of steps, or parts of steps, whose unread results the device keeps.
const MAX_OPEN: usize = 2;

impl<H: SplitOperations, D: SplitOperations> Placed<H, D> {
    pub(crate) fn begin(&mut self, batch: &ForwardBatch) -> Result<(), BackendError> {
        self.choose_route(batch.n_tokens(), batch.n_seqs());
        let works_apart = self.device.backend.works_apart() && self.goes_to_device;
        // An encoder's tokens see all others of their sequence.
        let cut = (!self.is_encoder).then(|| self.overlap.cut_of(batch, &self.placement, works_apart));
        let cut = cut.flatten();
        // The device resolves row references to the newest step, unless that step or this one has two parts.
        let device_knows_rows = !self.is_cut && cut.is_none();
        self.is_cut = cut.is_some();
        let names_rows = (batch.tokens.iter()).any(|token| matches!(token, TokenSource::SampledRow(_)));
        let n_open: usize = self.results.open.iter().sum();
        if names_rows || n_open + 1 + usize::from(self.is_cut) > MAX_OPEN {
            self.take_all();
        }
        let mut known = std::mem::take(&mut self.results.batch);
        let outcome = self.begin_known(batch, names_rows.then_some(&mut known), device_knows_rows, cut);
        self.results.batch = known;
        outcome
    }

    /// Begins a step; `known` gets it with resolved token ids if rows of the previous step are referenced.
    fn begin_known(
        &mut self,
        batch: &ForwardBatch,
        known: Option<&mut ForwardBatch>,
        device_knows_rows: bool,
        cut: Option<usize>,
    ) -> Result<(), BackendError> {
        let on_host = match known {
            Some(known) => {
                known.copy_from(batch);
                let newest = self.results.newest.as_deref();
                (known.name_tokens(|row| id_of(newest, row))).ok_or_else(|| BackendError::Failed {
                    operation: "a step whose tokens come from the one before",
                    source: "that step has no results".into(),
                })?;
                &*known
            }
            None => batch,
        };
        let Some(cut) = cut else {
            let on_device = if device_knows_rows { batch } else { on_host };
            return self.begin_on_both(on_host, on_device);
        };
        self.parts[0].take_part(on_host, 0..cut);
        self.parts[1].take_part(on_host, cut..batch.n_tokens());
        self.begin_part(0)
    }

    fn begin_on_both(
        &mut self,
        on_host: &ForwardBatch,
        on_device: &ForwardBatch,
    ) -> Result<(), BackendError> {
        let host = self.host.backend.begin_part(on_host)?;
        let device = self.device.backend.begin_part(on_device)?;
        self.shapes = [Some(host), Some(device)];
        Ok(())
    }

    fn begin_part(&mut self, part_idx: usize) -> Result<(), BackendError> {
        let part = std::mem::take(&mut self.parts[part_idx]);
        let outcome = self.begin_on_both(&part, &part);
        self.parts[part_idx] = part;
        outcome
    }

    /// Runs the begun step.
    pub(crate) fn run(&mut self) -> Result<(), BackendError> {
        let programs = self.programs.clone();
        let programs = programs.expect("memory is allocated before the first step");
        self.run_part(&programs)?;
        let mut n_parts = 1;
        if self.is_cut {
            // The device computes the first part meanwhile.
            let second = (self.begin_part(1)).and_then(|()| self.run_part(&programs));
            if let Err(error) = second {
                // Read and drop the first part's result, so that it is not taken for a later step's.
                let _ = self.device.backend.read(&mut self.results.second);
                return Err(error);
            }
            n_parts = 2;
        }
        self.results.open.push_back(n_parts);
        Ok(())
    }

    /// Runs a begun step, or a part of one.
    fn run_part(&mut self, programs: &Programs) -> Result<(), BackendError> {
        let shapes = Side::ALL.map(|side| self.shape_on(side));
        let _entered = (
            self.host.backend.enter_step(&shapes[0]),
            self.device.backend.enter_step(&shapes[1]),
        );
        // A part takes the route of its whole step, which its own shape does not determine.
        let recorded = if self.is_cut {
            Recorded::CannotBe
        } else {
            self.device.backend.recorded(&shapes[1])
        };
        let mode = if recorded == Recorded::Yes {
            Mode::Replay
        } else {
            Mode::Run
        };
        self.pass(programs, mode)?;
        self.host.backend.end_part(&shapes[0], false)?;
        self.device.backend.end_part(&shapes[1], true)?;
        if recorded == Recorded::NotYet {
            // The step has run; a second pass only records.
            let outcome = self.pass(programs, Mode::Record);
            self.device.backend.keep_segments(&shapes[1], outcome.is_ok());
            self.pass = Pass::new(Mode::Run);
            if let Err(error @ BackendError::Lost { .. }) = outcome {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Fetches the results of all steps from the device.
    fn take_all(&mut self) {
        while let Some(n_parts) = self.results.open.pop_front() {
            let mut output = self.results.spare.take().unwrap_or_default();
            let outcome = self.read_parts(n_parts, &mut output);
            let taken = self.results.note(outcome, &output);
            self.results.taken.push_back(taken.map(|()| output));
        }
    }

    /// Reads the results of a step from the device, part after part.
    fn read_parts(&mut self, n_parts: usize, output: &mut StepOutput) -> Result<(), BackendError> {
        let mut outcome = self.device.backend.read(output);
        for _ in 1..n_parts {
            // Read even after a failed part, so that its result is not taken for a later step's.
            outcome = outcome.and(self.device.backend.read(&mut self.results.second));
            if outcome.is_ok() {
                output.append(&self.results.second);
            }
        }
        outcome
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
                let n_parts = self.results.open.pop_front().unwrap_or(1);
                let outcome = self.read_parts(n_parts, output);
                self.results.note(outcome, output)
            }
        }
    }
}
