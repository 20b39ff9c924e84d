//! Answers that are given beforehand: whatever is guessed and whatever the model would say, they come.

use tokenmill_backend::SamplingParams;
use tokenmill_sched::{
    ConstraintSource, Engine, EngineConfig, EngineError, Event, FinishReason, Finished, GenerateParams,
    Speculation,
};
use tokenmill_testkit::{MEMORY_KINDS, tiny_llama};

use super::{MTP, NGRAM, Remainders, engine_with, executor, layer_for_further_tokens, model};

#[test]
fn a_text_that_is_given_comes_whatever_the_model_says_and_is_guessed_as_any() {
    let n_vocab = tiny_llama().n_vocab as u32;
    let phrase = [9, 4, 7, 1, 8];
    let repeats: Vec<u32> = phrase.iter().cycle().take(100).copied().collect();
    // Each pair of tokens comes once.
    let other: Vec<u32> = (0..100).map(|n| n * n / 2 % n_vocab).collect();
    for (kind, (name, change)) in MEMORY_KINDS.iter().enumerate() {
        let model = model(*change);
        let layer = layer_for_further_tokens();
        for (speculation, n_pages) in [
            (Speculation::Off, 40),
            (NGRAM, 40),
            (NGRAM, 14),
            (MTP, 40),
            (Speculation::Auto { max_draft: 16 }, 40),
        ] {
            let engine = engine_with(&model, n_pages, speculation, &layer, n_pages);
            let follow = |text: &[u32], max_tokens| GenerateParams {
                max_tokens: Some(max_tokens),
                follows: Some(text.into()),
                sampling: SamplingParams {
                    temperature: 0.7,
                    seed: kind as u64,
                    ..SamplingParams::default()
                },
                ..GenerateParams::default()
            };
            let streams: Vec<_> = [&repeats, &other, &repeats]
                .map(|text| engine.submit(phrase.to_vec(), follow(text, 100)).unwrap())
                .into();
            for (generation, text) in streams.into_iter().zip([&repeats, &other, &repeats]) {
                let mut said = Vec::new();
                for event in generation {
                    match event {
                        Event::Token(token) => said.push(token.id),
                        Event::Finished(end) => {
                            let Finished { usage, reason, .. } = end;
                            assert_eq!((usage.completion_tokens, reason), (100, FinishReason::Length));
                            if speculation == NGRAM && n_pages == 40 && text == &repeats {
                                assert!(usage.accepted_tokens > 60, "{name}: {usage:?}");
                            }
                            if speculation == Speculation::Off {
                                assert_eq!(usage.drafted_tokens, 0);
                            }
                        }
                        event => panic!("{name}: {event:?}"),
                    }
                }
                assert_eq!(&said, text, "{name}, {speculation:?}");
            }
            // Behind its end the model continues by itself, and with the same words whatever was guessed.
            let output = engine.generate(&phrase, &follow(&repeats[..20], 24)).unwrap();
            assert_eq!(output.tokens[5..25], repeats[..20], "{name}");
            let alone = GenerateParams {
                max_tokens: Some(1),
                ..follow(&[], 1)
            };
            let next = engine.generate(&output.tokens[..25], &alone).unwrap();
            assert_eq!(output.tokens[25], next.tokens[25], "{name}");
        }
    }
}

#[test]
fn a_text_that_cannot_be_given_is_refused() {
    let model = model(|_| {});
    let follow = GenerateParams {
        max_tokens: Some(3),
        follows: Some([1, 2, 3].into()),
        ..GenerateParams::default()
    };
    let start = |steps_in_flight| {
        let config = EngineConfig {
            steps_in_flight,
            ..EngineConfig::default()
        };
        Engine::start(executor(&model, 32, 1), config)
    };
    let refused = |engine: &Engine, params: GenerateParams| engine.generate(&[1], &params).unwrap_err();
    assert_eq!(
        refused(&start(Some(2)), follow.clone()),
        EngineError::CannotFollow
    );
    let engine = start(None);
    let constrained = GenerateParams {
        constraint: Some(ConstraintSource::new(|| Box::new(Remainders::new(3, true, None)))),
        ..follow.clone()
    };
    assert_eq!(refused(&engine, constrained), EngineError::CannotFollow);
    let unknown = GenerateParams {
        follows: Some([1, tiny_llama().n_vocab as u32].into()),
        ..follow.clone()
    };
    assert_eq!(refused(&engine, unknown), EngineError::CannotFollow);
    assert_eq!(engine.generate(&[1], &follow).unwrap().tokens, [1, 1, 2, 3]);
}
