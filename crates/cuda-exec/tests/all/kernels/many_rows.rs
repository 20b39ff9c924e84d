//! Products of matrices with many rows: operands on the device, the sums of plain loops, and claims about any kernel of them.
//!
//! The kernels in f16 and those of warpgroups take the same operands and keep the same promises. Invariant: nothing here knows how a
//! kernel divides its work.

use tokenmill_cuda_exec::MatrixLayout;
use tokenmill_gguf::TensorType;
use tokenmill_ptx_sim::{Arguments, Counters, DevicePtr};
use tokenmill_testkit::Random;

use crate::kernels::{
    bench::{NULL, Quantized, Sim, assert_close, random_matrix},
    matvec::dot,
};

/// Up to three matrices of a type, with memory for their products.
pub(super) struct Operands {
    n_rows: usize,
    n_in: usize,
    n_outs: [usize; 3],
    matrices: [DevicePtr; 3],
    outputs: [DevicePtr; 3],
    biases: [DevicePtr; 3],
    values: Vec<Vec<f32>>,
    expected: Vec<Vec<(f64, f64)>>,
}

impl Operands {
    /// Uploads matrices, of which the first `n_biased` have a bias. `exact` has the values of the quantized rows; `matrix` makes
    /// rows in the form of a file, and their values.
    pub(super) fn new(
        sim: &mut Sim,
        ty: TensorType,
        exact: &[f64],
        n_outs: [usize; 3],
        n_in: usize,
        n_biased: usize,
        mut matrix: impl FnMut(&mut Random, usize) -> (Vec<u8>, Vec<f32>),
    ) -> Self {
        let mut random = Random::new((n_in + n_outs[0]) as u64);
        let mut operands = Self {
            n_rows: exact.len() / n_in,
            n_in,
            n_outs,
            matrices: [NULL; 3],
            outputs: [NULL; 3],
            biases: [NULL; 3],
            values: Vec::new(),
            expected: Vec::new(),
        };
        for (job, &n_out) in n_outs.iter().enumerate().filter(|(_, n_out)| **n_out > 0) {
            let (file_rows, values) = matrix(&mut random, n_out);
            operands.matrices[job] = sim.matrix(ty, n_out, n_in, &file_rows);
            operands.outputs[job] = sim.room(operands.n_rows * n_out * 4);
            let has_bias = job < n_biased;
            let bias = if has_bias {
                random.values(n_out)
            } else {
                Vec::new()
            };
            if has_bias {
                operands.biases[job] = sim.f32s(&bias);
            }
            let sums = (0..operands.n_rows * n_out).map(|index| {
                let (sum, magnitude) = dot(&values, exact, n_in, index % n_out, index / n_out);
                let bias = bias.get(index % n_out).copied().map_or(0.0, f64::from);
                (sum + bias, magnitude + bias.abs())
            });
            operands.expected.push(sums.collect());
            operands.values.push(values);
        }
        operands
    }

    /// Returns matrices, outputs and biases, then the numbers of their rows and of x.
    pub(super) fn arguments(&self) -> Arguments {
        let lists = [self.matrices, self.outputs, self.biases].into_iter().flatten();
        let arguments = lists.fold(Arguments::new(), Arguments::ptr);
        let numbers = self.n_outs.into_iter().chain([self.n_in, self.n_rows]);
        numbers.fold(arguments, |arguments, n| arguments.i32(n as i32))
    }

    /// Reads the results of a launch.
    pub(super) fn products(self, sim: &Sim, counters: Counters) -> Products {
        let found = (self.n_outs.iter().zip(self.outputs)).filter(|(n_out, _)| **n_out > 0);
        Products {
            found: found
                .map(|(n_out, y)| sim.read_f32s(y, self.n_rows * n_out))
                .collect(),
            expected: self.expected,
            values: self.values,
            counters,
        }
    }
}

/// Products of matrices with rows, the sums that plain loops over the quantized rows give, and the launch's counters.
pub(super) struct Products {
    pub(super) found: Vec<Vec<f32>>,
    pub(super) expected: Vec<Vec<(f64, f64)>>,
    /// The values of each matrix.
    values: Vec<Vec<f32>>,
    pub(super) counters: Counters,
}

impl Products {
    #[track_caller]
    pub(super) fn check(&self, tolerance: f64, what: &str) {
        for (found, expected) in self.found.iter().zip(&self.expected) {
            assert_close(found, expected, tolerance, what);
        }
    }

    /// Asserts that rounding in the kernel adds little to the 8-bit rounding of the quantized rows, for products of one matrix.
    #[track_caller]
    pub(super) fn check_rounding(&self, rows: &[f32], n_in: usize, what: &str) {
        let [values] = &self.values[..] else {
            panic!("one matrix is expected");
        };
        let n_out = values.len() / n_in;
        let unrounded: Vec<f64> = rows.iter().map(|&x| f64::from(x)).collect();
        let [mut of_kernel, mut of_bytes] = [0.0; 2];
        for (index, (found, (expected, _))) in self.found[0].iter().zip(&self.expected[0]).enumerate() {
            let (right, _) = dot(values, &unrounded, n_in, index % n_out, index / n_out);
            of_kernel += (f64::from(*found) - right).powi(2);
            of_bytes += (expected - right).powi(2);
        }
        assert!(
            of_kernel.sqrt() < 1.02 * of_bytes.sqrt(),
            "{what}: {of_kernel} {of_bytes}"
        );
    }
}

/// Asserts that the counters of thread blocks that share a sum are zero again.
#[track_caller]
pub(super) fn assert_reset(sim: &Sim, counts: DevicePtr, n: usize) {
    let left = sim.read_u32s(counts, n);
    assert!(
        left.iter().all(|&count| count == 0),
        "counters are left as they were"
    );
}

/// Returns the sectors of the weights that a launch loaded, relative to those that exist.
#[track_caller]
pub(super) fn reads_of_weights(counters: &Counters, ty: TensorType, n_out: usize, n_in: usize) -> f64 {
    let necessary = MatrixLayout::of(ty, n_out, n_in).unwrap().bytes() as u64 / 32;
    let is_weights = |unique: u64| (necessary * 19 / 20..=necessary).contains(&unique);
    let weights = (counters.buffers.values())
        .find(|buffer| is_weights(buffer.unique_loaded_sectors))
        .expect("the weights are read");
    weights.loaded_sectors as f64 / weights.unique_loaded_sectors as f64
}

/// A gate and up of a type, with memory for their result.
pub(super) struct GateAndUp {
    n_rows: usize,
    n_out: usize,
    n_in: usize,
    matrices: [DevicePtr; 2],
    bias: DevicePtr,
    y: DevicePtr,
    output: Quantized,
    sums: Vec<[(f64, f64); 2]>,
}

impl GateAndUp {
    /// Uploads both. `exact` has the values of the quantized rows; a bias is added to the gate.
    pub(super) fn new(
        sim: &mut Sim,
        ty: TensorType,
        exact: &[f64],
        n_out: usize,
        n_in: usize,
        has_bias: bool,
    ) -> Self {
        let n_rows = exact.len() / n_in;
        let mut random = Random::new(9);
        let matrices = [0, 1].map(|_| random_matrix(&mut random, ty, n_out, n_in));
        let mut bias = random.values(n_out);
        if !has_bias {
            bias.fill(0.0);
        }
        let sums = (0..n_rows * n_out).map(|index| {
            let mut sums =
                [0, 1].map(|which: usize| dot(&matrices[which].1, exact, n_in, index % n_out, index / n_out));
            sums[0].0 += f64::from(bias[index % n_out]);
            sums
        });
        Self {
            n_rows,
            n_out,
            n_in,
            sums: sums.collect(),
            matrices: matrices.map(|(file_rows, _)| sim.matrix(ty, n_out, n_in, &file_rows)),
            bias: if has_bias { sim.f32s(&bias) } else { NULL },
            y: sim.room(n_rows * n_out * 4),
            output: sim.room_quantized(n_rows, n_out),
        }
    }

    /// Returns all arguments except the planes of x, with an activation by its code.
    pub(super) fn arguments(&self, activation: i32) -> Arguments {
        let arguments = (self.matrices.into_iter()).fold(Arguments::new(), Arguments::ptr);
        let arguments = arguments.i32(self.n_out as i32).ptr(self.bias).ptr(NULL);
        let arguments = arguments.i32(activation).ptr(self.y).ptr(self.output.bytes);
        (arguments.ptr(self.output.scales))
            .i32(self.n_in as i32)
            .i32(self.n_rows as i32)
    }

    /// Reads the results of a launch.
    pub(super) fn products(self, sim: &Sim) -> GatedProducts {
        GatedProducts {
            y: sim.read_f32s(self.y, self.n_rows * self.n_out),
            quantized: sim.dequantized(&self.output, self.n_rows, self.n_out),
            sums: self.sums,
        }
    }
}

/// Results of a gate and up, and the expected sums.
pub(super) struct GatedProducts {
    pub(super) y: Vec<f32>,
    /// Values of the quantized rows.
    pub(super) quantized: Vec<f64>,
    /// Sums of gate and of up, with their magnitudes.
    sums: Vec<[(f64, f64); 2]>,
}

impl GatedProducts {
    /// Compares results, and their quantized form, with a plain loop; `active` is the activation.
    #[track_caller]
    pub(super) fn check(&self, active: impl Fn(f64) -> f64, tolerance: f64, what: &str) {
        let expected: Vec<(f64, f64)> = (self.sums.iter())
            .map(|[(gate, gate_magnitude), (up, up_magnitude)]| {
                // No slope of SiLU is above 1.1.
                let magnitude = 1.1 * gate_magnitude * up.abs() + up_magnitude * gate.abs();
                (active(*gate) * up, magnitude)
            })
            .collect();
        assert_close(&self.y, &expected, tolerance, what);
        for (group, values) in self.y.chunks(32).enumerate() {
            let peak = values.iter().fold(0f32, |peak, x| peak.max(x.abs()));
            for (i, value) in values.iter().enumerate() {
                let error = (f64::from(*value) - self.quantized[group * 32 + i]).abs();
                assert!(error <= f64::from(peak) / 127.0 * 0.501, "{what} {group} {i}");
            }
        }
    }
}

pub(super) fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}
