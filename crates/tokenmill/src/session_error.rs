//! [`SessionError`]: why a session could not be saved or restored.
//!
//! The crate's [`Error`](crate::Error) adds the file. Invariant: each message says what to do, or that the
//! conversation must be computed again.

use std::io;

use tokenmill_sched::EngineError;

/// Why a session could not be saved or restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The path names a folder, a pipe or a device.
    #[error("it is not a regular file")]
    NotAFile,
    /// Another kind of file.
    #[error("it is not a session of this program")]
    NotASession,
    /// A session in the format of older versions.
    #[error(
        "an older version of this program wrote it, in a format that is no longer read; delete it or name another file"
    )]
    Former,
    /// A file of another version of the format.
    #[error("it has version {found} of the format of sessions, and this program reads version {known}")]
    Version {
        /// The file's version.
        found: u32,
        /// The version that is read.
        known: u32,
    },
    /// The file ends too early.
    #[error("it was cut: it has {found} of {expected} bytes")]
    Cut {
        /// Bytes that there are.
        found: u64,
        /// Bytes that there should be.
        expected: u64,
    },
    /// A checksum does not match, or the data that it covers is invalid.
    #[error("it is damaged: its bytes differ from those that were written")]
    Damaged,
    /// The memory of another network, or of other weights.
    #[error("it belongs to another model")]
    OtherModel,
    /// Keys and values of other types.
    #[error(
        "its keys and values are {found}, and those of this load are {expected}; load the model with the types of the file"
    )]
    OtherTypes {
        /// The types in the file.
        found: String,
        /// The types of the engine.
        expected: String,
    },
    /// Memory that is arranged in another way.
    #[error("its memory is `{found}`, and that of this load is `{expected}`; load the model as it was")]
    OtherFormat {
        /// That of the file.
        found: String,
        /// That of the engine.
        expected: String,
    },
    /// A conversation that does not fit the context.
    #[error("it has {n_tokens} tokens, and the context holds {n_ctx}; give more context")]
    TooLong {
        /// Tokens of the session.
        n_tokens: usize,
        /// Tokens of the context.
        n_ctx: usize,
    },
    /// More tokens or notes than a header may have.
    #[error("its tokens and notes take {n_bytes} bytes, which is too much for a session")]
    TooLarge {
        /// Bytes that they take.
        n_bytes: usize,
    },
    /// A file that would be larger than it may be.
    #[error("it would take {n_bytes} bytes, and {max_bytes} may be used")]
    NoSpace {
        /// Bytes of the file.
        n_bytes: u64,
        /// Bytes that it may have.
        max_bytes: u64,
    },
    /// A model without an identity: a file could not say whose it is.
    #[error(
        "the model was built by the caller, so its sessions cannot be distinguished from those of other models"
    )]
    Unidentified,
    /// A device whose memory cannot be read.
    #[error("the memory of this device cannot be read, so sessions cannot be kept")]
    NotReadable,
    /// The file could not be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The engine returned an error.
    #[error(transparent)]
    Engine(#[from] EngineError),
}
