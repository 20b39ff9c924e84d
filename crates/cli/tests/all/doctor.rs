//! `doctor`: where downloads come from and go to.

use std::path::Path;

use serde_json::Value;
use tokenmill_gguf::free_bytes;

use crate::support::{Outcome, command};

fn examine(variables: &[(&str, &str)], args: &[&str]) -> String {
    let mut doctor = command([&["doctor", "--device", "cpu"][..], args].concat());
    doctor.env_remove("HF_ENDPOINT");
    doctor.envs(variables.iter().copied());
    Outcome::of(&doctor.output().expect("the program starts")).ok()
}

#[test]
fn doctor_says_how_much_room_downloads_have() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("not/there/yet");
    let variables = [("HF_HUB_CACHE", cache.to_str().unwrap())];
    let text = examine(&variables, &[]);
    let row = text.lines().find(|line| line.starts_with("models ")).unwrap();
    // A disk that has room, as it has for whoever builds this; one without is another row of the same words.
    assert!(
        row.contains(&format!("downloads go to {}, where ", cache.display())) && row.ends_with(" are free"),
        "{text}"
    );
    let report: Value = serde_json::from_str(&examine(&variables, &["--json"])).unwrap();
    let said = report["models"]["free_bytes"].as_u64().unwrap();
    let found = free_bytes(folder.path()).unwrap();
    // Other programs write to the same disk meanwhile.
    assert!(said.abs_diff(found) < found / 2, "{said} and {found}");
    assert_eq!(report["models"]["cache"], cache.to_str().unwrap());
    assert!(!Path::new(&cache).exists());
}

#[test]
fn doctor_names_the_mirror_and_does_not_ask_it() {
    let plain = examine(&[], &[]);
    assert!(!plain.contains("HF_ENDPOINT"), "{plain}");
    // A port that no program listens on.
    let named = examine(&[("HF_ENDPOINT", "http://127.0.0.1:9/")], &[]);
    assert!(
        named.contains("endpoint   ok       HF_ENDPOINT names http://127.0.0.1:9, not contacted here"),
        "{named}"
    );
    let variables = [("HF_ENDPOINT", "http://user:secret@127.0.0.1:9")];
    for args in [&[][..], &["--json"]] {
        let told = examine(&variables, args);
        assert!(
            told.contains("http://127.0.0.1:9") && !told.contains("secret"),
            "{told}"
        );
    }
    let variables = [("HF_ENDPOINT", "mirror.example")];
    let wrong = examine(&variables, &[]);
    assert!(
        wrong.contains("endpoint   problem  ") && wrong.contains("to fix   let HF_ENDPOINT be an address"),
        "{wrong}"
    );
    let report: Value = serde_json::from_str(&examine(&variables, &["--json"])).unwrap();
    assert_eq!(report["models"]["endpoint"], "mirror.example");
    assert!(
        report["problems"].to_string().contains("\"what\":\"endpoint\""),
        "{report}"
    );
}

#[test]
fn doctor_warns_of_threads_as_a_run_does() {
    let text = examine(&[], &["demo", "-t", "1000"]);
    assert!(
        text.contains("threads    warning  `-t 1000` is more than the ") && text.contains("; leave `-t` out"),
        "{text}"
    );
}
