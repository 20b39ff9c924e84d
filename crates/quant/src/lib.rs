//! The numbers: every block format that the engine computes with, as stored in GGUF files.
//!
//! A *block* is the unit a tensor row is cut into: a few scales and the packed weights they belong to. Each format is
//! one file under [`formats`], with the block's layout, its decoder, its encoder and the dot product with a quantized
//! activation row, and one row in the table behind [`Format::all`]. Decoding and encoding reproduce ggml's reference
//! code bit for bit, so that a file quantized here equals one quantized there.
//!
//! Dot products take their activations quantized too ([`ActivationFormat`]), so that the inner loop is integer
//! arithmetic. **The key decision:** every instruction set adds in the same order. A dot product accumulates integers
//! exactly within a block and floats in a fixed number of lanes over blocks, without fused multiply-add, so that scalar
//! code, AVX2 and AVX-512 return the same bits, and a result never depends on the machine it was computed on.
//!
//! ```
//! use tokenmill_gguf::TensorType;
//! use tokenmill_quant::{CpuFeatures, Format};
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
//!
//! // Its dot product with an activation row: the activations are quantized once and used for many rows.
//! let features = CpuFeatures::detect();
//! let mut activations = vec![0; format.activation().row_bytes(row.len())?];
//! format.activation().quantize_row(features, &row, &mut activations)?;
//! let dot = format.dot(features, &weights, &activations);
//! assert_eq!(dot, format.dot(CpuFeatures::scalar(), &weights, &activations));
//!
//! let exact: f32 = row.iter().map(|x| x * x).sum();
//! assert!((dot - exact).abs() < 0.02 * exact);
//! # Ok::<(), tokenmill_quant::QuantError>(())
//! ```

#![deny(unsafe_code)]
#![expect(
    clippy::inline_always,
    reason = "decoders and encoders are compiled for an instruction set by inlining them where it is enabled"
)]

mod activation;
mod block;
mod cpu_features;
mod error;
mod float;
mod format;
pub mod formats;
mod lanes;
mod scale_search;
#[expect(unsafe_code, reason = "the island: instruction sets chosen at run time")]
mod simd;

pub use activation::{ActivationBlock, ActivationFormat};
pub use block::Block;
pub use cpu_features::{CpuFeatures, Isa};
pub use error::QuantError;
pub use float::F16Bits;
pub use format::{Format, dequantize_row, format, quantize_row};
