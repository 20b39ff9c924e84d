//! [`GgufError`]: every error in a GGUF file, or in a caller's request to write or read one.
//!
//! One enum, because callers show it and rarely match on it. Invariant: a variant carries facts (key, offset,
//! found, expected), and its message suggests a remedy if there is one.

use std::{io, path::PathBuf};

use crate::TensorType;

/// The reason why a GGUF file was refused, or a value of it could not be read.
///
/// Messages are complete: the message of an error with a source includes that of the source.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The operating system could not open or map a file, or the path is not a regular file.
    #[error("cannot open {path}: {reason}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        reason: io::Error,
    },
    /// The header could not be read.
    #[error("cannot read the header: {reason}")]
    ReadHeader {
        /// The I/O error, which names the file.
        reason: io::Error,
    },
    /// Writing to the output failed.
    #[error("cannot write: {reason}")]
    Write {
        /// The I/O error.
        reason: io::Error,
    },
    /// A file was refused.
    #[error("{path}: {reason}")]
    InFile {
        /// The file.
        path: PathBuf,
        /// The error.
        reason: Box<GgufError>,
    },

    /// The file has no bytes.
    #[error("the file is empty; an interrupted download leaves such files, fetch it again")]
    Empty,
    /// The file has another format.
    #[error(
        "not a GGUF file: it starts with `{}` and looks like {looks_like}",
        shown(found)
    )]
    NotGguf {
        /// The first bytes, at most four.
        found: Vec<u8>,
        /// The likely format, and what to do about it.
        looks_like: &'static str,
    },
    /// The file was written for a big-endian machine.
    #[error("the file is big-endian GGUF version {version}; convert the model again as little-endian")]
    BigEndian {
        /// Its version.
        version: u32,
    },
    /// The version is neither 2 nor 3.
    #[error("the file is GGUF version {found}, supported are 2 and 3; {}", version_advice(*found))]
    UnsupportedVersion {
        /// The version found.
        found: u32,
    },
    /// The file ends inside its header.
    #[error(
        "the file ends inside {what}: {needed} bytes are needed at offset {offset}, {left} are left; \
         fetch the file again"
    )]
    Truncated {
        /// The part being read.
        what: &'static str,
        /// Its offset.
        offset: usize,
        /// Bytes needed.
        needed: u64,
        /// Bytes left.
        left: usize,
    },
    /// The header is longer than any real one.
    #[error("the header is longer than {limit} bytes")]
    HeaderTooLarge {
        /// Longest header accepted.
        limit: usize,
    },
    /// A count promises more items than the rest of the file can hold.
    #[error("the file promises {count} {what}, but has only {left} bytes left for them")]
    CountTooLarge {
        /// The counted items.
        what: &'static str,
        /// The count.
        count: u64,
        /// Bytes left.
        left: usize,
    },
    /// Text is not UTF-8.
    #[error("{what} at offset {offset} is not valid UTF-8")]
    InvalidUtf8 {
        /// The part being read.
        what: &'static str,
        /// Its offset.
        offset: usize,
    },

    /// A key is empty.
    #[error("metadata entry {index} has an empty key")]
    EmptyKey {
        /// Position of the entry.
        index: usize,
    },
    /// A key is longer than the format allows.
    #[error("a metadata key of {n_bytes} bytes is longer than the {maximum} allowed")]
    KeyTooLong {
        /// Its length.
        n_bytes: usize,
        /// Longest key allowed.
        maximum: usize,
    },
    /// Two entries have the same key.
    #[error("metadata key `{key}` occurs twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A value has a type that the format does not define.
    #[error("metadata key `{key}` has the unknown value type {id}")]
    UnknownValueType {
        /// The key.
        key: String,
        /// The type's id.
        id: u32,
    },
    /// An array's elements are arrays.
    #[error("metadata key `{key}` is an array of arrays, which the format does not allow")]
    NestedArray {
        /// The key.
        key: String,
    },
    /// A boolean is neither 0 nor 1.
    #[error("metadata key `{key}` is a boolean of value {found}, expected 0 or 1")]
    InvalidBool {
        /// The key.
        key: String,
        /// The byte.
        found: u8,
    },
    /// `general.alignment` is not usable.
    #[error("`general.alignment` is {found}, expected a power of two from 8 to 16777216")]
    BadAlignment {
        /// Its value.
        found: u32,
    },

    /// A required key is missing.
    #[error("metadata key `{key}` is missing")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A value has another type than the caller needs.
    #[error("metadata key `{key}` has type {found}, expected {expected}")]
    WrongType {
        /// The key.
        key: String,
        /// The type needed.
        expected: &'static str,
        /// The type in the file.
        found: String,
    },
    /// An integer does not fit the requested type.
    #[error("metadata key `{key}` is {value}, which does not fit {expected}")]
    OutOfRange {
        /// The key.
        key: String,
        /// The type needed.
        expected: &'static str,
        /// The value in the file.
        value: i128,
    },
    /// An array has another length than the caller needs.
    #[error("metadata key `{key}` has {found} elements, expected {expected}")]
    WrongLength {
        /// The key.
        key: String,
        /// Number of elements needed.
        expected: usize,
        /// Number of elements in the file.
        found: usize,
    },

    /// A tensor has no name.
    #[error("tensor {index} has an empty name")]
    EmptyTensorName {
        /// Position of the tensor.
        index: usize,
    },
    /// A tensor name is longer than the format allows.
    #[error("a tensor name of {n_bytes} bytes is longer than the {maximum} allowed")]
    TensorNameTooLong {
        /// Its length.
        n_bytes: usize,
        /// Longest name allowed.
        maximum: usize,
    },
    /// Two tensors have the same name.
    #[error("tensor `{name}` occurs twice")]
    DuplicateTensor {
        /// The name.
        name: String,
    },
    /// A tensor has more dimensions than the format allows.
    #[error("tensor `{name}` has {found} dimensions, at most {maximum} are allowed")]
    TooManyDims {
        /// The tensor.
        name: String,
        /// Its number of dimensions.
        found: u32,
        /// Maximum number of dimensions.
        maximum: usize,
    },
    /// A dimension is zero, or the product of the dimensions is absurd.
    #[error("tensor `{name}` has the impossible dimensions {dims:?}")]
    BadDims {
        /// The tensor.
        name: String,
        /// Its dimensions.
        dims: Vec<u64>,
    },
    /// A tensor's rows are not whole blocks.
    #[error(
        "tensor `{name}` has rows of {row_len} elements, not a multiple of the {block_len} in a block of {ty}"
    )]
    RowNotBlocks {
        /// The tensor.
        name: String,
        /// Its type.
        ty: TensorType,
        /// Number of elements in a row.
        row_len: u64,
        /// Number of elements in a block.
        block_len: usize,
    },
    /// A tensor type is unknown.
    #[error(
        "tensor `{name}` has the unknown type id {id}; the file may need a newer version of this program"
    )]
    UnknownTensorType {
        /// The tensor.
        name: String,
        /// The type's id.
        id: u32,
    },
    /// A tensor type was removed from the format.
    #[error(
        "tensor `{name}` has type {type_name} (id {id}), which the format dropped; quantize the model again"
    )]
    RemovedTensorType {
        /// The tensor.
        name: String,
        /// The type's id.
        id: u32,
        /// Its former name.
        type_name: &'static str,
    },
    /// A tensor does not start at a multiple of the alignment.
    #[error(
        "tensor `{name}` starts at offset {offset}, which is not a multiple of the alignment {alignment}"
    )]
    MisalignedTensor {
        /// The tensor.
        name: String,
        /// Its offset in the data section.
        offset: u64,
        /// The file's alignment.
        alignment: u32,
    },
    /// A tensor's data is outside the file.
    #[error(
        "tensor `{name}` takes {n_bytes} bytes at offset {offset} of the data section at {data_offset}, but the file \
         has {file_bytes} bytes; it may be truncated, fetch it again"
    )]
    TensorOutOfRange {
        /// The tensor.
        name: String,
        /// Its offset in the data section.
        offset: u64,
        /// Its size.
        n_bytes: usize,
        /// Offset of the data section.
        data_offset: usize,
        /// Size of the file.
        file_bytes: usize,
    },
    /// Two tensors share bytes.
    #[error("tensors `{first}` and `{second}` overlap")]
    OverlappingTensors {
        /// The one that starts first.
        first: String,
        /// The one that starts inside it.
        second: String,
    },

    /// The name of a part of a split model does not contain its part number.
    #[error(
        "the file is part {no} of a model split into {count}, so its name must end in `{expected_suffix}`"
    )]
    SplitName {
        /// Its number, from 1.
        no: usize,
        /// Number of parts.
        count: usize,
        /// The required end of its name.
        expected_suffix: String,
    },
    /// A part of a split model is in memory, so the others cannot be found.
    #[error("the model is part {no} of {count}; a split model must be opened as files")]
    SplitInMemory {
        /// Its number, from 1.
        no: usize,
        /// Number of parts.
        count: usize,
    },
    /// A part of a split model is missing.
    #[error("part {no} of {count} is missing: {path} does not exist")]
    MissingPart {
        /// Its number, from 1.
        no: usize,
        /// Number of parts.
        count: usize,
        /// The path at which it should be.
        path: PathBuf,
    },
    /// A part of a split model belongs to another model.
    #[error("`{key}` is {found}, expected {expected}: the parts do not belong together")]
    SplitMismatch {
        /// The metadata key.
        key: &'static str,
        /// Its value according to the other parts.
        expected: usize,
        /// Its value.
        found: usize,
    },

    /// The bytes given to the writer do not fill the current tensor.
    #[error("tensor `{name}` takes {expected} bytes, {found} were given")]
    WrongTensorBytes {
        /// The tensor.
        name: String,
        /// Bytes that the tensor needs.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// The writer was given data for more tensors than were added.
    #[error("{n_bytes} bytes of tensor data after the last tensor")]
    NoTensorDue {
        /// Bytes given.
        n_bytes: usize,
    },
}

/// Returns advice for a file of an unsupported version.
fn version_advice(found: u32) -> &'static str {
    if found > 3 {
        "it is newer than this program, update tokenmill"
    } else {
        "convert the model again with a current converter"
    }
}

/// Formats the first bytes of a file, with non-characters escaped.
fn shown(found: &[u8]) -> String {
    let is_character = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
    let shown = found.iter().map(|byte| match byte {
        byte if is_character(byte) => char::from(*byte).to_string(),
        byte => byte.escape_ascii().to_string(),
    });
    shown.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_begins_with_is_shown_as_it_stands_there() {
        assert_eq!(shown(b"{\"a\""), "{\"a\"");
        assert_eq!(shown(b"\x1f\x8b\n'"), r"\x1f\x8b\n'");
    }
}
