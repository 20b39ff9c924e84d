//! Requests that wait for their pages, and an engine that waits for its folder.

use tokenmill_sched::{AdaptersInUse, EngineError, Event, Generation, Offer, PageSink};

use super::*;

/// The requests that a [`Gated`] holds back.
type Held = Mutex<Vec<(Vec<KeptPage>, Box<dyn PageSink>)>>;

/// A folder that returns no pages until the test lets it.
#[derive(Debug)]
struct Gated {
    store: Arc<ModelStore>,
    held: Arc<Held>,
}

impl PageStore for Gated {
    fn secret(&self) -> [u64; 4] {
        self.store.secret()
    }

    fn contains(&self, name: KeptName) -> bool {
        self.store.contains(name)
    }

    fn offer(&self, name: KeptName) -> Offer {
        self.store.offer(name)
    }

    fn keep(&self, page: KeptPage) {
        self.store.keep(page);
    }

    fn is_writing(&self) -> bool {
        self.store.is_writing()
    }

    fn fetch(&self, wanted: Vec<KeptPage>, sink: Box<dyn PageSink>) {
        self.held.lock().unwrap().push((wanted, sink));
    }
}

/// An engine whose folder gives nothing until [`give`] is called, and the requests to the folder.
fn gated(folder: &Path, model: &TinyModel) -> (Running, Arc<Held>) {
    let held = Arc::<Held>::default();
    let running = Running::with_store(model, &options(80), Some(&open(folder)), |store| {
        let held = Arc::clone(&held);
        Arc::new(Gated { store, held })
    });
    (running, held)
}

/// Answers the first request to a folder of [`gated`].
fn give(running: &Running, held: &Held) {
    let (wanted, sink) = held.lock().unwrap().remove(0);
    running.store.as_ref().unwrap().fetch(wanted, sink);
}

/// All tokens of an answer whose prompt was found up to `cached_tokens`, each with the bits of its log-probability.
fn tokens_of(generation: Generation, cached_tokens: usize) -> Vec<(u32, u32)> {
    let token = |event| match event {
        Event::Token(token) => Some((token.id, token.logprob.unwrap().to_bits())),
        Event::Finished(finished) => {
            assert_eq!(finished.usage.cached_tokens, cached_tokens);
            None
        }
        other => panic!("{other:?}"),
    };
    generation.into_iter().filter_map(token).collect()
}

/// A folder that takes a page only once the one before is written.
#[derive(Debug)]
struct OneByOne(Arc<ModelStore>);

impl PageStore for OneByOne {
    fn secret(&self) -> [u64; 4] {
        self.0.secret()
    }

    fn contains(&self, name: KeptName) -> bool {
        self.0.contains(name)
    }

    fn offer(&self, name: KeptName) -> Offer {
        if self.is_writing() {
            Offer::Later
        } else {
            self.0.offer(name)
        }
    }

    fn keep(&self, page: KeptPage) {
        self.0.keep(page);
    }

    fn is_writing(&self) -> bool {
        PageStore::is_writing(&*self.0)
    }

    fn fetch(&self, wanted: Vec<KeptPage>, sink: Box<dyn PageSink>) {
        self.0.fetch(wanted, sink);
    }
}

/// It has ten seconds for the rest, and nothing wakes it.
#[test]
fn an_engine_that_ends_does_not_sleep_while_its_folder_has_room() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(|_| {});
    let of_folder = open(folder.path());
    let running = Running::with_store(&model, &options(170), Some(&of_folder), |store| {
        Arc::new(OneByOne(store))
    });
    for seed in 0..12 {
        running.generate(&random_tokens(seed, 200), 2);
    }
    running.end();
    assert_eq!(files(folder.path()).len(), 12 * 12);
}

#[test]
fn requests_that_wait_for_the_same_pages_share_them_and_can_be_cancelled() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(|_| {});
    let prompt = random_tokens(1, 200);
    let first = Running::new(&model, &options(80), Some(&open(folder.path())));
    let expected = bits(&first.generate(&prompt, 5));
    first.end();
    for round in 0..20 {
        let running = Running::new(&model, &options(80), Some(&open(folder.path())));
        let submit = || running.engine.submit(prompt.clone(), params(5)).unwrap();
        let generations = [submit(), submit(), submit(), submit()];
        let n_cancelled = round % 4;
        for (at, generation) in generations.into_iter().enumerate() {
            if at < n_cancelled {
                drop(generation);
            } else {
                assert_eq!(tokens_of(generation, 192), expected);
            }
        }
        let figures = running.figures();
        assert_eq!((figures.hits, figures.read_pages), (1, 12), "round {round}");
        running.wait_until(|running| {
            let stats = running.stats();
            (stats.n_pages_in_use, stats.n_waiting, stats.n_running) == (0, 0, 0)
        });
        running.end();
    }
}

#[test]
fn an_adapter_stays_until_requests_that_wait_for_its_pages_have_ended() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(|_| {});
    let prompt = random_tokens(1, 200);
    let first = Running::new(&model, &options(80), Some(&open(folder.path())));
    let poet = first.engine.add_adapter(adapter(1), 1.0).unwrap();
    let with = |adapter| GenerateParams {
        adapter: Some(adapter),
        ..params(5)
    };
    let expected = bits(&first.engine.generate(&prompt, &with(poet)).unwrap());
    let plain = bits(&first.generate(&prompt[1..], 60));
    first.end();
    let (second, held) = gated(folder.path(), &model);
    let poet = second.engine.add_adapter(adapter(1), 1.0).unwrap();
    let generations = [(); 2].map(|()| second.engine.submit(prompt.clone(), with(poet)).unwrap());
    second.engine.remove_adapter(poet).unwrap();
    // It is told only once the adapter's removal was looked at.
    let uncached = GenerateParams {
        uses_prefix_cache: false,
        ..params(60)
    };
    assert_eq!(
        bits(&second.engine.generate(&prompt[1..], &uncached).unwrap()),
        plain
    );
    assert_eq!(second.engine.adapters_in_use().waiting, [poet]);
    give(&second, &held);
    for generation in generations {
        assert_eq!(tokens_of(generation, 192), expected);
    }
    second.wait_until(|second| second.engine.adapters_in_use() == AdaptersInUse::default());
    second.end();
}

#[test]
fn the_timeouts_of_a_request_count_while_it_waits_for_its_pages() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(|_| {});
    let prompt = random_tokens(1, 200);
    let first = Running::new(&model, &options(80), Some(&open(folder.path())));
    let expected = bits(&first.generate(&prompt, 5));
    first.end();
    let (second, held) = gated(folder.path(), &model);
    let soon = Some(Duration::from_millis(20));
    let in_queue = GenerateParams {
        queue_timeout: soon,
        ..params(5)
    };
    let in_all = GenerateParams {
        deadline: soon,
        ..params(5)
    };
    let patient = second.engine.submit(prompt.clone(), params(5)).unwrap();
    let began = Instant::now();
    // They follow the one that waits, and leave it alone.
    let ended = second.engine.generate(&prompt, &in_queue);
    assert!(
        matches!(ended, Err(EngineError::QueueTimeout { .. })),
        "{ended:?}"
    );
    let ended = second.engine.generate(&prompt, &in_all);
    assert!(
        matches!(ended, Err(EngineError::DeadlineExceeded { .. })),
        "{ended:?}"
    );
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    give(&second, &held);
    assert_eq!(tokens_of(patient, 192), expected);
    second.end();
}

#[test]
fn prompts_that_find_two_being_read_wait_for_their_turn() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(|_| {});
    let prompts: Vec<Vec<u32>> = (0..6).map(|seed| random_tokens(seed, 150)).collect();
    let first = Running::new(&model, &options(80), Some(&open(folder.path())));
    let expected: Vec<_> = prompts
        .iter()
        .map(|prompt| bits(&first.generate(prompt, 5)))
        .collect();
    first.end();
    let (second, held) = gated(folder.path(), &model);
    let submit = |prompt: &Vec<u32>| second.engine.submit(prompt.clone(), params(5)).unwrap();
    let generations: Vec<_> = prompts.iter().map(submit).collect();
    let n_held = || held.lock().unwrap().len();
    for n_left in (0..prompts.len()).rev() {
        second.wait_until(|_| n_held() == 2.min(n_left + 1));
        give(&second, &held);
    }
    for (generation, expected) in generations.into_iter().zip(expected) {
        assert_eq!(tokens_of(generation, 144), expected);
    }
    second.end();
}
