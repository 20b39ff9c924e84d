//! Matrix products: decode against the machine's read bandwidth, prefill in multiplies per second.
//!
//! One thread, processor time. Compare `decode/*` with `limits/read`, the bandwidth of one thread, and `prefill-*` with
//! `limits/multiply`. Weights of `decode` are larger than the last-level cache.

mod cpu_time;

use cpu_time::CpuTime;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tokenmill_cpu_exec::{Host, Matrix, ReadBuffer, Workspace, linear, multiply_bytes};
use tokenmill_quant::{CpuFeatures, Format};

/// Rows of one encoded pattern, repeated: the values do not matter, but must be finite.
fn matrix(host: &Host, format: &Format, n_rows: usize, n_cols: usize) -> Matrix {
    let row_bytes = format.row_bytes(n_cols).expect("whole blocks");
    let values: Vec<f32> = (0..n_cols).map(|i| (i as f32 * 0.37).sin()).collect();
    let mut row = vec![0; row_bytes];
    // Zero blocks, for formats without an encoder, take as long.
    if format.has_encoder() {
        format.quantize_row(&values, &mut row).expect("whole blocks");
    }
    Matrix::pack(host, format.tensor_type(), n_rows, n_cols, &row.repeat(n_rows)).expect("a matrix that fits")
}

fn host() -> Host {
    Host::new(1, CpuFeatures::detect()).expect("a pool")
}

fn limits(c: &mut Criterion<CpuTime>) {
    const N_BYTES: usize = 1 << 29;
    const N_ROUNDS: usize = 100_000;
    let host = host();
    let mut group = c.benchmark_group("limits");
    let buffer = ReadBuffer::new(&host, N_BYTES).expect("half a gigabyte");
    group.throughput(Throughput::Bytes(N_BYTES as u64));
    group.bench_function("read", |b| b.iter(|| buffer.read(&host)));
    group.throughput(Throughput::Elements(multiply_bytes(&host, N_ROUNDS) as u64));
    group.bench_function("multiply", |b| b.iter(|| multiply_bytes(&host, N_ROUNDS)));
    group.finish();
}

fn decode(c: &mut Criterion<CpuTime>) {
    let host = host();
    let (n_rows, n_cols) = (65_536, 2048);
    let x: Vec<f32> = (0..n_cols).map(|i| (i as f32 * 0.11).cos()).collect();
    let mut out = vec![0.0; n_rows];
    let mut workspace = Workspace::new(&host);
    let mut group = c.benchmark_group("decode");
    for format in Format::all() {
        let matrix = matrix(&host, format, n_rows, n_cols);
        group.throughput(Throughput::Bytes(matrix.n_bytes() as u64));
        group.bench_function(format.name(), |b| {
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
    for n_tokens in [8, 16, 512] {
        let x: Vec<f32> = (0..n_tokens * n_cols).map(|i| (i as f32 * 0.11).cos()).collect();
        let mut out = vec![0.0; n_tokens * n_rows];
        let mut group = c.benchmark_group(format!("prefill-{n_tokens}"));
        // Elements are multiply-accumulates.
        group.throughput(Throughput::Elements((n_tokens * n_rows * n_cols) as u64));
        for format in Format::all() {
            let matrix = matrix(&host, format, n_rows, n_cols);
            group.bench_function(format.name(), |b| {
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
    targets = limits, decode, prefill
}
criterion_main!(benches);
