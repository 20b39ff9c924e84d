//! [`Format`]: a weight format as one row of a table, found by its tensor type.
//!
//! The rest of the engine sees only this table of the formats: bytes in, values out. Invariant: a row names a
//! block type and nothing else, so everything about a format is in its file.

use tokenmill_gguf::TensorType;

use crate::block::{quantize_blocks, quantize_weighted_blocks};
use crate::formats;
use crate::{Block, CpuFeatures, QuantBlock, QuantError, simd};

macro_rules! table {
    (
        floats: [$($float:ident: $float_block:ident,)*],
        quants: [$($quant:ident: $quant_block:ident,)*],
    ) => {
        &[
            $(Format::float::<formats::$float_block>(stringify!($float)),)*
            $(Format::quant::<formats::$quant_block>(stringify!($quant)),)*
        ]
    };
}

/// Every weight format.
static FORMATS: &[Format] = for_each_format!(table);

/// A function that encodes a row.
type Quantize = fn(&[f32], &mut [u8]);

/// A function that encodes a row with one importance per value.
type QuantizeWeighted = fn(&[f32], &[f32], &mut [u8]);

/// A weight format: sizes, and functions over rows of bytes.
#[derive(Debug)]
pub struct Format {
    ty: TensorType,
    file_name: &'static str,
    block_len: usize,
    block_bytes: usize,
    dequantize: fn(CpuFeatures, &[u8], &mut [f32]),
    quantize: Option<Quantize>,
    quantize_weighted: QuantizeWeighted,
    set_scales: Option<fn(&mut [u8], f32, f32)>,
}

impl Format {
    const fn float<B: Block>(file_name: &'static str) -> Self {
        Self {
            ty: B::TYPE,
            file_name,
            block_len: B::LEN,
            block_bytes: size_of::<B>(),
            dequantize: |features, bytes, out| {
                simd::dequantize(features, bytemuck::cast_slice::<u8, B>(bytes), out);
            },
            quantize: if B::HAS_ENCODER {
                Some(|values, bytes| quantize_blocks(values, bytemuck::cast_slice_mut::<u8, B>(bytes)))
            } else {
                None
            },
            quantize_weighted: |values, importance, bytes| {
                quantize_weighted_blocks(values, importance, bytemuck::cast_slice_mut::<u8, B>(bytes));
            },
            set_scales: None,
        }
    }

    const fn quant<B: QuantBlock>(file_name: &'static str) -> Self {
        Self {
            set_scales: Some(|block, scale, min| bytemuck::from_bytes_mut::<B>(block).set_scales(scale, min)),
            ..Self::float::<B>(file_name)
        }
    }

    /// Returns all formats, in the order of the table.
    pub fn all() -> &'static [Self] {
        FORMATS
    }

    /// Returns the format of a tensor type.
    ///
    /// # Errors
    /// [`QuantError::UnsupportedType`] if there is none.
    pub fn of(ty: TensorType) -> Result<&'static Self, QuantError> {
        format(ty).ok_or(QuantError::UnsupportedType(ty))
    }

    /// Returns the tensor type.
    pub const fn tensor_type(&self) -> TensorType {
        self.ty
    }

    /// Returns the tensor type's name.
    pub fn name(&self) -> &'static str {
        self.ty.name()
    }

    /// Returns the name of the format's files and kernels: the type's name in lower case.
    pub const fn file_name(&self) -> &'static str {
        self.file_name
    }

    /// Returns whether the weights are floats rather than blocks of quants.
    pub const fn is_float(&self) -> bool {
        self.set_scales.is_none()
    }

    /// Returns whether rows can be encoded without an importance matrix.
    pub const fn has_encoder(&self) -> bool {
        self.quantize.is_some()
    }

    /// Returns the number of weights in a block.
    pub const fn block_len(&self) -> usize {
        self.block_len
    }

    /// Returns the number of bytes of a block.
    pub const fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Returns the number of bytes of a row of `n_values`.
    ///
    /// # Errors
    /// [`QuantError::PartialBlock`] and [`QuantError::RowTooLong`].
    pub fn row_bytes(&self, n_values: usize) -> Result<usize, QuantError> {
        if !n_values.is_multiple_of(self.block_len) {
            return Err(QuantError::PartialBlock {
                format: self.name(),
                block_len: self.block_len,
                found: n_values,
            });
        }
        (n_values / self.block_len)
            .checked_mul(self.block_bytes)
            .ok_or(QuantError::RowTooLong { found: n_values })
    }

    /// Sets the scale of a block and, if it has one, its minimum; see [`QuantBlock::set_scales`]. Floats have
    /// neither.
    ///
    /// # Panics
    /// If `block` is not one block.
    pub fn set_scales(&self, block: &mut [u8], scale: f32, min: f32) {
        if let Some(set_scales) = self.set_scales {
            set_scales(block, scale, min);
        }
    }

    /// Checks the length of a buffer for a row of `n_values`.
    fn check_bytes(&self, n_values: usize, found: usize) -> Result<(), QuantError> {
        let expected = self.row_bytes(n_values)?;
        if expected == found {
            return Ok(());
        }
        Err(QuantError::ByteLength {
            format: self.name(),
            n_values,
            expected,
            found,
        })
    }

    /// Decodes one or several consecutive rows: `bytes` are exactly the blocks of `out`.
    ///
    /// # Errors
    /// The errors of [`row_bytes`](Self::row_bytes), and [`QuantError::ByteLength`].
    pub fn dequantize_row(&self, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
        self.dequantize_row_with(CpuFeatures::detect(), bytes, out)
    }

    /// Does the same with a choice of instruction sets. The result is the same to the bit for all `features`.
    ///
    /// # Errors
    /// The errors of [`dequantize_row`](Self::dequantize_row).
    pub fn dequantize_row_with(
        &self,
        features: CpuFeatures,
        bytes: &[u8],
        out: &mut [f32],
    ) -> Result<(), QuantError> {
        self.check_bytes(out.len(), bytes.len())?;
        (self.dequantize)(features, bytes, out);
        Ok(())
    }

    /// Encodes a row, as ggml does without an importance matrix: `bytes` are exactly the blocks of `values`.
    ///
    /// This includes ggml's bugs. In IQ3_S a group of 32 zeros takes no place, so the following groups of its
    /// block are stored one too early and decode to other values. Rows with such groups should use another
    /// format.
    ///
    /// # Errors
    /// The errors of [`row_bytes`](Self::row_bytes), [`QuantError::ByteLength`], and
    /// [`QuantError::NoEncoder`].
    pub fn quantize_row(&self, values: &[f32], bytes: &mut [u8]) -> Result<(), QuantError> {
        self.check_bytes(values.len(), bytes.len())?;
        let quantize = self.quantize.ok_or(QuantError::NoEncoder(self.ty))?;
        quantize(values, bytes);
        Ok(())
    }

    /// Encodes a row as ggml does with an importance matrix: `importance` has one number per value, the mean
    /// square of the inputs multiplied by it.
    ///
    /// # Errors
    /// The errors of [`row_bytes`](Self::row_bytes), [`QuantError::ByteLength`], and
    /// [`QuantError::ImportanceLength`].
    pub fn quantize_row_weighted(
        &self,
        values: &[f32],
        importance: &[f32],
        bytes: &mut [u8],
    ) -> Result<(), QuantError> {
        self.check_bytes(values.len(), bytes.len())?;
        if importance.len() != values.len() {
            return Err(QuantError::ImportanceLength {
                n_values: values.len(),
                found: importance.len(),
            });
        }
        (self.quantize_weighted)(values, importance, bytes);
        Ok(())
    }
}

/// Returns the format of a tensor type, if there is one.
pub fn format(ty: TensorType) -> Option<&'static Format> {
    FORMATS.iter().find(|format| format.ty == ty)
}

/// Decodes a row of any format; see [`Format::dequantize_row`].
///
/// # Errors
/// [`QuantError::UnsupportedType`], and the errors of [`Format::dequantize_row`].
pub fn dequantize_row(ty: TensorType, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    Format::of(ty)?.dequantize_row(bytes, out)
}

/// Encodes a row in any format; see [`Format::quantize_row`].
///
/// # Errors
/// [`QuantError::UnsupportedType`], and the errors of [`Format::quantize_row`].
pub fn quantize_row(ty: TensorType, values: &[f32], bytes: &mut [u8]) -> Result<(), QuantError> {
    Format::of(ty)?.quantize_row(values, bytes)
}
