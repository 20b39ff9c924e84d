//! [`refused`]: why a load would be refused before it reads a weight, for commands that load nothing.
//!
//! Invariant: the words are those of the load.

use tokenmill::load::{Compute, check_load};
use tokenmill_model::{Model as Network, ModelOptions};

use crate::failure::Failure;

/// Returns why a load on the requested GPUs would be refused: they cannot be used, or cannot hold this
/// network in the requested placement.
pub(crate) fn refused(network: &Network, options: &ModelOptions, compute: &Compute) -> Option<Failure> {
    let error = check_load(network, options, compute).err()?;
    Some(Failure::of_group(error, compute.n_gpus))
}
