//! The mill: from a model file to a smaller one.
//!
//! [`Quantizer`] reads a GGUF file and writes another whose tensors have fewer bits. A [`Recipe`] determines
//! their types: a [`Preset`] such as `Q4_K_M`, and exceptions by tensor. An [`ImportanceMatrix`] states which
//! weights matter most. [`choose`] only chooses types, for models that are quantized while they load.
//!
//! [`Writer`] writes a file of tensors from elsewhere, such as a Hugging Face folder, in an [`OutType`]. An
//! [`OutputFile`] exists completely or not at all.
//!
//! The key decision: the output equals llama.cpp's, byte for byte. Types, fallbacks, the order of tensors and
//! the numbers in them are the same, so a file's name means the same file.
//!
//! ```
//! use tokenmill_convert::{ModelShape, Preset, Recipe, TensorShape, choose};
//! use tokenmill_gguf::TensorType;
//!
//! let tensor = TensorShape { name: "blk.0.attn_q.weight", ty: TensorType::F16, dims: &[256, 256] };
//! let choices = choose(&ModelShape::default(), &Recipe::new(Preset::Q4_K_M), false, &[tensor])?;
//! assert_eq!(choices[0].ty, TensorType::Q4_K);
//! # Ok::<(), tokenmill_convert::ConvertError>(())
//! ```
#![forbid(unsafe_code)]

mod choice;
mod coverage;
mod error;
mod importance;
mod importance_sums;
mod out_type;
mod output_file;
mod planned;
mod preset;
mod quantizer;
mod recipe;
mod role;
mod rows;
mod size_label;
mod ternary;
mod writer;

pub use choice::{TypeChoice, choose};
pub use error::ConvertError;
pub use importance::ImportanceMatrix;
pub use importance_sums::{ImportanceSums, MeasuredMatrix};
pub use out_type::OutType;
pub use output_file::OutputFile;
pub use preset::Preset;
pub use quantizer::{QuantizeProgress, QuantizeSummary, Quantizer};
pub use recipe::{ModelShape, Recipe, TensorShape};
pub use writer::{TypeOf, Writer};

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
