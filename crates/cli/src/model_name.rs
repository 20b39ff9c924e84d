//! [`FetchArgs`]: finds the path of a MODEL, and downloads it first if it is a name.
//!
//! Every command that takes a model takes names. Invariants: an existing file or folder is never taken for a
//! name; nothing is downloaded without consent, on the terminal or by an option.

use std::{
    env,
    fmt::Write as _,
    io::{self, IsTerminal as _, Write as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use clap::Args;
use console::Term;
use tokenmill::{
    hub::{
        HubSettings, PullEvent, PullObserver, PullWishes, PulledModel, SourceName, SourcePlan,
        StoredProjector, folder_of_caches, variants_of_file,
    },
    load::ModelSource,
    machine::machine_bytes,
};
use tokenmill_gguf::part_of_name;

use crate::{
    failure::Failure,
    hanging::{columns, hanging},
    interrupt,
    note::note,
    numbers::size_of,
    progress::Transfer,
    visible::visible,
};

/// The permissions to download for a command.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Models by name")]
pub(crate) struct FetchArgs {
    /// Download a named model without asking if it is not on this machine
    #[arg(long)]
    yes: bool,
    /// Download nothing; also HF_HUB_OFFLINE=1
    #[arg(long)]
    offline: bool,
}

/// Files to download besides a named model that is not on this machine. A model that is there without them is
/// used as it is.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Companions {
    /// Its image encoder.
    pub(crate) encoder: bool,
    /// Its MTP layers.
    pub(crate) nextn: bool,
}

impl FetchArgs {
    /// Returns the path of MODEL. A named model that is not in the cache is downloaded, without other files.
    ///
    /// # Errors
    /// A name that means nothing, a download that fails, or no yes to one.
    pub(crate) fn resolve(&self, model: &Path) -> Result<PathBuf, Failure> {
        self.resolve_with(model, Companions::default())
    }

    /// As [`Self::resolve`], with the files that the command can use besides the model, where its repository has them.
    ///
    /// # Errors
    /// As [`Self::resolve`].
    pub(crate) fn resolve_with(&self, model: &Path, companions: Companions) -> Result<PathBuf, Failure> {
        let Some(name) = SourceName::of_path(model)? else {
            return Ok(model.to_owned());
        };
        let settings = self.settings();
        let mut wishes = wishes();
        (wishes.with_projector, wishes.with_nextn) = (companions.encoder, companions.nextn);
        match name.find_stored(&wishes, &settings) {
            Ok(Some(found)) => return Ok(found.path),
            Err(error) if settings.is_offline => return Err(Failure::of_name(&name, error)),
            // Another type may fit.
            Ok(None) | Err(_) => {}
        }
        let watcher = Watcher::new();
        let plan =
            (name.plan(&wishes, &settings, &watcher)).map_err(|error| Failure::of_name(&name, error))?;
        if !self.yes {
            ask_for(&plan)?;
        }
        Ok(fetch(plan, &settings, &watcher)?.path)
    }

    /// Returns the path of MODEL, if it is on this machine.
    ///
    /// # Errors
    /// A name that means nothing, and a model that would have to be downloaded.
    pub(crate) fn stored(&self, model: &Path) -> Result<PathBuf, Failure> {
        let Some(name) = SourceName::of_path(model)? else {
            return Ok(model.to_owned());
        };
        let mut wishes = wishes();
        wishes.with_projector = false;
        let found = name.find_stored(&wishes, &self.settings());
        if let Some(found) = found.map_err(|error| Failure::of_name(&name, error))? {
            return Ok(found.path);
        }
        let name = model.display();
        let failure = Failure::input(format!("`{name}` is not on this machine"));
        Err(failure.hint(format!("`tokenmill pull {name}` downloads it")))
    }

    /// How a model that is named gets the image encoder that its repository has, or may have, and this machine lacks.
    pub(crate) fn encoder_hint(&self, model: &Path) -> Option<String> {
        let name = SourceName::of_path(model).ok().flatten()?;
        let settings = self.settings();
        let stored = name.find_stored(&wishes(), &settings).ok().flatten()?;
        match name.stored_projector(&stored, &settings) {
            StoredProjector::Missing(_) => {
                Some(format!("`tokenmill pull {name}` downloads its image encoder"))
            }
            StoredProjector::Unknown => Some(format!(
                "`tokenmill pull {name}` downloads its image encoder, if its repository has one; `--mmproj FILE` names another"
            )),
            _ => None,
        }
    }

    /// Returns the path of a model that a file in `folder` names: relative to the folder, unless it is a name
    /// or `demo`.
    pub(crate) fn below(folder: &Path, model: &Path) -> PathBuf {
        let below = folder.join(model);
        if model == Path::new("demo") || (!below.exists() && Self::is_name(model)) {
            return model.to_owned();
        }
        below
    }

    /// Returns whether it is a name rather than a path.
    pub(crate) fn is_name(model: &Path) -> bool {
        SourceName::of_path(model).is_ok_and(|name| name.is_some())
    }

    /// The settings of the environment and of these options.
    pub(crate) fn settings(&self) -> HubSettings {
        let mut settings = settings();
        settings.is_offline |= self.offline;
        settings
    }
}

/// Returns the display name of a model that was given as `model` and lies at `found`: the name that was
/// given, or the name of its file without `.gguf` and without the part's number.
pub(crate) fn served_name(model: &Path, found: &Path) -> String {
    if let Ok(Some(name)) = SourceName::of_path(model) {
        return name.shown();
    }
    let name = ModelSource::find(found).map_or_else(
        |_| {
            found
                .file_name()
                .unwrap_or(found.as_os_str())
                .to_string_lossy()
                .into_owned()
        },
        |source| source.name(),
    );
    let stem = name.strip_suffix(".gguf").unwrap_or(&name);
    part_of_name(stem).map_or(stem, |(begin, ..)| begin).to_owned()
}

/// Returns the variants that identify a model, given as `model` and found at `found`, in its repository of
/// the Hub; nothing for other sources.
pub(crate) fn variants(model: &Path, found: &Path) -> Vec<String> {
    match SourceName::of_path(model) {
        Ok(Some(SourceName::Hub(_))) => variants_of_file(&found.to_string_lossy()),
        _ => Vec::new(),
    }
}

/// Returns the name of a model of Ollama if it was given by name: its file is named after its bytes.
pub(crate) fn ollama_name(model: &Path) -> Option<String> {
    match SourceName::of_path(model) {
        Ok(Some(name @ SourceName::Ollama(_))) => Some(name.shown()),
        _ => None,
    }
}

/// The settings of the environment.
pub(crate) fn settings() -> HubSettings {
    HubSettings::from_variables(variable)
}

/// The folder for files that this program can make again; `None` if the environment names none.
pub(crate) fn cache_folder() -> Option<PathBuf> {
    Some(folder_of_caches(variable)?.join("tokenmill"))
}

/// A variable of the environment.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok()
}

/// Returns the parts of a repository to keep on this machine.
pub(crate) fn wishes() -> PullWishes {
    let mut wishes = PullWishes::default();
    wishes.memory_bytes = machine_bytes();
    wishes
}

/// Asks on the terminal whether a model is to be downloaded.
///
/// # Errors
/// A no, and no terminal to ask on.
fn ask_for(plan: &SourcePlan) -> Result<(), Failure> {
    let name = plan.full_name();
    if plan.missing_bytes() == 0 {
        return Ok(());
    }
    let (model, rest) = sizes(plan);
    let because = (plan.why()).map_or_else(String::new, |why| format!(" ({why})"));
    let question = format!("Download {name}, {model}{because}{rest}?");
    if is_agreed(&question)? {
        return Ok(());
    }
    if can_ask() {
        return Err(Failure::input(format!("`{name}` was not downloaded")));
    }
    Err(
        Failure::input(format!("`{name}` is not on this machine")).hint(format!(
            "`--yes` downloads it, {model}{rest}; `tokenmill pull {name}` does so with all that belongs to it"
        )),
    )
}

/// Returns the sizes of a download in words: the size of the model, and the text for its image encoder
/// and its MTP layers.
fn sizes(plan: &SourcePlan) -> (String, String) {
    let encoder_bytes = plan.missing_projector_bytes();
    let nextn_bytes = plan.missing_nextn_bytes();
    let model_bytes = (plan.missing_bytes()).saturating_sub(encoder_bytes.saturating_add(nextn_bytes));
    let mut rest = String::new();
    for (n_bytes, what) in [
        (encoder_bytes, "its image encoder"),
        (nextn_bytes, "its MTP layer"),
    ] {
        if n_bytes > 0 {
            let _infallible = write!(rest, " and {} for {what}", size_of(n_bytes));
        }
    }
    (size_of(model_bytes), rest)
}

/// Whether a person can be asked.
fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks a question that is answered with yes or no; only yes counts as yes. Without a terminal the answer is no.
///
/// # Errors
/// A terminal that cannot be read.
pub(crate) fn is_agreed(question: &str) -> Result<bool, Failure> {
    if !can_ask() {
        return Ok(false);
    }
    let mut stderr = io::stderr();
    // A question that cannot be shown gets no answer.
    let question = hanging(&visible(question), columns(&Term::stderr()));
    let _unwritten = write!(stderr, "{question} [y/N] ");
    let mut answer = String::new();
    io::stdin()
        .read_line(&mut answer)
        .map_err(|error| Failure::input(format!("cannot read the answer: {error}")))?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// Downloads with a progress bar.
///
/// # Errors
/// As [`SourcePlan::fetch`].
pub(crate) fn fetch(
    plan: SourcePlan,
    settings: &HubSettings,
    watcher: &Watcher,
) -> Result<PulledModel, Failure> {
    if plan.missing_bytes() == 0 {
        // Nothing arrives, so there is no speed to show.
        let name = plan.full_name();
        return (plan.fetch(settings, &())).map_err(|error| Failure::of_name(&name, error));
    }
    let name = plan.full_name();
    let (bar, arrived) = (watcher.transfer.bar.clone(), Arc::clone(&watcher.arrived));
    interrupt::ends_with(move || {
        bar.finish_and_clear();
        if let Some(text) = arrived.kept() {
            note!("{text}");
        }
    })?;
    let pulled = plan.fetch(settings, watcher);
    interrupt::ends_at_once()?;
    watcher.transfer.bar.finish_and_clear();
    pulled.map_err(|error| Failure::of_name(&name, error))
}

/// Shows a download on standard error.
pub(crate) struct Watcher {
    transfer: Transfer,
    arrived: Arc<Arrived>,
}

/// The bytes of a download that have arrived.
#[derive(Debug, Default)]
struct Arrived {
    done: AtomicU64,
    total: AtomicU64,
}

impl Arrived {
    /// Describes the remains of an interrupted download; `None` if nothing has arrived.
    fn kept(&self) -> Option<String> {
        let [done, total] = [&self.done, &self.total].map(|n_bytes| n_bytes.load(Ordering::Relaxed));
        let kept = || {
            format!(
                "{} of {} are kept; the next pull continues there",
                size_of(done),
                size_of(total)
            )
        };
        (done > 0).then(kept)
    }
}

impl Watcher {
    /// A bar that is not shown before something arrives.
    pub(crate) fn new() -> Self {
        Self {
            transfer: Transfer::new("downloading"),
            arrived: Arc::default(),
        }
    }

    fn say(&self, text: &str) {
        self.transfer.bar.suspend(|| note!("{}", visible(text)));
    }
}

impl PullObserver for Watcher {
    fn event(&self, event: PullEvent<'_>) {
        match event {
            PullEvent::Progress {
                done_bytes,
                total_bytes,
            } => {
                self.transfer.begin(total_bytes);
                self.transfer.bar.set_position(done_bytes);
                self.arrived.done.store(done_bytes, Ordering::Relaxed);
                self.arrived.total.store(total_bytes, Ordering::Relaxed);
            }
            PullEvent::Waiting { file } => self.say(&format!("waiting: another program downloads {file}")),
            PullEvent::Retrying { reason, pause } => {
                let seconds = pause.as_secs_f64();
                self.say(&format!("{reason}; trying again in {seconds:.0} s"));
            }
            PullEvent::Restarting { file, reason } => {
                self.say(&format!("{reason}; {file} is downloaded again"));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupted_download_says_what_it_leaves() {
        let arrived = Arrived::default();
        assert_eq!(arrived.kept(), None);
        arrived.done.store(66 << 20, Ordering::Relaxed);
        arrived.total.store(99_404_000, Ordering::Relaxed);
        assert_eq!(
            arrived.kept().as_deref(),
            Some("66.0 MiB of 94.8 MiB are kept; the next pull continues there")
        );
    }

    #[test]
    fn a_model_is_called_as_it_was_named_or_as_its_file() {
        for (given, found, name) in [
            ("a/tiny-Q8_0.gguf", "a/tiny-Q8_0.gguf", "tiny-Q8_0"),
            ("a/big-00001-of-00003.gguf", "a/big-00001-of-00003.gguf", "big"),
            ("a/odd-1-of-3.gguf", "a/odd-1-of-3.gguf", "odd-1-of-3"),
            ("./a/folder", "./a/folder", "folder"),
            ("demo", "demo", "demo"),
            ("tiny:latest", "blobs/sha256-0", "tiny"),
            ("ollama:tiny", "blobs/sha256-0", "tiny"),
            ("tiny:1b", "blobs/sha256-0", "tiny:1b"),
            (
                "hf://no-owner/repo:Q8_0",
                "snapshots/0/x.gguf",
                "no-owner/repo:Q8_0",
            ),
        ] {
            assert_eq!(served_name(Path::new(given), Path::new(found)), name);
        }
    }
}
