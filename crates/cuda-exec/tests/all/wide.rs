//! Products of quantized matrices by matrix operations of warpgroups, as [`Ops`] launches them on a simulated GPU of compute capability 9.0.

use tokenmill_backend::Activation;
use tokenmill_cuda_exec::{
    BandHeight, Buffer, Capture, Device, GatedProduct, LinearInput, ManyRows, Matrix, MatrixUse, Ops,
    Product, ProductRoom, QuantizedRows, Uploader, Wide, WideProducts, modules::WIDE,
};
use tokenmill_gguf::TensorType;
use tokenmill_quant::Format;
use tokenmill_sim_driver::{SimOptions, Simulator};
use tokenmill_testkit::Random;

/// K-quants, which have bands in f16 too, and types that otherwise have bands in int8 or tiles.
const K_TYPES: [TensorType; 3] = [TensorType::Q4_K, TensorType::Q5_K, TensorType::Q6_K];
const TYPES: [TensorType; 5] = [
    TensorType::Q4_K,
    TensorType::Q5_K,
    TensorType::Q6_K,
    TensorType::Q8_0,
    TensorType::Q4_1,
];
const N_IN: usize = 1280;

fn upload(device: &Device, ty: TensorType, [n_out, n_in]: [usize; 2], values: &[f32]) -> Matrix {
    let mut uploader = Uploader::new(device);
    let usage = MatrixUse {
        is_table: false,
        is_factor: true,
        is_of_experts: false,
    };
    let format = Format::of(ty).unwrap();
    let row_bytes = format.row_bytes(n_in).unwrap();
    let mut rows = vec![0; n_out * row_bytes];
    for (row, values) in rows.chunks_exact_mut(row_bytes).zip(values.chunks_exact(n_in)) {
        format.quantize_row(values, row).unwrap();
    }
    let matrix = uploader.upload(ty, [n_out, n_in], &rows, usage).unwrap();
    uploader.finish().unwrap();
    matrix
}

fn matrix(device: &Device, random: &mut Random, ty: TensorType, n_out: usize) -> Matrix {
    upload(device, ty, [n_out, N_IN], &random.values(n_out * N_IN))
}

/// Makes a GPU with memory for many rows.
fn opened(device: &Device) -> Ops {
    let mut ops = Ops::load(device).unwrap();
    ops.allow_splits().unwrap();
    ops.allow_halves(300, N_IN).unwrap();
    ops
}

fn hopper() -> Device {
    Simulator::new(&SimOptions::default()).device()
}

/// Rows in both forms.
struct Rows {
    n: usize,
    floats: Buffer<f32>,
    quantized: QuantizedRows,
}

impl Rows {
    fn new(device: &Device, ops: &Ops, values: &[f32]) -> Self {
        let n_rows = values.len() / N_IN;
        let floats = device.upload("x", values).unwrap();
        let mut quantized = QuantizedRows::new(device, n_rows, N_IN).unwrap();
        ops.quantize(n_rows, N_IN, floats.view(), quantized.view_mut())
            .unwrap();
        Self {
            n: n_rows,
            floats,
            quantized,
        }
    }

    fn input(&self) -> LinearInput<'_> {
        LinearInput {
            n_rows: self.n,
            floats: self.floats.view(),
            quantized: Some(self.quantized.view()),
        }
    }
}

/// Multiplies rows by matrices at once, the first of which has a bias; returns the launches too.
fn multiply(
    device: &Device,
    ops: &Ops,
    rows: &Rows,
    matrices: &[Matrix],
    bias: &Buffer<f32>,
) -> (Vec<Vec<f32>>, u64) {
    let mut outputs: Vec<Buffer<f32>> = (matrices.iter())
        .map(|matrix| device.alloc("y", rows.n * matrix.n_out()).unwrap())
        .collect();
    let mut products: Vec<Product<'_>> = (outputs.iter_mut().zip(matrices))
        .map(|(output, matrix)| Product {
            matrix,
            bias: (matrix.n_out() == bias.len()).then(|| bias.view()),
            output: output.view_mut(),
        })
        .collect();
    let before = device.n_launches();
    ops.linear(&rows.input(), &mut products).unwrap();
    let n_launches = device.n_launches() - before;
    let download = |output: &Buffer<f32>| device.download(output.view()).unwrap();
    (outputs.iter().map(download).collect(), n_launches)
}

/// Returns the largest difference relative to the largest magnitude.
fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let peak = expected.iter().fold(0f32, |peak, y| peak.max(y.abs()));
    let worst = (found.iter().zip(expected)).fold(0f32, |worst, (a, b)| worst.max((a - b).abs()));
    worst / peak
}

/// Largest error from rounding weights and x to 11 bits, in sums of [`N_IN`] products.
const ROUNDING: f32 = 2e-3;

#[test]
fn products_of_each_type_are_those_of_the_one_order_of_addition() {
    let device = hopper();
    let mut ops = opened(&device);
    let mut random = Random::new(11);
    let bias = device.upload("bias", &random.values(130)).unwrap();
    for ty in TYPES {
        // Matrices with both lengths of a band, and with one row.
        let matrices: Vec<Matrix> = [130, 64, 1]
            .map(|n_out| matrix(&device, &mut random, ty, n_out))
            .into();
        assert!(matrices.iter().all(Matrix::is_wide), "{ty:?}");
        let n_rows: &[usize] = match ty {
            TensorType::Q4_K => &[17, 49, 257],
            TensorType::Q8_0 => &[9, 130],
            _ => &[65],
        };
        for &n_rows in n_rows {
            let rows = Rows::new(&device, &ops, &random.values(n_rows * N_IN));
            let (found, n_launches) = multiply(&device, &ops, &rows, &matrices, &bias);
            assert_eq!(n_launches, 2, "tiles and products");
            let (again, _) = multiply(&device, &ops, &rows, &matrices, &bias);
            assert!(found == again, "{ty:?}: parts and counters are used again");
            ops.set_batch_invariance(true);
            let (expected, n_launches) = multiply(&device, &ops, &rows, &matrices, &bias);
            ops.set_batch_invariance(false);
            assert_eq!(n_launches, 1);
            for (found, expected) in found.iter().zip(&expected) {
                let worst = difference(found, expected);
                assert!(worst < ROUNDING, "{ty:?} by {n_rows}: {worst}");
            }
        }
    }
}

#[test]
fn a_gate_and_what_it_gates_are_one_product() {
    let device = hopper();
    let ops = opened(&device);
    let mut random = Random::new(12);
    let n_out = 96;
    let biases = [(); 2].map(|()| device.upload("bias", &random.values(n_out)).unwrap());
    let cases = [(false, 70), (true, 20), (false, 9), (true, 70), (false, 20)];
    for (ty, (has_bias, n_rows)) in TYPES.into_iter().zip(cases) {
        let pair = [(); 2].map(|()| matrix(&device, &mut random, ty, n_out));
        let rows = Rows::new(&device, &ops, &random.values(n_rows * N_IN));
        let bias = |index: usize| has_bias.then(|| biases[index].view());
        let mut output: Buffer<f32> = device.alloc("y", n_rows * n_out).unwrap();
        let mut quantized = QuantizedRows::new(&device, n_rows, n_out).unwrap();
        let product = GatedProduct {
            matrices: [&pair[0], &pair[1]],
            biases: [bias(0), bias(1)],
            activation: Activation::Silu,
            output: output.view_mut(),
            quantized: Some(quantized.view_mut()),
        };
        let before = device.n_launches();
        ops.matvec_gated(&rows.input(), product).unwrap();
        assert_eq!(device.n_launches() - before, 2);
        let found = device.download(output.view()).unwrap();
        let apart: Vec<Vec<f32>> = (0..2)
            .map(|index| {
                let mut output: Buffer<f32> = device.alloc("y", n_rows * n_out).unwrap();
                let product = Product {
                    matrix: &pair[index],
                    bias: bias(index),
                    output: output.view_mut(),
                };
                ops.linear(&rows.input(), &mut [product]).unwrap();
                device.download(output.view()).unwrap()
            })
            .collect();
        let expected: Vec<f32> = (apart[0].iter().zip(&apart[1]))
            .map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up)
            .collect();
        let worst = difference(&found, &expected);
        // In separate products, 9 rows are multiplied in int8.
        let bound = if n_rows > 16 { 1e-4 } else { ROUNDING };
        assert!(worst < bound, "{ty:?}: {worst}");
    }
}

/// Returns whether a matrix of `n_out` rows is multiplied by wide products.
fn is_wide(ty: TensorType, n_out: usize, n_rows: usize, room: ProductRoom) -> bool {
    matches!(ManyRows::of(ty, &[n_out], 4096, n_rows, room), ManyRows::Wide(_))
}

#[test]
fn rows_beyond_f16_are_multiplied_as_others_are() {
    // Narrow products by up to 16 rows are strips.
    const N_ROWS: usize = 60;
    let device = hopper();
    let ops = opened(&device);
    let mut random = Random::new(13);
    let bias = device.upload("bias", &[0.0; 1]).unwrap();
    let matrices = [matrix(&device, &mut random, TensorType::Q4_K, 40)];
    let values = random.values(N_ROWS * N_IN);
    assert!(is_wide(TensorType::Q4_K, 40, N_ROWS, ProductRoom::ALL));
    let product = |values: &[f32]| {
        let rows = Rows::new(&device, &ops, values);
        multiply(&device, &ops, &rows, &matrices, &bias).0.remove(0)
    };
    let plain = product(&values);
    // A row each of numbers around 2^40 and 2^-60, and one of zeros.
    let powers = |row: usize| match row % 4 {
        0 => 40,
        1 => -60,
        _ => 0,
    };
    let mut scaled = values.clone();
    for (row, values) in scaled.chunks_exact_mut(N_IN).enumerate() {
        let factor = if row % 4 == 3 { 0.0 } else { 2f32.powi(powers(row)) };
        for x in values {
            *x *= factor;
        }
    }
    let found = product(&scaled);
    for (row, (found, plain)) in found.chunks_exact(40).zip(plain.chunks_exact(40)).enumerate() {
        let factor = if row % 4 == 3 { 0.0 } else { 2f32.powi(powers(row)) };
        let expected: Vec<f32> = plain.iter().map(|y| y * factor).collect();
        assert!(
            found == expected,
            "row {row}: {:?} for {:?}",
            &found[..4],
            &expected[..4]
        );
    }
}

#[test]
fn a_matrix_whose_scales_are_beyond_f16_is_multiplied_by_bands() {
    let device = hopper();
    let mut ops = opened(&device);
    let mut random = Random::new(14);
    let bias = device.upload("bias", &[0.0; 1]).unwrap();
    let n_out = 130;
    let mut values = random.values(n_out * N_IN);
    // Weights of thousands in one row.
    values[7 * N_IN..8 * N_IN].iter_mut().for_each(|w| *w *= 5e3);
    let large = upload(&device, TensorType::Q4_K, [n_out, N_IN], &values);
    let small = matrix(&device, &mut random, TensorType::Q6_K, 64);
    assert!(!large.is_wide() && small.is_wide());
    let rows = Rows::new(&device, &ops, &random.values(60 * N_IN));
    let matrices = [large, small];
    let (found, _) = multiply(&device, &ops, &rows, &matrices, &bias);
    ops.set_batch_invariance(true);
    let (expected, _) = multiply(&device, &ops, &rows, &matrices, &bias);
    for (found, expected) in found.iter().zip(&expected) {
        assert!(found.iter().all(|y| y.is_finite()));
        assert!(difference(found, expected) < ROUNDING);
    }
}

#[test]
fn rows_of_other_widths_and_too_large_scales_are_multiplied_otherwise() {
    let device = hopper();
    let ops = opened(&device);
    let mut random = Random::new(18);
    for (n_in, factor, expected) in [(256, 1.0, true), (288, 1.0, false), (256, 1e3, false)] {
        let values: Vec<f32> = (random.values(2 * n_in).iter()).map(|w| w * factor).collect();
        let matrix = upload(&device, TensorType::Q8_0, [2, n_in], &values);
        assert_eq!(matrix.is_wide(), expected, "{n_in} {factor}");
        let rows = random.values(9 * n_in);
        let floats = device.upload("x", &rows).unwrap();
        let mut quantized = QuantizedRows::new(&device, 9, n_in).unwrap();
        ops.quantize(9, n_in, floats.view(), quantized.view_mut())
            .unwrap();
        let input = LinearInput {
            n_rows: 9,
            floats: floats.view(),
            quantized: Some(quantized.view()),
        };
        // A matrix with scales too large for wide products has bands, whose rows have whole superblocks too.
        assert_eq!(ops.can_gate(&matrix, &matrix, 9), n_in == 256);
        let mut output: Buffer<f32> = device.alloc("y", 9 * 2).unwrap();
        let product = Product {
            matrix: &matrix,
            bias: None,
            output: output.view_mut(),
        };
        ops.linear(&input, &mut [product]).unwrap();
        let found = device.download(output.view()).unwrap();
        let right: Vec<f32> = (0..18)
            .map(|index| {
                let (m, r) = (index / 2, index % 2);
                let (x, w) = (&rows[m * n_in..][..n_in], &values[r * n_in..][..n_in]);
                x.iter().zip(w).map(|(x, w)| x * w).sum()
            })
            .collect();
        assert!(difference(&found, &right) < 0.02, "{n_in} {factor}");
    }
}

#[test]
fn a_recorded_product_is_replayed_with_new_rows() {
    const N_ROWS: usize = 60;
    let device = hopper();
    let ops = opened(&device);
    let mut random = Random::new(15);
    let matrix = matrix(&device, &mut random, TensorType::Q5_K, 200);
    assert!(is_wide(TensorType::Q5_K, 200, N_ROWS, ProductRoom::ALL));
    let values = [(); 2].map(|()| random.values(N_ROWS * N_IN));
    let mut rows = Rows::new(&device, &ops, &values[0]);
    let mut output: Buffer<f32> = device.alloc("y", N_ROWS * 200).unwrap();
    let capture = Capture::begin(&device).unwrap();
    ops.quantize(N_ROWS, N_IN, rows.floats.view(), rows.quantized.view_mut())
        .unwrap();
    let multiply = |input: &LinearInput<'_>, output: &mut Buffer<f32>| {
        let product = Product {
            matrix: &matrix,
            bias: None,
            output: output.view_mut(),
        };
        ops.linear(input, &mut [product]).unwrap();
    };
    multiply(&rows.input(), &mut output);
    let mut graph = capture.finish().unwrap();
    for values in &values {
        device.upload_to(values, &rows.floats.view_mut()).unwrap();
        graph.replay().unwrap();
        let found = device.download(output.view()).unwrap();
        let fresh = Rows::new(&device, &ops, values);
        let mut direct: Buffer<f32> = device.alloc("y", N_ROWS * 200).unwrap();
        multiply(&fresh.input(), &mut direct);
        assert!(found == device.download(direct.view()).unwrap());
    }
}

#[test]
fn other_gpus_and_those_that_are_told_so_multiply_by_bands() {
    let mut random = Random::new(16);
    let simulated = |capability| {
        Simulator::new(&SimOptions {
            capability,
            ..SimOptions::default()
        })
    };
    let devices = [
        (simulated((8, 0)).device(), false),
        (simulated((10, 0)).device(), false),
        (simulated((9, 0)).device_with_wide(WideProducts::Never), false),
        (simulated((9, 0)).device(), true),
    ];
    let values = random.values(60 * N_IN);
    let bias = [0.0; 1];
    let outputs = devices.map(|(device, expected)| {
        let ops = opened(&device);
        let mut random = Random::new(17);
        let matrices = [matrix(&device, &mut random, TensorType::Q4_K, 40)];
        assert_eq!(matrices[0].is_wide(), expected);
        assert_eq!(ops.room_for(60, N_IN).has_tiles, expected);
        let loaded = ["matmul_wide_q4_k", "wide_rows"].map(|module| device.module_log(module).is_some());
        assert_eq!(loaded, [expected; 2]);
        let rows = Rows::new(&device, &ops, &values);
        let bias = device.upload("bias", &bias).unwrap();
        multiply(&device, &ops, &rows, &matrices, &bias).0.remove(0)
    });
    let [ampere, blackwell, never, hopper] = outputs;
    assert!(ampere == blackwell && ampere == never);
    assert!(ampere != hopper && difference(&hopper, &ampere) < ROUNDING);
}

#[test]
fn products_are_wide_from_9_rows_on_where_there_is_memory() {
    let all = ProductRoom::ALL;
    for ty in K_TYPES {
        assert!(is_wide(ty, 128_256, Wide::MIN_ROWS, all), "{ty:?}");
        assert!(!is_wide(ty, 128_256, Wide::MIN_ROWS - 1, all), "{ty:?}");
        assert!(!is_wide(ty, 14_336, 2048, ProductRoom::WITHOUT_TILES), "{ty:?}");
        // Narrow ones by up to 16 rows are strips, as on other GPUs.
        assert!(!is_wide(ty, 1024, 16, all), "{ty:?}");
        assert!(is_wide(ty, 1024, 17, all), "{ty:?}");
    }
    // Other types have no strips.
    for ty in WIDE.into_iter().filter(|ty| !K_TYPES.contains(ty)) {
        assert!(is_wide(ty, 1024, 9, all), "{ty:?}");
        let of = |room| ManyRows::of(ty, &[1024], 4096, 9, room);
        let expected = match ty {
            TensorType::Q8_0 => ManyRows::Bands(BandHeight::Low),
            _ => ManyRows::Tiles,
        };
        assert_eq!(of(ProductRoom::WITHOUT_TILES), expected, "{ty:?}");
    }
    assert!(!is_wide(TensorType::IQ2_S, 14_336, 2048, all));
}
