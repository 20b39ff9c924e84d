//! Compares the changes that [`Ops::adapt`] adds to products with plain loops: by types, ranks and widths at which another
//! thread, thread block or launch begins.

use tokenmill_cuda_exec::{
    AdaptedProduct, AdapterTable, AdapterTiles, Change, ChangedRows, CudaExecError, Device, Matrix,
    MatrixUse, Ops, Uploader,
};
use tokenmill_gguf::TensorType;
use tokenmill_quant::Format;
use tokenmill_sim_driver::{SimOptions, Simulator};
use tokenmill_testkit::Random;

const SCALE: f32 = 0.5;

/// A matrix on the device, and its numbers.
struct Floats {
    matrix: Matrix,
    values: Vec<f32>,
}

fn floats(device: &Device, random: &mut Random, ty: TensorType, [n_out, n_in]: [usize; 2]) -> Floats {
    let format = Format::of(ty).unwrap();
    let mut values = random.values(n_out * n_in);
    let row_bytes = format.row_bytes(n_in).unwrap();
    let mut rows = vec![0; n_out * row_bytes];
    for (row, values) in rows
        .chunks_exact_mut(row_bytes)
        .zip(values.chunks_exact_mut(n_in))
    {
        format.quantize_row(values, row).unwrap();
        format.dequantize_row(row, values).unwrap();
    }
    let usage = MatrixUse {
        is_table: false,
        is_factor: false,
        is_of_experts: false,
    };
    let mut uploader = Uploader::new(device);
    let matrix = uploader.upload(ty, [n_out, n_in], &rows, usage).unwrap();
    uploader.finish().unwrap();
    Floats { matrix, values }
}

/// Two adapters for the same three weights: the first changes all of them, the second only the last.
struct Scene {
    device: Device,
    ops: Ops,
    n_in: usize,
    n_outs: [usize; 3],
    changes: [Vec<Option<[Floats; 2]>>; 2],
    tables: [AdapterTable; 2],
    max_rank: usize,
}

impl Scene {
    fn new(types: [TensorType; 2], ranks: [usize; 2], n_in: usize) -> Self {
        let device = Simulator::new(&SimOptions::default()).device();
        let mut ops = Ops::load(&device).unwrap();
        ops.load_adapters().unwrap();
        let mut random = Random::new(11);
        let n_outs = [130, 7, 128];
        let changes = [0, 1].map(|adapter_idx| {
            let rank = ranks[adapter_idx];
            (n_outs.iter().enumerate())
                .map(|(place, &n_out)| {
                    (adapter_idx == 0 || place == 2).then(|| {
                        [
                            floats(&device, &mut random, types[0], [rank, n_in]),
                            floats(&device, &mut random, types[1], [n_out, rank]),
                        ]
                    })
                })
                .collect::<Vec<_>>()
        });
        let tables = [0, 1].map(|adapter_idx: usize| {
            let changes = changes[adapter_idx].iter().map(|change| {
                change.as_ref().map(|[a, b]| Change {
                    a: &a.matrix,
                    b: &b.matrix,
                    scale: SCALE,
                })
            });
            AdapterTable::new(&device, changes).unwrap()
        });
        Self {
            device,
            ops,
            n_in,
            n_outs,
            changes,
            tables,
            max_rank: ranks[0].max(ranks[1]),
        }
    }

    /// Returns the three products; `before` are the products with the weights.
    fn adapt(&self, x: &[f32], before: &[Vec<f32>; 3], tiles: &AdapterTiles) -> [Vec<f32>; 3] {
        let n_rows = x.len() / self.n_in;
        let input = self.device.upload("x", x).unwrap();
        let rows = self.device.upload("rows", tiles.rows()).unwrap();
        let tiles = self.device.upload("tiles", tiles.tiles()).unwrap();
        let mut outputs = before
            .each_ref()
            .map(|values| self.device.upload("y", values).unwrap());
        let scratch = Ops::adapter_scratch_len(n_rows, self.n_in, self.max_rank);
        let mut scratch = self.device.alloc("scratch", scratch).unwrap();
        let rows = ChangedRows {
            n_rows,
            input: input.view(),
            tiles: tiles.view(),
            rows: rows.view(),
            max_rank: self.max_rank,
        };
        let mut products: Vec<AdaptedProduct<'_>> = (outputs.iter_mut().enumerate())
            .map(|(place, output)| AdaptedProduct {
                place: place as u32,
                n_out: self.n_outs[place],
                output: output.view_mut(),
            })
            .collect();
        (self.ops)
            .adapt(&rows, self.n_in, &mut products, &mut scratch)
            .unwrap();
        outputs.map(|output| self.device.download(output.view()).unwrap())
    }

    /// Returns the expected row of the product at a place: each value with the sum of its terms' magnitudes.
    fn expected(&self, adapter_idx: usize, place: usize, x: &[f32], before: &[f32]) -> Vec<(f64, f64)> {
        let Some([a, b]) = &self.changes[adapter_idx][place] else {
            return before.iter().map(|&y| (f64::from(y), 0.0)).collect();
        };
        let product = |row: &[f32], x: &[(f64, f64)]| {
            (row.iter().zip(x)).fold((0.0, 0.0), |(sum, size), (&w, &(x, x_size))| {
                let w = f64::from(w);
                (sum + w * x, size + w.abs() * x_size)
            })
        };
        let x: Vec<_> = x.iter().map(|&x| (f64::from(x), f64::from(x.abs()))).collect();
        let small: Vec<_> = (a.values.chunks(self.n_in)).map(|row| product(row, &x)).collect();
        (b.values.chunks(small.len()).zip(before))
            .map(|(row, &y)| {
                let (sum, size) = product(row, &small);
                let scale = f64::from(SCALE);
                (f64::from(y) + scale * sum, f64::from(y.abs()) + scale * size)
            })
            .collect()
    }

    /// Compares rows in runs of both adapters and of none with plain loops, and each run with the same rows by themselves. Runs
    /// of one adapter share tiles.
    fn check(&self, n_rows: usize) {
        let mut random = Random::new(n_rows as u64);
        let x = random.values(n_rows * self.n_in);
        let before = self.n_outs.map(|n_out| random.values(n_rows * n_out));
        let mut runs = Vec::new();
        let mut first = 0;
        while first < n_rows {
            let end = (first + 1 + random.below(7)).min(n_rows);
            runs.push(((runs.len() % 3 < 2).then_some(runs.len() % 3), first..end));
            first = end;
        }
        let mut tiles = AdapterTiles::default();
        for adapter in [1, 0] {
            let runs = runs.iter().filter(|(other, _)| *other == Some(adapter));
            tiles.add(&self.tables[adapter], runs.flat_map(|(_, rows)| rows.clone()));
        }
        // A captured step has empty tiles after them.
        tiles.pad(n_rows, 5);
        let found = self.adapt(&x, &before, &tiles);
        for (adapter, rows) in runs {
            let part = |values: &[f32], width: usize| values[rows.start * width..rows.end * width].to_vec();
            let alone = adapter.map(|adapter| {
                let mut tiles = AdapterTiles::default();
                tiles.add(&self.tables[adapter], 0..rows.len());
                let before = [0, 1, 2].map(|place: usize| part(&before[place], self.n_outs[place]));
                self.adapt(&part(&x, self.n_in), &before, &tiles)
            });
            for (place, &n_out) in self.n_outs.iter().enumerate() {
                let (found, before) = (part(&found[place], n_out), part(&before[place], n_out));
                let Some((adapter, alone)) = adapter.zip(alone.as_ref()) else {
                    assert_eq!(found, before, "rows {rows:?} have no adapter");
                    continue;
                };
                assert_eq!(found, alone[place], "rows {rows:?} alone");
                let x = part(&x, self.n_in);
                let expected = (x.chunks(self.n_in).zip(before.chunks(n_out)))
                    .flat_map(|(x, before)| self.expected(adapter, place, x, before));
                for (found, (expected, size)) in found.iter().zip(expected) {
                    // Both sums are of f32s: some 2000 products in parts of 512, and up to 40.
                    let error = (f64::from(*found) - expected).abs();
                    assert!(
                        error <= 2e-6 * size,
                        "rows {rows:?} at {place}: {found}, {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn changes_of_every_type_are_those_of_plain_loops() {
    use TensorType::{BF16, F16, F32};
    for types in [[F32, F32], [F16, F16], [BF16, BF16], [F16, F32]] {
        Scene::new(types, [8, 16], 64).check(50);
    }
}

#[test]
fn ranks_and_widths_at_every_border_are_those_of_plain_loops() {
    for (ranks, n_in) in [([1, 40], 513), ([3, 17], 5), ([16, 2], 1030), ([33, 16], 512)] {
        for ty in [TensorType::F16, TensorType::F32] {
            Scene::new([ty; 2], ranks, n_in).check(9);
        }
    }
}

#[test]
fn products_of_many_rows_have_launches_of_their_own() {
    let scene = Scene::new([TensorType::F16; 2], [4, 4], 32);
    let launches = |n_rows| {
        let before = scene.device.n_launches();
        let mut tiles = AdapterTiles::default();
        tiles.add(&scene.tables[0], 0..n_rows);
        let outputs = scene.n_outs.map(|n_out| vec![0.0; n_rows * n_out]);
        scene.adapt(&vec![1.0; n_rows * scene.n_in], &outputs, &tiles);
        scene.device.n_launches() - before
    };
    assert_eq!([launches(1), launches(256), launches(257)], [2, 2, 6]);
    scene.check(300);
}

#[test]
fn matrices_that_are_no_adapters_are_refused() {
    let device = Simulator::new(&SimOptions::default()).device();
    let mut random = Random::new(1);
    let mut matrix = |ty, shape| floats(&device, &mut random, ty, shape).matrix;
    let refused = |a: &Matrix, b: &Matrix, part: &str| {
        let error = AdapterTable::new(&device, [Some(Change { a, b, scale: 1.0 })].into_iter()).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    };
    let [four, five] = [matrix(TensorType::F32, [4, 64]), matrix(TensorType::F32, [64, 5])];
    refused(&four, &five, "the rank of an adapter's matrices");
    let quantized = matrix(TensorType::Q8_0, [32, 64]);
    let wide = matrix(TensorType::F32, [64, 32]);
    refused(&quantized, &wide, "adapters of type Q8_0");
    // Before the kernels are loaded, nothing is launched either.
    let ops = Ops::load(&device).unwrap();
    let words = device.upload("tiles", &[0_u32; 4]).unwrap();
    let input = device.upload("x", &[0.0_f32; 64]).unwrap();
    let rows = ChangedRows {
        n_rows: 1,
        input: input.view(),
        tiles: words.view(),
        rows: words.view(),
        max_rank: 1,
    };
    let mut scratch = device.alloc("scratch", 64).unwrap();
    let error = ops.adapt(&rows, 64, &mut [], &mut scratch).unwrap_err();
    assert!(matches!(error, CudaExecError::Unsupported { .. }), "{error}");
}
