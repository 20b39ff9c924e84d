//! The operations on experts: none yet. No routes can be allocated, so none of them is ever called.
//!
//! Separate because only networks with experts have them.

use tokenmill_backend::{BackendError, Carried, ExpertInput, ExpertOperations, Linear, Routed, Router};

use super::{CudaBackend, CudaBuffer};

impl ExpertOperations for CudaBackend {
    fn route(
        &mut self,
        _: &Router<crate::Buffer<f32>>,
        _: usize,
        _: &CudaBuffer,
        routes: &mut std::convert::Infallible,
    ) -> Result<(), BackendError> {
        match *routes {}
    }

    fn experts_linear(
        &mut self,
        _: &Linear<crate::Matrix, crate::Buffer<f32>>,
        routed: Routed<'_, Self>,
        _: ExpertInput<'_, CudaBuffer>,
        _: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        match *routed.routes {}
    }

    fn combine(
        &mut self,
        routed: Routed<'_, Self>,
        _: usize,
        _: &CudaBuffer,
        _: Carried<'_, CudaBuffer>,
        _: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        match *routed.routes {}
    }
}
