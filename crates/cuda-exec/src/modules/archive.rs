//! [`Entry`] and [`Cubins`]: modules in an archive, each compressed separately.
//!
//! Invariant: a run unpacks only the modules that it loads; a damaged module is `None`.

use std::{
    fmt,
    io::{self, Read as _, Write as _},
    sync::Arc,
};

use lzma_rust2::{LzmaOptions, LzmaReader, LzmaWriter};

use crate::{CudaExecError, error::Result};

/// Dictionary size of a module's stream: more than the longest module.
const WINDOW_BYTES: u32 = 2 << 20;
/// Memory limit of unpacking.
const MEMORY_KIB: u32 = 16 << 10;

/// A module in an archive: its name, the length of its PTX, and the PTX as LZMA with a header. In the archive it is the
/// length of the name (one byte), the name, the lengths of PTX and stream (four bytes each, little-endian), and the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The module's name.
    pub name: &'a str,
    /// Bytes of the PTX.
    pub ptx_bytes: usize,
    /// The PTX, compressed.
    pub stream: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Lists the modules of an archive, up to the first damaged one.
    pub fn all(archive: &'a [u8]) -> impl Iterator<Item = Self> {
        let mut rest = archive;
        std::iter::from_fn(move || {
            let entry;
            (entry, rest) = Self::split_first(rest)?;
            Some(entry)
        })
    }

    fn split_first(archive: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (&name_len, rest) = archive.split_first()?;
        let (name, rest) = rest.split_at_checked(name_len.into())?;
        let ([ptx_bytes, stream_bytes], rest) = rest.split_at_checked(8).and_then(|(lengths, rest)| {
            let lengths: &[[u8; 4]] = lengths.as_chunks().0;
            let lengths: [[u8; 4]; 2] = lengths.try_into().ok()?;
            Some((lengths.map(|bytes| u32::from_le_bytes(bytes) as usize), rest))
        })?;
        let (stream, rest) = rest.split_at_checked(stream_bytes)?;
        let name = std::str::from_utf8(name).ok()?;
        let entry = Self {
            name,
            ptx_bytes,
            stream,
        };
        Some((entry, rest))
    }

    /// Appends the module to an archive.
    ///
    /// # Panics
    /// If a length does not fit.
    pub fn append_to(&self, archive: &mut Vec<u8>) {
        let length = |bytes: usize| u32::try_from(bytes).expect("a module below 4 GiB").to_le_bytes();
        archive.push(u8::try_from(self.name.len()).expect("a name below 256 bytes"));
        archive.extend(self.name.as_bytes());
        archive.extend(length(self.ptx_bytes));
        archive.extend(length(self.stream.len()));
        archive.extend(self.stream);
    }

    /// Compresses a module and appends it to an archive.
    ///
    /// # Panics
    /// If a length does not fit.
    pub fn append(archive: &mut Vec<u8>, name: &str, bytes: &[u8]) {
        let mut options = LzmaOptions::with_preset(6);
        options.dict_size = WINDOW_BYTES;
        // For text: a byte depends little on its position, and much on the bytes before it.
        (options.lc, options.pb) = (4, 0);
        let compress = || -> io::Result<Vec<u8>> {
            let mut writer = LzmaWriter::new_use_header(Vec::new(), &options, Some(bytes.len() as u64))?;
            writer.write_all(bytes)?;
            writer.finish()
        };
        let stream = compress().expect("a vector takes all that is written");
        let entry = Entry {
            name,
            ptx_bytes: bytes.len(),
            stream: &stream,
        };
        entry.append_to(archive);
    }

    /// Unpacks the PTX; `None` if the stream is damaged.
    pub fn ptx(&self) -> Option<String> {
        String::from_utf8(self.bytes()?).ok()
    }

    /// Unpacks the module's contents; `None` if the stream is damaged.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        let mut reader = LzmaReader::new_mem_limit(self.stream, MEMORY_KIB, None).ok()?;
        let mut bytes = Vec::with_capacity(self.ptx_bytes);
        // Room for one byte more than expected, to detect a stream that is too long.
        reader
            .by_ref()
            .take(self.ptx_bytes as u64 + 1)
            .read_to_end(&mut bytes)
            .ok()?;
        (bytes.len() == self.ptx_bytes).then_some(bytes)
    }
}

/// First bytes of a file of precompiled kernels: its kind and the version of its format.
const CUBINS_MAGIC: &[u8; 15] = b"tokenmill cubin";
const CUBINS_VERSION: u8 = 2;
/// CUDA version of the assembler of the cubins, which `cargo xtask ptx` pins; an older driver does not load its code.
pub(crate) const CUBINS_TOOLKIT: (u32, u32) = (13, 0);
/// Bytes before the modules: the above, and the fingerprint of the PTX that they were compiled from.
const CUBINS_HEADER_BYTES: usize = CUBINS_MAGIC.len() + 1 + 8;

/// An archive of kernels that were compiled ahead, for a driver without a compiler. After its header its modules are named `sm_90/norm`: the
/// compute capability, and the module.
#[derive(Clone)]
pub struct Cubins(Arc<[u8]>);

impl fmt::Debug for Cubins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cubins({} bytes)", self.0.len())
    }
}

impl Cubins {
    /// Reads an archive: the result of [`Self::header`], then [`Entry`]s.
    ///
    /// # Errors
    /// [`CudaExecError::Cubins`] if it is not such an archive, or has another version or the kernels of another program.
    pub fn new(archive: impl Into<Arc<[u8]>>) -> Result<Self> {
        let archive = archive.into();
        let refused = |reason: &str| CudaExecError::Cubins {
            reason: reason.to_owned(),
        };
        let header = archive.get(..CUBINS_HEADER_BYTES);
        let header = header.filter(|header| header.starts_with(CUBINS_MAGIC));
        let header = header.ok_or_else(|| refused("it is not a file of precompiled kernels"))?;
        let version = header[CUBINS_MAGIC.len()];
        if version != CUBINS_VERSION {
            return Err(refused(&format!(
                "its format has version {version}, this program reads version {CUBINS_VERSION}"
            )));
        }
        if header != Self::header() {
            return Err(refused("its kernels are those of another build of this program"));
        }
        Ok(Self(archive))
    }

    /// Returns the first bytes of an archive with code of this program's kernels.
    pub fn header() -> Vec<u8> {
        let mut header = CUBINS_MAGIC.to_vec();
        header.push(CUBINS_VERSION);
        header.extend(super::fingerprint().to_le_bytes());
        header
    }

    /// Finds a module's code for exactly this compute capability, if a driver of this CUDA version loads it. It comes from the pinned
    /// assembler, so its registers and spills are known and nothing has to be compiled.
    pub(crate) fn find_exact(
        &self,
        (major, minor): (u32, u32),
        cuda_version: (u32, u32),
        module: &str,
    ) -> Option<Vec<u8>> {
        let is_loaded = cuda_version.0 == CUBINS_TOOLKIT.0 && cuda_version >= CUBINS_TOOLKIT;
        let name = format!("sm_{major}{minor}/{module}");
        let mut entries = Entry::all(&self.0[CUBINS_HEADER_BYTES..]).filter(|_| is_loaded);
        entries.find(|entry| entry.name == name)?.bytes()
    }

    /// Returns the code of a module that a GPU of this compute capability runs: of the same major version, and the newest minor version that
    /// is not newer.
    pub(crate) fn find(&self, capability: (u32, u32), module: &str) -> Option<Vec<u8>> {
        let (major, minor) = capability;
        let version = |name: &str| -> Option<u32> {
            let (folder, name) = name.split_once('/')?;
            let version: u32 = folder.strip_prefix("sm_")?.parse().ok()?;
            (name == module && version / 10 == major && version % 10 <= minor).then_some(version)
        };
        Entry::all(&self.0[CUBINS_HEADER_BYTES..])
            .filter_map(|entry| Some((version(entry.name)?, entry)))
            .max_by_key(|&(version, _)| version)
            .and_then(|(_, entry)| entry.bytes())
    }
}

/// Computes the 64 bits that identify a build of the kernels: FNV-1a.
pub(super) fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_format_or_of_other_kernels_is_refused_by_name() {
        let check = |archive: Vec<u8>, expected: &str| {
            let error = Cubins::new(archive).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains('\n'), "{error}");
        };
        // The form of such files before they had a header.
        let mut old = Vec::new();
        Entry::append(&mut old, "sm_90/norm", b"code");
        check(old, "not a file of precompiled kernels");
        check(Vec::new(), "not a file of precompiled kernels");
        let mut header = Cubins::header();
        assert_eq!(header.len(), CUBINS_HEADER_BYTES);
        header[CUBINS_MAGIC.len()] = 7;
        check(header, "version 7, this program reads version 2");
        let mut header = Cubins::header();
        header[CUBINS_HEADER_BYTES - 1] ^= 1;
        check(header, "another build");
        assert!(
            Cubins::new(Cubins::header())
                .unwrap()
                .find((9, 0), "norm")
                .is_none()
        );
        // Published values of the function.
        assert_eq!(fingerprint(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fingerprint(b"a"), 0xaf63_dc4c_8601_ec8c);
    }

    #[test]
    fn a_gpu_gets_the_newest_code_that_it_runs() {
        let mut archive = Cubins::header();
        for name in [
            "sm_80/norm",
            "sm_86/norm",
            "sm_90/norm",
            "sm_86/rope",
            "sm_x/norm",
            "norm",
        ] {
            Entry::append(&mut archive, name, name.as_bytes());
        }
        let cubins = Cubins::new(archive).unwrap();
        let check = |capability, expected: Option<&str>| {
            let found = cubins.find(capability, "norm");
            assert_eq!(found.as_deref(), expected.map(str::as_bytes), "{capability:?}");
        };
        check((8, 0), Some("sm_80/norm"));
        check((8, 9), Some("sm_86/norm"));
        check((9, 0), Some("sm_90/norm"));
        check((10, 0), None);
        assert_eq!(cubins.find((8, 0), "rope"), None);
        // Only code of the same capability is used before the driver's compiler, and only by drivers that load it.
        let exact = |capability, cuda| cubins.find_exact(capability, cuda, "norm").is_some();
        assert!(exact((9, 0), (13, 0)) && exact((8, 6), (13, 2)));
        assert!(!exact((8, 9), (13, 0)) && !exact((9, 0), (12, 9)) && !exact((9, 0), (14, 0)));
    }

    #[test]
    fn an_archive_gives_what_was_appended_and_ends_where_it_is_cut() {
        let mut one = Vec::new();
        Entry::append(&mut one, "norm", b".version 7.4");
        let entry = Entry::all(&one).next().unwrap();
        assert_eq!((entry.name, entry.ptx_bytes), ("norm", 12));
        let mut archive = one.clone();
        entry.append_to(&mut archive);
        assert_eq!(Entry::all(&archive).collect::<Vec<_>>(), [entry, entry]);
        assert_eq!(entry.ptx().as_deref(), Some(".version 7.4"));
        for end in archive.len() / 2..archive.len() {
            assert_eq!(Entry::all(&archive[..end]).collect::<Vec<_>>(), [entry]);
        }
        // A stream of another length than stated is damaged, and so is one that ends early.
        for ptx_bytes in [11, 13] {
            assert_eq!(Entry { ptx_bytes, ..entry }.ptx(), None);
        }
        let stream = &entry.stream[..entry.stream.len() - 4];
        assert_eq!(Entry { stream, ..entry }.ptx(), None);
    }
}
