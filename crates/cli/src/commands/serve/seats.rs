//! [`Seats`]: how many requests a model serves at once, and the load of one model with them.
//!
//! Separate from the server because `batch` answers requests without a network. Invariant: what is said on the command line about seats
//! reaches the load here only.

use std::path::Path;

use tokenmill::{KvCache, LoadOptions, sessions::PrefixFolder};
use tokenmill_server::{App, ServedModel, ServerConfig};

use crate::{
    adapters::AdapterArgs,
    besides,
    context_shift::ContextShiftArgs,
    failure::Failure,
    load::{LoadArgs, load},
    model_name::{FetchArgs, served_name, variants},
    numbers::count,
    speculation::SpeculationArgs,
    template::TemplateArgs,
    vision::VisionArgs,
};

/// How many requests a model is to serve at once, as it is said on the command line.
#[derive(clap::Args, Debug, Clone)]
#[command(next_help_heading = "Limits")]
pub(super) struct SeatArgs {
    /// Most sequences in one batch
    #[arg(long, alias = "parallel", default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    max_num_seqs: u16,
    /// Tokens computed in one step [default: as --ubatch-size]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_num_batched_tokens: Option<u32>,
    /// Tokens that the KV cache holds, shared by all sequences [default: four contexts, or as many as there is memory for]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    kv_cache_tokens: Option<u32>,
    /// Tokens that a second KV cache in main memory holds, to which prefixes move that found no room in the first
    /// [default: none]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    kv_host_tokens: Option<u32>,
    /// Sequences that may be queued; further requests get 429
    #[arg(long, default_value_t = 256, value_name = "N", value_parser = count)]
    max_queued_requests: usize,
    /// Prompt tokens that may wait; more are answered with 429
    #[arg(long, default_value_t = 1 << 20, value_name = "N", value_parser = count)]
    max_queued_tokens: usize,
    /// How many percent longer new prompts may make the time between two tokens of running answers, over what it is while all of
    /// these sequences decode; less lets new prompts wait longer
    #[arg(long, default_value_t = 75, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=10_000))]
    max_stall_percent: u32,
}

impl SeatArgs {
    /// The same with whether tokens are guessed ahead.
    pub(super) fn seats<'a>(
        &self,
        speculation: &'a SpeculationArgs,
        context_shift: &'a ContextShiftArgs,
    ) -> Seats<'a> {
        Seats {
            n_seqs: usize::from(self.max_num_seqs),
            max_step_tokens: self.max_num_batched_tokens.map(|n| n as usize),
            kv_tokens: self.kv_cache_tokens.map(|n| n as usize),
            host_kv_tokens: self.kv_host_tokens.map_or(0, |n| n as usize),
            max_queued: self.max_queued_requests,
            max_queued_tokens: self.max_queued_tokens,
            max_stall_percent: self.max_stall_percent,
            max_page_event_batches: None,
            prefix_folder: None,
            speculation,
            context_shift: Some(context_shift),
        }
    }

    /// Requests that may wait.
    pub(super) fn max_queued(&self) -> usize {
        self.max_queued_requests
    }
}

/// How many requests a model is to serve at once.
pub(crate) struct Seats<'a> {
    /// Most sequences in one batch.
    pub(crate) n_seqs: usize,
    /// Tokens of a step, where that is not a matter of how the model is loaded.
    pub(crate) max_step_tokens: Option<usize>,
    /// Tokens in the KV cache, where that is not four contexts.
    pub(crate) kv_tokens: Option<usize>,
    /// Tokens in the KV cache in main memory.
    pub(crate) host_kv_tokens: usize,
    /// Sequences that may wait.
    pub(crate) max_queued: usize,
    /// Prompt tokens that may wait.
    pub(crate) max_queued_tokens: usize,
    /// How much longer prompts may make steps.
    pub(crate) max_stall_percent: u32,
    /// The most batches of prefix-cache changes that wait to be published, if they are published.
    pub(crate) max_page_event_batches: Option<usize>,
    /// Where what was computed of prompts is kept, if it is.
    pub(crate) prefix_folder: Option<PrefixFolder>,
    /// Whether tokens are guessed ahead.
    pub(crate) speculation: &'a SpeculationArgs,
    /// The treatment of texts that fill their context, if it can be chosen.
    pub(crate) context_shift: Option<&'a ContextShiftArgs>,
}

impl Seats<'_> {
    /// Adds them to a load.
    ///
    /// # Errors
    /// Speculation that cannot be granted, and a draft model that cannot be had.
    pub(super) fn add_to(&self, options: &mut LoadOptions, fetch: &FetchArgs) -> Result<(), Failure> {
        self.add_unresolved(options)?;
        self.speculation.add_to(options, fetch)
    }

    /// Does the same as [`Self::add_to`], but leaves the draft model unresolved, so it may be missing.
    ///
    /// # Errors
    /// Fails on speculation that cannot be granted.
    pub(super) fn add_unresolved(&self, options: &mut LoadOptions) -> Result<(), Failure> {
        options.n_seqs = self.n_seqs;
        if let Some(max_step_tokens) = self.max_step_tokens {
            options.max_step_tokens = max_step_tokens;
            options.compute.roomy_step_tokens = None;
        }
        options.kv_cache = (self.kv_tokens).map_or(LoadOptions::default().kv_cache, KvCache::Tokens);
        options.host_kv_tokens = self.host_kv_tokens;
        options.max_queued = self.max_queued;
        options.max_queued_tokens = self.max_queued_tokens;
        options.max_stall_percent = self.max_stall_percent;
        options.max_page_event_batches = self.max_page_event_batches;
        options.prefix_folder.clone_from(&self.prefix_folder);
        if let Some(context_shift) = self.context_shift {
            context_shift.add_to(options);
        }
        self.speculation.add_unresolved(options)
    }
}

/// Loads a model and starts its engine, for all that answers requests of the API. Without `names` it is called as
/// [`served_name`] says.
///
/// # Errors
/// A model that cannot be opened or loaded, or has no usable tokenizer.
pub(crate) fn load_app(
    model: &Path,
    load_args: &LoadArgs,
    (adapters, vision, template): (&AdapterArgs, &VisionArgs, &TemplateArgs),
    seats: &Seats<'_>,
    names: &[String],
    config: ServerConfig,
) -> Result<App, Failure> {
    let mut options = load_args.options()?;
    seats.add_to(&mut options, &load_args.fetch)?;
    adapters.add_to(&mut options);
    options.projector = vision.projector();
    template.add_to(&mut options)?;
    let wanted = besides::of_generating(vision, seats.speculation, load_args)?;
    let path = load_args.fetch.resolve_with(model, wanted)?;
    let own_name = served_name(model, &path);
    let (given, variants) = if names.is_empty() {
        (Some(model.display().to_string()), variants(model, &path))
    } else {
        (None, Vec::new())
    };
    let model = load(&path, &options)?;
    if let Some(error) = model.words().template_error() {
        tracing::warn!(%error, "the model's chat template cannot be used");
    }
    let names = match names {
        [] => vec![own_name],
        names => names.to_vec(),
    };
    if let Some(name) = adapters
        .names()
        .find(|&adapter| names.iter().any(|name| name == adapter))
    {
        return Err(Failure::usage(format!(
            "`--lora {name}=...` has the name of the model"
        )));
    }
    let served = ServedModel::new(names, model)
        .given_as(given)
        .with_variants(variants);
    Ok(App::new(served, config))
}
