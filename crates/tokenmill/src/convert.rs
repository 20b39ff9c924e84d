//! From a Hugging Face folder to a GGUF file, and to fewer bits.
//!
//! The crate `tokenmill_convert` quantizes GGUF files.

pub use tokenmill_convert::{Preset, QuantizeSummary};

pub use crate::{
    conversion::{Conversion, TokenDifferences},
    importance::ImportanceRun,
};
