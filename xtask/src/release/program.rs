//! [`Linkage`]: the requirements of a program on the machine that will run it, read from its file.
//!
//! Source: the ELF format, 64 bits, little-endian.

use anyhow::{Context, ensure};

/// The type of the program header that names the loader of libraries.
const INTERPRETER: u32 = 3;

/// The libraries that a program is linked with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Linkage {
    /// Nothing.
    Static,
    /// Libraries, including a C library of at least this version.
    Dynamic {
        /// Major and minor version of glibc.
        glibc: Option<(u32, u32)>,
    },
}

impl Linkage {
    /// Reads the bytes of a program.
    ///
    /// # Errors
    /// Bytes of something else.
    pub(super) fn of(bytes: &[u8]) -> anyhow::Result<Self> {
        ensure!(bytes.starts_with(b"\x7fELF\x02\x01"), "it is no 64-bit ELF file");
        let number = |at: usize, n_bytes: usize| -> anyhow::Result<u64> {
            let field = bytes
                .get(at..at + n_bytes)
                .context("it ends within its headers")?;
            Ok(field
                .iter()
                .rev()
                .fold(0, |sum, &byte| sum << 8 | u64::from(byte)))
        };
        let first = usize::try_from(number(32, 8)?)?;
        let (size, n_headers) = (number(54, 2)? as usize, number(56, 2)? as usize);
        for idx in 0..n_headers {
            if number(first.saturating_add(idx * size), 4)? == u64::from(INTERPRETER) {
                return Ok(Self::Dynamic {
                    glibc: newest_glibc(bytes),
                });
            }
        }
        Ok(Self::Static)
    }
}

/// Returns the newest version of glibc that its symbols name, such as `GLIBC_2.34`.
fn newest_glibc(bytes: &[u8]) -> Option<(u32, u32)> {
    const PREFIX: &[u8] = b"GLIBC_";
    let places = (bytes.windows(PREFIX.len()).enumerate()).filter(|(_, part)| *part == PREFIX);
    let versions = places.filter_map(|(at, _)| {
        let rest = &bytes[at + PREFIX.len()..];
        let end = rest.iter().position(|byte| *byte == 0)?;
        let text = std::str::from_utf8(&rest[..end]).ok()?;
        let (major, minor) = text.split_once('.')?;
        let minor = minor.split('.').next()?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    });
    versions.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a file with one program header of this type.
    fn file(header: u32, tail: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = 1;
        bytes.extend(header.to_le_bytes());
        bytes.extend([0; 52]);
        bytes.extend(tail);
        bytes
    }

    #[test]
    fn a_program_without_a_loader_is_static() {
        assert_eq!(Linkage::of(&file(1, b"GLIBC_2.30\0")).unwrap(), Linkage::Static);
        let symbols = b"GLIBC_2.9\0GLIBC_2.34\0GLIBC_2.2.5\0GLIBC_PRIVATE\0";
        let glibc = Some((2, 34));
        assert_eq!(
            Linkage::of(&file(3, symbols)).unwrap(),
            Linkage::Dynamic { glibc }
        );
        assert!(Linkage::of(b"#!/bin/sh").is_err());
        assert!(Linkage::of(&file(3, b"")[..60]).is_err());
    }

    #[test]
    fn this_test_is_a_program() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        if cfg!(target_os = "linux") {
            assert!(Linkage::of(&own).is_ok());
        }
    }
}
