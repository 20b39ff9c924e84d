//! [`Subject`]: a backend under test.
//!
//! Separate because decoders and encoders are tried on the same subjects. Invariant: every subject is tried with every network.

use tokenmill_backend::{Executor, KvType};
use tokenmill_model::ModelOptions;

use crate::TinyModel;

/// Random networks that a backend is tried with, if that does not take minutes.
pub const RANDOM_NETWORKS: usize = 30;

/// A backend under test.
pub struct Subject {
    /// Loads a network on the backend, with a number of threads where it has any.
    pub load: fn(n_threads: usize, model: &TinyModel, options: &ModelOptions) -> Box<dyn Executor>,
    /// Numbers of threads that nothing depends on. Each is tried with another company, so a backend without threads lists as many as it is to be tried.
    pub n_threads: &'static [usize],
    /// Random networks that are tried besides the named ones.
    pub n_random_networks: usize,
    /// What a row may differ by, depending on the other rows of its step.
    pub company: Company,
    /// Whether it stores keys and values in these types; what it does not is left out.
    pub stores: fn([KvType; 2]) -> bool,
}

/// What a row may differ by, depending on the other rows of its step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Company {
    /// Nothing.
    Bits,
    /// This much in a logit.
    Within(f32),
}
