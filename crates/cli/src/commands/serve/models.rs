//! Several models: which there are, by the command line, a folder and a file, and how each is loaded.
//!
//! Separate from the server of one model, which is loaded before it listens. Invariants: what is named on the command line is there, or
//! the program does not start; what a folder or a file lists may be missing, and then its requests are told why. Nothing is downloaded
//! while requests wait.

use std::{
    fs,
    io::Read as _,
    path::{MAIN_SEPARATOR, Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokenmill::{
    LoadOptions, Model, ModelSource, PrefixFolder, Task, available_main_bytes, hub::is_model_file_name,
};
use tokenmill_server::{
    KeepAlive, ModelLimits, ModelLoader, ModelSpec, Models, ServerConfig,
    models::{FileLoader, Measured, Role},
};

use super::{
    Args,
    models_file::{FileModel, MAX_BYTES, ModelsFile},
};
use crate::{
    failure::Failure,
    load::{about_cut_context, about_long_context},
    model_name::{FetchArgs, part_of, served_name},
    numbers::{ByteSize, size_of},
    output,
};

/// Which models there are besides the ones that are named, and what all share.
#[derive(clap::Args, Debug, Clone)]
#[command(next_help_heading = "Several models")]
pub(super) struct SeveralArgs {
    /// Serve the models of a TOML file, each with settings of its own; docs/serving.md has an example
    #[arg(long, value_name = "FILE")]
    models: Option<PathBuf>,
    /// Serve the models in a folder: the GGUF files in it, and those of the folders in it
    #[arg(long, value_name = "DIR")]
    models_dir: Option<PathBuf>,
    /// Serve a model that makes embeddings next to the others; requests for embeddings that name no model are for it
    #[arg(long, value_name = "MODEL")]
    embedding_model: Option<PathBuf>,
    /// Memory that all models together may take, such as 16GiB. The one that was used longest ago is unloaded for another
    /// [default: what is available at the start]
    #[arg(long, value_name = "SIZE")]
    memory_budget: Option<ByteSize>,
    /// Unload a model that no request has used for so long: 90s, 10m, 1h30m [default: only for another]
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

    /// Whether models are to come and go.
    pub(super) fn is_asked_for(&self, named: &[PathBuf]) -> bool {
        named.len() > 1
            || self.models.is_some()
            || self.models_dir.is_some()
            || self.embedding_model.is_some()
            || self.memory_budget.is_some()
            || self.idle_unload.is_some()
    }
}

/// A budget that is smaller was meant in another unit.
const SMALLEST_BUDGET: u64 = 1_000_000;

/// Loads what stands for MODEL, if it is on this machine.
#[derive(Debug)]
struct NamedLoader {
    /// What the log calls it.
    name: String,
    model: PathBuf,
    fetch: FetchArgs,
    options: LoadOptions,
    /// What the log says of it already: each is said once, until something else is.
    said: Mutex<Option<String>>,
}

impl NamedLoader {
    fn new(name: String, model: PathBuf, fetch: FetchArgs, options: LoadOptions) -> Self {
        Self {
            name,
            model,
            fetch,
            options,
            said: Mutex::new(None),
        }
    }

    fn said(&self) -> MutexGuard<'_, Option<String>> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Warns the operator, unless that was the last thing that was said.
    fn warn(&self, warning: String) {
        let mut said = self.said();
        if said.as_ref() != Some(&warning) {
            tracing::warn!(model = self.name, "{warning}");
            *said = Some(warning);
        }
    }
}

impl NamedLoader {
    fn file(&self) -> Result<FileLoader, Failure> {
        let mut options = self.options.clone();
        if let Some(draft) = &mut options.draft {
            *draft = self.fetch.stored(draft)?;
        }
        Ok(FileLoader {
            path: self.fetch.stored(&self.model)?,
            options,
        })
    }
}

impl NamedLoader {
    /// Why it cannot be loaded, for clients: without hints for the operator and without the folders of this machine, which are in the log.
    fn reason(&self, failure: &Failure) -> String {
        let line = failure.line();
        self.warn(format!(
            "cannot be loaded: {}",
            line.strip_prefix("error: ").unwrap_or(&line)
        ));
        let named = (self.model.clone(), self.options.clone());
        let (model, options) = self.file().map_or(named, |file| (file.path, file.options));
        let mut paths = output::files_of(&options);
        paths.push(model);
        without_folders(failure.message_line(), &paths)
    }
}

/// A text in which paths are their last part alone.
fn without_folders(text: String, paths: &[PathBuf]) -> String {
    let folders = paths.iter().filter_map(|path| path.parent());
    let folders = folders.filter(|folder| folder.components().next().is_some());
    folders.fold(text, |text, folder| {
        text.replace(&format!("{}{MAIN_SEPARATOR}", folder.display()), "")
    })
}

impl ModelLoader for NamedLoader {
    fn measure(&self) -> Result<Measured, String> {
        let measured = self.file().and_then(|file| Ok(file.try_measure()?));
        measured.map_err(|failure| self.reason(&failure))
    }

    fn load(&self, is_quiet: bool) -> Result<Model, String> {
        let loaded = self.file().and_then(|file| Ok(file.try_load(is_quiet)?));
        let model = loaded.map_err(|failure| self.reason(&failure))?;
        let warnings = warnings_of(&model, self.options.n_ctx);
        if warnings.is_empty() {
            // What failed before, and fails again, is said again.
            *self.said() = None;
        } else {
            self.warn(warnings.join("; "));
        }
        Ok(model)
    }
}

/// What an operator is told of a model that was loaded, for which a context of `asked` tokens was given.
fn warnings_of(model: &Model, asked: Option<usize>) -> Vec<String> {
    let cut = about_cut_context(asked, model.n_ctx());
    let n_ctx_train = model.facts().map(|facts| facts.n_ctx_train);
    let long = n_ctx_train.and_then(|n_ctx_train| about_long_context(model.n_ctx(), n_ctx_train));
    let template = model.words().template_error();
    let template = template.map(|error| format!("its chat template cannot be used: {error}"));
    cut.into_iter().chain(long).chain(template).collect()
}

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
    if let Some(folder) = &several.models_dir {
        for path in models_in(folder)? {
            let mut options = args.model_flags.flags.unresolved_options()?;
            options.prefix_folder = kept.cloned();
            found.push(FoundModel {
                name: served_name(&path, &path),
                given: path.clone(),
                path,
                options,
                role: Role::Chat,
                is_preloaded: false,
            });
        }
    }
    tell_apart(&mut found);
    let mut specs: Vec<ModelSpec> = found.into_iter().map(|model| spec(args, model)).collect();
    let mut limits = ModelLimits {
        budget_bytes: available_main_bytes(),
        keep_alive: KeepAlive::Forever,
        max_waiting: args.model_flags.flags.seat_args.max_queued(),
    };
    if let Some(path) = &several.models {
        let file = read_file(path)?;
        let folder = path.parent().unwrap_or_else(|| Path::new(""));
        for model in &file.models {
            let wrong = |reason: String| {
                Failure::input(format!("{}: [models.{}]: {reason}", path.display(), model.name))
            };
            specs.push(of_file(args, kept, model, folder).map_err(wrong)?);
        }
        limits.budget_bytes = file.memory_budget.map(|size| size.0).or(limits.budget_bytes);
        limits.keep_alive = file.idle_unload.unwrap_or(limits.keep_alive);
    }
    limits.budget_bytes = several.memory_budget.map(|size| size.0).or(limits.budget_bytes);
    limits.keep_alive = several.idle_unload.unwrap_or(limits.keep_alive);
    refuse_what_is_for_one(args, specs.len())?;
    if let ([spec], [_, ..]) = (&mut specs[..], &args.served_model_name[..]) {
        spec.names.clone_from(&args.served_model_name);
        spec.given = None;
    }
    let budget = limits.budget_bytes;
    if let Some(n_bytes) = budget.filter(|&n_bytes| n_bytes < SMALLEST_BUDGET) {
        return Err(Failure::usage(format!(
            "a memory budget of {n_bytes} bytes has room for no model"
        ))
        .hint("say it with its unit, such as 16GiB"));
    }
    if budget.is_none() {
        tracing::warn!(
            "how much memory is available is not known here: without `--memory-budget` no model is unloaded for another"
        );
    }
    let n_models = specs.len();
    let models = Models::new(specs, limits, config).map_err(|error| {
        Failure::usage(error.to_string()).hint("in a file for `--models` each has a name of its own")
    })?;
    tracing::info!(
        models = n_models,
        memory_budget = budget.map(size_of),
        "models come and go"
    );
    Ok(models)
}

/// Warns where a model that is to make embeddings was made for text.
fn warn_of_text(args: &Args, model: &Path) -> Result<(), Failure> {
    let path = args.model_flags.flags.load.fetch.resolve(model)?;
    let network = ModelSource::find(path)?.open_network()?;
    if Task::of(&network) == Task::Text {
        tracing::warn!(
            "`--embedding-model {}` continues texts: its embeddings are what it computes of a text, which it was not trained for",
            model.display()
        );
    }
    Ok(())
}

/// Refuses options that say something of one model where there are several.
fn refuse_what_is_for_one(args: &Args, n_models: usize) -> Result<(), Failure> {
    let several = n_models > 1;
    let flags = &args.model_flags.flags;
    let for_one = [
        (
            several && !args.served_model_name.is_empty(),
            "--served-model-name",
            "`alias` in a file for `--models` gives names",
        ),
        (
            several && flags.adapters.names().next().is_some(),
            "--lora",
            "`lora` in a file for `--models` says whose adapter it is",
        ),
        (
            several && flags.vision.names_file(),
            "--mmproj",
            "`mmproj` in a file for `--models` says whose encoder it is",
        ),
        (
            several && flags.speculation.names_draft(),
            "--draft",
            "`draft` in a file for `--models` says whose draft model it is",
        ),
        (
            args.kv_events().is_some(),
            "--kv-events-config",
            "a server with these events serves one model that stays loaded",
        ),
    ];
    match for_one.into_iter().find(|(is_given, ..)| *is_given) {
        Some((_, flag, hint)) => {
            Err(Failure::usage(format!("`{flag}` is for a server of one model")).hint(hint))
        }
        None => Ok(()),
    }
}

/// A model of the command line or of a folder, before it has its last name.
struct FoundModel {
    name: String,
    /// As it was written.
    given: PathBuf,
    path: PathBuf,
    options: LoadOptions,
    role: Role,
    is_preloaded: bool,
}

/// A model of the command line, which is there.
fn named(args: &Args, kept: Option<&PrefixFolder>, model: &Path) -> Result<FoundModel, Failure> {
    let fetch = &args.model_flags.flags.load.fetch;
    let path = fetch.resolve(model)?;
    ModelSource::find(&path)?.check()?;
    // What is named on the command line is there, its draft model too.
    let mut options = args.model_flags.flags.load_options()?;
    options.prefix_folder = kept.cloned();
    Ok(FoundModel {
        name: served_name(model, &path),
        given: model.to_owned(),
        path,
        options,
        role: Role::Chat,
        is_preloaded: true,
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

fn spec(args: &Args, model: FoundModel) -> ModelSpec {
    let flags = &args.model_flags.flags;
    let loader = NamedLoader::new(
        model.name.clone(),
        model.path,
        flags.load.fetch.clone(),
        model.options,
    );
    let mut spec = ModelSpec::new(model.name, loader);
    spec.given = Some(model.given.display().to_string());
    spec.adapters = flags.adapters.names().map(str::to_owned).collect();
    spec.role = model.role;
    spec.is_preloaded = model.is_preloaded;
    spec
}

/// A model of a file. Paths in it are relative to its folder.
fn of_file(
    args: &Args,
    kept: Option<&PrefixFolder>,
    model: &FileModel,
    folder: &Path,
) -> Result<ModelSpec, String> {
    let flags = args.model_flags.with_file(&model.settings, folder)?;
    let path = FetchArgs::below(folder, Path::new(&model.model));
    let mut options = flags.unresolved_options().map_err(|failure| failure.line())?;
    options.prefix_folder = kept.cloned();
    let loader = NamedLoader::new(model.name.clone(), path, flags.load.fetch.clone(), options);
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
    let unreadable = |error| Failure::unreadable(path, &error);
    let mut text = String::new();
    let file = fs::File::open(path).map_err(unreadable)?;
    file.take(MAX_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(unreadable)?;
    if text.len() as u64 > MAX_BYTES {
        let message = format!("{} is longer than {MAX_BYTES} bytes", path.display());
        return Err(Failure::input(message).hint("`--models` takes a TOML file that lists models"));
    }
    ModelsFile::parse(&text).map_err(|reason| {
        Failure::input(format!("{}: {reason}", path.display())).hint("docs/serving.md has an example")
    })
}

/// The models in a folder and in the folders in it, by name.
fn models_in(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut found = Vec::new();
    for path in entries(folder)? {
        if is_model_file(&path) {
            found.push(path);
        } else if path.is_dir() {
            // One that may not be read has no model that can be.
            let files: Vec<PathBuf> = entries(&path).unwrap_or_default();
            let models = files.iter().filter(|file| is_model_file(file));
            let n_before = found.len();
            found.extend(models.cloned());
            if found.len() == n_before && files.iter().any(|file| file.ends_with("config.json")) {
                found.push(path);
            }
        }
    }
    if found.is_empty() {
        let message = format!("there is no model in {}", folder.display());
        return Err(Failure::input(message).hint("GGUF files are looked for in it and in the folders in it"));
    }
    Ok(found)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = fs::read_dir(folder).map_err(|error| Failure::unreadable(folder, &error))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

/// Whether a file is a model, or the first part of one. What stands next to a model is none, nor is a hidden file.
fn is_model_file(path: &Path) -> bool {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
        return false;
    };
    let Some(stem) = name.strip_suffix(".gguf") else {
        return false;
    };
    let is_first = part_of(stem).is_none_or(|(_, part)| part == 1);
    path.is_file() && !name.starts_with('.') && is_model_file_name(name) && is_first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_told_of_files_and_not_of_folders() {
        let paths = ["/home/me/a.gguf", "models/b.gguf", "c.gguf"].map(PathBuf::from);
        let text = "cannot read /home/me/a.gguf, models/b.gguf, c.gguf: 1/2".to_owned();
        assert_eq!(
            without_folders(text, &paths),
            "cannot read a.gguf, b.gguf, c.gguf: 1/2"
        );
    }

    #[test]
    fn a_failure_that_comes_back_is_said_again() {
        const DEMO: &[u8] = include_bytes!("../../../../tokenmill/assets/tokenmill-demo-Q8_0.gguf");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.gguf");
        let options = Model::options().threads(1);
        let loader = NamedLoader::new("a".to_owned(), path.clone(), FetchArgs::default(), options);
        for _ in 0..2 {
            fs::write(&path, &DEMO[..1000]).expect("a file");
            assert!(loader.load(false).is_err());
            assert!(loader.said().is_some(), "it is warned of");
            fs::write(&path, DEMO).expect("a file");
            assert!(loader.load(false).is_ok());
            assert_eq!(*loader.said(), None);
        }
    }

    #[test]
    fn a_folder_is_looked_through_one_level_deep() {
        let folder = tempfile::tempdir().expect("a folder");
        let make = |path: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().expect("it is in the folder")).expect("a folder");
            fs::write(path, b"").expect("a file");
        };
        let none = models_in(folder.path()).expect_err("it is empty").line();
        assert!(none.contains("there is no model in"), "{none}");
        for path in [
            "b.gguf",
            "a-00001-of-00002.gguf",
            "a-00002-of-00002.gguf",
            "mmproj-b.gguf",
            "b-mmProj-F16.gguf",
            "mtp-b-Q8_0.gguf",
            "b-imatrix.gguf",
            ".b.gguf",
            "notes.txt",
            "c/c.gguf",
            "c/mmproj-F16.gguf",
            "d/config.json",
            "e/f/deep.gguf",
        ] {
            make(path);
        }
        let found = models_in(folder.path()).expect("it has models");
        let names: Vec<String> = found.iter().map(|path| served_name(path, path)).collect();
        assert_eq!(names, ["a", "b", "c", "d"]);
    }
}
