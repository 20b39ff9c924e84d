//! [`Seats`]: how many requests a model serves at once, and the load of one model with them.
//!
//! `batch` uses it too, and answers requests without a network. Invariant: options about seats reach the load
//! only through this file.

use std::path::Path;

use tokenmill::{LoadOptions, load::LimitFlags, sessions::PrefixFolder};
use tokenmill_server::{App, ServedModel, ServerConfig};

use crate::{
    adapters::AdapterArgs,
    companions,
    context_shift::ContextShiftArgs,
    failure::Failure,
    load::{LoadArgs, load},
    model_name::{FetchArgs, served_name, variants},
    speculation::SpeculationArgs,
    template::TemplateArgs,
    vision::VisionArgs,
};

/// How many requests a model is to serve at once.
pub(crate) struct Seats<'a> {
    /// The options that limit it.
    pub(crate) limits: LimitFlags,
    /// The most batches of prefix-cache changes that wait to be published, if they are published.
    pub(crate) max_page_event_batches: Option<usize>,
    /// The folder that keeps the KV cache of prompts, if there is one.
    pub(crate) prefix_folder: Option<PrefixFolder>,
    /// The mode of speculative decoding.
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
        options.kv_cache = LoadOptions::default().kv_cache;
        self.limits.clone().add_to(options);
        options.max_page_event_batches = self.max_page_event_batches;
        options.prefix_folder.clone_from(&self.prefix_folder);
        if let Some(context_shift) = self.context_shift {
            context_shift.add_to(options);
        }
        self.speculation.add_unresolved(options)
    }

    /// Names the option that sets the size of the KV cache where it was given and a smaller context is advised, which would change nothing.
    fn naming_tokens(&self, mut failure: Failure) -> Failure {
        if let (Some(_), Some(hint)) = (self.limits.kv_cache_tokens, &mut failure.hint) {
            *hint = hint.replace(
                "a smaller context with `-c N`",
                "fewer tokens with `--kv-cache-tokens N`",
            );
        }
        failure
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
    let wanted = companions::of_generating(vision, seats.speculation, load_args)?;
    let path = load_args.fetch.resolve_with(model, wanted)?;
    let own_name = served_name(model, &path);
    let (given, variants) = if names.is_empty() {
        (Some(model.display().to_string()), variants(model, &path))
    } else {
        (None, Vec::new())
    };
    let model = load(&path, &options).map_err(|failure| seats.naming_tokens(failure))?;
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
