//! [`Runs`]: how the chunks of a job are divided between its threads, and which chunk a thread takes next.
//!
//! It knows no threads, so that tests can simulate machines that are not available: more threads, two memory
//! nodes, threads that wake late. Invariant: whatever the order of the claims, each chunk is claimed once.

use super::sync::{AtomicUsize, Ordering};

/// The maximum number of runs of chunks in a job; more threads share them.
pub(super) const MAX_RUNS: usize = 16;

/// The next chunk of a run, on its own cache line.
#[repr(align(128))]
pub(super) struct Cursor(pub(super) AtomicUsize);

/// The division of a job into runs.
#[derive(Clone, Copy)]
pub(super) struct Runs {
    pub(super) n_chunks: usize,
    /// The number of threads that take part.
    pub(super) width: usize,
}

impl Runs {
    /// Returns the number of runs of chunks: one per thread, up to a maximum, because searching the others'
    /// runs takes time.
    pub(super) fn n_runs(&self) -> usize {
        self.width.min(MAX_RUNS)
    }

    /// Returns the number of chunks before run `run_idx`.
    pub(super) fn run_start(&self, run_idx: usize) -> usize {
        let (n_each, n_longer) = (self.n_chunks / self.n_runs(), self.n_chunks % self.n_runs());
        run_idx * n_each + run_idx.min(n_longer)
    }

    /// Returns the run that a thread begins with. If there are more threads than runs, neighbours share one:
    /// they are more often on the same memory node than others.
    fn first_run(&self, worker_idx: usize) -> usize {
        worker_idx * self.n_runs() / self.width
    }

    /// Claims a chunk for a thread, from its own run or the next run that has one left. `n_passed` counts the
    /// runs that it has found exhausted.
    pub(super) fn claim(&self, cursors: &[Cursor], worker_idx: usize, n_passed: &mut usize) -> Option<usize> {
        let n_runs = self.n_runs();
        while *n_passed < n_runs {
            let run_idx = (self.first_run(worker_idx) + *n_passed) % n_runs;
            let (cursor, end) = (&cursors[run_idx].0, self.run_start(run_idx + 1));
            // A load first leaves the cache line of an exhausted run where it is.
            if cursor.load(Ordering::Relaxed) < end {
                let chunk_idx = cursor.fetch_add(1, Ordering::Relaxed);
                if chunk_idx < end {
                    return Some(chunk_idx);
                }
            }
            *n_passed += 1;
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn runs_cover_the_chunks_in_order_and_are_even() {
        for n_chunks in 0..70 {
            for width in 1..40 {
                let runs = Runs { n_chunks, width };
                let n_runs = runs.n_runs();
                assert_eq!(n_runs, width.min(MAX_RUNS));
                assert_eq!(runs.run_start(0), 0);
                assert_eq!(runs.run_start(n_runs), n_chunks);
                for run_idx in 0..n_runs {
                    let len = runs.run_start(run_idx + 1).checked_sub(runs.run_start(run_idx));
                    let shortest = n_chunks / n_runs;
                    assert!(
                        len == Some(shortest) || len == Some(shortest + 1),
                        "run {run_idx} of {n_runs}, {n_chunks} chunks: {len:?}"
                    );
                }
            }
        }
    }

    /// A simulated machine: times are in units of a chunk whose memory is on the thread's own node.
    struct Machine {
        n_threads: usize,
        /// The time when each thread begins; infinite for never.
        wakes_at: fn(usize) -> f64,
        /// The time for a chunk whose memory is on the other of two nodes.
        foreign_cost: f64,
    }

    /// The result of a job.
    struct Played {
        /// The number of chunks whose memory was on the other node.
        n_foreign: usize,
        ends_at: f64,
    }

    impl Machine {
        /// Returns the node of a thread, or of the memory of a chunk: the first half of either is on the
        /// first node.
        fn node(at: usize, n: usize) -> usize {
            2 * at / n
        }

        fn play(&self, n_chunks: usize) -> Played {
            let runs = Runs {
                n_chunks,
                width: self.n_threads,
            };
            let cursors: Vec<Cursor> = (0..runs.n_runs())
                .map(|run_idx| Cursor(AtomicUsize::new(runs.run_start(run_idx))))
                .collect();
            let mut times: Vec<f64> = (0..self.n_threads).map(self.wakes_at).collect();
            let mut n_passed = vec![0; self.n_threads];
            let mut n_claims = vec![0; n_chunks];
            let mut played = Played {
                n_foreign: 0,
                ends_at: 0.0,
            };
            let mut is_done = vec![false; self.n_threads];
            // The earliest thread claims next.
            while let Some(thread) = (0..self.n_threads)
                .filter(|&thread| !is_done[thread] && times[thread].is_finite())
                .min_by(|&a, &b| times[a].total_cmp(&times[b]))
            {
                let Some(chunk_idx) = runs.claim(&cursors, thread, &mut n_passed[thread]) else {
                    is_done[thread] = true;
                    continue;
                };
                n_claims[chunk_idx] += 1;
                let is_foreign = Self::node(thread, self.n_threads) != Self::node(chunk_idx, n_chunks);
                played.n_foreign += usize::from(is_foreign);
                times[thread] += if is_foreign { self.foreign_cost } else { 1.0 };
                played.ends_at = played.ends_at.max(times[thread]);
            }
            assert!(n_claims.iter().all(|&n| n == 1), "{n_claims:?}");
            played
        }
    }

    #[test]
    fn threads_in_step_keep_to_the_memory_of_their_node() {
        for n_threads in [8, 16, 32] {
            for n_chunks in [64, 128, 512] {
                let machine = Machine {
                    n_threads,
                    wakes_at: |_| 0.0,
                    foreign_cost: 1.7,
                };
                let Played { n_foreign, ends_at } = machine.play(n_chunks);
                let case = format!("{n_threads} threads, {n_chunks} chunks");
                assert_eq!(n_foreign, 0, "{case}");
                assert!(
                    (ends_at - (n_chunks / n_threads) as f64).abs() < 1e-9,
                    "{case}: {ends_at}"
                );
            }
        }
    }

    #[test]
    fn threads_that_wake_late_or_never_cost_their_share_and_two_chunks() {
        for n_threads in [8, 16, 32] {
            for n_chunks in [64, 500] {
                for (wakes_at, n_awake, late) in [
                    (
                        (|thread| if thread % 4 == 3 { f64::INFINITY } else { 0.0 }) as fn(usize) -> f64,
                        n_threads * 3 / 4,
                        0.0,
                    ),
                    (|thread| (thread % 3) as f64, n_threads, 2.0),
                    (|thread| if thread == 0 { 0.0 } else { 1.0 }, n_threads, 1.0),
                ] {
                    let machine = Machine {
                        n_threads,
                        wakes_at,
                        foreign_cost: 1.0,
                    };
                    let ends_at = machine.play(n_chunks).ends_at;
                    let best = n_chunks as f64 / n_awake as f64;
                    assert!(
                        ends_at <= best + late + 2.0,
                        "{n_threads} threads, {n_chunks} chunks: {ends_at}, at best {best}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_node_that_is_slow_to_wake_is_helped_by_the_other() {
        for n_threads in [8_usize, 16, 32] {
            let machine = Machine {
                n_threads,
                // The leader's half is awake; the other half wakes after the time of half of the job.
                wakes_at: |thread| if thread < 4 { 0.0 } else { 8.0 },
                foreign_cost: 1.7,
            };
            let n_chunks = 16 * n_threads;
            let ends_at = machine.play(n_chunks).ends_at;
            assert!(ends_at <= 16.0 + 8.0 + 1.7, "{n_threads} threads: {ends_at}");
        }
    }
}
