//! [`Cut`]: some runs along one dimension of a tensor, read on access.
//!
//! Invariant: runs are whole blocks inside the tensor.

use std::{io, ops::Range};

use tokenmill_gguf::{ReadAt, TensorBytes};

use crate::{LoadError, WeightTensor, tensor_view::for_each_unit};

/// The same runs of every `each_bytes` bytes, concatenated.
pub(super) struct Cut<'a> {
    source: TensorBytes<'a>,
    each_bytes: usize,
    /// First byte and length of each run.
    runs: Vec<(usize, usize)>,
    /// Total bytes of all runs.
    own_bytes: usize,
}

impl<'a> Cut<'a> {
    /// Takes runs of `tensor` along the dimension `axis`.
    pub(super) fn new(
        name: &str,
        tensor: WeightTensor<'a>,
        axis: usize,
        runs: &[Range<usize>],
    ) -> Result<Self, LoadError> {
        let WeightTensor { ty, dims, bytes } = tensor;
        let wrong_shape = || LoadError::WrongShape {
            name: name.to_owned(),
            expected: vec![runs.iter().map(|run| run.end).max().unwrap_or(0)],
            found: dims.clone(),
        };
        let len = *dims.get(axis).ok_or_else(wrong_shape)?;
        if runs.iter().any(|run| run.end > len) {
            return Err(wrong_shape());
        }
        // Along a row, a unit is a block; along other dimensions, it is everything within one index.
        let (unit_len, unit_bytes) = if axis == 0 {
            (ty.block_len(), ty.block_bytes())
        } else {
            let row_bytes = ty.row_bytes(dims[0]).ok_or_else(wrong_shape)?;
            (1, row_bytes * dims[1..axis].iter().product::<usize>())
        };
        if let Some(run) = runs
            .iter()
            .find(|run| !run.start.is_multiple_of(unit_len) || !run.len().is_multiple_of(unit_len))
        {
            return Err(LoadError::NotWholeBlocks {
                name: name.to_owned(),
                ty: ty.name(),
                block_len: unit_len,
                n_columns: run.len(),
            });
        }
        let to_bytes = |n: usize| n / unit_len * unit_bytes;
        let runs: Vec<_> = (runs.iter())
            .map(|run| (to_bytes(run.start), to_bytes(run.len())))
            .collect();
        Ok(Self {
            own_bytes: runs.iter().map(|(_, n_bytes)| n_bytes).sum(),
            runs,
            each_bytes: to_bytes(len),
            source: bytes,
        })
    }

    /// Returns the size of the whole cut, in bytes.
    pub(super) fn n_bytes(&self) -> usize {
        match self.each_bytes {
            0 => 0,
            each_bytes => self.source.len() / each_bytes * self.own_bytes,
        }
    }
}

impl ReadAt for Cut<'_> {
    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        for_each_unit(offset, out, self.own_bytes, |each, mut start, mut out| {
            for &(first, n_bytes) in &self.runs {
                if start >= n_bytes {
                    start -= n_bytes;
                    continue;
                }
                let (own, rest) = out.split_at_mut(out.len().min(n_bytes - start));
                let at = each * self.each_bytes + first + start;
                if at + own.len() > self.source.len() {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                self.source.read_into(at, own)?;
                (out, start) = (rest, 0);
                if out.is_empty() {
                    break;
                }
            }
            Ok(())
        })
    }
}

/// A bias that another rank adds. In every plain type, zero is all zero bytes.
pub(super) struct Zeros;

impl ReadAt for Zeros {
    fn read_exact_at(&self, _: u64, out: &mut [u8]) -> io::Result<()> {
        out.fill(0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokenmill_gguf::TensorType;

    use super::*;

    /// Returns one run. A literal list of one range is easily mistaken for a list of numbers.
    fn one(run: Range<usize>) -> Vec<Range<usize>> {
        std::iter::once(run).collect()
    }

    #[track_caller]
    fn check(ty: TensorType, dims: &[usize], axis: usize, runs: &[Range<usize>], expected: &[u8]) {
        let n_bytes = ty.row_bytes(dims[0]).unwrap() * dims[1..].iter().product::<usize>();
        let bytes: Vec<u8> = (0..n_bytes).map(|byte| byte as u8).collect();
        let tensor = WeightTensor {
            ty,
            dims: dims.to_vec(),
            bytes: bytes.as_slice().into(),
        };
        let cut = Cut::new("t", tensor, axis, runs).unwrap();
        assert_eq!(cut.n_bytes(), expected.len());
        for piece in 1..=expected.len() {
            let mut found = vec![0; expected.len()];
            for (idx, out) in found.chunks_mut(piece).enumerate() {
                cut.read_exact_at((idx * piece) as u64, out).unwrap();
            }
            assert_eq!(found, expected, "in pieces of {piece}");
        }
        cut.read_exact_at(1, &mut vec![0; expected.len()]).unwrap_err();
    }

    #[test]
    fn runs_of_any_dimension_are_read_in_pieces() {
        // Columns of two rows of four values.
        check(TensorType::I8, &[4, 2], 0, &one(1..3), &[1, 2, 5, 6]);
        // Two runs of rows.
        check(TensorType::I8, &[2, 4], 1, &[0..1, 3..4], &[0, 1, 6, 7]);
        // Rows of each of two matrices, and their columns.
        check(
            TensorType::I8,
            &[2, 3, 2],
            1,
            &one(1..3),
            &[2, 3, 4, 5, 8, 9, 10, 11],
        );
        check(TensorType::I8, &[2, 3, 2], 0, &one(1..2), &[1, 3, 5, 7, 9, 11]);
        // Whole blocks of a quantized row.
        let second: Vec<u8> = (34..68).chain(102..136).collect();
        check(TensorType::Q8_0, &[64, 2], 0, &one(32..64), &second);
    }

    #[test]
    fn parts_of_blocks_and_rows_that_are_not_there_are_refused() {
        let bytes = [0; 68];
        let cut = |runs: Range<usize>, axis| {
            let tensor = WeightTensor {
                ty: TensorType::Q8_0,
                dims: vec![64],
                bytes: bytes.as_slice().into(),
            };
            Cut::new("t", tensor, axis, &[runs]).err().unwrap().to_string()
        };
        assert_eq!(
            cut(16..48, 0),
            "a rank's 32 columns of tensor `t` are not whole blocks of Q8_0, which have 32 each"
        );
        assert!(cut(0..96, 0).contains("has shape"));
        assert!(cut(0..1, 1).contains("has shape"));
    }
}
