//! Slots: conversations saved to files, restored by another server, and erased.

use std::{fs, path::Path};

use serde_json::{Value, json};
use tokenmill_server::{ApiKeys, ServerConfig, SessionFolder};

use crate::{
    server::{Setup, TestServer},
    wire::{Exchange, Reply},
};

const STORY: &str = "Once upon a time there was a little girl who lived in a small house near the forest with her mother \
                     and her brother, and every morning she went to the well";

fn setup(folder: &Path, max_bytes: u64, keys: &str) -> Setup {
    Setup {
        server: ServerConfig {
            sessions: Some(SessionFolder {
                path: folder.to_owned(),
                max_bytes,
            }),
            api_keys: ApiKeys::from_lines(keys),
            ..ServerConfig::default()
        },
        ..Setup::default()
    }
}

async fn complete(server: &TestServer, prompt: &str, slot: i32) -> Value {
    let body = json!({ "prompt": prompt, "n_predict": 40, "temperature": 0, "id_slot": slot });
    server.post_ok("/completion", &body).await
}

async fn act(server: &TestServer, slot: usize, action: &str, name: &str) -> Reply {
    let path = format!("/slots/{slot}?action={action}");
    server.post(&path, &json!({ "filename": name })).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_is_noted_in_the_slot_that_it_asks_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(server) = TestServer::start_with(setup(folder.path(), 1 << 30, "")).await else {
        return;
    };
    let chat = |slot: i32| json!({ "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 8, "id_slot": slot });
    server.post_ok("/v1/chat/completions", &chat(2)).await;
    let text = json!({ "prompt": STORY, "max_tokens": 4, "id_slot": 4 });
    server.post_ok("/v1/completions", &text).await;
    for (slot, status) in [(2, 200), (4, 200), (3, 400)] {
        assert_eq!(
            act(&server, slot, "save", "talk.bin").await.status,
            status,
            "slot {slot}"
        );
    }
    // As in llama.cpp, -1 and a number that there is not leave the choice to the server.
    for slot in [-1, 1_000_000] {
        server.post_ok("/v1/chat/completions", &chat(slot)).await;
    }
    // A slot is busy while its chat runs.
    let mut long = chat(5);
    long["max_tokens"] = json!(400);
    long["ignore_eos"] = json!(true);
    long["stream"] = json!(true);
    // A busy machine may ask only when the chat has ended.
    let mut busy = Vec::new();
    for _ in 0..50 {
        let stream = server.post_stream("/v1/chat/completions", &long).await;
        let slots = server.get("/slots").await.json();
        drop(stream);
        busy = (slots.as_array().expect("a list").iter())
            .filter(|slot| slot["is_processing"] == true)
            .map(|slot| slot["id"].clone())
            .collect();
        if !busy.is_empty() {
            break;
        }
    }
    assert_eq!(busy, [json!(5)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_goes_on_in_another_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(first) = TestServer::start_with(setup(folder.path(), 1 << 30, "")).await else {
        return;
    };
    let begun = complete(&first, STORY, 3).await;
    assert_eq!(
        (&begun["id_slot"], &begun["tokens_cached"]),
        (&json!(3), &json!(0))
    );
    let n_tokens = begun["tokens_evaluated"].as_u64().expect("a count") + 40;
    let saved = act(&first, 3, "save", "story.bin").await.json();
    let n_bytes = fs::metadata(folder.path().join("story.bin"))
        .expect("a file")
        .len();
    assert_eq!(
        (
            &saved["id_slot"],
            &saved["filename"],
            &saved["n_saved"],
            &saved["n_written"]
        ),
        (&json!(3), &json!("story.bin"), &json!(n_tokens), &json!(n_bytes))
    );
    assert!(saved["timings"]["save_ms"].is_number());
    let longer = format!(
        "{STORY}{} The next day",
        begun["content"].as_str().expect("a text")
    );
    let expected = complete(&first, &longer, -1).await;
    assert_eq!(expected["id_slot"], 3, "it continues what ran there");

    let second = TestServer::start_with(setup(folder.path(), 1 << 30, ""))
        .await
        .expect("the demo model");
    let restored = act(&second, 5, "restore", "story.bin").await.json();
    assert_eq!(
        (&restored["id_slot"], &restored["n_restored"], &restored["n_read"]),
        (&json!(5), &json!(n_tokens), &json!(n_bytes))
    );
    assert!(restored["timings"]["restore_ms"].is_number());
    let resumed = complete(&second, &longer, -1).await;
    assert_eq!(resumed["content"], expected["content"]);
    assert_eq!(resumed["id_slot"], 5);
    let n_cached = resumed["tokens_cached"].as_u64().expect("a count");
    assert!(
        n_cached + 17 > n_tokens && n_cached > 48,
        "{n_cached} of {n_tokens}"
    );

    let erased = act(&second, 5, "erase", "").await.json();
    assert_eq!(erased["id_slot"], 5);
    assert!(erased["n_erased"].as_u64() > Some(n_tokens), "{erased}");
    assert_eq!(complete(&second, &longer, -1).await["tokens_cached"], 0);
    second.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_saved_or_restored_is_refused_with_a_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(server) = TestServer::start_with(setup(folder.path(), 150_000, "")).await else {
        return;
    };
    let check = async |slot: usize, action: &str, name: &str, status: u16, reason: &str| {
        let reply = act(&server, slot, action, name).await;
        assert_eq!(reply.status, status, "{}", reply.text());
        let error = reply.json();
        let message = error["error"]["message"].as_str().expect("a message");
        assert!(message.contains(reason), "{message}");
    };
    check(0, "save", "a", 400, "nothing has run").await;
    complete(&server, "One day", 0).await;
    act(&server, 0, "save", "a").await.json();
    let whole = fs::read(folder.path().join("a")).expect("a file");
    for name in ["../a", "a/b", "", ".", "..", "/tmp/a"] {
        check(0, "save", name, 400, "expected a name").await;
        check(0, "restore", name, 400, "expected a name").await;
    }
    check(9999, "save", "a", 400, "no such slot").await;
    check(0, "swap", "a", 400, "expected `save`").await;
    check(0, "restore", "b", 400, "no such file").await;
    fs::write(folder.path().join("b"), b"something else").expect("a file");
    check(0, "restore", "b", 400, "not a session of this program").await;
    fs::write(folder.path().join("b"), &whole[..whole.len() - 1]).expect("a file");
    check(0, "restore", "b", 400, "it was cut").await;
    // A name that is taken by the last save is free for the next, and a full folder loses nothing.
    act(&server, 0, "save", "a").await.json();
    complete(&server, &STORY.repeat(6), 0).await;
    check(0, "save", "a", 507, "the folder may hold 150000").await;
    assert_eq!(fs::read(folder.path().join("a")).expect("a file"), whole);
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2);

    let without = TestServer::start().await.expect("the demo model");
    let refused = act(&without, 0, "save", "a").await;
    assert_eq!(refused.status, 501);
    assert!(refused.text().contains("--session-dir"), "{}", refused.text());
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_told_and_the_older_file_stays() {
    let Some(disk) = tokenmill_testkit::SmallDisk::mount(2 << 20) else {
        return;
    };
    let Some(server) = TestServer::start_with(setup(disk.path(), 1 << 30, "")).await else {
        return;
    };
    complete(&server, STORY, 0).await;
    let saved = act(&server, 0, "save", "a").await.json();
    let whole = fs::read(disk.path().join("a")).expect("a file");
    let longer = complete(&server, &STORY.repeat(2), 0).await;
    let filler = disk.fill();
    // Over the older file, and under a name of its own.
    for name in ["a", "b"] {
        let refused = act(&server, 0, "save", name).await;
        assert_eq!(refused.status, 507, "{}", refused.text());
        let error = &refused.json()["error"];
        assert_eq!(error["code"], "storage_full");
        let message = error["message"].as_str().expect("a message");
        assert!(
            message.contains("the disk is full") && !message.contains('\n'),
            "{message}"
        );
        assert_eq!(disk.names(), ["a", "filler"], "nothing half-written is left");
        assert_eq!(fs::read(disk.path().join("a")).expect("a file"), whole);
    }
    let restored = act(&server, 1, "restore", "a").await.json();
    assert_eq!(restored["n_restored"], saved["n_saved"], "{restored}");
    fs::remove_file(filler).expect("the filler");
    let saved = act(&server, 0, "save", "a").await.json();
    let n_tokens = longer["tokens_evaluated"].as_u64().expect("a count")
        + longer["tokens_cached"].as_u64().expect("a count");
    assert!(saved["n_saved"].as_u64() >= Some(n_tokens), "{saved} of {longer}");
    let restored = act(&server, 1, "restore", "a").await.json();
    assert_eq!(restored["n_restored"], saved["n_saved"]);
    server.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_belongs_to_its_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(server) = TestServer::start_with(setup(folder.path(), 1 << 30, "alpha\nbeta")).await else {
        return;
    };
    let post = async |key: &str, path: &str, body: Value| {
        let key = format!("Bearer {key}");
        let headers = [
            ("authorization", key.as_str()),
            ("content-type", "application/json"),
        ];
        let exchange = Exchange::send(
            &server.address,
            "POST",
            path,
            &headers,
            body.to_string().as_bytes(),
        )
        .await;
        exchange.reply().await
    };
    let prompt = json!({ "prompt": STORY, "n_predict": 8, "temperature": 0, "id_slot": 1 });
    assert_eq!(post("alpha", "/completion", prompt.clone()).await.status, 200);
    let file = json!({ "filename": "a" });
    assert_eq!(
        post("beta", "/slots/1?action=save", file.clone()).await.status,
        400
    );
    assert_eq!(
        post("alpha", "/slots/1?action=save", file.clone()).await.status,
        200
    );
    // Nothing tells a file of another key from none, but that a name is taken.
    for (action, text) in [
        ("restore", "there is no such file"),
        ("save", "exists and is not a session"),
    ] {
        let path = format!("/slots/1?action={action}");
        post("beta", "/completion", prompt.clone()).await;
        let refused = post("beta", &path, file.clone()).await;
        assert!(refused.text().contains(text), "{action}: {}", refused.text());
    }
    assert_eq!(
        post("alpha", "/slots/1?action=restore", file.clone())
            .await
            .status,
        200
    );
    let none = Exchange::send(&server.address, "POST", "/slots/1?action=restore", &[], b"{}").await;
    assert_eq!(none.reply().await.status, 401);
}
