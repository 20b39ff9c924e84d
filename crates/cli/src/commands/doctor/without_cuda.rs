//! In the place of `cuda.rs` in a build without CUDA: there is no GPU to try.

use tokenmill::{
    Error,
    gpu::{CudaLeftOut, GpuOptions},
};
use tokenmill_backend::MemoryPlan;
use tokenmill_model::{Model, ModelOptions};

use super::Examination;

/// No value of this type exists.
pub(super) enum Gpu {}

impl Gpu {
    pub(super) fn open(_: usize, _: &GpuOptions) -> Result<Self, Error> {
        Err(CudaLeftOut.into())
    }

    pub(super) fn examine(&self, _: &mut Examination) {
        match *self {}
    }

    pub(super) fn tell_first_use(&self, _: usize, _: &GpuOptions, _: &mut Examination) {
        match *self {}
    }

    pub(super) fn plan(self, _: &Model, _: &ModelOptions) -> (u64, Result<MemoryPlan, Error>) {
        match self {}
    }
}
