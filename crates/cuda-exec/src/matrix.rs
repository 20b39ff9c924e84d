//! [`Matrix`] and [`Uploader`]: weights on the device, and their upload.
//!
//! All cores convert the file's blocks into one of two pinned staging buffers while the device copies from the other, on a separate
//! stream. Invariant: a matrix's kernels are loaded before the matrix exists, so no step loads any.

use std::ops::Range;

use rayon::prelude::*;
use tokenmill_gguf::{TensorBytes, TensorType};

use crate::{
    BandHeight, Bands, Buffer, CudaExecError, Device, FewRows, HalfBands, Kernel, LayoutError, MatrixLayout,
    Pinned, SharedView, Stream, View, Wide, error::Result, modules::type_suffix, wide::WideKernels,
};

/// Bytes of a staging buffer, unless a row is longer.
const STAGING_BYTES: usize = 32 << 20;
/// Bytes that a core repacks at a time.
const PIECE_BYTES: usize = 256 << 10;

/// Says how a matrix is used, which decides the kernels that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixUse {
    /// Rows are looked up by token.
    pub is_table: bool,
    /// It is multiplied.
    pub is_factor: bool,
    /// It is the matrices of experts, one after the other.
    pub is_of_experts: bool,
}

/// The kernels for weights of one type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MatrixKernels {
    pub(crate) embed: Option<Kernel>,
    /// For up to 1, 2, 4 and 8 rows.
    pub(crate) matvec: Option<[Kernel; 4]>,
    /// For 16 rows, of types in strips.
    pub(crate) sixteen: Option<Kernel>,
    /// For more rows, of types that have bands.
    pub(crate) bands: Option<BandKernels>,
    /// For as many rows, of types that can be multiplied in f16.
    pub(crate) halves: Option<HalfKernels>,
    /// For as many rows on compute capability 9.0, of these types and of others.
    pub(crate) wide: Option<WideKernels>,
    pub(crate) gated: Option<[Kernel; 4]>,
    /// For one row of types in strips, together with the operations between products.
    pub(crate) joined: Option<JoinedKernels>,
    /// For more rows, the smaller tile first.
    pub(crate) matmul: Option<[Tiled; 2]>,
    /// For matrices of F32 that have few of these tiles.
    pub(crate) narrow: Option<Tiled>,
    pub(crate) experts: Option<ExpertKernels>,
}

/// The kernels that multiply one row and compute the operations between products.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JoinedKernels {
    /// Adds the product to a row.
    pub(crate) add: Kernel,
    /// Norm the row first.
    pub(crate) normed: Kernel,
    pub(crate) gated_normed: Kernel,
}

impl JoinedKernels {
    fn load(device: &Device, module: &str, few: FewRows) -> Result<Self> {
        let load = |name: &str, n_bytes: usize| device.kernel_with_shared_bytes(module, name, n_bytes);
        let widest = FewRows::NORMED_COLUMNS;
        Ok(Self {
            add: load("matvec_add_m1", few.shared_bytes(1))?,
            normed: load("matvec_normed_m1", few.normed_shared_bytes(widest))?,
            gated_normed: load("matvec_gated_normed_m1", few.gated_normed_shared_bytes(widest))?,
        })
    }
}

/// The kernels for bands of a type, by [`BandHeight::columns`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct BandKernels {
    high: [Kernel; 3],
    low: [Kernel; 2],
    /// For types whose gate and up can be one launch.
    pub(crate) gated: Option<[Kernel; 3]>,
    /// For the same types: high bands of 64 rows of x, with columns split among thread blocks.
    pub(crate) split: Option<Kernel>,
}

impl BandKernels {
    fn load(device: &Device, module: &str, bands: Bands) -> Result<Self> {
        let load = |height: BandHeight, columns: usize, name: &str| {
            device.kernel_with_shared_bytes(module, name, bands.shared_bytes(height, columns))
        };
        let gated = |columns: usize| load(BandHeight::High, columns, &format!("matmul_gated_n{columns}"));
        let [a, b, c] = Bands::COLUMNS;
        let plain = |height: BandHeight, columns: usize| load(height, columns, &height.kernel(columns));
        let high = |columns: usize| plain(BandHeight::High, columns);
        let low = |columns: usize| plain(BandHeight::Low, columns);
        Ok(Self {
            high: [high(a)?, high(b)?, high(c)?],
            low: [low(a)?, low(b)?],
            gated: if bands.has_gated() {
                Some([gated(a)?, gated(b)?, gated(c)?])
            } else {
                None
            },
            split: if bands.has_gated() {
                Some(load(BandHeight::High, c, &format!("matmul_split_n{c}"))?)
            } else {
                None
            },
        })
    }

    /// Returns the kernel for bands of a height by `n_rows` rows of x.
    pub(crate) fn plain_of(&self, height: BandHeight, n_rows: usize) -> Kernel {
        let variant = height.variant_of(n_rows);
        match height {
            BandHeight::High => self.high[variant],
            BandHeight::Low => self.low[variant],
        }
    }
}

/// The kernels for bands of a type in f16.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HalfKernels {
    pub(crate) plain: Kernel,
    /// For bands with columns split among thread blocks.
    pub(crate) split: Kernel,
    pub(crate) gated: Kernel,
}

impl HalfKernels {
    fn load(device: &Device, suffix: &str, bands: HalfBands) -> Result<Self> {
        let module = format!("matmul_halves_{suffix}");
        let load = |name| device.kernel_with_shared_bytes(&module, name, bands.shared_bytes());
        Ok(Self {
            plain: load("half_band_n64")?,
            split: load("half_split_n64")?,
            gated: load("half_gated_n64")?,
        })
    }
}

/// The kernels for experts' weights of one type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertKernels {
    /// For runs of up to 1, 2, 4 and 8 rows of an expert.
    few: [Kernel; 4],
    /// For longer runs, the shorter first.
    tiles: [Tiled; 2],
}

impl ExpertKernels {
    fn load(device: &Device, suffix: &str, takes_quantized_input: bool) -> Result<Self> {
        let module = format!("experts_{suffix}");
        let kernel = |size: &str| device.kernel(&module, &format!("experts_{size}"));
        let tiled = |kernel, n_threads, tile| Tiled {
            kernel,
            n_threads,
            tile,
        };
        let [small, large] = [kernel("n16")?, kernel("n64")?];
        Ok(Self {
            few: [kernel("m1")?, kernel("m2")?, kernel("m4")?, kernel("m8")?],
            tiles: if takes_quantized_input {
                [tiled(small, 128, [64, 16]), tiled(large, 256, [128, 64])]
            } else {
                [tiled(small, 256, [64, 16]), tiled(large, 256, [64, 64])]
            },
        })
    }

    /// Returns the kernel for runs of up to `run_len` rows: 1, 2, 4, 8, 16 or 64.
    pub(crate) fn of_runs(&self, run_len: usize) -> Tiled {
        (self.tiles.into_iter())
            .find(|tiled| tiled.tile[1] == run_len)
            .unwrap_or_else(|| Tiled {
                kernel: self.few[run_len.trailing_zeros() as usize],
                n_threads: 128,
                tile: [8, run_len],
            })
    }
}

/// A kernel that multiplies tiles, one a thread block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiled {
    pub(crate) kernel: Kernel,
    pub(crate) n_threads: u32,
    /// Rows of the matrix and of the input in a tile.
    pub(crate) tile: [usize; 2],
}

/// A weight matrix `[n_out, n_in]` in the kernels' layout.
///
/// A clone is the same matrix, not a copy of it.
#[derive(Clone, Debug)]
pub struct Matrix {
    bytes: SharedView<u8>,
    layout: MatrixLayout,
    pub(crate) kernels: MatrixKernels,
    /// Whether [`Wide::takes`] accepts all its blocks.
    is_within_f16: bool,
}

impl Matrix {
    /// Returns its layout on the device.
    pub fn layout(&self) -> &MatrixLayout {
        &self.layout
    }

    /// Returns the number of rows.
    pub fn n_out(&self) -> usize {
        self.layout.n_out()
    }

    /// Returns the number of columns.
    pub fn n_in(&self) -> usize {
        self.layout.n_in()
    }

    /// Returns whether it is multiplied with quantized activations.
    pub fn takes_quantized_input(&self) -> bool {
        self.layout.takes_quantized_input()
    }

    /// Returns whether matrix operations of warpgroups multiply it by many rows.
    pub fn is_wide(&self) -> bool {
        self.is_within_f16 && self.kernels.wide.is_some()
    }

    pub(crate) fn view(&self) -> View<'_, u8> {
        self.bytes.view()
    }
}

impl MatrixKernels {
    pub(crate) fn load(device: &Device, layout: &MatrixLayout, usage: MatrixUse) -> Result<Self> {
        let suffix = type_suffix(layout.ty()).expect("there is a layout for this type");
        let (embed, matvec) = (format!("embed_{suffix}"), format!("matvec_{suffix}"));
        let (matmul, matmul_halves) = (format!("matmul_{suffix}"), format!("matmul_halves_{suffix}"));
        let halves = HalfBands::of(layout.ty()).filter(|_| usage.is_factor);
        let wide = Wide::of(layout.ty()).filter(|_| usage.is_factor && Wide::takes_width(layout.n_in()));
        let wanted = [
            (halves.is_some(), &matmul_halves),
            (usage.is_table, &embed),
            (usage.is_factor, &matvec),
            (usage.is_factor, &matmul),
        ];
        let wanted: Vec<&str> = (wanted.iter())
            .filter_map(|(is_wanted, module)| is_wanted.then_some(module.as_str()))
            .collect();
        device.load_modules(&wanted)?;
        let tiled = || -> Result<[Tiled; 2]> {
            let kernel = |name| device.kernel(&matmul, name);
            if layout.takes_quantized_input() {
                let [small, large] = [kernel("matmul_n16")?, kernel("matmul_n64")?];
                let tiled = |kernel, n_threads, tile| Tiled {
                    kernel,
                    n_threads,
                    tile,
                };
                return Ok([tiled(small, 128, [64, 16]), tiled(large, 256, [128, 64])]);
            }
            let only = Tiled {
                kernel: kernel("matmul_n64")?,
                n_threads: 256,
                tile: [64, 64],
            };
            Ok([only, only])
        };
        let few = FewRows::of(layout.ty());
        let sizes = |prefix: &str, shared_bytes: &dyn Fn(usize) -> usize| -> Result<[Kernel; 4]> {
            let kernel = |n_rows: usize| {
                let name = format!("{prefix}_m{n_rows}");
                device.kernel_with_shared_bytes(&matvec, &name, shared_bytes(n_rows))
            };
            Ok([kernel(1)?, kernel(2)?, kernel(4)?, kernel(8)?])
        };
        Ok(Self {
            experts: if usage.is_of_experts {
                Some(ExpertKernels::load(
                    device,
                    suffix,
                    layout.takes_quantized_input(),
                )?)
            } else {
                None
            },
            embed: if usage.is_table {
                Some(device.kernel(&embed, "embed")?)
            } else {
                None
            },
            matvec: if usage.is_factor {
                Some(sizes("matvec", &|n_rows| few.shared_bytes(n_rows))?)
            } else {
                None
            },
            sixteen: if usage.is_factor && few.takes_sixteen() {
                let n_bytes = few.sixteen_shared_bytes();
                Some(device.kernel_with_shared_bytes(&matvec, "matvec_m16", n_bytes)?)
            } else {
                None
            },
            joined: if usage.is_factor && few.takes_sixteen() {
                Some(JoinedKernels::load(device, &matvec, few)?)
            } else {
                None
            },
            bands: match Bands::of_rows(layout.ty(), layout.n_in()).filter(|_| usage.is_factor) {
                Some(bands) => Some(BandKernels::load(device, &matmul, bands)?),
                None => None,
            },
            halves: match halves {
                Some(bands) => Some(HalfKernels::load(device, suffix, bands)?),
                None => None,
            },
            wide: match wide {
                Some(wide) => WideKernels::load(device, wide)?,
                None => None,
            },
            matmul: if usage.is_factor { Some(tiled()?) } else { None },
            narrow: if usage.is_factor && layout.ty() == TensorType::F32 {
                Some(Tiled {
                    kernel: device.kernel(&matmul, "matmul_n8")?,
                    n_threads: 256,
                    tile: [8, 8],
                })
            } else {
                None
            },
            gated: if usage.is_factor {
                Some(sizes("matvec_gated", &|n_rows| few.gated_shared_bytes(n_rows))?)
            } else {
                None
            },
        })
    }
}

/// Moves weights to the device.
#[derive(Debug)]
pub struct Uploader {
    device: Device,
    staging: [Option<Pinned<u8>>; 2],
    n_batches: usize,
}

impl Uploader {
    /// Makes an uploader without staging memory.
    pub fn new(device: &Device) -> Self {
        Self {
            device: device.clone(),
            staging: [None, None],
            n_batches: 0,
        }
    }

    /// Uploads a matrix from the file's bytes, which all cores read. The copy may still run when this returns; see [`Self::finish`].
    ///
    /// # Errors
    /// [`CudaExecError::ReadWeights`], [`CudaExecError::Layout`],
    /// [`CudaExecError::OutOfMemory`], or the driver's.
    pub fn upload<'a>(
        &mut self,
        ty: TensorType,
        [n_out, n_in]: [usize; 2],
        bytes: impl Into<TensorBytes<'a>>,
        usage: MatrixUse,
    ) -> Result<Matrix> {
        let bytes = bytes.into();
        let layout = MatrixLayout::of(ty, n_out, n_in)?;
        if bytes.len() != layout.file_row_bytes() * n_out {
            return Err(LayoutError::ByteLength {
                what: "the matrix",
                expected: layout.file_row_bytes() * n_out,
                found: bytes.len(),
            }
            .into());
        }
        let kernels = MatrixKernels::load(&self.device, &layout, usage)?;
        let mut buffer = self.device.alloc("weights", layout.bytes())?;
        let row_bytes: usize = layout.planes().iter().map(|plane| plane.row_bytes).sum();
        let n_rows_at_once = (STAGING_BYTES / row_bytes.max(1)).max(1);
        let mut is_within_f16 = true;
        for first in (0..n_out).step_by(n_rows_at_once) {
            let rows = first..(first + n_rows_at_once).min(n_out);
            is_within_f16 &= self.upload_rows(&layout, rows, bytes, &mut buffer)?;
        }
        Ok(Matrix {
            bytes: buffer.share(),
            layout,
            kernels,
            is_within_f16,
        })
    }

    /// Repacks adjacent rows and queues their copies, one a plane. Returns whether matrix operations of warpgroups can multiply them.
    fn upload_rows(
        &mut self,
        layout: &MatrixLayout,
        rows: Range<usize>,
        bytes: TensorBytes<'_>,
        buffer: &mut Buffer<u8>,
    ) -> Result<bool> {
        let planes = layout.planes();
        let n_bytes = rows.len() * planes.iter().map(|plane| plane.row_bytes).sum::<usize>();
        let staging = &mut self.staging[self.n_batches % 2];
        self.n_batches += 1;
        if staging.as_ref().is_none_or(|staging| staging.len() < n_bytes) {
            *staging = Some(self.device.alloc_pinned(n_bytes)?);
        }
        let staging = staging.as_mut().expect("it was just made");

        // Staging memory holds one plane after the other; a piece is a few rows, which fill their part of each plane.
        let piece_rows = (PIECE_BYTES / layout.file_row_bytes().max(1)).max(1);
        let mut pieces: Vec<Piece<'_>> = (rows.clone().step_by(piece_rows))
            .map(|first| Piece {
                rows: first..(first + piece_rows).min(rows.end),
                parts: Vec::with_capacity(planes.len()),
            })
            .collect();
        let mut rest = staging.host()?;
        for plane in planes {
            for piece in &mut pieces {
                let (part, later) = rest.split_at_mut(piece.rows.len() * plane.row_bytes);
                piece.parts.push(part);
                rest = later;
            }
        }
        let are_within_f16 = (pieces.into_par_iter())
            .map_init(Vec::new, |read, piece| piece.repack(layout, bytes, read))
            .try_reduce(|| true, |a, b| Ok(a && b))?;

        let mut start = 0;
        for plane in planes {
            let target =
                plane.offset + rows.start * plane.row_bytes..plane.offset + rows.end * plane.row_bytes;
            let staged = start..start + target.len();
            start = staged.end;
            staging.upload(Stream::ToDevice, staged, &buffer.view_mut().range(target)?)?;
        }
        Ok(are_within_f16)
    }

    /// Waits until all matrices are on the device.
    ///
    /// # Errors
    /// The driver's.
    pub fn finish(&mut self) -> Result<()> {
        for staging in self.staging.iter_mut().flatten() {
            staging.host()?;
        }
        self.staging = [None, None];
        Ok(())
    }
}

/// A few rows of a matrix and the destination of their bytes.
struct Piece<'a> {
    rows: Range<usize>,
    /// For each plane.
    parts: Vec<&'a mut [u8]>,
}

impl Piece<'_> {
    /// Reads the rows, into `read` if they are in a file, and repacks them. Returns whether matrix operations
    /// of warpgroups can multiply them.
    fn repack(self, layout: &MatrixLayout, bytes: TensorBytes<'_>, read: &mut Vec<u8>) -> Result<bool> {
        let row_bytes = layout.file_row_bytes();
        let source = bytes
            .read(self.rows.start * row_bytes..self.rows.end * row_bytes, read)
            .map_err(|error| CudaExecError::ReadWeights {
                reason: error.to_string(),
            })?;
        let mut parts: Vec<_> = (self.parts.into_iter().zip(layout.planes()))
            .map(|(part, plane)| part.chunks_exact_mut(plane.row_bytes))
            .collect();
        let mut row_parts: Vec<&mut [u8]> = Vec::with_capacity(parts.len());
        for row in source.chunks_exact(row_bytes) {
            row_parts.extend(parts.iter_mut().filter_map(Iterator::next));
            for part in &mut row_parts {
                part.fill(0);
            }
            layout.repack_row(row, &mut row_parts)?;
            row_parts.clear();
        }
        Ok(Wide::of(layout.ty()).is_some_and(|wide| wide.takes(source)))
    }
}
