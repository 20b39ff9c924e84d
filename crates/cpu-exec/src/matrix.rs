//! [`Matrix`]: the weights of one linear map, packed for the host.
//!
//! It owns its memory: once a tensor is packed, the file's bytes are not looked at again and their map can be dropped.
//! Invariant: packing loses nothing; [`Matrix::dequantize_row`] gives the file's values to the bit.

use tokenmill_gguf::TensorType;
use tokenmill_quant::{CpuFeatures, Format};

use crate::{
    CpuExecError, Host,
    simd::{Activations, TILE_ROWS, TileMemory, TileOps},
    workspace::grown,
};

/// Weights `[n_rows, n_cols]`: a linear map from `n_cols` inputs to `n_rows` outputs.
#[derive(Debug)]
pub struct Matrix {
    format: &'static Format,
    n_rows: usize,
    n_cols: usize,
    storage: Storage,
    memory: TileMemory,
    /// Of the host it was packed for; no result depends on them.
    features: CpuFeatures,
}

/// How the memory is to be read.
#[derive(Clone, Copy)]
enum Storage {
    /// Tiles of the type's own format.
    Tiles {
        ops: &'static TileOps,
        tile_bytes: usize,
    },
    /// The file's rows, for types without tiles: a tile's rows are dequantized when they are needed.
    Rows { row_bytes: usize },
}

impl std::fmt::Debug for Storage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Tiles { .. } => "Tiles",
            Self::Rows { .. } => "Rows",
        })
    }
}

impl Matrix {
    /// Packs rows that lie one after the other in `bytes`, as a GGUF tensor stores them, with all threads of `host`.
    ///
    /// `bytes` may be part of a tensor, so that a three-dimensional one (experts) becomes a matrix for each slice.
    ///
    /// # Errors
    /// [`CpuExecError::Quant`] for a type that cannot be computed or columns that are no whole number of its blocks,
    /// [`CpuExecError::MatrixBytes`] when `bytes` has another length than the shape takes, and
    /// [`CpuExecError::OutOfMemory`].
    pub fn pack(
        host: &Host,
        ty: TensorType,
        n_rows: usize,
        n_cols: usize,
        bytes: &[u8],
    ) -> Result<Self, CpuExecError> {
        Self::pack_with(host, TileOps::of(ty), ty, n_rows, n_cols, bytes)
    }

    /// Bytes that [`Matrix::pack`] will take: those of the file, with rows filled up to a multiple of 16 where the type has
    /// tiles. `None` where the columns are no whole number of blocks, or the size overflows.
    pub fn packed_bytes(ty: TensorType, n_rows: usize, n_cols: usize) -> Option<usize> {
        let n_held = if TileOps::of(ty).is_some() {
            n_rows.checked_next_multiple_of(TILE_ROWS)?
        } else {
            n_rows
        };
        ty.row_bytes(n_cols)?.checked_mul(n_held)
    }

    fn pack_with(
        host: &Host,
        ops: Option<&'static TileOps>,
        ty: TensorType,
        n_rows: usize,
        n_cols: usize,
        bytes: &[u8],
    ) -> Result<Self, CpuExecError> {
        let format = Format::of(ty)?;
        let row_bytes = format.row_bytes(n_cols)?;
        let too_large = CpuExecError::MatrixTooLarge { n_rows, n_cols };
        let Some(expected) = row_bytes.checked_mul(n_rows) else {
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
        let (storage, memory) = if let Some(ops) = ops {
            let tile_bytes = ops.tile_bytes(n_cols);
            let Some(n_bytes) = tile_bytes.checked_mul(n_rows.div_ceil(TILE_ROWS)) else {
                return Err(too_large);
            };
            let mut memory = TileMemory::zeroed(n_bytes)?;
            if tile_bytes > 0 {
                // Rows that only fill up the last tile.
                let zeros = vec![0; row_bytes];
                host.pool()
                    .for_each_chunk(memory.as_mut_slice(), tile_bytes, |tile_idx, tile| {
                        let rows = std::array::from_fn(|i| {
                            let start = (tile_idx * TILE_ROWS + i) * row_bytes;
                            bytes.get(start..start + row_bytes).unwrap_or(&zeros)
                        });
                        ops.pack(&rows, n_cols, tile);
                    });
            }
            (Storage::Tiles { ops, tile_bytes }, memory)
        } else {
            let mut memory = TileMemory::zeroed(expected)?;
            host.pool()
                .for_each_chunk(memory.as_mut_slice(), COPY_BYTES, |chunk_idx, chunk| {
                    chunk.copy_from_slice(&bytes[chunk_idx * COPY_BYTES..][..chunk.len()]);
                });
            (Storage::Rows { row_bytes }, memory)
        };
        Ok(Self {
            format,
            n_rows,
            n_cols,
            storage,
            memory,
            features: host.features(),
        })
    }

    /// The type the weights had in the file.
    pub fn ty(&self) -> TensorType {
        self.format.tensor_type()
    }

    /// Number of outputs.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Number of inputs.
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Memory that the weights take: the bytes they have in the file, with rows filled up to a multiple of 16.
    pub fn n_bytes(&self) -> usize {
        self.memory.len()
    }

    /// Writes the weights of one row to `out`, `[n_cols]`.
    ///
    /// # Panics
    /// When `row_idx` is no row of the matrix, or `out` has another length than a row.
    pub fn dequantize_row(&self, row_idx: usize, out: &mut [f32]) {
        assert!(
            row_idx < self.n_rows,
            "row {row_idx} of a matrix of {}",
            self.n_rows
        );
        assert_eq!(out.len(), self.n_cols, "length of a row");
        match self.storage {
            Storage::Tiles { ops, tile_bytes } => {
                let tile = &self.memory.as_slice()[row_idx / TILE_ROWS * tile_bytes..][..tile_bytes];
                ops.dequantize_row(self.features, tile, row_idx % TILE_ROWS, out);
            }
            Storage::Rows { row_bytes } => self
                .format
                .dequantize_row(&self.memory.as_slice()[row_idx * row_bytes..][..row_bytes], out)
                .expect("the row's length was checked when it was packed"),
        }
    }

    /// The operations of its tiles; those of dequantized rows are float tiles.
    fn ops(&self) -> &'static TileOps {
        match self.storage {
            Storage::Tiles { ops, .. } => ops,
            Storage::Rows { .. } => TileOps::of(TensorType::F32).expect("f32 has tiles"),
        }
    }

    /// How activations must be quantized for it; `None` where they stay f32.
    pub(crate) fn activation_scales(&self) -> Option<crate::simd::activations::ScaleSpan> {
        self.ops().activation_scales
    }

    /// Number of tiles, the last of which may be partial.
    pub(crate) fn n_tiles(&self) -> usize {
        self.n_rows.div_ceil(TILE_ROWS)
    }

    /// Multiplies tile `first_tile` and, if `n_tiles` is 2, the next with `n_rows` rows of activations; see
    /// [`TileOps::products`].
    pub(crate) fn products(
        &self,
        features: CpuFeatures,
        scratch: &mut Vec<f32>,
        (first_tile, n_tiles): (usize, usize),
        activations: &Activations<'_>,
        (first_token, n_rows): (usize, usize),
        sums: &mut [f32],
    ) {
        let ops = self.ops();
        match self.storage {
            Storage::Tiles { tile_bytes, .. } => {
                let tiles = &self.memory.as_slice()[first_tile * tile_bytes..][..n_tiles * tile_bytes];
                ops.products(features, tiles, activations, first_token, n_rows, sums);
            }
            Storage::Rows { .. } => {
                let tile_len = TILE_ROWS * self.n_cols;
                let scratch = grown(scratch, n_tiles * tile_len + self.n_cols);
                let (tiles, row) = scratch.split_at_mut(n_tiles * tile_len);
                tiles.fill(0.0);
                let first_row = first_tile * TILE_ROWS;
                for row_idx in first_row..self.n_rows.min(first_row + n_tiles * TILE_ROWS) {
                    self.dequantize_row(row_idx, row);
                    let (tile_idx, lane) = ((row_idx - first_row) / TILE_ROWS, row_idx % TILE_ROWS);
                    let tile = &mut tiles[tile_idx * tile_len..][..tile_len];
                    for (out, value) in tile[lane..].iter_mut().step_by(TILE_ROWS).zip(&*row) {
                        *out = *value;
                    }
                }
                ops.products(features, bytes_of(tiles), activations, first_token, n_rows, sums);
            }
        }
    }
}

/// Bytes that one thread copies at a time.
const COPY_BYTES: usize = 1 << 20;

fn bytes_of(values: &[f32]) -> &[u8] {
    bytemuck::cast_slice(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Workspace, linear};

    /// A type without tiles is computed from dequantized rows: here one that has tiles, with them withheld.
    #[test]
    fn types_without_tiles_are_computed_exactly() {
        let (n_rows, n_cols, n_tokens) = (37, 96, 5);
        let values: Vec<f32> = (0..n_rows * n_cols)
            .map(|i| ((i * 37 % 255) as f32 - 127.0) / 64.0)
            .collect();
        let format = Format::of(TensorType::Q5_0).unwrap();
        let mut bytes = vec![0; n_rows * format.row_bytes(n_cols).unwrap()];
        format.quantize_row(&values, &mut bytes).unwrap();
        let x: Vec<f32> = (0..n_tokens * n_cols)
            .map(|i| ((i * 11 % 31) as f32 - 15.0) / 8.0)
            .collect();
        let host = Host::new(2, CpuFeatures::detect()).unwrap();
        let packed = Matrix::pack(&host, TensorType::Q5_0, n_rows, n_cols, &bytes).unwrap();
        let planned = Matrix::packed_bytes(TensorType::Q5_0, n_rows, n_cols);
        assert_eq!(planned, Some(packed.n_bytes()));
        for features in CpuFeatures::each_path() {
            let host = Host::new(2, features).unwrap();
            let matrix = Matrix::pack_with(&host, None, TensorType::Q5_0, n_rows, n_cols, &bytes).unwrap();
            let mut out = vec![0.0; n_tokens * n_rows];
            linear(&host, &mut Workspace::new(&host), &x, &matrix, &mut out);
            let mut row = vec![0.0; n_cols];
            for (i, out) in out.iter().enumerate() {
                matrix.dequantize_row(i % n_rows, &mut row);
                let exact: f64 = row
                    .iter()
                    .zip(&x[i / n_rows * n_cols..])
                    .map(|(w, x)| f64::from(*w) * f64::from(*x))
                    .sum();
                assert!((f64::from(*out) - exact).abs() < 1e-4, "{out} vs {exact}");
            }
        }
    }
}
