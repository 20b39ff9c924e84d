//! [`Matrix`]: the weights of one linear map, packed for the host.
//!
//! It owns its memory: once a tensor is packed, the file is not read again. A table that is used only for
//! lookups may stay in its file. Invariant: packing is lossless; [`Matrix::dequantize_row`] returns the
//! file's values to the bit.

use std::{
    fmt, io,
    sync::{Arc, OnceLock},
};

use tokenmill_cpu_kernels::{Activations, ScaleSpan, TILE_ROWS, TileMemory, TileOps};
use tokenmill_gguf::{FileBytes, TensorBytes, TensorType};
use tokenmill_quant::{CpuFeatures, Format, QuantError};

use crate::{CpuExecError, Host, pool::Columns};

/// Weights `[n_rows, n_cols]`: a linear map from `n_cols` inputs to `n_rows` outputs, or one such map per
/// expert. Clones share their memory.
#[derive(Clone)]
pub struct Matrix {
    format: &'static Format,
    n_experts: usize,
    n_rows: usize,
    n_cols: usize,
    ops: &'static TileOps,
    tile_bytes: usize,
    /// The tiles, packed once and shared by all products; empty for a table in a file.
    memory: Arc<TileMemory>,
    /// The rows as the file holds them, if they stay there.
    file: Option<FileBytes>,
    /// The features of the host that it was packed for; no result depends on them.
    features: CpuFeatures,
    /// The tensor's name, if products are observed.
    name: Option<Box<str>>,
}

impl Matrix {
    /// Packs consecutive rows in `bytes`, as a GGUF tensor stores them. All threads of
    /// `host` read and pack, a few rows each at a time.
    ///
    /// # Errors
    /// [`CpuExecError::ReadWeights`] if the bytes cannot be read, [`CpuExecError::Quant`] for an unsupported
    /// type or columns that are not a whole number of its blocks, [`CpuExecError::MatrixBytes`] if `bytes` does
    /// not have the length of the shape, and [`CpuExecError::OutOfMemory`].
    pub fn pack<'a>(
        host: &Host,
        ty: TensorType,
        n_rows: usize,
        n_cols: usize,
        bytes: impl Into<TensorBytes<'a>>,
    ) -> Result<Self, CpuExecError> {
        Self::pack_experts(host, ty, 1, n_rows, n_cols, bytes)
    }

    /// Packs the matrices of some experts, one after the other in `bytes`, as [`Matrix::pack`] does. No tile
    /// has rows of two experts.
    ///
    /// # Errors
    /// Returns the errors of [`Matrix::pack`].
    pub fn pack_experts<'a>(
        host: &Host,
        ty: TensorType,
        n_experts: usize,
        n_rows: usize,
        n_cols: usize,
        bytes: impl Into<TensorBytes<'a>>,
    ) -> Result<Self, CpuExecError> {
        let bytes = bytes.into();
        let format = Format::of(ty)?;
        let ops = TileOps::of(ty).ok_or(QuantError::UnsupportedType(ty))?;
        let row_bytes = format.row_bytes(n_cols)?;
        let too_large = CpuExecError::MatrixTooLarge { n_rows, n_cols };
        let Some(expected) = n_rows
            .checked_mul(n_experts)
            .and_then(|rows| row_bytes.checked_mul(rows))
        else {
            return Err(too_large);
        };
        if bytes.len() != expected {
            return Err(CpuExecError::MatrixBytes {
                ty,
                n_rows,
                n_cols,
                expected,
                found: bytes.len(),
            });
        }
        let n_bytes = Self::packed_bytes(ty, n_rows, n_cols)
            .and_then(|n_bytes| n_bytes.checked_mul(n_experts))
            .ok_or(too_large)?;
        // The threads write the tiles that they will read, each in its place.
        let _entered = host.pool().enter();
        let tile_bytes = ops.tile_bytes(n_cols);
        let mut memory = TileMemory::zeroed(n_bytes)?;
        if tile_bytes > 0 {
            // Padding rows of the last tile.
            let zeros = vec![0; row_bytes];
            let n_tiles_at_once = (READ_BYTES / (TILE_ROWS * row_bytes).max(1)).max(1);
            let chunk_bytes = n_tiles_at_once * tile_bytes;
            // The rows of a tile, counted over all experts; the rows of adjacent tiles are adjacent in
            // the file.
            let n_tiles = n_rows.div_ceil(TILE_ROWS).max(1);
            let rows_of = |tile_idx: usize| {
                let (expert, first) = (tile_idx / n_tiles, tile_idx % n_tiles * TILE_ROWS);
                expert * n_rows + first..expert * n_rows + n_rows.min(first + TILE_ROWS)
            };
            read_chunks(host, &mut memory, chunk_bytes, |buffer, chunk_idx, chunk| {
                let first_tile = chunk_idx * n_tiles_at_once;
                let last_tile = first_tile + chunk.len() / tile_bytes - 1;
                let start = rows_of(first_tile).start * row_bytes;
                let rows = bytes.read(start..rows_of(last_tile).end * row_bytes, buffer)?;
                for (tile_idx, tile) in (first_tile..).zip(chunk.chunks_exact_mut(tile_bytes)) {
                    let own = rows_of(tile_idx);
                    let tile_rows = std::array::from_fn(|i| match own.start + i {
                        row if row < own.end => &rows[row * row_bytes - start..][..row_bytes],
                        _ => &zeros,
                    });
                    ops.pack(&tile_rows, n_cols, tile);
                }
                Ok(())
            })?;
        }
        Ok(Self {
            format,
            n_experts,
            n_rows,
            n_cols,
            ops,
            tile_bytes,
            memory: Arc::new(memory),
            file: None,
            features: host.features(),
            name: None,
        })
    }

    /// Creates a table whose rows are read from `bytes` on lookup; it supports no other operation.
    ///
    /// # Errors
    /// Returns the errors of [`Matrix::pack`], except for reading, which does not happen here.
    pub fn in_file(
        host: &Host,
        ty: TensorType,
        n_rows: usize,
        n_cols: usize,
        bytes: FileBytes,
    ) -> Result<Self, CpuExecError> {
        let none = Self::pack(host, ty, 0, n_cols, &[])?;
        let expected = none.row_bytes().checked_mul(n_rows);
        if expected != Some(bytes.len()) {
            return Err(CpuExecError::MatrixBytes {
                ty,
                n_rows,
                n_cols,
                expected: expected.unwrap_or(usize::MAX),
                found: bytes.len(),
            });
        }
        Ok(Self {
            n_rows,
            file: Some(bytes),
            ..none
        })
    }

    /// Returns the rows in a file, if they stay there.
    pub(crate) fn file(&self) -> Option<&FileBytes> {
        self.file.as_ref()
    }

    /// Returns the number of bytes of a row in the file.
    pub(crate) fn row_bytes(&self) -> usize {
        (self.format.row_bytes(self.n_cols)).expect("columns were checked when the matrix was made")
    }

    /// Reads the weights of one row from a file, with `buffer` for its bytes.
    ///
    /// # Errors
    /// Returns the system's error.
    pub(crate) fn read_row(
        &self,
        file: &FileBytes,
        row_idx: usize,
        buffer: &mut Vec<u8>,
        out: &mut [f32],
    ) -> io::Result<()> {
        assert!(
            row_idx < self.n_rows,
            "row {row_idx} of a matrix of {}",
            self.n_rows
        );
        let row_bytes = self.row_bytes();
        if buffer.len() < row_bytes {
            buffer.resize(row_bytes, 0);
        }
        let bytes = &mut buffer[..row_bytes];
        file.read_into(row_idx * row_bytes, bytes)?;
        (self.format.dequantize_row(bytes, out)).map_err(io::Error::other)
    }

    /// Returns the number of bytes that [`Matrix::pack`] will take: about the size in the file, with rows
    /// padded to a multiple of 16. `None` if the type is not supported, the columns are not a whole number of
    /// blocks, or the size overflows.
    pub fn packed_bytes(ty: TensorType, n_rows: usize, n_cols: usize) -> Option<usize> {
        let ops = TileOps::of(ty)?;
        // A tile takes less than eight times the bytes of its rows, and less than twice if rows are long.
        ty.row_bytes(n_cols)?.checked_mul(8 * TILE_ROWS)?;
        ops.tile_bytes(n_cols).checked_mul(n_rows.div_ceil(TILE_ROWS))
    }

    /// Sets the tensor's name.
    pub(crate) fn set_name(&mut self, name: &str) {
        self.name = Some(name.into());
    }

    /// Returns the tensor's name, if it was kept.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the type of the weights in the file.
    pub fn ty(&self) -> TensorType {
        self.format.tensor_type()
    }

    /// Returns the number of experts that have a matrix each in it; 1 for a single matrix.
    pub fn n_experts(&self) -> usize {
        self.n_experts
    }

    /// Returns the number of outputs.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Returns the number of inputs.
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Returns the number of bytes that the weights take in memory: about the size in the file, with rows
    /// padded to a multiple of 16, or 0 if they stay in the file.
    pub fn n_bytes(&self) -> usize {
        self.memory.n_bytes()
    }

    /// Writes the weights of one row to `out`, `[n_cols]`.
    ///
    /// # Panics
    /// If `row_idx` is not a row of the matrix, the matrix stays in a file, or `out` has another length than a
    /// row.
    pub fn dequantize_row(&self, row_idx: usize, out: &mut [f32]) {
        assert!(
            row_idx < self.n_rows,
            "row {row_idx} of a matrix of {}",
            self.n_rows
        );
        assert_eq!(out.len(), self.n_cols, "length of a row");
        let tile = self.tiles(row_idx / TILE_ROWS, 1);
        self.ops
            .dequantize_row(self.features, tile, row_idx % TILE_ROWS, out);
    }

    fn tiles(&self, first_tile: usize, n_tiles: usize) -> &[u8] {
        &self.memory.as_slice()[first_tile * self.tile_bytes..][..n_tiles * self.tile_bytes]
    }

    /// Returns the scales that activations must be quantized with for it; `None` if they stay f32.
    pub(crate) fn activation_scales(&self) -> Option<ScaleSpan> {
        self.ops.activation_scales
    }

    /// Returns the number of tiles, per expert if there are several; the last may be partial.
    pub(crate) fn n_tiles(&self) -> usize {
        self.n_rows.div_ceil(TILE_ROWS)
    }

    /// Multiplies `n_tiles` tiles, starting at `first_tile`, with `n_rows` rows of activations; at most two
    /// tiles unless they hold floats; see [`TileOps::products`].
    pub(crate) fn products(
        &self,
        features: CpuFeatures,
        (first_tile, n_tiles): (usize, usize),
        activations: &Activations<'_>,
        (first_token, n_rows): (usize, usize),
        sums: &mut [f32],
    ) {
        let tiles = self.tiles(first_tile, n_tiles);
        self.ops
            .products(features, tiles, activations, first_token, n_rows, sums);
    }

    /// Prefetches tiles that [`Matrix::add_products`] will read soon.
    pub(crate) fn prefetch(&self, features: CpuFeatures, (first_tile, n_tiles): (usize, usize)) {
        TileOps::prefetch(features, self.tiles(first_tile, n_tiles));
    }

    /// Adds the products of tiles of floats with all rows of `activations`, times `scale`, to `sums`; see
    /// [`TileOps::add_products`].
    pub(crate) fn add_products(
        &self,
        features: CpuFeatures,
        (first_tile, n_tiles): (usize, usize),
        activations: &Activations<'_>,
        scale: f32,
        sums: &mut [f32],
    ) {
        let tiles = self.tiles(first_tile, n_tiles);
        self.ops.add_products(features, tiles, activations, scale, sums);
    }
}

/// The number of bytes of a file that one thread reads at a time, unless 16 rows take more.
const READ_BYTES: usize = 256 << 10;

/// Calls `fill(buffer, chunk_idx, chunk)` for the chunks of `memory`, on all threads. A thread has one buffer
/// for all its chunks. After an error no further chunk is filled.
fn read_chunks(
    host: &Host,
    memory: &mut TileMemory,
    chunk_bytes: usize,
    fill: impl Fn(&mut Vec<u8>, usize, &mut [u8]) -> io::Result<()> + Sync,
) -> Result<(), CpuExecError> {
    let mut buffers = vec![Vec::new(); host.pool().n_threads()];
    let failure = OnceLock::new();
    let memory = memory.as_mut_slice();
    let n_bytes = memory.len();
    let chunks = Columns::new(memory, n_bytes, chunk_bytes);
    host.pool()
        .for_each_part_with(&mut buffers, chunks, |buffer, chunk_idx, mut chunk| {
            if failure.get().is_none()
                && let Err(error) = fill(buffer, chunk_idx, chunk.row(0))
            {
                // If several threads fail, the error of the first one is reported.
                let _ = failure.set(error);
            }
        });
    match failure.into_inner() {
        None => Ok(()),
        Some(error) => Err(CpuExecError::ReadWeights(error)),
    }
}

impl fmt::Debug for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            format,
            n_rows,
            n_cols,
            ..
        } = self;
        write!(f, "Matrix({n_rows} x {n_cols}, {})", format.name())
    }
}
