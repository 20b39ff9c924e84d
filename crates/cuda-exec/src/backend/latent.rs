//! The operations on latent rows: none yet, which a load says.
//!
//! Separate because only latent attention has them. A load is refused by [`KvStore::check`](crate::KvStore::check).

use tokenmill_backend::{Backend, BackendError, JoinedRows, LatentOperations, Linear};

use super::{CudaBackend, CudaBuffer};

impl LatentOperations for CudaBackend {
    fn heads_linear(
        &mut self,
        _: &Linear<Self::Matrix, Self::Vector>,
        _: usize,
        _: usize,
        _: &CudaBuffer,
        _: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        Err(no_latent_rows())
    }

    fn join(
        &mut self,
        _: usize,
        _: JoinedRows<'_, CudaBuffer>,
        _: JoinedRows<'_, CudaBuffer>,
        _: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        Err(no_latent_rows())
    }

    fn store_latent(&mut self, _: usize, _: usize, _: &CudaBuffer) -> Result<(), BackendError> {
        Err(no_latent_rows())
    }
}

fn no_latent_rows() -> BackendError {
    BackendError::Unsupported {
        feature: "latent attention".to_owned(),
        device: CudaBackend::NAME,
    }
}
