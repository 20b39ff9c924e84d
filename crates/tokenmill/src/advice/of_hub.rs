//! Advice for models that cannot be found, downloaded or stored.

use tokenmill_hub::{HubError, SourceName};

use super::{ErrorKind, Hint, of_files};

/// The words for a source of models: where they come from and where they go.
struct Source {
    /// The variable that sets the server.
    endpoint: &'static str,
    /// The variable that sets the folder.
    folder: &'static str,
    not_found: &'static str,
    too_many: &'static str,
    /// The hint for a file that is refused although its repository may be listed.
    refused: &'static str,
}

const HUB: Source = Source {
    endpoint: "HF_ENDPOINT",
    folder: "HF_HUB_CACHE",
    not_found: "check the name; a private model needs an access token in HF_TOKEN",
    too_many: "wait, or set HF_TOKEN: accounts have higher limits; the next pull continues",
    refused: "an access token in HF_TOKEN may be needed; HF_ENDPOINT and a proxy decide which server answers",
};

const OLLAMA: Source = Source {
    endpoint: "OLLAMA_REGISTRY",
    folder: "OLLAMA_MODELS",
    not_found: "check the name and its tag",
    too_many: "wait; the next pull continues",
    refused: "OLLAMA_REGISTRY and a proxy decide which server answers",
};

pub(super) fn kind(error: &HubError) -> ErrorKind {
    match error {
        HubError::BadName { .. } | HubError::BadEndpoint { .. } => ErrorKind::Options,
        HubError::NoSpace { .. } => ErrorKind::Output,
        HubError::File {
            action: "write",
            source,
            ..
        } => of_files::kind_of_write(source),
        HubError::File { .. }
        | HubError::Offline { .. }
        | HubError::NotFound { .. }
        | HubError::NoRevision { .. }
        | HubError::NoSuchType { .. }
        | HubError::SeveralOfType { .. }
        | HubError::NothingToOpen { .. }
        | HubError::NothingFits { .. }
        | HubError::Gated { .. }
        | HubError::BadToken { .. }
        | HubError::NotStored { .. } => ErrorKind::Input,
        _ => ErrorKind::Failed,
    }
}

/// Returns a hint for an error of the source that `name` names.
///
/// The general [`Error::hint`](crate::Error::hint) names the variables of the Hub.
pub fn hint_for(name: &SourceName, error: &HubError) -> Option<Hint> {
    match name {
        SourceName::Hub(_) => hint(error),
        SourceName::Ollama(_) => of_source(error, &OLLAMA),
    }
}

pub(super) fn hint(error: &HubError) -> Option<Hint> {
    of_source(error, &HUB)
}

fn of_source(error: &HubError, source: &Source) -> Option<Hint> {
    let endpoint = || source.endpoint.to_owned();
    let hint = match error {
        HubError::BadName { .. } => Hint::new(
            "write OWNER/REPOSITORY, as in `ggml-org/gemma-3-1b-it-GGUF:Q4_K_M`, or NAME:TAG for Ollama's registry",
        ),
        HubError::BadEndpoint { .. } => Hint::with("{} names it", [endpoint()]),
        HubError::Offline { .. } => {
            Hint::new("leave out {offline} and HF_HUB_OFFLINE, or see `tokenmill list`")
        }
        HubError::NotFound { .. } => Hint::new(source.not_found),
        HubError::NoRevision { .. } => Hint::new("a revision is a branch, a tag or a commit"),
        HubError::NoSuchType { name, there, .. } => {
            let first = there.first().filter(|label| !label.contains(' '));
            let example = first.map_or_else(|| name.clone(), |label| [name, ":", label].concat());
            Hint::with("write it as `{}`", [example])
        }
        HubError::SeveralOfType { name, files, .. } => {
            Hint::with("write it as `{}:{}`", [name.clone(), files[0].clone()])
        }
        HubError::NothingToOpen { .. } => Hint::new("look for a repository with GGUF in its name"),
        HubError::NothingFits { name, smallest, .. } => Hint::with(
            "`{}:{}` takes it all the same; a model with fewer parameters will be faster",
            [name.clone(), smallest.clone()],
        ),
        HubError::Gated {
            page,
            had_token: true,
            ..
        } => Hint::with(
            "ask for access on {}, with the account of the token in HF_TOKEN",
            [page.clone()],
        ),
        HubError::Gated { page, .. } => Hint::with(
            "ask for access on {}, then set HF_TOKEN to an access token of your account",
            [page.clone()],
        ),
        HubError::BadToken { .. } => Hint::new(
            "make another at https://huggingface.co/settings/tokens and set HF_TOKEN, or leave it unset",
        ),
        HubError::TooManyRequests { .. } => Hint::new(source.too_many),
        HubError::NoConnection { .. } => Hint::with(
            "check the network; {} names a mirror, `tokenmill list` shows what is here",
            [endpoint()],
        ),
        HubError::ServerFailed { .. } | HubError::Vanished { .. } => {
            Hint::new("try again; a pull continues with what has arrived")
        }
        HubError::Changed { .. } | HubError::Damaged { .. } => {
            Hint::new("try again; nothing of this file was kept")
        }
        HubError::Refused {
            status: 401 | 403, ..
        } => Hint::new(source.refused),
        HubError::Refused { .. } | HubError::BadAnswer { .. } => {
            Hint::with("{} and a proxy decide which server answers", [endpoint()])
        }
        HubError::NoSpace { .. } => Hint::with(
            "`tokenmill rm NAME` makes room, {} names another folder",
            [source.folder.to_owned()],
        ),
        HubError::File { source: error, .. } if of_files::is_full(error) => Hint::with(
            "`tokenmill rm NAME` makes room, {} names another folder; the next pull continues",
            [source.folder.to_owned()],
        ),
        HubError::NotStored { .. } => Hint::new("`tokenmill list` lists the models that are stored"),
        _ => return None,
    };
    Some(hint)
}
