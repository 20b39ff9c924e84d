//! `rm`: removes a downloaded model.

use tokenmill::hub::SourceRemoval;

use crate::{
    failure::Failure,
    model_name::{Watcher, is_agreed, settings},
    name_argument::of_argument,
    note::note,
    numbers::size_of,
    visible::visible,
};

/// Remove a downloaded model.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tokenmill rm bartowski/Llama-3.2-1B-Instruct-GGUF:Q8_0\n  \
    tokenmill rm bartowski/Llama-3.2-1B-Instruct-GGUF --yes\n  \
    tokenmill rm llama3.2:1b\n\n\
    Without a TYPE it removes all stored files of the repository. Files that other revisions use\n\
    stay, and so do layers that other models of Ollama use.")]
pub(crate) struct Args {
    /// OWNER/REPOSITORY[@REVISION][:TYPE] or NAME:TAG, as `tokenmill list` shows it
    model: String,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let settings = settings();
    let name = &of_argument(&args.model, &settings)?;
    let removal = SourceRemoval::of(name, &settings)?;
    let models = match removal.labels() {
        [] => String::new(),
        labels => format!(" ({})", labels.join(", ")),
    };
    let freed = size_of(removal.freed_bytes());
    if !args.yes && !is_agreed(&format!("Remove {name}{models}, {freed}?"))? {
        return Err(
            Failure::usage(format!("`{name}` was not removed")).hint("`--yes` removes it without asking")
        );
    }
    removal.apply(&Watcher::new())?;
    note!(
        "{}",
        visible(&format!("removed {name}{models}; {freed} are free again"))
    );
    Ok(())
}
