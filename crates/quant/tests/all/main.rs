//! Formats against reference vectors and scalar code. One binary, so that the tests link once.
//!
//! The library is not compiled as a test (`test = false`), which would be a second time. Public functions are tested from outside;
//! modules that no caller sees, whose work the reference vectors show only in whole blocks, are compiled here from their source.

#![expect(
    clippy::inline_always,
    reason = "as in the library: decoders and encoders are compiled for an instruction set by inlining them"
)]

#[path = "../../src/formats/grid_search.rs"]
#[expect(dead_code, reason = "formats use the rest")]
mod grid_search;
#[path = "../../src/formats/iq4_codebook.rs"]
mod iq4_codebook;
#[path = "../../src/scale_search.rs"]
#[expect(dead_code, reason = "formats use the rest")]
mod scale_search;

mod codebook;
mod cpu_features;
mod cpu_paths;
mod e4m3;
mod formats;
mod grids;
mod k_scales;
mod random_rows;
mod reference_vectors;
mod scales;
