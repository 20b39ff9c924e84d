//! `batch_generate`, `forward_batch`, `prefill_batch` and the throughput query.

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
