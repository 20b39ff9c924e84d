//! Attention: decode at depth against the bytes of keys and values, prefill in multiplies per second.
//!
//! One thread, processor time. 32 query heads share 8 heads of 64 columns; 128 share one row of latent attention.

mod cpu_time;

use cpu_time::CpuTime;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tokenmill_backend::{Attention, KvLayerShape, KvType, PAGE_TOKENS};
use tokenmill_cpu_exec::{AttentionBatch, Host, KvStore, Workspace, attention};
use tokenmill_quant::CpuFeatures;

#[derive(Clone, Copy)]
struct Heads {
    n: usize,
    kv: KvLayerShape,
}

const GROUPED: Heads = Heads {
    n: 32,
    kv: KvLayerShape {
        n_kv_heads: 8,
        head_dim_k: 64,
        head_dim_v: 64,
        has_values_in_keys: false,
    },
};

/// As in DeepSeek V3.
const LATENT: Heads = Heads {
    n: 128,
    kv: KvLayerShape {
        n_kv_heads: 1,
        head_dim_k: 576,
        head_dim_v: 512,
        has_values_in_keys: true,
    },
};

fn row(len: usize, step: f32) -> Vec<f32> {
    (0..len).map(|i| (i as f32 * step).sin()).collect()
}

/// Attends from the last `n_tokens` of a context of `depth`.
fn bench(c: &mut Criterion<CpuTime>, group: &str, heads: Heads, depth: usize, n_tokens: usize) {
    let Heads { n: n_heads, kv } = heads;
    let host = Host::new(1, CpuFeatures::detect()).expect("a pool");
    let mut workspace = Workspace::new(&host);
    let params = Attention {
        layer_idx: 0,
        n_heads,
        scale: 0.125,
        is_causal: true,
        window: None,
        is_chunked: false,
        softcap: None,
        sinks: None,
        slopes: None,
    };
    let positions: Vec<u32> = (depth - n_tokens..depth)
        .map(|position| position as u32)
        .collect();
    let n_pages = depth.div_ceil(PAGE_TOKENS);
    let pages: Vec<u32> = (0..n_pages as u32).collect();
    let batch = AttentionBatch {
        last_seen: &[],
        window_seen: &[],
        positions: &positions,
        seq_starts: &[0, n_tokens as u32],
        page_starts: &[0, n_pages as u32],
        pages: &pages,
    };
    let slots: Vec<u32> = (0..depth as u32).collect();
    let width = kv.n_kv_heads * kv.head_dim_k;
    let q = row(n_tokens * n_heads * kv.head_dim_k, 0.13);
    let mut out = vec![0.0; n_tokens * n_heads * kv.head_dim_v];
    let n_seen: usize = positions.iter().map(|position| *position as usize + 1).sum();
    let mut group = c.benchmark_group(group);
    for ty in KvType::ALL {
        let mut store = KvStore::new(&[kv], n_pages, ty, ty).expect("a store that fits");
        store.store(
            &host,
            0,
            &slots,
            &row(depth * width, 0.37),
            &if kv.has_values_in_keys {
                Vec::new()
            } else {
                row(depth * width, 0.11)
            },
        );
        group.throughput(if n_tokens == 1 {
            Throughput::Bytes(store.n_bytes() as u64)
        } else {
            // Multiply-accumulates.
            Throughput::Elements(((kv.head_dim_k + kv.head_dim_v) * n_heads * n_seen) as u64)
        });
        group.bench_function(ty.to_string(), |b| {
            b.iter(|| attention(&host, &mut workspace, &store, &q, &batch, &params, &mut out));
        });
    }
    group.finish();
}

fn all(c: &mut Criterion<CpuTime>) {
    bench(c, "decode-2048", GROUPED, 2048, 1);
    bench(c, "decode-4096", GROUPED, 4096, 1);
    bench(c, "decode-16384", GROUPED, 16384, 1);
    bench(c, "prefill-512", GROUPED, 512, 512);
    bench(c, "prefill-512-of-2560", GROUPED, 2560, 512);
    bench(c, "prefill-512-of-4608", GROUPED, 4608, 512);
    bench(c, "latent-decode-8192", LATENT, 8192, 1);
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .with_measurement(CpuTime)
        .sample_size(10)
        .warm_up_time(std::time::Duration::from_millis(200))
        .measurement_time(std::time::Duration::from_millis(600));
    targets = all
}
criterion_main!(benches);
