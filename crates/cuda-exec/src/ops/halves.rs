//! Converts rows of x to f16 for products of quantized matrices by many rows, for bands and for matrix operations of warpgroups. Kernels:
//! `halves.cu`, `matmul_halves.cu`, `wide_rows.cu`, `matmul_wide.cu`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{LinearInput, Ops};
use crate::{
    Args, CudaExecError, LaunchShape, ManyRows, ProductRoom, WideCut, error::Result, half_bands::HalfRows,
};

/// Superblocks that a thread block converts to f16.
const BLOCK_SUPERS: usize = 8;

/// Wanted number of thread blocks of tiles for each multiprocessor, as far as rows have enough superblocks.
const TILE_BLOCKS: usize = 8;
/// Rows of such a thread block.
const BLOCK_ROWS: usize = 8;

/// Selects the layout of rows of x in the memory for f16 rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HalfForm {
    /// For bands.
    Rows,
    /// For matrix operations of warpgroups.
    Tiles,
}

/// Rows of x that were converted to f16.
pub(super) struct Halved<'a> {
    pub(super) form: HalfForm,
    pub(super) rows: MutexGuard<'a, HalfRows>,
}

fn locked(halves: &Mutex<HalfRows>) -> MutexGuard<'_, HalfRows> {
    halves.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ops {
    /// Allocates the memory for products in f16: those of K-quants by many rows ([`ManyRows`]), up to `max_rows` of `max_width` values. Without it,
    /// and for larger products, the kernels use int8 and are slower. Batch-invariant products never use f16.
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

    /// Returns the device memory that [`Self::allow_halves`] takes: none if products are batch-invariant.
    pub fn halves_bytes(&self, max_rows: usize, max_width: usize) -> usize {
        if self.is_batch_invariant {
            0
        } else {
            HalfRows::device_bytes(max_rows, max_width)
        }
    }

    /// Returns the memory for products by `n_rows` of `n_in` values, of matrices that [are wide](crate::Matrix::is_wide) if the device supports
    /// them.
    pub fn room_for(&self, n_rows: usize, n_in: usize) -> ProductRoom {
        let fits = |halves| locked(halves).halves.len() >= HalfRows::len(n_rows, n_in);
        let has_halves = self.halves.as_ref().is_some_and(fits);
        ProductRoom {
            max_splits: if self.parts.is_some() {
                ManyRows::MAX_SPLITS
            } else {
                1
            },
            has_halves,
            has_tiles: has_halves && self.wide_tiles.is_some(),
        }
    }

    /// Converts rows to f16, padded to whole thread blocks. For bands, the last row is repeated. In tiles, padding rows are zero, up to 16, 32 or a
    /// multiple of 64 rows; further rows are not written.
    pub(super) fn halve(&self, input: &LinearInput<'_>, n_in: usize, form: HalfForm) -> Result<Halved<'_>> {
        let quantized = input.quantized.ok_or(CudaExecError::Unsupported {
            feature: "product of quantized weights with f32 rows".to_owned(),
        })?;
        let n_rows = input.n_rows;
        let rows = quantized.rows(0, n_rows, n_in)?;
        let halves = self.halves.as_ref();
        let mut halved = locked(halves.expect("products are in f16 where there is memory for their rows"));
        let HalfRows { halves, sums, powers } = &mut *halved;
        let args = (Args::new().read(rows.bytes).read(rows.scales))
            .count(n_in)
            .count(n_rows)
            .write(halves.view_mut());
        let n_supers = n_in / 256;
        let (kernel, grid, args) = match form {
            HalfForm::Rows => {
                let grid = [HalfRows::padded(n_rows), n_supers.div_ceil(BLOCK_SUPERS), 1];
                let args = args.write(sums.view_mut()).write(powers.view_mut());
                (self.halve_rows, grid, args)
            }
            HalfForm::Tiles => {
                let n_blocks = WideCut::padded_rows(n_rows) / BLOCK_ROWS;
                let n_wanted = TILE_BLOCKS * self.multiprocessors.n;
                let grid = [n_blocks, n_wanted.div_ceil(n_blocks).clamp(1, n_supers), 1];
                let kernel = (self.wide_tiles).expect("products are wide where there is a kernel for tiles");
                (kernel, grid, args.write(powers.view_mut()))
            }
        };
        self.device.launch(kernel, LaunchShape::new(grid, 256), &args)?;
        Ok(Halved { form, rows: halved })
    }
}
