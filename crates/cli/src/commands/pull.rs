//! `pull`: downloads a model by its name.

use serde_json::json;
use tokenmill::hub::{HubError, HubSettings, PulledModel, SourceName, StoredProjector};

use crate::{
    failure::Failure,
    interrupt,
    model_name::{Watcher, fetch, settings, wishes},
    name_argument::of_argument,
    note::note,
    numbers::{counted, size_of},
    output,
    visible::visible,
};

/// Download a model from the Hugging Face Hub or from Ollama's registry.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tokenmill pull ggml-org/gemma-3-1b-it-GGUF\n  \
    tokenmill pull bartowski/Llama-3.2-1B-Instruct-GGUF:Q8_0\n  \
    tokenmill pull Qwen/Qwen3-0.6B@main\n  \
    tokenmill pull llama3.2:1b\n  \
    tokenmill chat ggml-org/gemma-3-1b-it-GGUF\n\n\
    Without a TYPE it takes Q4_K_M, or the type nearest to it, if that fits into memory; else the largest that fits.\n\
    A repository without GGUF files becomes a folder of safetensors. An interrupted pull continues where it stopped.\n\
    A file of the right size counts as complete; --verify hashes it.\n\n\
    Models are stored in the cache that Hugging Face's own programs use: HF_HUB_CACHE, or hub in HF_HOME\n\
    [default: ~/.cache/huggingface/hub]. HF_TOKEN, or the file `token` in HF_HOME, holds an access token for private\n\
    and restricted models. HF_ENDPOINT names a mirror.\n\n\
    NAME:TAG, or ollama:NAME, is a model of Ollama's registry. It is stored in Ollama's own folder, OLLAMA_MODELS\n\
    [default: ~/.ollama/models], and models that Ollama put there need no download. OLLAMA_REGISTRY names a mirror.")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(crate) struct Args {
    /// OWNER/REPOSITORY[@REVISION][:TYPE], or the address of its page; for TYPE also the name of a file. Or NAME:TAG of Ollama's
    /// registry
    model: String,
    /// Leave out the image encoder (mmproj) that some models have
    #[arg(long)]
    no_projector: bool,
    /// Leave out the file with MTP layers (mtp-*.gguf) that some models have
    #[arg(long)]
    no_mtp: bool,
    /// Show what would be downloaded, and download nothing
    #[arg(long)]
    dry_run: bool,
    /// Hash the stored files, and download damaged ones again
    #[arg(long, conflicts_with_all = ["offline", "dry_run"])]
    verify: bool,
    /// Contact no server, and show where a stored model is; also HF_HUB_OFFLINE=1
    #[arg(long)]
    offline: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    // The bytes that have arrived are on the disk, and the next pull continues there.
    interrupt::ends_at_once()?;
    let mut settings = settings();
    settings.is_offline |= args.offline;
    let asked = of_argument(&args.model, &settings)?;
    let mut wishes = wishes();
    wishes.with_projector = !args.no_projector;
    wishes.with_nextn = !args.no_mtp;
    let watcher = Watcher::new();
    let mut plan = match asked.plan(&wishes, &settings, &watcher) {
        Ok(plan) => plan,
        // The check needs the server, which knows the right hashes.
        Err(error) if args.verify => return Err(Failure::of_name(&asked, error)),
        Err(error) => return args.stored_instead(&asked, error, &settings),
    };
    let name = plan.full_name();
    if args.verify {
        plan.remove_damaged(&settings, &watcher)
            .map_err(|error| Failure::of_name(&asked, error))?;
    }
    let (total_bytes, missing_bytes) = (plan.total_bytes(), plan.missing_bytes());
    let because = (plan.why()).map_or_else(String::new, |why| format!(" ({why})"));
    let rest = match missing_bytes {
        0 if args.verify => "nothing is missing or damaged".to_owned(),
        0 => "nothing is missing (--verify also looks at the bytes)".to_owned(),
        _ if missing_bytes == total_bytes => "all to be downloaded".to_owned(),
        _ => format!("{} to be downloaded", size_of(missing_bytes)),
    };
    let files = counted(plan.n_files(), "file");
    let layers = plan.nextn().map_or_else(String::new, |(path, n_bytes)| {
        format!(" ({path} with {})", size_of(*n_bytes))
    });
    note!(
        "{}",
        visible(&format!(
            "{name}{because}: {files}, {}{layers}, {rest}",
            size_of(total_bytes)
        ))
    );
    if args.dry_run {
        return if args.json {
            output::print_json(&json!({
                "name": name.to_string(),
                "bytes": total_bytes,
                "missing_bytes": missing_bytes,
            }))
        } else {
            Ok(())
        };
    }
    let pulled = fetch(plan, &settings, &watcher)?;
    args.show(&name, &pulled, [total_bytes, missing_bytes])
}

impl Args {
    /// Shows a model that is here, where its source cannot be asked whether there is a newer one.
    ///
    /// # Errors
    /// Any other reason, a model that is not here, and one that is here without the encoder that its repository has.
    fn stored_instead(
        &self,
        name: &SourceName,
        error: HubError,
        settings: &HubSettings,
    ) -> Result<(), Failure> {
        let is_silent = matches!(
            error,
            HubError::Offline { .. } | HubError::NoConnection { .. } | HubError::ServerFailed { .. }
        );
        let stored = (name.find_stored(&wishes(), settings).ok().flatten()).filter(|_| is_silent);
        let Some(stored) = stored else {
            return Err(Failure::of_name(name, error));
        };
        let reason = match error {
            HubError::Offline { .. } => "downloads are switched off".to_owned(),
            error => error.to_string(),
        };
        let unknown = match name.stored_projector(&stored, settings) {
            _ if self.no_projector => "",
            StoredProjector::Missing(file) => {
                return Err(Failure::work(format!(
                    "`{name}` is here without its image encoder, {file}: {reason}"
                ))
                .hint("`--no-projector` leaves it out; pull again when the server can be reached"));
            }
            StoredProjector::Unknown => ", nor whether it has an image encoder",
            _ => "",
        };
        note!(
            "{}",
            visible(&format!(
                "{name} is here; it is not known whether there is a newer one{unknown}: {reason}"
            ))
        );
        if self.dry_run && !self.json {
            return Ok(());
        }
        self.show(name, &stored, [stored.n_bytes, 0])
    }

    fn show(
        &self,
        name: &SourceName,
        pulled: &PulledModel,
        [total_bytes, downloaded_bytes]: [u64; 2],
    ) -> Result<(), Failure> {
        let PulledModel { path, commit, .. } = pulled;
        if self.json {
            return output::print_json(&json!({
                "name": name.to_string(),
                "path": path.to_string_lossy(),
                "commit": commit,
                "bytes": total_bytes,
                "downloaded_bytes": downloaded_bytes,
            }));
        }
        output::print_line(&path.to_string_lossy())?;
        note!(
            "{}",
            visible(&format!("`tokenmill chat {name}` converses with it"))
        );
        Ok(())
    }
}
