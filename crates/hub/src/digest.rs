//! [`Digest`]: the hash that a file is checked by.
//!
//! Separate because two kinds of files have two kinds of hashes: large ones their SHA-256, small ones the one that Git gives them.
//! Invariant: an etag that is neither is no hash, and such a file is checked by its size alone.

use std::fmt::Write as _;

use sha1::Sha1;
use sha2::{Digest as _, Sha256};

/// The hash of a file, as far as it was fed.
pub(crate) enum Digest {
    /// Of a large file.
    Sha256(Sha256),
    /// Of a small one: SHA-1 of a head with the size, and of the file.
    Git(Sha1),
    /// The etag is no hash.
    Unknown,
}

impl Digest {
    /// The hash that an etag is one of.
    pub(crate) fn of_etag(etag: &str, n_bytes: u64) -> Self {
        let is_hex = etag.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        match etag.len() {
            64 if is_hex => Self::Sha256(Sha256::new()),
            40 if is_hex => Self::Git(Sha1::new().chain_update(format!("blob {n_bytes}\0"))),
            _ => Self::Unknown,
        }
    }

    /// Takes the next bytes.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(digest) => digest.update(bytes),
            Self::Git(digest) => digest.update(bytes),
            Self::Unknown => {}
        }
    }

    /// The hash in hexadecimal digits; `None` where it is not known.
    pub(crate) fn finish(self) -> Option<String> {
        match self {
            Self::Sha256(digest) => Some(hex(&digest.finalize())),
            Self::Git(digest) => Some(hex(&digest.finalize())),
            Self::Unknown => None,
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
