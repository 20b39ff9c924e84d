//! Routing to experts and products with their matrices. Kernels: `route.cu`, `experts.cu`, `experts_float.cu`.

use tokenmill_backend::{ExpertScore, GroupMeasure, Router};

use super::{Ops, Product, QuantizedView, check_equal};
use crate::{
    Args, Buffer, CudaExecError, Device, LaunchShape, View, ViewMut, driver::buffer_bytes, error::Result,
};

/// Largest number of experts that a row may choose from.
const MAX_EXPERTS: usize = 1024;
/// Largest number of choices of a step, limited by the rows of a grid.
const MAX_CHOICES: usize = 65_535;

/// Holds the routing of a step's rows, on the device.
#[derive(Debug)]
pub struct DeviceRoutes {
    /// The choices of each row, best first.
    experts: Buffer<u32>,
    weights: Buffer<f32>,
    /// The index of each choice among the choices sorted by expert.
    places: Buffer<u32>,
    /// The row of each sorted choice.
    rows: Buffer<u32>,
    /// Start of each expert's sorted choices, and the end of the last one's.
    starts: Buffer<u32>,
    /// Expert and first choice of each run of choices that are multiplied together.
    runs: Buffer<u32>,
}

impl DeviceRoutes {
    /// Allocates for `max_rows` rows that go to `n_used` of `n_experts` experts.
    ///
    /// # Errors
    /// [`CudaExecError::Unsupported`] beyond 1024 experts or 65535 choices, or [`CudaExecError::OutOfMemory`].
    pub fn new(device: &Device, max_rows: usize, n_experts: usize, n_used: usize) -> Result<Self> {
        let n_choices = max_rows.saturating_mul(n_used);
        if n_experts > MAX_EXPERTS || n_choices > MAX_CHOICES {
            return Err(CudaExecError::Unsupported {
                feature: format!(
                    "{n_experts} experts with {n_choices} choices in a step (at most {MAX_EXPERTS} and {MAX_CHOICES}; choices are \
                     the tokens of the largest batch times the experts of a token)"
                ),
            });
        }
        let list = |len| device.alloc("routes to experts", len);
        Ok(Self {
            experts: list(n_choices)?,
            weights: device.alloc("routes to experts", n_choices)?,
            places: list(n_choices)?,
            rows: list(n_choices)?,
            starts: list(n_experts + 1)?,
            runs: list(2 * n_choices)?,
        })
    }

    /// Returns the device memory of such routes.
    pub fn device_bytes(max_rows: usize, n_experts: usize, n_used: usize) -> usize {
        let n_choices = max_rows.saturating_mul(n_used);
        if n_choices > MAX_CHOICES {
            // Such sizes are rejected at allocation.
            return 0;
        }
        4 * buffer_bytes::<u32>(n_choices)
            + buffer_bytes::<u32>(n_experts + 1)
            + buffer_bytes::<u32>(2 * n_choices)
    }
}

/// Selects how experts' matrices are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExpertProducts {
    /// Only by tiles, which give a row the same bits whatever the other rows are.
    Tiles,
    /// Tensor cores multiply tiles: a tile of 16 rows takes little longer than one row, even if most of the 16 are absent.
    Quantized,
    /// Tiles are in f32, and their time grows with their rows.
    Floats,
}

/// Counts rows, choices and experts.
#[derive(Clone, Copy, Debug)]
pub struct RouteCounts {
    /// Rows.
    pub n_rows: usize,
    /// Number of experts per row.
    pub n_used: usize,
    /// Number of experts.
    pub n_experts: usize,
}

impl RouteCounts {
    fn n_choices(self) -> usize {
        self.n_rows * self.n_used
    }

    /// Returns the largest number of choices of a run, up to the size of the largest tile.
    fn run_len(self, products: ExpertProducts) -> usize {
        let n_choices = self.n_choices();
        let is_average = |len: usize| n_choices <= len * self.n_experts;
        match products {
            ExpertProducts::Quantized | ExpertProducts::Floats if self.n_rows <= 1 => 1,
            // Few experts have a second row.
            ExpertProducts::Quantized if 2 * n_choices <= self.n_experts => 1,
            // As many rows as an expert has on average, or slightly more.
            ExpertProducts::Floats if is_average(1) => 2,
            ExpertProducts::Floats if is_average(4) => 4,
            ExpertProducts::Floats if is_average(8) => 8,
            _ if is_average(32) => 16,
            _ => 64,
        }
    }

    /// Returns the largest number of runs: each expert has at most one that is not full.
    fn max_runs(self, run_len: usize) -> usize {
        let n_choices = self.n_choices();
        n_choices.min(self.n_experts + n_choices / run_len)
    }
}

/// The rows that experts read, in both forms if both exist.
#[derive(Clone, Copy, Debug)]
pub struct ExpertRows<'a> {
    /// Whether each choice has its own row; otherwise all choices of a row read that row.
    pub is_by_choice: bool,
    /// `[n_rows or n_choices, n_in]`, for float matrices.
    pub floats: View<'a, f32>,
    /// The same, for quantized matrices.
    pub quantized: Option<QuantizedView<'a>>,
}

/// How [`Ops::combine`] treats the earlier rows of the output.
#[derive(Clone, Copy, Debug)]
pub enum CarriedRows<'a> {
    /// Overwrites them.
    Nothing,
    /// Keeps the rows as they are.
    Whole,
    /// Multiplies the rows by the sigmoid of one value each, `[n_rows]`.
    Gated(View<'a, f32>),
}

impl Ops {
    /// Sets that matrices of experts are floats, which determines the length of runs. Call it before the first row is routed.
    pub fn expect_float_experts(&mut self) {
        self.has_float_experts = true;
    }

    fn expert_products(&self) -> ExpertProducts {
        match (self.is_batch_invariant, self.has_float_experts) {
            (true, _) => ExpertProducts::Tiles,
            (false, true) => ExpertProducts::Floats,
            (false, false) => ExpertProducts::Quantized,
        }
    }

    /// Chooses the experts of each row by its logits, `[n_rows, n_experts]`, and sorts the choices.
    ///
    /// # Errors
    /// [`CudaExecError::Bounds`], or the driver's.
    pub fn route(
        &self,
        router: &Router<View<'_, f32>>,
        n_rows: usize,
        logits: View<'_, f32>,
        routes: &mut DeviceRoutes,
    ) -> Result<()> {
        let counts = RouteCounts {
            n_rows,
            n_used: router.n_used,
            n_experts: router.n_experts,
        };
        let RouteCounts {
            n_used, n_experts, ..
        } = counts;
        let n_choices = counts.n_choices();
        let run_len = counts.run_len(self.expert_products());
        let [n_groups, n_used_groups] = router
            .groups
            .map_or([1, 1], |groups| [groups.n_groups, groups.n_used]);
        let takes_two = (router.groups).is_some_and(|groups| groups.measure == GroupMeasure::TwoBest);
        let args = Args::new()
            .read(logits.range(0..n_rows * n_experts)?)
            .count(n_experts)
            .count(n_used)
            .count(usize::from(router.score == ExpertScore::Sigmoid))
            .read_or_null(router.choice_bias)
            .count(n_groups)
            .count(n_used_groups)
            .count(usize::from(takes_two))
            .count(usize::from(router.is_normalized))
            .float(router.scale)
            .read_or_null(router.expert_scales)
            .write(routes.experts.view_mut().range(0..n_choices)?)
            .write(routes.weights.view_mut().range(0..n_choices)?);
        let shape = LaunchShape::new([n_rows, 1, 1], 32);
        self.device.launch(self.route_rows, shape, &args)?;
        let args = Args::new()
            .read(routes.experts.view().range(0..n_choices)?)
            .count(n_choices)
            .count(n_used)
            .count(n_experts)
            .count(run_len)
            .count(counts.max_runs(run_len))
            .write(routes.places.view_mut().range(0..n_choices)?)
            .write(routes.rows.view_mut().range(0..n_choices)?)
            .write(routes.starts.view_mut().range(0..n_experts + 1)?)
            .write(routes.runs.view_mut().range(0..2 * counts.max_runs(run_len))?);
        let shape = LaunchShape::new([n_experts.div_ceil(8), 1, 1], 256);
        self.device.launch(self.sort_choices, shape, &args)
    }

    /// Multiplies each choice's row by its expert's part of one matrix, or of two of one layout: outputs `[n_choices, n_out]`.
    ///
    /// # Errors
    /// [`CudaExecError::Shape`], [`CudaExecError::Bounds`], or the driver's.
    pub fn experts(
        &self,
        routes: &DeviceRoutes,
        counts: RouteCounts,
        input: ExpertRows<'_>,
        n_out: usize,
        products: &mut [Product<'_>],
    ) -> Result<()> {
        let matrix = products[0].matrix;
        let (n_in, n_choices) = (matrix.n_in(), counts.n_choices());
        let n_input_rows = if input.is_by_choice {
            n_choices
        } else {
            counts.n_rows
        };
        check_equal(
            "the rows of all experts",
            matrix.n_out(),
            counts.n_experts * n_out,
        )?;
        for product in &*products {
            check_equal("the width of a matrix", product.matrix.n_in(), n_in)?;
            check_equal("the rows of a matrix", product.matrix.n_out(), matrix.n_out())?;
            if let Some(bias) = &product.bias {
                check_equal("the length of a bias", bias.len(), matrix.n_out())?;
            }
        }
        let kernels = matrix.kernels.experts.ok_or(CudaExecError::Unsupported {
            feature: "product of experts' matrices that were not loaded for it".to_owned(),
        })?;
        let run_len = counts.run_len(self.expert_products());
        let tiled = kernels.of_runs(run_len);
        let n_products = products.len();
        let second = products.get(1).map(|product| (product.matrix, product.bias));
        let first_bias = products[0].bias;
        let mut outputs = products.iter_mut().map(|product| product.output.reborrow());
        let mut output = || {
            outputs
                .next()
                .map(|output| output.range(0..n_choices * n_out))
                .transpose()
        };
        let args = Args::new()
            .read(matrix.view())
            .read_or_null(second.map(|(matrix, _)| matrix.view()))
            .read_or_null(first_bias)
            .read_or_null(second.and_then(|(_, bias)| bias))
            .write_or_null(output()?)
            .write_or_null(output()?)
            .count(counts.n_experts)
            // The lists give the routing of rows.
            .count(0)
            .count(n_out)
            .count(n_in)
            .read(routes.runs.view().range(0..2 * counts.max_runs(run_len))?)
            .read(routes.starts.view().range(0..counts.n_experts + 1)?);
        let rows = routes.rows.view().range(0..n_choices)?;
        let args = args.read_or_null((!input.is_by_choice).then_some(rows));
        let args = if matrix.takes_quantized_input() {
            let quantized = input.quantized.ok_or(CudaExecError::Unsupported {
                feature: "product of quantized weights with f32 rows".to_owned(),
            })?;
            let rows = quantized.rows(0, n_input_rows, n_in)?;
            args.read(rows.bytes).read(rows.scales)
        } else {
            args.read(input.floats.range(0..n_input_rows * n_in)?)
        };
        let grid = [
            n_out.div_ceil(tiled.tile[0]),
            counts.max_runs(run_len),
            n_products,
        ];
        let shape = LaunchShape::new(grid, tiled.n_threads);
        self.device.launch(tiled.kernel, shape, &args)
    }

    /// Multiplies the row of each choice by its weight, `[n_choices, width]`.
    ///
    /// # Errors
    /// [`CudaExecError::Bounds`], or the driver's.
    pub fn weigh_choices(
        &self,
        routes: &DeviceRoutes,
        n_choices: usize,
        width: usize,
        choices: ViewMut<'_, f32>,
    ) -> Result<()> {
        let args = Args::new()
            .write(choices.range(0..n_choices * width)?)
            .read(routes.weights.view().range(0..n_choices)?)
            .read(routes.places.view().range(0..n_choices)?)
            .count(width);
        self.launch_elementwise(self.weigh_choices, [n_choices, width], &args)
    }

    /// Adds up the choices of each row; see [`ExpertOperations::combine`](tokenmill_backend::ExpertOperations::combine). `choices: [n_choices, width]`.
    ///
    /// # Errors
    /// [`CudaExecError::Bounds`], or the driver's.
    pub fn combine(
        &self,
        routes: &DeviceRoutes,
        [n_rows, n_used]: [usize; 2],
        width: usize,
        choices: View<'_, f32>,
        carried: CarriedRows<'_>,
        output: ViewMut<'_, f32>,
    ) -> Result<()> {
        let n_choices = n_rows * n_used;
        let (carry, gates) = match carried {
            CarriedRows::Nothing => (0, None),
            CarriedRows::Whole => (1, None),
            CarriedRows::Gated(gates) => (2, Some(gates.range(0..n_rows)?)),
        };
        let args = Args::new()
            .read(choices.range(0..n_choices * width)?)
            .read(routes.weights.view().range(0..n_choices)?)
            .read(routes.places.view().range(0..n_choices)?)
            .count(n_used)
            .count(width)
            .count(carry)
            .read_or_null(gates)
            .write(output.range(0..n_rows * width)?);
        self.launch_elementwise(self.combine_choices, [n_rows, width], &args)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(products: ExpertProducts, [n_rows, n_used, n_experts]: [usize; 3], expected: [usize; 2]) {
        let counts = RouteCounts {
            n_rows,
            n_used,
            n_experts,
        };
        let run_len = counts.run_len(products);
        assert_eq!([run_len, counts.max_runs(run_len)], expected, "{n_rows} rows");
    }

    #[test]
    fn runs_of_floats_are_as_long_as_an_experts_rows() {
        let check = |sizes, expected| check(ExpertProducts::Floats, sizes, expected);
        check([1, 8, 128], [1, 8]);
        check([8, 8, 128], [2, 64]);
        check([64, 8, 128], [4, 128 + 128]);
        check([128, 8, 128], [8, 128 + 128]);
        // 16 and 128 rows of each expert: its weights are read about once and about twice.
        check([256, 8, 128], [16, 128 + 128]);
        check([2048, 8, 128], [64, 128 + 256]);
    }

    #[test]
    fn runs_of_quantized_experts_are_those_of_tiles_but_for_few_rows() {
        let check = |sizes, expected| check(ExpertProducts::Quantized, sizes, expected);
        check([1, 4, 8], [1, 4]);
        check([8, 8, 128], [1, 64]);
        check([9, 8, 128], [16, 72]);
        check([64, 8, 128], [16, 128 + 32]);
        check([512, 8, 128], [16, 128 + 256]);
        check([2048, 8, 128], [64, 128 + 256]);
    }

    #[test]
    fn batch_invariant_runs_are_those_of_tiles() {
        let check = |sizes, expected| check(ExpertProducts::Tiles, sizes, expected);
        check([1, 8, 128], [16, 8]);
        check([2048, 8, 128], [64, 128 + 256]);
    }
}
