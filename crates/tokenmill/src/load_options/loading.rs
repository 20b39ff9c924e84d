//! The load of a model: opens its files, puts its weights on a device, and starts its engine.
//!
//! Invariant: whatever fails before the engine starts leaves nothing running.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use tokenmill_backend::program::ProgramDevice;
use tokenmill_model::{LoadProgress, Model as Network, ModelOptions};
use tokenmill_sched::{ContextShift, Engine, EngineConfig, SharedPageStore, Speculation};

use super::{KvCache, LoadOptions};
use crate::{
    Device, Error, Model,
    adapters::Shelf,
    compute::Compute,
    device,
    draft::Draft,
    facts::ModelFacts,
    gpu::has_gpu_driver,
    guesser::Guesser,
    loaded::{Loaded, LoadedDevice},
    model_source::ModelSource,
    named::{self, Company},
    prefix_folder::ModelStore,
    session::identity_of,
    vision::{self, Projector, Vision},
    words::ModelWords,
};

impl LoadOptions {
    /// Opens and loads the model at `path`: a GGUF file, a folder with one, a Hugging Face folder, or `demo`. With the feature `hub` it may
    /// also be a name: `OWNER/REPOSITORY[:TYPE]` of the Hub or `NAME:TAG` of Ollama's registry. A named model or draft model is downloaded
    /// if it is not on this machine. An existing file or folder is never taken for a name.
    ///
    /// # Errors
    /// [`Error`]: a fault of the files, the options or the device; [`Error::NeedsHub`] for a name without the feature `hub`.
    pub fn load(&self, path: impl AsRef<Path>) -> Result<Model, Error> {
        let options = self.with_draft_here()?;
        let source = ModelSource::find(self.path_of(path.as_ref())?)?;
        options.load_opened(&source, &options.open_network(&source)?, &mut |_| {})
    }

    /// Returns the path of a model, given as a path or a name.
    fn path_of(&self, model: &Path) -> Result<PathBuf, Error> {
        let on_gpu = matches!(self.compute.device, Device::Cuda { .. });
        let company = Company {
            projector: self.projector == Projector::Beside && !on_gpu,
            nextn: self.draft.is_none() && self.mtp.is_none() && !on_gpu,
        };
        named::path_of(model, company)
    }

    /// Returns the same options with the path of a named draft model.
    fn with_draft_here(&self) -> Result<Self, Error> {
        let company = Company {
            projector: false,
            nextn: false,
        };
        let draft = self.draft.as_deref().map(|draft| named::path_of(draft, company));
        Ok(Self {
            draft: draft.transpose()?,
            ..self.clone()
        })
    }

    /// Loads a model that [`Self::open_network`] opened, and says how far it has come.
    ///
    /// # Errors
    /// Returns the errors of [`Self::load`].
    pub fn load_opened(
        &self,
        source: &ModelSource,
        network: &Network,
        on_progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Model, Error> {
        if let KvCache::Fitting(_) = self.kv_cache {
            return self.fitted(network)?.load_opened(source, network, on_progress);
        }
        if !self.adapters.is_empty() && !self.compute.may_be_whole(&network.descriptor().shape()) {
            return Err(Error::AdaptersNotWhole);
        }
        let mut words = (self.compute).work(|| self.words(source, network))?;
        let draft = self.open_draft(network, &words)?;
        let options = self.network_options(network.descriptor())?;
        self.check_context_shift(network, &options)?;
        let file = self.mtp_file(source, network, Some(words.tokenizer()))?;
        let mtp = self.mtp_of(network, file.as_ref())?;
        let guesser = match (&draft, &mtp) {
            (Some(draft), _) => {
                Draft::check_choice(&self.compute, &network.descriptor().shape())?;
                Guesser::Draft(draft)
            }
            (None, Some(mtp)) => Guesser::Layer {
                mtp,
                is_asked_for: self.asks_for_mtp(network),
            },
            (None, None) => Guesser::Nothing,
        };
        let mut load =
            |compute: &Compute| device::load_with_guesser(network, &options, compute, guesser, on_progress);
        let loaded = load(&self.compute)?;
        let needs_whole = if loaded.executor.input_row_width().is_none() {
            self.encoder_before_parts(source, network)?
        } else {
            None
        };
        let loaded = match needs_whole {
            None => loaded,
            Some(path) => {
                // Two loaded models may not fit side by side.
                drop(loaded);
                let compute = Compute {
                    device: Device::Cpu,
                    ..self.compute.clone()
                };
                Loaded {
                    device: LoadedDevice::Cpu {
                        passed_over: Some(Error::ImagesOnParts { path }),
                    },
                    ..load(&compute)?
                }
            }
        };
        let identity = (self.compute).work(|| identity(source, network, &options))?;
        let width = loaded.executor.input_row_width();
        let vision = self.vision(source, network, width, &mut words)?;
        let store = self.page_store(identity, &loaded);
        let start = Start { words, loaded, store };
        let model = self.start(source, start, draft.as_ref(), &options, on_progress)?;
        self.equip(model.with_identity(identity).with_vision(vision), network)
    }

    /// Loads the model at `path` on a device of the caller's own, made of a backend by
    /// [`Bridge`](tokenmill_backend::program::Bridge).
    ///
    /// # Errors
    /// Returns the errors of [`Self::load`].
    pub fn load_on(
        &self,
        path: impl AsRef<Path>,
        device: impl Into<Box<dyn ProgramDevice>>,
    ) -> Result<Model, Error> {
        let device = device.into();
        let source = ModelSource::find(self.path_of(path.as_ref())?)?;
        let network = self.open_network(&source)?;
        let mut words = self.words(&source, &network)?;
        let draft = self.with_draft_here()?.open_draft(&network, &words)?;
        if self.asks_for_mtp(&network) {
            return Err(Error::MtpNotWhole);
        }
        let options = self.network_options(network.descriptor())?;
        self.check_context_shift(&network, &options)?;
        let plan = network.plan(device.weigh(), &options)?;
        let loaded = Loaded {
            executor: Box::new(network.load_on(device, &options, &mut |_| {})?),
            device: LoadedDevice::Own,
            plan,
            guesser: None,
        };
        let width = loaded.executor.input_row_width();
        let vision = self.vision(&source, &network, width, &mut words)?;
        let identity = identity(&source, &network, &options)?;
        let store = self.page_store(identity, &loaded);
        let start = Start { words, loaded, store };
        let model = self.start(&source, start, draft.as_ref(), &options, &mut |_| {})?;
        self.equip(model.with_identity(identity).with_vision(vision), &network)
    }

    /// Gives a model that was started its facts and its adapters.
    fn equip(&self, model: Model, network: &Network) -> Result<Model, Error> {
        let shelf = Shelf::new(Some(network.adapter_reader()), self.max_adapters);
        let model = model.with_facts(ModelFacts::of(network)).with_shelf(shelf);
        for adapter in &self.adapters {
            model.load_adapter(adapter)?;
        }
        Ok(model)
    }

    /// Finds the image encoder because of which a GPU that could hold only a part of the model is passed over.
    ///
    /// # Errors
    /// Fails on a named encoder that is invalid.
    fn encoder_before_parts(
        &self,
        source: &ModelSource,
        network: &Network,
    ) -> Result<Option<PathBuf>, Error> {
        let is_certain = self.needs_images || matches!(self.projector, Projector::File(_));
        let has_choice = self.compute.device == Device::Auto && self.compute.n_gpus <= 1;
        if is_certain && has_choice && has_gpu_driver() {
            vision::path_of(&self.projector, source, network)
        } else {
            Ok(None)
        }
    }

    /// Opens the image encoder, and gives the words the tokens of an image.
    fn vision(
        &self,
        source: &ModelSource,
        network: &Network,
        input_row_width: Option<usize>,
        words: &mut ModelWords,
    ) -> Result<Option<Vision>, Error> {
        let vision = Vision::open(&self.projector, source, network, input_row_width, &self.compute)?;
        let Some(vision) = vision else {
            return Ok(None);
        };
        let options = self.network_options(network.descriptor())?;
        let n_ctx = options.n_ctx.unwrap_or(network.descriptor().n_ctx_train);
        match words.set_images(vision.shape(), n_ctx) {
            Ok(()) => Ok(Some(vision)),
            // An encoder that was found without being named must not keep a model from loading.
            Err(_) if self.projector == Projector::Beside => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn words(&self, source: &ModelSource, network: &Network) -> Result<ModelWords, Error> {
        let mut words = ModelWords::open(source, network)?;
        if let Some(template) = &self.chat_template {
            words.set_template(template)?;
        }
        words.set_variables(self.template_variables.clone());
        Ok(words)
    }

    /// Opens the draft model for `network`, if the network generates and the options ask for one.
    fn open_draft(&self, network: &Network, words: &ModelWords) -> Result<Option<Draft>, Error> {
        match self.draft_of(network) {
            Some(path) => Draft::open(path, words.tokenizer()).map(Some),
            None if self.draft.is_none() && matches!(self.speculation, Speculation::Draft { .. }) => {
                Err(Error::NoDraft)
            }
            _ => Ok(None),
        }
    }

    fn start(
        &self,
        source: &ModelSource,
        Start { words, loaded, store }: Start,
        draft: Option<&Draft>,
        options: &ModelOptions,
        on_progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Model, Error> {
        let Loaded {
            executor,
            device,
            plan,
            guesser,
        } = loaded;
        let config = EngineConfig {
            max_running: self.n_seqs,
            max_step_tokens: executor.limits().max_batch_tokens,
            max_page_event_batches: self.max_page_event_batches,
            speculation: self.speculation,
            context_shift: self.context_shift.map(|shift| ContextShift {
                keep: shift
                    .keep
                    .saturating_add(usize::from(words.tokenizer().adds_bos())),
            }),
            page_store: store.clone().map(|store| SharedPageStore(store)),
            ..self.engine_config()
        };
        let guesser = match (guesser, draft) {
            (None, Some(draft)) => Some(draft.load(options, &self.compute, &device, &plan, on_progress)?),
            (guesser, _) => guesser,
        };
        let (engine, facts) = match guesser {
            None => (Engine::try_start(executor, config)?, None),
            Some(guesser) => {
                let engine = Engine::try_start_with_draft(executor, guesser.executor, config)?;
                (engine, Some(guesser.facts))
            }
        };
        let model = Model::from_parts(source.name(), words, engine, device, Some(plan));
        Ok(model.with_draft(facts).with_page_store(store))
    }

    /// Where pages of the model are kept, if they are to be and its memory can be read.
    fn page_store(&self, identity: u128, loaded: &Loaded) -> Option<Arc<ModelStore>> {
        let folder = self.prefix_folder.as_ref()?;
        folder
            .store_where(identity, loaded.executor.memory_format())
            .map(Arc::new)
    }
}

/// Holds the parts that an engine starts with.
struct Start {
    words: ModelWords,
    loaded: Loaded,
    store: Option<Arc<ModelStore>>,
}

/// The number that identifies a network.
fn identity(source: &ModelSource, network: &Network, options: &ModelOptions) -> Result<u128, Error> {
    let n_ctx = options.n_ctx.unwrap_or(network.descriptor().n_ctx_train);
    identity_of(network, n_ctx).map_err(|error| Error::Read {
        path: source.name().into(),
        source: error,
    })
}
