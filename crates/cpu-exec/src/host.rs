//! [`Host`]: where operations run, that is on which threads and with which instruction sets.
//!
//! It is a value that every operation borrows, so that nothing about the machine is global. Invariant: neither of its
//! parts changes a result.

use tokenmill_quant::CpuFeatures;

use crate::{CpuExecError, Pool};

/// A thread pool and the instruction sets to use.
#[derive(Debug)]
pub struct Host {
    pool: Pool,
    features: CpuFeatures,
}

impl Host {
    /// Starts a pool of `n_threads`, the caller's thread among them. `features` is usually [`CpuFeatures::detect`];
    /// narrow it to force a path.
    ///
    /// # Errors
    /// Those of [`Pool::new`].
    pub fn new(n_threads: usize, features: CpuFeatures) -> Result<Self, CpuExecError> {
        Ok(Self {
            pool: Pool::new(n_threads)?,
            features,
        })
    }

    /// The threads.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The instruction sets.
    pub fn features(&self) -> CpuFeatures {
        self.features
    }
}
