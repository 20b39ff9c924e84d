//! Adapters in a running engine: pages of their own, removal while requests run, bits that do not depend on company.

use std::{sync::Arc, time::Duration};

use tokenmill_backend::{
    Adapter, AdapterError, AdapterId, AdapterWeight, Executor, ExecutorLimits, FloatMatrix, ForwardBatch,
    PageCopy, PageGroup, SamplingParams, StepError, StepOutput, Ticket,
};
use tokenmill_gguf::TensorType;
use tokenmill_model::ModelOptions;
use tokenmill_sched::{Engine, EngineConfig, EngineError, Event, GenerateParams, Speculation};
use tokenmill_testkit::{FakeExecutor, Random, TinyModel, engines, fake_executor, tiny_llama};

fn executor() -> impl Executor + Send + 'static {
    executor_of(&TinyModel::random(tiny_llama(), TensorType::Q8_0, 11))
}

fn executor_of(model: &TinyModel) -> impl Executor + Send + use<> + 'static {
    let options = ModelOptions {
        n_ctx: Some(256),
        max_batch_tokens: 64,
        max_batch_seqs: 8,
        max_logit_rows: 64,
        n_pages: Some(64),
        ..ModelOptions::default()
    };
    engines::tiny(model, engines::cpu(2), &options)
}

fn adapter(seed: u64) -> Arc<Adapter> {
    let descriptor = tiny_llama();
    let mut random = Random::new(seed);
    let (rank, n_in) = (4, descriptor.n_embd);
    let n_out = descriptor.layers[0].mixer.attention().unwrap().q_width();
    let mut matrix = |n: usize| FloatMatrix {
        ty: TensorType::F32,
        bytes: (0..n)
            .flat_map(|_| (0.5 * random.symmetric()).to_le_bytes())
            .collect(),
    };
    Arc::new(Adapter {
        weights: vec![AdapterWeight {
            tensor: "blk.0.attn_q.weight".to_owned(),
            scale: 2.0,
            rank,
            n_in,
            n_out,
            a: matrix(rank * n_in),
            b: matrix(n_out * rank),
        }],
    })
}

fn params(max_tokens: usize, adapter: Option<AdapterId>) -> GenerateParams {
    GenerateParams {
        max_tokens: Some(max_tokens),
        adapter,
        ..GenerateParams::default()
    }
}

#[test]
fn cached_pages_are_found_by_their_own_adapter_only_and_go_with_it() {
    let engine = Engine::start(executor(), EngineConfig::default());
    let [a, b] = [1, 2].map(|seed| engine.add_adapter(adapter(seed), 1.0).unwrap());
    let prompt: Vec<u32> = (0..40).collect();
    let cached = |adapter| {
        engine
            .generate(&prompt, &params(2, adapter))
            .unwrap()
            .usage
            .cached_tokens
    };
    for adapter in [None, Some(a), Some(b)] {
        assert_eq!([cached(adapter), cached(adapter)], [0, 32], "{adapter:?}");
    }
    let n_idle = || engine.stats().n_pages_idle;
    assert_eq!(n_idle(), 6);
    engine.remove_adapter(a).unwrap();
    // Whatever is computed next comes behind the removal.
    assert_eq!([cached(Some(b)), cached(None)], [32, 32]);
    assert_eq!(n_idle(), 4);
    assert_eq!(
        engine.remove_adapter(a),
        Err(EngineError::UnknownAdapter { id: a })
    );
    let refused = engine.generate(&prompt, &params(2, Some(a)));
    assert_eq!(refused.unwrap_err(), EngineError::UnknownAdapter { id: a });
    // A new strength is a new adapter.
    let half = engine.copy_adapter(b, 0.5).unwrap();
    assert_eq!(cached(Some(half)), 0);
}

#[test]
fn an_answer_is_guessed_by_one_of_its_own_adapter_only() {
    let config = EngineConfig {
        speculation: Speculation::Ngram { max_draft: 8 },
        ..EngineConfig::default()
    };
    let engine = Engine::start(executor(), config);
    let [a, b] = [1, 2].map(|seed| engine.add_adapter(adapter(seed), 1.0).unwrap());
    let prompt: Vec<u32> = (0..40).collect();
    let drafted = |adapter| {
        let n_drafted = || engine.stats().scheduler.earlier_drafts.draft_tokens;
        let before = n_drafted();
        engine.generate(&prompt, &params(30, adapter)).unwrap();
        n_drafted() - before
    };
    for adapter in [None, Some(a), Some(b)] {
        let [first, second] = [drafted(adapter), drafted(adapter)];
        assert!(first == 0 && second > 20, "{adapter:?}: {first}, {second}");
    }
    engine.remove_adapter(a).unwrap();
    let again = engine.add_adapter(adapter(1), 1.0).unwrap();
    assert_eq!(drafted(Some(again)), 0);
    assert!(drafted(Some(b)) > 20 && drafted(None) > 20);
}

#[test]
fn a_request_whose_adapter_is_removed_ends_as_if_it_were_there() {
    let engine = Engine::start(executor(), EngineConfig::default());
    let id = engine.add_adapter(adapter(1), 1.0).unwrap();
    let prompt: Vec<u32> = (0..20).collect();
    let expected = engine.generate(&prompt, &params(100, Some(id))).unwrap().tokens;
    let plain = engine.generate(&prompt, &params(100, None)).unwrap().tokens;
    assert_ne!(expected, plain);
    let mut running = engine.submit(prompt.clone(), params(100, Some(id))).unwrap();
    assert!(matches!(running.next(), Some(Event::Token(_))));
    engine.remove_adapter(id).unwrap();
    let n_more = running.filter(|event| matches!(event, Event::Token(_))).count();
    assert_eq!(n_more, 99);
    let again = engine.add_adapter(adapter(1), 1.0).unwrap();
    assert_ne!(again, id);
    assert_eq!(
        engine
            .generate(&prompt, &params(100, Some(again)))
            .unwrap()
            .tokens,
        expected
    );
}

#[test]
fn requests_with_and_without_adapters_do_not_change_each_other() {
    let engine = Engine::start(executor(), EngineConfig::default());
    let adapters: Vec<AdapterId> = (0..4)
        .map(|seed| engine.add_adapter(adapter(seed), 1.0).unwrap())
        .collect();
    let requests: Vec<(Vec<u32>, GenerateParams)> = (0..16_u32)
        .map(|i| {
            let prompt = (0..10 + 3 * i).map(|token| (token * (i + 1)) % 60).collect();
            (prompt, params(20, adapters.get(i as usize % 5).copied()))
        })
        .collect();
    let alone: Vec<Vec<u32>> = (requests.iter())
        .map(|(prompt, params)| engine.generate(prompt, params).unwrap().tokens)
        .collect();
    engine.forget_cache();
    let running: Vec<_> = (requests.iter())
        .map(|(prompt, params)| engine.submit(prompt.clone(), params.clone()).unwrap())
        .collect();
    for ((generation, alone), (prompt, _)) in running.into_iter().zip(&alone).zip(&requests) {
        let tokens = generation.filter_map(|event| match event {
            Event::Token(token) => Some(token.id),
            _ => None,
        });
        assert!(prompt.iter().copied().chain(tokens).eq(alone.iter().copied()));
    }
}

#[test]
fn guesses_change_no_bit_of_what_an_adapter_says() {
    let params = |adapter: Option<AdapterId>, seed: u64| GenerateParams {
        sampling: SamplingParams {
            // Half of them greedy, and all of few words, which makes guesses come out.
            temperature: if seed.is_multiple_of(2) { 0.0 } else { 0.5 },
            seed,
            n_logprobs: Some(1),
            logit_bias: [3, 8, 21].map(|id| (id, 8.0)).to_vec(),
            ..SamplingParams::default()
        },
        ..params(50, adapter)
    };
    let run = |config: EngineConfig| {
        let draft = TinyModel::random(tiny_llama(), TensorType::Q8_0, 12);
        let engine = Engine::start_with_draft(executor(), executor_of(&draft), config);
        let adapters: Vec<AdapterId> = (0..4)
            .map(|seed| engine.add_adapter(adapter(seed), 1.0).unwrap())
            .collect();
        let running: Vec<_> = (0..20_u32)
            .map(|i| {
                // Pairs with one prompt and two adapters: the guesses of one are not guesses of the other.
                let prompt = (0..24).map(|at| [3, 8, 21, 8][at % 4] + i / 2 % 2).collect();
                let params = params(adapters.get(i as usize % 5).copied(), u64::from(i / 5));
                engine.submit(prompt, params).unwrap()
            })
            .collect();
        let said: Vec<Vec<(u32, u32)>> = (running.into_iter())
            .map(|generation| {
                let tokens = generation.filter_map(|event| match event {
                    Event::Token(token) => Some((token.id, token.logprob.map_or(0, f32::to_bits))),
                    _ => None,
                });
                tokens.collect()
            })
            .collect();
        (said, engine.stats().scheduler.drafts)
    };
    let alone = EngineConfig {
        max_running: 1,
        uses_prefix_cache: false,
        ..EngineConfig::default()
    };
    let (expected, drafts) = run(alone);
    assert_eq!(drafts.drafts, 0);
    assert!(expected.iter().all(|said| said.len() == 50));
    let n_distinct = expected.iter().collect::<std::collections::HashSet<_>>().len();
    assert!(n_distinct > 10, "adapters change what is said: {n_distinct}");
    for speculation in [
        Speculation::Ngram { max_draft: 7 },
        Speculation::Draft { max_draft: 5 },
        Speculation::Auto { max_draft: 16 },
    ] {
        let (said, drafts) = run(EngineConfig {
            speculation,
            ..EngineConfig::default()
        });
        assert_eq!(said, expected, "{speculation:?}");
        if !matches!(speculation, Speculation::Auto { .. }) {
            assert!(drafts.accepted_tokens > 20, "{speculation:?}: {drafts:?}");
            assert!(
                drafts.draft_tokens > drafts.accepted_tokens,
                "{speculation:?}: {drafts:?}"
            );
        }
    }
}

/// An executor that takes 3 milliseconds for each weight of an adapter.
struct Slow(FakeExecutor);

impl Executor for Slow {
    fn limits(&self) -> &ExecutorLimits {
        self.0.limits()
    }

    fn submit(&mut self, batch: &ForwardBatch) -> Result<Ticket, StepError> {
        self.0.submit(batch)
    }

    fn wait(&mut self, ticket: Ticket, output: &mut StepOutput) -> Result<(), StepError> {
        self.0.wait(ticket, output)
    }

    fn copy_pages(&mut self, group: PageGroup, copies: &[PageCopy]) -> Result<(), StepError> {
        self.0.copy_pages(group, copies)
    }

    fn prepare_adapter(&mut self, _: AdapterId, _: &Adapter, _: usize) -> Result<(), AdapterError> {
        std::thread::sleep(Duration::from_millis(3));
        Ok(())
    }

    fn add_adapter(&mut self, _: AdapterId, _: &Adapter, _: f32) -> Result<(), AdapterError> {
        Ok(())
    }
}

#[test]
fn tokens_come_while_a_large_adapter_is_loaded() {
    let engine = Engine::start(
        Slow(FakeExecutor::new(fake_executor::limits(64))),
        EngineConfig::default(),
    );
    let mut running = engine.submit(vec![1, 2], params(900, None)).unwrap();
    let large = Adapter {
        weights: vec![adapter(1).weights[0].clone(); 100],
    };
    let loading = std::thread::spawn({
        let engine = engine.clone();
        move || engine.add_adapter(Arc::new(large), 1.0).map(drop)
    });
    let mut n_tokens = 0;
    while !loading.is_finished() {
        // The stream's buffer holds what was computed meanwhile.
        n_tokens += usize::from(running.next().is_some());
    }
    loading.join().unwrap().unwrap();
    // Alone, the 100 weights take 300 milliseconds; at least each second of them was followed by a step.
    assert!(n_tokens >= 50, "{n_tokens} tokens came");
}

#[test]
fn an_executor_without_adapters_says_so() {
    let limits = executor().limits().clone();
    let engine = Engine::start(FakeExecutor::new(limits), EngineConfig::default());
    let refused = engine.add_adapter(adapter(1), 1.0);
    assert!(matches!(
        refused,
        Err(EngineError::Adapter(AdapterError::Unsupported { .. }))
    ));
}
