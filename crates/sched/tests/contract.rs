//! What callers rely on, row by row: each test is named after what it keeps. The model below is a test double whose
//! tokens depend on everything that a sequence may look at.

mod support {
    pub(crate) mod fake_executor;
}

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use support::fake_executor::{
    FakeExecutor, Faults, RoutedExecutor, limits, prompt, reference, reference_hidden, reference_logits,
    sampled,
};
use tokenmill_model::{ExecutorLimits, SamplingParams, SamplingParamsError, StepError};
use tokenmill_sched::{
    Engine, EngineConfig, EngineError, EngineState, Event, FinishReason, GenerateParams, MissReason, Output,
};

fn engine(n_pages: usize) -> Engine {
    Engine::start(FakeExecutor::new(limits(n_pages)), EngineConfig::default())
}

fn greedy(max_tokens: usize) -> GenerateParams {
    GenerateParams {
        max_tokens: Some(max_tokens),
        ..GenerateParams::default()
    }
}

fn expected(prompt: &[u32], params: &GenerateParams) -> Vec<u32> {
    let max_tokens = params.max_tokens.expect("tests say how many");
    let (generated, _) = reference(
        &limits(0),
        prompt,
        &params.sampling,
        max_tokens,
        &params.stop_tokens,
    );
    [prompt, &generated].concat()
}

fn generated(output: &Output) -> &[u32] {
    &output.tokens[output.usage.prompt_tokens..]
}

/// Pages come back a moment after the last event.
fn assert_no_page_is_held(engine: &Engine) {
    for _ in 0..200 {
        if engine.stats().n_pages_in_use == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("pages are held: {:?}", engine.stats());
}

/// Lets a step begin once a test says so, and every step once the test has dropped its end.
fn wait_for(gate: &std::sync::mpsc::Receiver<()>) {
    let _ = gate.recv();
}

mod rules_common_to_all {
    use super::*;

    #[test]
    fn output_is_prompt_then_generated_tokens() {
        let (prompt, params) = (prompt(1, 1, 5, 20), greedy(10));
        let output = engine(8).generate(&prompt, &params).unwrap();
        assert_eq!(output.tokens, expected(&prompt, &params));
        assert_eq!(
            (output.reason, output.usage.completion_tokens),
            (FinishReason::Length, 10)
        );
    }

    #[test]
    fn a_stop_token_ends_the_sequence_and_is_not_part_of_the_output() {
        let prompt = prompt(1, 1, 5, 20);
        let all = expected(&prompt, &greedy(10));
        let params = GenerateParams {
            stop_tokens: vec![all[24]],
            ..greedy(10)
        };
        let mut seen = Vec::new();
        let output = engine(8)
            .generate_streaming(&prompt, &params, |token| {
                seen.push(token);
                true
            })
            .unwrap();
        let at = all[20..].iter().position(|&token| token == all[24]).unwrap();
        assert_eq!(
            (&output.tokens[..], output.reason),
            (&all[..20 + at], FinishReason::Stop)
        );
        assert_eq!(seen, all[20..20 + at]);
    }

    #[test]
    fn a_stop_on_the_first_token_gives_none() {
        let prompt = prompt(1, 1, 5, 20);
        let first = expected(&prompt, &greedy(1))[20];
        let params = GenerateParams {
            stop_tokens: vec![first],
            ..greedy(10)
        };
        let output = engine(8).generate(&prompt, &params).unwrap();
        assert_eq!((output.tokens, output.reason), (prompt, FinishReason::Stop));
    }

    #[test]
    fn the_same_seed_gives_the_same_tokens_alone_in_a_batch_and_with_a_warm_cache() {
        let prompts: Vec<Vec<u32>> = (0..9).map(|own| prompt(1, own, 40, 45 + own as usize)).collect();
        let params = GenerateParams {
            sampling: sampled(7, 1.2),
            ..greedy(12)
        };
        let engine = engine(64);
        for _round in 0..2 {
            let outputs = engine.batch_generate(&prompts, &params).unwrap();
            for (prompt, output) in prompts.iter().zip(outputs) {
                assert_eq!(output.unwrap().tokens, expected(prompt, &params));
            }
        }
        let alone = engine.generate(&prompts[3], &params).unwrap();
        assert_eq!(alone.tokens, expected(&prompts[3], &params));
        assert_eq!(alone.usage.cached_tokens, 32);
    }

    #[test]
    fn two_steps_in_flight_change_no_token() {
        let params = GenerateParams {
            sampling: sampled(3, 1.1),
            stop_tokens: vec![5],
            ..greedy(30)
        };
        let config = EngineConfig {
            steps_in_flight: 2,
            ..EngineConfig::default()
        };
        let engine = Engine::start(FakeExecutor::new(limits(64)), config);
        let prompts: Vec<Vec<u32>> = (0..12)
            .map(|own| prompt(1, own, 10, 3 + 7 * own as usize))
            .collect();
        for (prompt, output) in prompts
            .iter()
            .zip(engine.batch_generate(&prompts, &params).unwrap())
        {
            assert_eq!(output.unwrap().tokens, expected(prompt, &params));
        }
    }

    #[test]
    fn the_length_bound_is_the_prompt_plus_max_tokens_and_the_context() {
        let executor = FakeExecutor::new(ExecutorLimits {
            n_ctx: 24,
            ..limits(8)
        });
        let engine = Engine::start(executor, EngineConfig::default());
        let prompt = prompt(1, 1, 5, 20);
        for max_tokens in [Some(10), None] {
            let params = GenerateParams {
                max_tokens,
                ..GenerateParams::default()
            };
            let output = engine.generate(&prompt, &params).unwrap();
            assert_eq!((output.tokens.len(), output.reason), (24, FinishReason::Length));
        }
    }

    #[test]
    fn the_last_position_of_the_context_is_used() {
        let executor = FakeExecutor::new(ExecutorLimits {
            n_ctx: 32,
            ..limits(2)
        });
        let engine = Engine::start(executor, EngineConfig::default());
        let (full, params) = (prompt(1, 1, 5, 32), greedy(5));
        let output = engine.generate(&full, &params).unwrap();
        assert_eq!((output.tokens.len(), output.reason), (32, FinishReason::Length));
        assert_eq!(
            engine.generate(&full[..31], &params).unwrap().tokens,
            expected(&full[..31], &greedy(1))
        );
        assert_eq!(
            engine.forward_batch(&full).unwrap(),
            reference_logits(&limits(2), &full)
        );
    }

    #[test]
    fn max_tokens_0_generates_nothing() {
        let engine = engine(8);
        let output = engine.generate(&[1, 2], &greedy(0)).unwrap();
        assert_eq!((output.tokens, output.reason), (vec![1, 2], FinishReason::Length));
        assert_eq!(engine.stats().scheduler.steps, 0);
    }

    #[test]
    fn an_over_long_prompt_is_an_error_before_any_device_work() {
        let engine = engine(300);
        let error = engine.generate(&vec![1; 4097], &greedy(1)).unwrap_err();
        assert_eq!(
            error,
            EngineError::ContextLimitExceeded {
                provided: 4097,
                maximum: 4096
            }
        );
        assert_eq!(engine.stats().scheduler.steps, 0);
    }

    #[test]
    fn a_request_larger_than_the_whole_pool_is_an_error() {
        let error = engine(2).generate(&[1; 30], &greedy(4)).unwrap_err();
        assert_eq!(
            error,
            EngineError::PoolTooSmall {
                needed_pages: 3,
                n_pages: 2
            }
        );
    }

    #[test]
    fn a_pool_of_1_page_serves_what_fits() {
        let engine = engine(1);
        let prompts: Vec<Vec<u32>> = (0..5).map(|own| prompt(own, own, 0, 9)).collect();
        for (prompt, output) in prompts
            .iter()
            .zip(engine.batch_generate(&prompts, &greedy(8)).unwrap())
        {
            assert_eq!(output.unwrap().tokens, expected(prompt, &greedy(8)));
        }
    }

    #[test]
    fn bad_input_is_a_typed_error() {
        let engine = engine(8);
        let with = |sampling| GenerateParams {
            sampling,
            ..greedy(1)
        };
        assert_eq!(
            engine.generate(&[], &greedy(1)).unwrap_err(),
            EngineError::EmptyPrompt
        );
        assert_eq!(
            engine.generate(&[1, 32], &greedy(1)).unwrap_err(),
            EngineError::UnknownToken {
                index: 1,
                id: 32,
                n_vocab: 32
            }
        );
        for temperature in [f32::NAN, -1.0] {
            let sampling = SamplingParams {
                temperature,
                ..SamplingParams::default()
            };
            let error = engine.generate(&[1], &with(sampling)).unwrap_err();
            assert!(
                matches!(
                    error,
                    EngineError::Sampling(SamplingParamsError::OutOfRange {
                        name: "temperature",
                        ..
                    })
                ),
                "{error}"
            );
        }
        let no_samples = GenerateParams {
            n_samples: 0,
            ..greedy(1)
        };
        let error = engine.submit(vec![1], no_samples).unwrap_err();
        assert_eq!(
            error,
            EngineError::SampleCount {
                found: 0,
                maximum: 128
            }
        );
    }

    #[test]
    fn a_failed_step_fails_its_sequences_and_no_other() {
        let faults = Faults {
            waits: vec![3],
            ..Faults::default()
        };
        let engine = Engine::start(
            FakeExecutor::with_faults(limits(16), faults),
            EngineConfig::default(),
        );
        let prompt = prompt(1, 1, 20, 20);
        let error = engine.generate(&prompt, &greedy(10)).unwrap_err();
        assert!(
            matches!(
                error,
                EngineError::Step(StepError::Device {
                    operation: "step",
                    ..
                })
            ),
            "{error}"
        );
        assert_no_page_is_held(&engine);
        let output = engine.generate(&prompt, &greedy(10)).unwrap();
        assert_eq!(output.tokens, expected(&prompt, &greedy(10)));
        assert_eq!(engine.stats().failed_steps, 1);
    }

    #[test]
    fn a_row_that_is_not_finite_fails_one_sequence() {
        let faults = Faults {
            rows: vec![4],
            ..Faults::default()
        };
        let config = EngineConfig {
            max_step_tokens: 2,
            ..EngineConfig::default()
        };
        let engine = Engine::start(FakeExecutor::with_faults(limits(16), faults), config);
        let prompts = [vec![1], vec![2]];
        let outputs = engine.batch_generate(&prompts, &greedy(20)).unwrap();
        let n_failed = outputs.iter().filter(|output| output.is_err()).count();
        assert_eq!(n_failed, 1);
        for (prompt, output) in prompts.iter().zip(outputs) {
            match output {
                Ok(output) => assert_eq!(output.tokens, expected(prompt, &greedy(20))),
                Err(error) => assert!(matches!(error, EngineError::Row(_)), "{error}"),
            }
        }
        assert_no_page_is_held(&engine);
    }

    #[test]
    fn pages_of_a_row_that_is_not_finite_are_not_found_again() {
        let faults = Faults {
            rows: vec![2],
            ..Faults::default()
        };
        let config = EngineConfig {
            max_step_tokens: 16,
            ..EngineConfig::default()
        };
        // The first two of three chunks succeed and are findable until the third shows what they hold.
        let engine = Engine::start(FakeExecutor::with_faults(limits(16), faults), config);
        let prompt = prompt(1, 1, 40, 40);
        engine.generate(&prompt, &greedy(5)).unwrap_err();
        assert_eq!(engine.stats().n_pages_idle, 0);
        assert_eq!(
            engine.generate(&prompt, &greedy(5)).unwrap().usage.cached_tokens,
            0
        );
    }

    #[test]
    fn a_lost_device_fails_everything_with_its_reason() {
        let faults = Faults {
            lost_at: Some(5),
            ..Faults::default()
        };
        let engine = Engine::start(
            FakeExecutor::with_faults(limits(16), faults),
            EngineConfig::default(),
        );
        let prompts = [vec![1], vec![2], vec![3]];
        for output in engine.batch_generate(&prompts, &greedy(20)).unwrap() {
            let error = output.unwrap_err();
            assert!(
                matches!(error, EngineError::Step(StepError::DeviceLost { .. })),
                "{error}"
            );
        }
        assert!(engine.wait_for_end(Duration::from_secs(10)));
        let error = engine.generate(&[1], &greedy(1)).unwrap_err();
        assert!(
            matches!(error, EngineError::Step(StepError::DeviceLost { .. })),
            "{error}"
        );
    }

    #[test]
    fn an_executor_that_panics_ends_every_request() {
        let faults = Faults {
            panics_at: Some(3),
            ..Faults::default()
        };
        let engine = Engine::start(
            FakeExecutor::with_faults(limits(16), faults),
            EngineConfig::default(),
        );
        assert_eq!(
            engine.generate(&[1], &greedy(20)).unwrap_err(),
            EngineError::Stopped
        );
        assert!(engine.wait_for_end(Duration::from_secs(10)));
        assert_eq!(engine.state(), EngineState::Ended(EngineError::Stopped));
        assert_eq!(
            engine.submit(vec![1], greedy(1)).unwrap_err(),
            EngineError::Stopped
        );
    }
}

mod batch_generation_on_the_host {
    use super::*;

    #[test]
    fn batch_generate_of_an_empty_list_is_an_error() {
        let error = engine(8).batch_generate(&[], &greedy(1)).unwrap_err();
        assert_eq!(
            (&error, error.to_string()),
            (&EngineError::EmptyBatch, "prompts cannot be empty".into())
        );
    }

    #[test]
    fn batch_generate_with_an_empty_inner_prompt_is_an_error() {
        let error = engine(8)
            .batch_generate(&[vec![1], vec![]], &greedy(1))
            .unwrap_err();
        assert_eq!(error, EngineError::EmptyPrompt);
    }

    #[test]
    fn batch_generate_equals_single_for_every_size_up_to_33_with_ragged_lengths_and_staggered_ends() {
        let engine = engine(33 * 8);
        for n in 1..=33 {
            let prompts: Vec<Vec<u32>> = (0..n)
                .map(|own| prompt(own % 3, own + 100 * n, 20, 1 + (own as usize * 7) % 50))
                .collect();
            let params = GenerateParams {
                stop_tokens: vec![n as u32 % 32],
                ..greedy(16)
            };
            let outputs = engine.batch_generate(&prompts, &params).unwrap();
            for (prompt, output) in prompts.iter().zip(outputs) {
                assert_eq!(output.unwrap().tokens, expected(prompt, &params), "of {n}");
            }
        }
    }

    #[test]
    fn a_batch_larger_than_the_queue_completes_in_order() {
        let config = EngineConfig {
            max_queued: 3,
            max_running: 2,
            ..EngineConfig::default()
        };
        let engine = Engine::start(FakeExecutor::new(limits(16)), config);
        let prompts: Vec<Vec<u32>> = (0..20).map(|own| prompt(own, own, 0, 4)).collect();
        for (prompt, output) in prompts
            .iter()
            .zip(engine.batch_generate(&prompts, &greedy(4)).unwrap())
        {
            assert_eq!(output.unwrap().tokens, expected(prompt, &greedy(4)));
        }
    }

    #[test]
    fn the_last_prompt_token_is_fed_once() {
        let engine = engine(8);
        engine.generate(&prompt(1, 1, 5, 20), &greedy(6)).unwrap();
        // Twenty of the prompt and five of the six generated: the last is never an input.
        assert_eq!(engine.stats().scheduler.planned_tokens, 25);
    }

    #[test]
    fn one_step_serves_all_active_sequences() {
        let mut executor = FakeExecutor::new(limits(32));
        let (go, gate) = std::sync::mpsc::channel::<()>();
        executor.on_step = Box::new(move |_| wait_for(&gate));
        let engine = Engine::start(executor, EngineConfig::default());
        let go = go;
        let generations: Vec<_> = (0..9)
            .map(|own| engine.submit(vec![own; 3], greedy(12)).unwrap())
            .collect();
        drop(go);
        for generation in generations {
            assert_eq!(generation.count(), 13, "twelve tokens and the end");
        }
        // The first begins alone, for the others come while its first step is held; from then on all go together.
        let steps = engine.stats().scheduler.steps;
        assert!(steps <= 13, "{steps} steps for nine sequences of 12 tokens");
    }

    #[test]
    fn the_throughput_query_answers_from_measured_steps() {
        let engine = engine(64);
        assert_eq!(engine.throughput(4).unwrap_err(), EngineError::NotWarmedUp);
        let measured = engine.calibrate(&[1, 2, 4], 8).unwrap();
        assert_eq!(
            measured.iter().map(|point| point.n_sequences).collect::<Vec<_>>(),
            [1, 2, 4]
        );
        assert!(measured.iter().all(|point| point.tokens_per_s > 0.0));
        assert_eq!(measured[0].over_single, Some(1.0));
    }

    #[test]
    fn forward_batch_gives_the_logits_of_all_positions() {
        let tokens = prompt(1, 1, 10, 100);
        let engine = engine(16);
        for _round in 0..2 {
            assert_eq!(
                engine.forward_batch(&tokens).unwrap(),
                reference_logits(&limits(0), &tokens)
            );
        }
        assert_eq!(engine.forward_batch(&[]).unwrap_err(), EngineError::EmptyPrompt);
    }

    #[test]
    fn hidden_states_are_those_of_all_positions() {
        let tokens = prompt(1, 1, 10, 100);
        assert_eq!(
            engine(16).hidden_states(&tokens).unwrap(),
            reference_hidden(&limits(0), &tokens)
        );
    }

    #[test]
    fn prefill_batch_fills_pages_and_gives_the_logits_of_the_last_position() {
        let tokens = prompt(1, 1, 10, 100);
        let engine = engine(16);
        assert_eq!(engine.prefill_batch(&[]).unwrap_err(), EngineError::EmptyPrompt);
        let logits = engine.prefill_batch(&tokens).unwrap();
        assert_eq!(logits, reference_logits(&limits(0), &tokens)[99 * 32..]);
        let output = engine.generate(&tokens, &greedy(3)).unwrap();
        assert_eq!(
            (output.usage.cached_tokens, output.tokens),
            (96, expected(&tokens, &greedy(3)))
        );
    }
}

mod hybrid_batch_generation {
    use super::*;

    #[test]
    fn an_empty_list_returns_an_empty_list() {
        assert_eq!(engine(8).batch_generate_gpu(&[], &greedy(1)).unwrap(), []);
    }

    #[test]
    fn not_warmed_up_is_an_error() {
        let engine = engine(8);
        let prompts = [vec![1], vec![2, 3]];
        let error = engine.batch_generate_gpu(&prompts, &greedy(2)).unwrap_err();
        assert_eq!(error, EngineError::NotWarmedUp);
        engine.calibrate(&[1, 2], 4).unwrap();
        for (prompt, output) in prompts
            .iter()
            .zip(engine.batch_generate_gpu(&prompts, &greedy(2)).unwrap())
        {
            assert_eq!(output.unwrap().tokens, expected(prompt, &greedy(2)));
        }
    }

    #[test]
    fn both_routes_compute_the_same_with_threshold_1_3_and_infinity() {
        let prompts: Vec<Vec<u32>> = (0..6)
            .map(|own| prompt(1, own, 10, 5 + 9 * own as usize))
            .collect();
        let params = GenerateParams {
            stop_tokens: vec![4, 9],
            ..greedy(30)
        };
        for threshold in [1, 3, usize::MAX] {
            let executor = RoutedExecutor::new(&limits(64), &Faults::default(), threshold);
            let n_taken = Arc::clone(&executor.n_taken);
            let engine = Engine::start(executor, EngineConfig::default());
            engine.calibrate(&[1], 2).unwrap();
            let outputs = engine.batch_generate_gpu(&prompts, &params).unwrap();
            for (prompt, output) in prompts.iter().zip(outputs) {
                assert_eq!(output.unwrap().tokens, expected(prompt, &params));
            }
            let took = n_taken.each_ref().map(|n| n.load(Ordering::Relaxed) > 0);
            assert_eq!(
                took,
                [threshold > 1, threshold < usize::MAX],
                "routes taken at {threshold}"
            );
        }
    }

    #[test]
    fn ragged_prompts_are_prefilled_packed() {
        let engine = engine(64);
        engine.calibrate(&[1], 2).unwrap();
        let before = engine.stats().scheduler;
        let prompts = [vec![1; 3], vec![2; 20], vec![3; 9]];
        engine.batch_generate_gpu(&prompts, &greedy(1)).unwrap();
        let after = engine.stats().scheduler;
        // Nothing is padded to the longest.
        assert_eq!(after.planned_tokens - before.planned_tokens, 32);
    }

    #[test]
    fn pages_are_back_after_a_step_fails_on_either_route() {
        let faults = Faults {
            waits: vec![20],
            ..Faults::default()
        };
        let engine = Engine::start(
            RoutedExecutor::new(&limits(16), &faults, 2),
            EngineConfig::default(),
        );
        engine.calibrate(&[1], 2).unwrap();
        let prompts = [vec![1], vec![2, 3]];
        let outputs = engine.batch_generate_gpu(&prompts, &greedy(40)).unwrap();
        assert!(outputs.iter().all(Result::is_err));
        assert_no_page_is_held(&engine);
        assert!(
            engine
                .batch_generate_gpu(&prompts, &greedy(40))
                .unwrap()
                .iter()
                .all(Result::is_ok)
        );
    }
}

mod streaming_generation {
    use super::*;

    #[test]
    fn an_empty_prompt_gives_an_empty_output_and_touches_nothing() {
        let engine = engine(8);
        let output = engine
            .generate_streaming(&[], &greedy(5), |_| panic!("no token"))
            .unwrap();
        assert_eq!((output.tokens, engine.stats().scheduler.steps), (vec![], 0));
    }

    #[test]
    fn a_second_request_uses_cached_pages_and_equals_the_first() {
        let engine = engine(16);
        let first = prompt(1, 1, 50, 50);
        let other = prompt(1, 2, 40, 50);
        let cold = engine.generate(&first, &greedy(10)).unwrap();
        assert_eq!(
            (cold.usage.cached_tokens, cold.usage.cache_miss),
            (0, Some(MissReason::Unseen))
        );
        let warm = engine.generate(&first, &greedy(10)).unwrap();
        assert_eq!((warm.usage.cached_tokens, warm.usage.cache_miss), (48, None));
        assert_eq!(warm.tokens, cold.tokens);
        let shared = engine.generate(&other, &greedy(10)).unwrap();
        assert_eq!(
            (shared.usage.cached_tokens, shared.usage.cache_miss),
            (32, Some(MissReason::Diverged))
        );
        assert_eq!(shared.tokens, expected(&other, &greedy(10)));
    }

    #[test]
    fn prefill_gives_the_first_token_without_a_second_pass() {
        let engine = engine(8);
        engine.generate(&prompt(1, 1, 5, 40), &greedy(1)).unwrap();
        let stats = engine.stats().scheduler;
        assert_eq!((stats.steps, stats.planned_tokens), (1, 40));
    }

    #[test]
    fn a_callback_that_returns_false_at_token_k_gives_exactly_k_tokens() {
        let engine = engine(8);
        let prompt = prompt(1, 1, 5, 20);
        for k in 1..6 {
            let mut n_seen = 0;
            let output = engine
                .generate_streaming(&prompt, &greedy(10), |_| {
                    n_seen += 1;
                    n_seen < k
                })
                .unwrap();
            assert_eq!((n_seen, output.reason), (k, FinishReason::Cancelled));
            assert_eq!(output.tokens, expected(&prompt, &greedy(k)));
            assert_eq!(output.usage.completion_tokens, k);
        }
        assert_no_page_is_held(&engine);
    }

    #[test]
    fn a_callback_that_panics_leaks_nothing() {
        let engine = engine(8);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            engine.generate_streaming(&[1, 2, 3], &greedy(50), |_| panic!("a callback that panics"))
        }));
        assert!(result.is_err());
        assert_no_page_is_held(&engine);
        assert_eq!(
            engine.generate(&[1], &greedy(5)).unwrap().tokens,
            expected(&[1], &greedy(5))
        );
    }

    #[test]
    fn the_prompts_pages_are_cached_also_when_generation_stops_early() {
        let engine = engine(16);
        let prompt = prompt(1, 1, 40, 40);
        engine
            .generate_streaming(&prompt, &greedy(50), |_| false)
            .unwrap();
        assert_eq!(
            engine.generate(&prompt, &greedy(1)).unwrap().usage.cached_tokens,
            32
        );
    }

    #[test]
    fn generated_pages_are_cached_when_they_are_whole() {
        let engine = engine(16);
        let first = engine.generate(&[7], &greedy(40)).unwrap();
        // Of the 41 tokens the last was never stored: 40 make two whole pages.
        assert_eq!(
            engine
                .generate(&first.tokens, &greedy(1))
                .unwrap()
                .usage
                .cached_tokens,
            32
        );
    }

    #[test]
    fn a_trace_has_the_time_of_every_token() {
        let engine = engine(8);
        let traced = GenerateParams {
            traces_tokens: true,
            ..greedy(5)
        };
        let timings = engine.generate(&[1, 2], &traced).unwrap().timings;
        assert_eq!(timings.tokens.len(), 5);
        assert!(timings.tokens.is_sorted());
        assert_eq!(timings.tokens[0], timings.first_token);
        assert!(timings.queued <= timings.first_token && timings.first_token <= timings.total);
        assert_eq!(engine.generate(&[1, 2], &greedy(5)).unwrap().timings.tokens, []);
    }

    #[test]
    fn a_slow_consumer_receives_all_tokens_and_others_go_on() {
        let config = EngineConfig {
            stream_buffer: 4,
            ..EngineConfig::default()
        };
        let engine = Engine::start(FakeExecutor::new(limits(16)), config);
        let mut slow = engine.submit(vec![1, 2], greedy(60)).unwrap();
        let fast = engine.generate(&[3], &greedy(40)).unwrap();
        assert_eq!(fast.tokens, expected(&[3], &greedy(40)));
        assert_eq!(engine.stats().n_paused, 1);
        let tokens: Vec<u32> = slow
            .by_ref()
            .filter_map(|event| match event {
                Event::Token(token) => Some(token.id),
                _ => None,
            })
            .collect();
        assert_eq!([&[1, 2][..], &tokens].concat(), expected(&[1, 2], &greedy(60)));
    }

    #[test]
    fn samples_share_one_prefill_and_equal_requests_with_their_seeds() {
        let engine = engine(32);
        let prompt = prompt(1, 1, 40, 40);
        let params = GenerateParams {
            sampling: sampled(11, 1.0),
            n_samples: 4,
            ..greedy(20)
        };
        let outputs = engine.generate_samples(&prompt, &params).unwrap();
        for (sample, output) in (0..).zip(outputs) {
            let alone = GenerateParams {
                sampling: sampled(11 + sample, 1.0),
                ..greedy(20)
            };
            let output = output.unwrap();
            assert_eq!(output.tokens, expected(&prompt, &alone));
            assert_eq!(output.usage.cached_tokens, if sample == 0 { 0 } else { 39 });
        }
        let stats = engine.stats();
        // The prompt once, its last token again for each other sample, and 19 generated tokens of each.
        assert_eq!(stats.scheduler.planned_tokens, 40 + 3 + 4 * 19);
        assert_eq!(stats.pool.duplicates, 3);
    }

    #[test]
    fn a_stop_found_by_the_caller_ends_a_sample_at_the_token_it_has() {
        let engine = engine(32);
        let params = GenerateParams {
            sampling: sampled(1, 1.0),
            n_samples: 2,
            ..greedy(30)
        };
        let mut generation = engine.submit(vec![1, 2, 3], params).unwrap();
        let mut counts = [0, 0];
        let mut ends = Vec::new();
        while let Some(event) = generation.next() {
            match event {
                Event::Token(token) => {
                    counts[token.sample as usize] += 1;
                    if token.sample == 1 && counts[1] == 5 {
                        generation.stop(1);
                    }
                }
                Event::Finished(end) => ends.push((end.sample, end.reason, end.usage.completion_tokens)),
                event => panic!("{event:?}"),
            }
        }
        ends.sort_by_key(|end| end.0);
        assert_eq!(ends, [(0, FinishReason::Length, 30), (1, FinishReason::Stop, 5)]);
        assert_eq!(counts, [30, 5]);
        assert_no_page_is_held(&engine);
    }

    #[test]
    fn dropping_a_generation_frees_its_pages_and_nobody_elses() {
        let engine = engine(32);
        let mut dropped = engine.submit(vec![1; 20], greedy(400)).unwrap();
        let other = engine.submit(vec![2; 20], greedy(30)).unwrap();
        let first = dropped.next();
        assert!(matches!(first, Some(Event::Token(_))), "{first:?}");
        drop(dropped);
        let n_tokens = other.filter(|event| matches!(event, Event::Token(_))).count();
        assert_eq!(n_tokens, 30);
        assert_no_page_is_held(&engine);
    }
}

mod operation {
    use super::*;

    #[test]
    fn a_full_queue_refuses_with_both_numbers() {
        let config = EngineConfig {
            max_queued: 2,
            max_queued_tokens: 10,
            max_running: 1,
            ..EngineConfig::default()
        };
        let mut executor = FakeExecutor::new(limits(64));
        let (go, gate) = std::sync::mpsc::channel::<()>();
        executor.on_step = Box::new(move |_| wait_for(&gate));
        let engine = Engine::start(executor, config);
        // Dropped ahead of the engine, so that its thread can end.
        let go = go;
        let _running = engine.submit(vec![1], greedy(20)).unwrap();
        go.send(()).unwrap();
        while engine.queued().0 > 0 {
            std::thread::yield_now();
        }
        let _first = engine.submit(vec![1; 4], greedy(20)).unwrap();
        let error = engine.submit(vec![1; 7], greedy(1)).unwrap_err();
        assert_eq!(
            error,
            EngineError::QueueTokensFull {
                queued: 4,
                provided: 7,
                maximum: 10
            }
        );
        let _second = engine.submit(vec![1; 4], greedy(20)).unwrap();
        let error = engine.submit(vec![1], greedy(1)).unwrap_err();
        assert_eq!(
            error,
            EngineError::QueueFull {
                queued: 2,
                maximum: 2
            }
        );
        drop(go);
    }

    #[test]
    fn drain_finishes_what_was_accepted_and_refuses_the_rest() {
        let engine = engine(16);
        let accepted = engine.submit(vec![1], greedy(50)).unwrap();
        engine.drain();
        assert_eq!(
            engine.submit(vec![1], greedy(1)).unwrap_err(),
            EngineError::Draining
        );
        assert_eq!(
            accepted.filter(|event| matches!(event, Event::Token(_))).count(),
            50
        );
        assert!(engine.wait_for_end(Duration::from_secs(10)));
        assert_eq!(
            engine.submit(vec![1], greedy(1)).unwrap_err(),
            EngineError::Stopped
        );
    }

    #[test]
    fn the_heartbeat_ages_when_the_executor_hangs() {
        let mut executor = FakeExecutor::new(limits(16));
        let (go, gate) = std::sync::mpsc::channel::<()>();
        executor.on_step = Box::new(move |_| wait_for(&gate));
        let engine = Engine::start(executor, EngineConfig::default());
        let go = go;
        let hanging = engine.submit(vec![1], greedy(2)).unwrap();
        std::thread::sleep(Duration::from_millis(600));
        assert!(
            engine.heartbeat_age() >= Duration::from_millis(400),
            "{:?}",
            engine.heartbeat_age()
        );
        drop(go);
        assert_eq!(
            hanging.filter(|event| matches!(event, Event::Token(_))).count(),
            2
        );
        std::thread::sleep(Duration::from_millis(300));
        assert!(
            engine.heartbeat_age() <= Duration::from_secs(2),
            "{:?}",
            engine.heartbeat_age()
        );
    }

    #[test]
    fn a_queue_timeout_and_a_deadline_are_errors_with_the_time_passed() {
        let mut executor = FakeExecutor::new(limits(16));
        executor.on_step = Box::new(|_| std::thread::sleep(Duration::from_millis(5)));
        let config = EngineConfig {
            max_running: 1,
            ..EngineConfig::default()
        };
        let engine = Engine::start(executor, config);
        let after = Some(Duration::from_millis(60));
        let running = GenerateParams {
            deadline: after,
            ..greedy(200)
        };
        let waiting = GenerateParams {
            queue_timeout: Some(Duration::from_millis(20)),
            priority: -1,
            ..greedy(1)
        };
        let running = engine.submit(vec![1], running).unwrap();
        let waiting = engine.submit(vec![2], waiting).unwrap();
        let last = waiting.last();
        assert!(
            matches!(last, Some(Event::Failed { error: EngineError::QueueTimeout { waited }, .. })
                if waited >= Duration::from_millis(20)),
            "{last:?}"
        );
        let last = running.last();
        assert!(
            matches!(
                last,
                Some(Event::Failed {
                    error: EngineError::DeadlineExceeded { .. },
                    ..
                })
            ),
            "{last:?}"
        );
        assert_no_page_is_held(&engine);
    }

    #[test]
    fn an_executor_that_cannot_be_sent_is_built_on_the_engines_thread() {
        struct NotSend(
            FakeExecutor,
            #[expect(dead_code, reason = "it makes the type not Send")] std::rc::Rc<()>,
        );
        impl tokenmill_model::Executor for NotSend {
            fn limits(&self) -> &ExecutorLimits {
                self.0.limits()
            }
            fn submit(
                &mut self,
                batch: &tokenmill_model::ForwardBatch,
            ) -> Result<tokenmill_model::Ticket, StepError> {
                self.0.submit(batch)
            }
            fn wait(
                &mut self,
                ticket: tokenmill_model::Ticket,
                output: &mut tokenmill_model::StepOutput,
            ) -> Result<(), StepError> {
                self.0.wait(ticket, output)
            }
            fn copy_pages(&mut self, copies: &[tokenmill_model::PageCopy]) -> Result<(), StepError> {
                self.0.copy_pages(copies)
            }
        }
        let make = || Ok::<_, String>(NotSend(FakeExecutor::new(limits(8)), std::rc::Rc::default()));
        let engine = Engine::start_with(EngineConfig::default(), make).unwrap();
        assert_eq!(
            engine.generate(&[1], &greedy(3)).unwrap().tokens,
            expected(&[1], &greedy(3))
        );
        let failed = Engine::start_with(EngineConfig::default(), || Err::<FakeExecutor, _>("no device"));
        assert_eq!(failed.unwrap_err(), "no device");
    }

    #[test]
    fn an_asynchronous_caller_needs_no_runtime() {
        struct Unpark(std::thread::Thread);
        impl std::task::Wake for Unpark {
            fn wake(self: std::sync::Arc<Self>) {
                self.0.unpark();
            }
        }
        let engine = engine(8);
        let mut generation = engine.submit(vec![1], greedy(9)).unwrap();
        let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
        let mut context = std::task::Context::from_waker(&waker);
        let mut tokens = vec![1];
        loop {
            match generation.poll_event(&mut context) {
                std::task::Poll::Pending => std::thread::park(),
                std::task::Poll::Ready(Some(Event::Token(token))) => tokens.push(token.id),
                std::task::Poll::Ready(Some(_)) => {}
                std::task::Poll::Ready(None) => break,
            }
        }
        assert_eq!(tokens, expected(&[1], &greedy(9)));
    }

    #[test]
    fn log_probabilities_come_as_asked() {
        let engine = engine(8);
        let with = |n_logprobs| GenerateParams {
            sampling: SamplingParams {
                n_logprobs,
                ..SamplingParams::default()
            },
            ..greedy(3)
        };
        let output = engine.generate(&[1], &with(Some(2))).unwrap();
        for token in &output.generated {
            assert_eq!(
                (token.logprob, token.top.len(), token.top[0].id),
                (Some(-(token.id as f32)), 2, token.id)
            );
        }
        let output = engine.generate(&[1], &with(None)).unwrap();
        assert!(
            output
                .generated
                .iter()
                .all(|token| token.logprob.is_none() && token.top.is_empty())
        );
        assert_eq!(generated(&output).len(), 3);
    }
}
