//! Simulated traffic against the naive reference: random lengths, sharing, cancels, samples, priorities, failures, slow
//! consumers, small pools, and drafts of all kinds.
//!
//! It drives [`Core`] with a clock of its own, so that a case is decided by its numbers alone. After every step all
//! invariants of scheduler and pool are checked, after every case that each sample ended as it must, token for token,
//! and that no page is held. `PROPTEST_CASES` sets the number of cases; a case has 20 requests on average. With
//! `--nocapture` the totals are printed.

use std::cell::{Cell, RefCell};

use proptest::{prelude::*, test_runner::TestRunner};
use tokenmill_backend::{ExecutorLimits, SamplingParams};
use tokenmill_testkit::fake_executor::{
    FakeExecutor, Faults, HiddenReader, RoutedExecutor, prompt, reference, reference_hidden,
    reference_logits, sampled,
};

use crate::{
    draft_model::DraftModel,
    engine::{board::Board, core::Core, generation::Generation},
    error::EngineError,
    library::{
        engine::world::{Genes, World, pick, rarely},
        pages::known::KnownPages,
    },
    pages::events::page_events,
    params::{ForwardParams, ForwardRows, GenerateParams, context_shift::ContextShift},
    queue::{
        event::{Event, FinishReason, Prefill},
        mailbox::{Admission, Mailbox, QueueLimits},
        submission::{InputRows, Job, Reach, Submission, check_forward, check_generate},
    },
    sync::{Arc, channel::channel},
};

#[path = "totals.rs"]
mod totals;

use totals::Totals;

#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "there are few, and one kind is most of them"
)]
enum Ask {
    Generate(GenerateParams),
    Forward(ForwardParams),
}

/// A caller: what it asks for and how it behaves.
#[derive(Debug)]
struct Caller {
    arrives_at: usize,
    prompt: Vec<u32>,
    ask: Ask,
    /// Steps after its arrival at which it cancels.
    cancels_after: Option<usize>,
    /// Steps after its arrival at which it goes away.
    leaves_after: Option<usize>,
    /// Stops sample 0 after this many tokens.
    stops_after: Option<usize>,
    /// It reads this many events...
    reads: usize,
    /// ... once in so many steps.
    reads_every: usize,
}

const STEP_US: u64 = 1000;

impl Caller {
    fn new(genes: &Genes, n_vocab: usize) -> Self {
        let len = pick(genes[0], 1, if genes[1] % 4 == 3 { 140 } else { 40 });
        let mut prompt = prompt(
            u64::from(genes[2] % 3),
            u64::from(genes[3]),
            pick(genes[4], 0, 100),
            len,
        );
        for id in &mut prompt {
            *id %= n_vocab as u32;
        }
        let (queue_timeout, deadline) = (rarely(genes[13], 16, 0, 100), rarely(genes[13], 15, 0, 200));
        let after = |steps: usize| std::time::Duration::from_micros(steps as u64 * STEP_US);
        let cache_salt = u64::from(genes[5] % 8 == 7);
        let priority = pick(genes[6], 0, 3) as i32 - i32::from(genes[6] % 3 == 2) * 3;
        let ask = if let Some(from) = rarely(genes[7], 8, 0, len) {
            let rows = if genes[8].is_multiple_of(2) {
                ForwardRows::Logits
            } else {
                ForwardRows::Hidden
            };
            Ask::Forward(ForwardParams {
                priority,
                cache_salt,
                queue_timeout: queue_timeout.map(after),
                deadline: deadline.map(after),
                ..ForwardParams::new(rows, from)
            })
        } else {
            Ask::Generate(GenerateParams {
                sampling: match genes[8] % 3 {
                    0 => SamplingParams::default(),
                    1 => sampled(u64::from(genes[8]), 1.0),
                    _ => sampled(u64::from(genes[8]), 1.1),
                },
                max_tokens: (genes[9] % 16 != 15).then(|| pick(genes[9], 0, 24)),
                stop_tokens: if genes[10] % 2 == 1 {
                    vec![3, 17]
                } else {
                    Vec::new()
                },
                n_samples: rarely(genes[11], 4, 2, 5).unwrap_or(1) as u32,
                priority,
                queue_timeout: queue_timeout.map(after),
                deadline: deadline.map(after),
                cache_salt,
                traces_tokens: true,
                reports_prefill: true,
                ..GenerateParams::default()
            })
        };
        Self {
            arrives_at: pick(genes[12], 0, 60),
            prompt,
            ask,
            cancels_after: rarely(genes[14], 8, 0, 40),
            leaves_after: rarely(genes[14], 7, 0, 40),
            stops_after: rarely(genes[14], 6, 0, 6),
            reads: pick(genes[15], 1, 4),
            reads_every: rarely(genes[15], 4, 1, 12).unwrap_or(1),
        }
    }

    fn n_samples(&self) -> u32 {
        match &self.ask {
            Ask::Generate(params) => params.n_samples,
            Ask::Forward(_) => 1,
        }
    }
}

/// A caller's request and what it has got of it.
struct Visit<'a> {
    caller: &'a Caller,
    generation: Option<Generation>,
    prefill: Option<Prefill>,
    tokens: Vec<Vec<u32>>,
    rows: Vec<f32>,
    n_ends: Vec<u32>,
    has_cancelled: bool,
    has_stopped: bool,
}

impl<'a> Visit<'a> {
    fn new(caller: &'a Caller, generation: Generation) -> Self {
        let n_samples = caller.n_samples() as usize;
        Self {
            caller,
            generation: Some(generation),
            prefill: None,
            tokens: vec![Vec::new(); n_samples],
            rows: Vec::new(),
            n_ends: vec![0; n_samples],
            has_cancelled: false,
            has_stopped: false,
        }
    }

    /// Behaves as the caller does in one step. Returns whether it is still there.
    fn act(&mut self, step: usize, world: &World, is_lost: bool) -> bool {
        let age = step - self.caller.arrives_at;
        if self.caller.leaves_after == Some(age) {
            self.generation = None;
        }
        let Some(generation) = &self.generation else {
            return false;
        };
        if self.caller.cancels_after == Some(age) {
            self.has_cancelled = true;
            generation.cancel();
        }
        if step.is_multiple_of(self.caller.reads_every) || is_lost {
            for _ in 0..self.caller.reads {
                let generation = self.generation.as_mut().expect("it is still here");
                match generation.try_next() {
                    Some(event) => self.take(event, world),
                    None => break,
                }
            }
        }
        let has_ended = self.generation.as_ref().is_none_or(Generation::has_ended);
        if has_ended {
            assert!(
                self.n_ends.iter().all(|&n_ends| n_ends == 1),
                "every sample ends once"
            );
        }
        !has_ended
    }

    fn take_prefill(&mut self, report: Prefill) {
        assert_eq!(report.sample, 0);
        assert!(report.cached_tokens <= report.done_tokens && report.done_tokens <= report.prompt_tokens);
        match &self.prefill {
            None => assert_eq!(
                report.done_tokens, report.cached_tokens,
                "the first is of the start"
            ),
            Some(before) => {
                assert!(report.done_tokens > before.done_tokens, "each has news");
                assert_eq!(
                    (report.prompt_tokens, report.cached_tokens),
                    (before.prompt_tokens, before.cached_tokens)
                );
            }
        }
        self.prefill = Some(report);
    }

    fn take(&mut self, event: Event, world: &World) {
        match event {
            Event::Prefill(report) => self.take_prefill(report),
            Event::Token(token) => {
                let sample = token.sample as usize;
                let whole = self.prefill.as_ref().map(|report| report.prompt_tokens);
                let done = self.prefill.as_ref().map(|report| report.done_tokens);
                // Another sample computes the prompt if the first has ended.
                assert!(sample > 0 || whole.is_some() && whole == done, "all is reported");
                assert_eq!(self.n_ends[sample], 0, "no token comes after the end");
                self.tokens[sample].push(token.id);
                if sample == 0 && self.caller.stops_after == Some(self.tokens[0].len()) {
                    self.has_stopped = true;
                    self.generation.as_mut().expect("it is still here").stop(0);
                }
            }
            Event::Rows(rows) => {
                let Ask::Forward(params) = &self.caller.ask else {
                    panic!("rows come of a forward pass");
                };
                let n_rows = self.rows.len() / rows.width;
                assert_eq!(
                    rows.first_position,
                    params.from + n_rows,
                    "rows come in order, each once"
                );
                self.rows.extend(rows.values);
            }
            Event::Finished(finished) => {
                let sample = finished.sample as usize;
                self.n_ends[sample] += 1;
                assert_eq!(finished.usage.completion_tokens, self.tokens[sample].len());
                assert_eq!(finished.timings.tokens.len(), self.tokens[sample].len());
                assert!(finished.usage.cached_tokens < self.caller.prompt.len());
                assert!(finished.usage.accepted_tokens <= self.tokens[sample].len() || self.has_stopped);
                self.check_end(sample, finished.reason, world);
            }
            Event::Failed { sample, error } => {
                self.n_ends[sample as usize] += 1;
                self.check_prefix(sample as usize, world);
                let Faults {
                    submits,
                    waits,
                    rows,
                    copies,
                    lost_at,
                    ..
                } = &world.faults;
                let is_expected = match error {
                    EngineError::Row(_) => !rows.is_empty(),
                    EngineError::Step(_) => {
                        !submits.is_empty() || !waits.is_empty() || !copies.is_empty() || lost_at.is_some()
                    }
                    EngineError::QueueTimeout { .. } => {
                        matches!(
                            &self.caller.ask,
                            Ask::Generate(GenerateParams {
                                queue_timeout: Some(_),
                                ..
                            }) | Ask::Forward(ForwardParams {
                                queue_timeout: Some(_),
                                ..
                            })
                        )
                    }
                    EngineError::DeadlineExceeded { .. } => match &self.caller.ask {
                        Ask::Generate(params) => params.deadline.is_some(),
                        Ask::Forward(params) => params.deadline.is_some(),
                    },
                    EngineError::Stopped => lost_at.is_some(),
                    _ => false,
                };
                assert!(is_expected, "{error}");
            }
        }
    }

    fn expected(&self, sample: usize, world: &World) -> (Vec<u32>, bool) {
        let Ask::Generate(params) = &self.caller.ask else {
            return (Vec::new(), false);
        };
        let mut sampling = params.sampling.clone();
        sampling.seed = sampling.seed.wrapping_add(sample as u64);
        let pool_len = match world.limits.kv_window {
            None => world.limits.n_pages * 16 + 1,
            Some(_) => usize::MAX,
        };
        let n_ctx = world.limits.n_ctx.min(pool_len);
        let mut prompt = self.caller.prompt.clone();
        let mut n_left = params.max_tokens.unwrap_or(n_ctx.saturating_sub(prompt.len()));
        // A prompt that is shifted ends as several requests do, each with what is left of the one before.
        let shift = (world.config.context_shift)
            .filter(|_| prompt.len() + n_left > n_ctx && n_ctx >= 4)
            .map(|shift| ContextShift {
                keep: shift.keep.min(prompt.len()),
            });
        let mut tokens = Vec::new();
        loop {
            let n_room = match shift {
                Some(shift) => {
                    shift.cut(&mut prompt, n_ctx);
                    n_ctx - prompt.len()
                }
                None => usize::MAX,
            };
            let (more, has_stop_token) = reference(
                &world.limits,
                &prompt,
                &sampling,
                n_left.min(n_room),
                &params.stop_tokens,
            );
            tokens.extend(&more);
            if has_stop_token || n_left <= n_room {
                return (tokens, has_stop_token);
            }
            n_left -= n_room;
            prompt.extend(more);
            sampling.seed = sampling.seed.wrapping_add(1 << 32);
        }
    }

    fn check_end(&self, sample: usize, reason: FinishReason, world: &World) {
        if let Ask::Forward(params) = &self.caller.ask {
            let expected = match params.rows {
                ForwardRows::Logits => reference_logits(&world.limits, &self.caller.prompt),
                ForwardRows::Hidden => reference_hidden(&world.limits, &self.caller.prompt),
            };
            let start = params.from * expected.len() / self.caller.prompt.len();
            let is_whole = self.rows == expected[start..];
            assert!(is_whole || (reason == FinishReason::Cancelled && self.has_cancelled));
            return;
        }
        let (expected, has_stop_token) = self.expected(sample, world);
        let tokens = &self.tokens[sample];
        match reason {
            FinishReason::Stop if self.has_stopped && sample == 0 => {
                assert_eq!(
                    Some(tokens.len()),
                    self.caller.stops_after,
                    "nothing comes after a stop"
                );
                assert_eq!(tokens[..], expected[..tokens.len()]);
            }
            FinishReason::Stop => assert_eq!((tokens, true), (&expected, has_stop_token)),
            FinishReason::Length => assert_eq!((tokens, false), (&expected, has_stop_token)),
            FinishReason::Cancelled => {
                assert!(self.has_cancelled);
                self.check_prefix(sample, world);
            }
        }
    }

    fn check_prefix(&self, sample: usize, world: &World) {
        let (expected, _) = self.expected(sample, world);
        assert!(
            expected.starts_with(&self.tokens[sample]),
            "what came before the end is right"
        );
    }
}

/// Runs all callers to their end.
fn simulate(world: &World, callers: &[Caller], totals: &mut Totals) {
    let mailbox = Mailbox::new(QueueLimits {
        max_queued: usize::MAX,
        max_queued_tokens: usize::MAX,
    });
    let executor = RoutedExecutor::new(&world.limits, &world.faults, world.threshold);
    let mut core = Core::new(
        Box::new(executor),
        world.config.clone(),
        Arc::new(Board::default()),
        Arc::clone(&mailbox),
    );
    if let Some((limits, faults)) = &world.draft {
        let mut draft = FakeExecutor::with_faults(limits.clone(), faults.clone());
        if world.draft_reads_hidden {
            // The states are known for a model that sees the whole text and carries nothing else on.
            let is_plain = |limits: &ExecutorLimits| {
                limits.kv_window.is_none() && limits.window_group.is_none() && limits.n_states == 0
            };
            draft.hidden = if is_plain(&world.limits) {
                HiddenReader::Checked(std::sync::Arc::clone(&totals.hidden_states))
            } else {
                HiddenReader::Any
            };
        }
        core.set_draft_model(DraftModel::new(Box::new(draft), world.config.model_salt));
    }
    let (page_sender, mut page_events) = page_events(8);
    core.send_page_events(page_sender);
    let mut known_pages = KnownPages::default();
    let mut visits: Vec<Visit<'_>> = Vec::new();
    let mut commands = Vec::new();
    let now_us = Cell::new(0);
    let n_arrivals = 60;
    // Longer than callers stay away between two reads or before they come, or take to read what a step with drafts left them at
    // once: four samples may have a whole draft each, and be read event by event every twelve steps.
    let max_idle_steps = 200 + 12 * 4 * world.config.speculation.max_draft();
    let mut n_idle_steps = 0;
    // Far more steps than the work needs, slow readers included: whoever is not done by then starves.
    let patience =
        n_arrivals + callers.len() * 8000 * world.limits.n_ctx.div_ceil(world.config.max_step_tokens);
    for step in 0.. {
        assert!(
            step < patience,
            "a request starves: {:?} after {step} steps",
            core.scheduler()
        );
        for caller in callers.iter().filter(|caller| caller.arrives_at == step) {
            if let Some(generation) = arrive(caller, world, &mailbox, now_us.get()) {
                visits.push(Visit::new(caller, generation));
            }
        }
        mailbox.take(&mut commands);
        for command in commands.drain(..) {
            core.obey(command, now_us.get());
        }
        let has_advanced = core.step(&|| {
            now_us.set(now_us.get() + STEP_US / 4);
            now_us.get()
        });
        n_idle_steps = if has_advanced { 0 } else { n_idle_steps + 1 };
        assert!(
            n_idle_steps < max_idle_steps,
            "a request is forgotten: {:?}",
            core.scheduler()
        );
        core.publish();
        core.scheduler().assert_consistent();
        if let Some(model) = core.draft_model() {
            model.assert_consistent();
        }
        if step.is_multiple_of(world.page_events_read_after) {
            known_pages.check(&mut page_events, &core);
        }
        let is_lost = core.lost().is_some();
        if is_lost {
            mailbox.close(EngineError::Stopped);
        }
        visits.retain_mut(|visit| visit.act(step, world, is_lost));
        let all_came = step >= n_arrivals || is_lost;
        if all_came && visits.is_empty() && core.is_empty() {
            break;
        }
    }
    assert_eq!(core.scheduler().pool().n_in_use(), 0, "no page is held");
    let window_pool = core.scheduler().window_pool();
    assert_eq!(window_pool.map_or(0, crate::pages::pool::PagePool::n_in_use), 0);
    if let Some(model) = core.draft_model() {
        assert_eq!(model.in_use(), (0, 0), "nothing is kept of what has ended");
    }
    assert_eq!(core.n_requests(), 0, "no request is forgotten");
    if core.lost().is_none() {
        assert_eq!(mailbox.n_queued(), (0, 0), "the gauges return to zero");
    }
    totals.add(callers, &core);
    totals.times_page_events_were_behind += known_pages.n_times_behind();
}

/// The simulated executor takes no rows.
const TOKENS_ALONE: InputRows = InputRows {
    width: None,
    max_step_tokens: usize::MAX,
};

fn arrive(caller: &Caller, world: &World, mailbox: &Arc<Mailbox>, now_us: u64) -> Option<Generation> {
    let tokens = caller.prompt.clone();
    let job = match &caller.ask {
        Ask::Generate(params) => {
            match check_generate(
                &world.limits,
                TOKENS_ALONE,
                &tokens,
                params,
                world.config.context_shift,
            ) {
                // Nothing to generate: the engine would not get to see it.
                Ok(Reach { max_len, .. }) if max_len == tokens.len() => return None,
                Ok(Reach { context_shift, .. }) if context_shift.is_some() && params.max_tokens.is_none() => {
                    return None;
                }
                Ok(Reach {
                    max_len,
                    context_shift,
                }) => Job::Generate {
                    params: params.clone(),
                    max_len,
                    context_shift,
                },
                Err(EngineError::PoolTooSmall { .. } | EngineError::ContextLimitExceeded { .. }) => {
                    return None;
                }
                Err(error) => panic!("{error}"),
            }
        }
        Ask::Forward(params) => match check_forward(&world.limits, TOKENS_ALONE, &tokens, params) {
            Ok(()) => Job::Forward(params.clone()),
            Err(EngineError::PoolTooSmall { .. } | EngineError::ContextLimitExceeded { .. }) => return None,
            Err(error) => panic!("{error}"),
        },
    };
    let (events, receiver) = channel(world.config.stream_buffer);
    let request = mailbox.submit(
        caller.n_samples() as usize,
        tokens.len(),
        None,
        Admission::Bounded,
        |request| Submission {
            request,
            tokens,
            sampling_key: job.sampling_key(),
            job,
            events,
            submitted_us: now_us,
        },
    );
    let request = request.ok()?;
    Some(Generation::new(
        request,
        caller.n_samples(),
        receiver,
        Arc::clone(mailbox),
    ))
}

#[test]
fn every_request_ends_as_if_it_were_alone() {
    let config = ProptestConfig {
        source_file: Some(file!()),
        ..ProptestConfig::default()
    };
    let cases = (any::<Genes>(), prop::collection::vec(any::<Genes>(), 1..40));
    let totals = RefCell::new(Totals::default());
    let result = TestRunner::new(config).run(&cases, |(world, callers)| {
        let world = World::new(&world);
        let callers: Vec<Caller> = callers
            .iter()
            .map(|genes| Caller::new(genes, world.limits.n_vocab))
            .collect();
        simulate(&world, &callers, &mut totals.borrow_mut());
        Ok(())
    });
    eprintln!("{:#?}", totals.borrow());
    assert!(
        totals.borrow().cases < 100 || totals.borrow().accepted_tokens > 100,
        "drafts are part of it"
    );
    assert!(
        totals.borrow().cases < 100 || totals.borrow().accepted_tokens_of_models > 100,
        "so are those of models"
    );
    let n_read = totals.borrow().hidden_states[0].load(std::sync::atomic::Ordering::Relaxed);
    assert!(
        totals.borrow().cases < 100 || n_read > 100,
        "and of their own layers"
    );
    assert!(
        totals.borrow().cases < 100 || totals.borrow().times_page_events_were_behind > 10,
        "so are slow readers"
    );
    assert!(
        totals.borrow().cases < 100 || totals.borrow().context_shifts > 10,
        "and contexts that are full"
    );
    if let Err(error) = result {
        panic!("{error}");
    }
}
