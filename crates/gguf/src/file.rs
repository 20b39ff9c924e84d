//! [`GgufFile`]: a model file opened for reading, one or several parts on disk.
//!
//! [`Header`], in contrast, needs no file. Invariant: only headers are read when a file is opened; the bytes
//! of a tensor are read on access.

use std::{collections::HashMap, io, path::Path, sync::Arc};

use crate::{
    GgufError, Header, Metadata, RegularFile, TensorInfo, TensorView, split, split::Part, storage::Storage,
};

/// An open GGUF model: its metadata, and its tensors, which can be read.
///
/// ```no_run
/// use tokenmill_gguf::GgufFile;
///
/// let file = GgufFile::open("model.gguf")?;
/// println!("{}", file.metadata().str("general.architecture")?);
/// for tensor in file.tensors() {
///     println!("{} {} {:?}", tensor.name, tensor.ty, tensor.dims);
/// }
/// # Ok::<(), tokenmill_gguf::GgufError>(())
/// ```
#[derive(Debug)]
pub struct GgufFile {
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    tensor_idx_by_name: HashMap<String, usize>,
    parts: Vec<OpenPart>,
}

#[derive(Debug)]
struct OpenPart {
    storage: Storage,
    data_offset: usize,
}

#[expect(
    unsafe_code,
    reason = "a map is unsafe where another process can shorten the file"
)]
impl GgufFile {
    /// Opens a model file. For a split model any part may be given; the others are found in the same folder.
    ///
    /// Tensors are read from the files on access. If a file has become shorter by then, that read returns an
    /// error.
    ///
    /// # Errors
    /// [`GgufError::Io`] if a file cannot be opened, [`GgufError::InFile`] with the reason if one is refused.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        Self::open_with(path.as_ref(), |file| Ok(Storage::File(Arc::new(file))))
    }

    /// Opens a model file as [`Self::open`] does, and maps it into memory:
    /// [`TensorBytes::as_slice`](crate::TensorBytes::as_slice) returns tensors without a copy.
    ///
    /// # Errors
    /// As [`Self::open`].
    ///
    /// # Safety
    /// No process writes to the files or shortens them while this value lives: a read beyond the new end of a
    /// mapped file stops the process with a signal, and changed bytes break Rust's rules for shared
    /// references. The caller owns the files, or knows that only their owner can change them.
    pub unsafe fn map(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        Self::open_with(path.as_ref(), |file| {
            // SAFETY: the caller upholds the contract of `Storage::map`.
            unsafe { Storage::map(&file) }
        })
    }
}

impl GgufFile {
    fn open_with(path: &Path, store: impl Fn(RegularFile) -> io::Result<Storage>) -> Result<Self, GgufError> {
        let (storage, header) = open_part(path, &store)?;
        let in_file = |reason| in_file(path, reason);
        let Some(part) = Part::of(&header.metadata).map_err(in_file)? else {
            return Ok(Self::from_parts(vec![(storage, header)]).expect("one part, whose names were checked"));
        };
        let mut opened = Some((storage, header));
        let mut parts = Vec::new();
        for no in 0..part.count {
            let sibling_path = part.sibling(path, no).map_err(in_file)?;
            let (storage, header) = if no == part.no {
                opened.take().expect("each number comes once")
            } else {
                open_part(&sibling_path, &store).map_err(|error| match error {
                    GgufError::Io { path, reason } if reason.kind() == io::ErrorKind::NotFound => {
                        GgufError::MissingPart {
                            no: no + 1,
                            count: part.count,
                            path,
                        }
                    }
                    other => other,
                })?
            };
            check_part(&header.metadata, Part { no, ..part })
                .map_err(|reason| self::in_file(&sibling_path, reason))?;
            parts.push((storage, header));
        }
        Self::from_parts(parts).map_err(in_file)
    }

    /// Reads a model from memory, for example one embedded in a program. The bytes are copied once.
    ///
    /// # Errors
    /// The [`GgufError`] for which the bytes were refused. A part of a split model is refused, because the
    /// others cannot be found.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, GgufError> {
        let header = Header::parse(bytes)?;
        if let Some(part) = Part::of(&header.metadata)? {
            return Err(GgufError::SplitInMemory {
                no: part.no + 1,
                count: part.count,
            });
        }
        Self::from_parts(vec![(Storage::Memory(bytes.to_vec()), header)])
    }

    /// Combines parts whose headers were checked one by one.
    fn from_parts(parts: Vec<(Storage, Header)>) -> Result<Self, GgufError> {
        let mut file = Self {
            metadata: Metadata::new(),
            tensors: Vec::new(),
            tensor_idx_by_name: HashMap::new(),
            parts: Vec::with_capacity(parts.len()),
        };
        for (part_idx, (storage, header)) in parts.into_iter().enumerate() {
            for mut tensor in header.tensors {
                tensor.part = part_idx;
                let before = file
                    .tensor_idx_by_name
                    .insert(tensor.name.clone(), file.tensors.len());
                if before.is_some() {
                    return Err(GgufError::DuplicateTensor { name: tensor.name });
                }
                file.tensors.push(tensor);
            }
            // The first part has the model's metadata, the others only their number.
            if part_idx == 0 {
                file.metadata = header.metadata;
            }
            file.parts.push(OpenPart {
                storage,
                data_offset: header.data_offset,
            });
        }
        if file.parts.len() > 1
            && let Some(expected) = file.metadata.opt_usize(split::TENSORS_COUNT_KEY)?
            && expected != file.tensors.len()
        {
            return Err(GgufError::SplitMismatch {
                key: split::TENSORS_COUNT_KEY,
                expected: file.tensors.len(),
                found: expected,
            });
        }
        Ok(file)
    }

    /// Returns the metadata of the model.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Returns the tensors in file order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.tensors.iter()
    }

    /// Returns the tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let info = &self.tensors[*self.tensor_idx_by_name.get(name)?];
        let part = &self.parts[info.part];
        let start = part.data_offset as u64 + info.offset;
        Some(TensorView {
            info,
            bytes: part.storage.tensor(start, info.n_bytes),
        })
    }

    /// Returns the number of files that the model is split into; 1 for an unsplit one.
    pub fn n_parts(&self) -> usize {
        self.parts.len()
    }

    /// Returns the paths of the files that are read, in the order of the parts; none for maps and memory.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.parts.iter().filter_map(|part| part.storage.path())
    }

    /// Returns the size of all files together, in bytes.
    pub fn n_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.storage.n_bytes()).sum()
    }
}

fn in_file(path: &Path, reason: GgufError) -> GgufError {
    GgufError::InFile {
        path: path.to_owned(),
        reason: Box::new(reason),
    }
}

/// Opens a file and reads its header.
fn open_part(
    path: &Path,
    store: impl Fn(RegularFile) -> io::Result<Storage>,
) -> Result<(Storage, Header), GgufError> {
    let io_error = |reason| GgufError::Io {
        path: path.to_owned(),
        reason,
    };
    let in_file = |reason| in_file(path, reason);
    let file = RegularFile::open(path).map_err(io_error)?;
    if file.n_bytes() == 0 {
        return Err(in_file(GgufError::Empty));
    }
    let header = Header::read(&file, file.n_bytes()).map_err(in_file)?;
    let storage = store(file).map_err(io_error)?;
    Ok((storage, header))
}

/// Checks that a file's metadata and its name agree on its part number.
fn check_part(metadata: &Metadata, expected: Part) -> Result<(), GgufError> {
    let found = Part::of(metadata)?.unwrap_or(Part { no: 0, count: 1 });
    for (key, expected, found) in [
        (split::COUNT_KEY, expected.count, found.count),
        (split::NO_KEY, expected.no, found.no),
    ] {
        if expected != found {
            return Err(GgufError::SplitMismatch { key, expected, found });
        }
    }
    Ok(())
}
