//! [`SessionArgs`]: `--session FILE`, a conversation that continues at the next start.
//!
//! `run` and `chat` store their conversations in the same way. Invariant: an unusable file is not changed,
//! and the request is computed without it.

use std::{
    io,
    path::{Path, PathBuf},
    time::Instant,
};

use serde_json::Value;
use tokenmill::{
    Error, Model,
    sessions::{Session, SessionError, SessionFile},
};

use crate::{adapters::AdapterArgs, failure::Failure, load::LoadArgs, note::note, visible::visible};

/// Where a conversation is kept.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct SessionArgs {
    /// Save the conversation and its KV cache in a file, so that the next start need not compute them again
    #[arg(long, value_name = "FILE")]
    session: Option<PathBuf>,
}

/// A conversation in a file.
#[derive(Debug)]
pub(crate) struct KeptSession {
    path: PathBuf,
    /// The tokens in the file.
    tokens: Vec<u32>,
    /// The notes of the file, besides tokens and memory.
    pub(crate) notes: Vec<u8>,
}

/// The treatment of a conversation whose memory cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unusable {
    /// Its notes continue: it is computed again and saved with the memory of this model.
    GoesOn,
    /// The file is not changed, and nothing is saved.
    Stays,
}

impl SessionArgs {
    /// Whether a session is requested.
    pub(crate) fn is_given(&self) -> bool {
        self.session.is_some()
    }

    /// Refuses a session with an adapter: its results are not kept.
    ///
    /// # Errors
    /// Both flags.
    pub(crate) fn check_adapters(&self, adapters: &AdapterArgs) -> Result<(), Failure> {
        if self.is_given() && adapters.names().next().is_some() {
            return Err(Failure::usage(
                "`--session` does not go with `--lora`: the KV cache of an adapter is not kept",
            )
            .hint("leave one of them out"));
        }
        Ok(())
    }

    /// Refuses a session of a model on several GPUs, before the GPUs are looked for.
    ///
    /// # Errors
    /// Both flags.
    pub(crate) fn check_gpus(&self, load: &LoadArgs) -> Result<(), Failure> {
        match load.group_size() {
            Some(n_gpus) if self.is_given() => Err(Failure::usage(format!(
                "`--session` does not go with `--tensor-parallel-size {n_gpus}`: the KV cache of several GPUs is not kept"
            ))
            .hint("leave one of them out")),
            _ => Ok(()),
        }
    }

    /// Opens the session, and brings its memory into the model's cache. `None` where there is none to keep.
    ///
    /// # Errors
    /// A file in a folder that is not there, and a text of `run` where a conversation is to continue.
    pub(crate) fn open(&self, model: &Model, unusable: Unusable) -> Result<Option<KeptSession>, Failure> {
        let Some(path) = &self.session else {
            return Ok(None);
        };
        let fresh = KeptSession {
            path: path.clone(),
            tokens: Vec::new(),
            notes: Vec::new(),
        };
        let file = match SessionFile::open(path) {
            Ok(file) => file,
            Err(Error::Session {
                source: SessionError::Io(error),
                ..
            }) if error.kind() == io::ErrorKind::NotFound => {
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
                return match folder {
                    Some(folder) if !folder.is_dir() => Err(Failure::unwritable(path, error)
                        .hint("the folder of `--session` does not exist; create it first")),
                    _ => Ok(Some(fresh)),
                };
            }
            Err(error) => {
                note!("[{error}; it stays as it is, and nothing is saved]");
                return Ok(None);
            }
        };
        let mut kept = KeptSession {
            notes: file.header().notes.clone(),
            ..fresh
        };
        kept.check_writer(unusable)?;
        let began = Instant::now();
        match model.restore_opened(file, path, 0) {
            Ok((session, size)) => {
                kept.tokens = session.tokens;
                let took_ms = began.elapsed().as_secs_f64() * 1e3;
                note!(
                    "[{} tokens restored from {} in {took_ms:.0} ms]",
                    size.n_stored,
                    path.display()
                );
                Ok(Some(kept))
            }
            Err(error) if unusable == Unusable::GoesOn => {
                match (&error, kept.model_name()) {
                    (
                        Error::Session {
                            source: SessionError::OtherModel,
                            ..
                        },
                        Some(name),
                    ) => note!(
                        "[the last answer in {} is of the model {}; the conversation continues with {} and is computed again]",
                        path.display(),
                        visible(&name),
                        visible(model.name())
                    ),
                    _ => note!("[{error}; the conversation is computed again]"),
                }
                Ok(Some(kept))
            }
            Err(error) => {
                note!("[{error}; the prompt is computed, the file stays as it is, and nothing is saved]");
                Ok(None)
            }
        }
    }
}

impl KeptSession {
    /// Says that a prompt does not continue the file's text, and replaces it.
    pub(crate) fn note_other(&self, prompt: &[u32]) {
        let n_shared = self.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        if n_shared < self.tokens.len().min(prompt.len()) {
            note!(
                "[the prompt differs from that in {} from token {n_shared} on; it is computed, and replaces the content of the file]",
                self.path.display()
            );
        }
    }

    /// Refuses a text of `run` where a conversation is to continue: saving it would replace the KV cache of the text. `run` itself
    /// keeps the notes of a conversation, and says where its prompt is another.
    fn check_writer(&self, unusable: Unusable) -> Result<(), Failure> {
        if unusable == Unusable::Stays || !self.notes.is_empty() {
            return Ok(());
        }
        let path = self.path.display();
        Err(Failure::input(format!(
            "session {path} holds a text of `run`, not a conversation"
        ))
        .hint("`tokenmill run --session` goes on with it; for a conversation name another file"))
    }

    /// Returns the model of the last answer of a conversation; older files do not name it.
    fn model_name(&self) -> Option<String> {
        let notes: Value = serde_json::from_slice(&self.notes).ok()?;
        Some(notes["model"].as_str()?.to_owned())
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the conversation, with the notes, to the file.
    ///
    /// # Errors
    /// Fails if the file cannot be written; an existing file is then unchanged.
    pub(crate) fn save(&self, model: &Model, tokens: Vec<u32>) -> Result<(), Failure> {
        let session = Session {
            tokens,
            notes: self.notes.clone(),
            cache_salt: 0,
        };
        model
            .save_session(&self.path, &session)
            .map(drop)
            .map_err(|error| match error {
                Error::Session {
                    source: SessionError::Io(error),
                    path,
                } => Failure::unwritable(path, error),
                other => other.into(),
            })
    }
}
