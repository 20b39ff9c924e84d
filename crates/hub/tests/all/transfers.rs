//! Downloads that succeed: over several connections, in parts, after interruptions, by two programs at once.

use std::{
    fs,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use tokenmill_hub::{HubError, PullEvent, PullObserver, PullWishes, PulledModel, plan, pull};

use crate::server::{COMMIT, FakeHub, Fault, NAME, etag, noise};

/// Pulls from a hub.
pub(crate) fn pull_from(hub: &FakeHub, name: &str) -> Result<PulledModel, HubError> {
    pull(
        &name.parse().unwrap(),
        &PullWishes::default(),
        &hub.settings(),
        &(),
    )
}

/// Keeps what it is told.
#[derive(Default)]
struct Recorder {
    done_bytes: AtomicU64,
    events: Mutex<Vec<String>>,
}

impl PullObserver for Recorder {
    fn event(&self, event: PullEvent<'_>) {
        match event {
            PullEvent::Progress { done_bytes, .. } => self.done_bytes.store(done_bytes, Ordering::Relaxed),
            other => self.events.lock().unwrap().push(format!("{other:?}")),
        }
    }
}

#[test]
fn a_large_file_comes_in_parts_over_several_connections() {
    let bytes = noise(1_000_003, 1);
    let hub = FakeHub::with(&[("m-Q4_K_M.gguf", bytes.clone()), ("README.md", b"x".to_vec())]);
    let recorder = Recorder::default();
    let model = pull(
        &NAME.parse().unwrap(),
        &PullWishes::default(),
        &hub.settings(),
        &recorder,
    )
    .unwrap();
    assert_eq!(fs::read(&model.path).unwrap(), bytes);
    assert_eq!((model.label.as_str(), model.commit.as_str()), ("Q4_K_M", COMMIT));
    let snapshot = hub
        .cache
        .path()
        .join("models--org--model-GGUF/snapshots")
        .join(COMMIT);
    assert_eq!(model.path, snapshot.join("m-Q4_K_M.gguf"));
    assert_eq!(hub.blobs(), [etag(&bytes)].into());
    assert!(
        !snapshot.join("README.md").exists(),
        "only what is needed is downloaded"
    );
    let main = fs::read_to_string(hub.cache.path().join("models--org--model-GGUF/refs/main")).unwrap();
    assert_eq!(main, COMMIT);
    assert_eq!(recorder.done_bytes.load(Ordering::Relaxed), 1_000_003);
    let ranges: Vec<_> = hub
        .requests()
        .into_iter()
        .filter(|request| request.headers.contains_key("range"))
        .collect();
    assert!(ranges.len() >= 16, "{} parts", ranges.len());
    // The address behind the redirect is asked for parts, not the hub for each.
    assert!(ranges.iter().filter(|request| !request.is_far).count() <= 5);

    let n_before = hub.requests().len();
    let again = pull_from(&hub, NAME).unwrap();
    assert_eq!(again, model);
    assert_eq!(
        hub.requests().len(),
        n_before + 1,
        "only the list is asked for again"
    );
}

/// Ends a download when so many bytes are there.
struct Ender {
    after_bytes: u64,
    done_bytes: AtomicU64,
}

impl PullObserver for Ender {
    fn event(&self, event: PullEvent<'_>) {
        if let PullEvent::Progress { done_bytes, .. } = event {
            self.done_bytes.store(done_bytes, Ordering::Relaxed);
        }
    }

    fn is_cancelled(&self) -> bool {
        self.done_bytes.load(Ordering::Relaxed) >= self.after_bytes
    }
}

#[test]
fn an_observer_ends_a_download_and_what_has_arrived_stays() {
    let bytes = noise(1_000_003, 2);
    let hub = FakeHub::with(&[("m-Q8_0.gguf", bytes.clone())]);
    let (name, settings) = (NAME.parse().unwrap(), hub.settings());
    let ender = Ender {
        after_bytes: 200_000,
        done_bytes: AtomicU64::new(0),
    };
    let ended = pull(&name, &PullWishes::default(), &settings, &ender);
    assert!(matches!(ended, Err(HubError::Cancelled)), "{ended:?}");
    assert!(hub.shows_nothing());
    let rest = plan(&name, &PullWishes::default(), &settings, &()).unwrap();
    assert!(
        rest.missing_bytes <= 800_003 && rest.missing_bytes > 0,
        "{rest:?}"
    );
    let model = rest.fetch(&settings, &()).unwrap();
    assert_eq!(fs::read(model.path).unwrap(), bytes);
}

#[test]
fn hashing_ends_where_the_observer_ends_it() {
    let hub = FakeHub::with(&[("m-Q8_0.gguf", noise(1_000_003, 2))]);
    let (name, settings) = (NAME.parse().unwrap(), hub.settings());
    let model = pull(&name, &PullWishes::default(), &settings, &()).unwrap();
    let mut again = plan(&name, &PullWishes::default(), &settings, &()).unwrap();
    let ender = Ender {
        after_bytes: 0,
        done_bytes: AtomicU64::new(0),
    };
    let ended = again.remove_damaged(&settings, &ender);
    assert!(matches!(ended, Err(HubError::Cancelled)), "{ended:?}");
    assert!(model.path.exists());
}

#[test]
fn a_pause_ends_where_the_observer_ends_the_download() {
    let hub = FakeHub::with(&[("m-Q8_0.gguf", noise(100_000, 2))]);
    hub.on(|request| request.is_for_bytes().then_some(Fault::Status(503, "")));
    let mut settings = hub.settings();
    settings.retry_pause = Duration::from_mins(1);
    let ender = Ender {
        after_bytes: 0,
        done_bytes: AtomicU64::new(0),
    };
    let ended = pull(&NAME.parse().unwrap(), &PullWishes::default(), &settings, &ender);
    assert!(matches!(ended, Err(HubError::Cancelled)), "{ended:?}");
}

#[test]
fn a_download_continues_where_it_was_interrupted() {
    let bytes = noise(1_000_003, 2);
    let hub = FakeHub::with(&[("m-Q8_0.gguf", bytes.clone())]);
    let mut n_parts = 0;
    hub.on(move |request| {
        n_parts += usize::from(request.is_for_bytes());
        (request.is_for_bytes() && n_parts > 9).then_some(Fault::Status(403, ""))
    });
    let mut settings = hub.settings();
    settings.n_connections = 1;
    let name = NAME.parse().unwrap();
    assert!(pull(&name, &PullWishes::default(), &settings, &()).is_err());
    assert!(hub.shows_nothing());
    hub.on(|_| None);
    let rest = plan(&name, &PullWishes::default(), &settings, &()).unwrap();
    assert_eq!(rest.total_bytes, 1_000_003);
    // One of the ten requests asked whether there are parts.
    assert_eq!(rest.missing_bytes, 1_000_003 - 8 * (64 << 10));
    let n_before = hub.requests().len();
    let model = rest.fetch(&settings, &()).unwrap();
    assert_eq!(fs::read(model.path).unwrap(), bytes);
    let n_asked = hub.requests()[n_before..]
        .iter()
        .filter(|request| request.is_for_bytes())
        .count();
    assert_eq!(
        n_asked,
        1 + 8,
        "the parts that were there are not asked for again"
    );
    assert_eq!(hub.blobs(), [etag(&bytes)].into());
}

#[test]
fn a_server_without_ranges_gives_the_file_in_one_piece() {
    let bytes = noise(500_000, 3);
    let hub = FakeHub::with(&[("m-Q8_0.gguf", bytes.clone())]);
    let mut is_cut = false;
    hub.on(move |request| match request.is_for_bytes() {
        true if request.headers.contains_key("range") => Some(Fault::WholeInstead),
        // Cut once: the second answer brings the first bytes once more.
        true if !std::mem::replace(&mut is_cut, true) => Some(Fault::Cut(200_000)),
        _ => None,
    });
    let model = pull_from(&hub, NAME).unwrap();
    assert_eq!(fs::read(model.path).unwrap(), bytes);
}

#[test]
fn the_token_goes_to_the_hub_and_to_no_other_host() {
    let bytes = noise(200_000, 4);
    let hub = FakeHub::with(&[("m-Q8_0.gguf", bytes.clone())]);
    hub.needs_token("hf_secret");
    // The other host panics where a token arrives.
    let model = pull_from(&hub, NAME).unwrap();
    assert_eq!(fs::read(model.path).unwrap(), bytes);
    let far: Vec<_> = hub
        .requests()
        .into_iter()
        .filter(|request| request.is_far)
        .collect();
    assert!(
        !far.is_empty()
            && far
                .iter()
                .all(|request| !request.headers.contains_key("authorization"))
    );
}

#[test]
fn a_mirror_that_lists_names_only_is_asked_for_heads() {
    let bytes = noise(200_000, 5);
    let hub = FakeHub::with(&[("m-Q8_0.gguf", bytes.clone())]);
    hub.lists_names_only();
    let model = pull_from(&hub, NAME).unwrap();
    assert_eq!(fs::read(model.path).unwrap(), bytes);
    assert_eq!(hub.blobs(), [etag(&bytes)].into());
    assert!(
        hub.requests()
            .iter()
            .any(|request| request.method == "HEAD" && !request.is_far)
    );
}

#[test]
fn parts_of_a_model_come_together_with_its_projector() {
    let parts = [noise(100_000, 6), noise(90_000, 7)];
    let hub = FakeHub::with(&[
        ("m-Q8_0-00001-of-00002.gguf", parts[0].clone()),
        ("m-Q8_0-00002-of-00002.gguf", parts[1].clone()),
        ("mmproj-F16.gguf", noise(5_000, 8)),
        ("m-F16.gguf", noise(300_000, 9)),
    ]);
    let name = "org/model-GGUF:q8_0".parse().unwrap();
    let missing = |with_projector| {
        let mut wishes = PullWishes::default();
        wishes.with_projector = with_projector;
        let plan = plan(&name, &wishes, &hub.settings(), &()).unwrap();
        (plan.missing_bytes, plan.missing_projector_bytes)
    };
    assert_eq!(missing(true), (195_000, 5_000));
    assert_eq!(missing(false), (190_000, 0));
    let model = pull_from(&hub, "org/model-GGUF:q8_0").unwrap();
    assert_eq!(missing(true), (0, 0));
    assert_eq!(fs::read(&model.path).unwrap(), parts[0]);
    let beside = |name: &str| model.path.with_file_name(name);
    assert_eq!(fs::read(beside("m-Q8_0-00002-of-00002.gguf")).unwrap(), parts[1]);
    assert!(beside("mmproj-F16.gguf").exists());
    assert!(!beside("m-F16.gguf").exists());
}

#[test]
fn a_folder_of_safetensors_comes_with_what_opens_it() {
    let index =
        br#"{"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}"#;
    let hub = FakeHub::with(&[
        ("config.json", b"{}".to_vec()),
        ("tokenizer.json", b"{\"a\":1}".to_vec()),
        ("model.safetensors.index.json", index.to_vec()),
        ("model-00001-of-00002.safetensors", noise(70_000, 10)),
        ("model-00002-of-00002.safetensors", noise(70_001, 11)),
        ("consolidated.safetensors", noise(140_000, 12)),
        ("original/params.json", b"{}".to_vec()),
        ("pytorch_model.bin", noise(2_000, 13)),
    ]);
    let model = pull_from(&hub, NAME).unwrap();
    let mut names: Vec<String> = fs::read_dir(&model.path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json",
        ]
    );
    assert_eq!(model.label, "safetensors");
}

#[test]
fn of_two_pulls_at_once_one_downloads() {
    let bytes = noise(400_000, 14);
    let hub = FakeHub::with(&[("m-Q8_0.gguf", bytes.clone())]);
    hub.at_first_bytes(1, Fault::Silent(Duration::from_millis(500)));
    let recorder = Recorder::default();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let model = pull(
                    &NAME.parse().unwrap(),
                    &PullWishes::default(),
                    &hub.settings(),
                    &recorder,
                )
                .unwrap();
                assert_eq!(fs::read(model.path).unwrap(), bytes);
            });
        }
    });
    let n_asked = hub
        .requests()
        .iter()
        .filter(|request| request.is_for_bytes())
        .count();
    assert_eq!(n_asked, 1 + 400_000_usize.div_ceil(64 << 10));
    let events = recorder.events.lock().unwrap();
    assert!(
        events.iter().any(|event| event.starts_with("Waiting")),
        "{events:?}"
    );
}
