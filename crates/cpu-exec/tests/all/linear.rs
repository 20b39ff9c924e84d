//! Matrix products against a naive twin, for every type, path, thread count and batch.

use std::{io::Write, sync::Arc};

use tokenmill_backend::Activation;
use tokenmill_cpu_exec::{Host, LinearTarget, Matrix, Workspace, embed, linear, linear_gated, linear_group};
use tokenmill_gguf::{FileBytes, RegularFile};
use tokenmill_quant::{CpuFeatures, Format};

/// A small generator of repeatable values in `-1..1`.
struct Values(u64);

impl Values {
    fn next(&mut self) -> f32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn take(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next()).collect()
    }
}

struct Weights {
    format: &'static Format,
    n_rows: usize,
    n_cols: usize,
    bytes: Vec<u8>,
    /// The values of the bytes, `[n_rows, n_cols]`.
    values: Vec<f32>,
}

impl Weights {
    fn new(format: &'static Format, n_rows: usize, n_cols: usize) -> Self {
        let source = Values((n_rows * 31 + n_cols) as u64).take(n_rows * n_cols);
        let mut bytes = vec![0; n_rows * format.row_bytes(n_cols).unwrap()];
        let mut values = vec![0.0; source.len()];
        if n_cols > 0 {
            for ((source, bytes), values) in source
                .chunks(n_cols)
                .zip(bytes.chunks_mut(format.row_bytes(n_cols).unwrap()))
                .zip(values.chunks_mut(n_cols))
            {
                if format.has_encoder() {
                    format.quantize_row(source, bytes).unwrap();
                } else {
                    fill_blocks(format, source, bytes);
                }
                format.dequantize_row(bytes, values).unwrap();
            }
        }
        Self {
            format,
            n_rows,
            n_cols,
            bytes,
            values,
        }
    }

    fn pack(&self, host: &Host) -> Matrix {
        Matrix::pack(
            host,
            self.format.tensor_type(),
            self.n_rows,
            self.n_cols,
            &self.bytes,
        )
        .unwrap()
    }

    /// Returns the product in f64.
    fn product(&self, x: &[f32]) -> Vec<f64> {
        let rows = self.values.chunks(self.n_cols.max(1));
        x.chunks(self.n_cols.max(1))
            .flat_map(|x| {
                rows.clone().map(move |row| {
                    x.iter()
                        .zip(row)
                        .map(|(x, w)| f64::from(*x) * f64::from(*w))
                        .sum()
                })
            })
            .collect()
    }

    /// Returns the tolerance of a product. Activations of quantized weights are rounded to 1/127 of the largest in their
    /// block, an error of up to 1/254 each, which random signs make grow with the root of the length. Unquantized
    /// weights only see the rounding of f32 sums.
    fn tolerance(&self) -> f64 {
        let per_value = if self.format.block_len() == 1 {
            1e-6
        } else {
            1.0 / 254.0
        };
        per_value * 2.0 * (self.n_cols as f64).sqrt()
    }
}

/// Makes blocks of any bits, with values about as large as `source`.
fn fill_blocks(format: &Format, source: &[f32], bytes: &mut [u8]) {
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = (source[i % source.len()].to_bits() >> (3 + i / source.len())) as u8;
    }
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        format.set_scales(block, 0.004, 0.0);
    }
}

fn hosts() -> Vec<Host> {
    CpuFeatures::each_path()
        .map(|features| Host::new(2, features).unwrap())
        .collect()
}

fn shapes(format: &Format) -> Vec<(usize, usize)> {
    let len = format.block_len();
    vec![
        (0, len),
        (1, len),
        (15, len),
        (16, 2 * len),
        (17, 3 * len),
        (33, 9 * len.min(32).max(len)),
        (50, if len == 256 { 512 } else { 28 * 32 }),
        (7, if len == 1 { 37 } else { len }),
    ]
}

#[test]
fn products_match_the_exact_ones_and_agree_between_paths() {
    println!("paths: {:?}", CpuFeatures::each_path().collect::<Vec<_>>());
    for format in Format::all() {
        for (n_rows, n_cols) in shapes(format) {
            let weights = Weights::new(format, n_rows, n_cols);
            for n_tokens in [0, 1, 2, 3, 5, 13] {
                let x = Values(7).take(n_tokens * n_cols);
                let exact = weights.product(&x);
                let mut first: Option<Vec<f32>> = None;
                for host in hosts() {
                    let matrix = weights.pack(&host);
                    let mut out = vec![f32::NAN; n_tokens * n_rows];
                    linear(&host, &mut Workspace::new(&host), &x, &matrix, &mut out);
                    for (out, exact) in out.iter().zip(&exact) {
                        assert!(
                            (f64::from(*out) - exact).abs() <= weights.tolerance(),
                            "{} {n_rows}x{n_cols}, {n_tokens} tokens, {}: {out} vs {exact}",
                            format.name(),
                            host.features()
                        );
                    }
                    assert_eq!(
                        first.get_or_insert_with(|| out.clone()),
                        &out,
                        "{}",
                        host.features()
                    );
                }
            }
        }
    }
}

#[test]
fn a_row_of_a_batch_has_the_bits_of_the_row_alone() {
    for format in Format::all() {
        let weights = Weights::new(format, 70, 512);
        let x = Values(3).take(140 * 512);
        for features in CpuFeatures::each_path() {
            let mut expected = Vec::new();
            let alone = Host::new(1, features).unwrap();
            let matrix = weights.pack(&alone);
            for x in x.chunks(512) {
                let mut out = vec![0.0; 70];
                linear(&alone, &mut Workspace::new(&alone), x, &matrix, &mut out);
                expected.extend(out);
            }
            for (n_threads, n_tokens) in [(1, 140), (3, 140), (2, 7), (4, 20), (2, 35)] {
                let host = Host::new(n_threads, features).unwrap();
                let mut workspace = Workspace::new(&host);
                let mut out = vec![0.0; 140 * 70];
                for (x, out) in x.chunks(512 * n_tokens).zip(out.chunks_mut(70 * n_tokens)) {
                    linear(&host, &mut workspace, x, &matrix, out);
                }
                assert!(
                    out == expected,
                    "{} by {n_tokens} with {n_threads} threads, {features}",
                    format.name()
                );
            }
        }
    }
}

#[test]
fn groups_biases_sums_and_gates_agree_with_single_products() {
    let formats = Format::all();
    for (i, format) in formats.iter().enumerate() {
        let other = &formats[(i + 1) % formats.len()];
        let (a, b) = (Weights::new(format, 40, 512), Weights::new(other, 24, 512));
        let bias = Values(9).take(40);
        for host in hosts() {
            let mut workspace = Workspace::new(&host);
            let (a, b) = (a.pack(&host), b.pack(&host));
            for n_tokens in [1, 4, 9] {
                let x = Values(11).take(n_tokens * 512);
                let mut single_a = vec![0.0; n_tokens * 40];
                let mut single_b = vec![0.0; n_tokens * 24];
                linear(&host, &mut workspace, &x, &a, &mut single_a);
                linear(&host, &mut workspace, &x, &b, &mut single_b);

                let mut biased = vec![0.0; n_tokens * 40];
                let mut plain = vec![1.5; n_tokens * 24];
                let mut group = [
                    LinearTarget {
                        bias: Some(&bias),
                        ..LinearTarget::new(&a, &mut biased)
                    },
                    LinearTarget::new(&b, &mut plain),
                ];
                linear_group(&host, &mut workspace, &x, &mut group);
                for (i, (biased, single)) in biased.iter().zip(&single_a).enumerate() {
                    assert_eq!(*biased, single + bias[i % 40]);
                }
                assert_eq!(plain, single_b);

                let mut gated = vec![0.0; n_tokens * 40];
                linear_gated(
                    &host,
                    &mut workspace,
                    &x,
                    (&a, None),
                    (&a, Some(&bias)),
                    Activation::Relu,
                    &mut gated,
                );
                for (gated, (single, biased)) in gated.iter().zip(single_a.iter().zip(&biased)) {
                    assert_eq!(*gated, single.max(0.0) * biased);
                }
            }
        }
    }
}

#[test]
fn rows_of_a_packed_matrix_are_the_files_values() {
    for format in Format::all() {
        let weights = Weights::new(format, 37, 512);
        for host in hosts() {
            let matrix = weights.pack(&host);
            let ids = [36, 0, 15, 16, 36];
            let mut out = vec![0.0; ids.len() * 512];
            embed(&host, &matrix, &ids, &mut Vec::new(), &mut out).unwrap();
            for (&id, row) in ids.iter().zip(out.chunks(512)) {
                assert_eq!(
                    row,
                    &weights.values[id as usize * 512..][..512],
                    "{} row {id}",
                    format.name()
                );
            }
            // The same rows, read from a file.
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(&weights.bytes).unwrap();
            let open = Arc::new(RegularFile::open(file.path()).unwrap());
            let bytes = FileBytes::new(open, 0, weights.bytes.len());
            let table = Matrix::in_file(&host, format.tensor_type(), 37, 512, bytes).unwrap();
            assert_eq!(table.n_bytes(), 0);
            let mut read = vec![0.0; out.len()];
            embed(&host, &table, &ids, &mut Vec::new(), &mut read).unwrap();
            assert_eq!(read, out, "{}", format.name());
        }
    }
}

#[test]
fn values_that_are_not_finite_are_not_hidden() {
    for format in Format::all() {
        let weights = Weights::new(format, 16, 256);
        for host in hosts() {
            let matrix = weights.pack(&host);
            for bad in [f32::NAN, f32::INFINITY] {
                let mut x = vec![0.5; 256];
                x[77] = bad;
                let mut out = vec![0.0; 16];
                linear(&host, &mut Workspace::new(&host), &x, &matrix, &mut out);
                assert!(
                    out.iter().all(|out| !out.is_finite()),
                    "{} {}: {out:?}",
                    format.name(),
                    host.features()
                );
            }
        }
    }
}

#[test]
fn wrong_shapes_are_errors() {
    let host = Host::new(1, CpuFeatures::detect()).unwrap();
    for format in Format::all() {
        let row_bytes = format.row_bytes(256).unwrap();
        let pack =
            |n_rows, n_cols| Matrix::pack(&host, format.tensor_type(), n_rows, n_cols, &vec![0; row_bytes]);
        assert!(pack(1, 256).is_ok());
        assert!(pack(2, 256).is_err());
        assert!(pack(usize::MAX, 256).is_err());
        assert!(pack(1, usize::MAX).is_err());
        assert!(pack(1, 255).is_err());
    }
}
