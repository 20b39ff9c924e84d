//! [`Digest`]: the hash that verifies a file.
//!
//! There are two kinds of hashes: SHA-256 for large files, and Git's for small ones. Invariant: an etag that
//! is neither is not treated as a hash, and such a file is verified by its size alone.

use std::{
    fmt::Write as _,
    fs::{self, File},
    io::Read as _,
    path::Path,
};

use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use crate::{HubError, PullEvent, PullObserver};

/// The hash of the bytes so far.
pub(crate) enum Digest {
    /// For a large file.
    Sha256(Sha256),
    /// For a small file: SHA-1 of a header with the size, and of the contents.
    Git(Sha1),
    /// The etag is not a hash.
    Unknown,
}

impl Digest {
    /// Creates the hash that an etag belongs to.
    pub(crate) fn of_etag(etag: &str, n_bytes: u64) -> Self {
        let is_hex = etag.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        match etag.len() {
            64 if is_hex => Self::Sha256(Sha256::new()),
            40 if is_hex => Self::Git(Sha1::new().chain_update(format!("blob {n_bytes}\0"))),
            _ => Self::Unknown,
        }
    }

    /// Adds the next bytes.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(digest) => digest.update(bytes),
            Self::Git(digest) => digest.update(bytes),
            Self::Unknown => {}
        }
    }

    /// Returns the hash in hexadecimal digits; `None` if it is unknown.
    pub(crate) fn finish(self) -> Option<String> {
        match self {
            Self::Sha256(digest) => Some(hex(&digest.finalize())),
            Self::Git(digest) => Some(hex(&digest.finalize())),
            Self::Unknown => None,
        }
    }
}

/// Hashes the file called `name`, and removes it if its bytes do not match the etag. Returns whether it was
/// removed.
pub(crate) fn remove_if_damaged(
    path: &Path,
    etag: &str,
    name: &str,
    observer: &dyn PullObserver,
) -> Result<bool, HubError> {
    let Some(found) = hash_of(path, etag, observer)?.filter(|found| found != etag) else {
        observer.event(PullEvent::Checked { file: name });
        return Ok(false);
    };
    fs::remove_file(path).map_err(HubError::file("remove", path))?;
    observer.event(PullEvent::Restarting {
        file: name,
        reason: &format!("it is damaged here: its hash is {found}, and {etag} was announced"),
    });
    Ok(true)
}

/// Returns the hash of a file, of the etag's kind; `None` if the etag is not a hash.
fn hash_of(path: &Path, etag: &str, observer: &dyn PullObserver) -> Result<Option<String>, HubError> {
    const BUFFER_BYTES: usize = 1 << 20;
    let unreadable = || HubError::file("read", path);
    let mut file = File::open(path).map_err(unreadable())?;
    let n_bytes = file.metadata().map_err(unreadable())?.len();
    let mut digest = Digest::of_etag(etag, n_bytes);
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        if observer.is_cancelled() {
            return Err(HubError::Cancelled);
        }
        match file.read(&mut buffer).map_err(unreadable())? {
            0 => return Ok(digest.finish()),
            n_read => digest.update(&buffer[..n_read]),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        write!(text, "{byte:02x}").expect("writing to a string does not fail");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(etag: &str, bytes: &[u8]) -> Option<String> {
        let mut digest = Digest::of_etag(etag, bytes.len() as u64);
        digest.update(bytes);
        digest.finish()
    }

    #[test]
    fn hashes_are_those_of_git_and_of_its_large_files() {
        // `echo 'hello' | git hash-object --stdin` and `echo 'hello' | sha256sum`.
        let git = "ce013625030ba8dba906f756967f9e9ca394464a";
        let large = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        assert_eq!(hash(git, b"hello\n").as_deref(), Some(git));
        assert_eq!(hash(large, b"hello\n").as_deref(), Some(large));
        assert_eq!(hash("5d41402abc4b2a76-3", b"hello\n"), None);
    }
}
