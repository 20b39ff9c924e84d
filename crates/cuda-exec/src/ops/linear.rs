//! Products of matrices with rows, few or many. Kernels: `matvec.cu`, `matvec_pair.cu`, `matvec_float.cu`, `matmul.cu`,
//! `matmul_float.cu`, `matmul_halves.cu`, `matmul_wide.cu`.

use std::sync::PoisonError;

use tokenmill_backend::Activation;

use super::{
    Ops, QuantizedMut, QuantizedView, check_equal,
    elementwise::activation_code,
    halves::{HalfForm, Halved},
};
use crate::{
    Args, BandHeight, Bands, CudaExecError, FewRows, HalfBands, Kernel, LaunchShape, ManyRows, Matrix,
    ProductRoom, View, ViewMut, Wide, WideCut,
    bands::{BAND_THREADS, supers_of_each},
    error::Result,
    matrix::MatrixKernels,
    modules::PAIRS,
    strips::variant_of,
    wide::WideKernels,
};

/// Largest number of rows for which weights are read once without tiles.
const MAX_ROWS: usize = 8;
/// Number of tiles of F32 below which narrow ones are faster, though they read more: the time of a tile does not depend on their number.
const FEW_TILES: usize = 128;
/// The same limit for tiles that have all rows of the matrices; used if the choice must not depend on the number of rows.
const FEW_TILES_OF_MATRICES: usize = 8;
/// Matrices of one launch.
pub(super) const MAX_JOBS: usize = 3;

/// The rows that matrices are multiplied with, in both forms if both exist.
#[derive(Clone, Copy, Debug)]
pub struct LinearInput<'a> {
    /// Rows.
    pub n_rows: usize,
    /// `[n_rows, n_in]`, for float matrices.
    pub floats: View<'a, f32>,
    /// The same, for quantized matrices.
    pub quantized: Option<QuantizedView<'a>>,
}

/// One product: `output[r] = matrix * input[r] + bias`.
#[derive(Debug)]
pub struct Product<'a> {
    /// `[n_out, n_in]`.
    pub matrix: &'a Matrix,
    /// `[n_out]`.
    pub bias: Option<View<'a, f32>>,
    /// `[n_rows, n_out]`.
    pub output: ViewMut<'a, f32>,
}

/// A gated pair: `output[r] = f(gate * input[r] + gate_bias) * (up * input[r] + up_bias)`.
#[derive(Debug)]
pub struct GatedProduct<'a> {
    /// Gate and up, both `[n_out, n_in]` and of one type.
    pub matrices: [&'a Matrix; 2],
    /// Their biases, `[n_out]`.
    pub biases: [Option<View<'a, f32>>; 2],
    /// Applied to the gate.
    pub activation: Activation,
    /// `[n_rows, n_out]`.
    pub output: ViewMut<'a, f32>,
    /// The same, quantized; `n_out` is then a multiple of 32.
    pub quantized: Option<QuantizedMut<'a>>,
}

/// The kernels for a pair of [`PAIRS`].
#[derive(Clone, Copy, Debug)]
pub(super) struct PairKernels {
    /// For up to 1, 2, 4 and 8 rows.
    pub(super) few_rows: [Kernel; 4],
    /// For 16 rows, if both types are stored in strips.
    pub(super) sixteen: Option<Kernel>,
    /// For one row that is normed first, of the same types.
    pub(super) normed: Option<Kernel>,
}

impl PairKernels {
    /// Largest number of rows that one launch takes.
    const MOST_ROWS: usize = 16;
}

/// Returns the kernel for a number of rows.
fn of_rows(kernels: [Kernel; 4], n_rows: usize) -> Kernel {
    kernels[variant_of(n_rows)]
}

pub(super) fn not_a_factor() -> CudaExecError {
    CudaExecError::Unsupported {
        feature: "product of a matrix that was not loaded for it".to_owned(),
    }
}

/// Appends the input in the form that a matrix takes, or in f16 if it was converted.
fn with_input<'a>(
    args: Args<'a>,
    matrix: &Matrix,
    input: &LinearInput<'a>,
    halved: Option<&'a Halved<'_>>,
) -> Result<Args<'a>> {
    let (n_rows, n_in) = (input.n_rows, matrix.n_in());
    let args = args.count(n_in).count(n_rows);
    if let Some(Halved { form, rows }) = halved {
        let args = args.read(rows.halves.view());
        let args = match form {
            HalfForm::Rows => args.read(rows.sums.view()),
            HalfForm::Tiles => args,
        };
        return Ok(args.read(rows.powers.view()));
    }
    if matrix.takes_quantized_input() {
        let quantized = input.quantized.ok_or(CudaExecError::Unsupported {
            feature: "product of quantized weights with f32 rows".to_owned(),
        })?;
        let rows = quantized.rows(0, n_rows, n_in)?;
        Ok(args.read(rows.bytes).read(rows.scales))
    } else {
        Ok(args.read(input.floats.range(0..n_rows * n_in)?))
    }
}

/// Counts the thread blocks of matrices that are divided into runs of `tile` rows.
pub(super) fn n_blocks(jobs: &[Product<'_>], tile: usize) -> usize {
    jobs.iter().map(|job| job.matrix.n_out().div_ceil(tile)).sum()
}

/// Counts the thread blocks of matrices that are multiplied by few rows.
fn few_rows_blocks(jobs: &[Product<'_>]) -> usize {
    let of_matrix = |matrix: &Matrix| {
        let [n_out, n_in] = [matrix.n_out(), matrix.n_in()];
        n_out.div_ceil(FewRows::of(matrix.layout().ty()).block_rows(n_out, n_in))
    };
    jobs.iter().map(|job| of_matrix(job.matrix)).sum()
}

/// Returns the launch of up to three products of few rows.
fn few_rows_shape(jobs: &[Product<'_>], n_rows: usize) -> LaunchShape {
    let few = |job: &Product<'_>| FewRows::of(job.matrix.layout().ty());
    let shared_bytes = jobs.iter().map(|job| few(job).shared_bytes(n_rows)).max();
    LaunchShape::new([few_rows_blocks(jobs), 1, 1], 128).with_shared_bytes(shared_bytes.unwrap_or(0))
}

/// A launch of products.
#[derive(Clone, Copy)]
struct ProductLaunch {
    kernel: Kernel,
    shape: LaunchShape,
    /// If thread blocks share columns, the number of superblocks of each.
    each: Option<usize>,
    /// How the kernel takes rows in f16, if it does.
    form: Option<HalfForm>,
}

impl ProductLaunch {
    /// Makes a launch by rows as they are, whose thread blocks have all columns.
    fn plain(kernel: Kernel, shape: LaunchShape) -> Self {
        Self {
            kernel,
            shape,
            each: None,
            form: None,
        }
    }
}

/// Returns the fastest way to multiply more rows by up to three matrices of one type.
fn fastest_way(jobs: &[Product<'_>], n_rows: usize, room: ProductRoom) -> ManyRows {
    let matrix = jobs[0].matrix;
    let n_outs: Vec<usize> = jobs.iter().map(|job| job.matrix.n_out()).collect();
    ManyRows::of(matrix.layout().ty(), &n_outs, matrix.n_in(), n_rows, room)
}

/// Returns the launch of up to three products of more rows by matrices of one type in a certain way.
fn many_rows_launch(
    kernels: &MatrixKernels,
    jobs: &[Product<'_>],
    n_rows: usize,
    way: ManyRows,
) -> Result<ProductLaunch> {
    let matrix = jobs[0].matrix;
    let ty = matrix.layout().ty();
    let few = FewRows::of(ty);
    let of_bands = || kernels.bands.ok_or_else(not_a_factor);
    let shape = |height: BandHeight, columns: usize, n_splits: usize| -> Result<LaunchShape> {
        let bands = Bands::of(ty).ok_or_else(not_a_factor)?;
        let grid = [n_blocks(jobs, height.rows()), n_rows.div_ceil(columns), n_splits];
        Ok(LaunchShape::new(grid, BAND_THREADS).with_shared_bytes(bands.shared_bytes(height, columns)))
    };
    Ok(match way {
        ManyRows::Strips => {
            let kernel = kernels.sixteen.ok_or_else(not_a_factor)?;
            let grid = [n_blocks(jobs, FewRows::STRIP_ROWS), n_rows.div_ceil(16), 1];
            let shape = LaunchShape::new(grid, 128).with_shared_bytes(few.sixteen_shared_bytes());
            ProductLaunch::plain(kernel, shape)
        }
        ManyRows::Bands(height) => {
            let columns = height.columns()[height.variant_of(n_rows)];
            ProductLaunch::plain(of_bands()?.plain_of(height, n_rows), shape(height, columns, 1)?)
        }
        ManyRows::Splits(n_splits) => {
            let kernel = of_bands()?.split.ok_or_else(not_a_factor)?;
            ProductLaunch {
                each: Some(supers_of_each(matrix.n_in() / 256, n_splits)),
                ..ProductLaunch::plain(kernel, shape(BandHeight::High, 64, n_splits)?)
            }
        }
        ManyRows::Halves(n_splits) => {
            let of_type = kernels.halves.zip(HalfBands::of(ty));
            let (of_halves, halves) = of_type.ok_or_else(not_a_factor)?;
            let grid = [
                n_rows.div_ceil(HalfBands::COLUMNS),
                n_blocks(jobs, HalfBands::ROWS),
                n_splits,
            ];
            let is_split = n_splits > 1;
            ProductLaunch {
                kernel: if is_split {
                    of_halves.split
                } else {
                    of_halves.plain
                },
                shape: LaunchShape::new(grid, BAND_THREADS).with_shared_bytes(halves.shared_bytes()),
                each: is_split.then(|| supers_of_each(matrix.n_in() / 256, n_splits)),
                form: Some(HalfForm::Rows),
            }
        }
        ManyRows::Wide(cut) => ProductLaunch {
            kernel: kernels.wide.ok_or_else(not_a_factor)?.plain_of(cut),
            shape: cut.shape(n_blocks(jobs, Wide::ROWS), n_rows),
            each: (cut.n_splits > 1).then(|| (matrix.n_in() / 256).div_ceil(cut.n_splits)),
            form: Some(HalfForm::Tiles),
        },
        ManyRows::Tiles => tiles_launch(kernels, jobs, n_rows, false)?,
    })
}

/// Returns the launch of up to three products of more rows by matrices of one type in tiles.
fn tiles_launch(
    kernels: &MatrixKernels,
    jobs: &[Product<'_>],
    n_rows: usize,
    is_batch_invariant: bool,
) -> Result<ProductLaunch> {
    let [small, large] = kernels.matmul.ok_or_else(not_a_factor)?;
    let grid = |tile: [usize; 2]| [n_blocks(jobs, tile[0]), n_rows.div_ceil(tile[1]), 1];
    // Narrow tiles add in another order.
    let are_few = if is_batch_invariant {
        n_blocks(jobs, large.tile[0]) <= FEW_TILES_OF_MATRICES
    } else {
        grid(large.tile).into_iter().product::<usize>() < FEW_TILES
    };
    let tiled = match kernels.narrow.filter(|_| are_few) {
        Some(narrow) => narrow,
        None if n_rows <= small.tile[1] => small,
        None => large,
    };
    let shape = LaunchShape::new(grid(tiled.tile), tiled.n_threads);
    Ok(ProductLaunch::plain(tiled.kernel, shape))
}

/// Appends the arguments that all products have.
fn job_args<'a>(
    input: &LinearInput<'a>,
    halved: Option<&'a Halved<'_>>,
    jobs: &'a mut [Product<'_>],
) -> Result<Args<'a>> {
    let matrix = jobs[0].matrix;
    with_input(matrix_args(input.n_rows, jobs)?, matrix, input, halved)
}

/// Appends the same except for the input.
pub(super) fn matrix_args<'a>(n_rows: usize, jobs: &'a mut [Product<'_>]) -> Result<Args<'a>> {
    let matrix = jobs[0].matrix;
    for job in jobs.iter() {
        check_equal("the width of a matrix", job.matrix.n_in(), matrix.n_in())?;
        if let Some(bias) = &job.bias {
            check_equal("the length of a bias", bias.len(), job.matrix.n_out())?;
        }
    }
    let counts: [usize; MAX_JOBS] =
        std::array::from_fn(|index| jobs.get(index).map_or(0, |job| job.matrix.n_out()));
    let biases: [Option<View<'_, f32>>; MAX_JOBS] =
        std::array::from_fn(|index| jobs.get(index).and_then(|job| job.bias));
    let mut args = Args::new();
    for index in 0..MAX_JOBS {
        args = args.read_or_null(jobs.get(index).map(|job| job.matrix.view()));
    }
    let mut outputs = jobs.iter_mut();
    for _ in 0..MAX_JOBS {
        let output = match outputs.next() {
            Some(job) => {
                let len = n_rows * job.matrix.n_out();
                Some(job.output.reborrow().range(0..len)?)
            }
            None => None,
        };
        args = args.write_or_null(output);
    }
    for bias in biases {
        args = args.read_or_null(bias);
    }
    for count in counts {
        args = args.count(count);
    }
    Ok(args)
}

impl Ops {
    /// Multiplies one input by several matrices. Adjacent matrices of one type share launches. So do three matrices of which the last has
    /// another type, if [`Self::load_pair`] loaded kernels for the two types.
    ///
    /// # Errors
    /// [`CudaExecError::Shape`], [`CudaExecError::Bounds`], or the driver's.
    pub fn linear(&self, input: &LinearInput<'_>, products: &mut [Product<'_>]) -> Result<()> {
        let n_rows = input.n_rows;
        if let Some((kernel, shape)) = self.pair_of(products, n_rows) {
            let args = job_args(input, None, products)?;
            return self.device.launch(kernel, shape, &args);
        }
        // Rows are converted to f16 at the first launch that takes them, for all launches with that layout.
        let (mut room, mut halved) = (None, None::<Halved<'_>>);
        let is_joined = |a: &Product<'_>, b: &Product<'_>| a.matrix.layout().ty() == b.matrix.layout().ty();
        for joined in products.chunk_by_mut(is_joined) {
            for jobs in joined.chunks_mut(MAX_JOBS) {
                let kernels = jobs[0].matrix.kernels;
                let launch = if n_rows <= MAX_ROWS && !self.is_batch_invariant {
                    let kernel = of_rows(kernels.matvec.ok_or_else(not_a_factor)?, n_rows);
                    ProductLaunch::plain(kernel, few_rows_shape(jobs, n_rows))
                } else if (kernels.bands.is_some() || kernels.wide.is_some()) && !self.is_batch_invariant {
                    // These add in another order than tiles.
                    let mut room = *room.get_or_insert_with(|| self.room_for(n_rows, jobs[0].matrix.n_in()));
                    room.has_tiles &= jobs.iter().all(|job| job.matrix.is_wide());
                    many_rows_launch(&kernels, jobs, n_rows, fastest_way(jobs, n_rows, room))?
                } else {
                    tiles_launch(&kernels, jobs, n_rows, self.is_batch_invariant)?
                };
                self.launch_products(launch, input, jobs, &mut halved)?;
            }
        }
        Ok(())
    }

    /// Multiplies one input by up to three matrices of one type in a certain way, which need not be the fastest. Checks of kernels use it,
    /// because small products would never get some kernels.
    ///
    /// # Errors
    /// [`CudaExecError::Unsupported`] if the type has no such kernel, or as [`Self::linear`].
    pub(crate) fn linear_by(
        &self,
        way: ManyRows,
        input: &LinearInput<'_>,
        jobs: &mut [Product<'_>],
    ) -> Result<()> {
        let kernels = jobs[0].matrix.kernels;
        let launch = many_rows_launch(&kernels, jobs, input.n_rows, way)?;
        self.launch_products(launch, input, jobs, &mut None)
    }

    /// Queues a launch of up to three products. `halved` holds the rows in f16 between launches.
    fn launch_products<'a>(
        &'a self,
        launch: ProductLaunch,
        input: &LinearInput<'_>,
        jobs: &mut [Product<'_>],
        halved: &mut Option<Halved<'a>>,
    ) -> Result<()> {
        let ProductLaunch {
            kernel,
            shape,
            each,
            form,
        } = launch;
        let n_in = jobs[0].matrix.n_in();
        if let Some(form) = form
            && halved.as_ref().is_none_or(|halved| halved.form != form)
        {
            // Both forms use the same memory.
            drop(halved.take());
            *halved = Some(self.halve(input, n_in, form)?);
        }
        let halved = halved.as_ref().filter(|_| form.is_some());
        let args = job_args(input, halved, jobs)?;
        let Some(each) = each else {
            // Kernels for tiles are the same for shared and unshared columns.
            let args = match form {
                Some(HalfForm::Tiles) => (args.write_or_null::<f32>(None))
                    .write_or_null::<u32>(None)
                    .count(n_in / 256),
                _ => args,
            };
            return self.device.launch(kernel, shape, &args);
        };
        let parts = (self.parts.as_ref()).expect("columns are shared where there is memory for parts");
        let mut parts = parts.lock().unwrap_or_else(PoisonError::into_inner);
        let parts = &mut *parts;
        let args = (args.write(parts.sums.view_mut()))
            .write(parts.counters.view_mut())
            .count(each);
        self.device.launch(kernel, shape, &args)
    }

    /// Returns the launch of two matrices of one type and a third of another, by up to as many rows as a thread block takes.
    fn pair_of(&self, products: &[Product<'_>], n_rows: usize) -> Option<(Kernel, LaunchShape)> {
        let [a, b, c] = products else {
            return None;
        };
        // Each must have been loaded as a factor, as for a separate launch.
        let are_factors = (products.iter()).all(|product| product.matrix.kernels.matvec.is_some());
        let types = [a, c].map(|product| product.matrix.layout().ty());
        if self.is_batch_invariant || !are_factors || b.matrix.layout().ty() != types[0] {
            return None;
        }
        let kernels = self.pairs[PAIRS.iter().position(|pair| *pair == types)?]?;
        if n_rows <= MAX_ROWS {
            let kernel = of_rows(kernels.few_rows, n_rows);
            return Some((kernel, few_rows_shape(products, n_rows)));
        }
        // Only if separate launches would use strips too, which give these bits.
        let n_out = [a, b].map(|product| product.matrix.n_out()).iter().sum();
        let launches = [(types[0], n_out), (types[1], c.matrix.n_out())];
        let n_in = a.matrix.n_in();
        let are_strips = (launches.iter()).all(|&(ty, n_out)| {
            ManyRows::of(ty, &[n_out], n_in, n_rows, ProductRoom::NONE) == ManyRows::Strips
        });
        if n_rows > PairKernels::MOST_ROWS || !are_strips {
            return None;
        }
        let few = types.map(FewRows::of);
        let shared_bytes = few.map(FewRows::sixteen_shared_bytes).into_iter().max();
        let shape = LaunchShape::new([n_blocks(products, FewRows::STRIP_ROWS), 1, 1], 128)
            .with_shared_bytes(shared_bytes.unwrap_or(0));
        Some((kernels.sixteen?, shape))
    }

    /// Returns whether [`Self::matvec_gated`] can multiply a pair: its weights have one type, results may depend on the number of rows, and
    /// the rows are few, or any number by bands or wide products.
    pub fn can_gate(&self, gate: &Matrix, up: &Matrix, n_rows: usize) -> bool {
        !self.is_batch_invariant
            && gate.layout() == up.layout()
            && gate.kernels.gated.is_some()
            && (n_rows <= MAX_ROWS
                || gate.kernels.bands.is_some_and(|bands| bands.gated.is_some())
                || self.wide_of(gate, up, n_rows).is_some())
    }

    /// Returns the wide kernels for a gate and an up matrix, if there are any.
    fn wide_of(&self, gate: &Matrix, up: &Matrix, n_rows: usize) -> Option<(Wide, WideKernels)> {
        let wide = Wide::of(gate.layout().ty()).filter(|_| n_rows >= Wide::MIN_ROWS)?;
        let kernels = gate.kernels.wide?;
        let are_wide = gate.is_wide() && up.is_wide() && self.room_for(n_rows, gate.n_in()).has_tiles;
        are_wide.then_some((wide, kernels))
    }

    /// Multiplies any number of rows by a gate and an up matrix at once.
    ///
    /// # Errors
    /// [`CudaExecError::Unsupported`] where [`Self::can_gate`] is false, [`CudaExecError::Bounds`], or the driver's.
    pub fn matvec_gated(&self, input: &LinearInput<'_>, product: GatedProduct<'_>) -> Result<()> {
        self.gated_by(None, input, product)
    }

    /// Does the same; if warpgroups multiply, with thread blocks of this number of rows of x if it is given.
    ///
    /// # Errors
    /// As [`Self::matvec_gated`].
    pub(crate) fn gated_by(
        &self,
        columns: Option<usize>,
        input: &LinearInput<'_>,
        product: GatedProduct<'_>,
    ) -> Result<()> {
        let [gate, up] = product.matrices;
        let (n_rows, n_out) = (input.n_rows, gate.n_out());
        let kernels = match gate.kernels.gated {
            Some(kernels) if self.can_gate(gate, up, n_rows) => kernels,
            _ => return Err(not_a_factor()),
        };
        let quantized = product
            .quantized
            .map(|rows| rows.rows(0, n_rows, n_out))
            .transpose()?;
        let (bytes, scales) = QuantizedMut::split(quantized);
        for bias in product.biases.iter().flatten() {
            check_equal("the length of a bias", bias.len(), n_out)?;
        }
        let args = Args::new()
            .read(gate.view())
            .read(up.view())
            .count(n_out)
            .read_or_null(product.biases[0])
            .read_or_null(product.biases[1])
            .count(activation_code(product.activation))
            .write(product.output.range(0..n_rows * n_out)?)
            .write_or_null(bytes)
            .write_or_null(scales);
        let ty = gate.layout().ty();
        let room = self.room_for(n_rows, gate.n_in());
        if let Some((wide, kernels)) = self.wide_of(gate, up, n_rows) {
            let halved = self.halve(input, gate.n_in(), HalfForm::Tiles)?;
            let args = with_input(args, gate, input, Some(&halved))?;
            let n_bands = n_out.div_ceil(Wide::GATED_ROWS);
            let fastest = || WideCut::of(wide, n_bands, gate.n_in() / 256, n_rows, 1);
            let cut = columns.map_or_else(fastest, |columns| WideCut { columns, n_splits: 1 });
            let shape = cut.shape(n_bands, n_rows);
            return self.device.launch(kernels.gated_of(cut), shape, &args);
        }
        let in_halves = (gate.kernels.halves.zip(HalfBands::of(ty)))
            .filter(|_| n_rows >= HalfBands::MIN_ROWS && room.has_halves);
        if let Some((kernels, halves)) = in_halves {
            let halved = self.halve(input, gate.n_in(), HalfForm::Rows)?;
            let args = with_input(args, gate, input, Some(&halved))?;
            let grid = [
                n_rows.div_ceil(HalfBands::COLUMNS),
                n_out.div_ceil(HalfBands::GATED_ROWS),
                1,
            ];
            let shape = LaunchShape::new(grid, BAND_THREADS).with_shared_bytes(halves.shared_bytes());
            return self.device.launch(kernels.gated, shape, &args);
        }
        let args = with_input(args, gate, input, None)?;
        let of_bands = (gate.kernels.bands).filter(|_| n_rows > MAX_ROWS);
        let of_bands = of_bands.and_then(|bands| bands.gated);
        if let (Some(of_bands), Some(bands)) = (of_bands, Bands::of(ty)) {
            let variant = BandHeight::High.variant_of(n_rows);
            let columns = Bands::COLUMNS[variant];
            let grid = [n_out.div_ceil(Bands::GATED_ROWS), n_rows.div_ceil(columns), 1];
            let shared_bytes = bands.shared_bytes(BandHeight::High, columns);
            let shape = LaunchShape::new(grid, BAND_THREADS).with_shared_bytes(shared_bytes);
            return self.device.launch(of_bands[variant], shape, &args);
        }
        let shared_bytes = FewRows::of(ty).gated_shared_bytes(n_rows);
        let n_threads = FewRows::of(ty).gated_threads();
        let shape = LaunchShape::new([n_out.div_ceil(32), 1, 1], n_threads).with_shared_bytes(shared_bytes);
        self.device.launch(of_rows(kernels, n_rows), shape, &args)
    }
}
