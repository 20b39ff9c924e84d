//! [`HubError`]: the reason why a model could not be found, downloaded or stored.
//!
//! One enum for the crate. Invariant: a variant carries facts, so that a program can advise in its own words.

use std::{io, path::PathBuf, time::Duration};

/// The reason why a model could not be found, downloaded or stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// The text is not a name of a model.
    #[error("`{name}` is not a model name: {reason}")]
    BadName {
        /// The text.
        name: String,
        /// The error in it.
        reason: &'static str,
    },
    /// The address of the Hub cannot be used.
    #[error("`{endpoint}` is not a hub's address; it must begin with http:// or https://")]
    BadEndpoint {
        /// The address.
        endpoint: String,
    },
    /// Another program removed a file while the model was pulled.
    #[error("`{file}` was removed by another program while the model was pulled")]
    Vanished {
        /// The file.
        file: String,
    },
    /// The model is not in the cache and downloads are disabled.
    #[error("`{name}` is not in the cache, and downloads are switched off")]
    Offline {
        /// The model.
        name: String,
    },
    /// The repository does not exist, or is not visible to this user.
    #[error("there is no model `{name}` on {host}, or it is private{}", suggestion(near))]
    NotFound {
        /// The repository.
        name: String,
        /// The server.
        host: String,
        /// Repositories with similar names.
        near: Vec<String>,
    },
    /// The revision does not exist.
    #[error("`{name}` has no revision `{revision}`")]
    NoRevision {
        /// The repository.
        name: String,
        /// The requested revision.
        revision: String,
    },
    /// The repository has no such type or file.
    #[error("`{name}` has no `{wanted}`; it has {}", there.join(", "))]
    NoSuchType {
        /// The repository.
        name: String,
        /// The requested type or file.
        wanted: String,
        /// The available ones.
        there: Vec<String>,
    },
    /// Several files have the requested type.
    #[error("`{name}` has several files of type {wanted}; name one: {}", files.join(", "))]
    SeveralOfType {
        /// The repository.
        name: String,
        /// The requested type.
        wanted: String,
        /// The files.
        files: Vec<String>,
    },
    /// The repository has no model that can be opened.
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
    /// Parts of a model are missing in the repository.
    #[error("`{name}` lacks a part of the model: {missing}")]
    MissingPart {
        /// The repository.
        name: String,
        /// The first missing file.
        missing: String,
    },
    /// The repository's conditions must be accepted first.
    #[error("access to `{name}` is restricted: {reason}")]
    Gated {
        /// The repository.
        name: String,
        /// The page for requesting access.
        page: String,
        /// The server's message.
        reason: String,
        /// Whether a token was sent.
        had_token: bool,
    },
    /// The server does not know the token.
    #[error("{host} does not accept the access token{}", colon(reason))]
    BadToken {
        /// The server.
        host: String,
        /// The server's message.
        reason: String,
    },
    /// The server refused the request.
    #[error("{url} was refused with status {status}{}", colon(reason))]
    Refused {
        /// The address.
        url: String,
        /// The status.
        status: u16,
        /// The server's message.
        reason: String,
    },
    /// The server wants fewer requests.
    #[error("{host} allows no more requests {}", waiting(*after))]
    TooManyRequests {
        /// The server.
        host: String,
        /// The pause that it requests, if it states one.
        after: Option<Duration>,
    },
    /// The server failed.
    #[error("{url} failed with status {status}{}", times(*n_tries))]
    ServerFailed {
        /// The address.
        url: String,
        /// The status.
        status: u16,
        /// Number of attempts.
        n_tries: u32,
    },
    /// There was no connection, or every one ended too early.
    #[error("{host} cannot be reached: {reason}")]
    NoConnection {
        /// The server.
        host: String,
        /// The reason.
        reason: String,
    },
    /// An answer violates the protocol.
    #[error("{url} gave an answer that cannot be used: {reason}")]
    BadAnswer {
        /// The address.
        url: String,
        /// The violation.
        reason: String,
    },
    /// A file was replaced while it was downloaded.
    #[error("{file} was changed on the server while it was downloaded")]
    Changed {
        /// The file.
        file: String,
    },
    /// A file's bytes do not match the announced hash.
    #[error("{file} arrived damaged: its hash is {found}, and {expected} was announced")]
    Damaged {
        /// The file.
        file: String,
        /// The announced hash.
        expected: String,
        /// The hash of the received bytes.
        found: String,
    },
    /// The disk has too little room.
    #[error("{} has room for {free_bytes} bytes, and {needed_bytes} are needed", folder.display())]
    NoSpace {
        /// The folder of the files.
        folder: PathBuf,
        /// Bytes that the files need.
        needed_bytes: u64,
        /// Bytes that are free.
        free_bytes: u64,
    },
    /// A file or folder of the cache cannot be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// The attempted operation.
        action: &'static str,
        /// Its path.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// The system starts no thread for a download.
    #[error("cannot start a thread: {source}")]
    Thread {
        /// The I/O error.
        source: io::Error,
    },
    /// The observer cancelled the download.
    #[error("the download was stopped; the next one continues where it ended")]
    Cancelled,
    /// The model to remove is not stored.
    #[error("`{name}` is not in the cache")]
    NotStored {
        /// The model.
        name: String,
    },
}

impl HubError {
    /// Returns whether a file cannot be written because its disk, or this user's part of it, is full.
    pub fn is_of_full_disk(&self) -> bool {
        let is_full = |error: &io::Error| {
            matches!(
                error.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
            )
        };
        matches!(self, Self::NoSpace { .. })
            || matches!(self, Self::File { action: "write", source, .. } if is_full(source))
    }

    /// Creates an error from an I/O error of a file.
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
