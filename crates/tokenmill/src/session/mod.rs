//! [`Session`]: a conversation in a file, with its KV cache.
//!
//! [`Model::save_session`] writes the conversation's part of the prefix cache: keys and values, windows,
//! latent rows, recurrent states. [`Model::restore_session`] loads it into the cache of an engine, this one
//! or a later one, where prompts that begin with the same tokens find it. The engine itself knows no file.
//! Invariants: an incomplete file, or one of another model, changes nothing; the earlier file stays until the
//! new one is on the disk.

mod identity;
#[cfg(test)]
mod tests;

use std::{
    fs::{self, File},
    io::{Seek, SeekFrom, Write},
    path::Path,
};

use tokenmill_backend::{MemoryFormat, PAGE_TOKENS};
use tokenmill_sched::{Engine, KeptKind, KeptName, PageKey, PrefixPart, PrefixReader};

use crate::{
    Answer, Error, Model,
    atomic_write::{self, write_atomically},
    format_text::format_text,
    page_file::{EntrySums, PageFileHeader},
    session_error::SessionError,
};

pub(crate) use self::identity::identity_of;

/// Recurrent states that a session has at most.
const MAX_STATES: usize = 64;

/// A conversation to keep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// Its tokens: the last prompt and the answer to it.
    pub tokens: Vec<u32>,
    /// Whatever the caller keeps with it, such as its messages.
    pub notes: Vec<u8>,
    /// The salt of its requests, see [`EngineParams::cache_salt`](crate::text::EngineParams::cache_salt). It is not part of the file.
    pub cache_salt: u64,
}

impl Session {
    /// The conversation that ends with an answer to `prompt`.
    pub fn of(prompt: &[u32], answer: &Answer) -> Self {
        let generated = answer.tokens.iter().map(|token| token.id);
        Self {
            tokens: prompt.iter().copied().chain(generated).collect(),
            ..Self::default()
        }
    }
}

/// The size of a session that was written or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionSize {
    /// The number of tokens of the conversation.
    pub n_tokens: usize,
    /// The number of tokens, from the first one on, whose memory is in the file: whole pages of 16, as far as
    /// they were cached.
    pub n_stored: usize,
    /// The number of bytes of the file.
    pub n_bytes: u64,
}

/// A session file that was opened. Its tokens and notes are usable even if its memory is not.
#[derive(Debug)]
pub struct SessionFile {
    file: File,
    n_bytes: u64,
    header: PageFileHeader,
    /// Its entries.
    parts: Vec<PrefixPart>,
}

impl SessionFile {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// [`Error::Session`]: it cannot be read, is not a session of this version, or is truncated or damaged.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        Self::open_at(path).map_err(at(path))
    }

    fn open_at(path: &Path) -> Result<Self, SessionError> {
        // Asked first: to open a pipe is to wait for its writer.
        if !fs::metadata(path)?.is_file() {
            return Err(SessionError::NotAFile);
        }
        let mut file = File::open(path)?;
        let n_bytes = file.metadata()?.len();
        let header = PageFileHeader::read(&mut file, n_bytes)?;
        let parts = parts_of(&header).ok_or(SessionError::NotASession)?;
        Ok(Self {
            file,
            n_bytes,
            header,
            parts,
        })
    }

    /// Returns the file's header.
    pub fn header(&self) -> &PageFileHeader {
        &self.header
    }

    fn n_stored(&self) -> usize {
        self.parts
            .last()
            .map_or(0, |last| (last.page_idx + 1) * PAGE_TOKENS)
    }

    /// Loads its memory into the engine.
    fn restore(mut self, to: &Owner<'_>, cache_salt: u64) -> Result<SessionSize, SessionError> {
        let (identity, format) = to.names()?;
        self.header.check(identity, format, self.n_bytes)?;
        let n_stored = self.n_stored();
        let tokens = &self.header.tokens;
        let limits = to.engine.limits();
        if tokens.len() > limits.n_ctx {
            return Err(SessionError::TooLong {
                n_tokens: tokens.len(),
                n_ctx: limits.n_ctx,
            });
        }
        let stored = &tokens[..n_stored];
        if stored.iter().any(|&id| id as usize >= limits.n_vocab) {
            return Err(SessionError::Damaged);
        }
        // All of the file is checked before anything in the cache makes room for it.
        let head = self.header.to_bytes()?;
        let mut sums = EntrySums::after(&head);
        for part in &self.parts {
            sums.read(&mut self.file, part.kind.n_bytes(format))?;
        }
        self.file.seek(SeekFrom::Start(head.len() as u64))?;
        let (n_held, missing, mut writer) = to.engine.write_prefix(stored, &self.parts, cache_salt)?;
        if n_held < n_stored {
            return Err(SessionError::Damaged);
        }
        let mut missing = missing.into_iter().peekable();
        let mut sums = EntrySums::after(&head);
        for part in &self.parts {
            // Checked again: someone may have written to the file meanwhile.
            let bytes = sums.read(&mut self.file, part.kind.n_bytes(format))?;
            if missing.next_if_eq(part).is_some() {
                writer.push(bytes)?;
            }
        }
        writer.publish()?;
        Ok(SessionSize {
            n_tokens: tokens.len(),
            n_stored,
            n_bytes: self.n_bytes,
        })
    }
}

/// Returns the parts of a prefix that the entries of a session are; `None` if it is not a session. The key of an entry is
/// the index of its page.
fn parts_of(header: &PageFileHeader) -> Option<Vec<PrefixPart>> {
    let n_pages = header.tokens.len() / PAGE_TOKENS;
    let part = |entry: &KeptName| {
        let page_idx = usize::try_from(entry.key.number()).ok()?;
        (page_idx < n_pages).then_some(PrefixPart {
            page_idx,
            kind: entry.kind,
        })
    };
    let parts = header.entries.iter().map(part).collect::<Option<Vec<_>>>()?;
    let order = |part: &PrefixPart| (part.page_idx, part.kind.index());
    let states = parts.iter().filter(|part| part.kind == KeptKind::State);
    let is_session = parts.is_sorted_by(|a, b| order(a) < order(b)) && states.count() <= MAX_STATES;
    is_session.then_some(parts)
}

/// Names the file of an error.
fn at(path: &Path) -> impl Fn(SessionError) -> Error + '_ {
    |source| Error::Session {
        path: path.to_owned(),
        source,
    }
}

/// The engine and the model whose memory a file holds.
struct Owner<'a> {
    engine: &'a Engine,
    identity: Option<u128>,
}

impl Owner<'_> {
    /// The model, and how its memory is arranged.
    fn names(&self) -> Result<(u128, &MemoryFormat), SessionError> {
        let identity = self.identity.ok_or(SessionError::Unidentified)?;
        let format = self.engine.memory_format().ok_or(SessionError::NotReadable)?;
        Ok((identity, format))
    }

    /// Holds the cached part of a session, and describes the file.
    fn begin(&self, session: &Session) -> Result<Draft, SessionError> {
        let (identity, format) = self.names()?;
        let reader = self.engine.read_prefix(&session.tokens, session.cache_salt)?;
        let entry = |part: &PrefixPart| KeptName {
            key: PageKey::from_number(part.page_idx as u128),
            kind: part.kind,
        };
        let header = PageFileHeader {
            identity,
            format: format_text(format),
            tokens: session.tokens.clone(),
            entries: reader.parts().iter().map(entry).collect(),
            notes: session.notes.clone(),
        };
        let head = header.to_bytes()?;
        let size = SessionSize {
            n_tokens: session.tokens.len(),
            n_stored: reader.n_tokens(),
            n_bytes: header.file_bytes(format),
        };
        Ok(Draft { head, reader, size })
    }
}

/// A session on its way to a file.
struct Draft {
    head: Vec<u8>,
    reader: PrefixReader,
    size: SessionSize,
}

impl Draft {
    fn write(mut self, to: &mut impl Write) -> Result<(), SessionError> {
        to.write_all(&self.head)?;
        let mut sums = EntrySums::after(&self.head);
        loop {
            let portion = self.reader.read_portion()?;
            if portion.is_empty() {
                return Ok(to.flush()?);
            }
            for bytes in portion {
                sums.write(to, &bytes)?;
            }
        }
    }
}

impl Model {
    /// Writes a conversation to a file, with its part of the prefix cache. A file of this name is replaced once the new one is
    /// on the disk.
    ///
    /// # Errors
    /// [`Error::Session`]: the file cannot be written, and the earlier file stays; or the device's memory cannot be read.
    pub fn save_session(&self, path: impl AsRef<Path>, session: &Session) -> Result<SessionSize, Error> {
        self.save_session_within(path, session, u64::MAX)
    }

    /// As [`Self::save_session`], unless the file would have more than `max_bytes`.
    ///
    /// # Errors
    /// As [`Self::save_session`]; [`SessionError::NoSpace`].
    pub fn save_session_within(
        &self,
        path: impl AsRef<Path>,
        session: &Session,
        max_bytes: u64,
    ) -> Result<SessionSize, Error> {
        let path = path.as_ref();
        let save = || {
            let draft = self.owner().begin(session)?;
            let size = draft.size;
            if size.n_bytes > max_bytes {
                return Err(SessionError::NoSpace {
                    n_bytes: size.n_bytes,
                    max_bytes,
                });
            }
            write_atomically(path, |file| draft.write(file))?;
            Ok(size)
        };
        save().map_err(at(path))
    }

    /// Loads the memory of a session into the prefix cache, for requests with this salt. Like all entries
    /// there, it makes room for other prompts if it is not used for long.
    ///
    /// # Errors
    /// [`Error::Session`]: the file is not whole, is of another model or of another arrangement of its memory, or there is no room
    /// for it. Nothing has changed then: the conversation is computed as if there were no file.
    pub fn restore_session(&self, path: impl AsRef<Path>, cache_salt: u64) -> Result<Session, Error> {
        let path = path.as_ref();
        let (session, _) = self.restore_opened(SessionFile::open(path)?, path, cache_salt)?;
        Ok(session)
    }

    /// As [`Self::restore_session`], of a file that was opened at `path`; also returns its size.
    ///
    /// # Errors
    /// As [`Self::restore_session`].
    pub fn restore_opened(
        &self,
        file: SessionFile,
        path: &Path,
        cache_salt: u64,
    ) -> Result<(Session, SessionSize), Error> {
        let session = Session {
            tokens: file.header.tokens.clone(),
            notes: file.header.notes.clone(),
            cache_salt,
        };
        let size = file.restore(&self.owner(), cache_salt);
        Ok((session, size.map_err(at(path))?))
    }

    fn owner(&self) -> Owner<'_> {
        Owner {
            engine: self.engine(),
            identity: self.identity(),
        }
    }
}

/// Removes partial files of a folder, left by processes that were killed while they saved sessions.
///
/// # Errors
/// [`Error::Read`] where the folder cannot be read, or the files not removed.
pub fn remove_unfinished_sessions(folder: impl AsRef<Path>) -> Result<(), Error> {
    let folder = folder.as_ref();
    atomic_write::remove_unfinished(folder).map_err(|source| Error::Read {
        path: folder.to_owned(),
        source,
    })
}
