//! Tensors that a folder stores in another form: read piece by piece, converted on the way.
//!
//! Separate from the folder, which decides what a tensor is made of. Invariant: no view holds a whole tensor in memory; a
//! read costs in proportion to what is read.

use std::{io, sync::Arc};

use tokenmill_gguf::{ReadAt, RegularFile};

/// The bytes of one tensor in a file.
pub(crate) struct Stored {
    pub(crate) file: Arc<RegularFile>,
    pub(crate) offset: u64,
}

/// Tensors of `part_bytes` bytes each, one after the other.
pub(crate) struct Joined {
    pub(crate) parts: Vec<Box<dyn ReadAt>>,
    pub(crate) part_bytes: usize,
}

/// F32, F16 or BF16 numbers as F32, each plus 1.
pub(crate) struct PlusOne {
    pub(crate) source: Box<dyn ReadAt>,
    pub(crate) decode: fn(&[u8]) -> f32,
    pub(crate) element_bytes: usize,
}

/// A matrix `[n_cols, n_rows]` as `[n_rows, n_cols]`.
pub(crate) struct Transposed {
    pub(crate) source: Box<dyn ReadAt>,
    pub(crate) n_rows: usize,
    pub(crate) n_cols: usize,
    pub(crate) element_bytes: usize,
}

/// A matrix whose rows come in another order.
pub(crate) struct Reordered {
    pub(crate) source: Box<dyn ReadAt>,
    /// Of each row, which one of the source it is.
    pub(crate) order: Vec<usize>,
    pub(crate) row_bytes: usize,
}

impl ReadAt for Stored {
    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(self.offset + offset, out)
    }
}

/// Calls `read` with the index of each unit of `unit_bytes` that a read touches, the part of it that is wanted, and where
/// that goes.
fn for_each_unit(
    offset: u64,
    out: &mut [u8],
    unit_bytes: usize,
    mut read: impl FnMut(usize, usize, &mut [u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut unit_idx = offset as usize / unit_bytes;
    let mut start = offset as usize % unit_bytes;
    let mut rest = out;
    while !rest.is_empty() {
        let (unit, others) = rest.split_at_mut(rest.len().min(unit_bytes - start));
        read(unit_idx, start, unit)?;
        (unit_idx, start, rest) = (unit_idx + 1, 0, others);
    }
    Ok(())
}

impl ReadAt for Joined {
    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        for_each_unit(offset, out, self.part_bytes, |part_idx, start, out| {
            let part = self.parts.get(part_idx).ok_or(io::ErrorKind::UnexpectedEof)?;
            part.read_exact_at(start as u64, out)
        })
    }
}

impl ReadAt for PlusOne {
    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut element = [0; 4];
        let element = &mut element[..self.element_bytes];
        for_each_unit(offset, out, 4, |index, start, out| {
            (self.source).read_exact_at((index * self.element_bytes) as u64, element)?;
            let bytes = ((self.decode)(element) + 1.0).to_le_bytes();
            out.copy_from_slice(&bytes[start..][..out.len()]);
            Ok(())
        })
    }
}

impl ReadAt for Transposed {
    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let row_bytes = self.n_cols * self.element_bytes;
        let first = offset as usize / row_bytes;
        let end = (offset as usize + out.len()).div_ceil(row_bytes).min(self.n_rows);
        // A column of the result is contiguous in the source, so that all rows wanted take one read for each column.
        let n_rows = end.saturating_sub(first);
        let mut column = vec![0; n_rows * self.element_bytes];
        let mut rows = vec![0; n_rows * row_bytes];
        for col in 0..self.n_cols {
            let start = (col * self.n_rows + first) * self.element_bytes;
            self.source.read_exact_at(start as u64, &mut column)?;
            for (row, element) in column.chunks_exact(self.element_bytes).enumerate() {
                rows[row * row_bytes + col * self.element_bytes..][..self.element_bytes]
                    .copy_from_slice(element);
            }
        }
        let start = offset as usize - first * row_bytes;
        let wanted = rows.get(start..start + out.len());
        out.copy_from_slice(wanted.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

impl ReadAt for Reordered {
    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        for_each_unit(offset, out, self.row_bytes, |row, start, out| {
            let row = *self.order.get(row).ok_or(io::ErrorKind::UnexpectedEof)?;
            (self.source).read_exact_at((row * self.row_bytes + start) as u64, out)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A source in memory.
    struct Bytes(Vec<u8>);

    impl ReadAt for Bytes {
        fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            self.0.as_slice().read_exact_at(offset, out)
        }
    }

    /// Reads a view whole, and in pieces of every length.
    #[track_caller]
    fn check(view: &dyn ReadAt, expected: &[u8]) {
        for piece in 1..=expected.len() {
            let mut found = vec![0; expected.len()];
            for (idx, out) in found.chunks_mut(piece).enumerate() {
                view.read_exact_at((idx * piece) as u64, out).unwrap();
            }
            assert_eq!(found, expected, "in pieces of {piece}");
        }
        view.read_exact_at(1, &mut vec![0; expected.len()]).unwrap_err();
    }

    fn source(bytes: impl IntoIterator<Item = u8>) -> Box<dyn ReadAt> {
        Box::new(Bytes(bytes.into_iter().collect()))
    }

    #[test]
    fn views_read_the_same_in_pieces() {
        let joined = Joined {
            parts: vec![source(0..3), source(3..6)],
            part_bytes: 3,
        };
        check(&joined, &[0, 1, 2, 3, 4, 5]);
        // Two columns of three rows, elements of two bytes.
        let transposed = Transposed {
            source: source(0..12),
            n_rows: 3,
            n_cols: 2,
            element_bytes: 2,
        };
        check(&transposed, &[0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]);
        let reordered = Reordered {
            source: source(0..6),
            order: vec![2, 0, 1],
            row_bytes: 2,
        };
        check(&reordered, &[4, 5, 0, 1, 2, 3]);
        let plus_one = PlusOne {
            source: source([0, 1]),
            decode: |byte| f32::from(byte[0]),
            element_bytes: 1,
        };
        let expected: Vec<u8> = [1.0_f32, 2.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        check(&plus_one, &expected);
    }
}
