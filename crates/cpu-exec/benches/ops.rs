//! Measures the operations between the matrix products of a forward pass, for one token and for 256: norms, positions,
//! activations, sums, and rows of the embedding.
//!
//! One thread, processor time, the widths of Llama 3.2 1B.

mod cpu_time;

use cpu_time::CpuTime;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tokenmill_backend::{Activation, Rope, RopeAxes, RopeStyle};
use tokenmill_cpu_exec::{Host, Matrix, RopeAngles, add, embed, gated, layer_norm, rms_norm, rope};
use tokenmill_quant::{CpuFeatures, Format};

const N_EMBD: usize = 2048;
const N_FF: usize = 8192;
const HEAD_DIM: usize = 64;
const LENGTHS: [usize; 2] = [1, 256];

fn wave(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i as f32 * 0.37).sin()).collect()
}

fn host() -> Host {
    Host::new(1, CpuFeatures::detect()).expect("a pool")
}

fn norms(c: &mut Criterion<CpuTime>) {
    let (host, weight) = (host(), wave(N_EMBD));
    let mut group = c.benchmark_group("norm");
    for n_tokens in LENGTHS {
        let x = wave(n_tokens * N_EMBD);
        let mut out = vec![0.0; x.len()];
        group.throughput(Throughput::Elements(x.len() as u64));
        group.bench_function(BenchmarkId::new("rms_norm", n_tokens), |b| {
            b.iter(|| rms_norm(&host, &x, N_EMBD, Some(&weight), 1e-5, &mut out));
        });
        group.bench_function(BenchmarkId::new("layer_norm", n_tokens), |b| {
            b.iter(|| layer_norm(&host, &x, N_EMBD, Some(&weight), None, 1e-5, &mut out));
        });
    }
    group.finish();
}

fn elementwise(c: &mut Criterion<CpuTime>) {
    let host = host();
    let mut group = c.benchmark_group("elementwise");
    for n_tokens in LENGTHS {
        let (mut x, y) = (wave(n_tokens * N_FF), wave(n_tokens * N_FF));
        group.throughput(Throughput::Elements(x.len() as u64));
        group.bench_function(BenchmarkId::new("add", n_tokens), |b| {
            b.iter(|| add(&host, &mut x, &y));
        });
        for activation in [Activation::Silu, Activation::GeluTanh] {
            // Each round begins with the same gate, since repeated gating would leave subnormal numbers.
            group.bench_function(BenchmarkId::new(format!("gated-{activation:?}"), n_tokens), |b| {
                b.iter_batched_ref(
                    || wave(n_tokens * N_FF),
                    |gate| gated(&host, activation, gate, &y),
                    criterion::BatchSize::LargeInput,
                );
            });
        }
    }
    group.finish();
}

fn positions(c: &mut Criterion<CpuTime>) {
    let host = host();
    let inv_freqs: Vec<f32> = (0..HEAD_DIM / 2)
        .map(|pair| 5e5f32.powf(-2.0 * pair as f32 / HEAD_DIM as f32))
        .collect();
    let kind = Rope {
        style: RopeStyle::Norm,
        head_dim: HEAD_DIM,
        n_dims: HEAD_DIM,
        inv_freqs: inv_freqs.as_slice(),
        magnitude: 1.0,
        axes: RopeAxes::One,
    };
    let mut angles = RopeAngles::default();
    let mut group = c.benchmark_group("rope");
    for n_tokens in LENGTHS {
        let positions: Vec<u32> = (0..n_tokens as u32).collect();
        let mut x = wave(n_tokens * N_EMBD);
        group.throughput(Throughput::Elements(x.len() as u64));
        group.bench_function(BenchmarkId::new("angles", n_tokens), |b| {
            b.iter(|| angles.fill(&kind, &positions));
        });
        for style in [RopeStyle::Norm, RopeStyle::Neox] {
            group.bench_function(BenchmarkId::new(format!("{style:?}"), n_tokens), |b| {
                b.iter(|| rope(&host, style, &angles, &mut x, N_EMBD / HEAD_DIM, HEAD_DIM));
            });
        }
    }
    group.finish();
}

fn embedding(c: &mut Criterion<CpuTime>) {
    let host = host();
    let rows: Vec<u32> = (0..256).collect();
    let mut out = vec![0.0; rows.len() * N_EMBD];
    let mut group = c.benchmark_group("embed");
    group.throughput(Throughput::Elements(out.len() as u64));
    for format in Format::all() {
        let mut bytes = vec![0; format.row_bytes(N_EMBD).expect("whole blocks")];
        if format.has_encoder() {
            format
                .quantize_row(&wave(N_EMBD), &mut bytes)
                .expect("whole blocks");
        }
        let bytes = bytes.repeat(rows.len());
        let matrix = Matrix::pack(&host, format.tensor_type(), rows.len(), N_EMBD, &bytes).expect("it fits");
        group.bench_function(format.name(), |b| {
            b.iter(|| embed(&host, &matrix, &rows, &mut Vec::new(), &mut out).expect("it is in memory"));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .with_measurement(CpuTime)
        .sample_size(10)
        .warm_up_time(std::time::Duration::from_millis(200))
        .measurement_time(std::time::Duration::from_millis(600));
    targets = norms, elementwise, positions, embedding
}
criterion_main!(benches);
