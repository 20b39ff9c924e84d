//! [`Encoded`]: a tensor of a folder that is quantized as it is read.
//!
//! Unlike other views it computes. Invariant: rows are encoded independently, so reading some rows gives the
//! same bytes as reading all; a weight that is NaN is a read error that names its row.

use std::io;

use tokenmill_gguf::ReadAt;
use tokenmill_quant::Format;

/// Bytes of the source that one read covers.
const READ_BYTES: usize = 1 << 20;

/// The rows of a tensor in another format.
pub(crate) struct Encoded {
    pub(crate) source: Box<dyn ReadAt>,
    pub(crate) from: &'static Format,
    pub(crate) to: &'static Format,
    /// Numbers per row: whole blocks of both formats.
    pub(crate) n_cols: usize,
}

impl Encoded {
    fn row_bytes(&self, format: &Format) -> usize {
        self.n_cols / format.block_len() * format.block_bytes()
    }

    /// Encodes the rows from `first` on into `out`.
    fn encode(&self, first: usize, out: &mut [u8]) -> io::Result<()> {
        let (from_bytes, to_bytes) = (self.row_bytes(self.from), self.row_bytes(self.to));
        let rows_at_once = (READ_BYTES / from_bytes).max(1);
        let (mut stored, mut values) = (Vec::new(), Vec::new());
        for (chunk_idx, out) in out.chunks_mut(rows_at_once * to_bytes).enumerate() {
            let first = first + chunk_idx * rows_at_once;
            let n_rows = out.len() / to_bytes;
            stored.resize(n_rows * from_bytes, 0);
            values.resize(n_rows * self.n_cols, 0.0);
            self.source
                .read_exact_at((first * from_bytes) as u64, &mut stored)?;
            self.from
                .dequantize_row(&stored, &mut values)
                .map_err(io::Error::other)?;
            if let Some(idx) = values.iter().position(|value| !value.is_finite()) {
                let (row, value) = (first + idx / self.n_cols, values[idx]);
                return Err(io::Error::other(format!(
                    "it has {value} at row {row}, which cannot be quantized; the weights are damaged"
                )));
            }
            self.to.quantize_row(&values, out).map_err(io::Error::other)?;
        }
        Ok(())
    }
}

impl ReadAt for Encoded {
    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let row_bytes = self.row_bytes(self.to);
        let (first, start) = (offset as usize / row_bytes, offset as usize % row_bytes);
        if start == 0 && out.len().is_multiple_of(row_bytes) {
            return self.encode(first, out);
        }
        let n_rows = (start + out.len()).div_ceil(row_bytes);
        let mut rows = vec![0; n_rows * row_bytes];
        self.encode(first, &mut rows)?;
        out.copy_from_slice(&rows[start..start + out.len()]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokenmill_gguf::TensorType;

    use super::*;

    struct Bytes(Vec<u8>);

    impl ReadAt for Bytes {
        fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            self.0.as_slice().read_exact_at(offset, out)
        }
    }

    fn view(values: &[f32]) -> Encoded {
        Encoded {
            source: Box::new(Bytes(values.iter().flat_map(|x| x.to_le_bytes()).collect())),
            from: Format::of(TensorType::F32).unwrap(),
            to: Format::of(TensorType::Q8_0).unwrap(),
            n_cols: 32,
        }
    }

    #[test]
    fn any_part_has_the_bytes_of_the_whole() {
        let values: Vec<f32> = (0..96).map(|i| (i as f32 * 0.3).sin()).collect();
        let mut expected = vec![0; 3 * 34];
        Format::of(TensorType::Q8_0)
            .unwrap()
            .quantize_row(&values, &mut expected)
            .unwrap();
        let view = view(&values);
        for (start, end) in [(0, 102), (34, 68), (1, 2), (33, 70), (101, 102)] {
            let mut found = vec![0; end - start];
            view.read_exact_at(start as u64, &mut found).unwrap();
            assert_eq!(found, expected[start..end], "{start}..{end}");
        }
        view.read_exact_at(34, &mut [0; 102]).unwrap_err();
    }

    #[test]
    fn a_weight_that_is_no_number_is_named() {
        let mut values = [1.0; 96];
        values[40] = f32::NAN;
        let error = view(&values).read_exact_at(0, &mut [0; 102]).unwrap_err();
        assert!(error.to_string().starts_with("it has NaN at row 1"), "{error}");
    }
}
