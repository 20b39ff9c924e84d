//! A GPU as a device that runs programs.

use tokenmill_backend::program::{Bridge, ProgramDevice};

use super::CudaBackend;

impl From<CudaBackend> for Box<dyn ProgramDevice> {
    fn from(backend: CudaBackend) -> Self {
        Bridge::boxed(backend)
    }
}
