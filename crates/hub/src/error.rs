//! [`HubError`]: why a model could not be found, downloaded or kept.
//!
//! One enum for the crate. Invariant: a variant carries the facts, so that a program can say what to do in its own words.

use std::{io, path::PathBuf, time::Duration};

/// Why a model could not be found, downloaded or kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// A text that is no name of a model.
    #[error("`{name}` is no name of a model: {reason}")]
    BadName {
        /// The text.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// An address of the Hub that cannot be used.
    #[error("`{endpoint}` is no address of a hub; it must begin with http:// or https://")]
    BadEndpoint {
        /// The address.
        endpoint: String,
    },
    /// A file that another program removed while the model was pulled.
    #[error("`{file}` was removed by another program while the model was pulled")]
    Vanished {
        /// The file.
        file: String,
    },
    /// A model that is not in the cache while downloads are switched off.
    #[error("`{name}` is not in the cache, and downloads are switched off")]
    Offline {
        /// The model.
        name: String,
    },
    /// A repository that does not exist, or that only others may see.
    #[error("there is no model `{name}` on {host}, or it is private{}", suggestion(near))]
    NotFound {
        /// The repository.
        name: String,
        /// The server.
        host: String,
        /// Repositories with similar names.
        near: Vec<String>,
    },
    /// A revision that does not exist.
    #[error("`{name}` has no revision `{revision}`")]
    NoRevision {
        /// The repository.
        name: String,
        /// What was asked for.
        revision: String,
    },
    /// A type or file that the repository lacks.
    #[error("`{name}` has no `{wanted}`; it has {}", there.join(", "))]
    NoSuchType {
        /// The repository.
        name: String,
        /// What was asked for.
        wanted: String,
        /// What there is.
        there: Vec<String>,
    },
    /// Several files have the type that was asked for.
    #[error("`{name}` has several files of type {wanted}; name one: {}", files.join(", "))]
    SeveralOfType {
        /// The repository.
        name: String,
        /// What was asked for.
        wanted: String,
        /// The files.
        files: Vec<String>,
    },
    /// A repository without a model that can be opened.
    #[error("`{name}` holds neither GGUF files nor a folder of safetensors with config.json")]
    NothingToOpen {
        /// The repository.
        name: String,
    },
    /// No file fits into the memory.
    #[error(
        "no file of `{name}` fits into {memory_bytes} bytes of memory; the smallest, {smallest}, has {n_bytes} bytes"
    )]
    NothingFits {
        /// The repository.
        name: String,
        /// The type of the smallest file.
        smallest: String,
        /// Its size.
        n_bytes: u64,
        /// The memory.
        memory_bytes: u64,
    },
    /// A model of several files, of which the repository lacks some.
    #[error("`{name}` lacks a part of the model: {missing}")]
    MissingPart {
        /// The repository.
        name: String,
        /// The first file that is missing.
        missing: String,
    },
    /// A repository with conditions that must be accepted first.
    #[error("access to `{name}` is restricted: {reason}")]
    Gated {
        /// The repository.
        name: String,
        /// The page on which access is asked for.
        page: String,
        /// What the server says.
        reason: String,
        /// Whether a token was sent.
        had_token: bool,
    },
    /// A token that the server does not know.
    #[error("{host} does not accept the access token{}", colon(reason))]
    BadToken {
        /// The server.
        host: String,
        /// What the server says.
        reason: String,
    },
    /// A status that means the request is refused.
    #[error("{url} was refused with status {status}{}", colon(reason))]
    Refused {
        /// The address.
        url: String,
        /// The status.
        status: u16,
        /// What the server says.
        reason: String,
    },
    /// The server wants fewer requests.
    #[error("{host} allows no more requests {}", waiting(*after))]
    TooManyRequests {
        /// The server.
        host: String,
        /// How long it wants to be left alone, where it says so.
        after: Option<Duration>,
    },
    /// The server fails.
    #[error("{url} failed with status {status}{}", times(*n_tries))]
    ServerFailed {
        /// The address.
        url: String,
        /// The status.
        status: u16,
        /// How often it was tried.
        n_tries: u32,
    },
    /// No connection, or one that ended too early, as often as it was tried.
    #[error("{host} cannot be reached: {reason}")]
    NoConnection {
        /// The server.
        host: String,
        /// Why.
        reason: String,
    },
    /// An answer that is not what the protocol says.
    #[error("{url} gave an answer that cannot be used: {reason}")]
    BadAnswer {
        /// The address.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A file that became another one while it was downloaded.
    #[error("{file} was changed on the server while it was downloaded")]
    Changed {
        /// The file.
        file: String,
    },
    /// A file whose bytes are not those that the server announced.
    #[error("{file} arrived damaged: its hash is {found}, and {expected} was announced")]
    Damaged {
        /// The file.
        file: String,
        /// The hash that was announced.
        expected: String,
        /// The hash of what arrived.
        found: String,
    },
    /// Too little room on the disk.
    #[error("{} has room for {free_bytes} bytes, and {needed_bytes} are needed", folder.display())]
    NoSpace {
        /// Where the files go.
        folder: PathBuf,
        /// What the files take.
        needed_bytes: u64,
        /// What is free.
        free_bytes: u64,
    },
    /// A file or folder of the cache that cannot be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// Its path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A download that its observer has ended.
    #[error("the download was stopped; the next one continues where it ended")]
    Cancelled,
    /// A model that is to be removed and is not there.
    #[error("`{name}` is not in the cache")]
    NotStored {
        /// The model.
        name: String,
    },
}

impl HubError {
    /// Whether a file could not be written because the disk is full.
    pub(crate) fn is_of_full_disk(&self) -> bool {
        matches!(self, Self::File { action: "write", source, .. } if source.kind() == io::ErrorKind::StorageFull)
    }

    /// Makes an error of what the system said of a file.
    pub(crate) fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { action, path, source }
    }
}

fn suggestion(near: &[String]) -> String {
    match near {
        [] => String::new(),
        near => format!("; there is {}", near.join(", ")),
    }
}

fn waiting(after: Option<Duration>) -> String {
    match after {
        Some(after) => format!("for {} seconds", after.as_secs()),
        None => "now".to_owned(),
    }
}

fn times(n_tries: u32) -> String {
    match n_tries {
        0 | 1 => String::new(),
        n_tries => format!(", {n_tries} times"),
    }
}

fn colon(reason: &str) -> String {
    match reason {
        "" => String::new(),
        reason => format!(": {reason}"),
    }
}
