//! [`GgufWriter`]: writes GGUF files.
//!
//! It works in two steps, because tensor data may be larger than memory: the writer collects metadata and
//! tensor descriptions, then [`TensorDataWriter`] takes the bytes in the same order. Invariant: the reader
//! accepts everything that it writes; both sides run the same checks.

use std::{collections::HashSet, io::Write};

use crate::{
    Array, GgufError, Metadata, TensorInfo, TensorType, Value,
    header::{MAGIC, alignment_of},
};

/// Collects the metadata and the tensor descriptions of a file, then writes its header.
///
/// See [`Header`](crate::Header) for an example.
#[derive(Clone, Debug)]
pub struct GgufWriter {
    version: u32,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    names: HashSet<String>,
}

impl Default for GgufWriter {
    fn default() -> Self {
        Self::new()
    }
}

impl GgufWriter {
    /// Starts a file of version 3 without metadata and tensors.
    pub fn new() -> Self {
        Self {
            version: 3,
            metadata: Metadata::new(),
            tensors: Vec::new(),
            names: HashSet::new(),
        }
    }

    /// Starts a file with the metadata of another.
    pub fn with_metadata(metadata: Metadata) -> Self {
        Self {
            metadata,
            ..Self::new()
        }
    }

    /// Returns the metadata, to add entries.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// Sets the version of the format.
    ///
    /// # Errors
    /// [`GgufError::UnsupportedVersion`] for versions other than 2 and 3.
    pub fn set_version(&mut self, version: u32) -> Result<(), GgufError> {
        if !(2..=3).contains(&version) {
            return Err(GgufError::UnsupportedVersion { found: version });
        }
        self.version = version;
        Ok(())
    }

    /// Adds a tensor with its dimensions, the contiguous one first.
    ///
    /// # Errors
    /// The [`GgufError`] that a reader would return for its name or dimensions.
    pub fn add_tensor(&mut self, name: &str, ty: TensorType, dims: &[u64]) -> Result<(), GgufError> {
        let info = TensorInfo::new(self.tensors.len(), name, ty, dims, 0)?;
        if !self.names.insert(info.name.clone()) {
            return Err(GgufError::DuplicateTensor { name: info.name });
        }
        self.tensors.push(info);
        Ok(())
    }

    /// Returns the tensors added so far; their offsets are set when the header is written.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Writes the header to `out` and continues with the tensor data.
    ///
    /// # Errors
    /// [`GgufError::Write`], [`GgufError::BadAlignment`], or [`GgufError::WrongType`] for
    /// `general.alignment`.
    pub fn write_header<W: Write>(mut self, mut out: W) -> Result<TensorDataWriter<W>, GgufError> {
        let Layout {
            header, alignment, ..
        } = self.lay_out()?;
        out.write_all(&header)
            .map_err(|reason| GgufError::Write { reason })?;
        Ok(TensorDataWriter {
            out,
            tensors: self.tensors,
            alignment,
            tensor_idx: 0,
            n_written: 0,
        })
    }

    /// Returns the bytes of the whole file: its header, its tensors and the padding between them.
    ///
    /// # Errors
    /// As [`Self::write_header`].
    pub fn n_file_bytes(&self) -> Result<u64, GgufError> {
        let layout = self.clone().lay_out()?;
        Ok((layout.header.len() as u64).saturating_add(layout.n_data_bytes))
    }

    /// Assigns offsets to the tensors.
    fn lay_out(&mut self) -> Result<Layout, GgufError> {
        let alignment = alignment_of(&self.metadata)? as usize;
        let mut offset = 0_u64;
        for tensor in &mut self.tensors {
            tensor.offset = offset;
            offset = offset
                .checked_add(tensor.n_bytes as u64)
                .and_then(|end| end.checked_next_multiple_of(alignment as u64))
                .ok_or_else(|| GgufError::BadDims {
                    name: tensor.name.clone(),
                    dims: tensor.dims.iter().map(|&dim| dim as u64).collect(),
                })?;
        }

        let mut bytes = Vec::new();
        bytes.extend(MAGIC);
        bytes.extend(self.version.to_le_bytes());
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in self.metadata.iter() {
            push_str(&mut bytes, key);
            bytes.extend(value.value_type().id().to_le_bytes());
            push_value(&mut bytes, value);
        }
        for tensor in &self.tensors {
            push_str(&mut bytes, &tensor.name);
            bytes.extend((tensor.dims.len() as u32).to_le_bytes());
            for &dim in &tensor.dims {
                bytes.extend((dim as u64).to_le_bytes());
            }
            bytes.extend(tensor.ty.id().to_le_bytes());
            bytes.extend(tensor.offset.to_le_bytes());
        }
        bytes.resize(bytes.len().next_multiple_of(alignment), 0);
        Ok(Layout {
            header: bytes,
            alignment,
            n_data_bytes: offset,
        })
    }
}

/// The layout of a file.
struct Layout {
    header: Vec<u8>,
    alignment: usize,
    /// Number of bytes after the header.
    n_data_bytes: u64,
}

/// Writes the tensor data of a file, tensor after tensor in the order in which they were added.
#[derive(Debug)]
pub struct TensorDataWriter<W> {
    out: W,
    tensors: Vec<TensorInfo>,
    alignment: usize,
    /// Index of the current tensor.
    tensor_idx: usize,
    /// Number of its bytes written.
    n_written: usize,
}

impl<W: Write> TensorDataWriter<W> {
    /// Returns the tensor whose bytes come next; `None` after the last.
    pub fn due(&self) -> Option<&TensorInfo> {
        self.tensors.get(self.tensor_idx)
    }

    /// Appends bytes to the current tensor, all of them or a piece; a complete tensor is padded and the next
    /// becomes current.
    ///
    /// # Errors
    /// [`GgufError::WrongTensorBytes`] if the bytes exceed its end, [`GgufError::NoTensorDue`] after the
    /// last, [`GgufError::Write`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), GgufError> {
        let Some(tensor) = self.tensors.get(self.tensor_idx) else {
            return Err(GgufError::NoTensorDue { n_bytes: bytes.len() });
        };
        let n_written = self.n_written.saturating_add(bytes.len());
        if n_written > tensor.n_bytes {
            return Err(GgufError::WrongTensorBytes {
                name: tensor.name.clone(),
                expected: tensor.n_bytes,
                found: n_written,
            });
        }
        self.out
            .write_all(bytes)
            .map_err(|reason| GgufError::Write { reason })?;
        self.n_written = n_written;
        if n_written == tensor.n_bytes {
            let padding = n_written.next_multiple_of(self.alignment) - n_written;
            self.out
                .write_all(&vec![0; padding])
                .map_err(|reason| GgufError::Write { reason })?;
            self.tensor_idx += 1;
            self.n_written = 0;
        }
        Ok(())
    }

    /// Ends the file and returns the output, flushed.
    ///
    /// # Errors
    /// [`GgufError::WrongTensorBytes`] if a tensor is incomplete, [`GgufError::Write`].
    pub fn finish(mut self) -> Result<W, GgufError> {
        if let Some(tensor) = self.tensors.get(self.tensor_idx) {
            return Err(GgufError::WrongTensorBytes {
                name: tensor.name.clone(),
                expected: tensor.n_bytes,
                found: self.n_written,
            });
        }
        self.out.flush().map_err(|reason| GgufError::Write { reason })?;
        Ok(self.out)
    }
}

fn push_str(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

fn push_value(bytes: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(number) => bytes.extend(number.to_le_bytes()),
        Value::I8(number) => bytes.extend(number.to_le_bytes()),
        Value::U16(number) => bytes.extend(number.to_le_bytes()),
        Value::I16(number) => bytes.extend(number.to_le_bytes()),
        Value::U32(number) => bytes.extend(number.to_le_bytes()),
        Value::I32(number) => bytes.extend(number.to_le_bytes()),
        Value::F32(number) => bytes.extend(number.to_le_bytes()),
        Value::Bool(claim) => bytes.push((*claim).into()),
        Value::U64(number) => bytes.extend(number.to_le_bytes()),
        Value::I64(number) => bytes.extend(number.to_le_bytes()),
        Value::F64(number) => bytes.extend(number.to_le_bytes()),
        Value::String(text) => push_str(bytes, text),
        Value::Array(array) => {
            bytes.extend(array.element_type().id().to_le_bytes());
            bytes.extend((array.len() as u64).to_le_bytes());
            push_elements(bytes, array);
        }
    }
}

fn push_elements(bytes: &mut Vec<u8>, array: &Array) {
    match array {
        Array::U8(numbers) => bytes.extend(numbers),
        Array::I8(numbers) => bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes())),
        Array::U16(numbers) => bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes())),
        Array::I16(numbers) => bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes())),
        Array::U32(numbers) => bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes())),
        Array::I32(numbers) => bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes())),
        Array::F32(numbers) => bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes())),
        Array::Bool(claims) => bytes.extend(claims.iter().map(|&claim| u8::from(claim))),
        Array::U64(numbers) => bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes())),
        Array::I64(numbers) => bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes())),
        Array::F64(numbers) => bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes())),
        Array::String(strings) => strings.iter().for_each(|string| push_str(bytes, string)),
    }
}
