//! [`Conversion`]: converts the rows of a tensor from one type to another, with several threads.
//!
//! It reads bytes and writes bytes, not files. Invariant: a row's bytes depend on the row and its importance
//! alone, not on the threads or on how rows are divided.

use std::sync::{Mutex, PoisonError};

use tokenmill_gguf::TensorBytes;
use tokenmill_quant::{Format, QuantError};

use crate::ConvertError;

/// Number of values that a thread processes at a time, rounded up to rows.
const PIECE_VALUES: usize = 1 << 16;

/// Larger values may have scales that half precision cannot hold, so the result is checked.
const SAFE_MAGNITUDE: f32 = 30_000.0;

/// A tensor to convert.
#[derive(Debug)]
pub(crate) struct Conversion<'a> {
    pub(crate) name: &'a str,
    pub(crate) bytes: TensorBytes<'a>,
    pub(crate) from: &'static Format,
    pub(crate) to: &'static Format,
    pub(crate) row_len: usize,
    /// Number of rows per matrix; a tensor of experts has several.
    pub(crate) rows_per_matrix: usize,
    /// One number per column of each matrix.
    pub(crate) importance: Option<&'a [f32]>,
}

/// The buffers of a thread.
#[derive(Default)]
struct Buffers {
    encoded: Vec<u8>,
    values: Vec<f32>,
    decoded: Vec<f32>,
}

impl Conversion<'_> {
    /// Returns the bytes of a row before and after.
    pub(crate) fn row_bytes(&self) -> Result<(usize, usize), ConvertError> {
        let of = |format: &Format| {
            format
                .row_bytes(self.row_len)
                .map_err(|source| self.quant(source))
        };
        Ok((of(self.from)?, of(self.to)?))
    }

    fn quant(&self, source: QuantError) -> ConvertError {
        ConvertError::Quant {
            name: self.name.to_owned(),
            source,
        }
    }

    /// Converts as many rows as fit in `out`, from `first_row` on.
    pub(crate) fn convert(
        &self,
        first_row: usize,
        out: &mut [u8],
        n_threads: usize,
    ) -> Result<(), ConvertError> {
        let (_, row_bytes) = self.row_bytes()?;
        let piece_rows = PIECE_VALUES.div_ceil(self.row_len).max(1);
        let n_pieces = (out.len() / row_bytes).div_ceil(piece_rows);
        let pieces = Mutex::new(out.chunks_mut(piece_rows * row_bytes).enumerate());
        let work = || -> Result<(), ConvertError> {
            let mut buffers = Buffers::default();
            loop {
                let piece = pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some((piece_idx, out)) = piece else {
                    return Ok(());
                };
                self.convert_piece(first_row + piece_idx * piece_rows, out, &mut buffers)?;
            }
        };
        let n_others = n_threads.min(n_pieces).saturating_sub(1);
        std::thread::scope(|scope| {
            let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, work);
            // The others do the work of a thread that does not start.
            let others: Vec<_> = (0..n_others).map_while(|other| spawn(other).ok()).collect();
            let own = work();
            let results = others.into_iter().map(|other| {
                other
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            // All threads have ended before the first error is returned.
            results.collect::<Vec<_>>().into_iter().chain([own]).collect()
        })
    }

    fn convert_piece(
        &self,
        first_row: usize,
        out: &mut [u8],
        buffers: &mut Buffers,
    ) -> Result<(), ConvertError> {
        let (from_bytes, to_bytes) = self.row_bytes()?;
        let n_rows = out.len() / to_bytes;
        let range = first_row * from_bytes..(first_row + n_rows) * from_bytes;
        let encoded =
            (self.bytes.read(range, &mut buffers.encoded)).map_err(|source| ConvertError::ReadTensor {
                name: self.name.to_owned(),
                source,
            })?;
        buffers.values.resize(n_rows * self.row_len, 0.0);
        (self.from.dequantize_row(encoded, &mut buffers.values)).map_err(|source| self.quant(source))?;
        let rows = buffers
            .values
            .chunks_exact(self.row_len)
            .zip(out.chunks_exact_mut(to_bytes));
        for (row, (values, out)) in (first_row..).zip(rows) {
            let mut greatest = 0.0_f32;
            for &value in values {
                if !value.is_finite() {
                    return Err(ConvertError::NotFinite {
                        name: self.name.to_owned(),
                        row,
                        value,
                    });
                }
                greatest = greatest.max(value.abs());
            }
            let result = match self.importance {
                Some(importance) => {
                    let matrix = row / self.rows_per_matrix;
                    let importance = &importance[matrix * self.row_len..][..self.row_len];
                    self.to.quantize_row_weighted(values, importance, out)
                }
                None => self.to.quantize_row(values, out),
            };
            result.map_err(|source| self.quant(source))?;
            if greatest > SAFE_MAGNITUDE {
                buffers.decoded.resize(self.row_len, 0.0);
                (self.to.dequantize_row(out, &mut buffers.decoded)).map_err(|source| self.quant(source))?;
                if buffers.decoded.iter().any(|value| !value.is_finite()) {
                    return Err(ConvertError::TooLarge {
                        name: self.name.to_owned(),
                        row,
                        ty: self.to.tensor_type(),
                    });
                }
            }
        }
        Ok(())
    }
}
