//! [`SplitOperations`]: what a backend offers to be one of two that compute a network together.
//!
//! Separate because a backend that has a network for itself needs none of it. Invariant: a step begins and ends on both, and
//! between the two each is asked for some of the operations only.

use std::ops::Range;

use crate::{Backend, BackendError, ForwardBatch, StepShape};

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
