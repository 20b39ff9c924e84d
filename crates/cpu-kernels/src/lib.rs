//! The kernels of the host executor: quantized products, attention over pages, softmax and activations, for every
//! instruction set.
//!
//! It is a separate crate because it takes long to compile: each format's products are compiled for each
//! instruction set. So every public item is a function or a table of functions, nothing is generic, and the
//! crates that use it compile none of it again. It knows neither threads nor steps.
//!
//! | operations | items |
//! |---|---|
//! | a weight format: packing, products, rows | [`TileOps`], one for each tensor type; [`TileMemory`] for its tiles |
//! | activations as bytes | [`ActivationBlock`] |
//! | attention over a page type | [`PageOps`]: [`F32_PAGES`], [`F16_PAGES`], [`E4M3_PAGES`], [`Q8_0_PAGES`], [`Q8_0_ROWS`] and [`Q4_0_PAGES`]; [`softmax`] between scores and sums |
//! | some tokens of a recurrent layer | [`conv_run`], [`delta_run`], [`ssm_run`] |
//! | functions of values | [`ActivationOps`], [`SILU`] and its like; [`soft_cap`] |
//! | the machine's limits | [`read_bytes`], [`multiply_bytes`] |
//!
//! **The key decision:** one source serves every instruction set (`simd`), and every one computes the same bits: integer
//! operations are exact, float operations are single IEEE operations, and each reduction has one order.

#![expect(
    clippy::inline_always,
    reason = "a vector operation has its instruction set only once it is inlined into a function that enables it"
)]
#![expect(
    clippy::cast_ptr_alignment,
    reason = "every load and store of a vector is an unaligned one"
)]
#![expect(
    clippy::needless_range_loop,
    reason = "kernels index several arrays by row and vector alike"
)]

mod activation;
mod activation_block;
mod attention;
mod float_products;
mod lanes;
mod limits;
mod math;
mod panel;
mod products;
mod recurrence;
mod reduction;
mod rotation;
mod simd;
mod softmax;
mod tile_memory;
mod tile_ops;
mod tiles;

pub use activation::{
    ActivationOps, CLIPPED_SWIGLU, GELU_ERF, GELU_QUICK, GELU_TANH, IDENTITY, RELU, RELU_SQUARED, SIGMOID,
    SILU, soft_cap,
};
pub use activation_block::{ActivationBlock, SPAN_COLS, ScaleSpan, n_spans};
pub use attention::{
    E4M3_PAGES, F16_PAGES, F32_PAGES, PageOps, Q4_0_PAGES, Q8_0_PAGES, Q8_0_ROWS, SPLIT_PAGES, SPLIT_TOKENS,
    SplitPages,
};
pub use limits::{multiply_bytes, read_bytes};
pub use recurrence::{
    ConvRun, Decays, DeltaRun, MAX_LANES, MAX_TAPS, SsmRun, StridedRows, conv_run, delta_run, ssm_run,
};
pub use reduction::PAIR_ROWS;
pub use rotation::rotate;
pub use simd::TILE_ROWS;
pub use softmax::softmax;
pub use tile_memory::{OutOfMemory, TileMemory};
pub use tile_ops::{Activations, TileOps};

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
