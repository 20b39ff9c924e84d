//! [`Guesser`]: the draft model or MTP layer that a GPU computes next to its model.
//!
//! The load on a GPU knows neither file; code that only this load needs is in `gpu/guesser.rs`. Invariant: a
//! model has at most one source of drafts besides look-ups.

use crate::{draft::Draft, mtp::Mtp};

/// The draft model or MTP layer of a model.
#[derive(Clone, Copy)]
pub(crate) enum Guesser<'a> {
    /// Nothing that is loaded.
    Nothing,
    /// The model's own layer.
    Layer {
        /// The layer.
        mtp: &'a Mtp<'a>,
        /// Whether its drafts were requested; otherwise it is used if there is room.
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
