//! [`Matrix`]: the weights of one linear map, packed for the host.
//!
//! It owns its memory: once a tensor is packed, the file is not read again. A table that is only looked rows up in may stay in its file.
//! Invariant: packing loses nothing; [`Matrix::dequantize_row`] gives the file's values to the bit.

use std::{
    fmt, io,
    sync::{Arc, OnceLock},
};

use tokenmill_cpu_kernels::{Activations, ScaleSpan, TILE_ROWS, TileMemory, TileOps};
use tokenmill_gguf::{FileBytes, TensorBytes, TensorType};
use tokenmill_quant::{CpuFeatures, Format, QuantError};

use crate::{CpuExecError, Host, pool::Columns};

/// Weights `[n_rows, n_cols]`: a linear map from `n_cols` inputs to `n_rows` outputs, or one for each of some experts. Clones share their
/// memory.
#[derive(Clone)]
pub struct Matrix {
    format: &'static Format,
    n_experts: usize,
    n_rows: usize,
    n_cols: usize,
    ops: &'static TileOps,
    tile_bytes: usize,
    /// Packed once, and read by all that compute with it. Of a table in a file nothing.
    memory: Arc<TileMemory>,
    /// The rows as the file has them, where they stay there.
    file: Option<FileBytes>,
    /// Of the host it was packed for; no result depends on them.
    features: CpuFeatures,
    /// The tensor's name, where products are observed.
    name: Option<Box<str>>,
}

impl Matrix {
    /// Packs rows that lie one after the other in `bytes`, as a GGUF tensor stores them. All threads of `host` read and
    /// pack, a few rows each at a time.
    ///
    /// # Errors
    /// [`CpuExecError::ReadWeights`] where the bytes cannot be read,
    /// [`CpuExecError::Quant`] for a type that cannot be computed or columns that are no whole number of its blocks,
    /// [`CpuExecError::MatrixBytes`] when `bytes` has another length than the shape takes, and
    /// [`CpuExecError::OutOfMemory`].
    pub fn pack<'a>(
        host: &Host,
        ty: TensorType,
        n_rows: usize,
        n_cols: usize,
        bytes: impl Into<TensorBytes<'a>>,
    ) -> Result<Self, CpuExecError> {
        Self::pack_experts(host, ty, 1, n_rows, n_cols, bytes)
    }

    /// As [`Matrix::pack`], of the matrices of some experts, one after the other in `bytes`. No tile has rows of two of them.
    ///
    /// # Errors
    /// As [`Matrix::pack`].
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
        // The threads write what they will read, each where it computes.
        let _entered = host.pool().enter();
        let tile_bytes = ops.tile_bytes(n_cols);
        let mut memory = TileMemory::zeroed(n_bytes)?;
        if tile_bytes > 0 {
            // Rows that only fill up the last tile.
            let zeros = vec![0; row_bytes];
            let n_tiles_at_once = (READ_BYTES / (TILE_ROWS * row_bytes).max(1)).max(1);
            let chunk_bytes = n_tiles_at_once * tile_bytes;
            // The rows of a tile, counted over all experts; those of neighbouring tiles are neighbours in the file.
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

    /// A table of which rows are read from `bytes` when they are looked up, and nothing else can be computed.
    ///
    /// # Errors
    /// As [`Matrix::pack`], but for reading, which it does not.
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

    /// The rows as they are in a file, where they stay there.
    pub(crate) fn file(&self) -> Option<&FileBytes> {
        self.file.as_ref()
    }

    /// Bytes of a row in the file.
    pub(crate) fn row_bytes(&self) -> usize {
        (self.format.row_bytes(self.n_cols)).expect("columns were checked when the matrix was made")
    }

    /// Reads the weights of one row from a file, into `buffer` first.
    ///
    /// # Errors
    /// The system's.
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

    /// Bytes that [`Matrix::pack`] will take: about those of the file, with rows filled up to a multiple of 16. `None` where
    /// the type cannot be computed, the columns are no whole number of blocks, or the size overflows.
    pub fn packed_bytes(ty: TensorType, n_rows: usize, n_cols: usize) -> Option<usize> {
        let ops = TileOps::of(ty)?;
        // A tile has less than eight times the bytes of its rows, and than twice where rows are long.
        ty.row_bytes(n_cols)?.checked_mul(8 * TILE_ROWS)?;
        ops.tile_bytes(n_cols).checked_mul(n_rows.div_ceil(TILE_ROWS))
    }

    /// Keeps the tensor's name.
    pub(crate) fn set_name(&mut self, name: &str) {
        self.name = Some(name.into());
    }

    /// The tensor's name, where it was kept.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The type the weights had in the file.
    pub fn ty(&self) -> TensorType {
        self.format.tensor_type()
    }

    /// Experts that have a matrix each in it; 1 where it is a single matrix.
    pub fn n_experts(&self) -> usize {
        self.n_experts
    }

    /// Number of outputs.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Number of inputs.
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Memory that the weights take: about the bytes they have in the file, with rows filled up to a multiple of 16, or none where they
    /// stay in the file.
    pub fn n_bytes(&self) -> usize {
        self.memory.n_bytes()
    }

    /// Writes the weights of one row to `out`, `[n_cols]`.
    ///
    /// # Panics
    /// When `row_idx` is no row of the matrix, it stays in a file, or `out` has another length than a row.
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

    /// How activations must be quantized for it; `None` where they stay f32.
    pub(crate) fn activation_scales(&self) -> Option<ScaleSpan> {
        self.ops.activation_scales
    }

    /// Number of tiles, of an expert where there are several; the last may be partial.
    pub(crate) fn n_tiles(&self) -> usize {
        self.n_rows.div_ceil(TILE_ROWS)
    }

    /// Multiplies `n_tiles` tiles from `first_tile` on, of floats any number and else at most two, with `n_rows` rows of activations;
    /// see [`TileOps::products`].
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

    /// Asks for tiles that [`Matrix::add_products`] will read soon.
    pub(crate) fn prefetch(&self, features: CpuFeatures, (first_tile, n_tiles): (usize, usize)) {
        TileOps::prefetch(features, self.tiles(first_tile, n_tiles));
    }

    /// Adds the products of tiles of floats with all rows of `activations`, times `scale`, to `sums`; see [`TileOps::add_products`].
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

/// Bytes of a file that one thread reads at a time, unless 16 rows take more.
const READ_BYTES: usize = 256 << 10;

/// Calls `fill(buffer, chunk_idx, chunk)` for the chunks of `memory`, on all threads. A thread has one buffer for all its
/// chunks. After an error no further chunk is filled.
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
                // Of several threads that fail, the first one's error is reported.
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
