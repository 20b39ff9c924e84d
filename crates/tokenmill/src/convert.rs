//! Converts Hugging Face folders to GGUF files, with fewer bits for each weight if wanted.
//!
//! The crate `tokenmill_convert` quantizes GGUF files.

pub use tokenmill_convert::{Preset, QuantizeSummary};

pub use crate::{
    conversion::{Conversion, TokenDifferences},
    importance::ImportanceRun,
};
