//! [`for_each_format`](crate::for_each_format): the one list of weight formats.
//!
//! Every table of formats is built from it, here and in the executors, so that a new format is one row and
//! its files. It is a macro and not a slice because tables hold types, functions of types, and modules.

/// Calls a macro with every weight format: `for_each_format!(table)` expands to
///
/// ```text
/// table! {
///     floats: [f32: BlockF32, ...],
///     quants: [q4_0: BlockQ4_0, ...],
/// }
/// ```
///
/// A row is the format's name in lower case and its block. The format's files have the same name:
/// `formats/NAME.rs` here, `tiles/NAME.rs` in `tokenmill-cpu-kernels`, and, for quants,
/// `kernels/formats/NAME.cuh`.
#[macro_export]
macro_rules! for_each_format {
    ($table:ident) => {
        $table! {
            floats: [
                f32: BlockF32,
                f16: BlockF16,
                bf16: BlockBF16,
            ],
            quants: [
                q4_0: BlockQ4_0,
                q4_1: BlockQ4_1,
                q5_0: BlockQ5_0,
                q5_1: BlockQ5_1,
                q8_0: BlockQ8_0,
                q2_k: BlockQ2K,
                q3_k: BlockQ3K,
                q4_k: BlockQ4K,
                q5_k: BlockQ5K,
                q6_k: BlockQ6K,
                iq4_nl: BlockIQ4NL,
                iq4_xs: BlockIQ4XS,
                mxfp4: BlockMXFP4,
                iq3_s: BlockIQ3S,
                iq3_xxs: BlockIQ3XXS,
                iq2_xxs: BlockIQ2XXS,
                iq2_xs: BlockIQ2XS,
                iq2_s: BlockIQ2S,
                iq1_s: BlockIQ1S,
                iq1_m: BlockIQ1M,
                tq1_0: BlockTQ1_0,
                tq2_0: BlockTQ2_0,
                q1_0: BlockQ1_0,
                q2_0: BlockQ2_0,
                nvfp4: BlockNVFP4,
            ],
        }
    };
}
