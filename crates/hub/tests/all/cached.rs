//! The cache: models that are found without a server, lists, removals.

use std::{
    fs,
    sync::atomic::{AtomicUsize, Ordering},
};

use tokenmill_hub::{
    HubError, ModelName, PullEvent, PullObserver, PullWishes, Removal, StoredProjector, find_stored, plan,
    pull, remove_interrupted, stored_models, stored_projector,
};

use crate::{
    server::{COMMIT, FakeHub, Fault, noise},
    transfers::pull_from,
};

fn hub() -> FakeHub {
    FakeHub::with(&[
        ("m-Q4_K_M.gguf", noise(4_000, 1)),
        ("m-Q8_0-00001-of-00002.gguf", noise(5_000, 2)),
        ("m-Q8_0-00002-of-00002.gguf", noise(6_000, 3)),
    ])
}

fn stored(hub: &FakeHub, name: &str) -> Option<String> {
    let found = find_stored(&name.parse().unwrap(), &PullWishes::default(), &hub.settings());
    found.unwrap().map(|model| model.label)
}

/// Ends what would wait.
pub(crate) struct Impatient;

impl PullObserver for Impatient {
    fn event(&self, _: PullEvent<'_>) {}

    fn is_cancelled(&self) -> bool {
        true
    }
}

/// Calls a function at each event of a pull, and counts the calls.
pub(crate) struct AtEachEvent<F> {
    pub(crate) run: F,
    pub(crate) n_events: AtomicUsize,
}

impl<F: Fn() + Sync> PullObserver for AtEachEvent<F> {
    fn event(&self, _: PullEvent<'_>) {
        (self.run)();
        self.n_events.fetch_add(1, Ordering::Relaxed);
    }

    fn is_cancelled(&self) -> bool {
        false
    }
}

#[test]
fn what_was_pulled_is_found_without_a_server() {
    let hub = hub();
    assert_eq!(stored(&hub, "org/model-GGUF"), None);
    pull_from(&hub, "org/model-GGUF:Q8_0").unwrap();
    let n_requests = hub.requests().len();
    assert_eq!(stored(&hub, "org/model-GGUF").as_deref(), Some("Q8_0"));
    assert_eq!(stored(&hub, "org/model-GGUF:Q4_K_M"), None);
    assert_eq!(stored(&hub, "org/model-GGUF@v1"), None);
    assert_eq!(
        stored(&hub, &format!("org/model-GGUF@{COMMIT}:q8_0")).as_deref(),
        Some("Q8_0")
    );
    assert_eq!(stored(&hub, "org/model-GGUF@0123456").as_deref(), Some("Q8_0"));
    let mut small = PullWishes::default();
    small.memory_bytes = Some(100);
    let found = find_stored(&"org/model-GGUF".parse().unwrap(), &small, &hub.settings());
    assert!(matches!(found, Err(HubError::NothingFits { .. })), "{found:?}");
    pull_from(&hub, "org/model-GGUF@v1:Q4_K_M").unwrap();
    assert_eq!(stored(&hub, "org/model-GGUF@v1").as_deref(), Some("Q4_K_M"));
    let second = hub
        .cache
        .path()
        .join("models--org--model-GGUF/snapshots")
        .join(COMMIT);
    fs::remove_file(second.join("m-Q8_0-00002-of-00002.gguf")).unwrap();
    assert_eq!(stored(&hub, "org/model-GGUF:Q8_0"), None, "a part is missing");
    assert!(n_requests < hub.requests().len());
}

#[test]
fn the_list_has_names_types_and_sizes() {
    let hub = hub();
    assert_eq!(stored_models(&hub.settings()).unwrap(), []);
    pull_from(&hub, "org/model-GGUF:Q8_0").unwrap();
    pull_from(&hub, "org/model-GGUF:Q4_K_M").unwrap();
    let models = stored_models(&hub.settings()).unwrap();
    let rows: Vec<_> = models
        .iter()
        .map(|model| (model.name.to_string(), model.n_bytes))
        .collect();
    assert_eq!(
        rows,
        [
            ("org/model-GGUF:Q4_K_M".to_owned(), 4_000),
            ("org/model-GGUF:Q8_0".to_owned(), 11_000)
        ]
    );
    assert!(
        models
            .iter()
            .all(|model| model.last_used.is_some() && model.path.exists())
    );
}

#[test]
#[cfg(unix)]
fn a_removal_leaves_what_other_snapshots_use() {
    let hub = hub();
    pull_from(&hub, "org/model-GGUF:Q8_0").unwrap();
    pull_from(&hub, "org/model-GGUF:Q4_K_M").unwrap();
    // Another snapshot with the first part.
    let folder = hub.cache.path().join("models--org--model-GGUF");
    let other = folder.join("snapshots/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
    fs::create_dir(&other).unwrap();
    let first = fs::read_link(
        folder
            .join("snapshots")
            .join(COMMIT)
            .join("m-Q8_0-00001-of-00002.gguf"),
    )
    .unwrap();
    std::os::unix::fs::symlink(first, other.join("part.bin")).unwrap();

    let name: ModelName = format!("org/model-GGUF@{COMMIT}:Q8_0").parse().unwrap();
    let removal = Removal::of(&name, &hub.settings()).unwrap();
    assert_eq!(
        (removal.freed_bytes, removal.labels.as_slice()),
        (6_000, ["Q8_0".to_owned()].as_slice())
    );
    removal.apply(&()).unwrap();
    assert_eq!(fs::read(other.join("part.bin")).unwrap().len(), 5_000);
    assert_eq!(stored(&hub, "org/model-GGUF").as_deref(), Some("Q4_K_M"));

    let whole = Removal::of(&"org/model-GGUF".parse().unwrap(), &hub.settings()).unwrap();
    whole.apply(&()).unwrap();
    assert!(!folder.exists());
    let gone = Removal::of(&"org/model-GGUF".parse().unwrap(), &hub.settings());
    assert!(matches!(gone, Err(HubError::NotStored { .. })));
}

#[test]
#[cfg(unix)]
fn a_removal_does_not_wait_for_itself_and_leaves_another_types_download() {
    let hub = hub();
    let pulled = pull_from(&hub, "org/model-GGUF:Q4_K_M").unwrap();
    // Another program has completed what an interrupted download left.
    let blob = fs::canonicalize(&pulled.path).unwrap();
    let remnant = |name: &str| blob.with_file_name(format!("{name}.tokenmill.incomplete"));
    let own = remnant(blob.file_name().unwrap().to_str().unwrap());
    let of_another = remnant("another");
    for path in [&own, &of_another] {
        fs::write(path, "a part").unwrap();
    }
    let remove = |name: &str| {
        let removal = Removal::of(&name.parse().unwrap(), &hub.settings()).unwrap();
        removal.apply(&()).unwrap();
    };
    remove("org/model-GGUF:Q4_K_M");
    assert!(!pulled.path.exists() && of_another.exists());
    pull_from(&hub, "org/model-GGUF:Q4_K_M").unwrap();
    fs::write(&own, "a part").unwrap();
    remove("org/model-GGUF");
    assert!(!of_another.exists() && !own.exists());
}

#[test]
#[cfg(unix)]
fn what_broken_off_downloads_left_is_removed_and_what_is_complete_stays() {
    let hub = hub();
    let name: ModelName = "org/model-GGUF:Q8_0".parse().unwrap();
    let remove = || remove_interrupted(&name, &hub.settings(), &()).unwrap();
    assert!(!remove(), "there is nothing");
    // One file of two has arrived as a whole.
    hub.on(|request| {
        let is_second = request.is_for_bytes() && request.path.contains("00002-of");
        is_second.then_some(Fault::Status(403, ""))
    });
    pull_from(&hub, "org/model-GGUF:Q8_0").unwrap_err();
    assert!(!hub.blobs().is_empty());
    assert!(remove() && !remove());
    assert!(!hub.cache.path().join("models--org--model-GGUF").exists());

    hub.on(|_| None);
    let pulled = pull_from(&hub, "org/model-GGUF:Q4_K_M").unwrap();
    let mut before = hub.blobs();
    let blobs = hub.cache.path().join("models--org--model-GGUF/blobs");
    // Other programs continue their parts.
    for left in ["other.incomplete", "other.1f2e3d4c.incomplete"] {
        fs::write(blobs.join(left), "a part").unwrap();
        before.insert(left.to_owned());
    }
    for left in ["other", "another.tokenmill.incomplete"] {
        fs::write(blobs.join(left), "a part").unwrap();
    }
    // A download that runs holds its file.
    let locks = hub.cache.path().join(".locks/models--org--model-GGUF");
    let lock = fs::File::create(locks.join("another.lock")).unwrap();
    lock.lock().unwrap();
    let refused = remove_interrupted(&name, &hub.settings(), &Impatient);
    assert!(matches!(refused, Err(HubError::Cancelled)), "{refused:?}");
    drop(lock);
    assert!(remove() && !remove());
    assert_eq!(hub.blobs(), before);
    assert!(pulled.path.exists());
}

#[test]
#[cfg(unix)]
fn nothing_is_removed_while_a_pull_of_the_repository_runs() {
    for has_another in [false, true] {
        let hub = hub();
        if has_another {
            pull_from(&hub, "org/model-GGUF:Q4_K_M").unwrap();
        }
        // The first of two files has arrived: the next pull passes it without its lock.
        hub.on(|request| {
            let is_second = request.is_for_bytes() && request.path.contains("00002-of");
            is_second.then_some(Fault::Status(403, ""))
        });
        pull_from(&hub, "org/model-GGUF:Q8_0").unwrap_err();
        hub.on(|_| None);
        let settings = hub.settings();
        let name: ModelName = "org/model-GGUF:Q8_0".parse().unwrap();
        let meddler = AtEachEvent {
            run: || {
                let removed = remove_interrupted(&name, &settings, &Impatient);
                assert!(matches!(removed, Err(HubError::Cancelled)), "{removed:?}");
                for of in ["org/model-GGUF", "org/model-GGUF:Q4_K_M"] {
                    let Ok(removal) = Removal::of(&of.parse().unwrap(), &settings) else {
                        continue;
                    };
                    let removed = removal.apply(&Impatient);
                    assert!(matches!(removed, Err(HubError::Cancelled)), "{of}: {removed:?}");
                }
            },
            n_events: AtomicUsize::new(0),
        };
        pull(&name, &PullWishes::default(), &settings, &meddler).unwrap();
        assert!(meddler.n_events.into_inner() > 2);
        let labels: Vec<String> = (stored_models(&settings).unwrap().into_iter())
            .map(|model| model.label)
            .collect();
        let expected: &[&str] = if has_another {
            &["Q4_K_M", "Q8_0"]
        } else {
            &["Q8_0"]
        };
        assert_eq!(labels, expected);
        assert!(
            !remove_interrupted(&name, &settings, &Impatient).unwrap(),
            "no pull runs"
        );
    }
}

#[test]
#[cfg(unix)]
fn a_removal_waits_for_a_pull_and_keeps_its_model() {
    let hub = hub();
    pull_from(&hub, "org/model-GGUF:Q4_K_M").unwrap();
    let planned = Removal::of(&"org/model-GGUF:Q4_K_M".parse().unwrap(), &hub.settings()).unwrap();
    // As a pull does that ends while the removal waits.
    pull_from(&hub, "org/model-GGUF:Q8_0").unwrap();
    planned.apply(&()).unwrap();
    let labels: Vec<String> = (stored_models(&hub.settings()).unwrap().into_iter())
        .map(|model| model.label)
        .collect();
    assert_eq!(labels, ["Q8_0"]);
}

#[test]
#[cfg(unix)]
fn a_removal_waits_for_another_programs_download() {
    let hub = hub();
    pull_from(&hub, "org/model-GGUF:Q4_K_M").unwrap();
    let blobs = hub.cache.path().join("models--org--model-GGUF/blobs");
    let locks = hub.cache.path().join(".locks/models--org--model-GGUF");
    for part in ["other.incomplete", "other.1f2e3d4c.incomplete"] {
        fs::write(blobs.join(part), "a part").unwrap();
        let lock = fs::File::create(locks.join("other.lock")).unwrap();
        lock.lock().unwrap();
        let removal = Removal::of(&"org/model-GGUF".parse().unwrap(), &hub.settings()).unwrap();
        let refused = removal.apply(&Impatient);
        assert!(matches!(refused, Err(HubError::Cancelled)), "{refused:?}");
        fs::remove_file(blobs.join(part)).unwrap();
    }
}

#[test]
fn a_folder_and_a_file_of_one_snapshot_are_removed_apart() {
    let hub = hub();
    let pulled = pull_from(&hub, "org/model-GGUF:Q4_K_M").unwrap();
    // As a download of the whole repository by another program leaves it.
    let snapshot = pulled.path.parent().unwrap();
    fs::write(snapshot.join("config.json"), "{}").unwrap();
    fs::write(snapshot.join("model.safetensors"), noise(7_000, 4)).unwrap();
    let remove = |name: &str| {
        let removal = Removal::of(&name.parse().unwrap(), &hub.settings()).unwrap();
        let labels = removal.labels.clone();
        removal.apply(&()).unwrap();
        labels
    };
    assert_eq!(remove("org/model-GGUF:Q4_K_M"), ["Q4_K_M"]);
    assert!(!pulled.path.exists() && snapshot.join("model.safetensors").exists());
    pull_from(&hub, "org/model-GGUF:Q4_K_M").unwrap();
    assert_eq!(remove("org/model-GGUF:SafeTensors"), ["safetensors"]);
    assert!(pulled.path.exists() && !snapshot.join("config.json").exists());
}

#[test]
fn the_last_model_takes_the_rest_of_its_snapshot_along() {
    let hub = hub();
    pull_from(&hub, "org/model-GGUF:Q4_K_M").unwrap();
    let wrong = Removal::of(&"org/model-GGUF:Q8_0".parse().unwrap(), &hub.settings());
    assert!(matches!(wrong, Err(HubError::NoSuchType { .. })));
    Removal::of(&"org/model-GGUF:Q4_K_M".parse().unwrap(), &hub.settings())
        .unwrap()
        .apply(&())
        .unwrap();
    assert!(stored_models(&hub.settings()).unwrap().is_empty());
    assert!(!hub.cache.path().join("models--org--model-GGUF").exists());
}

#[test]
fn an_encoder_that_was_left_out_is_known_without_a_server() {
    let known = |hub: &FakeHub, name: &str| {
        let name = name.parse().unwrap();
        let model = find_stored(&name, &PullWishes::default(), &hub.settings());
        stored_projector(&name, &model.unwrap().unwrap(), &hub.settings())
    };
    let without = |hub: &FakeHub, name: &str| {
        let mut wishes = PullWishes::default();
        wishes.with_projector = false;
        pull(&name.parse().unwrap(), &wishes, &hub.settings(), &()).unwrap();
    };
    let with_encoder = FakeHub::with(&[
        ("m-Q4_K_M.gguf", noise(4_000, 1)),
        ("mmproj-F16.gguf", noise(3_000, 2)),
    ]);
    without(&with_encoder, "org/model-GGUF");
    assert_eq!(
        known(&with_encoder, "org/model-GGUF"),
        StoredProjector::Missing("mmproj-F16.gguf".to_owned())
    );
    pull_from(&with_encoder, "org/model-GGUF").unwrap();
    assert_eq!(known(&with_encoder, "org/model-GGUF"), StoredProjector::There);
    let hub = hub();
    without(&hub, "org/model-GGUF:Q4_K_M");
    assert_eq!(known(&hub, "org/model-GGUF"), StoredProjector::None);
    // Other programs note nothing.
    fs::remove_dir_all(hub.cache.path().join("models--org--model-GGUF/.tokenmill")).unwrap();
    assert_eq!(known(&hub, "org/model-GGUF"), StoredProjector::Unknown);
}

#[test]
fn layers_for_further_tokens_come_and_go_with_their_model() {
    let hub = FakeHub::with(&[
        ("m-Q4_K_M.gguf", noise(4_000, 1)),
        ("m-Q8_0.gguf", noise(6_000, 2)),
        ("m-F16.gguf", noise(9_000, 3)),
        ("mtp-m-Q4_K_M.gguf", noise(400, 4)),
        ("mtp-m-Q8_0.gguf", noise(600, 5)),
    ]);
    let name = |ty: &str| -> ModelName { format!("org/model-GGUF:{ty}").parse().unwrap() };
    let planned = plan(&name("Q8_0"), &PullWishes::default(), &hub.settings(), &()).unwrap();
    assert_eq!(planned.nextn, Some(("mtp-m-Q8_0.gguf".to_owned(), 600)));
    assert_eq!((planned.n_files(), planned.total_bytes), (2, 6_600));
    let model = planned.fetch(&hub.settings(), &()).unwrap();
    assert_eq!(
        model.path.file_name().unwrap(),
        "m-Q8_0.gguf",
        "the layers are no model"
    );
    assert_eq!(
        fs::read(model.path.with_file_name("mtp-m-Q8_0.gguf")).unwrap(),
        noise(600, 5)
    );
    let mut without = PullWishes::default();
    without.with_nextn = false;
    let small = pull(&name("Q4_K_M"), &without, &hub.settings(), &()).unwrap();
    let layers_of_small = small.path.with_file_name("mtp-m-Q4_K_M.gguf");
    assert!(!layers_of_small.exists());
    pull_from(&hub, "org/model-GGUF:Q4_K_M").unwrap();
    assert!(layers_of_small.exists());
    // The smaller of two that are called alike.
    pull_from(&hub, "org/model-GGUF:F16").unwrap();
    let sizes = || -> Vec<u64> {
        let models = stored_models(&hub.settings()).unwrap();
        models.iter().map(|model| model.n_bytes).collect()
    };
    assert_eq!(sizes(), [9_400, 4_400, 6_600]);
    let remove = |ty: &str| {
        let removal = Removal::of(&name(ty), &hub.settings()).unwrap();
        let (labels, freed_bytes) = (removal.labels.clone(), removal.freed_bytes);
        removal.apply(&()).unwrap();
        assert_eq!(labels, [ty]);
        freed_bytes
    };
    assert_eq!(remove("F16"), 9_000, "another type has the same layers");
    assert_eq!(remove("Q8_0"), 6_600);
    assert!(!model.path.with_file_name("mtp-m-Q8_0.gguf").exists() && layers_of_small.exists());
    assert_eq!(sizes(), [4_400]);
    remove("Q4_K_M");
    assert!(!hub.cache.path().join("models--org--model-GGUF").exists());
}

#[test]
fn a_file_that_was_damaged_here_is_found_by_its_hash_and_comes_again() {
    let hub = hub();
    let model = pull_from(&hub, "org/model-GGUF:Q8_0").unwrap();
    let name = "org/model-GGUF:Q8_0".parse().unwrap();
    let plan = || plan(&name, &PullWishes::default(), &hub.settings(), &()).unwrap();
    let whole = fs::read(&model.path).unwrap();
    let mut damaged = whole.clone();
    damaged[100] ^= 1;
    fs::write(&model.path, &damaged).unwrap();
    assert_eq!(plan().missing_bytes, 0, "its size is right");
    let mut checked = plan();
    checked.remove_damaged(&hub.settings(), &()).unwrap();
    assert_eq!(checked.missing_bytes, 5_000, "the other part is whole");
    let again = checked.fetch(&hub.settings(), &()).unwrap();
    assert_eq!(fs::read(again.path).unwrap(), whole);
    let mut checked = plan();
    checked.remove_damaged(&hub.settings(), &()).unwrap();
    assert_eq!(checked.missing_bytes, 0);
}

#[test]
fn a_folder_without_one_of_its_shards_is_no_model() {
    let shards = [1, 2].map(|no| format!("model-0000{no}-of-00002.safetensors"));
    let files: Vec<(&str, Vec<u8>)> = vec![
        ("config.json", b"{}".to_vec()),
        (&shards[0], noise(5_000, 1)),
        (&shards[1], noise(6_000, 2)),
    ];
    let error = pull_from(&FakeHub::with(&files[..2]), "org/model-GGUF").unwrap_err();
    assert!(
        matches!(&error, HubError::MissingPart { missing, .. } if *missing == shards[1]),
        "{error}"
    );
    let hub = FakeHub::with(&files);
    let model = pull_from(&hub, "org/model-GGUF").unwrap();
    assert_eq!(stored(&hub, "org/model-GGUF").as_deref(), Some("safetensors"));
    fs::remove_file(model.path.join(&shards[0])).unwrap();
    assert_eq!(stored(&hub, "org/model-GGUF"), None);
}

#[test]
fn whoever_has_a_model_does_not_wait_for_a_network() {
    let hub = hub();
    pull_from(&hub, "org/model-GGUF:Q4_K_M").unwrap();
    let mut settings = hub.settings();
    // No program listens on this port, and each new attempt would come after a minute.
    settings.endpoint = "http://127.0.0.1:9".to_owned();
    settings.retry_pause = std::time::Duration::from_mins(1);
    let error = pull(
        &"org/model-GGUF".parse().unwrap(),
        &PullWishes::default(),
        &settings,
        &(),
    )
    .unwrap_err();
    assert!(matches!(error, HubError::NoConnection { .. }), "{error}");
}
