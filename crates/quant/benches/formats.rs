//! Throughput of every format on a row of 4,096 values: dot products and decoding on each instruction set that this
//! machine has, encoding, and the quantization of activations.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tokenmill_quant::{ActivationFormat, CpuFeatures, Format};

const N_VALUES: usize = 4096;

fn values() -> Vec<f32> {
    (0..N_VALUES)
        .map(|i| (i as f32 * 0.7).sin() * (1.0 + (i % 7) as f32))
        .collect()
}

fn dot(c: &mut Criterion) {
    for format in Format::all() {
        let mut group = c.benchmark_group(format!("dot/{}", format.name()));
        let mut weights = vec![0; format.row_bytes(N_VALUES).unwrap()];
        format.quantize_row(&values(), &mut weights).unwrap();
        let mut activations = vec![0; format.activation().row_bytes(N_VALUES).unwrap()];
        (format.activation())
            .quantize_row(CpuFeatures::detect(), &values(), &mut activations)
            .unwrap();
        group.throughput(Throughput::Bytes(weights.len() as u64));
        for features in CpuFeatures::each_path() {
            group.bench_function(features.to_string(), |b| {
                b.iter(|| format.dot(features, black_box(&weights), black_box(&activations)));
            });
        }
    }
}

fn dequantize(c: &mut Criterion) {
    let mut group = c.benchmark_group("dequantize");
    group.throughput(Throughput::Elements(N_VALUES as u64));
    for format in Format::all() {
        let mut bytes = vec![0; format.row_bytes(N_VALUES).unwrap()];
        format.quantize_row(&values(), &mut bytes).unwrap();
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
    for format in Format::all() {
        let (values, mut bytes) = (values(), vec![0; format.row_bytes(N_VALUES).unwrap()]);
        group.bench_function(format.name(), |b| {
            b.iter(|| format.quantize_row(black_box(&values), &mut bytes).unwrap());
        });
    }
}

fn activations(c: &mut Criterion) {
    let mut group = c.benchmark_group("activations");
    group.throughput(Throughput::Elements(N_VALUES as u64));
    for format in [
        ActivationFormat::Q8_0,
        ActivationFormat::Q8_1,
        ActivationFormat::Q8K,
    ] {
        let (values, mut bytes) = (values(), vec![0; format.row_bytes(N_VALUES).unwrap()]);
        for features in CpuFeatures::each_path() {
            group.bench_function(format!("{}/{features}", format.name()), |b| {
                b.iter(|| {
                    format
                        .quantize_row(features, black_box(&values), &mut bytes)
                        .unwrap();
                });
            });
        }
    }
}

criterion_group!(benches, dot, dequantize, quantize, activations);
criterion_main!(benches);
