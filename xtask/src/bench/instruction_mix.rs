//! [`share`]: how much of what two vector ports can issue is multiplication, in the product of many rows, by format.
//!
//! A product of quantized blocks is more than multiplications: integer sums become floats and take in their scales. With
//! 16 rows in a vector and 256 columns, `vpdpbusd` multiplies 64 times, and the inner loop (`panel.rs` of `cpu-exec`)
//! adds, for each row of activations:
//!
//! | formats | conversions | scales | biases | minima, offsets | end of a span | all | share |
//! |---|---:|---:|---:|---:|---:|---:|---:|
//! | `Q4_0`, `Q5_0`, `Q8_0` | 8 | 16 | 4 | | | 92 | 70 % |
//! | `Q4_1`, `Q5_1` | 8 | 16 | | 8 | | 96 | 67 % |
//! | `Q4_K`, `Q5_K` | 8 | 8 | | 6 | 1 | 87 | 74 % |
//! | `Q3_K`, `Q6_K` | 16 | 16 | 8 | | 1 | 105 | 61 % |
//! | `Q2_K` | 16 | 16 | | 10 | 1 | 107 | 60 % |
//!
//! Biases are shifted once for two vectors of rows, so they count half. Loads and broadcasts from memory take no vector
//! port. Unpacking is shared by all rows of a block and left out: a bound that ignores work is still a bound. A processor
//! that converts and shifts on other ports than it multiplies on can exceed it.
//!
//! The compiled loops of `Q4_K` and `Q2_K` were looked at (`objdump -d`, six rows by two vectors). They have these counts,
//! but for one thing: LLVM turns all but the first `vpdpwssd` of the minima into `vpmaddwd` and `vpaddd`, 3 additions more
//! in `Q4_K` (90), 7 in `Q2_K` (114). They are the compiler's, not the format's, so that they do not count here.

use tokenmill_gguf::TensorType;

/// Multiplications among the vector instructions, for a type with integer products.
pub(super) fn share(ty: TensorType) -> Option<f64> {
    let n_instructions = match ty {
        TensorType::Q4_0 | TensorType::Q5_0 | TensorType::Q8_0 => 92,
        TensorType::Q4_1 | TensorType::Q5_1 => 96,
        TensorType::Q4_K | TensorType::Q5_K => 87,
        TensorType::Q3_K | TensorType::Q6_K => 105,
        TensorType::Q2_K => 107,
        _ => return None,
    };
    Some(64.0 / f64::from(n_instructions))
}
