//! `serve` with folders: of models that come, change and go, of images, and the Hub's cache.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    server::{Server, put},
    support::{DEMO_GGUF, arg},
};

#[test]
fn images_are_files_of_the_folder_that_is_given() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/vision/gemma3");
    let eye = data.join("model.gguf");
    let folder = tempfile::tempdir().unwrap();
    fs::copy(data.join("0.png"), folder.path().join("a.png")).unwrap();
    fs::copy(&eye, folder.path().join("b.png")).unwrap();
    let ask = |server: &Server, url: &str| {
        let image = json!({ "type": "image_url", "image_url": { "url": url } });
        let messages = json!([{ "role": "user", "content": [image] }]);
        let body = json!({ "model": "model", "messages": messages, "max_tokens": 1 });
        server.ask("POST", "/v1/chat/completions", &body.to_string())
    };
    let absolute = format!("file://{}", folder.path().join("a.png").display());
    for (flag, others) in [
        ("--media-path", &[][..]),
        ("--allowed-local-media-path", &["demo"]),
    ] {
        let args = [&[arg(&eye), flag, arg(folder.path())], others].concat();
        let server = Server::start(&args);
        for url in ["file://a.png", &absolute] {
            let (status, answer) = ask(&server, url);
            assert_eq!(status, 200, "{answer}");
        }
        for (url, expected) in [
            ("file://b.png", "this is not a supported image"),
            (
                "file:///etc/passwd",
                "is not a file below the server's `--media-path`",
            ),
        ] {
            let (status, answer) = ask(&server, url);
            assert_eq!(status, 400, "{answer}");
            assert!(answer.to_string().contains(expected), "{answer}");
        }
        server.end();
    }
    let server = Server::start(&[arg(&eye)]);
    let (status, answer) = ask(&server, "file://a.png");
    assert_eq!(status, 400, "{answer}");
    assert!(answer.to_string().contains("`--media-path DIR`"), "{answer}");
    server.end();
}

#[test]
fn a_folder_is_looked_through_again() {
    let folder = tempfile::tempdir().unwrap();
    let adapter = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/data/parity2/lora/qwen3-a/adapter-F32.gguf"
    );
    let encoder = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/data/vision/gemma3/mmproj-model.gguf"
    );
    put(folder.path(), "a.gguf", DEMO_GGUF);
    put(
        folder.path(),
        "style.gguf",
        &fs::read(adapter).expect("an adapter of the core data"),
    );
    put(
        folder.path(),
        "eye.gguf",
        &fs::read(encoder).expect("an encoder of the core data"),
    );
    let server = Server::start(&["--models-dir", arg(folder.path()), "-c", "64"]);
    let names = || {
        server
            .states()
            .into_iter()
            .map(|(name, _)| name)
            .collect::<Vec<_>>()
    };
    let wait_for = |expected: &[&str]| {
        let began = Instant::now();
        while names() != expected {
            assert!(began.elapsed() < Duration::from_mins(1), "{:?}", names());
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    // Other files next to models are not models, whatever their names.
    assert_eq!(names(), ["a"]);
    assert_eq!(server.complete("style").0, 404);
    put(folder.path(), "b.gguf", DEMO_GGUF);
    put(folder.path(), "c/a.gguf", DEMO_GGUF);
    let began = Instant::now();
    while server.complete("b").0 == 404 {
        assert!(began.elapsed() < Duration::from_mins(1), "it is not found");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(server.complete("b").1["model"], "b");
    assert_eq!(server.complete("c/a").1["model"], "c/a");
    wait_for(&["a", "b", "c/a"]);
    // Loaded models stay; others disappear with their files.
    fs::remove_file(folder.path().join("a.gguf")).unwrap();
    fs::remove_file(folder.path().join("b.gguf")).unwrap();
    wait_for(&["b", "c/a"]);
    assert_eq!(server.complete("a").0, 404);
    assert_eq!(server.complete("b").0, 200);
    server.ask("POST", "/models/unload", r#"{"model":"b"}"#);
    wait_for(&["c/a"]);
    assert_eq!(server.complete("b").0, 404);
    put(folder.path(), "a.gguf", DEMO_GGUF);
    wait_for(&["a", "c/a"]);
    assert_eq!(server.complete("a").1["model"], "a");
    server.end();
}

#[test]
fn files_that_cannot_be_read_are_not_offered_to_ollamas_clients() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "a.gguf", DEMO_GGUF);
    put(folder.path(), "cut.gguf", &DEMO_GGUF[..1000]);
    put(folder.path(), "notes.gguf", b"only a text");
    let server = Server::start(&["--models-dir", arg(folder.path()), "-c", "64"]);
    let offered = || -> Vec<String> {
        let (_, tags) = server.ask("GET", "/api/tags", "");
        let models = tags["models"].as_array().expect("a list").iter();
        models
            .map(|model| model["name"].as_str().expect("a name").to_owned())
            .collect()
    };
    let wait_for = |expected: &[&str]| {
        let began = Instant::now();
        while offered() != expected {
            assert!(began.elapsed() < Duration::from_mins(1), "{:?}", offered());
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    wait_for(&["a:latest"]);
    // Lists with a field for the state have them, and requests get the reason.
    let (_, list) = server.ask("GET", "/v1/models", "");
    assert_eq!(list["data"][1]["id"], "cut", "{list}");
    assert_eq!(list["data"][1]["status"]["failed"], true, "{list}");
    assert_eq!(server.complete("cut").0, 503);
    put(folder.path(), "cut.gguf", DEMO_GGUF);
    wait_for(&["a:latest", "cut:latest"]);
    server.end();
}

#[test]
fn a_model_of_the_hub_is_called_with_its_type_or_without() {
    let cache = tempfile::tempdir().unwrap();
    let commit = "0123456789".repeat(4);
    let repository = "models--some--tiny-GGUF";
    put(
        cache.path(),
        &format!("{repository}/snapshots/{commit}/tiny-Q8_0.gguf"),
        DEMO_GGUF,
    );
    put(
        cache.path(),
        &format!("{repository}/refs/main"),
        commit.as_bytes(),
    );
    for (given, asked) in [
        (
            "some/tiny-GGUF",
            &[
                "some/tiny-GGUF:Q8_0",
                "some/tiny-GGUF:q8_0",
                "hf:some/tiny-GGUF:Q8_0",
            ][..],
        ),
        ("some/tiny-GGUF:Q8_0", &["some/tiny-GGUF", "some/tiny-GGUF:q8_0"]),
    ] {
        for others in [&[][..], &["demo"]] {
            let args = [&[given, "-c", "64"][..], others].concat();
            let variables = [("HF_HUB_CACHE", cache.path())];
            let server = Server::start_in(&variables, &args);
            for name in asked.iter().chain(&[given]) {
                let (status, answer) = server.complete(name);
                assert_eq!(
                    (status, &answer["model"]),
                    (200, &json!(given)),
                    "{given} {name}: {answer}"
                );
            }
            let other = "some/tiny-GGUF:Q4_K_M";
            // A server's only model answers any name.
            let expected = if others.is_empty() { 200 } else { 404 };
            assert_eq!(server.complete(other).0, expected, "{given}");
            server.end();
        }
    }
}

#[test]
fn a_file_that_was_still_being_copied_is_read_again() {
    let encoder = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/data/encoders/nomic_bert/model-Q4_K_M.gguf"
    );
    let whole = fs::read(encoder).expect("an encoder of the core data");
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "a.gguf", DEMO_GGUF);
    put(folder.path(), "embed.gguf", &whole[..1000]);
    let server = Server::start(&["--models-dir", arg(folder.path()), "-c", "64"]);
    let wait_until_failed = |expected: bool| {
        let began = Instant::now();
        loop {
            let (_, list) = server.ask("GET", "/v1/models", "");
            let entry = list["data"][1].clone();
            assert_eq!(entry["id"], "embed", "{list}");
            if (entry["status"]["failed"] == true) == expected {
                return entry;
            }
            assert!(began.elapsed() < Duration::from_mins(1), "{list}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let embedder = || -> Value {
        let (status, answer) = server.ask("POST", "/v1/embeddings", r#"{"input":"Hello"}"#);
        assert_eq!(status, 200, "{answer}");
        answer["model"].clone()
    };
    wait_until_failed(true);
    assert_eq!(embedder(), "a");
    put(folder.path(), "embed.gguf", &whole);
    let listed = wait_until_failed(false);
    assert!(listed["status"].get("reason").is_none(), "{listed}");
    assert_eq!(embedder(), "embed");
    server.end();
}
