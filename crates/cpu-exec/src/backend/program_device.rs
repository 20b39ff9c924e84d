//! The CPU as a device that runs programs.

use tokenmill_backend::program::{Bridge, ProgramDevice};

use super::CpuBackend;

impl From<CpuBackend> for Box<dyn ProgramDevice> {
    fn from(backend: CpuBackend) -> Self {
        Bridge::boxed(backend)
    }
}
