//! The list of several models, from the command line, a folder and a file, and the way each is loaded.
//!
//! A single model, in contrast, is loaded before the server listens. Invariants: a model named on the command
//! line exists, or the program does not start; a model in a folder or a file may be missing, and then its
//! requests get the reason. Nothing is downloaded while requests wait.

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
};

use tokenmill::{
    advice::first_few,
    gpu::has_gpu,
    load::{ModelSource, Task},
    machine::{available_main_bytes, memory_limit},
    sessions::PrefixFolder,
    text::without_mark,
};
use tokenmill_server::{
    KeepAlive, Listen, ModelLimits, ModelSpec, Models, ModelsError, ServerConfig,
    models::{ModelFolder, Role},
    near_names,
};

use super::{
    Args,
    found_model::{FoundModel, NamedLoader},
    models_file::{FileModel, MAX_BYTES, ModelsFile},
    models_folder::ModelsFolder,
    of_option,
};
use crate::{
    companions,
    failure::Failure,
    model_name::{FetchArgs, served_name},
    numbers::{ByteSize, size_of},
};

/// The models besides the named ones, and the settings that all share.
#[derive(clap::Args, Debug, Clone)]
#[command(next_help_heading = "Several models")]
pub(super) struct SeveralArgs {
    /// Serve the models that a TOML file lists, each with its own settings; docs/serving.md has an example
    #[arg(long, value_name = "FILE")]
    models: Option<PathBuf>,
    /// Serve the models in a folder: GGUF files in it and in its direct subfolders, and Hugging Face folders. The
    /// server looks for new ones when a client lists models or names an unknown one
    #[arg(long, value_name = "DIR")]
    models_dir: Option<PathBuf>,
    /// Let clients of Ollama's API download models into --models-dir (`/api/pull`) and remove them (`/api/delete`)
    #[arg(long, requires = "models_dir")]
    manage_models: bool,
    /// Serve an embedding model next to the others; it answers embedding requests that name no model
    #[arg(long, value_name = "MODEL")]
    embedding_model: Option<PathBuf>,
    /// Load this model at the start and keep it loaded; NAME is its served name or the name it was given by. May be repeated
    #[arg(long, value_name = "NAME")]
    pin: Vec<String>,
    /// Memory for all models together, such as 16GiB. The least recently used model is unloaded to make room for another
    /// [default: the memory available at the start]
    #[arg(long, value_name = "SIZE")]
    memory_budget: Option<ByteSize>,
    /// Unload a model after this time without a request: 90s, 10m, 1h30m [default: only to make room for another]
    #[arg(
        long,
        visible_alias = "sleep-idle-seconds",
        value_name = "TIME",
        allow_hyphen_values = true
    )]
    idle_unload: Option<KeepAlive>,
}

impl SeveralArgs {
    /// Whether a file or a folder says which models there are.
    pub(super) fn lists_models(&self) -> bool {
        self.models.is_some() || self.models_dir.is_some()
    }

    /// Whether clients may download and remove models.
    pub(super) fn is_managed(&self) -> bool {
        self.manage_models
    }

    /// Whether models are loaded and unloaded on demand.
    pub(super) fn is_asked_for(&self, named: &[PathBuf]) -> bool {
        named.len() > 1
            || self.models.is_some()
            || self.models_dir.is_some()
            || self.embedding_model.is_some()
            || !self.pin.is_empty()
            || self.memory_budget.is_some()
            || self.idle_unload.is_some()
    }
}

/// A budget that is smaller was meant in another unit.
const SMALLEST_BUDGET: u64 = 1_000_000;

/// Puts the models of the command line together.
///
/// # Errors
/// Options that cannot be granted, a named model that is not there, a folder or a file that cannot be read.
pub(super) fn several(
    args: &Args,
    kept: Option<&PrefixFolder>,
    config: ServerConfig,
) -> Result<Models, Failure> {
    let several = &args.several;
    let n_named = args.model.len() + usize::from(several.embedding_model.is_some());
    refuse_what_is_for_one(args, n_named)?;
    let file = several.models.as_deref().map(read_file).transpose()?;
    let given_budget = several
        .memory_budget
        .or(file.as_ref().and_then(|file| file.memory_budget));
    let given_budget = given_budget.map(|size| size.0);
    if let Some(n_bytes) = given_budget.filter(|&n_bytes| n_bytes < SMALLEST_BUDGET) {
        let message = format!("a memory budget of {n_bytes} bytes is too small for any model");
        return Err(Failure::usage(message).hint("give it with a unit, such as 16GiB"));
    }
    // The budget of a machine with a GPU counts the GPU's memory too.
    if let (Some(n_bytes), Some(limit)) = (given_budget, memory_limit())
        && n_bytes > limit.n_bytes()
        && !has_gpu()
    {
        tracing::warn!(
            "the memory budget is {}, and {limit}: memory may run out before a model is unloaded",
            size_of(n_bytes)
        );
    }
    let mut found = Vec::new();
    for model in &args.model {
        found.push(named(args, kept, model)?);
    }
    if let Some(model) = &several.embedding_model {
        warn_of_text(args, model)?;
        found.push(FoundModel {
            role: Role::Embedding,
            ..named(args, kept, model)?
        });
    }
    let folder = (several.models_dir.as_deref())
        .map(|path| ModelsFolder::open(args, kept, path, given_budget))
        .transpose()?;
    if let Some(folder) = &folder {
        found.extend(folder.found()?);
    }
    tell_apart(&mut found);
    for model in &found {
        let loader = model.loader(&args.model_flags.flags.load.fetch, given_budget);
        if !model.is_preloaded {
            loader.warn_of_budget();
        } else if let Some(failure) = loader.over_budget() {
            return Err(failure);
        }
    }
    let mut specs: Vec<ModelSpec> = found
        .into_iter()
        .map(|model| spec(args, model, given_budget))
        .collect();
    let mut limits = ModelLimits {
        budget_bytes: available_main_bytes(),
        keep_alive: KeepAlive::Forever,
        max_waiting: args.model_flags.flags.limits.max_queued.unwrap_or(usize::MAX),
    };
    if let (Some(path), Some(file)) = (&several.models, &file) {
        let folder = path.parent().unwrap_or_else(|| Path::new(""));
        for model in &file.models {
            let wrong = |reason: String| {
                Failure::input(format!("{}: [models.{}]: {reason}", path.display(), model.name))
            };
            specs.push(of_file(args, kept, model, folder, given_budget).map_err(wrong)?);
        }
        limits.keep_alive = file.idle_unload.unwrap_or(limits.keep_alive);
    }
    limits.budget_bytes = given_budget.or(limits.budget_bytes);
    limits.keep_alive = several.idle_unload.unwrap_or(limits.keep_alive);
    refuse_what_is_for_one(args, specs.len())?;
    if let ([spec], [_, ..]) = (&mut specs[..], &args.served_model_name[..]) {
        spec.names.clone_from(&args.served_model_name);
        spec.given = None;
        spec.variants.clear();
    }
    for name in &several.pin {
        pin(&mut specs, name)?;
    }
    // Flags for one model do not apply to models that appear later.
    let is_for_any = args.served_model_name.is_empty()
        && args.tags.is_empty()
        && flags_of_one(args).all(|(is_given, ..)| !is_given);
    if several.manage_models && !is_for_any {
        return Err(
            Failure::usage("`--manage-models` cannot be used with options for one model")
                .hint("leave out --served-model-name, --tags, and options that name a file of one model"),
        );
    }
    if several.manage_models {
        warn_of_managers(&config);
    }
    let watched = folder.filter(|_| is_for_any);
    let watched = watched.map(|folder| -> Box<dyn ModelFolder> { Box::new(folder.knowing(&specs)) });
    let budget = limits.budget_bytes;
    if budget.is_none() {
        tracing::warn!(
            "the available memory is not known on this system: without `--memory-budget` no model is unloaded for another"
        );
    }
    let n_models = specs.len();
    let models = Models::with_folder(specs, watched, limits, config).map_err(|error| {
        let failure = Failure::usage(error.to_string());
        match error {
            ModelsError::SameName { .. } => {
                failure.hint("in a file for `--models` each model has its own name")
            }
            _ => failure,
        }
    })?;
    tracing::info!(
        models = n_models,
        memory_budget = budget.map(size_of),
        "models are loaded and unloaded on demand"
    );
    Ok(models)
}

/// Warns if others than the users of this machine may download and remove models.
fn warn_of_managers(config: &ServerConfig) {
    let is_local = match &config.listen {
        Listen::Tcp(address) => address.ip().is_loopback(),
        #[cfg(unix)]
        Listen::Unix(_) => true,
    };
    if !is_local {
        let who = if config.api_keys.is_open() {
            "every client that reaches this address"
        } else {
            "every client with a key"
        };
        tracing::warn!("{who} may download models and remove those of --models-dir");
    }
}

/// Has a model loaded at the start and stay.
///
/// # Errors
/// A name that no model has.
fn pin(specs: &mut [ModelSpec], name: &str) -> Result<(), Failure> {
    let is_called = |spec: &ModelSpec| spec.names.iter().chain(&spec.given).any(|other| other == name);
    if let Some(spec) = specs.iter_mut().find(|spec| is_called(spec)) {
        spec.is_pinned = true;
        return Ok(());
    }
    let names: Vec<String> = specs.iter().flat_map(|spec| spec.names.clone()).collect();
    let near = near_names(name, names.iter().map(String::as_str));
    let hint = match &near[..] {
        [] => format!("the models are {}", first_few(&names)),
        near => format!("near it: `{}`", near.join("`, `")),
    };
    Err(Failure::usage(format!("`--pin {name}`: no model has this name")).hint(hint))
}

/// Warns where a model that is to make embeddings was made for text.
fn warn_of_text(args: &Args, model: &Path) -> Result<(), Failure> {
    let path = args.model_flags.flags.load.fetch.resolve(model)?;
    let network = ModelSource::find(path)?.open_network()?;
    if Task::of(&network) == Task::Text {
        tracing::warn!(
            "`--embedding-model {}` generates text: it was not trained for embeddings",
            model.display()
        );
    }
    Ok(())
}

/// Refuses options that say something of one model where there are several.
fn refuse_what_is_for_one(args: &Args, n_models: usize) -> Result<(), Failure> {
    let names = (
        !args.served_model_name.is_empty(),
        "--served-model-name",
        "`alias` in a file for `--models` gives names",
    );
    let tags = (!args.tags.is_empty(), "--tags", "several models have no tags");
    let of_one = [names, tags].into_iter().chain(flags_of_one(args));
    let events = (
        args.kv_events().is_some(),
        "--kv-events-config",
        "a server with these events serves one model that stays loaded",
    );
    let mut refused = of_one.filter(|_| n_models > 1).chain([events]);
    match refused.find(|(is_given, ..)| *is_given) {
        Some((_, flag, hint)) => {
            Err(Failure::usage(format!("`{flag}` is for a server of one model")).hint(hint))
        }
        None => Ok(()),
    }
}

/// Options that name a file of one model: whether each is given, and the replacement.
fn flags_of_one(args: &Args) -> impl Iterator<Item = (bool, &'static str, &'static str)> + use<> {
    let flags = &args.model_flags.flags;
    let of_one = [
        (
            flags.adapters.names().next().is_some(),
            "--lora",
            "`lora` in a file for `--models` assigns an adapter to a model",
        ),
        (
            flags.vision.names_file(),
            "--mmproj",
            "`mmproj` in a file for `--models` assigns an encoder to a model",
        ),
        (
            flags.speculation.names_draft(),
            "--draft",
            "`draft` in a file for `--models` assigns a draft model to a model",
        ),
        (
            flags.speculation.names_mtp(),
            "--mtp",
            "`mtp` in a file for `--models` assigns an MTP layer to a model",
        ),
    ];
    of_one.into_iter()
}

/// A model of the command line, which is there.
fn named(args: &Args, kept: Option<&PrefixFolder>, model: &Path) -> Result<FoundModel, Failure> {
    let flags = &args.model_flags.flags;
    let wanted = companions::of_generating(&flags.vision, &flags.speculation, &flags.load)?;
    let path = flags.load.fetch.resolve_with(model, wanted)?;
    ModelSource::find(&path)?.check()?;
    // A model named on the command line must exist, and so must its draft model.
    let mut options = flags.load_options()?;
    options.prefix_folder = kept.cloned();
    Ok(FoundModel {
        name: served_name(model, &path),
        given: model.to_owned(),
        path,
        options,
        role: Role::Chat,
        is_preloaded: true,
        is_of_folder: false,
    })
}

/// Puts the folder above before the names of files and folders that are called alike.
fn tell_apart(models: &mut [FoundModel]) {
    let names: Vec<String> = models.iter().map(|model| model.name.clone()).collect();
    let is_shared = |name: &String| names.iter().filter(|other| *other == name).count() > 1;
    for model in models.iter_mut().filter(|model| is_shared(&model.name)) {
        let folder = model.given.parent().and_then(Path::file_name);
        if let (Some(folder), false) = (folder, FetchArgs::is_name(&model.given)) {
            model.name = format!("{}/{}", folder.to_string_lossy(), model.name);
        }
    }
}

fn spec(args: &Args, model: FoundModel, budget: Option<u64>) -> ModelSpec {
    let flags = &args.model_flags.flags;
    let mut spec = model.spec(&flags.load.fetch, budget);
    spec.adapters = flags.adapters.names().map(str::to_owned).collect();
    spec
}

/// A model of a file. Paths in it are relative to its folder.
fn of_file(
    args: &Args,
    kept: Option<&PrefixFolder>,
    model: &FileModel,
    folder: &Path,
    budget: Option<u64>,
) -> Result<ModelSpec, String> {
    let flags = args.model_flags.with_file(&model.settings, folder)?;
    let path = FetchArgs::below(folder, Path::new(&model.model));
    let mut options = flags.unresolved_options().map_err(|failure| failure.line())?;
    options.prefix_folder = kept.cloned();
    let fetch = flags.load.fetch.clone();
    let loader = NamedLoader::new(model.name.clone(), path, fetch, options, budget);
    // A pinned model is loaded at the start, and its load says the same.
    if !model.is_pinned {
        loader.warn_of_budget();
    }
    let mut spec = ModelSpec::new(model.name.clone(), loader);
    spec.names.extend(model.alias.iter().cloned());
    spec.adapters = flags.adapters.names().map(str::to_owned).collect();
    spec.is_pinned = model.is_pinned;
    spec.keep_alive = model.idle_unload;
    if model.is_embedding {
        spec.role = Role::Embedding;
    }
    Ok(spec)
}

fn read_file(path: &Path) -> Result<ModelsFile, Failure> {
    let unreadable = |error| of_option("--models", Failure::unreadable(path, &error));
    let mut text = String::new();
    let file = fs::File::open(path).map_err(unreadable)?;
    file.take(MAX_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(unreadable)?;
    if text.len() as u64 > MAX_BYTES {
        let message = format!("{} is longer than {MAX_BYTES} bytes", path.display());
        return Err(Failure::input(message).hint("`--models` takes a TOML file that lists models"));
    }
    ModelsFile::parse(without_mark(&text)).map_err(|reason| {
        Failure::input(format!("{}: {reason}", path.display())).hint("docs/serving.md has an example")
    })
}
