//! Servers that do wrong: the file ends whole and checked, or the message says what is the matter and nothing looks whole.

use std::{fs, time::Duration};

use tokenmill_hub::{HubError, HubSettings, PullWishes, pull};

use crate::{
    server::{FakeHub, Fault, NAME, Request, etag, noise},
    transfers::pull_from,
};

fn hub() -> (FakeHub, Vec<u8>) {
    let bytes = noise(300_000, 1);
    (FakeHub::with(&[("m-Q8_0.gguf", bytes.clone())]), bytes)
}

/// A fault at the first so many requests for bytes; the file ends whole.
#[track_caller]
fn passes(n_requests: usize, fault: &Fault) {
    let (hub, bytes) = hub();
    hub.at_first_bytes(n_requests, fault.clone());
    let model = pull_from(&hub, NAME).unwrap_or_else(|error| panic!("{fault:?}: {error}"));
    assert_eq!(fs::read(model.path).unwrap(), bytes, "{fault:?}");
    assert_eq!(hub.blobs(), [etag(&bytes)].into(), "{fault:?}");
}

/// A fault at every request that `is_meant`; the message has `text`, and nothing looks whole.
#[track_caller]
fn fails(is_meant: fn(&Request) -> bool, fault: &Fault, text: &str) {
    let (hub, _) = hub();
    let given = fault.clone();
    hub.on(move |request| is_meant(request).then(|| given.clone()));
    // As a mirror behind a password is named.
    let mut settings = hub.settings();
    settings.endpoint = settings.endpoint.replace("://", "://user:secret@");
    let error = pull(&NAME.parse().unwrap(), &PullWishes::default(), &settings, &())
        .expect_err("a fault that stays is an error")
        .to_string();
    assert!(error.contains(text), "{fault:?}: {error}");
    assert!(
        !error.contains("user") && !error.contains("secret"),
        "{fault:?}: {error}"
    );
    assert!(hub.shows_nothing(), "{fault:?}: {:?}", hub.blobs());
}

#[test]
fn faults_that_pass_end_in_a_whole_file() {
    passes(4, &Fault::Cut(10_000));
    passes(3, &Fault::Cut(0));
    passes(3, &Fault::Status(503, ""));
    passes(3, &Fault::Status(429, "Retry-After: 0\r\n"));
    passes(2, &Fault::Status(500, ""));
    passes(2, &Fault::Noise);
}

#[test]
fn faults_that_stay_are_told() {
    let at_bytes: fn(&Request) -> bool = Request::is_for_bytes;
    let at_list: fn(&Request) -> bool = |request| request.path.starts_with("/api/models/");
    fails(at_bytes, &Fault::Cut(100), "the connection ended too early");
    fails(
        at_bytes,
        &Fault::Status(502, ""),
        "failed with status 502, 6 times",
    );
    fails(at_bytes, &Fault::Status(416, ""), "was changed on the server");
    fails(at_bytes, &Fault::Status(403, ""), "was refused with status 403");
    fails(at_bytes, &Fault::LongerBy(5), "was changed on the server");
    fails(at_bytes, &Fault::OtherPart, "not the requested part of the file");
    fails(at_bytes, &Fault::OtherBytes, "arrived damaged");
    fails(
        at_bytes,
        &Fault::Status(429, "Retry-After: 4000\r\n"),
        "no more requests for 4000 seconds",
    );
    fails(
        at_bytes,
        &Fault::Redirect("file:///etc/passwd"),
        "not a web address",
    );
    fails(
        at_bytes,
        &Fault::Redirect("/far/m-Q8_0.gguf"),
        "more than 10 redirects",
    );
    fails(
        at_list,
        &Fault::Status(500, ""),
        "failed with status 500, 4 times",
    );
    fails(at_list, &Fault::Status(401, ""), "or it is private");
    // The list came, so the repository is there.
    let at_file: fn(&Request) -> bool = |request| request.path.contains("/resolve/");
    fails(at_file, &Fault::Status(401, ""), "was refused with status 401");
    fails(at_file, &Fault::Status(404, ""), "was refused with status 404");
    fails(
        at_list,
        &Fault::Status(403, "X-Error-Code: GatedRepo\r\nX-Error-Message: ask first\r\n"),
        "ask first",
    );
    fails(
        at_list,
        &Fault::Status(403, "X-Error-Message: no\r\n"),
        "status 403: no",
    );
    fails(at_list, &Fault::Cut(10), "cannot be reached");
    fails(at_list, &Fault::Noise, "not HTTP");
}

#[test]
fn a_file_that_changes_midway_is_downloaded_again_from_its_beginning() {
    for n_bytes in [280_000, 300_000, 320_000] {
        let (hub, _) = hub();
        let newer = noise(n_bytes, 2);
        let given = newer.clone();
        let mut n_asked = 0;
        hub.on(move |request| {
            n_asked += usize::from(request.is_for_bytes());
            (n_asked == 3).then(|| Fault::Replace("m-Q8_0.gguf", given.clone()))
        });
        let mut settings = hub.settings();
        settings.n_connections = 1;
        let model = pull(&NAME.parse().unwrap(), &PullWishes::default(), &settings, &()).unwrap();
        assert_eq!(fs::read(model.path).unwrap(), newer, "{n_bytes} bytes");
        assert_eq!(hub.blobs(), [etag(&newer)].into());
    }
}

#[test]
fn an_address_that_ends_is_asked_for_again() {
    let (hub, bytes) = hub();
    let mut n_asked = 0;
    hub.on(move |request| {
        n_asked += usize::from(request.is_for_bytes());
        (request.is_for_bytes() && n_asked == 3).then_some(Fault::Status(403, ""))
    });
    let mut settings = hub.settings();
    settings.n_connections = 1;
    let model = pull(&NAME.parse().unwrap(), &PullWishes::default(), &settings, &()).unwrap();
    assert_eq!(fs::read(model.path).unwrap(), bytes);
    let n_redirects = hub
        .requests()
        .iter()
        .filter(|request| request.path.contains("/resolve/"))
        .count();
    assert_eq!(n_redirects, 2);
}

#[test]
fn a_token_that_is_not_accepted_is_told() {
    let (hub, _) = hub();
    hub.needs_token("right");
    let mut settings = hub.settings();
    settings.token = tokenmill_hub::HubToken::new("wrong");
    let error = pull(&NAME.parse().unwrap(), &PullWishes::default(), &settings, &()).unwrap_err();
    assert!(matches!(error, HubError::BadToken { .. }), "{error}");
    let text = error.to_string();
    assert!(text.ends_with("does not accept the access token"), "{text}");
}

#[test]
fn a_server_that_falls_silent_is_not_waited_for() {
    let (hub, bytes) = hub();
    hub.at_first_bytes(1, Fault::Silent(Duration::from_secs(3)));
    let mut settings = hub.settings();
    settings.patience = Duration::from_millis(300);
    let began = std::time::Instant::now();
    let model = pull(&NAME.parse().unwrap(), &PullWishes::default(), &settings, &()).unwrap();
    assert_eq!(fs::read(model.path).unwrap(), bytes);
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

#[test]
fn no_network_is_told_with_the_host() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = HubSettings::with_cache(folder.path());
    settings.retry_pause = Duration::from_millis(1);
    // A port that was free a moment ago.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    settings.endpoint = format!("http://{address}");
    let error = pull(&NAME.parse().unwrap(), &PullWishes::default(), &settings, &())
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with(&format!("{address} cannot be reached: ")),
        "{error}"
    );
    settings.is_offline = true;
    let error = pull(&NAME.parse().unwrap(), &PullWishes::default(), &settings, &())
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "`org/model-GGUF` is not in the cache, and downloads are switched off"
    );
}

#[test]
fn what_an_earlier_download_left_is_not_trusted() {
    let (hub, bytes) = hub();
    hub.at_first_bytes(1, Fault::Status(403, ""));
    let mut settings = hub.settings();
    settings.n_connections = 1;
    let pull = || pull(&NAME.parse().unwrap(), &PullWishes::default(), &settings, &());
    assert!(pull().is_err());
    // Parts that are said to be there whose bytes are not: the hash finds it, and all is downloaded again.
    let path = hub.cache.path().join("models--org--model-GGUF/blobs");
    let path = path.join(format!("{}.tokenmill.incomplete", etag(&bytes)));
    let mut left = fs::read(&path).unwrap();
    let table = left.len() - 5 * 8;
    for (part, count) in left[table..].chunks_exact_mut(8).enumerate() {
        let n_bytes = (300_000 - part * (64 << 10)).min(64 << 10) as u64;
        count.copy_from_slice(&n_bytes.to_le_bytes());
    }
    fs::write(&path, left).unwrap();
    assert_eq!(fs::read(pull().unwrap().path).unwrap(), bytes);
}

#[test]
fn what_arrived_of_a_part_is_not_asked_for_again() {
    let (hub, bytes) = hub();
    let mut settings = hub.settings();
    settings.n_connections = 1;
    let name = NAME.parse().unwrap();
    let plan = || tokenmill_hub::plan(&name, &PullWishes::default(), &settings, &()).unwrap();
    // Less than a part arrives in as many attempts as are made.
    hub.on(|request| request.is_for_bytes().then_some(Fault::Cut(9_000)));
    plan().fetch(&settings, &()).unwrap_err();
    let n_kept = 6 * 9_000;
    assert_eq!(plan().missing_bytes, 300_000 - n_kept);
    hub.on(|_| None);
    let n_before = hub.requests().len();
    assert_eq!(
        fs::read(plan().fetch(&settings, &()).unwrap().path).unwrap(),
        bytes
    );
    let requests = hub.requests();
    let mut asked = (requests[n_before..].iter()).filter_map(|request| request.headers.get("range"));
    assert!(
        asked.any(|range| *range == format!("bytes={n_kept}-65535")),
        "{requests:?}"
    );
}

#[test]
#[cfg(unix)]
fn a_cache_that_cannot_be_written_is_told() {
    let (hub, _) = hub();
    let mut settings = hub.settings();
    let file = hub.cache.path().join("file");
    fs::write(&file, "").unwrap();
    settings.cache = file.join("below");
    let error = pull(&NAME.parse().unwrap(), &PullWishes::default(), &settings, &()).unwrap_err();
    assert!(matches!(error, HubError::File { .. }), "{error}");
}
