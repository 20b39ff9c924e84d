//! [`Header`]: everything of a file except the tensor data, parsed and validated.
//!
//! Pure: bytes in, header or error out; so tests and the fuzzer need no file. Invariant: in a header that parsed, every
//! tensor is inside the file, aligned, overlapping no other, and all names are unique.

use std::collections::HashSet;

use crate::{
    Array, GgufError, Metadata, ReadAt, StringArray, TensorInfo, TensorType, Value, ValueType,
    cursor::Cursor,
    tensor::{MAX_DIMS, check_name},
};

pub(crate) const MAGIC: [u8; 4] = *b"GGUF";
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";
pub(crate) const DEFAULT_ALIGNMENT: u32 = 32;
/// Alignments that suit readers of words and that no writer has a reason to exceed.
const ALIGNMENTS: std::ops::RangeInclusive<u32> = 8..=1 << 24;
/// A key of one byte with a value of one byte.
const MIN_ENTRY_BYTES: usize = 8 + 1 + 4 + 1;
/// A name of one byte, no dimension, type and offset.
const MIN_TENSOR_BYTES: usize = 8 + 1 + 4 + 4 + 8;

/// The header of one GGUF file: metadata and tensor descriptions.
///
/// ```
/// use tokenmill_gguf::{GgufWriter, Header, TensorType};
///
/// let mut writer = GgufWriter::new();
/// writer.metadata_mut().insert("general.architecture", "llama")?;
/// writer.add_tensor("output_norm.weight", TensorType::F32, &[4])?;
/// let mut out = writer.write_header(Vec::new())?;
/// out.write(&[0; 16])?;
/// let file = out.finish()?;
///
/// let header = Header::parse(&file)?;
/// assert_eq!(header.metadata.str("general.architecture")?, "llama");
/// assert_eq!(header.tensors[0].dims, [4]);
/// # Ok::<(), tokenmill_gguf::GgufError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Header {
    /// Version of the format: 2 or 3, which are laid out alike.
    pub version: u32,
    /// The key-value pairs.
    pub metadata: Metadata,
    /// The tensors in file order.
    pub tensors: Vec<TensorInfo>,
    /// Alignment of tensor offsets: a power of two from 8 to 16 Mi.
    pub alignment: u32,
    /// Offset of the tensor data. In a file without tensors it may be past the end.
    pub data_offset: usize,
}

impl Header {
    /// Parses the header at the start of `file_bytes`, which must be the whole file: tensors are checked against its
    /// length. The tensor data itself is not touched.
    ///
    /// # Errors
    /// The first [`GgufError`] found.
    pub fn parse(file_bytes: &[u8]) -> Result<Self, GgufError> {
        Self::read(&file_bytes, file_bytes.len() as u64)
    }

    /// Reads the header of a file of `n_bytes` bytes; bytes after the header are not kept.
    pub(crate) fn read(file: &dyn ReadAt, n_bytes: u64) -> Result<Self, GgufError> {
        let mut cursor = Cursor::new(file, n_bytes);
        let version = parse_version(&mut cursor)?;
        let n_tensors = cursor.u64("the number of tensors")?;
        let n_entries = cursor.u64("the number of metadata entries")?;
        cursor.check_count(n_entries, MIN_ENTRY_BYTES, "metadata entries")?;
        cursor.check_count(n_tensors, MIN_TENSOR_BYTES, "tensors")?;

        let mut metadata = Metadata::new();
        for _ in 0..n_entries {
            parse_entry(&mut cursor, &mut metadata)?;
        }
        let alignment = alignment_of(&metadata)?;
        cursor.check_count(n_tensors, MIN_TENSOR_BYTES, "tensors")?;
        let tensors = (0..n_tensors)
            .map(|index| parse_tensor(&mut cursor, index as usize))
            .collect::<Result<Vec<_>, _>>()?;

        let data_offset = cursor.offset().next_multiple_of(alignment as usize);
        let header = Self {
            version,
            metadata,
            tensors,
            alignment,
            data_offset,
        };
        header.check_tensors(usize::try_from(n_bytes).unwrap_or(usize::MAX))?;
        Ok(header)
    }

    /// Checks that names are unique and that data is aligned, inside the file and not shared.
    fn check_tensors(&self, file_bytes: usize) -> Result<(), GgufError> {
        let mut names = HashSet::with_capacity(self.tensors.len());
        for tensor in &self.tensors {
            if !names.insert(tensor.name.as_str()) {
                return Err(GgufError::DuplicateTensor {
                    name: tensor.name.clone(),
                });
            }
            if !tensor.offset.is_multiple_of(self.alignment.into()) {
                return Err(GgufError::MisalignedTensor {
                    name: tensor.name.clone(),
                    offset: tensor.offset,
                    alignment: self.alignment,
                });
            }
            let end = (self.data_offset as u64)
                .checked_add(tensor.offset)
                .and_then(|start| start.checked_add(tensor.n_bytes as u64));
            if end.is_none_or(|end| end > file_bytes as u64) {
                return Err(GgufError::TensorOutOfRange {
                    name: tensor.name.clone(),
                    offset: tensor.offset,
                    n_bytes: tensor.n_bytes,
                    data_offset: self.data_offset,
                    file_bytes,
                });
            }
        }
        let mut by_offset: Vec<&TensorInfo> = self.tensors.iter().collect();
        by_offset.sort_by_key(|tensor| tensor.offset);
        for pair in by_offset.windows(2) {
            if pair[0].offset + pair[0].n_bytes as u64 > pair[1].offset {
                return Err(GgufError::OverlappingTensors {
                    first: pair[0].name.clone(),
                    second: pair[1].name.clone(),
                });
            }
        }
        Ok(())
    }
}

/// Reads magic and version, and recognizes other formats.
fn parse_version(cursor: &mut Cursor<'_>) -> Result<u32, GgufError> {
    let file_bytes = cursor.peek(512)?;
    if file_bytes.is_empty() {
        return Err(GgufError::Empty);
    }
    if !file_bytes.starts_with(&MAGIC) && !MAGIC.starts_with(file_bytes) {
        return Err(GgufError::NotGguf {
            found: file_bytes[..file_bytes.len().min(4)].to_vec(),
            looks_like: looks_like(file_bytes),
        });
    }
    cursor.bytes(MAGIC.len() as u64, "the magic number")?;
    let version = cursor.u32("the version")?;
    match version {
        2 | 3 => Ok(version),
        // A small number read with the wrong byte order has its low half empty.
        _ if version != 0 && version.trailing_zeros() >= 16 => Err(GgufError::BigEndian {
            version: version.swap_bytes(),
        }),
        _ => Err(GgufError::UnsupportedVersion { found: version }),
    }
}

/// Returns whether these are the first fields of an ONNX model: the format's version, then the name of the
/// producer.
fn is_onnx(bytes: &[u8]) -> bool {
    matches!(bytes, [0x08, 1..=64, 0x12, n_name, name @ ..]
        if name.iter().take((*n_name).into()).all(u8::is_ascii_graphic))
}

fn is_web_page(bytes: &[u8]) -> bool {
    let text = bytes.trim_ascii_start();
    [&b"<!doctype html"[..], b"<html", b"<?xml"]
        .iter()
        .any(|start| text.len() >= start.len() && text[..start.len()].eq_ignore_ascii_case(start))
}

/// Describes the likely format of a file that is not GGUF, and what to do about it, from its first bytes;
/// some hundred are enough.
pub fn looks_like(bytes: &[u8]) -> &'static str {
    let starts_with_json_length = bytes.len() > 8 && bytes[8] == b'{' && bytes[4..8] == [0; 4];
    if starts_with_json_length {
        "a safetensors file; give the model's folder, or convert it to GGUF"
    } else if bytes.starts_with(b"PK\x03\x04") {
        "a zip archive or PyTorch checkpoint; convert the model to GGUF"
    } else if [b"lmgg", b"fmgg", b"tjgg", b"algg"]
        .iter()
        .any(|magic| bytes.starts_with(*magic))
    {
        "a GGML file from before GGUF; convert the model again"
    } else if bytes.starts_with(b"\x1f\x8b") {
        "a gzip archive; unpack it with `gunzip` or `tar xzf`"
    } else if bytes.starts_with(b"\xfd7zXZ")
        || bytes.starts_with(b"\x28\xb5\x2f\xfd")
        || bytes.starts_with(b"BZh")
    {
        "a compressed file; unpack it with `unxz`, `unzstd` or `bunzip2`"
    } else if is_onnx(bytes) {
        "an ONNX model; fetch the same model as safetensors or GGUF"
    } else if is_web_page(bytes) {
        "a web page; the link led to a page about the file, or to a refusal: fetch the file itself"
    } else if bytes.starts_with(b"version https://git-lfs") {
        "a Git LFS pointer; fetch the file itself with `git lfs pull`"
    } else if bytes
        .iter()
        .all(|byte| matches!(byte, b'\t' | b'\n' | b'\r' | 0x20..=0x7e | 0x80..))
    {
        "text"
    } else {
        "unknown binary data"
    }
}

fn parse_entry(cursor: &mut Cursor<'_>, metadata: &mut Metadata) -> Result<(), GgufError> {
    let key = cursor.str("a metadata key")?.to_owned();
    let ty = parse_value_type(cursor, &key)?;
    let value = parse_value(cursor, &key, ty)?;
    metadata.insert(key, value)
}

fn parse_value_type(cursor: &mut Cursor<'_>, key: &str) -> Result<ValueType, GgufError> {
    let id = cursor.u32("a metadata value type")?;
    ValueType::from_id(id).ok_or_else(|| GgufError::UnknownValueType {
        key: key.to_owned(),
        id,
    })
}

fn parse_value(cursor: &mut Cursor<'_>, key: &str, ty: ValueType) -> Result<Value, GgufError> {
    const WHAT: &str = "a metadata value";
    Ok(match ty {
        ValueType::U8 => Value::U8(cursor.u8(WHAT)?),
        ValueType::I8 => Value::I8(cursor.u8(WHAT)? as i8),
        ValueType::U16 => Value::U16(cursor.u16(WHAT)?),
        ValueType::I16 => Value::I16(cursor.u16(WHAT)? as i16),
        ValueType::U32 => Value::U32(cursor.u32(WHAT)?),
        ValueType::I32 => Value::I32(cursor.u32(WHAT)? as i32),
        ValueType::F32 => Value::F32(f32::from_bits(cursor.u32(WHAT)?)),
        ValueType::Bool => Value::Bool(parse_bool(key, cursor.u8(WHAT)?)?),
        ValueType::U64 => Value::U64(cursor.u64(WHAT)?),
        ValueType::I64 => Value::I64(cursor.u64(WHAT)? as i64),
        ValueType::F64 => Value::F64(f64::from_bits(cursor.u64(WHAT)?)),
        // Some writers use other encodings for names of people and files.
        ValueType::String => Value::String(cursor.lossy_str(WHAT)?.into_owned()),
        ValueType::Array => Value::Array(parse_array(cursor, key)?),
    })
}

fn parse_array(cursor: &mut Cursor<'_>, key: &str) -> Result<Array, GgufError> {
    let ty = parse_value_type(cursor, key)?;
    let len = cursor.u64("the length of a metadata array")?;
    Ok(match ty {
        ValueType::U8 => Array::U8(numbers(cursor, len, u8::from_le_bytes)?),
        ValueType::I8 => Array::I8(numbers(cursor, len, i8::from_le_bytes)?),
        ValueType::U16 => Array::U16(numbers(cursor, len, u16::from_le_bytes)?),
        ValueType::I16 => Array::I16(numbers(cursor, len, i16::from_le_bytes)?),
        ValueType::U32 => Array::U32(numbers(cursor, len, u32::from_le_bytes)?),
        ValueType::I32 => Array::I32(numbers(cursor, len, i32::from_le_bytes)?),
        ValueType::F32 => Array::F32(numbers(cursor, len, f32::from_le_bytes)?),
        ValueType::U64 => Array::U64(numbers(cursor, len, u64::from_le_bytes)?),
        ValueType::I64 => Array::I64(numbers(cursor, len, i64::from_le_bytes)?),
        ValueType::F64 => Array::F64(numbers(cursor, len, f64::from_le_bytes)?),
        ValueType::Bool => {
            let bytes = numbers(cursor, len, u8::from_le_bytes)?;
            Array::Bool(
                bytes
                    .into_iter()
                    .map(|byte| parse_bool(key, byte))
                    .collect::<Result<_, _>>()?,
            )
        }
        ValueType::String => {
            cursor.check_count(len, 8, "strings in a metadata array")?;
            let mut strings = StringArray::new();
            for _ in 0..len {
                strings.push(cursor.str("a string of a metadata array")?);
            }
            Array::String(strings)
        }
        ValueType::Array => return Err(GgufError::NestedArray { key: key.to_owned() }),
    })
}

fn numbers<T, const N: usize>(
    cursor: &mut Cursor<'_>,
    len: u64,
    from_le_bytes: fn([u8; N]) -> T,
) -> Result<Vec<T>, GgufError> {
    cursor.check_count(len, N, "numbers in a metadata array")?;
    let bytes = cursor.bytes(len * N as u64, "a metadata array")?;
    let (elements, _) = bytes.as_chunks::<N>();
    Ok(elements.iter().map(|&element| from_le_bytes(element)).collect())
}

fn parse_bool(key: &str, byte: u8) -> Result<bool, GgufError> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        found => Err(GgufError::InvalidBool {
            key: key.to_owned(),
            found,
        }),
    }
}

/// Returns the alignment from the metadata. Its type is fixed by the format, unlike that of other integers.
pub(crate) fn alignment_of(metadata: &Metadata) -> Result<u32, GgufError> {
    match metadata.get(ALIGNMENT_KEY) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(&Value::U32(found)) if found.is_power_of_two() && ALIGNMENTS.contains(&found) => Ok(found),
        Some(&Value::U32(found)) => Err(GgufError::BadAlignment { found }),
        Some(value) => Err(GgufError::WrongType {
            key: ALIGNMENT_KEY.to_owned(),
            expected: "u32",
            found: value.describe_type(),
        }),
    }
}

fn parse_tensor(cursor: &mut Cursor<'_>, index: usize) -> Result<TensorInfo, GgufError> {
    let name = cursor.str("a tensor name")?.to_owned();
    check_name(index, &name)?;
    let n_dims = cursor.u32("a tensor's number of dimensions")?;
    if n_dims as usize > MAX_DIMS {
        return Err(GgufError::TooManyDims {
            name,
            found: n_dims,
            maximum: MAX_DIMS,
        });
    }
    let mut dims = [0; MAX_DIMS];
    let dims = &mut dims[..n_dims as usize];
    for dim in dims.iter_mut() {
        *dim = cursor.u64("a tensor's dimensions")?;
    }
    let id = cursor.u32("a tensor's type")?;
    let ty = TensorType::from_id(id).ok_or_else(|| match TensorType::removed_name(id) {
        Some(type_name) => GgufError::RemovedTensorType {
            name: name.clone(),
            id,
            type_name,
        },
        None => GgufError::UnknownTensorType {
            name: name.clone(),
            id,
        },
    })?;
    let offset = cursor.u64("a tensor's offset")?;
    TensorInfo::new(index, &name, ty, dims, offset)
}
