//! Rules for every call: the contents of an output, the end of a sequence, independence of other sequences,
//! typed errors.

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
        steps_in_flight: Some(2),
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
fn the_executor_says_how_many_steps_are_worth_having_in_flight() {
    for (asked, n_worth, n_expected) in [(None, 2, 2), (None, 1, 1), (Some(1), 2, 1), (Some(2), 1, 2)] {
        let mut executor = FakeExecutor::new(limits(8));
        executor.steps_in_flight = n_worth;
        let most = executor.most_in_flight();
        let config = EngineConfig {
            steps_in_flight: asked,
            ..EngineConfig::default()
        };
        let prompt = prompt(1, 1, 5, 20);
        let output = Engine::start(executor, config)
            .generate(&prompt, &greedy(8))
            .unwrap();
        assert_eq!(output.tokens, expected(&prompt, &greedy(8)));
        assert_eq!(most.load(Ordering::Relaxed), n_expected);
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
fn a_failed_download_costs_the_cached_page_and_no_request() {
    let limits = ExecutorLimits {
        n_host_pages: 8,
        ..limits(4)
    };
    let with_faults = |copies: Vec<u64>| {
        let faults = Faults {
            copies,
            ..Faults::default()
        };
        Engine::start(
            FakeExecutor::with_faults(limits.clone(), faults),
            EngineConfig::default(),
        )
    };
    // The second prompt takes all pages, so those that the first left behind go to the host tier.
    let (first, second) = (prompt(1, 1, 0, 40), prompt(2, 2, 0, 50));
    let params = greedy(5);
    for (engine, is_dropped) in [(with_faults(Vec::new()), false), (with_faults(vec![0]), true)] {
        for tokens in [&first, &second] {
            let output = engine.generate(tokens, &params).unwrap();
            assert_eq!(output.tokens, expected(tokens, &params));
        }
        assert!(engine.stats().pool.downloads > 0);
        let again = engine.generate(&first, &params).unwrap();
        assert_eq!(again.tokens, expected(&first, &params));
        assert_eq!(again.usage.cached_tokens < 32, is_dropped);
        assert_eq!(engine.stats().failed_steps, 0);
        assert_no_page_is_held(&engine);
    }
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
