//! [`Draft`]: a draft model, from its file to its executor.
//!
//! The load of the model itself knows nothing of it. Invariant: its vocabulary matches the model's, which is
//! checked before either is loaded.

use std::path::{Path, PathBuf};

use tokenmill_backend::{Executor, MemoryPlan, NetworkShape, Weigh};
use tokenmill_model::{LoadProgress, Model as Network, ModelOptions};
use tokenmill_text::Tokenizer;

use crate::{
    Error,
    compute::Compute,
    draft_facts::{DraftFacts, LoadedGuesser, options_next_to},
    loaded::LoadedDevice,
    machine_memory::{self, available_bytes, memory_limit},
    memory_limit::MemoryLimit,
    model_source::ModelSource,
    quiet_load::load_with,
    vocabularies::difference_of,
};

/// A drafting model whose headers were read.
pub(crate) struct Draft {
    path: PathBuf,
    name: String,
    network: Network,
}

impl Draft {
    /// Opens the model at `path`, and checks that it can make drafts for a model with `tokenizer`.
    ///
    /// # Errors
    /// [`Error::Draft`] of one that cannot be opened, [`Error::DraftVocabulary`], [`Error::DraftIsEncoder`].
    pub(crate) fn open(path: &Path, tokenizer: &Tokenizer) -> Result<Self, Error> {
        let (draft, source) = Self::open_headers(path)?;
        let own = source.tokenizer_of(&draft.network);
        let own = own.map_err(|error| draft.error(error))?;
        if let Some(difference) = difference_of(tokenizer, &own) {
            return Err(Error::DraftVocabulary {
                path: path.to_owned(),
                difference,
            });
        }
        Ok(draft)
    }

    /// Returns the memory that the model at `path` will take on the CPU next to a model with `options`. Does
    /// not compare vocabularies.
    ///
    /// # Errors
    /// [`Error::Draft`] if the draft model cannot be opened, [`Error::DraftIsEncoder`].
    pub(crate) fn plan(path: &Path, options: &ModelOptions, compute: &Compute) -> Result<MemoryPlan, Error> {
        let (draft, _) = Self::open_headers(path)?;
        let backend = compute.cpu_backend().map_err(|error| draft.error(error.into()))?;
        let plan = (draft.network).plan(&backend, &draft.options_next_to(options));
        plan.map_err(|error| draft.error(error.into()))
    }

    fn open_headers(path: &Path) -> Result<(Self, ModelSource), Error> {
        let of_draft = |source| Error::Draft {
            path: path.to_owned(),
            source: Box::new(source),
        };
        let source = ModelSource::find(path).map_err(of_draft)?;
        let network = source.open_network().map_err(of_draft)?;
        if network.descriptor().is_encoder() {
            return Err(Error::DraftIsEncoder {
                path: path.to_owned(),
            });
        }
        let draft = Self {
            path: path.to_owned(),
            name: source.name(),
            network,
        };
        Ok((draft, source))
    }

    fn error(&self, source: Error) -> Error {
        Error::Draft {
            path: self.path.clone(),
            source: Box::new(source),
        }
    }

    /// Refuses a draft model if its main model cannot be on one device, as far as that is known before the load.
    ///
    /// # Errors
    /// [`Error::DraftNotWhole`].
    pub(crate) fn check_choice(compute: &Compute, of_model: &NetworkShape) -> Result<(), Error> {
        if !compute.may_be_whole(of_model) {
            return Err(Error::DraftNotWhole);
        }
        Ok(())
    }

    /// Returns the memory that the draft model takes on a backend, next to a model with `options`.
    ///
    /// # Errors
    /// [`Error::Draft`] if something is wrong with the weights.
    pub(crate) fn plan_on(&self, backend: &dyn Weigh, options: &ModelOptions) -> Result<MemoryPlan, Error> {
        let plan = self.network.plan(backend, &self.options_next_to(options));
        plan.map_err(|error| self.error(error.into()))
    }

    /// Loads it on a GPU, next to a model with `options`.
    ///
    /// # Errors
    /// [`Error::Draft`] with the reason why it does not load.
    #[cfg(feature = "cuda")]
    pub(crate) fn load_on(
        &self,
        device: Box<dyn tokenmill_backend::program::ProgramDevice>,
        options: &ModelOptions,
        on_progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<LoadedGuesser, Error> {
        let memory = self.plan_on(device.weigh(), options)?;
        let executor = (self.network).load_on(device, &self.options_next_to(options), on_progress);
        let executor = executor.map_err(|error| self.error(error.into()))?;
        Ok(self.loaded(Box::new(executor), memory))
    }

    /// Checks that it fits next to a model with `options` that takes `of_model`, before either is loaded.
    ///
    /// # Errors
    /// [`Error::DraftTooLarge`], and [`Error::Draft`] where it cannot be planned.
    pub(crate) fn check_room(
        &self,
        options: &ModelOptions,
        compute: &Compute,
        of_model: &MemoryPlan,
    ) -> Result<(), Error> {
        let backend = compute.cpu_backend().map_err(|error| self.error(error.into()))?;
        let memory = self.plan_on(&backend, options)?;
        self.check_memory(&memory, of_model, memory_limit())
    }

    /// Loads it on the CPU, next to a model with `options` on `device`, the CPU too, that takes `of_model`.
    ///
    /// # Errors
    /// [`Error::DraftNotWhole`], [`Error::DraftTooLarge`], and [`Error::Draft`] with any other reason why it does not load.
    pub(crate) fn load(
        &self,
        options: &ModelOptions,
        compute: &Compute,
        device: &LoadedDevice,
        of_model: &MemoryPlan,
        on_progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<LoadedGuesser, Error> {
        if !matches!(device, LoadedDevice::Cpu { .. } | LoadedDevice::Own) {
            return Err(Error::DraftNotWhole);
        }
        let of_draft = |source: Error| self.error(source);
        let backend = compute.cpu_backend().map_err(|error| of_draft(error.into()))?;
        let memory = self.plan_on(&backend, options)?;
        self.check_memory(&memory, of_model, memory_limit())?;
        machine_memory::check_available(&memory, available_bytes()).map_err(of_draft)?;
        let options = self.options_next_to(options);
        let executor = load_with(backend, compute, on_progress, |backend, on_progress| {
            self.network.load_on(backend, &options, on_progress)
        });
        let executor = executor.map_err(|error| of_draft(error.into()))?;
        Ok(self.loaded(Box::new(executor), memory))
    }

    fn loaded(&self, executor: Box<dyn Executor + Send>, memory: MemoryPlan) -> LoadedGuesser {
        let facts = DraftFacts {
            name: self.name.clone(),
            memory,
            n_ctx: executor.limits().n_ctx,
            is_own_layer: false,
        };
        LoadedGuesser { executor, facts }
    }

    /// The options of a load next to one with `options`.
    fn options_next_to(&self, options: &ModelOptions) -> ModelOptions {
        options_next_to(self.network.descriptor().n_ctx_train, options)
    }

    fn check_memory(
        &self,
        memory: &MemoryPlan,
        of_model: &MemoryPlan,
        limit: Option<MemoryLimit>,
    ) -> Result<(), Error> {
        let (needed_bytes, model_bytes) = (memory.total_bytes(), of_model.total_bytes());
        match limit {
            Some(limit) if needed_bytes.saturating_add(model_bytes) as u64 > limit.n_bytes() => {
                Err(Error::DraftTooLarge {
                    path: self.path.clone(),
                    needed_bytes,
                    model_bytes,
                    kv_bytes: memory.kv_bytes.saturating_add(of_model.kv_bytes),
                    limit,
                })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokenmill_backend::LayerShape;
    use tokenmill_placed::{DeviceLayers, PlacementRequest};

    use crate::Device;

    use super::*;

    #[test]
    fn what_is_asked_to_be_on_several_devices_is_refused_before_a_load() {
        let of_model = NetworkShape {
            n_embd: 64,
            layers: vec![LayerShape::default(); 4],
            has_streams: false,
            reads_hidden: false,
        };
        let is_allowed = |device, layers, n_gpus| {
            let compute = Compute {
                device,
                n_gpus,
                placement: PlacementRequest {
                    layers,
                    ..PlacementRequest::default()
                },
                ..Compute::default()
            };
            Draft::check_choice(&compute, &of_model).is_ok()
        };
        for device in [Device::Auto, Device::Cuda { ordinal: 0 }] {
            assert!(is_allowed(device, DeviceLayers::All, 1));
            assert!(is_allowed(device, DeviceLayers::Last(4), 1));
            assert!(is_allowed(device, DeviceLayers::Last(99), 1));
            // Whether all fit is known at the load.
            assert!(is_allowed(device, DeviceLayers::Auto, 1));
            assert!(!is_allowed(device, DeviceLayers::Last(3), 1));
            assert!(!is_allowed(device, DeviceLayers::All, 2));
        }
        assert!(is_allowed(Device::Cpu, DeviceLayers::All, 1));
    }
}
