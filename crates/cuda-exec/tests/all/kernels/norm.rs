//! Norms, quantization and the small operations on rows.

use tokenmill_ptx_sim::Arguments;
use tokenmill_testkit::Random;

use crate::kernels::bench::{NULL, Sim, assert_close};

fn normalize(row: &[f64], is_layer: bool, eps: f64) -> Vec<f64> {
    let n = row.len() as f64;
    let mean = if is_layer {
        row.iter().sum::<f64>() / n
    } else {
        0.0
    };
    let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n;
    row.iter().map(|x| (x - mean) / (variance + eps).sqrt()).collect()
}

/// Allows for the rounding of a mean of squares and a square root in f32.
const TOLERANCE: f64 = 3e-6;

#[test]
fn norms_add_the_residual_and_quantize() {
    for (n_rows, width, is_layer, adds, quantizes) in [
        (1, 1, false, false, false),
        (3, 100, false, true, false),
        (2, 2048, false, true, true),
        (2, 257, true, false, false),
        (4, 320, true, true, true),
        (1, 64, false, false, true),
        (2, 96, true, false, true),
        (1, 4096, false, true, true),
        (2, 4128, true, true, true),
        (1, 8192, false, true, true),
    ] {
        for (kernel, n_threads) in kernels(width) {
            let mut random = Random::new(width as u64);
            let mut sim = Sim::new();
            let hidden = random.values(n_rows * width);
            let delta = random.values(n_rows * width);
            let (weight, bias) = (random.values(width), random.values(width));
            let device_hidden = sim.f32s(&hidden);
            let device_delta = if adds { sim.f32s(&delta) } else { NULL };
            let (device_weight, device_bias) = (sim.f32s(&weight), sim.f32s(&bias));
            let y = sim.room(n_rows * width * 4);
            let quantized = sim.room_quantized(n_rows, width);
            let arguments = Arguments::new()
                .ptr(device_hidden)
                .ptr(device_delta)
                .f32(0.5)
                .ptr(device_weight)
                .ptr(device_bias)
                .i32(i32::from(is_layer))
                .f32(1e-5)
                .i32(width as i32)
                .ptr(y)
                .ptr(if quantizes { quantized.bytes } else { NULL })
                .ptr(if quantizes { quantized.scales } else { NULL });
            sim.launch("norm", kernel, [n_rows, 1, 1], n_threads, 0, &arguments);
            let found = sim.read_f32s(y, n_rows * width);
            let sums: Vec<f64> = (hidden.iter().zip(&delta))
                .map(|(x, d)| {
                    if adds {
                        f64::from(x + 0.5 * d)
                    } else {
                        f64::from(*x)
                    }
                })
                .collect();
            let expected: Vec<(f64, f64)> = sums
                .chunks(width)
                .flat_map(|row| normalize(row, is_layer, 1e-5))
                .enumerate()
                .map(|(i, x)| {
                    let value = x * f64::from(weight[i % width]) + f64::from(bias[i % width]);
                    (value, x.abs() + 1.0)
                })
                .collect();
            assert_close(&found, &expected, TOLERANCE, &format!("{kernel} of {width}"));
            let kept = sim.read_f32s(device_hidden, n_rows * width);
            assert!(
                kept.iter()
                    .zip(&sums)
                    .all(|(x, s)| (f64::from(*x) - s).abs() < 1e-6)
            );
            if quantizes {
                let rounded = sim.dequantized(&quantized, n_rows, width);
                for (group, rounded) in found.chunks(32).zip(rounded.chunks(32)) {
                    let peak = group.iter().fold(0f32, |peak, x| peak.max(x.abs()));
                    for (x, r) in group.iter().zip(rounded) {
                        assert!((f64::from(*x) - r).abs() <= f64::from(peak) / 254.0 * 1.0001);
                    }
                }
            }
        }
    }
}

/// Returns the kernels that take rows of a width, with their threads.
fn kernels(width: usize) -> Vec<(&'static str, usize)> {
    let mut kernels = vec![("add_norm", 256)];
    if width.is_multiple_of(32) {
        kernels.push(("add_norm_held_wide", 512));
        if width <= 4096 {
            kernels.push(("add_norm_held", 512));
        }
    }
    kernels
}

#[test]
fn norms_of_heads_take_each_by_itself() {
    // Heads of one weight, or of several in turn; a warp or a thread block for each.
    for (n_rows, n_heads, width, n_weights, is_wide) in [
        (1, 1, 8, 1, false),
        (3, 5, 64, 1, false),
        (2, 9, 100, 3, false),
        (2, 5, 508, 2, false),
        (1, 6, 70, 1, false),
        (1, 2, 5376, 1, true),
        (1, 1, 640, 1, true),
        (2, 4, 300, 2, true),
        (2, 2, 33, 1, true),
    ] {
        let mut random = Random::new(width as u64);
        let mut sim = Sim::new();
        let rows = random.values(n_rows * n_heads * width);
        let weight = random.values(n_weights * width);
        let (device, device_weight) = (sim.f32s(&rows), sim.f32s(&weight));
        let arguments = Arguments::new()
            .ptr(device)
            .i32((n_heads * width) as i32)
            .ptr(device_weight)
            .i32(n_weights as i32)
            .ptr(NULL)
            .i32(0)
            .f32(1e-6)
            .i32(width as i32);
        if is_wide {
            let grid = [n_heads, n_rows, 1];
            sim.launch("norm", "norm_wide_heads", grid, 256, 0, &arguments);
        } else {
            let grid = [n_heads.div_ceil(4), n_rows, 1];
            sim.launch("norm", "norm_heads", grid, 128, 0, &arguments);
        }
        let expected: Vec<(f64, f64)> = rows
            .chunks(width)
            .flat_map(|head| {
                let head: Vec<f64> = head.iter().map(|&x| f64::from(x)).collect();
                normalize(&head, false, 1e-6)
            })
            .enumerate()
            .map(|(i, x)| {
                let of_row = i % (n_heads * width);
                (x * f64::from(weight[of_row % (n_weights * width)]), x.abs())
            })
            .collect();
        assert_close(&sim.read_f32s(device, rows.len()), &expected, TOLERANCE, "heads");
    }
}

#[test]
fn zeros_quantize_to_zeros() {
    let mut sim = Sim::new();
    let quantized = sim.quantized(&[0.0; 64], 64);
    assert!(sim.dequantized(&quantized, 1, 64).iter().all(|&x| x == 0.0));
}

/// Runs an operation of `elementwise` on rows of 300 values.
fn elementwise(kernel: &str, rows: &[f32], arguments: impl Fn(&mut Sim, Arguments) -> Arguments) -> Vec<f32> {
    let mut sim = Sim::new();
    let device = sim.f32s(rows);
    let arguments = arguments(&mut sim, Arguments::new().ptr(device));
    sim.launch(
        "elementwise",
        kernel,
        [2, rows.len() / 300, 1],
        256,
        0,
        &arguments,
    );
    sim.read_f32s(device, rows.len())
}

/// Code of the activation that clips both factors.
const CLIPPED_SWIGLU: usize = 7;

#[test]
fn activations_match_their_formulas() {
    let erf = |x: f64| {
        // The series of erf, enough terms for |x| < 3.
        let mut term = x;
        let mut sum = x;
        for n in 1..60 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    };
    // The codes of the kernels, in order.
    let functions: [&dyn Fn(f64) -> f64; 8] = [
        &|x| x / (1.0 + (-x).exp()),
        &|x| 0.5 * x * (1.0 + erf(x / 2f64.sqrt())),
        &|x| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x)).tanh()),
        &|x| x.max(0.0),
        &|x| x.max(0.0) * x.max(0.0),
        &|x| 1.0 / (1.0 + (-x).exp()),
        &|x| x,
        &|x| x.min(7.0) / (1.0 + (-1.702 * x.min(7.0)).exp()),
    ];
    let mut random = Random::new(3);
    for (kind, function) in functions.iter().enumerate() {
        // Wide enough that the clipped one clips both factors.
        let spread = if kind == CLIPPED_SWIGLU { 12.0 } else { 4.0 };
        let [rows, mut up] = [0, 1].map(|_| random.values(600));
        let rows: Vec<f32> = rows.iter().map(|x| spread * x).collect();
        for up in &mut up {
            *up *= spread;
        }
        let factor = |up: f32| {
            if kind == CLIPPED_SWIGLU {
                f64::from(up.clamp(-7.0, 7.0)) + 1.0
            } else {
                f64::from(up)
            }
        };
        let found = elementwise("activation", &rows, |sim, arguments| {
            let up = sim.f32s(&up);
            arguments.ptr(up).i32(kind as i32).i32(300).ptr(NULL).ptr(NULL)
        });
        let expected: Vec<(f64, f64)> = (rows.iter().zip(&up))
            .map(|(&x, &u)| {
                (
                    function(x.into()) * factor(u),
                    (f64::from(x.abs()) + 0.1) * (factor(u).abs() + 1.0),
                )
            })
            .collect();
        assert_close(&found, &expected, 1e-6, &format!("activation {kind}"));
    }
}

#[test]
fn additions_gathers_and_capped_logits() {
    let mut random = Random::new(4);
    let (rows, delta) = (random.values(600), random.values(600));
    let sums = elementwise("add", &rows, |sim, arguments| {
        let delta = sim.f32s(&delta);
        arguments.ptr(delta).f32(0.25).i32(300)
    });
    assert!((0..600).all(|i| sums[i] == 0.25f32.mul_add(delta[i], rows[i])));
    let capped = elementwise("scale_logits", &rows, |_, arguments| {
        arguments.f32(3.0).f32(2.0).i32(300)
    });
    let expected: Vec<(f64, f64)> = (rows.iter())
        .map(|&x| (2.0 * (f64::from(3.0 * x) / 2.0).tanh(), 1.0))
        .collect();
    assert_close(&capped, &expected, 1e-6, "cap");
    let plain = elementwise("scale_logits", &rows, |_, arguments| {
        arguments.f32(3.0).f32(0.0).i32(300)
    });
    assert!((0..600).all(|i| plain[i] == 3.0 * rows[i]));

    let mut sim = Sim::new();
    let (x, picks, y) = (sim.f32s(&rows), sim.u32s(&[1, 0, 1]), sim.room(900 * 4));
    let arguments = Arguments::new().ptr(x).ptr(picks).i32(300).ptr(y);
    sim.launch("elementwise", "gather", [2, 3, 1], 256, 0, &arguments);
    let found = sim.read_f32s(y, 900);
    assert_eq!(found, [&rows[300..], &rows[..300], &rows[300..]].concat());
}
