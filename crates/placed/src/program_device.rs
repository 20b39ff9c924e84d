//! Two sides as one device that runs programs.

use tokenmill_backend::{
    SplitOperations,
    program::{Bridge, ProgramDevice},
};

use crate::Placed;

impl<H: SplitOperations, D: SplitOperations> From<Placed<H, D>> for Box<dyn ProgramDevice> {
    fn from(backend: Placed<H, D>) -> Self {
        Bridge::boxed(backend)
    }
}
