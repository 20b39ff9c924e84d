//! The operations on recurrent states: none yet, which a load says.
//!
//! Separate because only recurrent layers have them.

use tokenmill_backend::{
    Backend, BackendError, DeltaNet, DeltaNetRows, RecurrentOperations, ShortConv, SsmRows, SsmScan,
    StepShape,
};

use super::{CudaBackend, CudaBuffer};

impl RecurrentOperations for CudaBackend {
    fn short_conv(
        &mut self,
        _: &ShortConv<Self::Vector>,
        _: &StepShape,
        _: &CudaBuffer,
        _: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        Err(no_recurrence())
    }

    fn delta_net(
        &mut self,
        _: &DeltaNet<Self::Vector>,
        _: &StepShape,
        _: DeltaNetRows<'_, CudaBuffer>,
        _: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        Err(no_recurrence())
    }

    fn ssm_scan(
        &mut self,
        _: &SsmScan<Self::Vector>,
        _: &StepShape,
        _: SsmRows<'_, CudaBuffer>,
        _: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        Err(no_recurrence())
    }
}

pub(super) fn no_recurrence() -> BackendError {
    BackendError::Unsupported {
        feature: "recurrent layers".to_owned(),
        device: CudaBackend::NAME,
    }
}
