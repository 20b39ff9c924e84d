//! [`Subject`]: a backend under test.
//!
//! Decoders and encoders use the same subjects. Invariant: a network plays the same scenes, whichever other networks are tried.

use tokenmill_backend::{Executor, KvType};
use tokenmill_model::ModelOptions;

use crate::{TinyModel, cases};

/// Number of random networks for a backend, unless that takes minutes.
pub const RANDOM_NETWORKS: usize = 30;

/// A backend under test.
pub struct Subject {
    /// Loads a network on the backend, with a number of threads if it has any.
    pub load: fn(n_threads: usize, model: &TinyModel, options: &ModelOptions) -> Box<dyn Executor>,
    /// Numbers of threads that must not affect results. Each is tried with other rows in the batch, so a
    /// backend without threads lists as many as the number of tries.
    pub n_threads: &'static [usize],
    /// Selects which networks with a special feature are tried.
    pub features: Features,
    /// Number of random networks, of which a slice is tried in addition.
    pub n_random_networks: usize,
    /// The largest difference that other rows of a step may make to a row.
    pub company: Company,
    /// Says whether it stores keys and values in these types; other types are skipped.
    pub stores: fn([KvType; 2]) -> bool,
}

/// Selects which networks with a special feature a subject is tried with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Features {
    /// Every one.
    All,
    /// A slice that the commit chooses ([`cases`](crate::cases)), for a subject that takes minutes for all, or that only combines or varies
    /// subjects which are tried with all.
    Slice,
}

impl Subject {
    /// Returns those networks of a list that the subject is tried with.
    pub(super) fn tried<T>(&self, list: &str, networks: impl IntoIterator<Item = T>) -> Vec<T> {
        let networks: Vec<T> = networks.into_iter().collect();
        match self.features {
            Features::All => networks,
            Features::Slice => {
                let tried: Vec<usize> = cases(list, networks.len()).collect();
                (networks.into_iter().enumerate())
                    .filter(|(index, _)| tried.contains(index))
                    .map(|(_, network)| network)
                    .collect()
            }
        }
    }
}

/// Limits the difference that other rows of a step may make to a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Company {
    /// No difference.
    Bits,
    /// At most this difference in a logit.
    Within(f32),
}
