//! Checks whether a [`Guesser`] fits on a GPU next to its model, and loads it.
//!
//! These methods have a file of their own because a build without CUDA has none of them. Invariant: an
//! optional guesser that does not fit never prevents a model from loading.

use tokenmill_backend::{MemoryPlan, Weigh, program::ProgramDevice};
use tokenmill_model::{LoadError, LoadProgress, ModelExecutor, ModelOptions};

use crate::{Error, draft_facts::LoadedGuesser, guesser::Guesser};

impl Guesser<'_> {
    /// Refuses a requested draft model or MTP layer if the GPU turns out to have only a part of the model.
    ///
    /// # Errors
    /// [`Error::DraftNotWhole`] and [`Error::MtpNotWhole`].
    pub(crate) fn check_split(self) -> Result<(), Error> {
        match self {
            Self::Draft(_) => Err(Error::DraftNotWhole),
            Self::Layer {
                is_asked_for: true, ..
            } => Err(Error::MtpNotWhole),
            Self::Nothing | Self::Layer { .. } => Ok(()),
        }
    }

    /// Returns the memory that the guesser takes on a backend, next to a model with `options`.
    ///
    /// # Errors
    /// Returns an error if something is wrong with the weights.
    pub(crate) fn plan_on(
        self,
        backend: &dyn Weigh,
        options: &ModelOptions,
    ) -> Result<Option<MemoryPlan>, Error> {
        match self {
            Self::Nothing => Ok(None),
            Self::Layer { mtp, .. } => Ok(Some(mtp.plan_apart(backend, options)?)),
            Self::Draft(draft) => draft.plan_on(backend, options).map(Some),
        }
    }

    /// Returns the guesser if it fits next to a model that takes `of_model`, else [`Self::Nothing`]. Both
    /// share `room_bytes` of a GPU's memory.
    ///
    /// # Errors
    /// [`Error::NoRoomToGuess`] if the caller asked for the guesser and it does not fit; also if something is
    /// wrong with its weights.
    pub(crate) fn fitting(
        self,
        backend: &dyn Weigh,
        options: &ModelOptions,
        of_model: &MemoryPlan,
        room_bytes: u64,
    ) -> Result<Self, Error> {
        let own = match self.plan_on(backend, options) {
            Ok(own) => own.map_or(0, |own| own.device_bytes()),
            Err(error) if self.is_asked_for() => return Err(error),
            Err(_) => return Ok(Self::Nothing),
        };
        let model_bytes = of_model.device_bytes();
        // A model that does not fit alone is refused by its own load.
        let is_too_much = model_bytes as u64 <= room_bytes && (own + model_bytes) as u64 > room_bytes;
        match is_too_much {
            false => Ok(self),
            true if self.is_asked_for() => Err(Error::NoRoomToGuess {
                needed_bytes: own,
                model_bytes,
                room_bytes,
            }),
            true => Ok(Self::Nothing),
        }
    }

    /// Loads the guesser next to its network, on a device of its own.
    ///
    /// # Errors
    /// Returns an error if the guesser cannot be loaded.
    pub(crate) fn load_on(
        self,
        device: impl FnOnce() -> Result<Box<dyn ProgramDevice>, Error>,
        options: &ModelOptions,
        network: &ModelExecutor,
        on_progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Option<LoadedGuesser>, Error> {
        match self {
            Self::Nothing => Ok(None),
            Self::Layer { mtp, is_asked_for } => {
                let loaded = device().and_then(|device| {
                    let loaded = mtp.load(device, options, network, on_progress);
                    loaded.map_err(|error| of_device(Error::Load(error)))
                });
                match loaded {
                    Ok(loaded) => Ok(Some(loaded)),
                    Err(error) if is_asked_for => Err(error),
                    Err(_) => Ok(None),
                }
            }
            Self::Draft(draft) => {
                let loaded = draft.load_on(device()?, options, on_progress);
                loaded.map(Some).map_err(of_device)
            }
        }
    }
}

/// An error of the GPU as one, where a load gives it.
fn of_device(error: Error) -> Error {
    match error {
        Error::Load(LoadError::Backend(error)) => Error::Gpu(error),
        Error::Draft { path, source } => Error::Draft {
            path,
            source: Box::new(of_device(*source)),
        },
        other => other,
    }
}
