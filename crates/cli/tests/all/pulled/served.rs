//! Downloads by a server: at its start, and for its clients where they may change the folder of models.

use std::{
    fs,
    io::Write as _,
    net::{TcpListener, TcpStream},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    server::Server,
    support::{DEMO_GGUF, Outcome, arg, command},
};

use super::hub::{COMMIT, FILE, Hub, NAME, answer, path_asked};

#[test]
fn serve_downloads_a_model_where_that_is_allowed() {
    let hub = Hub::start(None, None);
    let offline = Path::new("0");
    let variables = [
        ("HF_HUB_OFFLINE", offline),
        ("HF_HUB_CACHE", hub.cache.path()),
        ("HF_HOME", hub.cache.path()),
        ("HF_ENDPOINT", Path::new(&hub.url)),
    ];
    // Without a yes nothing is.
    let mut refused = command(["serve", NAME, "--port", "0"]);
    let line = Outcome::of(&refused.envs(variables).output().unwrap()).error_line(3);
    assert!(
        line.contains("`org/demo-GGUF:Q8_0` is not on this machine") && line.contains("`--yes` downloads it"),
        "{line}"
    );
    assert!(!hub.asked_for_bytes());
    let snapshot = (hub.cache.path()).join(format!("models--org--demo-GGUF/snapshots/{COMMIT}/{FILE}"));
    assert!(!snapshot.exists());
    // Once it is here, no server is asked.
    for extra in [&["--yes"][..], &["--offline"]] {
        let n_asked = hub.asked.lock().unwrap().len();
        let server = Server::start_in(&variables, &[&[NAME, "-c", "64"][..], extra].concat());
        assert!(fs::read(&snapshot).unwrap() == DEMO_GGUF, "{}", arg(&snapshot));
        let name = server.states()[0].0.clone();
        assert!(name.starts_with(NAME), "{name}");
        let (status, answer) = server.complete(&name);
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["usage"]["completion_tokens"], 3, "{answer}");
        server.end();
        let is_asked = hub.asked.lock().unwrap().len() > n_asked;
        assert_eq!(is_asked, extra == ["--yes"]);
    }
}

#[test]
fn an_empty_folder_that_clients_may_fill_is_served() {
    let hub = Hub::start(None, None);
    let folder = tempfile::tempdir().unwrap();
    let server = manager(folder.path(), hub.cache.path(), &hub.url, &[]);
    let nameless = json!({ "prompt": "Once", "max_tokens": 3 }).to_string();
    let check_none = || {
        let (status, answer) = server.ask("POST", "/v1/completions", &nameless);
        assert_eq!(status, 404, "{answer}");
        assert_eq!(
            answer["error"]["message"],
            "no model is served; `/api/pull` downloads one"
        );
        let (status, answer) = server.complete("other");
        assert_eq!(status, 404, "{answer}");
        assert!(server.states().is_empty());
        assert_eq!(server.ask("GET", "/health", "").0, 200);
    };
    check_none();
    let of = json!({ "model": NAME, "stream": false }).to_string();
    let (status, answer) = server.ask("POST", "/api/pull", &of);
    assert_eq!(status, 200, "{answer}");
    let (status, answer) = server.ask("POST", "/v1/completions", &nameless);
    assert_eq!(status, 200, "{answer}");
    let listed = json!({ "model": "org/demo-GGUF:Q8_0" }).to_string();
    assert_eq!(server.ask_text("DELETE", "/api/delete", &listed).0, 200);
    // The model is unloaded once its request has ended.
    let begun = Instant::now();
    while server.ask("POST", "/v1/completions", &nameless).0 != 404 {
        assert!(begun.elapsed() < Duration::from_mins(1), "it stays");
        thread::sleep(Duration::from_millis(50));
    }
    check_none();
    server.end();
}

#[test]
fn clients_of_ollama_pull_and_delete_where_that_is_allowed() {
    let hub = Hub::start(None, None);
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("own.gguf");
    for path in [&own, &folder.path().join("other:q8.gguf")] {
        fs::write(path, DEMO_GGUF).unwrap();
    }
    let variables = [
        ("HF_HUB_OFFLINE", Path::new("0")),
        ("HF_HUB_CACHE", hub.cache.path()),
        ("HF_HOME", hub.cache.path()),
        ("HF_ENDPOINT", Path::new(&hub.url)),
        ("OLLAMA_REGISTRY", Path::new(&hub.url)),
    ];
    let args = ["demo", "-c", "64", "--models-dir", arg(folder.path())];
    let of = |name: &str| json!({ "model": name }).to_string();
    // By default no request may.
    let server = Server::start_in(&variables, &args);
    assert_eq!(server.ask("POST", "/api/pull", &of(NAME)).0, 501);
    assert_eq!(server.ask("DELETE", "/api/delete", &of("own")).0, 501);
    server.end();
    assert!(own.exists() && !hub.asked_for_bytes());

    let server = Server::start_in(&variables, &[&args[..], &["--manage-models"]].concat());
    let (status, body) = server.ask_text("POST", "/api/pull", &of(NAME));
    assert_eq!(status, 200, "{body}");
    // The body comes in chunks, each a line.
    let lines: Vec<Value> = (body.lines())
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter(Value::is_object)
        .collect();
    assert_eq!(lines.first().unwrap()["status"], "pulling manifest", "{body}");
    assert_eq!(lines.last().unwrap()["status"], "success", "{body}");
    let total = DEMO_GGUF.len();
    assert!(
        (lines.iter())
            .any(|line| line["total"] == total && line["completed"] == total && line["digest"].is_string()),
        "{body}"
    );
    // Another user's cache has nothing of it.
    assert!(!hub.cache.path().join("models--org--demo-GGUF").exists());
    let name = "org/demo-GGUF:Q8_0";
    for asked in [name, NAME] {
        let (status, answer) = server.complete(asked);
        assert_eq!((status, &answer["model"]), (200, &json!(name)), "{answer}");
    }
    let (_, shown) = server.ask("POST", "/api/show", &of("demo"));
    let license = json!("MIT OR Apache-2.0");
    assert_eq!(
        (&shown["license"], &shown["model_info"]["general.license"]),
        (&license, &license)
    );
    // A file has the name of another model.
    let (status, answer) = server.ask("POST", "/api/pull", &of("other:q8"));
    assert_eq!(status, 400, "{answer}");
    assert!(answer.to_string().contains("rename the file"), "{answer}");
    for served in ["own", "demo", name] {
        let (status, body) = server.ask_text("POST", "/api/pull", &of(served));
        assert!(status == 200 && body.contains("success"), "{served}: {body}");
    }
    let renamed = folder.path().join("third.gguf");
    fs::rename(folder.path().join("other:q8.gguf"), renamed).unwrap();
    let begun = Instant::now();
    loop {
        // The name means the registry's model from then on, which is not on this hub.
        let (_, answer) = server.ask_text("POST", "/api/pull", &of("other:q8"));
        if !answer.contains("rename the file") {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "{answer}");
        thread::sleep(Duration::from_millis(100));
    }
    let long = "x".repeat(1000);
    assert_eq!(server.ask("POST", "/api/pull", &of(&long)).0, 400);
    let whole = json!({ "model": "org/none", "stream": false }).to_string();
    let (status, answer) = server.ask("POST", "/api/pull", &whole);
    assert_eq!(status, 400, "{answer}");
    assert!(!answer.to_string().contains(arg(folder.path())), "{answer}");

    for (model, expected) in [
        ("demo", 400),
        ("none", 404),
        (NAME, 400),
        (name, 200),
        ("own:latest", 200),
    ] {
        let (status, answer) = server.ask_text("DELETE", "/api/delete", &of(model));
        assert_eq!(status, expected, "{model}: {answer}");
    }
    assert!(!own.exists());
    // A download that broke off has no model, but files.
    let half = folder.path().join(".hub/models--org--half-GGUF");
    fs::create_dir_all(half.join("blobs")).unwrap();
    fs::write(half.join("blobs/x.tokenmill.incomplete"), "a part").unwrap();
    for expected in [200, 404] {
        let (status, answer) = server.ask_text("DELETE", "/api/delete", &of("org/half-GGUF:Q8_0"));
        assert_eq!(status, expected, "{answer}");
        assert!(!half.exists());
    }
    let blobs = folder.path().join(".hub/models--org--demo-GGUF/blobs");
    assert!(fs::read_dir(blobs).map_or(0, Iterator::count) == 0);
    // One that is loaded goes once no request runs on it.
    let begun = Instant::now();
    for gone in [name, "own"] {
        while server.complete(gone).0 != 404 {
            assert!(begun.elapsed() < Duration::from_secs(10), "{gone}");
            thread::sleep(Duration::from_millis(50));
        }
    }
    assert_eq!(server.complete("demo").0, 200);
    server.end();
}

#[test]
fn a_download_that_fails_is_the_servers_failure_and_a_wrong_name_the_clients() {
    let hub = Hub::start(None, Some((403, "")));
    let folder = tempfile::tempdir().unwrap();
    let server = manager(
        folder.path(),
        hub.cache.path(),
        &hub.url,
        &["demo", "--dry-base", "2"],
    );
    for (name, expected) in [(NAME, 500), ("org/demo-GGUF:Q9_9", 400), ("a b", 400)] {
        let whole = json!({ "model": name, "stream": false }).to_string();
        let (status, answer) = server.ask("POST", "/api/pull", &whole);
        assert_eq!(status, expected, "{name}: {answer}");
        let text = answer["error"].as_str().expect("a text");
        assert!(!text.starts_with("internal error"), "{answer}");
        let (status, lines) = server.ask_text("POST", "/api/pull", &json!({ "model": name }).to_string());
        assert!(status == 200 && lines.contains("\"error\":"), "{name}: {lines}");
    }
    // The name that was asked for removes the parts that the failed download left.
    assert_eq!(
        server
            .ask_text("DELETE", "/api/delete", &json!({ "model": NAME }).to_string())
            .0,
        200
    );
    assert!(!folder.path().join(".hub/models--org--demo-GGUF").exists());
    server.end();
}

/// Starts a server whose clients may change a folder of models, from the hub at `url`, with more arguments.
fn manager(folder: &Path, home: &Path, url: &str, more: &[&str]) -> Server {
    let variables = [
        ("HF_HUB_OFFLINE", Path::new("0")),
        ("HF_HOME", home),
        ("HF_ENDPOINT", Path::new(url)),
    ];
    let args = ["--models-dir", arg(folder), "--manage-models", "-c", "64"];
    Server::start_in(&variables, &[more, &args].concat())
}

#[test]
fn a_model_for_which_the_disk_has_no_room_is_told_with_its_own_status() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    thread::spawn(move || {
        for stream in listener.incoming().filter_map(Result::ok) {
            let Some(path) = path_asked(&stream) else { continue };
            let own = answer(&path, None, None, None);
            let _unread = (&stream).write_all(&of_largest_file(own));
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let server = manager(folder.path(), folder.path(), &url, &["demo"]);
    let whole = json!({ "model": "org/demo-GGUF:Q8_0", "stream": false }).to_string();
    let (status, answer) = server.ask("POST", "/api/pull", &whole);
    assert_eq!(status, 507, "{answer}");
    assert!(answer.to_string().contains("bytes, and"), "{answer}");
    server.end();
}

/// Writes into a list that its file is larger than any disk.
fn of_largest_file(answer: Vec<u8>) -> Vec<u8> {
    let size = format!("\"size\":{}", DEMO_GGUF.len());
    let Ok(text) = String::from_utf8(answer.clone()) else {
        return answer;
    };
    let Some((head, body)) = text
        .split_once("\r\n\r\n")
        .filter(|(_, body)| body.contains(&size))
    else {
        return answer;
    };
    let longer = body.replace(&size, &format!("\"size\":{}", 1_u64 << 50));
    let lengths = [body, &longer].map(|body| format!("Content-Length: {}", body.len()));
    format!("{}\r\n\r\n{longer}", head.replace(&lengths[0], &lengths[1])).into_bytes()
}

#[test]
fn nothing_is_removed_of_a_download_that_runs() {
    // A hub that sends half of the file, and the rest byte by byte.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    thread::spawn(move || {
        for mut stream in listener.incoming().filter_map(Result::ok) {
            let Some(path) = path_asked(&stream) else { continue };
            let answer = answer(&path, None, None, None);
            let is_file = path.contains("/resolve/");
            let n_slow = if is_file { DEMO_GGUF.len() / 2 } else { 0 };
            thread::spawn(move || {
                let (at_once, slow) = answer.split_at(answer.len() - n_slow);
                let _unread = stream.write_all(at_once);
                for byte in slow {
                    thread::sleep(Duration::from_millis(50));
                    if stream.write_all(&[*byte]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let server = manager(folder.path(), folder.path(), &url, &["demo"]);
    let of = json!({ "model": NAME }).to_string();
    let mut pull = TcpStream::connect(server.address()).unwrap();
    let length = of.len();
    write!(
        pull,
        "POST /api/pull HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{of}"
    )
    .unwrap();
    let blobs = folder.path().join(".hub/models--org--demo-GGUF/blobs");
    let begun = Instant::now();
    while fs::read_dir(&blobs).map_or(0, Iterator::count) == 0 {
        assert!(begun.elapsed() < Duration::from_mins(1), "nothing arrives");
        thread::sleep(Duration::from_millis(20));
    }
    let (status, answer) = server.ask("DELETE", "/api/delete", &of);
    assert_eq!(status, 409, "{answer}");
    assert!(
        answer.to_string().contains("a download of this model"),
        "{answer}"
    );
    drop(pull);
    // The download ends without its client, and what it left can be removed.
    while server.ask_text("DELETE", "/api/delete", &of).0 != 200 {
        assert!(begun.elapsed() < Duration::from_mins(1), "it never ends");
        thread::sleep(Duration::from_millis(100));
    }
    assert!(!blobs.exists());
    server.end();
}
