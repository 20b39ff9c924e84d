//! [`TensorInfo`] and [`TensorView`]: the description of a tensor, and its bytes.
//!
//! This is also the only place that computes a size from a type and dimensions, for reader and writer alike.
//! Invariant: a [`TensorInfo`] has one to four dimensions, none of them zero, whole blocks in each row, and a
//! size that was computed without overflow.

use crate::{GgufError, TensorBytes, TensorType};

/// Maximum number of dimensions of a tensor.
pub(crate) const MAX_DIMS: usize = 4;
/// Longest tensor name the format allows.
const MAX_NAME_BYTES: usize = 64;

/// The description of one tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorInfo {
    /// Its name, such as `blk.0.attn_q.weight`.
    pub name: String,
    /// The type of its elements.
    pub ty: TensorType,
    /// Its dimensions, the contiguous one first: a matrix of `n_rows` rows is `[row_len, n_rows]`.
    pub dims: Vec<usize>,
    /// Offset of its bytes in the data section of its part.
    pub offset: u64,
    /// Number of bytes.
    pub n_bytes: usize,
    /// Index of the part that holds it in a split model, from 0.
    pub part: usize,
}

/// A tensor's description together with its bytes, which may still be in the file.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// The description in the file.
    pub info: &'a TensorInfo,
    /// Its bytes, `info.n_bytes` of them.
    pub bytes: TensorBytes<'a>,
}

impl TensorInfo {
    /// Creates the description of a tensor of the first part, after checking it.
    ///
    /// `index` is its position in the file, for messages.
    pub(crate) fn new(
        index: usize,
        name: &str,
        ty: TensorType,
        dims: &[u64],
        offset: u64,
    ) -> Result<Self, GgufError> {
        check_name(index, name)?;
        let bad_dims = || GgufError::BadDims {
            name: name.to_owned(),
            dims: dims.to_vec(),
        };
        if dims.len() > MAX_DIMS {
            return Err(GgufError::TooManyDims {
                name: name.to_owned(),
                found: dims.len() as u32,
                maximum: MAX_DIMS,
            });
        }
        // A file may store a scalar without dimensions; it is a row of one element.
        let dims = if dims.is_empty() { &[1] } else { dims };
        if !dims[0].is_multiple_of(ty.block_len() as u64) {
            return Err(GgufError::RowNotBlocks {
                name: name.to_owned(),
                ty,
                row_len: dims[0],
                block_len: ty.block_len(),
            });
        }
        let dims: Vec<usize> = dims
            .iter()
            .map(|&dim| usize::try_from(dim).ok().filter(|&dim| dim > 0))
            .collect::<Option<_>>()
            .ok_or_else(bad_dims)?;
        // Elements are counted as well as bytes: blocks of less than a byte per element would let the count overflow.
        let n_bytes = dims
            .iter()
            .try_fold(1_usize, |n_elements, &dim| n_elements.checked_mul(dim))
            .filter(|&n_elements| isize::try_from(n_elements).is_ok())
            .and_then(|n_elements| ty.row_bytes(n_elements))
            .filter(|&n_bytes| isize::try_from(n_bytes).is_ok())
            .ok_or_else(bad_dims)?;
        Ok(Self {
            name: name.to_owned(),
            ty,
            dims,
            offset,
            n_bytes,
            part: 0,
        })
    }

    /// Returns the number of elements.
    pub fn n_elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// Returns the number of elements in a row: the first dimension.
    pub fn row_len(&self) -> usize {
        self.dims[0]
    }

    /// Returns the number of rows: the product of the other dimensions.
    pub fn n_rows(&self) -> usize {
        self.dims[1..].iter().product()
    }
}

pub(crate) fn check_name(index: usize, name: &str) -> Result<(), GgufError> {
    if name.is_empty() {
        return Err(GgufError::EmptyTensorName { index });
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(GgufError::TensorNameTooLong {
            n_bytes: name.len(),
            maximum: MAX_NAME_BYTES,
        });
    }
    Ok(())
}
