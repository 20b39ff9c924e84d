//! The naive backend as a device that runs programs.

use tokenmill_backend::program::{Bridge, ProgramDevice};

use super::NaiveBackend;

impl From<NaiveBackend> for Box<dyn ProgramDevice> {
    fn from(backend: NaiveBackend) -> Self {
        Bridge::boxed(backend)
    }
}
