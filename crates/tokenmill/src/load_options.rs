//! [`LoadOptions`]: how a model is loaded. The load itself is in `loading`.
//!
//! All choices that are made before a model runs. Invariant: every field has an effect, and an option that
//! cannot be granted is an error that names it.

#[macro_use]
pub(crate) mod option;
pub(crate) mod load_flags;
mod loading;

use std::{
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};
use tokenmill_backend::{KvType, MemoryPlan, PAGE_TOKENS, program::Fusion};
use tokenmill_convert::Preset;
use tokenmill_model::{ControlVector, Descriptor, Model as Network, ModelOptions, WindowPages};
use tokenmill_sched::{ContextShift, EngineConfig, Speculation};

use crate::{
    Device, Error, Model,
    adapters::{AdapterSource, DEFAULT_MAX_ADAPTERS},
    compute::Compute,
    draft::Draft,
    load_options::option::{EngineOption, Look, OptionGroup, count, number, parsed, positive, value},
    machine_memory::bytes_of,
    model_source::ModelSource,
    prefix_folder::PrefixFolder,
    quantized,
    vision::{self, Projector},
};

/// The context where nothing else is said, unless the model was made for less.
const DEFAULT_CTX: usize = 4096;

/// The largest number of tokens that an option takes.
const MOST: i64 = u32::MAX as i64;

/// Full contexts that the KV cache holds by default if memory allows.
const DEFAULT_CONTEXTS: usize = 4;

/// The size of a KV cache. A sequence takes as many places as it has tokens, in pages of 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvCache {
    /// As many full contexts.
    Contexts(usize),
    /// At most this many full contexts, fewer if memory is short, and at least one ([`LoadOptions::fitted`]).
    Fitting(usize),
    /// As many tokens, at least one context.
    Tokens(usize),
}

load_options! {
    /// Selects how a model is loaded. The fields can be set, and methods set the most used of them in a chain.
    pub struct LoadOptions {
        /// Tokens of a context; `None` takes 4096, or the model's own length if that is less, and 0 the model's own length.
        n_ctx: Option<usize> = None,
        /// Sequences computed side by side.
        n_seqs: usize = ModelOptions::default().max_batch_seqs,
        /// Capacity of the KV cache for all sequences together.
        kv_cache: KvCache = KvCache::Fitting(DEFAULT_CONTEXTS),
        /// Tokens of the host tier, to which the KV cache of a GPU overflows.
        host_kv_tokens: usize = 0,
        /// Tokens computed in one step; on a GPU with room for more, those of [`Compute::roomy_step_tokens`] where there are more.
        max_step_tokens: usize = ModelOptions::default().max_batch_tokens,
        /// Rows of logits that one step computes; `None` takes one for each sequence, and those that drafts may need.
        max_logit_rows: Option<usize> = None,
        /// Type of the keys in the KV cache.
        kv_type: KvType = ModelOptions::default().kv_type,
        /// Type of the values in the KV cache, where it differs from that of the keys.
        kv_value_type: Option<KvType> = ModelOptions::default().kv_value_type,
        /// Devices that compute.
        compute: Compute = Compute::default(),
        /// Batches of changes of the prefix cache that wait for their reader, who takes them from the engine; `None` makes none.
        max_page_event_batches: Option<usize> = None,
        /// A chat template in the place of the model's own.
        chat_template: Option<String> = None,
        /// Template variables for conversations that do not set them
        /// ([`ModelWords::set_variables`](crate::text::ModelWords::set_variables)).
        template_variables: Map<String, Value> = Map::new(),
        /// Preset to which the weights of a Hugging Face folder are quantized while they load; `None` loads them unchanged.
        quantize: Option<Preset> = None,
        /// Whether tokens are drafted. The generated tokens are the same.
        speculation: Speculation = Speculation::Auto { max_draft: Speculation::DEFAULT_MAX_DRAFT },
        /// A draft model, with the same vocabulary: a path as [`Self::load`] takes it. Its weights load as they are.
        draft: Option<PathBuf> = None,
        /// A GGUF file with the model's MTP layer. `None` takes the layer in the model's own file, or else a file next to it
        /// whose name begins with `mtp-` or `nextn-`, if it fits.
        mtp: Option<PathBuf> = None,
        /// How texts continue that fill their context; `None` ends them. The token that begins a text is kept besides
        /// [`ContextShift::keep`]; texts without a limit of their own then continue until the model ends them.
        context_shift: Option<ContextShift> = None,
        /// Adapters to load with the model.
        adapters: Vec<AdapterSource> = Vec::new(),
        /// Adapters that the model may have at a time.
        max_adapters: usize = DEFAULT_MAX_ADAPTERS,
        /// Control vectors to add to the stream, files as llama.cpp's `cvector-generator` writes them, each with its scale.
        control_vectors: Vec<(PathBuf, f32)> = Vec::new(),
        /// The layers after which they are added, counted from 0; `None` takes all that they have.
        control_layers: Option<RangeInclusive<usize>> = None,
        /// Where the image encoder is.
        projector: Projector = Projector::default(),
        /// Whether images are expected, as they are if an encoder file is named. [`Device::Auto`] is then the CPU if there is an encoder and a
        /// GPU could hold only a part of the model, since a divided model takes no images.
        needs_images: bool = false,
        /// The folder that keeps the KV cache of prompts for later starts.
        prefix_folder: Option<PrefixFolder> = None,
    }

    /// Holds the given options about the number of requests that a model serves at once.
    LimitFlags "Limits" {
        /// Most sequences in one batch
        max_num_seqs "max-num-seqs": usize { alias: Some("parallel"), default: Some("16") } = number(1, 65_535), positive
            => |options, n| options.n_seqs = n;
        /// Tokens computed in one step [default: as --ubatch-size]
        max_num_batched_tokens "max-num-batched-tokens": usize = number(1, MOST), positive => |options, n| {
            options.max_step_tokens = n;
            options.compute.roomy_step_tokens = None;
        };
        /// Tokens that the KV cache holds, shared by all sequences [default: four contexts, or as many tokens as fit into memory]
        kv_cache_tokens "kv-cache-tokens": usize {
            hints: &[("kv-tokens", "--kv-cache-tokens", "`LoadOptions::kv_cache`")]
        } = number(1, MOST), positive => |options, n| options.kv_cache = KvCache::Tokens(n);
        /// Tokens that a second KV cache in main memory holds, for prefixes that no longer fit into the first
        /// [default: none]
        kv_host_tokens "kv-host-tokens": usize = number(1, MOST), positive => |options, n| options.host_kv_tokens = n;
    }
    engine {
        /// Sequences that may be queued; further requests get 429
        max_queued "max-queued-requests": usize as usize { default: Some("256") } = value("N"), count;
        /// Prompt tokens that may be queued; further requests get 429
        max_queued_tokens "max-queued-tokens": usize as usize { default: Some("1048576") } = value("N"), count;
        /// Percentage by which new prompts may lengthen the time between tokens of running answers, compared with steps that only
        /// decode; a lower value makes new prompts wait longer
        max_stall_percent "max-stall-percent": u32 as u32 { default: Some("75") } = number(0, 10_000), parsed;
        /// Steps in flight: with 2, a step is planned and submitted while the one before it runs, which wastes one row where a text ends
        /// [default: 2 where a GPU computes, else 1]
        steps_in_flight "steps-in-flight": usize as Option<usize> {
            value: Some("1|2"),
            elsewhere: &[("vLLM", &["--async-scheduling", "--no-async-scheduling"],
                "`--steps-in-flight 2` of `serve` plans a step while the one before it runs, and 1 does not")]
        } = number(1, 2).advanced(), positive;
    }
}

impl LoadOptions {
    /// Sets the tokens of a context; 0 takes the model's own length.
    #[must_use]
    pub fn context(mut self, n_ctx: usize) -> Self {
        self.n_ctx = Some(n_ctx);
        self
    }

    /// Sets the sequences that are computed side by side.
    #[must_use]
    pub fn sequences(mut self, n_seqs: usize) -> Self {
        self.n_seqs = n_seqs;
        self
    }

    /// Sets the device.
    #[must_use]
    pub fn device(mut self, device: Device) -> Self {
        self.compute.device = device;
        self
    }

    /// Sets the threads of the CPU.
    #[must_use]
    pub fn threads(mut self, n_threads: usize) -> Self {
        self.compute.n_threads = Some(n_threads);
        self
    }

    /// Sets a template variable for conversations that do not set it, such as `enable_thinking`.
    #[must_use]
    pub fn template_variable(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.template_variables.insert(name.into(), value.into());
        self
    }

    /// Sets a chat template in the place of the model's own.
    #[must_use]
    pub fn chat_template(mut self, template: impl Into<String>) -> Self {
        self.chat_template = Some(template.into());
        self
    }

    /// Sets the type to which the weights of a Hugging Face folder are quantized while they load.
    #[must_use]
    pub fn quantize(mut self, preset: Preset) -> Self {
        self.quantize = Some(preset);
        self
    }

    /// Opens the network of a source, to load it with these options; only headers are read.
    ///
    /// # Errors
    /// Returns the errors of [`ModelSource::open_network`], [`Error::QuantizesFile`], [`Error::NeedsImportance`], and [`Error::Load`] of a
    /// control vector.
    pub fn open_network(&self, source: &ModelSource) -> Result<Network, Error> {
        let mut network = source.open_network()?;
        if let Some(preset) = self.quantize {
            quantized::quantize(&mut network, source, preset)?;
        }
        let layers = self.control_layers.clone().unwrap_or(0..=usize::MAX);
        for (path, scale) in &self.control_vectors {
            network.add_control_vector(&ControlVector::open(path)?, *scale, &layers)?;
        }
        Ok(network)
    }

    /// Sets the mode of speculative decoding.
    #[must_use]
    pub fn speculation(mut self, speculation: Speculation) -> Self {
        self.speculation = speculation;
        self
    }

    /// Sets a draft model.
    #[must_use]
    pub fn draft(mut self, path: impl Into<PathBuf>) -> Self {
        self.draft = Some(path.into());
        self
    }

    /// Sets the file of the model's MTP layer.
    #[must_use]
    pub fn mtp(mut self, path: impl Into<PathBuf>) -> Self {
        self.mtp = Some(path.into());
        self
    }

    /// Sets the file of the image encoder.
    #[must_use]
    pub fn projector(mut self, path: impl Into<PathBuf>) -> Self {
        self.projector = Projector::File(path.into());
        self
    }

    /// Sets the folder that keeps the KV cache of prompts.
    #[must_use]
    pub fn prefix_folder(mut self, folder: PrefixFolder) -> Self {
        self.prefix_folder = Some(folder);
        self
    }

    /// Adds an adapter to load with the model.
    #[must_use]
    pub fn adapter(mut self, adapter: AdapterSource) -> Self {
        self.adapters.push(adapter);
        self
    }

    /// Plans the CPU memory of an opened network with these options; only headers are read. A GPU holds weights in other forms, and needs
    /// about as much.
    ///
    /// # Errors
    /// Fails if a load would fail on the weights or the options.
    pub fn plan(&self, network: &Network) -> Result<MemoryPlan, Error> {
        let options = self.network_options(network.descriptor())?;
        // One thread is enough to ask, but a workspace has room for each thread that computes.
        let backend = self.compute.cpu_backend()?;
        Ok(network.plan(&backend, &options)?)
    }

    /// Bytes that a load of an opened network takes on the CPU with these options: its plan, and those of its draft model or MTP layer
    /// and of its image encoder, which may be loaded later; only headers are read.
    ///
    /// # Errors
    /// Returns the errors of [`Self::plan`], and those of the other two.
    pub fn needed_bytes(&self, source: &ModelSource, network: &Network) -> Result<u64, Error> {
        if let KvCache::Fitting(_) = self.kv_cache {
            return self.fitted(network)?.needed_bytes(source, network);
        }
        let mut plans = vec![self.plan(network)?];
        if let Some(path) = self.draft_of(network) {
            let options = self.network_options(network.descriptor())?;
            plans.push(Draft::plan(path, &options, &self.compute)?);
        } else {
            let options = self.network_options(network.descriptor())?;
            let file = self.mtp_file(source, network, None)?;
            let mtp = self.fitting_mtp_of(network, file.as_ref(), &options)?;
            plans.extend(mtp.map(|mtp| mtp.plan(&options, &self.compute)).transpose()?);
        }
        plans.extend(vision::plan(&self.projector, source, network, &self.compute)?);
        Ok(bytes_of(&plans))
    }

    /// Whether a load of an opened network has an image encoder, as far as headers say. A divided model takes no images; whether
    /// [`Device::Auto`] divides the model is known once it is loaded: [`Model::sees`].
    ///
    /// # Errors
    /// Fails on a named encoder that is invalid.
    pub fn sees(&self, source: &ModelSource, network: &Network) -> Result<bool, Error> {
        let shape = network.descriptor().shape();
        let is_divided = matches!(self.compute.device, Device::Cuda { .. })
            && !self.compute.placement.may_be_all_on_device(&shape);
        Ok(!is_divided && vision::is_there(&self.projector, source, network)?)
    }

    /// Checks that the texts of a network can continue where their context is full, if they are to.
    fn check_context_shift(&self, network: &Network, options: &ModelOptions) -> Result<(), Error> {
        let Some(ContextShift { keep }) = self.context_shift else {
            return Ok(());
        };
        if network.descriptor().is_encoder() {
            return Err(Error::NothingToShift);
        }
        let n_ctx = options.n_ctx.unwrap_or(network.descriptor().n_ctx_train);
        let maximum = ContextShift::max_keep(n_ctx).saturating_sub(1);
        // All of the prompt is a choice of its own.
        if keep > maximum && keep != usize::MAX {
            return Err(Error::KeepTooLong { keep, maximum, n_ctx });
        }
        Ok(())
    }

    /// Returns the network's options. An encoder gets no larger context than it was trained for: it computes a text in one
    /// step, and text beyond its context has no meaning to it.
    ///
    /// # Errors
    /// [`Error::KvCacheTooSmall`].
    pub fn network_options(&self, descriptor: &Descriptor) -> Result<ModelOptions, Error> {
        let n_ctx_train = descriptor.n_ctx_train;
        let n_ctx = match self.n_ctx {
            None => n_ctx_train.min(DEFAULT_CTX),
            Some(0) => n_ctx_train,
            Some(n_ctx) if descriptor.is_encoder() => n_ctx.min(n_ctx_train),
            Some(n_ctx) => n_ctx,
        };
        let kv_tokens = match self.kv_cache {
            KvCache::Contexts(n) | KvCache::Fitting(n) => n_ctx
                .div_ceil(PAGE_TOKENS)
                .saturating_mul(n)
                .saturating_mul(PAGE_TOKENS),
            KvCache::Tokens(n) => n,
        };
        if kv_tokens < n_ctx {
            return Err(Error::KvCacheTooSmall { kv_tokens, n_ctx });
        }
        Ok(ModelOptions {
            n_ctx: Some(n_ctx),
            max_batch_tokens: self.max_step_tokens.max(self.n_seqs),
            max_batch_seqs: self.n_seqs,
            max_logit_rows: (self.max_logit_rows)
                .unwrap_or_else(|| self.n_seqs + self.speculation.draft_rows(self.n_seqs)),
            n_pages: Some(kv_tokens.div_ceil(PAGE_TOKENS)),
            n_host_pages: self.host_kv_tokens.div_ceil(PAGE_TOKENS),
            window_pages: WindowPages::Own,
            n_states: None,
            kv_type: self.kv_type,
            kv_value_type: self.kv_value_type,
            adapter_bytes: self.adapters.iter().map(AdapterSource::file_bytes).sum(),
            fusion: Fusion::All,
        })
    }

    /// The draft model of `network`, if the network generates and the options ask for one.
    pub(crate) fn draft_of(&self, network: &Network) -> Option<&Path> {
        let guesses = self.speculation.asks_model() && !network.descriptor().is_encoder();
        self.draft.as_deref().filter(|_| guesses)
    }
}

impl Model {
    /// Opens and loads a model with the default options: a GGUF file, a folder with one, a Hugging Face folder, `demo`, or, with the
    /// feature `hub`, a name as in [`LoadOptions::load`].
    ///
    /// # Errors
    /// [`Error`]: a fault of the files or the device; [`Error::NeedsHub`] for a name without the feature `hub`.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::options().load(path)
    }

    /// The options of a load, to change before [`LoadOptions::load`].
    pub fn options() -> LoadOptions {
        LoadOptions::default()
    }
}
