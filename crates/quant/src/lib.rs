//! The numbers: every block format that the engine computes with, as stored in GGUF files.
//!
//! A *block* is the unit into which a tensor row is divided: a few scales and the packed weights that they
//! apply to. Each format is one file under [`formats`], with the block's layout, its parts, its decoder and
//! its encoder, and one row in [`for_each_format`]. Decoding and encoding reproduce ggml's reference code bit
//! for bit, so that a file quantized here equals one quantized there. Products of blocks with activations
//! belong to the executors, which arrange the [parts of blocks](QuantBlock::parts) for their own kernels.
//!
//! ```
//! use tokenmill_gguf::TensorType;
//! use tokenmill_quant::Format;
//!
//! let row: Vec<f32> = (0..256).map(|i| (i as f32 * 0.37).sin()).collect();
//! let format = Format::of(TensorType::Q4_K)?;
//!
//! // A row of weights, encoded and decoded.
//! let mut weights = vec![0; format.row_bytes(row.len())?];
//! format.quantize_row(&row, &mut weights)?;
//! let mut decoded = vec![0.0; row.len()];
//! format.dequantize_row(&weights, &mut decoded)?;
//! assert!(row.iter().zip(&decoded).all(|(a, b)| (a - b).abs() < 0.1));
//! # Ok::<(), tokenmill_quant::QuantError>(())
//! ```

#![deny(unsafe_code)]
#![expect(
    clippy::inline_always,
    reason = "decoders are compiled for an instruction set by inlining them where it is enabled"
)]

#[macro_use]
mod for_each_format;
mod block;
mod cpu_features;
pub mod e4m3;
mod error;
mod float;
mod format;
pub mod formats;
mod scale_search;
#[cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "the island: instruction sets chosen at run time")
)]
mod simd;

pub use block::{Block, BlockParts, Importance, QuantBlock};
pub use cpu_features::{CpuFeatures, Isa};
pub use error::QuantError;
pub use float::F16Bits;
pub use format::{Format, dequantize_row, format, quantize_row};

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
