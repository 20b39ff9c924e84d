//! [`SplitOperations`]: the operations of a backend that computes a network together with another one.
//!
//! A backend with a whole network needs none of it. Invariant: a step begins and ends on both backends, and
//! each runs only some of the operations in between.

use std::ops::Range;

use crate::{Backend, BackendError, ForwardBatch, StepShape};

/// Whether steps of a shape are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// They are recorded.
    Yes,
    /// They can be recorded.
    NotYet,
    /// They cannot be recorded and run directly.
    CannotBe,
}

/// One of two backends that compute a network together. Every operation's error is a device error.
#[expect(
    clippy::missing_errors_doc,
    reason = "the operations fail alike, which the trait's documentation says"
)]
pub trait SplitOperations: Backend {
    /// Keeps a backend ready for a step as long as it exists.
    type Entered;

    /// Uploads the values of a validated step, as [`Backend::begin_step`] does, without padding counts.
    fn begin_part(&mut self, batch: &ForwardBatch) -> Result<StepShape, BackendError>;

    /// Prepares the backend for the operations of a begun step.
    fn enter_step(&mut self, shape: &StepShape) -> Self::Entered;

    /// Ends a step's operations. `samples` says whether [`Backend::sample`] was among them; then
    /// [`Backend::read`] returns its results.
    fn end_part(&mut self, shape: &StepShape, samples: bool) -> Result<(), BackendError>;

    /// Returns whether the device's operations for steps of this shape are recorded. If so, the begun step
    /// replays them.
    fn recorded(&mut self, shape: &StepShape) -> Recorded {
        let _ = shape;
        Recorded::CannotBe
    }

    /// Begins to record operations instead of running them: those between two borders.
    fn begin_segment(&mut self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Ends the segment begun by [`Self::begin_segment`].
    fn end_segment(&mut self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Keeps the segments recorded since the last call for steps of this shape or, if they are incomplete,
    /// marks the shape as not recordable.
    fn keep_segments(&mut self, shape: &StepShape, is_whole: bool) {
        let _ = (shape, is_whole);
    }

    /// Drops all segments, because the borders of steps change.
    fn forget_segments(&mut self) {}

    /// Runs a recorded segment, by its index in the step.
    fn replay_segment(&mut self, shape: &StepShape, segment: usize) -> Result<(), BackendError> {
        let _ = (shape, segment);
        Ok(())
    }

    /// Notes, while recording, that [`Self::fill_values`] writes a buffer here.
    fn will_be_filled(&mut self, buffer: &mut Self::Buffer) {
        let _ = buffer;
    }

    /// Shows some values of a buffer to the host, after the preceding operations.
    fn show_values(
        &mut self,
        buffer: &Self::Buffer,
        range: Range<usize>,
        see: &mut dyn FnMut(&[f32]) -> Result<(), BackendError>,
    ) -> Result<(), BackendError>;

    /// Lets the host write some values of a buffer, before the following operations. Unwritten values are
    /// undefined.
    fn fill_values(
        &mut self,
        buffer: &mut Self::Buffer,
        range: Range<usize>,
        write: &mut dyn FnMut(&mut [f32]) -> Result<(), BackendError>,
    ) -> Result<(), BackendError>;
}
