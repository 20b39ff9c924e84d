//! Matrix products: decode against the machine's read bandwidth, prefill in multiplies per second.
//!
//! One thread, processor time. `limits/read` is the bandwidth of one thread; compare `decode/*` with it. Weights of `decode` are larger than the
//! last-level cache.

mod cpu_time;

use std::hint::black_box;

use cpu_time::CpuTime;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tokenmill_cpu_exec::{Host, Matrix, Workspace, linear};
use tokenmill_gguf::TensorType;
use tokenmill_quant::{CpuFeatures, Format};

const TYPES: [TensorType; 13] = [
    TensorType::Q4_0,
    TensorType::Q4_1,
    TensorType::Q5_0,
    TensorType::Q5_1,
    TensorType::Q8_0,
    TensorType::Q2_K,
    TensorType::Q3_K,
    TensorType::Q4_K,
    TensorType::Q5_K,
    TensorType::Q6_K,
    TensorType::F16,
    TensorType::BF16,
    TensorType::F32,
];

/// Rows of one encoded pattern, repeated: the values do not matter, but must be finite.
fn matrix(host: &Host, ty: TensorType, n_rows: usize, n_cols: usize) -> Matrix {
    let format = Format::of(ty).expect("a type of the table");
    let row_bytes = format.row_bytes(n_cols).expect("whole blocks");
    let values: Vec<f32> = (0..n_cols).map(|i| (i as f32 * 0.37).sin()).collect();
    let mut row = vec![0; row_bytes];
    format.quantize_row(&values, &mut row).expect("whole blocks");
    Matrix::pack(host, ty, n_rows, n_cols, &row.repeat(n_rows)).expect("a matrix that fits")
}

fn host() -> Host {
    Host::new(1, CpuFeatures::detect()).expect("a pool")
}

fn read_bandwidth(c: &mut Criterion<CpuTime>) {
    const LEN: usize = 1 << 26;
    let words = vec![1u64; LEN];
    let mut group = c.benchmark_group("limits");
    group.throughput(Throughput::Bytes(8 * LEN as u64));
    let host = host();
    {
        group.bench_function("read", |b| {
            b.iter(|| {
                host.pool().run(LEN / 65_536, |_, chunk_idx| {
                    let words = &words[chunk_idx * 65_536..][..65_536];
                    black_box(words.iter().fold(0u64, |sum, word| sum.wrapping_add(*word)));
                });
            });
        });
    }
    group.finish();
}

fn decode(c: &mut Criterion<CpuTime>) {
    let host = host();
    let (n_rows, n_cols) = (65_536, 2048);
    let x: Vec<f32> = (0..n_cols).map(|i| (i as f32 * 0.11).cos()).collect();
    let mut out = vec![0.0; n_rows];
    let mut workspace = Workspace::new(&host);
    let mut group = c.benchmark_group("decode");
    for ty in TYPES {
        let matrix = matrix(&host, ty, n_rows, n_cols);
        group.throughput(Throughput::Bytes(matrix.n_bytes() as u64));
        group.bench_function(ty.name(), |b| {
            let _entered = host.pool().enter();
            b.iter(|| linear(&host, &mut workspace, &x, &matrix, &mut out));
        });
    }
    group.finish();
}

fn prefill(c: &mut Criterion<CpuTime>) {
    let host = host();
    let (n_rows, n_cols) = (2048, 2048);
    let mut workspace = Workspace::new(&host);
    for n_tokens in [8, 512] {
        let x: Vec<f32> = (0..n_tokens * n_cols).map(|i| (i as f32 * 0.11).cos()).collect();
        let mut out = vec![0.0; n_tokens * n_rows];
        let mut group = c.benchmark_group(format!("prefill-{n_tokens}"));
        // Elements are multiply-accumulates.
        group.throughput(Throughput::Elements((n_tokens * n_rows * n_cols) as u64));
        for ty in TYPES {
            let matrix = matrix(&host, ty, n_rows, n_cols);
            group.bench_function(ty.name(), |b| {
                let _entered = host.pool().enter();
                b.iter(|| linear(&host, &mut workspace, &x, &matrix, &mut out));
            });
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .with_measurement(CpuTime)
        .sample_size(10)
        .warm_up_time(std::time::Duration::from_millis(200))
        .measurement_time(std::time::Duration::from_millis(600));
    targets = read_bandwidth, decode, prefill
}
criterion_main!(benches);
