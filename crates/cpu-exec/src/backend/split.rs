//! The host's part in a split network, which two backends compute together.
//!
//! A host that runs the whole network needs none of it. Invariant: values are read and written in place.

use std::{marker::PhantomData, ops::Range, sync::Arc};

use tokenmill_backend::{BackendError, ForwardBatch, SplitOperations, StepShape};

use super::CpuBackend;

/// A guard that keeps the threads awake between the operations of a step; the thread that created it drops
/// it.
pub struct AwakeThreads {
    host: Arc<crate::Host>,
    of_this_thread: PhantomData<*const ()>,
}

impl Drop for AwakeThreads {
    fn drop(&mut self) {
        self.host.pool().release();
    }
}

impl SplitOperations for CpuBackend {
    type Entered = AwakeThreads;

    fn begin_part(&mut self, batch: &ForwardBatch) -> Result<StepShape, BackendError> {
        self.n_steps += 1;
        Ok(self.step.begin(batch))
    }

    fn enter_step(&mut self, shape: &StepShape) -> AwakeThreads {
        self.set_width(shape);
        self.host.pool().hold();
        AwakeThreads {
            host: Arc::clone(&self.host),
            of_this_thread: PhantomData,
        }
    }

    fn end_part(&mut self, _: &StepShape, _: bool) -> Result<(), BackendError> {
        Ok(())
    }

    fn show_values(
        &mut self,
        buffer: &Vec<f32>,
        range: Range<usize>,
        see: &mut dyn FnMut(&[f32]) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        see(&buffer[range])
    }

    fn fill_values(
        &mut self,
        buffer: &mut Vec<f32>,
        range: Range<usize>,
        write: &mut dyn FnMut(&mut [f32]) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        write(&mut buffer[range])
    }
}
