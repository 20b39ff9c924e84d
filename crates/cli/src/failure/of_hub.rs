//! Models that cannot be downloaded.
//!
//! Separate because the hints name the variables and the commands of downloads.

use std::io;

use tokenmill::hub::{HubError, SourceName};

use super::Failure;
use crate::numbers::size_of;

/// The words for a source of models: where they come from and where they go.
struct SourceWords {
    /// The variable that sets the server.
    endpoint: &'static str,
    /// The variable that sets the folder.
    folder: &'static str,
    not_found: &'static str,
    too_many: &'static str,
    /// The hint for a file that is refused although its repository may be listed.
    refused: &'static str,
}

const HUB: SourceWords = SourceWords {
    endpoint: "HF_ENDPOINT",
    folder: "HF_HUB_CACHE",
    not_found: "check the name; a private model needs an access token in HF_TOKEN",
    too_many: "wait, or set HF_TOKEN: accounts have higher limits; the next pull continues",
    refused: "an access token in HF_TOKEN may be needed; HF_ENDPOINT and a proxy decide which server answers",
};

const OLLAMA: SourceWords = SourceWords {
    endpoint: "OLLAMA_REGISTRY",
    folder: "OLLAMA_MODELS",
    not_found: "check the name and its tag",
    too_many: "wait; the next pull continues",
    refused: "OLLAMA_REGISTRY and a proxy decide which server answers",
};

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        Self::of_source(error, &HUB)
    }
}

impl Failure {
    /// Creates the failure of a model with this name; its hint uses the words of its source.
    pub(crate) fn of_name(name: &SourceName, error: HubError) -> Self {
        match name {
            SourceName::Hub(_) => error.into(),
            SourceName::Ollama(_) => Self::of_source(error, &OLLAMA),
        }
    }

    fn of_source(error: HubError, words: &SourceWords) -> Self {
        let (endpoint, folder_variable) = (words.endpoint, words.folder);
        let message = error.to_string();
        match error {
            HubError::BadName { .. } => {
                Self::usage(message).hint(
                    "write OWNER/REPOSITORY, as in `ggml-org/gemma-3-1b-it-GGUF:Q4_K_M`, or NAME:TAG for Ollama's registry",
                )
            }
            HubError::BadEndpoint { .. } => Self::usage(message).hint(format!("{endpoint} names it")),
            HubError::Offline { .. } => {
                Self::input(message).hint("leave out `--offline` and HF_HUB_OFFLINE, or see `tokenmill list`")
            }
            HubError::NotFound { .. } => {
                Self::input(message).hint(words.not_found)
            }
            HubError::NoRevision { .. } => Self::input(message).hint("a revision is a branch, a tag or a commit"),
            HubError::NoSuchType { name, there, .. } => {
                let first = there.first().filter(|label| !label.contains(' '));
                let example = first.map_or_else(|| name.clone(), |label| format!("{name}:{label}"));
                Self::input(message).hint(format!("write it as `{example}`"))
            }
            HubError::SeveralOfType { name, files, .. } => {
                Self::input(message).hint(format!("write it as `{name}:{}`", files[0]))
            }
            HubError::NothingToOpen { .. } => {
                Self::input(message).hint("look for a repository with GGUF in its name")
            }
            HubError::NothingFits {
                name,
                smallest,
                n_bytes,
                memory_bytes,
            } => Self::input(format!(
                "no file of `{name}` fits into {} of memory; the smallest, {smallest}, has {}",
                size_of(memory_bytes),
                size_of(n_bytes)
            ))
            .hint(format!(
                "`{name}:{smallest}` takes it all the same; a model with fewer parameters will be faster"
            )),
            HubError::Gated { page, had_token, .. } => Self::input(message).hint(if had_token {
                format!("ask for access on {page}, with the account of the token in HF_TOKEN")
            } else {
                format!("ask for access on {page}, then set HF_TOKEN to an access token of your account")
            }),
            HubError::BadToken { .. } => Self::input(message)
                .hint("make another at https://huggingface.co/settings/tokens and set HF_TOKEN, or leave it unset"),
            HubError::TooManyRequests { .. } => {
                Self::work(message).hint(words.too_many)
            }
            HubError::NoConnection { .. } => Self::work(message).hint(format!(
                "check the network; {endpoint} names a mirror, `tokenmill list` shows what is here; the next pull \
                 continues"
            )),
            HubError::ServerFailed { .. } | HubError::Vanished { .. } => {
                Self::work(message).hint("try again; a pull continues with what has arrived")
            }
            HubError::Changed { .. } | HubError::Damaged { .. } => {
                Self::work(message).hint("try again; nothing of this file was kept")
            }
            HubError::Refused { status: 401 | 403, .. } => {
                Self::work(message).hint(words.refused)
            }
            HubError::Refused { .. } | HubError::BadAnswer { .. } => {
                Self::work(message).hint(format!("{endpoint} and a proxy decide which server answers"))
            }
            HubError::NoSpace {
                folder,
                needed_bytes,
                free_bytes,
            } => Self::no_room(&folder, needed_bytes, free_bytes).hint(format!("`tokenmill rm NAME` makes room, {folder_variable} names another folder")),
            HubError::File { action, path, source } => {
                let failure = match action {
                    "write" => Self::unwritable(path.display(), &source),
                    _ => Self::input(message),
                };
                match source.kind() {
                    io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => failure
                        .hint(format!("`tokenmill rm NAME` makes room, {folder_variable} names another folder; the next pull continues")),
                    _ => failure,
                }
            }
            HubError::NotStored { .. } => Self::input(message).hint("`tokenmill list` shows what is there"),
            _ => Self::work(message),
        }
    }
}
