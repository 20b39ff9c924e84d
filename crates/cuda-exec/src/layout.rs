//! [`MatrixLayout`]: the layout of a weight matrix on the device, and the conversion from the rows of a file.
//!
//! It is arithmetic on bytes that runs on many host threads while others upload. `kernels/formats/planes.cuh` describes the same planes;
//! [`planes`](crate::planes) has those of each format. Invariant: row `r` of plane `p` is `plane.row_bytes` bytes at
//! `plane.offset + r * plane.row_bytes`, so rows can be repacked in any order.

use tokenmill_gguf::TensorType;

use crate::planes::FormatPlanes;

/// Planes start at multiples of this.
const PLANE_ALIGN: usize = 256;
/// Rows of unquantized matrices are padded to multiples of this.
const ROW_ALIGN: usize = 16;

/// A part of a matrix on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plane {
    /// Where it starts, from the start of the matrix.
    pub offset: usize,
    /// Bytes of each row.
    pub row_bytes: usize,
}

/// The planes of a matrix `[n_out, n_in]` of one type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixLayout {
    format: &'static FormatPlanes,
    n_out: usize,
    n_in: usize,
    file_row_bytes: usize,
    planes: Vec<Plane>,
    bytes: usize,
}

/// Says why a matrix has no layout.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// No kernel reads this type.
    #[error("no kernel computes with type {ty}")]
    UnsupportedType {
        /// Name of the type.
        ty: &'static str,
    },
    /// A row that is not a whole number of blocks.
    #[error("a row of {n_in} values is not a whole number of {ty} blocks")]
    PartialBlock {
        /// Name of the type.
        ty: &'static str,
        /// Values of a row.
        n_in: usize,
    },
    /// Sizes that a kernel cannot index.
    #[error("a matrix of {n_out} rows of {n_in} values is too large for one device buffer")]
    TooLarge {
        /// Rows.
        n_out: usize,
        /// Values of a row.
        n_in: usize,
    },
    /// A slice of the wrong length.
    #[error("{what} has {found} bytes, expected {expected}")]
    ByteLength {
        /// Which slice.
        what: &'static str,
        /// Bytes it should have.
        expected: usize,
        /// Bytes it has.
        found: usize,
    },
}

impl MatrixLayout {
    /// Returns the layout of a matrix.
    ///
    /// # Errors
    /// [`LayoutError`] if no kernel reads the type, or the sizes do not fit it.
    pub fn of(ty: TensorType, n_out: usize, n_in: usize) -> Result<Self, LayoutError> {
        let too_large = LayoutError::TooLarge { n_out, n_in };
        if n_out > i32::MAX as usize || n_in > i32::MAX as usize {
            return Err(too_large);
        }
        let format = FormatPlanes::of(ty).ok_or(LayoutError::UnsupportedType { ty: ty.name() })?;
        let Some(file_row_bytes) = ty.row_bytes(n_in) else {
            return Err(LayoutError::PartialBlock { ty: ty.name(), n_in });
        };
        let row_bytes: Vec<usize> = if format.is_float() {
            vec![file_row_bytes.next_multiple_of(ROW_ALIGN)]
        } else {
            let n_blocks = n_in / ty.block_len();
            format.block_bytes().map(|bytes| bytes * n_blocks).collect()
        };
        let mut end = 0usize;
        let mut planes = Vec::with_capacity(row_bytes.len());
        for row_bytes in row_bytes {
            planes.push(Plane {
                offset: end,
                row_bytes,
            });
            end = row_bytes
                .checked_mul(n_out)
                .and_then(|bytes| bytes.checked_next_multiple_of(PLANE_ALIGN))
                .and_then(|bytes| bytes.checked_add(end))
                .ok_or_else(|| too_large.clone())?;
        }
        Ok(Self {
            format,
            n_out,
            n_in,
            file_row_bytes,
            planes,
            bytes: end,
        })
    }

    /// Returns the type of the weights.
    pub fn ty(&self) -> TensorType {
        self.format.ty()
    }

    /// Returns the number of rows.
    pub fn n_out(&self) -> usize {
        self.n_out
    }

    /// Values of a row.
    pub fn n_in(&self) -> usize {
        self.n_in
    }

    /// Returns whether the kernels multiply these weights with quantized activations.
    pub fn takes_quantized_input(&self) -> bool {
        !self.format.is_float()
    }

    /// Bytes of the whole matrix on the device.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the planes, in the order in which kernels know them.
    pub fn planes(&self) -> &[Plane] {
        &self.planes
    }

    /// Bytes of a row in the file.
    pub fn file_row_bytes(&self) -> usize {
        self.file_row_bytes
    }

    /// Repacks a whole matrix.
    ///
    /// # Errors
    /// [`LayoutError::ByteLength`].
    pub fn repack(&self, file_rows: &[u8], device: &mut [u8]) -> Result<(), LayoutError> {
        check_len("the matrix", self.file_row_bytes * self.n_out, file_rows.len())?;
        check_len("the device image", self.bytes, device.len())?;
        device.fill(0);
        for row_idx in 0..self.n_out {
            let row = &file_rows[row_idx * self.file_row_bytes..][..self.file_row_bytes];
            let mut rest = &mut *device;
            let mut start = 0;
            let mut parts: Vec<&mut [u8]> = Vec::with_capacity(self.planes.len());
            for plane in &self.planes {
                let at = plane.offset + row_idx * plane.row_bytes;
                let (_, after) = rest.split_at_mut(at - start);
                let (part, after) = after.split_at_mut(plane.row_bytes);
                parts.push(part);
                (rest, start) = (after, at + plane.row_bytes);
            }
            self.repack_row(row, &mut parts)?;
        }
        Ok(())
    }

    /// Repacks one row; `parts` are its bytes in each plane.
    ///
    /// # Errors
    /// [`LayoutError::ByteLength`].
    pub fn repack_row(&self, file_row: &[u8], parts: &mut [&mut [u8]]) -> Result<(), LayoutError> {
        check_len("a row of the matrix", self.file_row_bytes, file_row.len())?;
        check_len("the list of planes", self.planes.len(), parts.len())?;
        for (plane, part) in self.planes.iter().zip(parts.iter()) {
            check_len("a row of a plane", plane.row_bytes, part.len())?;
        }
        self.format.repack_row(file_row, parts);
        Ok(())
    }
}

fn check_len(what: &'static str, expected: usize, found: usize) -> Result<(), LayoutError> {
    if expected == found {
        Ok(())
    } else {
        Err(LayoutError::ByteLength {
            what,
            expected,
            found,
        })
    }
}
