//! [`GgufFile`]: a model file opened for reading, one or several parts on disk.
//!
//! Apart from [`Header`], which needs no file. Invariant: only headers are read when a file is opened; tensor bytes are
//! touched when someone looks at them.

use std::{
    collections::HashMap,
    fs::{self, File},
    io,
    ops::Range,
    path::Path,
};

use crate::{GgufError, Header, Metadata, TensorInfo, TensorView, split, split::Part, storage::Storage};

/// An open GGUF model: its metadata and its tensors, mapped into memory.
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
    parts: Vec<MappedPart>,
}

#[derive(Debug)]
struct MappedPart {
    storage: Storage,
    data_offset: usize,
}

impl GgufFile {
    /// Opens a model file. Of a split model any part may be given; the others are found in the same folder.
    ///
    /// The files are mapped, not read: they must not be changed or truncated while this value lives.
    ///
    /// # Errors
    /// [`GgufError::Io`] when a file cannot be opened, [`GgufError::InFile`] with the reason when one is refused.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        let path = path.as_ref();
        let (storage, header) = map(path)?;
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
                map(&sibling_path).map_err(|error| match error {
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

    /// Reads a model from memory, for example one that is embedded in a program. The bytes are copied once.
    ///
    /// # Errors
    /// The [`GgufError`] for which the bytes were refused; a part of a split model is refused, for there is no place
    /// to find the others.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, GgufError> {
        let header = Header::parse(bytes)?;
        if let Some(part) = Part::of(&header.metadata)? {
            return Err(GgufError::SplitInMemory {
                no: part.no + 1,
                count: part.count,
            });
        }
        Self::from_parts(vec![(Storage::copy(bytes), header)])
    }

    /// Puts parts together whose headers were checked one by one.
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
            // The first part carries the model's metadata, the others only their number.
            if part_idx == 0 {
                file.metadata = header.metadata;
            }
            file.parts.push(MappedPart {
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

    /// The metadata of the model.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The tensors in file order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.tensors.iter()
    }

    /// The tensor of this name, with its bytes.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let info = &self.tensors[*self.tensor_idx_by_name.get(name)?];
        let bytes = &self.parts[info.part].storage.bytes()[self.range_of(info)];
        Some(TensorView { info, bytes })
    }

    /// Number of files the model is split into; 1 for a whole one.
    pub fn n_parts(&self) -> usize {
        self.parts.len()
    }

    /// Bytes of all files together.
    pub fn n_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.storage.bytes().len()).sum()
    }

    /// Asks the system to read all tensor data ahead, for a caller that will need all of it at once.
    pub fn prefetch(&self) {
        for part in &self.parts {
            part.storage
                .prefetch(part.data_offset..part.storage.bytes().len());
        }
    }

    /// Tells the system that a tensor's bytes are not needed any more, say after they were repacked. They stay
    /// readable.
    pub fn release(&self, tensor: &TensorInfo) {
        if let Some(TensorView { info, .. }) = self.tensor(&tensor.name) {
            self.parts[info.part].storage.release(self.range_of(info));
        }
    }

    /// Where a tensor of this file lies in its part.
    fn range_of(&self, info: &TensorInfo) -> Range<usize> {
        let start = self.parts[info.part].data_offset + info.offset as usize;
        start..start + info.n_bytes
    }
}

fn in_file(path: &Path, reason: GgufError) -> GgufError {
    GgufError::InFile {
        path: path.to_owned(),
        reason: Box::new(reason),
    }
}

/// Maps a file and parses its header.
fn map(path: &Path) -> Result<(Storage, Header), GgufError> {
    let io_error = |reason| GgufError::Io {
        path: path.to_owned(),
        reason,
    };
    // Asked before it is opened: opening a pipe would wait for its other end.
    let on_disk = fs::metadata(path).map_err(io_error)?;
    if !on_disk.is_file() {
        return Err(GgufError::NotAFile {
            path: path.to_owned(),
        });
    }
    if on_disk.len() == 0 {
        return Err(in_file(path, GgufError::Empty));
    }
    let file = File::open(path).map_err(io_error)?;
    let storage = Storage::map(&file).map_err(io_error)?;
    let header = Header::parse(storage.bytes()).map_err(|reason| in_file(path, reason))?;
    Ok((storage, header))
}

/// Checks that a file's metadata calls it the part that its name says.
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
