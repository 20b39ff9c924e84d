//! `list`: the models that were downloaded.

use std::{
    fmt::Write as _,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use serde_json::{Value, json};
use tokenmill::hub::{self, DiskUse, HubError, HubSettings, ollama};

use crate::{failure::Failure, model_name::settings, note::note, numbers::size_of, output, visible::visible};

/// List downloaded models.
#[derive(clap::Args)]
#[command(
    visible_alias = "ls",
    after_help = "Examples:\n  \
    tokenmill list\n  \
    tokenmill list --json | jq -r '.[].name'\n\n\
    The list includes models that other programs put into the cache of Hugging Face, and models in Ollama's folder. `tokenmill inspect NAME` describes a model,\n\
    `tokenmill rm NAME` removes one. The type `incomplete` marks an interrupted download: `tokenmill pull` of the same name continues its own downloads, not those of other programs."
)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let settings = settings();
    let disk = DiskUse::of(&settings);
    let models = rows(&settings, &disk)?;
    if args.json {
        return output::print_json(&models.iter().map(Row::to_json).collect());
    }
    let left = match disk.ollama_interrupted_bytes {
        0 => String::new(),
        n_bytes => format!(
            "; {} of it are layers of incomplete Ollama models",
            size_of(n_bytes)
        ),
    };
    if models.is_empty() && left.is_empty() {
        note!(
            "{}",
            visible(&format!(
                "no models in {}, and none of Ollama's in {}; `tokenmill pull OWNER/REPOSITORY` downloads one",
                settings.cache.display(),
                settings.ollama_models.display()
            ))
        );
        return Ok(());
    }
    // Files of the cache are named by whoever made the repository.
    let names: Vec<String> = (models.iter())
        .map(|model| visible(&model.name).into_owned())
        .collect();
    let width = names.iter().map(String::len).max().unwrap_or(0).max("NAME".len());
    let mut table = format!("{:<width$}  {:<11}  {:>10}  LAST USED\n", "NAME", "TYPE", "SIZE");
    for (name, model) in names.iter().zip(&models) {
        let used = model.last_used.map_or_else(|| "unknown".to_owned(), ago);
        writeln!(
            table,
            "{name:<width$}  {:<11}  {:>10}  {used}",
            visible(&model.label),
            size_of(model.n_bytes)
        )
        .expect("writing to a string does not fail");
    }
    if !models.is_empty() {
        output::print_wrapped(&table)?;
    }
    // Models that share files have each of them in their row.
    note!("{} on disk, each file once{left}", size_of(disk.n_bytes));
    Ok(())
}

/// The type of an interrupted download.
const INCOMPLETE: &str = "incomplete";

/// A model of either source, or the remains of a download.
struct Row {
    name: String,
    label: String,
    n_bytes: u64,
    last_used: Option<SystemTime>,
    /// `None` for partial downloads, whose commit is unknown.
    commit: Option<String>,
    path: PathBuf,
}

/// Returns the rows of all stored models: the Hub's, Ollama's, and partial downloads.
fn rows(settings: &HubSettings, disk: &DiskUse) -> Result<Vec<Row>, HubError> {
    let of_hub = hub::stored_models(settings)?.into_iter().map(|model| Row {
        name: model.name.to_string(),
        label: model.label,
        n_bytes: model.n_bytes,
        last_used: model.last_used,
        commit: Some(model.commit),
        path: model.path,
    });
    let of_ollama = ollama::stored_models(settings).into_iter().map(|stored| Row {
        name: stored.name.to_string(),
        label: stored.model.label,
        n_bytes: stored.model.n_bytes,
        last_used: stored.last_used,
        commit: Some(stored.model.commit),
        path: stored.model.path,
    });
    let left = disk.interrupted.iter().map(|pull| Row {
        name: pull.name.to_string(),
        label: INCOMPLETE.to_owned(),
        n_bytes: pull.n_bytes,
        last_used: pull.last_used,
        commit: None,
        path: pull.path.clone(),
    });
    Ok(of_hub.chain(of_ollama).chain(left).collect())
}

impl Row {
    fn to_json(&self) -> Value {
        let since_1970 = |time: SystemTime| {
            time.duration_since(SystemTime::UNIX_EPOCH)
                .ok()
                .map(|time| time.as_secs())
        };
        json!({
            "name": self.name,
            "type": self.label,
            "bytes": self.n_bytes,
            "last_used": self.last_used.and_then(since_1970),
            "commit": self.commit,
            "path": self.path.to_string_lossy(),
        })
    }
}

/// How long ago a time was, in words.
fn ago(time: SystemTime) -> String {
    let past = time.elapsed().unwrap_or(Duration::ZERO);
    let hours = past.as_secs() / 3600;
    match (hours, hours / 24) {
        (0, _) => "less than an hour ago".to_owned(),
        (1, _) => "1 hour ago".to_owned(),
        (hours, 0) => format!("{hours} hours ago"),
        (_, 1) => "yesterday".to_owned(),
        (_, days) => format!("{days} days ago"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_words() {
        let check = |hours: u64, expected: &str| {
            let time = SystemTime::now() - Duration::from_secs(3600 * hours + 60);
            assert_eq!(ago(time), expected);
        };
        check(0, "less than an hour ago");
        check(1, "1 hour ago");
        check(23, "23 hours ago");
        check(24, "yesterday");
        check(72, "3 days ago");
    }
}
