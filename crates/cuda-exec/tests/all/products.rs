//! Products through [`Ops::linear`], by every number of rows at which another kernel or another grid begins.

use tokenmill_cuda_exec::{
    BandHeight, Buffer, Device, LinearInput, ManyRows, Matrix, MatrixUse, Ops, Product, ProductRoom,
    QuantizedRows, Uploader, WideProducts,
};
use tokenmill_gguf::TensorType;
use tokenmill_quant::Format;
use tokenmill_sim_driver::{SimOptions, Simulator};
use tokenmill_testkit::Random;

use crate::grid::pairs;

const N_IN: usize = 768;

/// Makes random matrices of these types and numbers of rows, each of `n_in` columns.
fn matrices(device: &Device, random: &mut Random, of: &[(TensorType, usize)], n_in: usize) -> Vec<Matrix> {
    let mut uploader = Uploader::new(device);
    let usage = MatrixUse {
        is_table: false,
        is_factor: true,
        is_of_experts: false,
    };
    let matrices = of.iter().map(|&(ty, n_out)| {
        let format = Format::of(ty).unwrap();
        let mut rows = vec![0; n_out * format.row_bytes(n_in).unwrap()];
        for row in rows.chunks_exact_mut(format.row_bytes(n_in).unwrap()) {
            format.quantize_row(&random.values(n_in), row).unwrap();
        }
        uploader.upload(ty, [n_out, n_in], &rows, usage).unwrap()
    });
    let matrices = matrices.collect();
    uploader.finish().unwrap();
    matrices
}

/// Compares products by three matrices of one input with those in the batch-invariant order of addition.
fn check(device: &Device, ops: &mut Ops, types: [TensorType; 3], n_outs: [usize; 3], n_rows: &[usize]) {
    let mut random = Random::new(3);
    let of: Vec<(TensorType, usize)> = types.into_iter().zip(n_outs).collect();
    let matrices = matrices(device, &mut random, &of, N_IN);
    for &n_rows in n_rows {
        let x = device.upload("x", &random.values(n_rows * N_IN)).unwrap();
        let mut quantized = QuantizedRows::new(device, n_rows, N_IN).unwrap();
        ops.quantize(n_rows, N_IN, x.view(), quantized.view_mut())
            .unwrap();
        let input = LinearInput {
            n_rows,
            floats: x.view(),
            quantized: Some(quantized.view()),
        };
        let [found, expected] = [false, true].map(|is_batch_invariant| {
            ops.set_batch_invariance(is_batch_invariant);
            let mut outputs: Vec<Buffer<f32>> = (matrices.iter())
                .map(|matrix| device.alloc("y", n_rows * matrix.n_out()).unwrap())
                .collect();
            let mut products: Vec<Product<'_>> = (outputs.iter_mut().zip(&matrices))
                .map(|(output, matrix)| Product {
                    matrix,
                    bias: None,
                    output: output.view_mut(),
                })
                .collect();
            ops.linear(&input, &mut products).unwrap();
            let outputs = outputs
                .iter()
                .map(|output| device.download(output.view()).unwrap());
            outputs.collect::<Vec<Vec<f32>>>()
        });
        for (found, expected) in found.iter().zip(&expected) {
            let worst = (found.iter().zip(expected)).fold(0f32, |worst, (a, b)| worst.max((a - b).abs()));
            // Sums of 768 products of numbers around 1: another order of addition, and minima in two parts.
            assert!(worst < 1e-4, "{types:?} by {n_rows}: {worst}");
        }
    }
}

#[test]
fn every_number_of_rows_gives_the_products_of_the_one_order_of_addition() {
    let device = Simulator::new(&SimOptions::default()).device();
    let mut ops = Ops::load(&device).unwrap();
    let types = [
        TensorType::Q4_K,
        TensorType::Q5_K,
        TensorType::Q6_K,
        TensorType::Q8_0,
        TensorType::F16,
        TensorType::BF16,
        TensorType::F32,
    ];
    let n_rows = [1, 8, 9, 16, 17, 33, 100, 129];
    let all = types.into_iter().flat_map(|ty| n_rows.map(|n_rows| (ty, n_rows)));
    for (ty, n_rows) in pairs("products by numbers of rows", all) {
        check(&device, &mut ops, [ty; 3], [130, 64, 9], &[n_rows]);
    }
}

/// Returns the first row's products if `n_rows` rows are multiplied, all of them random and the first always the same.
fn first_row_of(device: &Device, ops: &Ops, matrix: &Matrix, n_rows: usize) -> Vec<f32> {
    let (n_in, n_out) = (matrix.n_in(), matrix.n_out());
    let x = device.upload("x", &Random::new(9).values(n_rows * n_in)).unwrap();
    let mut output: Buffer<f32> = device.alloc("y", n_rows * n_out).unwrap();
    let input = LinearInput {
        n_rows,
        floats: x.view(),
        quantized: None,
    };
    let product = Product {
        matrix,
        bias: None,
        output: output.view_mut(),
    };
    ops.linear(&input, &mut [product]).unwrap();
    device.download(output.view().range(0..n_out).unwrap()).unwrap()
}

#[test]
fn products_of_f32_have_the_same_bits_by_any_number_of_rows_where_they_must() {
    let device = Simulator::new(&SimOptions::default()).device();
    let mut ops = Ops::load(&device).unwrap();
    ops.set_batch_invariance(true);
    let mut random = Random::new(8);
    // A matrix for narrow tiles and one for others; by 1,030 rows the first is 136 of those.
    let of = [(TensorType::F32, 500), (TensorType::F32, 600)];
    let matrices = matrices(&device, &mut random, &of, 17);
    for matrix in &matrices {
        let alone = first_row_of(&device, &ops, matrix, 1);
        for n_rows in [8, 9, 64, 65, 1030] {
            let found = first_row_of(&device, &ops, matrix, n_rows);
            assert!(found == alone, "{} outputs by {n_rows} rows", matrix.n_out());
        }
    }
    ops.set_batch_invariance(false);
    let [few, many] = [9, 1030].map(|n_rows| first_row_of(&device, &ops, &matrices[0], n_rows));
    assert!(few != many, "another kernel adds in another order");
}

#[test]
fn a_pair_of_types_gives_the_same_products() {
    let device = Simulator::new(&SimOptions::default()).device();
    let mut ops = Ops::load(&device).unwrap();
    ops.load_pair([TensorType::Q4_K, TensorType::Q6_K]).unwrap();
    let types = [TensorType::Q4_K, TensorType::Q4_K, TensorType::Q6_K];
    check(&device, &mut ops, types, [130, 64, 40], &[1, 8, 9, 16, 17]);
}

#[test]
fn a_pair_of_types_is_one_launch_up_to_sixteen_rows() {
    let device = Simulator::new(&SimOptions::default()).device();
    let mut ops = Ops::load(&device).unwrap();
    let [q4, q6] = [TensorType::Q4_K, TensorType::Q6_K];
    ops.load_pair([q4, q6]).unwrap();
    let mut random = Random::new(7);
    let mut launches = |types: [TensorType; 3], n_rows: usize| {
        let of: Vec<(TensorType, usize)> = types.into_iter().zip([130, 64, 40]).collect();
        let matrices = matrices(&device, &mut random, &of, N_IN);
        let x = device.upload("x", &random.values(n_rows * N_IN)).unwrap();
        let mut quantized = QuantizedRows::new(&device, n_rows, N_IN).unwrap();
        ops.quantize(n_rows, N_IN, x.view(), quantized.view_mut())
            .unwrap();
        let input = LinearInput {
            n_rows,
            floats: x.view(),
            quantized: Some(quantized.view()),
        };
        let mut outputs: Vec<Buffer<f32>> = (matrices.iter())
            .map(|matrix| device.alloc("y", n_rows * matrix.n_out()).unwrap())
            .collect();
        let mut products: Vec<Product<'_>> = (outputs.iter_mut().zip(&matrices))
            .map(|(output, matrix)| Product {
                matrix,
                bias: None,
                output: output.view_mut(),
            })
            .collect();
        let before = device.n_launches();
        ops.linear(&input, &mut products).unwrap();
        device.n_launches() - before
    };
    for n_rows in [1, 8, 9, 16] {
        assert_eq!(launches([q4, q4, q6], n_rows), 1, "{n_rows}");
    }
    assert_eq!(launches([q4, q4, q6], 17), 2);
    // Pairs that were not loaded take one launch for each type.
    assert_eq!(launches([q6, q6, q4], 16), 2);
}

#[test]
fn a_tall_matrix_may_be_next_to_others() {
    let device = Simulator::new(&SimOptions::default()).device();
    let mut ops = Ops::load(&device).unwrap();
    check(
        &device,
        &mut ops,
        [TensorType::Q6_K; 3],
        [20, 32_800, 40],
        &[1, 9],
    );
}

#[test]
fn narrow_products_whose_columns_thread_blocks_share_are_those_of_the_one_order_of_addition() {
    let device = Simulator::new(&SimOptions::default()).device();
    let mut ops = Ops::load(&device).unwrap();
    ops.allow_splits().unwrap();
    let mut random = Random::new(5);
    let (ty, n_out, n_in, n_rows) = (TensorType::Q4_K, 1540, 2048, 100);
    let room = ProductRoom {
        has_halves: false,
        ..ProductRoom::WITHOUT_TILES
    };
    assert_eq!(
        ManyRows::of(ty, &[n_out], n_in, n_rows, room),
        ManyRows::Splits(4)
    );
    let matrix = &matrices(&device, &mut random, &[(ty, n_out)], n_in)[0];
    let x = device.upload("x", &random.values(n_rows * n_in)).unwrap();
    let mut quantized = QuantizedRows::new(&device, n_rows, n_in).unwrap();
    ops.quantize(n_rows, n_in, x.view(), quantized.view_mut())
        .unwrap();
    let input = LinearInput {
        n_rows,
        floats: x.view(),
        quantized: Some(quantized.view()),
    };
    let mut multiply = |is_batch_invariant| -> Vec<f32> {
        ops.set_batch_invariance(is_batch_invariant);
        let mut output: Buffer<f32> = device.alloc("y", n_rows * n_out).unwrap();
        let product = Product {
            matrix,
            bias: None,
            output: output.view_mut(),
        };
        ops.linear(&input, &mut [product]).unwrap();
        device.download(output.view()).unwrap()
    };
    let (found, again, expected) = (multiply(false), multiply(false), multiply(true));
    assert!(found == again, "parts and counters are used again");
    let worst = (found.iter().zip(&expected)).fold(0f32, |worst, (a, b)| worst.max((a - b).abs()));
    assert!(worst < 3e-4, "{worst}");
}

#[test]
fn products_by_many_rows_are_in_f16_where_there_is_memory_for_their_rows() {
    let device = Simulator::new(&SimOptions::default()).device_with_wide(WideProducts::Never);
    let mut ops = Ops::load(&device).unwrap();
    ops.allow_splits().unwrap();
    ops.allow_halves(100, 2048).unwrap();
    let mut random = Random::new(6);
    let n_rows = 100;
    let of = [
        (TensorType::Q4_K, 1540, 2048),
        (TensorType::Q5_K, 64, 2048),
        (TensorType::Q6_K, 5100, 256),
    ];
    let launches =
        of.map(|(ty, n_out, n_in)| ManyRows::of(ty, &[n_out], n_in, n_rows, ProductRoom::WITHOUT_TILES));
    assert_eq!(
        launches,
        [
            ManyRows::Halves(4),
            ManyRows::Bands(BandHeight::Low),
            ManyRows::Halves(1)
        ]
    );
    let rows = random.values(n_rows * 2048);
    let matrices = of.map(|(ty, n_out, n_in)| matrices(&device, &mut random, &[(ty, n_out)], n_in).remove(0));
    let multiply = |ops: &mut Ops, matrix: &Matrix, is_batch_invariant| -> (Vec<f32>, u64) {
        let n_in = matrix.n_in();
        ops.set_batch_invariance(is_batch_invariant);
        let x = device.upload("x", &rows[..n_rows * n_in]).unwrap();
        let mut quantized = QuantizedRows::new(&device, n_rows, n_in).unwrap();
        ops.quantize(n_rows, n_in, x.view(), quantized.view_mut())
            .unwrap();
        let input = LinearInput {
            n_rows,
            floats: x.view(),
            quantized: Some(quantized.view()),
        };
        let mut output: Buffer<f32> = device.alloc("y", n_rows * matrix.n_out()).unwrap();
        let product = Product {
            matrix,
            bias: None,
            output: output.view_mut(),
        };
        let before = device.n_launches();
        ops.linear(&input, &mut [product]).unwrap();
        let n_launches = device.n_launches() - before;
        (device.download(output.view()).unwrap(), n_launches)
    };
    for (matrix, launch) in matrices.iter().zip(launches) {
        let ((found, n_launches), (expected, n_invariant)) = (
            multiply(&mut ops, matrix, false),
            multiply(&mut ops, matrix, true),
        );
        let is_halved = matches!(launch, ManyRows::Halves(_));
        assert_eq!(n_launches, if is_halved { 2 } else { 1 }, "{launch:?}");
        let worst = (found.iter().zip(&expected)).fold(0f32, |worst, (a, b)| worst.max((a - b).abs()));
        // Sums of up to 2,048 products whose magnitudes add up to some 500; rounding to 11 bits changes them by 1e-4.
        assert!(worst < 5e-2, "{launch:?}: {worst}");
        assert_eq!(n_invariant, 1, "{launch:?}");
    }
    ops.set_batch_invariance(false);
    ops.allow_halves(64, 2048).unwrap();
    let (_, n_launches) = multiply(&mut ops, &matrices[0], false);
    assert_eq!(n_launches, 1, "100 rows have no room");
}

#[test]
fn launches_of_different_shapes_share_the_memory_for_their_parts() {
    let device = Simulator::new(&SimOptions::default()).device();
    let mut ops = Ops::load(&device).unwrap();
    ops.allow_splits().unwrap();
    let mut random = Random::new(6);
    let (n_in, n_rows) = (2048, 70);
    let of = [(TensorType::Q4_K, 1540), (TensorType::Q6_K, 2200)];
    let room = ProductRoom {
        has_halves: false,
        ..ProductRoom::WITHOUT_TILES
    };
    let splits = |(ty, n_out)| ManyRows::of(ty, &[n_out], n_in, n_rows, room);
    let cuts = of.map(splits);
    assert!(
        cuts.iter().all(|cut| matches!(cut, ManyRows::Splits(_))),
        "{cuts:?}"
    );
    let matrices = matrices(&device, &mut random, &of, n_in);
    let x = device.upload("x", &random.values(n_rows * n_in)).unwrap();
    let mut quantized = QuantizedRows::new(&device, n_rows, n_in).unwrap();
    ops.quantize(n_rows, n_in, x.view(), quantized.view_mut())
        .unwrap();
    let input = LinearInput {
        n_rows,
        floats: x.view(),
        quantized: Some(quantized.view()),
    };
    let mut outputs: Vec<Buffer<f32>> = (matrices.iter())
        .map(|matrix| device.alloc("y", n_rows * matrix.n_out()).unwrap())
        .collect();
    let mut multiply = |is_batch_invariant: bool, order: &[usize]| -> Vec<Vec<f32>> {
        ops.set_batch_invariance(is_batch_invariant);
        // Nothing waits between the launches.
        for &index in order {
            let product = Product {
                matrix: &matrices[index],
                bias: None,
                output: outputs[index].view_mut(),
            };
            ops.linear(&input, &mut [product]).unwrap();
        }
        let download = |output: &Buffer<f32>| device.download(output.view()).unwrap();
        outputs.iter().map(download).collect()
    };
    let found = multiply(false, &[0, 1, 0]);
    let expected = multiply(true, &[0, 1]);
    for (found, expected) in found.iter().zip(&expected) {
        let worst = (found.iter().zip(expected)).fold(0f32, |worst, (a, b)| worst.max((a - b).abs()));
        assert!(worst < 3e-4, "{worst}");
    }
    let again = multiply(false, &[1, 0]);
    assert!(found == again, "what a launch left changes the next");
}

#[test]
fn batch_invariant_products_take_no_memory_for_parts() {
    let device = Simulator::new(&SimOptions::default()).device();
    let mut ops = Ops::load(&device).unwrap();
    let free = || device.free_bytes().unwrap();
    assert!(ops.split_bytes() > 8 << 20);
    ops.set_batch_invariance(true);
    assert_eq!((ops.split_bytes(), ops.halves_bytes(512, 4096)), (0, 0));
    let before = free();
    ops.allow_splits().unwrap();
    ops.allow_halves(512, 4096).unwrap();
    assert_eq!(free(), before);
    ops.set_batch_invariance(false);
    ops.allow_splits().unwrap();
    assert!(free() < before);
}
