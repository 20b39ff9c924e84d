//! Adds the changes of adapters to products. Kernels: `lora.cu`.
//!
//! The kernels follow addresses: a tile's to the table of its adapter, a table's to the matrices of each change. Invariant: a table stays on
//! the device for as long as its adapter's matrices do, and an adapter is removed only after the last step that names it.

use bytemuck::{Pod, Zeroable};
use tokenmill_gguf::TensorType;

use super::{Ops, check_equal};
use crate::{Args, Buffer, CudaExecError, Device, Kernel, LaunchShape, Matrix, View, ViewMut, error::Result};

/// Largest number of rows of a tile.
const TILE_ROWS: usize = 16;
/// Columns that one thread block multiplies.
const SPLIT: usize = 512;
/// Rows of a change that one thread block computes.
const RANKS: usize = 16;
/// Outputs of one thread block.
const UP_OUTPUTS: usize = 128;
/// Largest number of products in one launch.
const MAX_JOBS: usize = 3;
/// Largest number of rows whose products share launches. With more rows, each product has enough thread blocks, and separate launches keep
/// fewer values between the two kernels.
const MAX_JOINED_ROWS: usize = 256;

/// The kernels.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdapterKernels {
    down: Kernel,
    up: Kernel,
}

/// The change that an adapter makes to one weight: it adds `scale * b * a`.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// `[rank, n_in]`, F32, F16 or BF16.
    pub a: &'a Matrix,
    /// `[n_out, rank]`, F32, F16 or BF16.
    pub b: &'a Matrix,
    /// Multiplies the change.
    pub scale: f32,
}

/// Holds the changes of an adapter by the places of weights, on the device.
#[derive(Debug)]
pub struct AdapterTable(Buffer<Record>);

/// Mirrors `Change` in `lora.cu`. A rank of 0 means no change.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Record {
    a: u64,
    b: u64,
    rank: u32,
    scale: f32,
    a_type: u32,
    b_type: u32,
}

/// Rows that have one adapter, or none. Mirrors `Tile` in `lora.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
struct Tile {
    table: u64,
    first: u32,
    n_rows: u32,
}

/// Number of words of a tile.
const TILE_WORDS: usize = size_of::<Tile>() / size_of::<u32>();

/// Assigns rows to adapters, in the form that is uploaded: words of tiles, and the rows that these name.
#[derive(Clone, Debug, Default)]
pub struct AdapterTiles {
    tiles: Vec<Tile>,
    rows: Vec<u32>,
}

/// Describes the rows of a product, and which of them have which adapter.
#[derive(Clone, Copy, Debug)]
pub struct ChangedRows<'a> {
    /// Rows of the product.
    pub n_rows: usize,
    /// `[n_rows, n_in]`.
    pub input: View<'a, f32>,
    /// [`AdapterTiles::tiles`], of which no two have the same row.
    pub tiles: View<'a, u32>,
    /// [`AdapterTiles::rows`].
    pub rows: View<'a, u32>,
    /// The largest rank that a change has, at least 1.
    pub max_rank: usize,
}

/// A product that adapters change.
#[derive(Debug)]
pub struct AdaptedProduct<'a> {
    /// The place of its weight.
    pub place: u32,
    /// Outputs of a row.
    pub n_out: usize,
    /// `[n_rows, n_out]`, the product with the weight.
    pub output: ViewMut<'a, f32>,
}

fn type_code(ty: TensorType) -> Result<u32> {
    match ty {
        TensorType::F32 => Ok(0),
        TensorType::F16 => Ok(1),
        TensorType::BF16 => Ok(2),
        other => Err(CudaExecError::Unsupported {
            feature: format!("adapters of type {}", other.name()),
        }),
    }
}

impl AdapterTable {
    /// Writes the table of an adapter; `changes` are by place.
    ///
    /// # Errors
    /// [`CudaExecError::Unsupported`] for another type of matrices, [`CudaExecError::Shape`] for two that do not fit together,
    /// [`CudaExecError::OutOfMemory`], or the driver's.
    pub fn new<'a>(device: &Device, changes: impl Iterator<Item = Option<Change<'a>>>) -> Result<Self> {
        let record = |change: Option<Change<'_>>| {
            let Some(Change { a, b, scale }) = change else {
                return Ok(Record::zeroed());
            };
            check_equal("the rank of an adapter's matrices", b.n_in(), a.n_out())?;
            Ok(Record {
                a: a.view().address(),
                b: b.view().address(),
                rank: a.n_out() as u32,
                scale,
                a_type: type_code(a.layout().ty())?,
                b_type: type_code(b.layout().ty())?,
            })
        };
        let records: Vec<Record> = changes.map(record).collect::<Result<_>>()?;
        Ok(Self(device.upload("adapters", &records)?))
    }
}

impl AdapterTiles {
    /// Returns the largest number of words of the tiles and the rows of `n_rows` rows.
    pub fn max_words(n_rows: usize) -> usize {
        n_rows * (TILE_WORDS + 1)
    }

    /// Removes all rows.
    pub fn clear(&mut self) {
        self.tiles.clear();
        self.rows.clear();
    }

    /// Appends the rows that have an adapter.
    pub fn add(&mut self, table: &AdapterTable, rows: impl Iterator<Item = usize>) {
        let first = self.rows.len();
        self.rows.extend(rows.map(|row| row as u32));
        let end = self.rows.len();
        self.tiles
            .extend((first..end).step_by(TILE_ROWS).map(|first| Tile {
                table: table.0.view().address(),
                first: first as u32,
                n_rows: (end - first).min(TILE_ROWS) as u32,
            }));
    }

    /// Appends tiles without rows, and rows of no tile, up to the most that `n_rows` rows with up to `n_adapters` adapters can have.
    pub fn pad(&mut self, n_rows: usize, n_adapters: usize) {
        // All tiles of an adapter but the last are full.
        let n_tiles = n_rows.min(n_rows / TILE_ROWS + n_adapters);
        self.tiles.resize(n_tiles.max(self.tiles.len()), Tile::zeroed());
        self.rows.resize(n_rows.max(self.rows.len()), 0);
    }

    /// Returns the tiles as words.
    pub fn tiles(&self) -> &[u32] {
        bytemuck::cast_slice(&self.tiles)
    }

    /// Returns the rows that they name.
    pub fn rows(&self) -> &[u32] {
        &self.rows
    }
}

fn with_counts(args: Args<'_>, counts: [usize; MAX_JOBS]) -> Args<'_> {
    counts.into_iter().fold(args, Args::count)
}

fn n_splits(n_in: usize) -> usize {
    n_in.div_ceil(SPLIT)
}

impl Ops {
    /// Loads the kernels of adapters.
    ///
    /// # Errors
    /// [`CudaExecError::DriverTooOld`], or the driver's.
    pub fn load_adapters(&mut self) -> Result<()> {
        if self.adapters.is_none() {
            self.adapters = Some(AdapterKernels {
                down: self.device.kernel("lora", "lora_down")?,
                up: self.device.kernel("lora", "lora_up")?,
            });
        }
        Ok(())
    }

    /// Makes the memory that [`Self::adapt`] uses between its launches, for steps of `n_rows` rows of up to `n_in` values.
    pub fn adapter_scratch_len(n_rows: usize, n_in: usize, max_rank: usize) -> usize {
        let joined_rows = MAX_JOBS * n_rows.min(MAX_JOINED_ROWS);
        n_rows.max(joined_rows) * n_splits(n_in) * max_rank.next_multiple_of(RANKS)
    }

    /// Adds the changes of the rows' adapters to products of `n_in` columns: two launches, for up to three products if rows are few.
    ///
    /// # Errors
    /// [`CudaExecError::Unsupported`] before [`Self::load_adapters`], [`CudaExecError::Bounds`], or the driver's.
    pub fn adapt(
        &self,
        rows: &ChangedRows<'_>,
        n_in: usize,
        products: &mut [AdaptedProduct<'_>],
        scratch: &mut Buffer<f32>,
    ) -> Result<()> {
        let kernels = self.adapters.ok_or_else(|| CudaExecError::Unsupported {
            feature: "adapters without their kernels".to_owned(),
        })?;
        let (n_rows, n_tiles) = (rows.n_rows, rows.tiles.len() / TILE_WORDS);
        if n_tiles == 0 {
            return Ok(());
        }
        let (n_splits, rank_stride) = (n_splits(n_in), rows.max_rank.next_multiple_of(RANKS));
        let n_joined = if n_rows <= MAX_JOINED_ROWS { MAX_JOBS } else { 1 };
        for jobs in products.chunks_mut(n_joined) {
            let len = jobs.len() * n_rows * n_splits * rank_stride;
            let input = rows.input.range(0..n_rows * n_in)?;
            let places: [usize; MAX_JOBS] =
                std::array::from_fn(|index| jobs.get(index).map_or(0, |job| job.place as usize));
            let n_outs: [usize; MAX_JOBS] =
                std::array::from_fn(|index| jobs.get(index).map_or(0, |job| job.n_out));
            let args = Args::new()
                .read(rows.tiles)
                .read(rows.rows)
                .read(input)
                .count(n_in)
                .count(n_rows);
            let args = with_counts(args, places)
                .write(scratch.view_mut().range(0..len)?)
                .count(rank_stride);
            let shape = LaunchShape::new([n_tiles, n_splits * rank_stride / RANKS, jobs.len()], 256);
            self.device.launch(kernels.down, shape, &args)?;
            let shape = LaunchShape::new(
                [
                    n_tiles,
                    n_outs.iter().max().map_or(0, |n_out| n_out.div_ceil(UP_OUTPUTS)),
                    jobs.len(),
                ],
                128,
            );
            let args = Args::new()
                .read(rows.tiles)
                .read(rows.rows)
                .read(scratch.view().range(0..len)?)
                .count(n_rows)
                .count(rank_stride)
                .count(n_splits);
            let mut args = with_counts(args, places);
            let mut outputs = jobs.iter_mut();
            for n_out in n_outs {
                let output = (outputs.next())
                    .map(|job| job.output.reborrow().range(0..n_rows * n_out))
                    .transpose()?;
                args = args.write_or_null(output);
            }
            let args = with_counts(args, n_outs);
            self.device.launch(kernels.up, shape, &args)?;
        }
        Ok(())
    }
}
