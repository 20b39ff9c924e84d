//! [`Host`]: where operations run, that is on which threads and with which instruction sets.
//!
//! It is a value that every operation borrows, so that nothing about the machine is global. Invariant: neither of its
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
    /// Starts a pool of `n_threads`, the caller's thread among them. `features` is usually [`CpuFeatures::detect`];
    /// narrow it to force a path.
    ///
    /// # Errors
    /// Those of [`Pool::new`].
    pub fn new(n_threads: usize, features: CpuFeatures) -> Result<Self, CpuExecError> {
        Self::placed(n_threads, features, &Places::default())
    }

    /// As [`Self::new`], with threads that keep to their places.
    ///
    /// # Errors
    /// Those of [`Pool::placed`].
    pub fn placed(n_threads: usize, features: CpuFeatures, places: &Places) -> Result<Self, CpuExecError> {
        Ok(Self {
            pool: Pool::placed(n_threads, places)?,
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
