//! The overhead of a job: the pool, and rayon inside one `install`.
//!
//! A decode step is a hundred and more jobs of some ten microseconds, so the time to publish a job and to wait for its end
//! counts. A job here is 32 chunks, each a sum over some numbers.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use rayon::prelude::{IntoParallelIterator, ParallelIterator};
use tokenmill_cpu_exec::Pool;

const N_CHUNKS: usize = 32;
/// Jobs of a step.
const N_JOBS: usize = 100;

fn work(chunk_idx: usize, len: usize) -> u64 {
    (0..len as u64).fold(chunk_idx as u64, |sum, i| black_box(sum ^ i.wrapping_mul(0x9e37)))
}

fn bench(criterion: &mut Criterion) {
    let n_threads = Pool::n_available();
    let pool = Pool::new(n_threads).expect("threads start");
    let rayon = rayon::ThreadPoolBuilder::new()
        .num_threads(n_threads)
        .build()
        .expect("threads start");
    for (name, len) in [("empty", 0), ("short", 200), ("long", 2000)] {
        let mut group = criterion.benchmark_group(format!("100 jobs of {N_CHUNKS} {name} chunks"));
        group.bench_function("pool", |bencher| {
            bencher.iter(|| {
                let _entered = pool.enter();
                for _ in 0..N_JOBS {
                    pool.run(N_CHUNKS, |_, chunk_idx| {
                        black_box(work(chunk_idx, len));
                    });
                }
            });
        });
        group.bench_function("rayon", |bencher| {
            bencher.iter(|| {
                rayon.install(|| {
                    for _ in 0..N_JOBS {
                        (0..N_CHUNKS).into_par_iter().for_each(|chunk_idx| {
                            black_box(work(chunk_idx, len));
                        });
                    }
                });
            });
        });
        group.bench_function("one thread", |bencher| {
            bencher.iter(|| {
                for _ in 0..N_JOBS {
                    for chunk_idx in 0..N_CHUNKS {
                        black_box(work(chunk_idx, len));
                    }
                }
            });
        });
        group.finish();
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
