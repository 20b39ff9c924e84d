//! Golden traces: the decisions of the scheduler, step by step, in cases small enough to check by hand.

use std::{collections::VecDeque, fmt::Write, sync::Arc};

use tokenmill_backend::{ExecutorLimits, PageGroup};
use tokenmill_sched::{
    Outcome, PlannedOutput, RowResult, Scheduler, SchedulerConfig, SeqId, SeqSpec, Speculation, StepBudget,
    StepPlan, Work,
};

/// A scheduler whose every sampled token is 7, and a record of what it plans.
struct Trace {
    scheduler: Scheduler,
    budget: StepBudget,
    steps_in_flight: usize,
    in_flight: VecDeque<StepPlan>,
    text: String,
    n_steps: usize,
}

impl Trace {
    fn new(n_pages: usize, max_running: usize, change: impl FnOnce(&mut ExecutorLimits)) -> Self {
        Self::with_speculation(n_pages, max_running, Speculation::Off, change)
    }

    fn with_speculation(
        n_pages: usize,
        max_running: usize,
        speculation: Speculation,
        change: impl FnOnce(&mut ExecutorLimits),
    ) -> Self {
        let mut limits = ExecutorLimits {
            n_vocab: 100,
            n_embd: 8,
            n_ctx: 1024,
            n_pages,
            n_host_pages: 0,
            max_batch_tokens: 64,
            max_batch_seqs: 16,
            max_logit_rows: 16,
            kv_window: None,
            window_group: None,
            pooling: None,
            is_encoder: false,
            n_states: 0,
        };
        change(&mut limits);
        Self {
            scheduler: Scheduler::new(SchedulerConfig {
                limits,
                max_running,
                max_step_tokens: 64,
                model_salt: 0,
                speculation,
            }),
            budget: StepBudget::FULL,
            steps_in_flight: 1,
            in_flight: VecDeque::new(),
            text: String::new(),
            n_steps: 0,
        }
    }

    fn submit(&mut self, prompt: impl IntoIterator<Item = u32>, n_more: usize) -> SeqId {
        self.submit_with(prompt, n_more, 0, None)
    }

    fn submit_with(
        &mut self,
        prompt: impl IntoIterator<Item = u32>,
        n_more: usize,
        priority: i32,
        fork_of: Option<SeqId>,
    ) -> SeqId {
        let tokens: Vec<u32> = prompt.into_iter().collect();
        let work = Work::Generate {
            max_len: tokens.len() + n_more,
            stop_tokens: Arc::new([]),
        };
        self.submit_work(tokens, work, priority, fork_of)
    }

    fn submit_work(&mut self, tokens: Vec<u32>, work: Work, priority: i32, fork_of: Option<SeqId>) -> SeqId {
        let n_tokens = tokens.len();
        let id = self.scheduler.submit(SeqSpec {
            tokens,
            work,
            priority,
            uses_prefix_cache: true,
            salt: 0,
            adapter: None,
            media: Arc::new([]),
            queue_deadline_us: None,
            deadline_us: None,
            is_constrained: false,
            sampling_key: None,
            context_shift: None,
            fork_of,
        });
        writeln!(self.text, "submit {id}: {n_tokens} tokens").expect("strings take everything");
        id
    }

    fn step(&mut self) -> bool {
        while self.in_flight.len() < self.steps_in_flight {
            let mut plan = StepPlan::default();
            self.scheduler.plan(self.budget, &mut plan);
            self.scheduler.assert_consistent();
            if plan.is_empty() {
                break;
            }
            self.n_steps += 1;
            write!(self.text, "step {}\n{plan}", self.n_steps).expect("strings take everything");
            self.in_flight.push_back(plan);
        }
        let Some(plan) = self.in_flight.pop_front() else {
            return false;
        };
        let results: Vec<RowResult> = plan
            .rows
            .iter()
            .flat_map(|row| match row.output {
                PlannedOutput::Sample => vec![RowResult::Token(7); 1 + row.draft.len()],
                _ => vec![RowResult::Advanced],
            })
            .collect();
        let mut news = Vec::new();
        self.scheduler.commit(&plan, &results, &mut news);
        self.scheduler.assert_consistent();
        for outcome in news {
            if let Outcome::Ended { seq, end, summary } = outcome {
                writeln!(
                    self.text,
                    "  {seq} ends: {end:?}, {} generated, {} cached",
                    summary.n_generated, summary.n_cached
                )
                .expect("strings take everything");
            }
        }
        true
    }

    fn steps(&mut self, n: usize) {
        for _ in 0..n {
            assert!(self.step(), "there is a step to do");
        }
    }

    fn finish(mut self) -> String {
        while self.step() {}
        assert!(self.scheduler.is_empty());
        self.text
    }
}

#[test]
fn prompts_of_recurrent_models_are_cut_at_the_ends_of_pages_whatever_is_beside_them() {
    for n_beside in [0, 1, 5] {
        let mut trace = Trace::new(64, 8, |limits| limits.n_states = 16);
        for first in 0..n_beside {
            trace.submit(first..first + 3, 20);
        }
        if n_beside > 0 {
            trace.steps(1);
        }
        let long = trace.submit(0..201, 2);
        let mut borders = Vec::new();
        while borders.last() != Some(&201) {
            let mut plan = StepPlan::default();
            trace.scheduler.plan(trace.budget, &mut plan);
            let own = plan.rows.iter().find(|row| row.seq == long);
            borders.extend(own.map(|row| (row.first_position + row.n_tokens) as usize));
            let results: Vec<RowResult> = (plan.rows.iter())
                .map(|row| match row.output {
                    PlannedOutput::Sample => RowResult::Token(7),
                    _ => RowResult::Advanced,
                })
                .collect();
            trace.scheduler.commit(&plan, &results, &mut Vec::new());
        }
        let (_, inner) = borders.split_last().expect("the prompt was computed");
        assert!(inner.len() >= 3, "{borders:?}");
        assert!(inner.iter().all(|border| border % 16 == 0), "{borders:?}");
    }
}

#[test]
fn a_long_prompt_is_chunked_beside_running_streams() {
    insta::assert_snapshot!(long_prompt_beside_a_stream());
}

#[test]
fn the_worked_step_of_the_documentation_is_what_happens() {
    let trace = long_prompt_beside_a_stream();
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/scheduling.md");
    let page = std::fs::read_to_string(page).unwrap();
    let steps: Vec<&str> = page
        .split("```\n")
        .filter(|block| block.starts_with("step "))
        .collect();
    assert_eq!(steps.len(), 2, "the step and what follows it");
    for step in steps {
        assert!(trace.contains(step), "{step}is not in\n{trace}");
    }
}

fn long_prompt_beside_a_stream() -> String {
    let mut trace = Trace::new(32, 8, |_| {});
    trace.budget = StepBudget {
        prefill_beside_decode: 24,
        ..StepBudget::FULL
    };
    trace.submit([1, 2, 3], 6);
    trace.steps(2);
    trace.submit(0..60, 2);
    trace.submit(60..70, 2);
    trace.finish()
}

#[test]
fn a_shared_prefix_is_computed_once() {
    let mut trace = Trace::new(32, 8, |_| {});
    trace.submit(0..40, 1);
    trace.steps(1);
    trace.submit((0..32).chain(80..90), 1);
    trace.submit(0..32, 1);
    insta::assert_snapshot!(trace.finish());
}

#[test]
fn forks_share_the_prompt_and_copy_the_page_they_write() {
    let mut trace = Trace::new(32, 8, |_| {});
    let leader = trace.submit(0..20, 2);
    trace.submit_with(0..20, 2, 0, Some(leader));
    trace.submit_with(0..20, 2, 0, Some(leader));
    insta::assert_snapshot!(trace.finish());
}

#[test]
fn the_newest_gives_its_pages_back_and_finds_what_is_left_of_them() {
    let mut trace = Trace::new(4, 8, |_| {});
    trace.submit(0..20, 14);
    trace.submit(50..64, 20);
    insta::assert_snapshot!(trace.finish());
}

#[test]
fn a_higher_priority_takes_the_seat_of_a_lower() {
    let mut trace = Trace::new(8, 1, |_| {});
    trace.submit_with(0..20, 4, 0, None);
    trace.steps(2);
    trace.submit_with(50..60, 2, 5, None);
    insta::assert_snapshot!(trace.finish());
}

/// Three consumers that fall behind and catch up again need no page twice where there is room for all.
#[test]
fn a_resumed_sequence_keeps_its_pages_until_a_seat_is_free() {
    let mut trace = Trace::new(16, 1, |_| {});
    let slow = trace.submit(0..20, 8);
    trace.steps(2);
    trace.scheduler.set_paused(slow, true);
    let other = trace.submit(100..110, 4);
    trace.steps(1);
    trace.scheduler.set_paused(slow, false);
    trace.scheduler.assert_consistent();
    assert_eq!((trace.scheduler.n_running(), trace.scheduler.n_paused()), (1, 1));
    assert!(
        trace
            .scheduler
            .pages_of(slow, PageGroup::Main)
            .is_some_and(|pages| !pages.is_empty())
    );
    while trace.scheduler.tokens_of(other).is_some() {
        trace.steps(1);
    }
    trace.steps(1);
    assert_eq!((trace.scheduler.n_running(), trace.scheduler.n_paused()), (1, 0));
    while trace.step() {}
    assert!(trace.scheduler.is_empty());
    let counters = trace.scheduler.counters();
    assert_eq!(counters.preemptions, 0);
    assert_eq!(counters.planned_tokens, (20 + 7) + (10 + 3));
}

#[test]
fn evicted_pages_go_to_the_host_tier_and_come_back() {
    let mut trace = Trace::new(2, 8, |limits| limits.n_host_pages = 2);
    trace.submit(0..20, 1);
    trace.steps(1);
    trace.submit(50..70, 1);
    trace.steps(1);
    trace.submit(0..20, 1);
    insta::assert_snapshot!(trace.finish());
}

#[test]
fn pages_that_fall_out_of_the_window_are_used_again() {
    // Eighty inputs in a pool of 64 slots.
    let mut trace = Trace::new(4, 8, |limits| limits.kv_window = Some(20));
    trace.submit(0..75, 6);
    insta::assert_snapshot!(trace.finish());
}

#[test]
fn a_second_step_is_planned_while_the_first_runs() {
    let mut trace = Trace::new(8, 8, |_| {});
    trace.steps_in_flight = 2;
    trace.submit(0..5, 3);
    insta::assert_snapshot!(trace.finish());
}

#[test]
fn drafts_are_verified_in_one_step_and_what_is_wrong_is_computed_again() {
    let speculation = Speculation::Ngram { max_draft: 3 };
    let mut trace = Trace::with_speculation(8, 8, speculation, |_| {});
    trace.steps_in_flight = 2;
    trace.submit([1, 2, 3, 1, 2], 12);
    trace.submit([4, 7, 7, 4, 7], 6);
    insta::assert_snapshot!(trace.finish());
}

#[test]
fn a_forward_pass_reads_only_the_rows_asked_for() {
    let mut trace = Trace::new(8, 8, |limits| limits.max_logit_rows = 8);
    let tokens: Vec<u32> = (0..40).collect();
    trace.submit_work(tokens.clone(), Work::Logits { from: 20 }, 0, None);
    trace.submit([1, 2], 2);
    trace.steps(2);
    trace.submit_work(tokens, Work::Hidden { from: 38 }, 0, None);
    insta::assert_snapshot!(trace.finish());
}

#[test]
fn prompts_are_those_being_computed_and_those_with_a_seat() {
    let mut trace = Trace::new(64, 3, |_| {});
    trace.submit(0..5, 1);
    assert_eq!(trace.scheduler.n_prompts(), 1);
    trace.scheduler.plan(StepBudget::FULL, &mut StepPlan::default());
    // All of it is planned: it keeps its seat until its token is there, and asks for nothing.
    assert_eq!(
        (trace.scheduler.n_prompts(), trace.scheduler.n_decoding()),
        (0, 0)
    );
    for first in [100, 200, 300, 400] {
        trace.submit(first..first + 60, 1);
    }
    assert_eq!(trace.scheduler.n_prompts(), 2);
    trace.scheduler.plan(StepBudget::FULL, &mut StepPlan::default());
    // Two have begun and share a step of 64 tokens; no seat is left for the other two.
    assert_eq!(trace.scheduler.n_prompts(), 2);
}
