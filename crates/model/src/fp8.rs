//! [`Fp8`]: a matrix in FP8-E4M3 with separate scales, read as BF16.
//!
//! No GGUF type has one scale for 128 rows, so the numbers are multiplied by their scales as they are read.
//! BF16 has enough exponent range for the product, which F16 has not, and its rounding error is at most 1/16
//! of the distance between two E4M3 numbers; transformers does the same when it dequantizes such a folder.
//! Invariant: every number that is read is finite. NaN is an error, whereas transformers would load it and
//! answer with NaN.
//!
//! Source: DeepSeek-V3, `inference/kernel.py`, `weight_dequant`.

use std::io;

use half::{bf16, f16};
use tokenmill_gguf::{ReadAt, TensorType};
use tokenmill_quant::e4m3;

use crate::{
    hf_config::Fp8Scales,
    tensor_view::for_each_unit,
    weights::{StoredForm, WeightInfo},
};

/// Rows and columns of a block with one scale.
const BLOCK: usize = 128;

/// The numbers of a matrix, as BF16.
pub(crate) struct Fp8 {
    codes: Box<dyn ReadAt>,
    scales: Box<dyn ReadAt>,
    decode_scale: fn(&[u8]) -> f32,
    scale_bytes: usize,
    n_cols: usize,
    /// Rows and columns that share one scale.
    block: [usize; 2],
}

/// A tensor as a folder stores it.
pub(crate) struct Fp8Part<'a> {
    pub(crate) hf_name: &'a str,
    pub(crate) info: &'a WeightInfo,
    pub(crate) bytes: Box<dyn ReadAt>,
}

impl Fp8 {
    /// Combines the codes of a matrix with its scales.
    pub(crate) fn new(
        weight: Fp8Part<'_>,
        scales: Fp8Part<'_>,
        kind: Fp8Scales,
    ) -> Result<(WeightInfo, Self), String> {
        let [n_cols, n_rows] = match weight.info.dims[..] {
            [n_cols, n_rows] if n_cols > 0 && n_rows > 0 => [n_cols, n_rows],
            _ => {
                return Err(format!(
                    "tensor `{}` has type F8_E4M3 and shape {:?}, expected a matrix",
                    weight.hf_name, weight.info.dims
                ));
            }
        };
        let of_blocks = [n_cols.div_ceil(BLOCK), n_rows.div_ceil(BLOCK)];
        let is_of_tensor = scales.info.dims.iter().all(|&dim| dim == 1);
        let is_of_blocks = scales.info.dims == of_blocks;
        let block = match kind {
            Fp8Scales::Block | Fp8Scales::Either if is_of_blocks => [BLOCK; 2],
            Fp8Scales::Tensor | Fp8Scales::Either if is_of_tensor => [n_rows, n_cols],
            _ => {
                let expected = match kind {
                    Fp8Scales::Tensor => "one scale".to_owned(),
                    Fp8Scales::Block => format!("{of_blocks:?}, a scale for each block of 128x128"),
                    Fp8Scales::Either => {
                        format!("one scale, or {of_blocks:?}, one for each block of 128x128")
                    }
                };
                return Err(format!(
                    "tensor `{}` has shape {:?}, expected {expected}",
                    scales.hf_name, scales.info.dims
                ));
            }
        };
        let (decode_scale, scale_bytes): (fn(&[u8]) -> f32, usize) = match scales.info.ty {
            TensorType::F32 => (
                |bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
                4,
            ),
            TensorType::BF16 => (|bytes| bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(), 2),
            _ => (|bytes| f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(), 2),
        };
        let info = WeightInfo {
            name: weight.info.name.clone(),
            ty: TensorType::BF16,
            dims: weight.info.dims.clone(),
            n_bytes: (weight.info.n_bytes.checked_mul(2)).ok_or("a tensor is absurdly large")?,
            stored: Some(StoredForm {
                type_name: "F8_E4M3",
                n_bytes: weight.info.n_bytes + scales.info.n_bytes,
            }),
        };
        let view = Self {
            codes: weight.bytes,
            scales: scales.bytes,
            decode_scale,
            scale_bytes,
            n_cols,
            block,
        };
        Ok((info, view))
    }
}

impl ReadAt for Fp8 {
    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let [block_rows, block_cols] = self.block;
        let (mut codes, mut scales) = (Vec::new(), vec![0.0; self.n_cols.div_ceil(block_cols)]);
        let mut scale_bytes = vec![0; scales.len() * self.scale_bytes];
        let mut rows_of_scales = None;
        for_each_unit(offset, out, 2 * self.n_cols, |row, start, out| {
            let (first, last) = (start / 2, (start + out.len()).div_ceil(2));
            codes.resize(last - first, 0);
            self.codes
                .read_exact_at((row * self.n_cols + first) as u64, &mut codes)?;
            let block_row = row / block_rows;
            if rows_of_scales != Some(block_row) {
                let at = block_row * scale_bytes.len();
                self.scales.read_exact_at(at as u64, &mut scale_bytes)?;
                for (scale, bytes) in scales.iter_mut().zip(scale_bytes.chunks_exact(self.scale_bytes)) {
                    *scale = (self.decode_scale)(bytes);
                }
                rows_of_scales = Some(block_row);
            }
            for (col, &code) in (first..).zip(&codes) {
                let scale = scales[col / block_cols];
                let value = bf16::from_f32(e4m3::decode(code) * scale);
                if !value.is_finite() {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        format!(
                            "number {col} of row {row} is {value}, of the code {code:#04x} and the scale {scale:e}; the file is \
                             damaged"
                        ),
                    ));
                }
                let bytes = value.to_le_bytes();
                // The first and the last number may be read in part.
                let own = 2 * col;
                let wanted = start.max(own)..(start + out.len()).min(own + 2);
                out[wanted.start - start..wanted.end - start]
                    .copy_from_slice(&bytes[wanted.start - own..wanted.end - own]);
            }
            Ok(())
        })
    }
}

/// Returns the name of the weight to which scales of this name belong, in folders with FP8.
pub(crate) fn scaled_weight(hf_name: &str) -> Option<&str> {
    let weight = hf_name
        .strip_suffix("_scale_inv")
        .or_else(|| hf_name.strip_suffix("_scale"))?;
    weight.ends_with(".weight").then_some(weight)
}

/// Returns whether a tensor states how a layer's input was quantized. Backends ignore it and quantize inputs
/// by their values.
pub(crate) fn is_activation_scale(hf_name: &str) -> bool {
    hf_name.ends_with(".input_scale") || hf_name.ends_with(".activation_scale")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(dims: &[usize], ty: TensorType, bytes: Vec<u8>) -> (WeightInfo, Box<dyn ReadAt>) {
        let info = WeightInfo {
            name: "a.weight".to_owned(),
            ty,
            dims: dims.to_vec(),
            n_bytes: bytes.len(),
            stored: None,
        };
        (info, Box::new(&*bytes.leak()))
    }

    fn matrix(
        dims: &[usize],
        codes: &[u8],
        scale_dims: &[usize],
        scales: &[f32],
        kind: Fp8Scales,
    ) -> Result<(WeightInfo, Fp8), String> {
        let (info, bytes) = part(dims, TensorType::I8, codes.to_vec());
        let scale_bytes = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        let (scale_info, scale_bytes) = part(scale_dims, TensorType::F32, scale_bytes);
        let weight = Fp8Part {
            hf_name: "a.weight",
            info: &info,
            bytes,
        };
        let scales = Fp8Part {
            hf_name: "a.weight_scale_inv",
            info: &scale_info,
            bytes: scale_bytes,
        };
        Fp8::new(weight, scales, kind)
    }

    #[test]
    fn blocks_at_the_edges_are_smaller() {
        let [n_rows, n_cols] = [130, 259];
        let codes: Vec<u8> = (0..n_rows * n_cols).map(|i| (i * 37 % 127) as u8).collect();
        let scales = [1.5, 0.25, 3e-5, 7.1e-3, 1.0, 1e3];
        let (info, view) = matrix(&[n_cols, n_rows], &codes, &[3, 2], &scales, Fp8Scales::Block).unwrap();
        assert_eq!(info.n_bytes, 2 * codes.len());
        assert_eq!(info.stored.unwrap().n_bytes, codes.len() + 24);
        let value = |row: usize, col: usize| {
            e4m3::decode(codes[row * n_cols + col]) * scales[row / 128 * 3 + col / 128]
        };
        let expected = (0..n_rows).flat_map(|row| (0..n_cols).map(move |col| (row, col)));
        let expected = expected.flat_map(|(row, col)| bf16::from_f32(value(row, col)).to_le_bytes());
        let expected: Vec<u8> = expected.collect();
        for piece in [1, 3, 256, 2 * n_cols, 2 * n_cols * 100 + 1, expected.len()] {
            let mut found = vec![0; expected.len()];
            for (idx, out) in found.chunks_mut(piece).enumerate() {
                view.read_exact_at((idx * piece) as u64, out).unwrap();
            }
            assert!(found == expected, "in pieces of {piece}");
        }
        view.read_exact_at(1, &mut vec![0; expected.len()]).unwrap_err();
    }

    #[test]
    fn numbers_that_are_not_finite_are_refused() {
        let check = |code: u8, scale: f32, expected: &str| {
            let codes = [0x38, 0x38, 0x38, code];
            let (_, view) = matrix(&[2, 2], &codes, &[], &[scale], Fp8Scales::Tensor).unwrap();
            let error = view.read_exact_at(0, &mut [0; 8]).unwrap_err().to_string();
            assert_eq!(error, expected);
        };
        check(
            0xff,
            1.0,
            "number 1 of row 1 is NaN, of the code 0xff and the scale 1e0; the file is damaged",
        );
        check(
            0x7e,
            1e36,
            "number 1 of row 1 is inf, of the code 0x7e and the scale 1e36; the file is damaged",
        );
        check(
            0,
            f32::NAN,
            "number 0 of row 0 is NaN, of the code 0x38 and the scale NaN; the file is damaged",
        );
    }

    #[test]
    fn scales_of_another_shape_are_refused() {
        let check = |dims: &[usize], scale_dims: &[usize], kind, expected: &str| {
            let error = matrix(dims, &[], scale_dims, &[], kind).map(drop).unwrap_err();
            assert_eq!(error, expected);
        };
        check(
            &[256, 129],
            &[2, 1],
            Fp8Scales::Block,
            "tensor `a.weight_scale_inv` has shape [2, 1], expected [2, 2], a scale for each block of 128x128",
        );
        check(
            &[256, 129],
            &[1],
            Fp8Scales::Block,
            "tensor `a.weight_scale_inv` has shape [1], expected [2, 2], a scale for each block of 128x128",
        );
        check(
            &[256, 129],
            &[1, 129],
            Fp8Scales::Tensor,
            "tensor `a.weight_scale_inv` has shape [1, 129], expected one scale",
        );
        check(
            &[256, 129],
            &[129],
            Fp8Scales::Either,
            "tensor `a.weight_scale_inv` has shape [129], expected one scale, or [2, 2], one for each block of 128x128",
        );
        check(
            &[256],
            &[1],
            Fp8Scales::Tensor,
            "tensor `a.weight` has type F8_E4M3 and shape [256], expected a matrix",
        );
        check(
            &[0, 4],
            &[1],
            Fp8Scales::Tensor,
            "tensor `a.weight` has type F8_E4M3 and shape [0, 4], expected a matrix",
        );
        assert!(matrix(&[256, 129], &[], &[1], &[], Fp8Scales::Either).is_ok());
        assert!(matrix(&[256, 129], &[], &[2, 2], &[], Fp8Scales::Either).is_ok());
    }
}
