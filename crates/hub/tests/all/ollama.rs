//! Models of Ollama's registry: pulled into Ollama's folder, found there, listed and removed.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    path::PathBuf,
    sync::atomic::AtomicUsize,
    thread,
    time::Duration,
};

use tokenmill_hub::{
    HubError, HubSettings, PulledModel,
    ollama::{OllamaName, OllamaRemoval, find_stored, name_of, plan, remove_interrupted, stored_models},
};

use crate::{
    cached::{AtEachEvent, Impatient},
    server::{CONFIG, FakeHub, Fault, noise},
};

const NAME: &str = "model:tiny";

fn name() -> OllamaName {
    NAME.parse().unwrap()
}

fn hub() -> (FakeHub, Vec<u8>) {
    let weights = noise(200_003, 7);
    let hub = FakeHub::with(&[
        ("weights.model", weights.clone()),
        ("chat.template", b"{{ .Prompt }}".to_vec()),
    ]);
    (hub, weights)
}

fn pull(settings: &HubSettings) -> Result<PulledModel, HubError> {
    plan(&name(), settings, &())?.fetch(settings, &())
}

/// Names of the layers that lie in Ollama's folder.
fn blobs(settings: &HubSettings) -> BTreeSet<String> {
    let entries = fs::read_dir(settings.ollama_models.join("blobs"))
        .into_iter()
        .flatten();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn a_model_is_pulled_into_ollamas_folder_and_found_there() {
    let (hub, weights) = hub();
    let settings = hub.settings();
    assert_eq!(find_stored(&name(), &settings).unwrap(), None);
    let planned = plan(&name(), &settings, &()).unwrap();
    assert_eq!(planned.n_files(), 3);
    assert_eq!(planned.missing_bytes, planned.total_bytes);
    let model = planned.fetch(&settings, &()).unwrap();
    assert_eq!(fs::read(&model.path).unwrap(), weights);
    assert_eq!(find_stored(&name(), &settings).unwrap(), Some(model.clone()));
    let manifest = "manifests/registry.ollama.ai/library/model/tiny";
    assert!(settings.ollama_models.join(manifest).is_file());
    assert_eq!(blobs(&settings).len(), 3, "{:?}", blobs(&settings));

    let n_requests = hub.requests().len();
    assert_eq!(plan(&name(), &settings, &()).unwrap().missing_bytes, 0);
    assert_eq!(pull(&settings).unwrap(), model);
    let later = &hub.requests()[n_requests..];
    assert!(
        later.iter().all(|request| request.path.contains("/manifests/")),
        "{later:?}"
    );
    let stored = stored_models(&settings);
    assert_eq!(stored.len(), 1);
    assert_eq!((&stored[0].name, &stored[0].model), (&name(), &model));
    assert_eq!(model.label, "Q4_0");
    // Its file says by itself whose it is; the other layers and other files are the weights of none.
    for blob in blobs(&settings) {
        let path = settings.ollama_models.join("blobs").join(blob);
        assert_eq!(
            name_of(&path),
            (path == model.path).then(name),
            "{}",
            path.display()
        );
    }
    assert_eq!(name_of("blobs/model.gguf".as_ref()), None);
    assert_eq!(name_of("sha256-00".as_ref()), None);
}

#[test]
fn what_is_cut_off_is_continued_and_what_is_damaged_is_not_found() {
    let (hub, weights) = hub();
    let settings = hub.settings();
    hub.at_first_bytes(2, Fault::Cut(1000));
    assert_eq!(fs::read(pull(&settings).unwrap().path).unwrap(), weights);

    let (hub, _) = self::hub();
    let settings = hub.settings();
    hub.at_first_bytes(100, Fault::OtherBytes);
    let error = pull(&settings).unwrap_err();
    assert!(matches!(error, HubError::Damaged { .. }), "{error}");
    assert_eq!(find_stored(&name(), &settings).unwrap(), None);
    assert!(stored_models(&settings).is_empty());
}

#[test]
fn a_broken_off_download_can_be_removed_and_a_complete_model_is_none() {
    let (hub, _) = hub();
    let settings = hub.settings();
    let remove = || remove_interrupted(&name(), &settings, &()).unwrap();
    assert!(!remove(), "there is nothing");
    hub.at_first_bytes(1_000, Fault::Status(403, ""));
    pull(&settings).unwrap_err();
    assert!(!blobs(&settings).is_empty());
    assert!(remove() && !remove());
    assert_eq!(blobs(&settings), BTreeSet::new());

    hub.on(|_| None);
    let model = pull(&settings).unwrap();
    assert!(!remove() && model.path.exists());
}

#[test]
fn nothing_is_removed_while_a_pull_of_the_model_runs() {
    let (hub, weights) = hub();
    let settings = hub.settings();
    for is_stored in [false, true] {
        let meddler = AtEachEvent {
            run: || {
                let removed = remove_interrupted(&name(), &settings, &Impatient);
                assert!(matches!(removed, Err(HubError::Cancelled)), "{removed:?}");
                if is_stored {
                    let removed = OllamaRemoval::of(&name(), &settings).unwrap().apply(&Impatient);
                    assert!(matches!(removed, Err(HubError::Cancelled)), "{removed:?}");
                }
            },
            n_events: AtomicUsize::new(0),
        };
        let planned = plan(&name(), &settings, &()).unwrap();
        let model = planned.fetch(&settings, &meddler).unwrap();
        assert!(meddler.n_events.into_inner() >= 3, "each layer has one");
        assert_eq!(fs::read(&model.path).unwrap(), weights);
        assert_eq!(stored_models(&settings).len(), 1);
    }
}

#[test]
fn a_removal_keeps_the_layers_of_a_download_that_broke_off() {
    let (hub, _) = hub();
    let settings = hub.settings();
    pull(&settings).unwrap();
    // Another model of the same layers, one of which has not arrived yet.
    let manifest = "manifests/registry.ollama.ai/library/model/tiny";
    fs::copy(settings.ollama_models.join(manifest), note(&settings, "other")).unwrap();
    let before = blobs(&settings);
    OllamaRemoval::of(&name(), &settings).unwrap().apply(&()).unwrap();
    assert!(stored_models(&settings).is_empty());
    assert_eq!(blobs(&settings), before);
}

/// Locks a file next to the notes, as a pull does.
fn locked(settings: &HubSettings, name: &str) -> File {
    let folder = settings.cache.join(".locks/ollama");
    fs::create_dir_all(&folder).unwrap();
    let file = File::create(folder.join(name)).unwrap();
    file.try_lock().unwrap();
    file
}

/// Locks all layers of a manifest.
fn locked_layers(settings: &HubSettings, manifest: &str) -> Vec<File> {
    let digests = manifest.split("sha256:").skip(1).map(|rest| &rest[..64]);
    let digests: BTreeSet<&str> = digests.collect();
    digests
        .into_iter()
        .map(|digest| locked(settings, &format!("{digest}.lock")))
        .collect()
}

/// The note of a download of a model.
fn note(settings: &HubSettings, model: &str) -> PathBuf {
    let notes = settings.cache.join(".locks/ollama/pulls/library").join(model);
    fs::create_dir_all(&notes).unwrap();
    notes.join("tiny")
}

#[test]
fn a_removal_of_what_broke_off_waits_for_no_layer_that_it_keeps() {
    let (hub, _) = hub();
    let settings = hub.settings();
    let remove = || remove_interrupted(&name(), &settings, &Impatient);
    hub.at_first_bytes(1_000, Fault::Status(403, ""));
    pull(&settings).unwrap_err();
    let manifest = fs::read_to_string(note(&settings, "model")).unwrap();
    let before = blobs(&settings);
    assert!(!before.is_empty());
    // Another model of the same layers is being downloaded.
    fs::write(note(&settings, "other"), &manifest).unwrap();
    let held = locked_layers(&settings, &manifest);
    assert!(remove().unwrap());
    assert_eq!(blobs(&settings), before);
    drop(held);
    // Layers of its own may be in use just now.
    fs::remove_file(note(&settings, "other")).unwrap();
    pull(&settings).unwrap_err();
    let held = locked_layers(&settings, &manifest);
    let refused = remove();
    assert!(matches!(refused, Err(HubError::Cancelled)), "{refused:?}");
    drop(held);
    assert!(remove().unwrap());
    assert!(blobs(&settings).is_empty());
}

#[test]
fn a_removal_of_a_model_waits_for_the_layers_that_it_removes() {
    let (hub, _) = hub();
    let settings = hub.settings();
    pull(&settings).unwrap();
    let remove = || OllamaRemoval::of(&name(), &settings).unwrap().apply(&Impatient);
    let manifest = "manifests/registry.ollama.ai/library/model/tiny";
    let manifest = fs::read_to_string(settings.ollama_models.join(manifest)).unwrap();
    // They are hashed, for example.
    let held = locked_layers(&settings, &manifest);
    let refused = remove();
    assert!(matches!(refused, Err(HubError::Cancelled)), "{refused:?}");
    assert_eq!(stored_models(&settings).len(), 1);
    // Another model of the same layers is being downloaded, so they stay.
    let before = blobs(&settings);
    fs::write(note(&settings, "other"), &manifest).unwrap();
    remove().unwrap();
    drop(held);
    assert!(stored_models(&settings).is_empty());
    assert_eq!(blobs(&settings), before);
}

#[test]
fn manifests_are_read_for_a_removal_while_nothing_writes_them() {
    let (hub, _) = hub();
    let settings = hub.settings();
    pull(&settings).unwrap();
    let held = locked(&settings, "manifests.lock");
    // A pull notes its manifest meanwhile.
    fs::write(note(&settings, "other"), "{").unwrap();
    thread::scope(|scope| {
        let removal = scope.spawn(|| OllamaRemoval::of(&name(), &settings));
        thread::sleep(Duration::from_millis(200));
        assert!(!removal.is_finished(), "it reads what is being written");
        fs::write(note(&settings, "other"), "{}").unwrap();
        drop(held);
        let removal = removal.join().unwrap().unwrap();
        assert_eq!(removal.freed_bytes, 200_003 + 13 + CONFIG.len() as u64);
    });
}

#[test]
fn a_model_that_does_not_exist_is_named() {
    let (hub, _) = hub();
    for unknown in ["model:huge", "other:tiny"] {
        let error = plan(&unknown.parse().unwrap(), &hub.settings(), &()).unwrap_err();
        assert!(
            matches!(&error, HubError::NotFound { name, .. } if name == unknown),
            "{unknown}: {error}"
        );
    }
    let mut offline = hub.settings();
    offline.is_offline = true;
    assert!(matches!(
        plan(&name(), &offline, &()),
        Err(HubError::Offline { .. })
    ));
}

#[test]
fn a_layer_that_was_damaged_here_comes_again() {
    let (hub, _) = hub();
    let settings = hub.settings();
    let path = pull(&settings).unwrap().path;
    let whole = fs::read(&path).unwrap();
    let mut damaged = whole.clone();
    damaged[7] ^= 1;
    fs::write(&path, damaged).unwrap();
    let mut checked = plan(&name(), &settings, &()).unwrap();
    assert_eq!(checked.missing_bytes, 0);
    checked.remove_damaged(&settings, &()).unwrap();
    assert_eq!(checked.missing_bytes, whole.len() as u64);
    checked.fetch(&settings, &()).unwrap();
    assert_eq!(fs::read(&path).unwrap(), whole);
}

#[test]
fn a_token_of_the_hub_is_not_sent() {
    let (hub, _) = hub();
    let mut settings = hub.settings();
    settings.token = tokenmill_hub::HubToken::new("hf_secret");
    pull(&settings).unwrap();
    let requests = hub.requests();
    let secret = requests
        .iter()
        .find(|request| request.headers.contains_key("authorization"));
    assert!(secret.is_none(), "{secret:?}");
}

#[test]
fn a_removal_keeps_the_layers_of_others() {
    let (hub, _) = hub();
    let settings = hub.settings();
    pull(&settings).unwrap();
    let folder = settings
        .ollama_models
        .join("manifests/registry.ollama.ai/library/model");
    fs::copy(folder.join("tiny"), folder.join("other")).unwrap();
    // An unreadable manifest may name the same layers.
    fs::write(folder.join("cut"), "{").unwrap();
    let error = OllamaRemoval::of(&name(), &settings).unwrap_err();
    assert!(error.to_string().contains("cut"), "{error}");
    fs::remove_file(folder.join("cut")).unwrap();
    let removal = OllamaRemoval::of(&name(), &settings).unwrap();
    assert_eq!(removal.freed_bytes, 0);
    removal.apply(&()).unwrap();
    assert_eq!(find_stored(&name(), &settings).unwrap(), None);
    let other: OllamaName = "model:other".parse().unwrap();
    assert!(find_stored(&other, &settings).unwrap().is_some());
    let removal = OllamaRemoval::of(&other, &settings).unwrap();
    assert_eq!(removal.freed_bytes, 200_003 + 13 + CONFIG.len() as u64);
    removal.apply(&()).unwrap();
    assert!(blobs(&settings).is_empty() && !folder.exists());
    assert!(matches!(
        OllamaRemoval::of(&other, &settings),
        Err(HubError::NotStored { .. })
    ));
}
