//! Operations on streams against plain loops.

use tokenmill_ptx_sim::Arguments;
use tokenmill_testkit::Random;

use crate::kernels::bench::{Sim, assert_close};

/// Rows, other streams, width: one and ragged ones, the largest number of streams, and as many as the kernel for few
/// takes.
const SHAPES: [[usize; 3]; 5] = [[1, 1, 1], [3, 3, 300], [2, 4, 70], [2, 15, 257], [5, 2, 256]];
/// Sums of up to 16 products of values below 1.
const TOLERANCE: f64 = 1e-6;

struct Streams {
    sim: Sim,
    shape: [usize; 3],
    first: Vec<f32>,
    others: Vec<f32>,
    factors: Vec<f32>,
    random: Random,
}

impl Streams {
    fn new(shape: [usize; 3]) -> Self {
        let [n_rows, n, width] = shape;
        let mut random = Random::new((n * width) as u64);
        Self {
            sim: Sim::new(),
            first: random.values(n_rows * width),
            others: random.values(n_rows * n * width),
            factors: random.values(n_rows * (n + 1) * (n + 1)),
            shape,
            random,
        }
    }

    /// Grid of a thread for each value of the other streams.
    fn others_grid(&self) -> [usize; 3] {
        let [n_rows, n, width] = self.shape;
        [width.div_ceil(256), n_rows, n]
    }

    /// Runs a kernel that changes the other streams, given a row for each, and returns them.
    fn run_on_rows(&mut self, kernel: &str, grid: [usize; 3]) -> Vec<f32> {
        let others = self.sim.f32s(&self.others);
        let arguments = Arguments::new()
            .ptr(self.sim.f32s(&self.first))
            .i32(self.shape[2] as i32)
            .ptr(others);
        self.sim.launch("streams", kernel, grid, 256, 0, &arguments);
        self.sim.read_f32s(others, self.others.len())
    }
}

#[test]
fn rows_are_repeated_and_added_to_other_streams() {
    for shape in SHAPES {
        let [_, n, width] = shape;
        let mut streams = Streams::new(shape);
        let grid = streams.others_grid();
        let repeated = streams.run_on_rows("repeat_rows", grid);
        let expected: Vec<f32> = (streams.first.chunks(width))
            .flat_map(|row| row.repeat(n))
            .collect();
        assert_eq!(repeated, expected);
        let added = streams.run_on_rows("add_to_others", grid);
        let sums = expected
            .iter()
            .zip(&streams.others)
            .map(|(row, other)| row + other);
        assert_eq!(added, sums.collect::<Vec<_>>());
    }
}

#[test]
fn other_streams_get_the_magnitude_of_the_first() {
    for shape in SHAPES {
        let [n_rows, n, width] = shape;
        let mut streams = Streams::new(shape);
        // A stream of zeros stays zero.
        streams.others[..width].fill(0.0);
        let found = streams.run_on_rows("match_magnitudes", [n_rows, n, 1]);
        let mean_square = |row: &[f32]| {
            let squares: f64 = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
            squares / width as f64
        };
        let expected: Vec<(f64, f64)> = (streams.others.chunks(width).enumerate())
            .flat_map(|(i, other)| {
                let target = mean_square(&streams.first[i / n * width..][..width]);
                let factor = (target / mean_square(other).max(1e-5)).sqrt();
                other.iter().map(move |&x| (f64::from(x) * factor, 1.0 + factor))
            })
            .collect();
        assert_close(&found, &expected, TOLERANCE, "magnitudes");
    }
}

#[test]
fn streams_are_predicted_from_what_they_were() {
    for shape in SHAPES {
        let [n_rows, n, width] = shape;
        let mut streams = Streams::new(shape);
        let kernels = if n < 4 {
            &["predict_streams_n4", "predict_streams_n16"][..]
        } else {
            &["predict_streams_n16"]
        };
        for kernel in kernels {
            let first = streams.sim.f32s(&streams.first);
            let others = streams.sim.f32s(&streams.others);
            let arguments = Arguments::new()
                .ptr(streams.sim.f32s(&streams.factors))
                .i32(n as i32)
                .i32(width as i32)
                .ptr(first)
                .ptr(others);
            let grid = [width.div_ceil(256), n_rows, 1];
            streams.sim.launch("streams", kernel, grid, 256, 0, &arguments);
            let old = |row: usize, stream: usize, i: usize| match stream {
                0 => streams.first[row * width + i],
                _ => streams.others[(row * n + stream - 1) * width + i],
            };
            let value = |row: usize, stream: usize, i: usize| {
                let factors = &streams.factors[(row * (n + 1) + stream) * (n + 1)..][..=n];
                let terms = (0..=n).map(|j| f64::from(factors[j]) * f64::from(old(row, j, i)));
                (
                    terms.sum::<f64>() + f64::from(old(row, stream, i)),
                    2.0 + n as f64,
                )
            };
            let expected: Vec<_> = (0..n_rows * width)
                .map(|at| value(at / width, 0, at % width))
                .collect();
            let found = streams.sim.read_f32s(first, n_rows * width);
            assert_close(&found, &expected, TOLERANCE, kernel);
            let expected: Vec<_> = (0..n_rows * n * width)
                .map(|at| value(at / width / n, 1 + at / width % n, at % width))
                .collect();
            let found = streams.sim.read_f32s(others, n_rows * n * width);
            assert_close(&found, &expected, TOLERANCE, kernel);
        }
    }
}

#[test]
fn streams_are_corrected_by_the_error_of_the_first() {
    for shape in SHAPES {
        let [n_rows, n, width] = shape;
        let mut streams = Streams::new(shape);
        let predicted = streams.random.values(n_rows * width);
        let factors = streams.factors[..n_rows * (n + 1)].to_vec();
        let first = streams.sim.f32s(&streams.first);
        let others = streams.sim.f32s(&streams.others);
        let arguments = Arguments::new()
            .ptr(streams.sim.f32s(&factors))
            .ptr(streams.sim.f32s(&predicted))
            .i32(n as i32)
            .i32(width as i32)
            .ptr(first)
            .ptr(others);
        let grid = [width.div_ceil(256), n_rows, 1];
        streams
            .sim
            .launch("streams", "correct_streams", grid, 256, 0, &arguments);
        let corrected = |row: usize, stream: usize, i: usize, old: f32| {
            let at = row * width + i;
            let error = f64::from(streams.first[at]) - f64::from(predicted[at]);
            let factor = 1.0 + f64::from(factors[row * (n + 1) + stream]);
            (f64::from(old) + factor * error, 5.0)
        };
        let expected: Vec<_> = (0..n_rows * width)
            .map(|at| corrected(at / width, 0, at % width, predicted[at]))
            .collect();
        let found = streams.sim.read_f32s(first, n_rows * width);
        assert_close(&found, &expected, TOLERANCE, "the first stream");
        let expected: Vec<_> = (0..n_rows * n * width)
            .map(|at| corrected(at / width / n, 1 + at / width % n, at % width, streams.others[at]))
            .collect();
        let found = streams.sim.read_f32s(others, n_rows * n * width);
        assert_close(&found, &expected, TOLERANCE, "the other streams");
    }
}

#[test]
fn all_rows_are_multiplied_by_one() {
    for [n_rows, _, width] in SHAPES {
        let mut streams = Streams::new([n_rows, 1, width]);
        let row = streams.random.values(width);
        let rows = streams.sim.f32s(&streams.first);
        let arguments = Arguments::new()
            .ptr(rows)
            .ptr(streams.sim.f32s(&row))
            .i32(width as i32);
        let grid = [width.div_ceil(256), n_rows, 1];
        streams
            .sim
            .launch("streams", "multiply_by_row", grid, 256, 0, &arguments);
        let expected = (streams.first.iter().enumerate()).map(|(at, x)| x * row[at % width]);
        let found = streams.sim.read_f32s(rows, n_rows * width);
        assert_eq!(found, expected.collect::<Vec<_>>());
    }
}
