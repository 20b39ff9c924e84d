//! Names that mean nothing, or not what was thought.

use tokenmill_hub::{HubError, PullWishes, plan};

use crate::server::{FakeHub, noise};

fn hub() -> FakeHub {
    FakeHub::with(&[
        ("m-Q2_K.gguf", noise(2_000, 1)),
        ("m-Q4_K_M.gguf", noise(4_000, 2)),
        ("m-Q8_0.gguf", noise(8_000, 3)),
    ])
}

#[track_caller]
fn error_of(hub: &FakeHub, name: &str, memory_bytes: Option<u64>) -> HubError {
    let mut wishes = PullWishes::default();
    wishes.memory_bytes = memory_bytes;
    plan(&name.parse().unwrap(), &wishes, &hub.settings(), &())
        .map(|_| ())
        .unwrap_err()
}

#[test]
fn a_typo_in_the_name_gives_near_names() {
    let error = error_of(&hub(), "org/modle-GGUF", None).to_string();
    assert!(error.contains("there is org/model-GGUF, "), "{error}");
}

#[test]
fn a_wrong_type_lists_those_that_there_are() {
    let error = error_of(&hub(), "org/model-GGUF:Q5_K_M", None).to_string();
    assert_eq!(
        error,
        "`org/model-GGUF` has no `Q5_K_M`; it has Q2_K, Q4_K_M, Q8_0"
    );
}

#[test]
fn a_wrong_revision_is_told() {
    let error = error_of(&hub(), "org/model-GGUF@v2", None).to_string();
    assert_eq!(error, "`org/model-GGUF` has no revision `v2`");
}

#[test]
fn what_fits_no_memory_is_not_downloaded_unless_it_is_asked_for() {
    let error = error_of(&hub(), "org/model-GGUF", Some(1 << 20));
    assert!(matches!(error, HubError::NothingFits { .. }), "{error}");
    let mut wishes = PullWishes::default();
    wishes.memory_bytes = Some(1 << 20);
    let hub = hub();
    let plan = plan(
        &"org/model-GGUF:Q8_0".parse().unwrap(),
        &wishes,
        &hub.settings(),
        &(),
    )
    .unwrap();
    assert_eq!((plan.label.as_str(), plan.total_bytes), ("Q8_0", 8_000));
}

#[test]
fn repositories_without_a_model_are_told() {
    let empty = FakeHub::with(&[("README.md", b"x".to_vec())]);
    assert!(matches!(
        error_of(&empty, "org/model-GGUF", None),
        HubError::NothingToOpen { .. }
    ));
    let part = FakeHub::with(&[("m-Q8_0-00002-of-00002.gguf", noise(2_000, 1))]);
    let error = error_of(&part, "org/model-GGUF", None).to_string();
    assert!(error.ends_with("m-Q8_0-00001-of-00002.gguf"), "{error}");
    let index = br#"{"weight_map":{"a":"model-00001-of-00002.safetensors"}}"#;
    let shard = FakeHub::with(&[
        ("config.json", b"{}".to_vec()),
        ("model.safetensors.index.json", index.to_vec()),
    ]);
    let error = error_of(&shard, "org/model-GGUF", None).to_string();
    assert!(error.ends_with("model-00001-of-00002.safetensors"), "{error}");
}
