//! [`Guesser`]: what guesses tokens next to a model, where a GPU computes both.
//!
//! Separate from the load on a GPU, which knows neither file, and from what only that load does with it (`gpu/guesser.rs`). Invariant: one
//! thing guesses for a model, or none.

use crate::{draft::Draft, mtp::Mtp};

/// The source of a model's token guesses.
#[derive(Clone, Copy)]
pub(crate) enum Guesser<'a> {
    /// Nothing that is loaded.
    Nothing,
    /// The model's own layer.
    Layer {
        /// The layer.
        mtp: &'a Mtp<'a>,
        /// Whether it has to guess, rather than where there is room.
        is_asked_for: bool,
    },
    /// A second model.
    Draft(&'a Draft),
}

impl Guesser<'_> {
    /// Whether the model is not loaded without it.
    pub(crate) fn is_asked_for(self) -> bool {
        match self {
            Self::Nothing => false,
            Self::Layer { is_asked_for, .. } => is_asked_for,
            Self::Draft(_) => true,
        }
    }
}
