//! Throughput of every format on a row of 4,096 values: decoding, on each instruction set that this machine has, and
//! encoding.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tokenmill_quant::{CpuFeatures, Format};

const N_VALUES: usize = 4096;

fn values() -> Vec<f32> {
    (0..N_VALUES)
        .map(|i| (i as f32 * 0.7).sin() * (1.0 + (i % 7) as f32))
        .collect()
}

fn dequantize(c: &mut Criterion) {
    let mut group = c.benchmark_group("dequantize");
    group.throughput(Throughput::Elements(N_VALUES as u64));
    for format in Format::all() {
        let mut bytes = vec![0; format.row_bytes(N_VALUES).unwrap()];
        if format.has_encoder() {
            format.quantize_row(&values(), &mut bytes).unwrap();
        }
        let mut out = vec![0.0; N_VALUES];
        for features in CpuFeatures::each_path() {
            group.bench_function(format!("{}/{features}", format.name()), |b| {
                b.iter(|| {
                    format
                        .dequantize_row_with(features, black_box(&bytes), &mut out)
                        .unwrap();
                });
            });
        }
    }
}

fn quantize(c: &mut Criterion) {
    let mut group = c.benchmark_group("quantize");
    group.throughput(Throughput::Elements(N_VALUES as u64));
    for format in Format::all().iter().filter(|format| format.has_encoder()) {
        let (values, mut bytes) = (values(), vec![0; format.row_bytes(N_VALUES).unwrap()]);
        group.bench_function(format.name(), |b| {
            b.iter(|| format.quantize_row(black_box(&values), &mut bytes).unwrap());
        });
    }
}

criterion_group!(benches, dequantize, quantize);
criterion_main!(benches);
