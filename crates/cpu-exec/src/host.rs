//! [`Host`]: the threads and the instruction sets that operations run on.
//!
//! Every operation borrows it as a value, so nothing about the machine is global. Invariant: neither of its
//! parts changes a result.

use tokenmill_quant::CpuFeatures;

use crate::{CpuExecError, Places, Pool};

/// A thread pool and the instruction sets to use.
#[derive(Debug)]
pub struct Host {
    pool: Pool,
    features: CpuFeatures,
}

impl Host {
    /// Starts a pool of `n_threads`, including the caller's thread. `features` is usually
    /// [`CpuFeatures::detect`]; narrow it to force a path.
    ///
    /// # Errors
    /// Returns the errors of [`Pool::new`].
    pub fn new(n_threads: usize, features: CpuFeatures) -> Result<Self, CpuExecError> {
        Self::placed(n_threads, features, &Places::default())
    }

    /// Does the same as [`Self::new`], with threads that stay on their places.
    ///
    /// # Errors
    /// Returns the errors of [`Pool::placed`].
    pub fn placed(n_threads: usize, features: CpuFeatures, places: &Places) -> Result<Self, CpuExecError> {
        Ok(Self {
            pool: Pool::placed(n_threads, places)?,
            features,
        })
    }

    /// Returns the thread pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns the instruction sets.
    pub fn features(&self) -> CpuFeatures {
        self.features
    }
}
