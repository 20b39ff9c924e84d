//! Views of tensors that a file or a folder stores in another form: read piece by piece, converted on the
//! way.
//!
//! The sources decide which tensors to combine. Invariant: no view holds a whole tensor in memory. The cost
//! of a read is proportional to its size; if rows are quantized, to the whole rows that it touches.

use std::{io, sync::Arc};

use tokenmill_gguf::{FileBytes, ReadAt, RegularFile, TensorBytes};
use tokenmill_quant::Format;

/// The bytes of one tensor in a file.
pub(crate) struct Stored {
    pub(crate) file: Arc<RegularFile>,
    pub(crate) offset: u64,
}

/// Tensors of `part_bytes` bytes each, concatenated.
pub(crate) struct Joined {
    pub(crate) parts: Vec<Box<dyn ReadAt>>,
    pub(crate) part_bytes: usize,
}

/// A function applied to F32, F16 or BF16 numbers; the result is F32.
pub(crate) struct Mapped {
    pub(crate) source: Box<dyn ReadAt>,
    pub(crate) decode: fn(&[u8]) -> f32,
    pub(crate) element_bytes: usize,
    /// Numbers per row, which are read at once.
    pub(crate) n_cols: usize,
    /// The function of a row's index and a number.
    pub(crate) map: Box<dyn Fn(usize, f32) -> f32 + Send + Sync>,
}

/// Quantized rows, decoded to F32.
pub(crate) struct Dequantized<'a> {
    pub(crate) source: Box<dyn ReadAt + 'a>,
    pub(crate) format: &'static Format,
    pub(crate) n_cols: usize,
    pub(crate) row_bytes: usize,
}

/// A matrix with its rows reordered.
pub(crate) struct Reordered {
    pub(crate) source: Box<dyn ReadAt>,
    /// For each row, its index in the source.
    pub(crate) order: Vec<usize>,
    pub(crate) row_bytes: usize,
}

/// A matrix of `n_rows` rows, followed by copies of its first row.
pub(crate) struct Filled {
    pub(crate) source: Box<dyn ReadAt>,
    pub(crate) n_rows: usize,
    /// Number of rows including the copies.
    pub(crate) n_all_rows: usize,
    pub(crate) row_bytes: usize,
}

/// The same part of every `each_bytes` bytes, concatenated: some rows of each expert's matrix.
pub(crate) struct PartOfEach<'a> {
    pub(crate) source: TensorBytes<'a>,
    pub(crate) each_bytes: usize,
    pub(crate) first: usize,
    pub(crate) part_bytes: usize,
}

impl ReadAt for PartOfEach<'_> {
    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        for_each_unit(offset, out, self.part_bytes, |index, start, out| {
            let at = index * self.each_bytes + self.first + start;
            if at + out.len() > self.source.len() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.source.read_into(at, out)
        })
    }
}

/// Transposes of the source's matrices, concatenated.
pub(crate) struct Transposed<'a> {
    pub(crate) source: Box<dyn ReadAt + 'a>,
    pub(crate) n_rows: usize,
    pub(crate) n_cols: usize,
    pub(crate) element_bytes: usize,
}

/// MXFP4 blocks in GGUF's layout, a scale and 16 bytes, from separate numbers and scales. In the source,
/// adjacent numbers share a byte; in GGUF's blocks, numbers 16 apart do.
pub(crate) struct Mxfp4 {
    pub(crate) blocks: Box<dyn ReadAt>,
    pub(crate) scales: Box<dyn ReadAt>,
}

/// Bytes of an MXFP4 block.
const MXFP4_BYTES: usize = 17;

/// Blocks per read.
const MXFP4_BLOCKS: usize = 1024;

impl ReadAt for Mxfp4 {
    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let unit_bytes = MXFP4_BLOCKS * MXFP4_BYTES;
        let (mut numbers, mut scales) = (vec![0; 16 * MXFP4_BLOCKS], vec![0; MXFP4_BLOCKS]);
        for_each_unit(offset, out, unit_bytes, |unit_idx, start, out| {
            let first = start / MXFP4_BYTES;
            let n_blocks = (start + out.len()).div_ceil(MXFP4_BYTES) - first;
            let at = (unit_idx * MXFP4_BLOCKS + first) as u64;
            let (numbers, scales) = (&mut numbers[..16 * n_blocks], &mut scales[..n_blocks]);
            self.blocks.read_exact_at(16 * at, numbers)?;
            self.scales.read_exact_at(at, scales)?;
            let number = |block: &[u8], i: usize| block[i / 2] >> (4 * (i % 2)) & 0xf;
            for (block_idx, (block, scale)) in (first..).zip(numbers.chunks_exact(16).zip(scales)) {
                let mut bytes = [*scale; MXFP4_BYTES];
                for i in 0..16 {
                    bytes[1 + i] = number(block, i) | number(block, i + 16) << 4;
                }
                // The first and the last block may be read in part.
                let own = block_idx * MXFP4_BYTES;
                let wanted = start.max(own)..(start + out.len()).min(own + MXFP4_BYTES);
                out[wanted.start - start..wanted.end - start]
                    .copy_from_slice(&bytes[wanted.start - own..wanted.end - own]);
            }
            Ok(())
        })
    }
}

impl ReadAt for Transposed<'_> {
    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let (row_bytes, element_bytes) = (self.n_cols * self.element_bytes, self.element_bytes);
        let mut column = Vec::new();
        for_each_unit(offset, out, self.n_rows * row_bytes, |matrix, start, out| {
            // The part of each column within the requested rows is read at once.
            let (first, last) = (start / row_bytes, (start + out.len()).div_ceil(row_bytes));
            column.resize((last - first) * element_bytes, 0);
            for col in 0..self.n_cols {
                let at = (matrix * self.n_cols + col) * self.n_rows + first;
                (self.source).read_exact_at((at * element_bytes) as u64, &mut column)?;
                for (row, element) in (first..).zip(column.chunks_exact(element_bytes)) {
                    for (i, &byte) in element.iter().enumerate() {
                        let to = (row * row_bytes + col * element_bytes + i).checked_sub(start);
                        if let Some(to) = to.and_then(|to| out.get_mut(to)) {
                            *to = byte;
                        }
                    }
                }
            }
            Ok(())
        })
    }
}

impl ReadAt for Stored {
    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(self.offset + offset, out)
    }

    fn keep(&self, start: u64, len: usize) -> Option<FileBytes> {
        Some(FileBytes::new(
            Arc::<RegularFile>::clone(&self.file),
            self.offset + start,
            len,
        ))
    }
}

/// Calls `read` for each unit of `unit_bytes` that a read touches, with its index, the requested part of it,
/// and the destination of that part.
pub(crate) fn for_each_unit(
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

impl ReadAt for Mapped {
    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut elements = Vec::new();
        for_each_unit(offset, out, 4 * self.n_cols, |row, start, out| {
            let (first, last) = (start / 4, (start + out.len()).div_ceil(4));
            elements.resize((last - first) * self.element_bytes, 0);
            let at = (row * self.n_cols + first) * self.element_bytes;
            self.source.read_exact_at(at as u64, &mut elements)?;
            for (col, element) in (first..).zip(elements.chunks_exact(self.element_bytes)) {
                let bytes = (self.map)(row, (self.decode)(element)).to_le_bytes();
                // The first and the last number may be read in part.
                let own = 4 * col;
                let wanted = start.max(own)..(start + out.len()).min(own + 4);
                out[wanted.start - start..wanted.end - start]
                    .copy_from_slice(&bytes[wanted.start - own..wanted.end - own]);
            }
            Ok(())
        })
    }
}

impl ReadAt for Dequantized<'_> {
    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let (mut blocks, mut values) = (vec![0; self.row_bytes], vec![0.0; self.n_cols]);
        for_each_unit(offset, out, 4 * self.n_cols, |row, start, out| {
            (self.source).read_exact_at((row * self.row_bytes) as u64, &mut blocks)?;
            (self.format.dequantize_row(&blocks, &mut values)).map_err(io::Error::other)?;
            let bytes = values.iter().flat_map(|value| value.to_le_bytes());
            for (out, byte) in out.iter_mut().zip(bytes.skip(start)) {
                *out = byte;
            }
            Ok(())
        })
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

impl ReadAt for Filled {
    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        for_each_unit(offset, out, self.row_bytes, |row, start, out| {
            if row >= self.n_all_rows {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let row = if row < self.n_rows { row } else { 0 };
            (self.source).read_exact_at((row * self.row_bytes + start) as u64, out)
        })
    }
}

#[cfg(test)]
mod tests {
    use tokenmill_gguf::TensorType;

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
        let filled = Filled {
            source: source(2..6),
            n_rows: 2,
            n_all_rows: 4,
            row_bytes: 2,
        };
        check(&filled, &[2, 3, 4, 5, 2, 3, 2, 3]);
        let transposed = Transposed {
            source: source(0..24),
            n_rows: 3,
            n_cols: 2,
            element_bytes: 2,
        };
        let first = [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11];
        let second = first.map(|byte| byte + 12);
        check(&transposed, &[first, second].concat());
        let mxfp4 = Mxfp4 {
            blocks: source((0..32).map(|i| if i < 16 { 0x21 } else { i })),
            scales: source([100, 200]),
        };
        let mut expected = vec![100];
        expected.extend((0..16).map(|i| if i % 2 == 0 { 0x11 } else { 0x22 }));
        expected.push(200);
        expected.extend((0..16_u8).map(|i| {
            let number = |i: u8| (16 + i / 2) >> (4 * (i % 2)) & 0xf;
            number(i) | number(i + 16) << 4
        }));
        check(&mxfp4, &expected);
        let bytes: Vec<u8> = (0..12).collect();
        let part_of_each = PartOfEach {
            source: bytes.as_slice().into(),
            each_bytes: 4,
            first: 1,
            part_bytes: 2,
        };
        check(&part_of_each, &[1, 2, 5, 6, 9, 10]);
        // Two rows of one Q8_0 block each: a scale in half precision and 32 numbers.
        let block = |scale: f32, first: i8| {
            let scale = half::f16::from_f32(scale).to_le_bytes().into_iter();
            scale.chain((first..first + 32).map(|number| number as u8))
        };
        let dequantized = Dequantized {
            source: source(block(0.5, -16).chain(block(2.0, 1))),
            format: Format::of(TensorType::Q8_0).unwrap(),
            n_cols: 32,
            row_bytes: 34,
        };
        let first = (-16..16_i8).map(|number| 0.5 * f32::from(number));
        let second = (1..33_i8).map(|number| 2.0 * f32::from(number));
        let expected: Vec<u8> = first.chain(second).flat_map(f32::to_le_bytes).collect();
        check(&dequantized, &expected);
        let mapped = Mapped {
            source: source(0..6),
            decode: |byte| f32::from(byte[0]),
            element_bytes: 1,
            n_cols: 3,
            map: Box::new(|row, x| x + 10.0 * row as f32),
        };
        let expected = [0.0_f32, 1.0, 2.0, 13.0, 14.0, 15.0];
        let expected: Vec<u8> = expected.iter().flat_map(|x| x.to_le_bytes()).collect();
        check(&mapped, &expected);
    }
}
