//! [`SplitOperations`]: what a backend offers to be one of two that compute a network together.
//!
//! Separate because a backend that has a network for itself needs none of it. Invariant: a step begins and ends on both, and
//! between the two each is asked for some of the operations only.

use std::ops::Range;

use crate::{Backend, BackendError, ForwardBatch, StepShape};

/// What is known of recording steps of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// They were recorded.
    Yes,
    /// They can be.
    NotYet,
    /// They run as they are.
    CannotBe,
}

/// One of two backends that compute a network together. Every operation's error is a device error.
#[expect(
    clippy::missing_errors_doc,
    reason = "the operations fail alike, which the trait's documentation says"
)]
pub trait SplitOperations: Backend {
    /// Keeps a backend ready for a step as long as it lives.
    type Entered;

    /// Takes the values of a validated step, as [`Backend::begin_step`] does, and pads no counts.
    fn begin_part(&mut self, batch: &ForwardBatch) -> Result<StepShape, BackendError>;

    /// Makes the backend ready for the operations of a step that was begun.
    fn enter_step(&mut self, shape: &StepShape) -> Self::Entered;

    /// Ends a step's operations. `samples` says whether [`Backend::sample`] was among them; then its results wait for
    /// [`Backend::read`].
    fn end_part(&mut self, shape: &StepShape, samples: bool) -> Result<(), BackendError>;

    /// Whether the device's operations of steps of this shape were recorded. If so, the step that was begun is one that replays them.
    fn recorded(&mut self, shape: &StepShape) -> Recorded {
        let _ = shape;
        Recorded::CannotBe
    }

    /// Begins to record operations instead of running them: those between two borders.
    fn begin_segment(&mut self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Ends what [`Self::begin_segment`] began.
    fn end_segment(&mut self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Keeps the segments recorded since the last call for steps of this shape, or, where they are not all, notes that it cannot be
    /// recorded.
    fn keep_segments(&mut self, shape: &StepShape, is_whole: bool) {
        let _ = (shape, is_whole);
    }

    /// Forgets all segments: the borders of steps change.
    fn forget_segments(&mut self) {}

    /// Runs a recorded segment, by its number in the step.
    fn replay_segment(&mut self, shape: &StepShape, segment: usize) -> Result<(), BackendError> {
        let _ = (shape, segment);
        Ok(())
    }

    /// Notes while recording that [`Self::fill_values`] will have written a buffer here.
    fn will_be_filled(&mut self, buffer: &mut Self::Buffer) {
        let _ = buffer;
    }

    /// Shows some values of a buffer to the host, after the operations before.
    fn show_values(
        &mut self,
        buffer: &Self::Buffer,
        range: Range<usize>,
        see: &mut dyn FnMut(&[f32]) -> Result<(), BackendError>,
    ) -> Result<(), BackendError>;

    /// Lets the host write some values of a buffer, ahead of the operations that follow. Those it does not write are undefined.
    fn fill_values(
        &mut self,
        buffer: &mut Self::Buffer,
        range: Range<usize>,
        write: &mut dyn FnMut(&mut [f32]) -> Result<(), BackendError>,
    ) -> Result<(), BackendError>;
}
