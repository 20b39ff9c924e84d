//! One file per format: the block's layout, its parts, its decoder and its encoder.
//!
//! All blocks are [`Pod`](bytemuck::Pod) with alignment 1, exactly as stored in a GGUF file, so a tensor's
//! bytes can be viewed as blocks with [`bytemuck::cast_slice`] at any offset. Fields are public, for code
//! that rearranges weights for a faster kernel; it can also use the parts from
//! [`QuantBlock`](crate::QuantBlock). Multi-byte numbers are little-endian.

mod eights;
mod grid_search;
mod iq4_codebook;
mod k_scales;

macro_rules! modules {
    (
        floats: [$($float:ident: $float_block:ident,)*],
        quants: [$($quant:ident: $quant_block:ident,)*],
    ) => {
        $(
            mod $float;
            pub use self::$float::$float_block;
        )*
        $(
            mod $quant;
            pub use self::$quant::$quant_block;
        )*
    };
}

for_each_format!(modules);

pub use self::k_scales::KScales;

/// Number of weights in a block of the K-formats.
pub const SUPERBLOCK_LEN: usize = 256;
