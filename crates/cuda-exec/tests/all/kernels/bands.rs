//! Matrices of K-quants, Q8_0, F16 and BF16 times 9 rows and more, in bands.

use tokenmill_cuda_exec::{BandHeight, Bands, modules::type_suffix};
use tokenmill_gguf::TensorType;
use tokenmill_ptx_sim::Arguments;
use tokenmill_testkit::Random;

use crate::{
    grid::pairs,
    kernels::{
        bench::{NULL, Sim, assert_relative, random_matrix},
        many_rows::reads_of_weights,
        matvec::{Kernel, TOLERANCE, check_kernel, dot, upload},
    },
};

const TYPES: [TensorType; 6] = [
    TensorType::Q4_K,
    TensorType::Q5_K,
    TensorType::Q6_K,
    TensorType::Q8_0,
    TensorType::F16,
    TensorType::BF16,
];
const WORDS: [TensorType; 2] = [TensorType::F16, TensorType::BF16];

fn band(ty: TensorType, height: BandHeight, columns: usize) -> Kernel {
    Kernel {
        module: "matmul",
        name: height.kernel(columns),
        tile: [height.rows(), columns],
        block: 128,
        shared_bytes: Bands::of(ty).unwrap().shared_bytes(height, columns),
        n_splits: None,
    }
}

#[test]
fn bands_that_thread_blocks_share_match_a_plain_loop() {
    let types = TYPES.into_iter().filter(|ty| !WORDS.contains(ty));
    let splits = [(1, 1), (2, 3), (3, 5), (4, 7)];
    let all = types.flat_map(|ty| splits.map(|split| (ty, split)));
    for (ty, (n_splits, n_supers)) in pairs("shared bands", all) {
        let kernel = Kernel {
            name: "matmul_split_n64".to_owned(),
            n_splits: Some(n_splits),
            ..band(ty, BandHeight::High, 64)
        };
        let counters = check_kernel(ty, &kernel, 67, [150, 33, 5], n_supers * 256, true);
        assert_eq!(counters.bank_conflicts(), 0, "{ty:?} by {n_splits}");
    }
}

/// Every type, height and number of columns.
fn all() -> impl Iterator<Item = (TensorType, (BandHeight, usize))> {
    (TYPES.into_iter())
        .flat_map(|ty| BandHeight::ALL.map(|height| (ty, height)))
        .flat_map(|(ty, height)| {
            height
                .columns()
                .iter()
                .map(move |&columns| (ty, (height, columns)))
        })
}

#[test]
fn bands_match_a_plain_loop() {
    for (ty, (height, columns)) in pairs("bands", all()) {
        let kernel = band(ty, height, columns);
        // Ragged in rows of both, an odd number of superblocks, and thread blocks of further rows of x.
        check_kernel(ty, &kernel, columns + 3, [150, 33, 5], 5 * 256, true);
        check_kernel(ty, &kernel, columns - 5, [16, 0, 0], 256, false);
    }
}

#[test]
fn long_rows_of_bands_match_a_plain_loop() {
    for ty in TYPES.into_iter().filter(|ty| !WORDS.contains(ty)) {
        check_kernel(ty, &band(ty, BandHeight::Low, 16), 11, [40, 7, 3], 65 * 256, true);
    }
}

#[test]
fn rows_of_words_may_end_within_a_step() {
    for ty in WORDS {
        for n_in in [8, 56, 72, 136, 1000] {
            for height in BandHeight::ALL {
                check_kernel(ty, &band(ty, height, 16), 21, [37, 2, 130], n_in, true);
            }
            check_kernel(ty, &band(ty, BandHeight::High, 64), 130, [129, 0, 5], n_in, false);
            check_kernel(ty, &band(ty, BandHeight::Low, 32), 70, [33, 31, 0], n_in, false);
        }
    }
}

/// Numbers of x, and sums of them, may be beyond the range of f16 in both directions.
#[test]
fn rows_of_x_may_be_large_and_small() {
    for (ty, factor) in WORDS.into_iter().flat_map(|ty| [(ty, 1e30), (ty, 1e-30)]) {
        let (n_out, n_in, n_rows) = (40, 256, 9);
        let mut random = Random::new(11);
        let mut sim = Sim::new();
        let (file_rows, values) = random_matrix(&mut random, ty, n_out, n_in);
        let w = sim.matrix(ty, n_out, n_in, &file_rows);
        let rows: Vec<f32> = random.values(n_rows * n_in).iter().map(|x| x * factor).collect();
        let (input, exact) = upload(&mut sim, ty, &rows, n_in);
        let y = sim.room(n_rows * n_out * 4);
        let mut arguments = Arguments::new().ptr(w).ptr(NULL).ptr(NULL).ptr(y);
        arguments = (0..5).fold(arguments, |arguments, _| arguments.ptr(NULL));
        for n in [n_out, 0, 0, n_in, n_rows] {
            arguments = arguments.i32(n as i32);
        }
        let kernel = band(ty, BandHeight::High, 16);
        sim.launch(
            &format!("matmul_{}", type_suffix(ty).unwrap()),
            &kernel.name,
            [1, 1, 1],
            kernel.block,
            kernel.shared_bytes,
            &input.append(arguments),
        );
        let found = sim.read_f32s(y, n_rows * n_out);
        let expected: Vec<(f64, f64)> = (0..n_rows * n_out)
            .map(|index| dot(&values, &exact, n_in, index % n_out, index / n_out))
            .collect();
        assert_relative(&found, &expected, TOLERANCE, &format!("{ty:?} by {factor}"));
    }
}

#[test]
fn bands_have_no_bank_conflicts_and_read_weights_once() {
    for (ty, (height, columns)) in pairs("bank conflicts of bands", all()) {
        let (n_out, n_in) = (256, 1024);
        let counters = check_kernel(
            ty,
            &band(ty, height, columns),
            columns,
            [n_out, 0, 0],
            n_in,
            false,
        );
        assert_eq!(counters.bank_conflicts(), 0, "{ty:?} {height:?} by {columns}");
        // Scales of superblocks in a separate plane are adjacent, and come from L1 after the first.
        // Scales of groups of Q8_0 take half a sector a superblock.
        let limit = match ty {
            TensorType::Q6_K => 1.4,
            TensorType::Q8_0 => 1.06,
            _ => 1.0,
        };
        let ratio = reads_of_weights(&counters, ty, n_out, n_in);
        assert!(ratio <= limit, "{ty:?} {height:?} by {columns}: {ratio}");
    }
}

#[test]
fn bits_of_a_row_do_not_depend_on_how_many_rows_there_are() {
    let (n_out, n_in, n_all) = (40, 3 * 256, 64);
    for ty in TYPES {
        for height in BandHeight::ALL {
            let mut random = Random::new(7);
            let mut sim = Sim::new();
            let (file_rows, _) = random_matrix(&mut random, ty, n_out, n_in);
            let w = sim.matrix(ty, n_out, n_in, &file_rows);
            let rows = random.values(n_all * n_in);
            let mut results = Vec::new();
            let all = [(16, 9), (16, 31), (32, 31), (64, 64)];
            for (columns, n_rows) in all
                .into_iter()
                .filter(|(columns, _)| height.columns().contains(columns))
            {
                let (input, _) = upload(&mut sim, ty, &rows[..n_rows * n_in], n_in);
                let y = sim.room(n_rows * n_out * 4);
                let mut arguments = Arguments::new().ptr(w).ptr(NULL).ptr(NULL).ptr(y);
                arguments = (0..5).fold(arguments, |arguments, _| arguments.ptr(NULL));
                for n in [n_out, 0, 0, n_in, n_rows] {
                    arguments = arguments.i32(n as i32);
                }
                let kernel = band(ty, height, columns);
                sim.launch(
                    &format!("matmul_{}", type_suffix(ty).unwrap()),
                    &kernel.name,
                    [n_out.div_ceil(height.rows()), n_rows.div_ceil(columns), 1],
                    kernel.block,
                    kernel.shared_bytes,
                    &input.append(arguments),
                );
                results.push(sim.read_f32s(y, 9 * n_out));
            }
            assert!(
                results.windows(2).all(|pair| pair[0] == pair[1]),
                "{ty:?} {height:?}"
            );
        }
    }
}

#[test]
fn bits_of_a_gated_row_do_not_depend_on_how_many_rows_there_are() {
    let (n_out, n_in, n_all) = (96, 3 * 256, 64);
    for ty in TYPES.into_iter().filter(|&ty| Bands::of(ty).unwrap().has_gated()) {
        let mut random = Random::new(9);
        let mut sim = Sim::new();
        let [gate, up] = [0, 1].map(|_| {
            let (file_rows, _) = random_matrix(&mut random, ty, n_out, n_in);
            sim.matrix(ty, n_out, n_in, &file_rows)
        });
        let bias = sim.f32s(&random.values(n_out));
        let rows = random.values(n_all * n_in);
        let mut results = Vec::new();
        for (columns, n_rows) in [(16, 9), (16, 31), (32, 31), (64, 64)] {
            let (input, _) = upload(&mut sim, ty, &rows[..n_rows * n_in], n_in);
            let y = sim.room(n_rows * n_out * 4);
            let quantized = sim.room_quantized(n_rows, n_out);
            let arguments = Arguments::new()
                .ptr(gate)
                .ptr(up)
                .i32(n_out as i32)
                .ptr(bias)
                .ptr(bias);
            let arguments = (arguments.i32(0).ptr(y).ptr(quantized.bytes).ptr(quantized.scales))
                .i32(n_in as i32)
                .i32(n_rows as i32);
            sim.launch(
                &format!("matmul_{}", type_suffix(ty).unwrap()),
                &format!("matmul_gated_n{columns}"),
                [n_out.div_ceil(Bands::GATED_ROWS), n_rows.div_ceil(columns), 1],
                128,
                Bands::of(ty).unwrap().shared_bytes(BandHeight::High, columns),
                &input.append(arguments),
            );
            results.push((sim.read_f32s(y, 9 * n_out), sim.dequantized(&quantized, 9, n_out)));
        }
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{ty:?}");
    }
}
