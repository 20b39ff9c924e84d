//! `generate_streaming`, the prefix cache behind it, samples, and consumers of every speed.

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
    // The last of the 41 tokens was never stored: 40 make two whole pages.
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
    let output = engine.generate(&[1, 2], &traced).unwrap();
    let timings = output.timings;
    assert_eq!(timings.tokens.len(), 5);
    let told: Vec<Duration> = output.generated.iter().map(|token| token.time).collect();
    assert_eq!(timings.tokens, told, "each token says it too");
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
fn a_caller_that_has_seen_the_end_finds_all_tokens_counted() {
    let engine = engine(8);
    for n in 1..=300 {
        engine.generate(&[1, 2], &greedy(3)).unwrap();
        let stats = engine.stats();
        assert_eq!((stats.generated_tokens, stats.finished), (3 * n, n));
    }
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
