//! Prompts with inputs that are not tokens: no step parts those that see each other, everything ends, and the cache tells contents apart.

use std::sync::Arc;

use tokenmill_backend::ExecutorLimits;
use tokenmill_sched::{
    MediaPlaces, MediaSpan, Outcome, PlannedOutput, RowResult, Scheduler, SchedulerConfig, SeqId, SeqSpec,
    SeqSummary, Speculation, StepBudget, StepPlan, Work,
};
use tokenmill_testkit::Random;

const MAX_STEP_TOKENS: usize = 48;

fn scheduler(n_pages: usize) -> Scheduler {
    Scheduler::new(SchedulerConfig {
        limits: ExecutorLimits {
            n_vocab: 100,
            n_embd: 8,
            n_ctx: 1024,
            n_pages,
            n_host_pages: 0,
            max_batch_tokens: MAX_STEP_TOKENS,
            max_batch_seqs: 16,
            max_logit_rows: 16,
            kv_window: None,
            window_group: None,
            pooling: None,
            is_encoder: false,
            n_states: 0,
        },
        max_running: 8,
        max_step_tokens: MAX_STEP_TOKENS,
        model_salt: 0,
        speculation: Speculation::Off,
    })
}

fn submit(scheduler: &mut Scheduler, n_tokens: usize, n_more: usize, media: &[MediaSpan]) -> SeqId {
    scheduler.submit(SeqSpec {
        tokens: vec![5; n_tokens],
        work: Work::Generate {
            max_len: n_tokens + n_more,
            stop_tokens: Arc::new([]),
        },
        priority: 0,
        uses_prefix_cache: true,
        salt: 0,
        adapter: None,
        media: media.into(),
        queue_deadline_us: None,
        deadline_us: None,
        is_constrained: false,
        sampling_key: None,
        context_shift: None,
        fork_of: None,
    })
}

/// Runs until nothing is left, checking each plan. Returns how each sequence ended.
fn run(
    scheduler: &mut Scheduler,
    budget: StepBudget,
    media_of: &dyn Fn(SeqId) -> Vec<MediaSpan>,
) -> Vec<SeqSummary> {
    let mut summaries = Vec::new();
    for _ in 0..100_000 {
        let mut plan = StepPlan::default();
        scheduler.plan(budget, &mut plan);
        scheduler.assert_consistent();
        assert!(plan.n_tokens() <= MAX_STEP_TOKENS);
        for row in &plan.rows {
            let (first, end) = (row.first_position as usize, row.end() as usize);
            for span in media_of(row.seq) {
                let is_touched = span.start < end && first < span.end;
                assert!(
                    !span.sees_itself || !is_touched || end >= span.end,
                    "a row of {first}..{end} parts {span:?}"
                );
            }
        }
        if plan.is_empty() && plan.preempted.is_empty() {
            assert!(scheduler.is_empty(), "nothing is planned and something is left");
            return summaries;
        }
        let results: Vec<RowResult> = (plan.rows.iter())
            .map(|row| match row.output {
                PlannedOutput::Sample => RowResult::Token(7),
                _ => RowResult::Advanced,
            })
            .collect();
        let mut news = Vec::new();
        scheduler.commit(&plan, &results, &mut news);
        scheduler.assert_consistent();
        for outcome in news {
            if let Outcome::Ended { summary, .. } = outcome {
                summaries.push(summary);
            }
        }
    }
    panic!("it never ends");
}

fn span(start: usize, len: usize, content: u128) -> MediaSpan {
    MediaSpan {
        start,
        end: start + len,
        content,
        sees_itself: true,
        places: MediaPlaces::Line,
    }
}

#[test]
fn no_step_parts_inputs_that_see_each_other_and_all_end() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let mut scheduler = scheduler(12 + random.below(30));
        let budget = StepBudget {
            prefill_beside_decode: 1 + random.below(MAX_STEP_TOKENS),
            ..StepBudget::FULL
        };
        let mut all: Vec<(SeqId, Vec<MediaSpan>)> = Vec::new();
        for _ in 0..=random.below(7) {
            let mut at = random.below(20);
            let mut media = Vec::new();
            for _ in 0..random.below(4) {
                let len = 1 + random.below(MAX_STEP_TOKENS);
                let sees_itself = random.below(4) > 0;
                media.push(MediaSpan {
                    sees_itself,
                    ..span(at, len, random.below(3) as u128)
                });
                at += len + random.below(9);
            }
            let n_tokens = (at + random.below(5)).clamp(1, 150);
            media.retain(|span| span.end <= n_tokens);
            let id = submit(&mut scheduler, n_tokens, 1 + random.below(12), &media);
            all.push((id, media));
        }
        let n = all.len();
        let media_of = |seq: SeqId| all.iter().find(|(id, _)| *id == seq).unwrap().1.clone();
        assert_eq!(run(&mut scheduler, budget, &media_of).len(), n, "seed {seed}");
    }
}

#[test]
fn the_cache_finds_the_same_content_only() {
    let mut scheduler = scheduler(64);
    let mut n_cached = |media: &[MediaSpan]| {
        submit(&mut scheduler, 100, 1, media);
        let media = media.to_vec();
        run(&mut scheduler, StepBudget::FULL, &|_| media.clone())[0].n_cached
    };
    assert_eq!(n_cached(&[span(40, 32, 1)]), 0);
    // All whole pages but the last token's.
    assert_eq!(n_cached(&[span(40, 32, 1)]), 96);
    // Up to the page in which the image begins.
    assert_eq!(n_cached(&[span(40, 32, 2)]), 32);
    assert_eq!(n_cached(&[span(48, 32, 1)]), 32);
    assert_eq!(n_cached(&[]), 48);
    assert_eq!(n_cached(&[]), 96);
    assert_eq!(n_cached(&[span(40, 32, 1), span(80, 8, 3)]), 80);
}

#[test]
fn an_image_as_long_as_a_step_does_not_wait_for_those_that_decode() {
    let mut scheduler = scheduler(200);
    let older = submit(&mut scheduler, 8, 500, &[]);
    let mut n_steps = 0;
    let mut step = |scheduler: &mut Scheduler| {
        let mut plan = StepPlan::default();
        scheduler.plan(StepBudget::FULL, &mut plan);
        let results: Vec<RowResult> = (plan.rows.iter())
            .map(|row| match row.output {
                PlannedOutput::Sample => RowResult::Token(7),
                _ => RowResult::Advanced,
            })
            .collect();
        let mut news = Vec::new();
        scheduler.commit(&plan, &results, &mut news);
        scheduler.assert_consistent();
        n_steps += 1;
        assert!(n_steps < 100);
        plan.rows
            .iter()
            .map(|row| (row.seq, row.n_tokens))
            .collect::<Vec<_>>()
    };
    step(&mut scheduler);
    let image = [span(3, MAX_STEP_TOKENS, 1)];
    let newer = submit(&mut scheduler, 3 + MAX_STEP_TOKENS + 4, 5, &image);
    let mut n_older = 0;
    let found = (0..8).find(|_| {
        let rows = step(&mut scheduler);
        n_older += usize::from(rows.iter().any(|(seq, _)| *seq == older));
        rows.contains(&(newer, MAX_STEP_TOKENS as u32))
    });
    // The text before it, a step without room, and its own.
    assert_eq!(found, Some(2));
    assert_eq!(n_older, 2, "the older sequence misses one step alone");
    assert!(step(&mut scheduler).iter().any(|(seq, _)| *seq == older));
}
