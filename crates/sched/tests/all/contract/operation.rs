//! Queues, draining, heartbeat, deadlines: the guarantees that an operator of an engine relies on.

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
    impl tokenmill_backend::Executor for NotSend {
        fn limits(&self) -> &ExecutorLimits {
            self.0.limits()
        }
        fn submit(
            &mut self,
            batch: &tokenmill_backend::ForwardBatch,
        ) -> Result<tokenmill_backend::Ticket, StepError> {
            self.0.submit(batch)
        }
        fn wait(
            &mut self,
            ticket: tokenmill_backend::Ticket,
            output: &mut tokenmill_backend::StepOutput,
        ) -> Result<(), StepError> {
            self.0.wait(ticket, output)
        }
        fn copy_pages(
            &mut self,
            group: tokenmill_backend::PageGroup,
            copies: &[tokenmill_backend::PageCopy],
        ) -> Result<(), StepError> {
            self.0.copy_pages(group, copies)
        }
    }
    type Failure = Box<dyn std::error::Error + Send + Sync>;
    let make = || Ok::<_, Failure>(NotSend(FakeExecutor::new(limits(8)), std::rc::Rc::default()));
    let engine = Engine::start_with(EngineConfig::default(), make).unwrap();
    assert_eq!(
        engine.generate(&[1], &greedy(3)).unwrap().tokens,
        expected(&[1], &greedy(3))
    );
    let make = || Err::<FakeExecutor, Failure>("no device".into());
    let failed = Engine::start_with(EngineConfig::default(), make);
    assert_eq!(failed.unwrap_err().to_string(), "no device");
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
