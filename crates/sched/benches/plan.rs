//! Time to schedule one step: plan, then commit, with 256 running and 1,000 waiting sequences.

use std::{
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use tokenmill_backend::ExecutorLimits;
use tokenmill_sched::{
    Outcome, PlannedOutput, RowResult, Scheduler, SchedulerConfig, SeqSpec, Speculation, StepBudget,
    StepPlan, Work,
};

const N_RUNNING: usize = 256;
const N_WAITING: usize = 1000;

fn scheduler() -> Scheduler {
    Scheduler::new(SchedulerConfig {
        limits: ExecutorLimits {
            n_vocab: 150_000,
            n_embd: 4096,
            n_ctx: 32_768,
            n_pages: 32_768,
            n_host_pages: 0,
            max_batch_tokens: 2048,
            max_batch_seqs: 512,
            max_logit_rows: 512,
            kv_window: None,
            window_group: None,
            pooling: None,
            is_encoder: false,
            n_states: 0,
        },
        max_running: N_RUNNING,
        max_step_tokens: 2048,
        model_salt: 0,
        speculation: Speculation::Off,
    })
}

fn submit(scheduler: &mut Scheduler, own: u32, n_prompt: usize) {
    scheduler.submit(SeqSpec {
        tokens: (0..n_prompt as u32).map(|at| own * 7 + at).collect(),
        work: Work::Generate {
            max_len: 30_000,
            stop_tokens: Arc::new([0, 1]),
        },
        priority: 0,
        uses_prefix_cache: true,
        salt: 0,
        adapter: None,
        media: Arc::new([]),
        queue_deadline_us: None,
        deadline_us: Some(u64::MAX - u64::from(own)),
        is_constrained: false,
        sampling_key: None,
        context_shift: None,
        fork_of: None,
    });
}

fn step(
    scheduler: &mut Scheduler,
    plan: &mut StepPlan,
    results: &mut Vec<RowResult>,
    news: &mut Vec<Outcome>,
) {
    scheduler.expire(1, news);
    scheduler.plan(StepBudget::FULL, plan);
    results.clear();
    results.extend(plan.rows.iter().map(|row| match row.output {
        PlannedOutput::Sample => RowResult::Token(7),
        _ => RowResult::Advanced,
    }));
    news.clear();
    scheduler.commit(plan, results, news);
}

/// A scheduler all of whose seats are taken by sequences that decode.
fn busy_scheduler() -> Scheduler {
    let mut scheduler = scheduler();
    let (mut plan, mut results, mut news) = (StepPlan::default(), Vec::new(), Vec::new());
    for own in 0..N_RUNNING {
        submit(&mut scheduler, own as u32, 200 + own % 100);
    }
    while scheduler.n_decoding() < N_RUNNING {
        step(&mut scheduler, &mut plan, &mut results, &mut news);
    }
    for own in 0..N_WAITING {
        submit(&mut scheduler, (N_RUNNING + own) as u32, 500);
    }
    scheduler
}

fn schedule_a_step(criterion: &mut Criterion) {
    criterion.bench_function("schedule a step, 256 running, 1000 waiting", |bencher| {
        bencher.iter_custom(|n_iterations| {
            let (mut plan, mut results, mut news) = (StepPlan::default(), Vec::new(), Vec::new());
            let mut took = Duration::ZERO;
            let mut left = n_iterations;
            while left > 0 {
                // A fresh one now and then, so that contexts stay of the same length.
                let mut scheduler = busy_scheduler();
                let n_steps = left.min(500);
                let start = Instant::now();
                for _ in 0..n_steps {
                    step(&mut scheduler, &mut plan, &mut results, &mut news);
                    black_box(plan.rows.len());
                }
                took += start.elapsed();
                left -= n_steps;
                assert_eq!(
                    (scheduler.n_running(), scheduler.n_waiting()),
                    (N_RUNNING, N_WAITING)
                );
            }
            took
        });
    });
}

fn admit_and_prefill(criterion: &mut Criterion) {
    let setup = || {
        let mut scheduler = scheduler();
        for own in 0..N_WAITING {
            submit(&mut scheduler, own as u32, 1000);
        }
        (scheduler, StepPlan::default())
    };
    criterion.bench_function("admit from 1000 waiting into an idle step", |bencher| {
        bencher.iter_batched_ref(
            setup,
            |(scheduler, plan)| scheduler.plan(StepBudget::FULL, plan),
            BatchSize::LargeInput,
        );
    });
}

criterion_group!(benches, schedule_a_step, admit_and_prefill);
criterion_main!(benches);
