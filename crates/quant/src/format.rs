//! [`Format`]: a weight format as one row of a table, reached by its tensor type.
//!
//! The table is what the rest of the engine sees of the formats: bytes in, values out. Invariant: a row names a block
//! type and nothing else, so everything about a format is in its file.

use tokenmill_gguf::TensorType;

use crate::activation::{check_bytes, row_bytes};
use crate::block::quantize_blocks;
use crate::formats::{
    BlockBF16, BlockF16, BlockF32, BlockIQ4NL, BlockIQ4XS, BlockMXFP4, BlockQ2K, BlockQ3K, BlockQ4_0,
    BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1, BlockQ5K, BlockQ6K, BlockQ8_0,
};
use crate::{ActivationBlock, ActivationFormat, Block, CpuFeatures, QuantError, simd};

/// Every weight format. A new format is a file in `formats` and a row here.
static FORMATS: &[Format] = &[
    Format::row::<BlockF32>(),
    Format::row::<BlockF16>(),
    Format::row::<BlockBF16>(),
    Format::row::<BlockQ4_0>(),
    Format::row::<BlockQ4_1>(),
    Format::row::<BlockQ5_0>(),
    Format::row::<BlockQ5_1>(),
    Format::row::<BlockQ8_0>(),
    Format::row::<BlockQ2K>(),
    Format::row::<BlockQ3K>(),
    Format::row::<BlockQ4K>(),
    Format::row::<BlockQ5K>(),
    Format::row::<BlockQ6K>(),
    Format::row::<BlockIQ4NL>(),
    Format::row::<BlockIQ4XS>(),
    Format::row::<BlockMXFP4>(),
];

/// A weight format: sizes, and functions over rows of bytes.
#[derive(Debug)]
pub struct Format {
    ty: TensorType,
    block_len: usize,
    block_bytes: usize,
    activation: ActivationFormat,
    dequantize: fn(CpuFeatures, &[u8], &mut [f32]),
    quantize: fn(&[f32], &mut [u8]),
    dot: fn(CpuFeatures, &[u8], &[u8]) -> f32,
}

impl Format {
    const fn row<B: Block>() -> Self {
        Self {
            ty: B::TYPE,
            block_len: B::LEN,
            block_bytes: size_of::<B>(),
            activation: <B::Activation as ActivationBlock>::FORMAT,
            dequantize: |features, bytes, out| {
                simd::dequantize(features, bytemuck::cast_slice::<u8, B>(bytes), out);
            },
            quantize: |values, bytes| quantize_blocks(values, bytemuck::cast_slice_mut::<u8, B>(bytes)),
            dot: |features, weights, activations| {
                B::dot(
                    features,
                    bytemuck::cast_slice(weights),
                    bytemuck::cast_slice(activations),
                )
            },
        }
    }

    /// Every format there is, in the order of the table.
    pub fn all() -> &'static [Self] {
        FORMATS
    }

    /// The format of a tensor type.
    ///
    /// # Errors
    /// [`QuantError::UnsupportedType`] if there is none.
    pub fn of(ty: TensorType) -> Result<&'static Self, QuantError> {
        format(ty).ok_or(QuantError::UnsupportedType(ty))
    }

    /// The tensor type.
    pub const fn tensor_type(&self) -> TensorType {
        self.ty
    }

    /// The tensor type's name.
    pub fn name(&self) -> &'static str {
        self.ty.name()
    }

    /// Weights in a block.
    pub const fn block_len(&self) -> usize {
        self.block_len
    }

    /// Bytes of a block.
    pub const fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// What activations are quantized to for [`dot`](Self::dot).
    pub const fn activation(&self) -> ActivationFormat {
        self.activation
    }

    /// Bytes of a row of `n_values`.
    ///
    /// # Errors
    /// [`QuantError::PartialBlock`] and [`QuantError::RowTooLong`].
    pub fn row_bytes(&self, n_values: usize) -> Result<usize, QuantError> {
        row_bytes(self.name(), self.block_len, self.block_bytes, n_values)
    }

    /// Decodes a row, or several that lie one after another: `bytes` are exactly the blocks of `out`.
    ///
    /// # Errors
    /// Those of [`row_bytes`](Self::row_bytes), and [`QuantError::ByteLength`].
    pub fn dequantize_row(&self, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
        self.dequantize_row_with(CpuFeatures::detect(), bytes, out)
    }

    /// The same with a choice of instruction sets. The result is the same to the bit for all `features`.
    ///
    /// # Errors
    /// Those of [`dequantize_row`](Self::dequantize_row).
    pub fn dequantize_row_with(
        &self,
        features: CpuFeatures,
        bytes: &[u8],
        out: &mut [f32],
    ) -> Result<(), QuantError> {
        check_bytes(self.name(), out.len(), self.row_bytes(out.len())?, bytes.len())?;
        (self.dequantize)(features, bytes, out);
        Ok(())
    }

    /// Encodes a row, as ggml does without an importance matrix: `bytes` are exactly the blocks of `values`.
    ///
    /// # Errors
    /// Those of [`row_bytes`](Self::row_bytes), and [`QuantError::ByteLength`].
    pub fn quantize_row(&self, values: &[f32], bytes: &mut [u8]) -> Result<(), QuantError> {
        check_bytes(
            self.name(),
            values.len(),
            self.row_bytes(values.len())?,
            bytes.len(),
        )?;
        (self.quantize)(values, bytes);
        Ok(())
    }

    /// The dot product of a row of weights and a row of activations in [`activation`](Self::activation) format. The
    /// result is the same to the bit for all `features`.
    ///
    /// # Panics
    /// If the rows are not whole blocks of the same number of values.
    #[inline]
    pub fn dot(&self, features: CpuFeatures, weights: &[u8], activations: &[u8]) -> f32 {
        let n_weights = weights.len() / self.block_bytes * self.block_len;
        let n_activations = activations.len() / self.activation.block_bytes() * self.activation.block_len();
        assert_eq!(
            n_weights,
            n_activations,
            "{} row against {} row",
            self.name(),
            self.activation.name()
        );
        (self.dot)(features, weights, activations)
    }
}

/// The format of a tensor type, if there is one.
pub fn format(ty: TensorType) -> Option<&'static Format> {
    FORMATS.iter().find(|format| format.ty == ty)
}

/// Decodes a row of any format; see [`Format::dequantize_row`].
///
/// # Errors
/// [`QuantError::UnsupportedType`], and those of [`Format::dequantize_row`].
pub fn dequantize_row(ty: TensorType, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    Format::of(ty)?.dequantize_row(bytes, out)
}

/// Encodes a row in any format; see [`Format::quantize_row`].
///
/// # Errors
/// [`QuantError::UnsupportedType`], and those of [`Format::quantize_row`].
pub fn quantize_row(ty: TensorType, values: &[f32], bytes: &mut [u8]) -> Result<(), QuantError> {
    Format::of(ty)?.quantize_row(values, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_agrees_with_the_file_format() {
        for format in Format::all() {
            assert_eq!(format.block_len(), format.ty.block_len(), "{}", format.name());
            assert_eq!(format.block_bytes(), format.ty.block_bytes(), "{}", format.name());
            assert!(
                std::ptr::eq(Format::of(format.ty).unwrap(), format),
                "{} twice",
                format.name()
            );
        }
    }

    #[test]
    fn wrong_lengths_are_errors() {
        let format = Format::of(TensorType::Q4_0).unwrap();
        assert_eq!(
            format.dequantize_row(&[0; 18], &mut [0.0; 31]),
            Err(QuantError::PartialBlock {
                format: "Q4_0",
                block_len: 32,
                found: 31
            })
        );
        assert_eq!(
            format.quantize_row(&[0.0; 32], &mut [0; 17]),
            Err(QuantError::ByteLength {
                format: "Q4_0",
                n_values: 32,
                expected: 18,
                found: 17
            })
        );
        assert_eq!(
            Format::of(TensorType::F32).unwrap().row_bytes(usize::MAX),
            Err(QuantError::RowTooLong { found: usize::MAX })
        );
        assert_eq!(format.dequantize_row(&[], &mut []), Ok(()));
    }

    #[test]
    #[should_panic(expected = "row against")]
    fn dot_refuses_rows_of_different_lengths() {
        let format = Format::of(TensorType::Q8_0).unwrap();
        format.dot(CpuFeatures::scalar(), &[0; 34], &[0; 68]);
    }
}
