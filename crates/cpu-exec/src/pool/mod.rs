//! [`Pool`]: the threads that share one forward pass.
//!
//! The forward pass is a sequence of small parallel jobs, more than a hundred per token. So the pool is
//! entered once per forward pass ([`Pool::enter`] keeps its workers awake), a job is one published word, and
//! threads claim chunks from atomic cursors. Consecutive chunks are usually adjacent in memory too, and
//! kernels prefetch. So the chunks are divided into runs, one for each of up to sixteen threads, and a thread
//! that exhausts its run steals from the front of the next. The protocol is in [`gate`], the parts that a job
//! may write to are in [`parts`], and the processors that threads are pinned to are in [`placed`].
//!
//! Invariant: the assignment of chunks to workers never influences a result. Callers ensure this: every chunk
//! has its own output, and reductions have an order that depends on positions only.

mod affinity;
mod claims;
mod gate;
mod parts;
mod placed;
mod sync;

use std::{
    any::Any,
    cell::UnsafeCell,
    marker::PhantomData,
    num::NonZeroUsize,
    panic::{self, AssertUnwindSafe},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread::JoinHandle,
};

use claims::{Cursor, MAX_RUNS, Runs};
use gate::{Gate, Patience};
use parts::SendPtr;
pub(crate) use parts::{Columns, Few, Partition, Patch, Patches, Rect};
use placed::{LeaderPlace, ThreadPlaces};
use sync::{AtomicUsize, Ordering};

use crate::{CpuExecError, Places};

/// The maximum number of threads: more are a mistake in a configuration, not a machine.
const MAX_THREADS: usize = 1024;

/// A leader and its workers. The thread that calls [`Pool::run`] is worker 0 of that job.
///
/// ```
/// let pool = tokenmill_cpu_exec::Pool::new(2)?;
/// let mut squares = vec![0; 100];
/// pool.for_each_chunk(&mut squares, 10, |chunk_idx, chunk| {
///     for (i, square) in chunk.iter_mut().enumerate() {
///         *square = (chunk_idx * 10 + i).pow(2);
///     }
/// });
/// assert_eq!(squares[99], 9801);
/// # Ok::<(), tokenmill_cpu_exec::CpuExecError>(())
/// ```
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// The lock of the thread that leads a job; a second caller runs its job alone.
    leader: Mutex<()>,
    leader_place: Option<LeaderPlace>,
}

type JobFn<'a> = dyn Fn(usize, usize) + Sync + 'a;

#[derive(Clone, Copy)]
struct Job {
    /// The function to call with the worker's and the chunk's index. Its lifetime is erased: it is called
    /// only while the leader waits.
    run: Option<&'static JobFn<'static>>,
    runs: Runs,
}

struct Shared {
    gate: Gate,
    cursors: [Cursor; MAX_RUNS],
    /// The number of entered forward passes; while there is one, idle workers wait awake for the next job.
    n_entered: AtomicUsize,
    /// The number of threads that may take part in the next job, including the leader.
    width: AtomicUsize,
    /// Whether there are more threads than the process may run at once; then waiting awake only wastes time.
    is_oversubscribed: bool,
    job: UnsafeCell<Job>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is the only field that is not `Sync`. The leader writes it while no job is open, workers read it between
// `try_enter` and `leave`, and the gate orders the two. The function behind the pointer is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer in `job` is used only while the leader keeps the function alive.
unsafe impl Send for Shared {}

impl Pool {
    /// Starts `n_threads - 1` workers.
    ///
    /// # Errors
    /// [`CpuExecError::ThreadCount`] for 0 or more than 1024 threads, [`CpuExecError::ThreadStart`] if the
    /// system does not start one.
    pub fn new(n_threads: usize) -> Result<Self, CpuExecError> {
        Self::placed(n_threads, &Places::default())
    }

    /// Does the same as [`Pool::new`], and pins the workers to their `places`. The thread that calls
    /// [`Pool::enter`] is pinned to its own place until it has left.
    ///
    /// # Errors
    /// Returns the errors of [`Pool::new`], and [`CpuExecError::Places`] for places that the process may not
    /// use.
    pub fn placed(n_threads: usize, places: &Places) -> Result<Self, CpuExecError> {
        if n_threads == 0 || n_threads > MAX_THREADS {
            return Err(CpuExecError::ThreadCount {
                found: n_threads,
                maximum: MAX_THREADS,
            });
        }
        let mut thread_places = ThreadPlaces::of(n_threads, places)?;
        let shared = Arc::new(Shared {
            gate: Gate::new(),
            cursors: std::array::from_fn(|_| Cursor(AtomicUsize::new(0))),
            n_entered: AtomicUsize::new(0),
            width: AtomicUsize::new(n_threads),
            is_oversubscribed: n_threads > Self::n_available().min(thread_places.n_cpus),
            job: UnsafeCell::new(Job {
                run: None,
                runs: Runs {
                    n_chunks: 0,
                    width: 0,
                },
            }),
            panic: Mutex::new(None),
        });
        let mut pool = Self {
            shared,
            threads: Vec::with_capacity(n_threads - 1),
            leader: Mutex::new(()),
            leader_place: thread_places.leader(),
        };
        let (placed, results) = mpsc::channel();
        for worker_idx in 1..n_threads {
            let (shared, placed) = (Arc::clone(&pool.shared), placed.clone());
            let cpus = thread_places.next_worker();
            let work = move || {
                let _ = placed.send(cpus.map_or(Ok(()), |cpus| affinity::keep_to(&cpus)));
                drop(placed);
                shared.work(worker_idx);
            };
            let thread = std::thread::Builder::new()
                .name(format!("mill-{worker_idx}"))
                .spawn(work)
                .map_err(|source| CpuExecError::ThreadStart { worker_idx, source })?;
            pool.threads.push(thread);
        }
        drop(placed);
        if pool.leader_place.is_some() {
            results.iter().collect::<Result<(), _>>()?;
        }
        Ok(pool)
    }

    /// Returns the number of threads that this process may run at once: processors, less the limits of
    /// affinity and cgroup quotas.
    pub fn n_available() -> usize {
        std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
    }

    /// Returns the number of threads of the pool, including the leader.
    pub fn n_threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Sets the number of threads from the next job on (decode and prefill may use different widths); it is
    /// clamped to `1..=n_threads`. Results do not depend on it.
    pub fn set_width(&self, width: usize) {
        self.shared
            .width
            .store(width.clamp(1, self.n_threads()), Ordering::Relaxed);
    }

    /// Keeps the workers awake between jobs until the guard is dropped; a forward pass holds one guard.
    pub fn enter(&self) -> Entered<'_> {
        self.hold();
        Entered {
            pool: self,
            of_this_thread: PhantomData,
        }
    }

    /// Does the same as [`Pool::enter`], until the same thread calls [`Pool::release`] as many times.
    pub(crate) fn hold(&self) {
        if let Some(place) = &self.leader_place {
            place.take();
        }
        self.shared.n_entered.fetch_add(1, Ordering::SeqCst);
        if self.shared.width.load(Ordering::Relaxed) > 1 {
            self.shared.gate.wake_sleepers();
        }
    }

    pub(crate) fn release(&self) {
        self.shared.n_entered.fetch_sub(1, Ordering::SeqCst);
        if let Some(place) = &self.leader_place {
            place.leave();
        }
    }

    /// Calls `f(worker_idx, chunk_idx)` once for every chunk and returns after all calls. No two calls that
    /// run at the same time have the same `worker_idx`, which is below [`Pool::n_threads`].
    ///
    /// If it is called from within a job, or while another thread leads one, it runs all chunks on the
    /// calling thread.
    ///
    /// # Panics
    /// If a chunk panics; the panic is resumed after all running chunks have ended.
    pub fn run(&self, n_chunks: usize, f: impl Fn(usize, usize) + Sync) {
        let width = self.shared.width.load(Ordering::Relaxed).min(n_chunks);
        let leader = if width > 1 {
            self.leader.try_lock().ok()
        } else {
            None
        };
        let Some(leader) = leader else {
            (0..n_chunks).for_each(|chunk_idx| f(0, chunk_idx));
            return;
        };
        let shared = &*self.shared;
        let f: &JobFn<'_> = &f;
        // SAFETY: only the lifetime changes. The function is called between `publish` and the return of `close` below,
        // while `f` is borrowed.
        let run = unsafe { std::mem::transmute::<&JobFn<'_>, &'static JobFn<'static>>(f) };
        let runs = Runs { n_chunks, width };
        let job = Job { run: Some(run), runs };
        // SAFETY: the leader lock is held and the job before was closed, so no other thread reads or writes the job.
        unsafe {
            *shared.job.get() = job;
        }
        for (run_idx, cursor) in shared.cursors[..runs.n_runs()].iter().enumerate() {
            cursor.0.store(runs.run_start(run_idx), Ordering::Relaxed);
        }
        shared.gate.publish();
        shared.run_chunks(f, &runs, 0);
        shared.gate.close(shared.patience());
        // SAFETY: as above. The erased lifetime ends here.
        unsafe {
            (*shared.job.get()).run = None;
        }
        let payload = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(leader);
        if let Some(payload) = payload {
            panic::resume_unwind(payload);
        }
    }

    /// Does the same as [`Pool::run`], and passes each call the scratch of its worker.
    ///
    /// # Panics
    /// If there is less scratch than threads, or a chunk panics.
    pub fn run_with<S: Send>(&self, scratch: &mut [S], n_chunks: usize, f: impl Fn(&mut S, usize) + Sync) {
        assert!(
            scratch.len() >= self.n_threads(),
            "{} scratch areas for {} threads",
            scratch.len(),
            self.n_threads()
        );
        let base = SendPtr::new(scratch.as_mut_ptr());
        self.run(n_chunks, |worker_idx, chunk_idx| {
            // SAFETY: `worker_idx` is below the slice's length, and no two calls that run at the same time share it.
            let own = unsafe { &mut *base.get().add(worker_idx) };
            f(own, chunk_idx);
        });
    }

    /// Calls `f(chunk_idx, chunk)` for the consecutive chunks of `items`, each `chunk_len` long, the last one
    /// shorter.
    ///
    /// # Panics
    /// If `chunk_len` is 0, or a chunk panics.
    pub fn for_each_chunk<T: Send>(
        &self,
        items: &mut [T],
        chunk_len: usize,
        f: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let n_items = items.len();
        let chunks = Columns::new(items, n_items, chunk_len);
        self.for_each_part(chunks, |chunk_idx, mut chunk| f(chunk_idx, chunk.row(0)));
    }

    /// Calls `f(part_idx, part)` for every part of a buffer.
    ///
    /// # Panics
    /// If the code for a part panics.
    pub(crate) fn for_each_part<P: Partition>(&self, partition: P, f: impl Fn(usize, P::Part) + Sync) {
        self.run(partition.n_parts(), move |_, part_idx| {
            // SAFETY: every chunk runs once, and the partition is used up here.
            let part = unsafe { partition.part(part_idx) };
            f(part_idx, part);
        });
    }

    /// Does the same as [`Pool::for_each_part`], and passes each call the scratch of its worker.
    ///
    /// # Panics
    /// If there is less scratch than threads, or the code for a part panics.
    pub(crate) fn for_each_part_with<S: Send, P: Partition>(
        &self,
        scratch: &mut [S],
        partition: P,
        f: impl Fn(&mut S, usize, P::Part) + Sync,
    ) {
        self.run_with(scratch, partition.n_parts(), move |scratch, part_idx| {
            // SAFETY: every chunk runs once, and the partition is used up here.
            let part = unsafe { partition.part(part_idx) };
            f(scratch, part_idx, part);
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.gate.shut_down();
        for thread in self.threads.drain(..) {
            // A worker catches the panics of its chunks, so it ends in order.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("n_threads", &self.n_threads())
            .finish_non_exhaustive()
    }
}

/// A forward pass in progress; see [`Pool::enter`]. It ends on the thread that began it, because that thread
/// may be pinned until then:
///
/// ```compile_fail,E0277
/// let pool = tokenmill_cpu_exec::Pool::new(2).unwrap();
/// let entered = pool.enter();
/// std::thread::scope(|scope| scope.spawn(move || drop(entered)));
/// ```
#[derive(Debug)]
pub struct Entered<'a> {
    pool: &'a Pool,
    of_this_thread: PhantomData<*const ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.pool.release();
    }
}

impl Shared {
    fn patience(&self) -> Patience {
        let (spins, yields) = if self.is_oversubscribed {
            (0, 0)
        } else if self.n_entered.load(Ordering::Relaxed) > 0 {
            (20_000, 2_000)
        } else {
            (200, 0)
        };
        Patience { spins, yields }
    }

    fn work(&self, worker_idx: usize) {
        let mut epoch = 0;
        while let Some(entered) = self.gate.wait_and_enter(epoch, || self.patience()) {
            epoch = entered;
            // SAFETY: the job is open and this worker is inside, so the leader neither writes the job nor releases its
            // function: `close` waits for this worker.
            let job = unsafe { &*self.job.get() };
            if worker_idx < job.runs.width
                && let Some(run) = job.run
            {
                self.run_chunks(run, &job.runs, worker_idx);
            }
            self.gate.leave();
        }
    }

    fn run_chunks(&self, f: &JobFn<'_>, runs: &Runs, worker_idx: usize) {
        let result = panic::catch_unwind(AssertUnwindSafe(|| {
            let mut n_passed = 0;
            while let Some(chunk_idx) = runs.claim(&self.cursors, worker_idx, &mut n_passed) {
                f(worker_idx, chunk_idx);
            }
        }));
        if let Err(payload) = result {
            // The remaining chunks are skipped; the leader resumes the first panic.
            for cursor in &self.cursors[..runs.n_runs()] {
                cursor.0.store(runs.n_chunks, Ordering::Relaxed);
            }
            self.panic
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .get_or_insert(payload);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn every_chunk_runs_exactly_once() {
        for n_threads in [1, 2, 3, 9] {
            let pool = Pool::new(n_threads).unwrap();
            for n_chunks in [0, 1, 2, 7, 100] {
                let counts: Vec<AtomicU32> = (0..n_chunks).map(|_| AtomicU32::new(0)).collect();
                for round in 1..50 {
                    let _entered = (round % 2 == 0).then(|| pool.enter());
                    pool.set_width(round % 5);
                    pool.run(n_chunks, |worker_idx, chunk_idx| {
                        assert!(worker_idx < n_threads);
                        counts[chunk_idx].fetch_add(1, Ordering::Relaxed);
                    });
                    assert!(
                        counts
                            .iter()
                            .all(|count| count.load(Ordering::Relaxed) == round as u32)
                    );
                }
            }
        }
    }

    #[test]
    fn run_with_never_shares_scratch_between_running_chunks() {
        let pool = Pool::new(4).unwrap();
        let mut scratch = vec![(0usize, false); 4];
        pool.run_with(&mut scratch, 1000, |(count, is_in_use), _| {
            assert!(!std::mem::replace(is_in_use, true));
            *count += 1;
            std::thread::yield_now();
            *is_in_use = false;
        });
        assert_eq!(scratch.iter().map(|(count, _)| count).sum::<usize>(), 1000);
    }

    #[test]
    fn a_job_inside_a_job_runs_on_its_own_thread() {
        let pool = Pool::new(2).unwrap();
        let count = AtomicU32::new(0);
        pool.run(8, |_, _| {
            pool.run(8, |_, _| {
                count.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(count.into_inner(), 64);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_works_on() {
        let pool = Pool::new(3).unwrap();
        let result = panic::catch_unwind(AssertUnwindSafe(|| {
            pool.run(100, |_, chunk_idx| assert!(chunk_idx != 57, "chunk 57"));
        }));
        assert!(result.is_err());
        let count = AtomicU32::new(0);
        pool.run(100, |_, _| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.into_inner(), 100);
    }

    /// Yields until `is_met`, and returns whether it was met before the limit of yields. A chunk that waits
    /// keeps its job open, so that workers always come; the limit makes a fault fail the test instead of
    /// blocking it.
    pub(super) fn yield_until(is_met: impl Fn() -> bool) -> bool {
        for _ in 0..1 << 26 {
            if is_met() {
                return true;
            }
            std::thread::yield_now();
        }
        is_met()
    }

    #[test]
    fn every_chunk_runs_exactly_once_with_more_threads_than_runs() {
        let n_threads = MAX_RUNS + 4;
        let pool = Pool::new(n_threads).unwrap();
        for n_chunks in [MAX_RUNS, MAX_RUNS + 1, n_threads, 2 * MAX_RUNS + 3, 500] {
            let counts: Vec<AtomicU32> = (0..n_chunks).map(|_| AtomicU32::new(0)).collect();
            for round in 1..20 {
                let _entered = (round % 2 == 0).then(|| pool.enter());
                pool.run(n_chunks, |worker_idx, chunk_idx| {
                    assert!(worker_idx < n_threads);
                    counts[chunk_idx].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == round));
            }
        }
    }

    #[test]
    fn what_a_held_up_thread_leaves_of_its_run_is_taken_by_the_other() {
        let pool = Pool::new(2).unwrap();
        let n_chunks = 64;
        for _ in 0..10 {
            let n_others = AtomicUsize::new(0);
            // The thread with chunk 0 runs no other chunk before all others have run: the second thread must
            // take them.
            pool.run(n_chunks, |_, chunk_idx| {
                if chunk_idx > 0 {
                    n_others.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                let before = n_others.load(Ordering::Relaxed);
                let have_all_run = yield_until(|| n_others.load(Ordering::Relaxed) == n_chunks - 1);
                // If the system never ran the second thread, this says nothing about the pool.
                let has_come = n_others.load(Ordering::Relaxed) > before;
                assert!(
                    have_all_run || !has_come,
                    "chunks were left to the held up thread"
                );
            });
            assert_eq!(n_others.into_inner(), n_chunks - 1);
        }
    }

    #[test]
    fn a_panic_while_other_runs_are_half_done_ends_them_and_the_pool_works_on() {
        let (n_threads, run_len) = (3, 20);
        let (n_chunks, middle) = (n_threads * run_len, run_len / 2);
        let pool = Pool::new(n_threads).unwrap();
        for _ in 0..10 {
            let counts: Vec<AtomicUsize> = (0..n_chunks).map(|_| AtomicUsize::new(0)).collect();
            let n_half_done = AtomicUsize::new(0);
            let result = panic::catch_unwind(AssertUnwindSafe(|| {
                pool.run(n_chunks, |_, chunk_idx| {
                    counts[chunk_idx].fetch_add(1, Ordering::Relaxed);
                    if chunk_idx == 0 {
                        yield_until(|| n_half_done.load(Ordering::Relaxed) == n_threads - 1);
                        panic!("chunk 0");
                    }
                    if chunk_idx > run_len && chunk_idx % run_len == middle {
                        // The workers stay in the middle of their runs until the panic has exhausted all
                        // runs.
                        n_half_done.fetch_add(1, Ordering::Relaxed);
                        let cursors = &pool.shared.cursors[..n_threads];
                        let is_used_up = yield_until(|| {
                            cursors
                                .iter()
                                .all(|cursor| cursor.0.load(Ordering::Relaxed) >= n_chunks)
                        });
                        if !is_used_up {
                            // If the system never ran a thread, the counts below say nothing.
                            n_half_done.fetch_add(n_threads, Ordering::Relaxed);
                        }
                    }
                });
            }));
            assert_eq!(result.unwrap_err().downcast_ref::<&str>(), Some(&"chunk 0"));
            let counts: Vec<usize> = counts.into_iter().map(AtomicUsize::into_inner).collect();
            assert!(counts.iter().all(|count| *count <= 1), "{counts:?}");
            if n_half_done.into_inner() == n_threads - 1 {
                let expected = |i: usize| usize::from(i == 0 || i >= run_len && i % run_len <= middle);
                assert!((0..n_chunks).all(|i| counts[i] == expected(i)), "{counts:?}");
            }
            let counts: Vec<AtomicUsize> = (0..n_chunks).map(|_| AtomicUsize::new(0)).collect();
            pool.run(n_chunks, |_, chunk_idx| {
                counts[chunk_idx].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.into_iter().all(|count| count.into_inner() == 1));
        }
    }

    #[test]
    fn thread_counts_that_make_no_sense_are_errors() {
        assert!(matches!(
            Pool::new(0),
            Err(CpuExecError::ThreadCount { found: 0, .. })
        ));
        assert!(Pool::new(MAX_THREADS + 1).is_err());
    }
}
