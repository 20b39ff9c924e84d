//! Rows of x made f16 for products of K-quants by many rows. Kernels: `halves.cu`, `matmul_halves.cu`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{LinearInput, Ops};
use crate::{Args, CudaExecError, LaunchShape, ManyRows, ProductRoom, error::Result, half_bands::HalfRows};

/// Superblocks that a thread block makes f16.
const BLOCK_SUPERS: usize = 8;

fn locked(halves: &Mutex<HalfRows>) -> MutexGuard<'_, HalfRows> {
    halves.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ops {
    /// Allocates what products in f16 need: those of K-quants by many rows ([`ManyRows`]), up to `max_rows` of `max_width` values. Larger ones are in
    /// int8, as all are without, and slower. Batch-invariant products are not in f16.
    ///
    /// # Errors
    /// [`CudaExecError::OutOfMemory`].
    pub fn allow_halves(&mut self, max_rows: usize, max_width: usize) -> Result<()> {
        if !self.is_batch_invariant {
            let rows = HalfRows::new(&self.device, max_rows, max_width)?;
            self.halves = Some(Mutex::new(rows));
        }
        Ok(())
    }

    /// Device memory that [`Self::allow_halves`] takes: none where products are batch-invariant.
    pub fn halves_bytes(&self, max_rows: usize, max_width: usize) -> usize {
        if self.is_batch_invariant {
            0
        } else {
            HalfRows::device_bytes(max_rows, max_width)
        }
    }

    /// The memory that there is for products by `n_rows` of `n_in` values.
    pub(super) fn room_for(&self, n_rows: usize, n_in: usize) -> ProductRoom {
        let fits = |halves| locked(halves).halves.len() >= HalfRows::len(n_rows, n_in);
        ProductRoom {
            max_splits: if self.parts.is_some() {
                ManyRows::MAX_SPLITS
            } else {
                1
            },
            has_halves: self.halves.as_ref().is_some_and(fits),
        }
    }

    /// Makes rows f16, as many as thread blocks take; the last row stands for those beyond it.
    pub(super) fn halve(&self, input: &LinearInput<'_>, n_in: usize) -> Result<MutexGuard<'_, HalfRows>> {
        let quantized = input.quantized.ok_or(CudaExecError::Unsupported {
            feature: "product of quantized weights with f32 rows".to_owned(),
        })?;
        let n_rows = input.n_rows;
        let rows = quantized.rows(0, n_rows, n_in)?;
        let halves = self.halves.as_ref();
        let mut halves = locked(halves.expect("products are in f16 where there is memory for their rows"));
        let HalfRows {
            halves: numbers,
            sums,
            powers,
        } = &mut *halves;
        let args = Args::new()
            .read(rows.bytes)
            .read(rows.scales)
            .count(n_in)
            .count(n_rows)
            .write(numbers.view_mut())
            .write(sums.view_mut())
            .write(powers.view_mut());
        let grid = [HalfRows::padded(n_rows), (n_in / 256).div_ceil(BLOCK_SUPERS), 1];
        self.device
            .launch(self.halve_rows, LaunchShape::new(grid, 256), &args)?;
        Ok(halves)
    }
}
