//! Answers that were given before: the same answer takes few steps, and no request learns by them what it did not send.

use std::sync::Arc;

use tokenmill_backend::SamplingParams;
use tokenmill_sched::{
    ConstraintSource, Engine, EngineConfig, Event, GenerateParams, Output, SchedulerCounters, Speculation,
};
use tokenmill_testkit::{MEMORY_KINDS, Random, TinyModel, tiny_llama};

use super::{NGRAM, Remainders, engine, executor, model};

const N_TOKENS: usize = 60;

fn prompt(seed: u64, n_tokens: usize) -> Vec<u32> {
    let mut random = Random::new(seed);
    let n_vocab = tiny_llama().n_vocab;
    (0..n_tokens).map(|_| random.below(n_vocab) as u32).collect()
}

fn greedy() -> GenerateParams {
    GenerateParams {
        max_tokens: Some(N_TOKENS),
        ..GenerateParams::default()
    }
}

fn counters(engine: &Engine) -> SchedulerCounters {
    engine.stats().scheduler
}

/// Tokens of a request that an earlier answer guessed right, its steps that sampled, and its answer.
fn ask(engine: &Engine, prompt: &[u32], params: &GenerateParams) -> (u64, u64, Output) {
    let before = counters(engine);
    let output = engine.generate(prompt, params).unwrap();
    let after = counters(engine);
    assert_eq!(
        after.drafts.draft_tokens - before.drafts.draft_tokens,
        output.usage.drafted_tokens as u64
    );
    (
        after.earlier_drafts.accepted_tokens - before.earlier_drafts.accepted_tokens,
        after.sampling_rows - before.sampling_rows,
        output,
    )
}

/// Tokens of a draft of an earlier answer, right or wrong.
fn drafted(engine: &Engine, prompt: &[u32], params: &GenerateParams) -> u64 {
    let before = counters(engine).earlier_drafts.draft_tokens;
    engine.generate(prompt, params).unwrap();
    counters(engine).earlier_drafts.draft_tokens - before
}

#[test]
fn an_answer_that_is_asked_for_again_takes_a_step_for_each_longest_draft() {
    for (name, change) in MEMORY_KINDS {
        let model = model(*change);
        let prompt = prompt(7, 40);
        let plain = engine(&model, 100, Speculation::Off);
        let plain = plain.generate(&prompt, &greedy()).unwrap().tokens;
        let engine = engine(&model, 100, NGRAM);
        let (of_first, _, output) = ask(&engine, &prompt, &greedy());
        assert_eq!((of_first, &output.tokens), (0, &plain), "{name}");
        for _ in 0..2 {
            let (n_right, n_steps, output) = ask(&engine, &prompt, &greedy());
            assert_eq!(output.tokens, plain, "{name}");
            assert_eq!(
                output.usage.drafted_tokens, output.usage.accepted_tokens,
                "{name}"
            );
            // Seven of each eight tokens, and where states end with pages a few less.
            assert!(
                n_right >= 48 && n_steps <= 12,
                "{name}: {n_right} in {n_steps} steps"
            );
        }
    }
}

#[test]
fn a_longer_answer_begins_as_the_one_before() {
    let model = model(|_| {});
    let engine = engine(&model, 100, NGRAM);
    let prompt = prompt(8, 33);
    let of = |n| GenerateParams {
        max_tokens: Some(n),
        ..greedy()
    };
    ask(&engine, &prompt, &of(20));
    assert!((15..20).contains(&ask(&engine, &prompt, &of(50)).0));
    // The longer one is kept from then on, also where a shorter one came last.
    ask(&engine, &prompt, &of(5));
    assert!(ask(&engine, &prompt, &of(50)).0 > 40);
    // Each sample takes it.
    let before = counters(&engine).earlier_drafts.accepted_tokens;
    let three = GenerateParams {
        n_samples: 3,
        ..of(50)
    };
    let samples = engine.submit(prompt, three).unwrap();
    assert_eq!(
        samples
            .filter(|event| matches!(event, Event::Finished(_)))
            .count(),
        3
    );
    let n_right = counters(&engine).earlier_drafts.accepted_tokens - before;
    assert!(n_right > 120, "{n_right}");
}

#[test]
fn a_request_that_is_not_the_same_draws_nothing() {
    let model = model(|_| {});
    let engine = engine(&model, 200, NGRAM);
    let prompt = prompt(9, 40);
    let answer = engine.generate(&prompt, &greedy()).unwrap().tokens;
    let sampling = |change: fn(&mut SamplingParams)| {
        let mut params = greedy();
        change(&mut params.sampling);
        params
    };
    let nothing = |prompt: &[u32], params: &GenerateParams| {
        assert_eq!(drafted(&engine, prompt, params), 0, "{params:?}");
    };
    // Neither another tenant nor one that shares nothing, nor one that does not do as the first.
    let salted = GenerateParams {
        cache_salt: 1,
        ..greedy()
    };
    nothing(&prompt, &salted);
    nothing(
        &prompt,
        &GenerateParams {
            uses_prefix_cache: false,
            ..greedy()
        },
    );
    nothing(&prompt, &sampling(|sampling| sampling.temperature = 0.8));
    nothing(
        &prompt,
        &sampling(|sampling| sampling.logit_bias = vec![(5, 3.0)]),
    );
    nothing(&prompt, &sampling(|sampling| sampling.repeat_penalty = 1.2));
    // Whoever guesses a part of the text, from before the prompt's end or from behind it, learns nothing: neither a wrong last token nor a
    // right beginning, nor the right beginning of the answer draws a token.
    for n_tokens in [16, 24, 32, 39] {
        nothing(&prompt[..n_tokens], &greedy());
    }
    for wrong in 0..40 {
        let mut probe = prompt.clone();
        probe[wrong] = (probe[wrong] + 1) % tiny_llama().n_vocab as u32;
        nothing(&probe, &greedy());
    }
    for n_more in [1, 7, 8, 9, 20] {
        nothing(&answer[..40 + n_more], &greedy());
    }
    // Each of them drew nothing because it is not the same: the same do.
    assert!(drafted(&engine, &prompt, &greedy()) > 40);
    assert!(drafted(&engine, &prompt, &salted) > 40);
    assert!(
        drafted(
            &engine,
            &prompt,
            &sampling(|sampling| sampling.repeat_penalty = 1.2)
        ) > 40
    );
}

#[test]
fn a_prompt_below_a_page_and_a_given_text_leave_nothing() {
    let model = model(|_| {});
    let engine = engine(&model, 200, NGRAM);
    let short = prompt(10, 15);
    engine.generate(&short, &greedy()).unwrap();
    assert_eq!(drafted(&engine, &short, &greedy()), 0);
    let long = prompt(10, 16);
    let given = GenerateParams {
        follows: Some(Arc::from(vec![5; 30])),
        ..greedy()
    };
    for params in [&given, &given, &greedy()] {
        assert_eq!(drafted(&engine, &long, params), 0);
    }
    assert!(drafted(&engine, &long, &greedy()) > 40);
}

#[test]
fn a_constrained_answer_is_found_by_the_name_of_its_constraint() {
    let model = model(|_| {});
    let engine = engine(&model, 200, NGRAM);
    let prompt = prompt(11, 40);
    let source = || ConstraintSource::new(|| Box::new(Remainders::new(3, true, None)));
    let of = |constraint| GenerateParams {
        constraint: Some(constraint),
        ..greedy()
    };
    let plain = ask(&engine, &prompt, &of(source())).2.tokens;
    assert_eq!(ask(&engine, &prompt, &of(source())).0, 0, "without a name");
    let (of_first, _, output) = ask(&engine, &prompt, &of(source().named(*b"thirds")));
    assert_eq!((of_first, output.tokens), (0, plain.clone()));
    let (n_right, n_steps, output) = ask(&engine, &prompt, &of(source().named(*b"thirds")));
    assert_eq!(output.tokens, plain);
    assert!(n_right > 40 && n_steps < 16, "{n_right} in {n_steps} steps");
    assert_eq!(ask(&engine, &prompt, &of(source().named(*b"fourths"))).0, 0);
    assert_eq!(ask(&engine, &prompt, &greedy()).0, 0);
}

#[test]
fn what_is_forgotten_guesses_nothing() {
    let model = model(|_| {});
    let engine = engine(&model, 200, NGRAM);
    let (one, other) = (prompt(12, 40), prompt(13, 40));
    let fill = || {
        for prompt in [&one, &other] {
            engine.generate(prompt, &greedy()).unwrap();
        }
    };
    fill();
    engine.forget_prefix(&one, 0).unwrap();
    assert_eq!(drafted(&engine, &one, &greedy()), 0);
    assert!(drafted(&engine, &other, &greedy()) > 40);
    engine.forget_prefix(&one, 1).unwrap();
    assert!(
        drafted(&engine, &one, &greedy()) > 40,
        "another tenant's was meant"
    );
    engine.forget_cache();
    for prompt in [&one, &other] {
        assert_eq!(drafted(&engine, prompt, &greedy()), 0);
    }
}

#[test]
fn where_look_ups_are_off_nothing_is_kept() {
    let model = model(|_| {});
    let prompt = prompt(14, 40);
    for speculation in [Speculation::Off, Speculation::Draft { max_draft: 5 }] {
        let engine = engine(&model, 100, speculation);
        for _ in 0..2 {
            assert_eq!(drafted(&engine, &prompt, &greedy()), 0, "{speculation:?}");
        }
    }
    let config = EngineConfig {
        speculation: NGRAM,
        uses_prefix_cache: false,
        ..EngineConfig::default()
    };
    let engine = Engine::start(executor(&model, 100, 1), config);
    for _ in 0..2 {
        assert_eq!(drafted(&engine, &prompt, &greedy()), 0);
    }
}

#[test]
fn weighed_drafts_take_an_earlier_answer_too() {
    let model: TinyModel = model(|_| {});
    let prompt = prompt(15, 40);
    let engine = engine(&model, 100, Speculation::Auto { max_draft: 16 });
    // Steps with drafts have to be measured before any is weighed, which other programs may disturb.
    ask(&engine, &prompt, &greedy());
    let is_drafted = (0..100).any(|_| ask(&engine, &prompt, &greedy()).1 < 40);
    assert!(is_drafted, "an earlier answer was never drafted from");
}
