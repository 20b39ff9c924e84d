//! GGUF model files: parse, validate, read and write them.
//!
//! A GGUF file is a header (metadata and a list of tensors) followed by tensor data. [`GgufFile::open`] opens
//! a model, including all parts of a split one, and reads only the headers. [`TensorBytes`] reads tensors, by
//! position and from any thread. [`Header::parse`] parses bytes in memory and is the only code that reads
//! untrusted numbers. [`GgufWriter`] writes files. Versions 2 and 3, little-endian.
//!
//! This crate does no arithmetic: [`TensorType`] has every type of the format with the size of its blocks, so
//! a file with types that no backend computes still opens and lists.
//!
//! A file is untrusted input. Sizes are computed with checks, counts are compared with the bytes left before
//! anything is allocated for them, and each kind of error is its own [`GgufError`].
//!
//! ```
//! use tokenmill_gguf::{GgufFile, GgufWriter, TensorType};
//!
//! let mut writer = GgufWriter::new();
//! writer.metadata_mut().insert("general.architecture", "llama")?;
//! writer.metadata_mut().insert("llama.block_count", 2_u32)?;
//! writer.add_tensor("output.weight", TensorType::Q8_0, &[64, 3])?;
//! let mut out = writer.write_header(Vec::new())?;
//! out.write(&[0; 3 * 2 * 34])?;
//!
//! let file = GgufFile::from_bytes(&out.finish()?)?;
//! assert_eq!(file.metadata().u32("llama.block_count")?, 2);
//! let tensor = file.tensor("output.weight").expect("it was written above");
//! assert_eq!((tensor.info.row_len(), tensor.info.n_rows()), (64, 3));
//! assert_eq!(tensor.bytes.len(), 204);
//! # Ok::<(), tokenmill_gguf::GgufError>(())
//! ```
#![deny(unsafe_code)]

mod cursor;
mod error;
mod file;
mod file_below;
mod free_bytes;
mod header;
mod metadata;
mod nextn_name;
mod read_at;
mod regular_file;
mod split;
mod storage;
mod tensor;
mod tensor_bytes;
mod tensor_type;
mod value;
mod writer;

pub use error::GgufError;
pub use file::GgufFile;
pub use free_bytes::free_bytes;
pub use header::{Header, looks_like};
pub use metadata::Metadata;
pub use nextn_name::NextnName;
pub use read_at::{FileBytes, OpenFile, ReadAt};
pub use regular_file::RegularFile;
pub use split::part_of_name;
pub use tensor::{TensorInfo, TensorView};
pub use tensor_bytes::TensorBytes;
pub use tensor_type::TensorType;
pub use value::{Array, StringArray, Value, ValueType};
pub use writer::{GgufWriter, TensorDataWriter};

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
