//! Tests the promises of the library's interface on the built-in model.

use std::{
    fs,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    thread,
};

use futures_util::StreamExt as _;
use tokenmill::{
    Answer, Constraint, Conversation, Device, Error, FinishReason, KvCache, Message, Model, SamplingParams,
    TextParams,
    load::{LoadedDevice, ModelSource},
    speculation::Speculation,
    stream::TextEvent,
};
use tokenmill_sched::{EngineError, GenerateParams};

const PROMPT: &str = "Once upon a time";

fn model() -> Model {
    let options = Model::options().context(512).sequences(4).threads(1);
    options.device(Device::Cpu).load("demo").unwrap()
}

fn at_most(max_tokens: u32) -> TextParams {
    TextParams {
        max_tokens: Some(max_tokens),
        ..TextParams::default()
    }
}

/// Polls a future on this thread until it is ready.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        thread::yield_now();
    }
}

#[test]
fn a_model_is_shared_between_threads() {
    fn is_shared<T: Send + Sync + Clone + 'static>() {}
    is_shared::<Model>();
    let model = model();
    let params = at_most(24);
    let alone = model.complete(PROMPT, &params).unwrap();
    assert_eq!(alone.finish, FinishReason::Length);
    assert_eq!(alone.usage.completion_tokens, 24);
    assert_eq!(alone.tokens.len(), 24);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let model = model.clone();
                let params = params.clone();
                scope.spawn(move || model.complete(PROMPT, &params).unwrap().text)
            })
            .collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), alone.text);
        }
    });
}

#[test]
fn every_way_to_read_gives_the_same_text() {
    let model = model();
    let params = at_most(24);
    let whole = model.complete(PROMPT, &params).unwrap();
    let pieces: String = (model.stream(PROMPT, &params).unwrap())
        .map(|piece| piece.unwrap().text)
        .collect();
    assert_eq!(pieces, whole.text);
    let answers = block_on(model.stream(PROMPT, &params).unwrap().answers()).unwrap();
    assert_eq!((answers.len(), &answers[0].text), (1, &whole.text));
    let mut stream = model.stream(PROMPT, &params).unwrap().into_stream();
    let mut text = String::new();
    while let Some(piece) = block_on(stream.next()) {
        text.push_str(&piece.unwrap().text);
    }
    assert_eq!(text, whole.text);
}

#[test]
fn async_calls_match_blocking_calls() {
    fn is_sent(_: &impl Send) {}
    let model = model();
    let params = at_most(24);
    let future = model.complete_async(PROMPT, &params);
    is_sent(&future);
    assert_eq!(
        block_on(future).unwrap().text,
        model.complete(PROMPT, &params).unwrap().text
    );
    let question = "What is 3 + 4?";
    let future = model.chat_async(question, &params);
    is_sent(&future);
    let told = model.chat(question, &params).unwrap();
    assert_eq!(block_on(future).unwrap().text, told.text);
    // A constraint is compiled on another thread before the request.
    let shaped = params.clone().constraint(Constraint::choice(["one", "two"]));
    let told = model.chat(question, &shaped).unwrap();
    assert_eq!(
        block_on(model.chat_async(question, &shaped)).unwrap().text,
        told.text
    );
    assert_eq!(
        block_on(model.complete_async(PROMPT, &shaped)).unwrap().text,
        model.complete(PROMPT, &shaped).unwrap().text
    );
    let no_shape = params.clone().constraint(Constraint::regex("("));
    assert!(matches!(
        block_on(model.complete_async(PROMPT, &no_shape)),
        Err(Error::Constraint(_))
    ));
    let two = params.clone().samples(2);
    let samples = block_on(model.samples_async(PROMPT, &two)).unwrap();
    assert_eq!(samples.len(), 2);
    assert!(matches!(
        block_on(model.complete_async(PROMPT, &two)),
        Err(Error::Engine(_))
    ));
    let texts = ["a cat", "a dog"];
    let vectors = model.embed(&texts).unwrap();
    assert_eq!(block_on(model.embed_async(&texts)).unwrap(), vectors);
    let inputs = texts.map(|text| model.words().encode_text(text, true));
    let stream = model
        .embed_tokens(inputs.to_vec(), None, 0)
        .unwrap()
        .into_stream();
    assert_eq!(block_on(stream.map(Result::unwrap).collect::<Vec<_>>()), vectors);
    assert!(matches!(
        block_on(model.rerank_async("a", &texts)),
        Err(Error::RanksNothing)
    ));
}

#[test]
fn samples_are_those_of_their_seeds() {
    let model = model();
    let params = |seed, n| TextParams {
        n,
        sampling: SamplingParams {
            temperature: 1.0,
            seed,
            ..SamplingParams::default()
        },
        ..at_most(12)
    };
    let samples = model.samples(PROMPT, &params(5, 3)).unwrap();
    for (seed, sample) in (5..).zip(&samples) {
        let alone = model.complete(PROMPT, &params(seed, 1)).unwrap();
        assert_eq!(alone.text, sample.text, "seed {seed}");
    }
    let error = model.complete(PROMPT, &params(5, 3)).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Engine(EngineError::SampleCount { found: 3, maximum: 1 })
        ),
        "{error}"
    );
}

#[test]
fn a_stop_string_ends_a_text_and_is_not_part_of_it() {
    let model = model();
    let whole = model.complete(PROMPT, &at_most(24)).unwrap().text;
    let stop = whole.split(' ').rev().nth(2).unwrap().to_owned();
    let params = TextParams {
        stops: vec!["never said".to_owned(), stop.clone()],
        ..at_most(24)
    };
    let answer = model.complete(PROMPT, &params).unwrap();
    assert_eq!((answer.finish, answer.stopped_by), (FinishReason::Stop, Some(1)));
    assert_eq!(answer.text, whole[..whole.find(&stop).unwrap()]);
}

#[test]
fn a_batch_is_in_the_order_of_its_prompts_and_survives_a_bad_one() {
    let model = model();
    let mut prompts: Vec<String> = (0..30).map(|n| format!("{n} birds")).collect();
    prompts[7] = "word ".repeat(2000);
    let answers = model.batch(&prompts, &at_most(6));
    assert_eq!(answers.len(), prompts.len());
    for (prompt_idx, (prompt, answer)) in prompts.iter().zip(&answers).enumerate() {
        match answer {
            Ok(answer) => assert_eq!(answer.text, model.complete(prompt, &at_most(6)).unwrap().text),
            Err(error) => {
                assert_eq!(prompt_idx, 7, "{error}");
                assert!(
                    matches!(error, Error::Engine(EngineError::ContextLimitExceeded { .. })),
                    "{error}"
                );
            }
        }
    }
    assert!(answers[7].is_err());
    assert!(model.batch(&[""; 0], &at_most(6)).is_empty());
}

#[test]
fn a_batch_of_conversations_answers_each_as_alone() {
    let model = model();
    let asked = |text: &str| Conversation::new(&[Message::user(text)]);
    let conversations = ["What is 3 + 4?", "Hello", &"word ".repeat(2000)].map(asked);
    let answers = model.chat_batch(&conversations, &at_most(12));
    for (conversation, answer) in conversations[..2].iter().zip(&answers) {
        let alone = model.chat(conversation.clone(), &at_most(12)).unwrap();
        assert_eq!(answer.as_ref().unwrap().text, alone.text);
    }
    assert!(
        matches!(
            answers[2],
            Err(Error::Engine(EngineError::ContextLimitExceeded { .. }))
        ),
        "{answers:?}"
    );
}

#[test]
fn a_batch_waits_for_a_queue_that_is_smaller_than_it() {
    let mut options = Model::options().context(256).sequences(1).threads(1);
    options.max_queued = 1;
    let model = options.load("demo").unwrap();
    let prompts: Vec<String> = (0..6).map(|n| format!("{n} birds")).collect();
    let answers = model.batch(&prompts, &at_most(4));
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
}

#[test]
fn embeddings_have_length_one_and_do_not_depend_on_company() {
    let model = model();
    let both = model.embed(&["Once upon a time", "3 + 4 ="]).unwrap();
    let alone = model.embed(&["3 + 4 ="]).unwrap();
    assert_eq!(both[1], alone[0]);
    for vector in &both {
        let norm: f32 = vector.iter().map(|value| value * value).sum();
        assert!((norm - 1.0).abs() < 1e-5, "{norm}");
    }
    assert!(model.embed(&[""]).is_err() || model.words().tokenizer().adds_bos());
}

#[test]
fn a_chat_goes_through_the_template() {
    let model = model();
    let messages = [Message::user("What is 3 + 4?")];
    let reply = model.chat(&messages, &at_most(16)).unwrap();
    assert!(reply.text.contains('7'), "{}", reply.text);
    let conversation = Conversation::new(&messages);
    assert_eq!(model.chat(&conversation, &at_most(16)).unwrap().text, reply.text);
    let ids = model.words().encode_chat(&conversation).unwrap();
    assert_eq!(reply.usage.prompt_tokens, ids.len());
    let rendered = model.words().render_chat(&conversation).unwrap();
    assert!(rendered.contains("What is 3 + 4?"), "{rendered}");

    let tools = serde_json::json!([{"type": "function", "function": {"name": "add"}}]);
    let with_tools = Model::options()
        .context(256)
        .chat_template("{{ tools | tojson }}{{ greeting }}")
        .load("demo")
        .unwrap();
    let conversation = conversation.tools(tools).variable("greeting", "hello");
    let rendered = with_tools.words().render_chat(&conversation).unwrap();
    assert!(
        rendered.contains("\"add\"") && rendered.ends_with("hello"),
        "{rendered}"
    );
    let error = Model::options().chat_template("{% if").load("demo").unwrap_err();
    assert!(matches!(error, Error::Template(_)), "{error}");
}

#[test]
fn the_device_and_the_memory_are_said() {
    let model = model();
    assert!(matches!(model.device(), LoadedDevice::Cpu { passed_over: None }));
    assert_eq!(model.device().to_string(), "CPU");
    let memory = model.memory().unwrap();
    assert!(memory.weights_bytes > 1 << 20 && memory.total_bytes() > memory.weights_bytes);
    assert_eq!(memory.n_pages, 4 * 512 / 16);
    assert_eq!((model.n_ctx(), model.name()), (512, "demo"));
}

#[test]
fn options_that_cannot_be_granted_are_named() {
    let mut options = Model::options().context(512);
    options.kv_cache = KvCache::Tokens(100);
    let error = options.load("demo").unwrap_err();
    assert!(
        matches!(
            error,
            Error::KvCacheTooSmall {
                kv_tokens: 100,
                n_ctx: 512
            }
        ),
        "{error}"
    );
    let error = Model::options()
        .device(Device::Cuda { ordinal: 99 })
        .load("demo")
        .unwrap_err();
    assert!(matches!(error, Error::Gpu(_)), "{error}");
}

#[test]
fn what_is_no_model_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let error = Model::open(path).unwrap_err();
    assert!(matches!(error, Error::NoModel { .. }), "{error}");
    for name in ["a.gguf", "b.gguf"] {
        fs::write(path.join(name), "no model").unwrap();
    }
    let error = Model::open(path).unwrap_err();
    assert!(
        matches!(&error, Error::SeveralModels { names, .. } if *names == ["a.gguf", "b.gguf"]),
        "{error}"
    );
    let error = Model::open(path.join("a.gguf")).unwrap_err();
    assert!(matches!(error, Error::Load(_) | Error::Gguf(_)), "{error}");
    assert!(Model::open(path.join("nothing.gguf")).is_err());
    assert_eq!(ModelSource::find("demo").unwrap(), ModelSource::Demo);
}

#[test]
fn a_dropped_stream_leaves_the_engine_free() {
    let model = model();
    let mut stream = model.stream(PROMPT, &TextParams::default()).unwrap();
    assert!(stream.next().unwrap().is_ok());
    drop(stream);
    let mut stream = model.stream(PROMPT, &at_most(4)).unwrap();
    let mut ends = 0;
    while let Some(event) = block_on(stream.next_event()) {
        ends += usize::from(matches!(event, TextEvent::Finished(_)));
    }
    assert_eq!(ends, 1);
}

#[test]
fn steps_in_flight_change_no_answer() {
    let [one, two] = [1, 2].map(|n_steps| {
        let mut options = Model::options().context(128).threads(1).device(Device::Cpu);
        options.steps_in_flight = Some(n_steps);
        options.load("demo").unwrap()
    });
    let ids = |model: &Model| -> Vec<u32> {
        let completion = model.complete(PROMPT, &at_most(24)).unwrap();
        completion.tokens.iter().map(|token| token.id).collect()
    };
    assert_eq!(ids(&one), ids(&two));
    // Each forced token needs the step before it to be done.
    let forced = |model: &Model| {
        let params = GenerateParams {
            max_tokens: Some(1),
            follows: Some(Arc::new([5])),
            ..GenerateParams::default()
        };
        model.engine().submit(vec![1, 2], params).err()
    };
    assert_eq!(forced(&one), None);
    assert_eq!(forced(&two), Some(EngineError::CannotFollow));
}

#[test]
fn a_draft_model_changes_no_answer_and_is_told_of() {
    let plain = model();
    let options = Model::options().context(512).sequences(4).threads(1);
    let speculation = Speculation::Draft { max_draft: 5 };
    let options = options.device(Device::Cpu).speculation(speculation);
    assert!(matches!(options.load("demo"), Err(Error::NoDraft)));
    let model = options.clone().draft("demo").load("demo").unwrap();
    let facts = model.draft().unwrap();
    assert_eq!((facts.name.as_str(), facts.n_ctx), ("demo", 512));
    assert!(facts.memory.total_bytes() > 0 && plain.draft().is_none());
    let of_draft = facts.memory.total_bytes() as u64;
    let of_model = model.memory().unwrap().total_bytes() as u64;
    assert_eq!(model.taken_bytes(), of_model + of_draft);
    let source = ModelSource::find("demo").unwrap();
    let network = source.open_network().unwrap();
    let with_draft = options
        .clone()
        .draft("demo")
        .needed_bytes(&source, &network)
        .unwrap();
    assert_eq!(with_draft, model.taken_bytes());
    let params = TextParams {
        n: 3,
        sampling: SamplingParams {
            temperature: 0.8,
            seed: 5,
            n_logprobs: Some(2),
            ..SamplingParams::default()
        },
        stops: vec!["the end".to_owned()],
        ..at_most(40)
    };
    let (found, expected) = [&model, &plain]
        .map(|model| model.samples(PROMPT, &params).unwrap())
        .into();
    let scores = |answer: &Answer| -> Vec<_> {
        let tokens = answer.tokens.iter();
        tokens
            .map(|token| (token.id, token.logprob, token.top.clone()))
            .collect()
    };
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!((&found.text, scores(found)), (&expected.text, scores(expected)));
        assert!(found.usage.accepted_tokens > 0);
    }
    for missing in ["no-such-draft.gguf", "no/such/folder"] {
        let error = options.clone().draft(missing).load("demo").unwrap_err();
        assert!(matches!(error, Error::Draft { .. }), "{error}");
        assert!(error.to_string().starts_with("draft model no"), "{error}");
    }
}
