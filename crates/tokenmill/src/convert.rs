//! Converts Hugging Face folders to GGUF files, optionally with fewer bits per weight.
//!
//! The crate `tokenmill_convert` quantizes GGUF files.

pub use tokenmill_convert::{Preset, QuantizeSummary};

pub use crate::{
    conversion::{Conversion, TokenDifferences},
    importance::ImportanceRun,
};
