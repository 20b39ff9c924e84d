//! One file per format: the block's layout, its decoder and its encoder.
//!
//! All blocks are [`Pod`](bytemuck::Pod) with alignment 1, exactly as they lie in a GGUF file, so a tensor's bytes can
//! be viewed as blocks with [`bytemuck::cast_slice`] at any offset. Fields are public: whoever repacks weights for a
//! faster kernel reads them here. Numbers that span bytes are little-endian.

mod bf16;
mod f16;
mod f32;
mod iq4_nl;
mod iq4_xs;
mod k_scales;
mod mxfp4;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;

pub use self::bf16::BlockBF16;
pub use self::f16::BlockF16;
pub use self::f32::BlockF32;
pub use self::iq4_nl::{BlockIQ4NL, IQ4_CODEBOOK};
pub use self::iq4_xs::BlockIQ4XS;
pub use self::k_scales::KScales;
pub use self::mxfp4::{BlockMXFP4, MXFP4_CODEBOOK};
pub use self::q2_k::BlockQ2K;
pub use self::q3_k::BlockQ3K;
pub use self::q4_0::BlockQ4_0;
pub use self::q4_1::BlockQ4_1;
pub use self::q4_k::BlockQ4K;
pub use self::q5_0::BlockQ5_0;
pub use self::q5_1::BlockQ5_1;
pub use self::q5_k::BlockQ5K;
pub use self::q6_k::BlockQ6K;
pub use self::q8_0::BlockQ8_0;

/// Weights in a block of the K-formats.
pub const SUPERBLOCK_LEN: usize = 256;
