//! Columns, joined rows, xIELU and rows cut by their spread against plain loops.

use tokenmill_backend::Xielu;
use tokenmill_ptx_sim::Arguments;
use tokenmill_testkit::Random;

use crate::kernels::bench::{NULL, Sim, assert_close};

#[test]
fn columns_are_copied_and_rows_joined() {
    for [n_rows, first, width, behind] in [[1, 0, 1, 0], [3, 5, 300, 2], [2, 256, 256, 0]] {
        let row_width = first + width + behind;
        let mut random = Random::new(row_width as u64);
        let mut sim = Sim::new();
        let x = random.values(n_rows * row_width);
        let y = sim.room(4 * n_rows * width);
        let arguments = Arguments::new()
            .ptr(sim.f32s(&x))
            .i32(row_width as i32)
            .i32(first as i32)
            .i32(width as i32)
            .ptr(y);
        let grid = [width.div_ceil(256), n_rows, 1];
        sim.launch("layers", "take_columns", grid, 256, 0, &arguments);
        let taken: Vec<f32> = (x.chunks(row_width))
            .flat_map(|row| row[first..first + width].to_vec())
            .collect();
        assert_eq!(sim.read_f32s(y, n_rows * width), taken);

        let other_width = behind + 1;
        let other = random.values(n_rows * other_width);
        let joined = sim.room(4 * n_rows * (width + other_width));
        let arguments = Arguments::new()
            .ptr(y)
            .ptr(sim.f32s(&other))
            .i32(width as i32)
            .i32((width + other_width) as i32)
            .ptr(joined);
        let grid = [(width + other_width).div_ceil(256), n_rows, 1];
        sim.launch("layers", "join", grid, 256, 0, &arguments);
        let expected: Vec<f32> = (taken.chunks(width).zip(other.chunks(other_width)))
            .flat_map(|(left, right)| [left, right].concat())
            .collect();
        assert_eq!(sim.read_f32s(joined, n_rows * (width + other_width)), expected);
    }
}

#[test]
fn rows_are_joined_of_the_parts_of_ranks() {
    for [n_rows, part_width, width] in [[1, 300, 900], [3, 100, 299], [2, 512, 513], [4, 7, 7]] {
        let mut sim = Sim::new();
        let rows = Random::new(width as u64).values(n_rows * width);
        let mut parts = Vec::new();
        for part in 0..width.div_ceil(part_width) {
            let first = (part * part_width).min(width - part_width);
            (rows.chunks(width)).for_each(|row| parts.extend_from_slice(&row[first..first + part_width]));
        }
        let y = sim.room(4 * n_rows * width);
        let arguments = Arguments::new()
            .ptr(sim.f32s(&parts))
            .i32(n_rows as i32)
            .i32(part_width as i32)
            .i32(width as i32)
            .ptr(y);
        let grid = [width.div_ceil(256), n_rows, 1];
        sim.launch("layers", "join_parts", grid, 256, 0, &arguments);
        assert_eq!(sim.read_f32s(y, n_rows * width), rows);
    }
}

#[test]
fn xielu_is_its_formula_on_either_side_of_its_bound() {
    for eps in [-1e-6, -0.25] {
        let xielu = Xielu::from_trained(0.4, -0.9, 0.5, eps);
        let (n_rows, width) = (2, 320);
        let mut random = Random::new(9);
        let mut sim = Sim::new();
        let mut x: Vec<f32> = (random.values(n_rows * width).iter()).map(|x| x * 8.0).collect();
        x[..4].copy_from_slice(&[0.0, -1e-7, 1e-7, -100.0]);
        x[width] = f32::NAN;
        let rows = sim.f32s(&x);
        let quantized = sim.room_quantized(n_rows, width);
        let mut arguments = Arguments::new().ptr(rows);
        for number in [xielu.alpha_p, xielu.alpha_n, xielu.beta, xielu.eps] {
            arguments = arguments.f32(number);
        }
        let quantizes = eps == -0.25;
        let arguments = (arguments.i32(width as i32))
            .ptr(if quantizes { quantized.bytes } else { NULL })
            .ptr(if quantizes { quantized.scales } else { NULL });
        let grid = [width.div_ceil(256), n_rows, 1];
        sim.launch("layers", "xielu", grid, 256, 0, &arguments);
        let mut found = sim.read_f32s(rows, n_rows * width);
        assert!(found[width].is_nan());
        (found[width], x[width]) = (0.0, 0.0);
        let expected: Vec<(f64, f64)> = (x.iter())
            .map(|&x| {
                let value = f64::from(xielu.apply(x));
                (value, 1.0 + value.abs())
            })
            .collect();
        let expected: Vec<(f64, f64)> = (expected.into_iter().enumerate())
            .map(|(at, value)| if at == width { (0.0, 1.0) } else { value })
            .collect();
        assert_close(&found, &expected, 2e-7, "xIELU");
        if quantizes {
            let rounded = sim.dequantized(&quantized, 1, width);
            for (x, rounded) in found.iter().zip(rounded) {
                // Half a step of a group whose peak is below 100.
                assert!((f64::from(*x) - rounded).abs() < 0.5);
            }
        }
    }
}

#[test]
fn rows_keep_what_lies_above_their_spread() {
    for [n_rows, width] in [[1, 1], [3, 5], [2, 700]] {
        for cutoff in [1.6449, 0.0] {
            let mut random = Random::new(width as u64);
            let mut sim = Sim::new();
            let x = random.values(n_rows * width);
            let rows = sim.f32s(&x);
            let arguments = Arguments::new().ptr(rows).f32(cutoff).i32(width as i32);
            sim.launch("layers", "cut_below", [n_rows, 1, 1], 256, 0, &arguments);
            let expected: Vec<(f64, f64)> = (x.chunks(width))
                .flat_map(|row| {
                    let mean = |f: &dyn Fn(f64) -> f64| {
                        row.iter().map(|&x| f(f64::from(x))).sum::<f64>() / width as f64
                    };
                    let center = mean(&|x| x);
                    let least = center + f64::from(cutoff) * mean(&|x| (x - center).powi(2)).sqrt();
                    row.iter().map(move |&x| ((f64::from(x) - least).max(0.0), 2.0))
                })
                .collect();
            assert_close(&sim.read_f32s(rows, x.len()), &expected, 1e-6, "cut rows");
        }
    }
}
