//! Models by name, from a server on loopback: the message for each of its refusals, and downloads where they
//! are allowed.

mod hub;
mod served;

use std::{
    fs,
    io::Write as _,
    net::TcpListener,
    os::unix::fs::MetadataExt,
    path::Path,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use crate::{
    mtp::write_layer_alone,
    pty::{Pty, skip},
    support::{DEMO_GGUF, Outcome, arg, command, end_of, interrupt},
};

use hub::{COMMIT, Hub, LAYER_FILE, NAME, answer, path_asked};

/// A shell line that starts the program where a hub can be asked.
fn with_hub(hub: &Hub, args: &str) -> String {
    let (cache, url) = (arg(hub.cache.path()), &hub.url);
    format!("HF_HUB_OFFLINE=0 HF_HUB_CACHE={cache} HF_HOME={cache} HF_ENDPOINT={url} tokenmill {args}")
}

#[test]
fn a_pull_of_what_is_here_shows_no_speed() {
    let hub = Hub::start(None, None);
    hub.pull("").ok();
    let Some(pty) = Pty::start(200, &with_hub(&hub, &format!("pull {NAME}"))) else {
        return skip();
    };
    let shown = pty.end();
    assert!(shown.contains("nothing is missing"), "{shown}");
    assert!(!shown.contains("B/s"), "{shown}");
}

#[test]
fn a_no_to_a_download_is_not_told_how_to_say_yes() {
    let hub = Hub::start(None, None);
    let line = format!("{}; echo code=$?", with_hub(&hub, &format!("run {NAME} Hi")));
    let Some(mut pty) = Pty::start(200, &line) else {
        return skip();
    };
    pty.wait_for("[y/N] ");
    pty.type_in("n\n");
    let shown = pty.end();
    assert!(
        shown.contains("was not downloaded") && shown.contains("code=3"),
        "{shown}"
    );
    assert!(!shown.contains("--yes"), "{shown}");
    assert!(!hub.asked_for_bytes());
}

#[test]
fn an_interrupted_download_says_what_is_kept() {
    // A hub that sends half of the file, and then nothing.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    thread::spawn(move || {
        let mut open = Vec::new();
        for stream in listener.incoming().filter_map(Result::ok) {
            let Some(path) = path_asked(&stream) else { continue };
            let mut answer = answer(&path, None, None, None);
            if path.contains("/resolve/") {
                answer.truncate(answer.len() - DEMO_GGUF.len() / 2);
                let _unread = (&stream).write_all(&answer);
                open.push(stream);
            } else {
                let _unread = (&stream).write_all(&answer);
            }
        }
    });
    let cache = tempfile::tempdir().expect("a folder");
    let mut pull = command(["pull", NAME])
        .env("HF_HUB_OFFLINE", "0")
        .env("HF_HUB_CACHE", cache.path())
        .env("HF_HOME", cache.path())
        .env("HF_ENDPOINT", &url)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let blobs = cache.path().join("models--org--demo-GGUF/blobs");
    // The file has its whole length from the beginning, so its blocks on the disk say what has come.
    let has_some = || {
        let files = fs::read_dir(&blobs).into_iter().flatten().flatten();
        files
            .filter_map(|file| file.metadata().ok())
            .any(|file| MetadataExt::blocks(&file) > 0)
    };
    let begun = Instant::now();
    while !has_some() {
        assert!(begun.elapsed() < Duration::from_mins(1), "nothing arrives");
        assert!(
            pull.try_wait().expect("it can be asked").is_none(),
            "it has ended"
        );
        thread::sleep(Duration::from_millis(20));
    }
    // The last piece is counted after it is written.
    thread::sleep(Duration::from_millis(300));
    interrupt(&pull);
    let outcome = end_of(pull);
    assert_eq!(outcome.code, 130, "{}", outcome.stderr);
    let line = outcome.stderr.lines().find(|line| line.contains("are kept"));
    let line = line.unwrap_or_else(|| panic!("{}", outcome.stderr));
    assert!(
        line.ends_with(" are kept; the next pull continues there"),
        "{line}"
    );
    assert!(line.contains(" of 3."), "{line}");
}

#[test]
fn each_refusal_says_what_to_do() {
    const REPOSITORY: &str = "X-Error-Code: RepoNotFound\r\n";
    const GATED: &str = "X-Error-Code: GatedRepo\r\n";
    // Longer than anyone waits, so that it is told at once.
    const LATER: &str = "Retry-After: 300\r\n";
    let mut lines = Vec::new();
    for (refusal, token, code) in [
        ((401, REPOSITORY), "", 3),
        ((401, "X-Error-Message: expired\r\n"), "hf_x", 3),
        ((401, GATED), "", 3),
        ((403, GATED), "hf_x", 3),
        ((403, ""), "", 1),
        ((404, REPOSITORY), "", 3),
        ((404, "X-Error-Code: RevisionNotFound\r\n"), "", 3),
        ((429, LATER), "", 1),
    ] {
        let hub = Hub::start(Some(refusal), None);
        let line = hub.pull(token).failed(code);
        lines.push(format!("{} {line}", refusal.0).replace(&hub.url, "http://HUB"));
        assert!(!hub.asked_for_bytes() && !line.contains("hf_x"), "{line}");
        assert!(!hub.cache.path().join("models--org--demo-GGUF/snapshots").exists());
    }
    for (refusal, code) in [((403, ""), 1), ((404, ""), 1), ((429, LATER), 1)] {
        let hub = Hub::start(None, Some(refusal));
        let outcome = hub.pull("");
        assert_eq!(outcome.code, code, "{}", outcome.stderr);
        let line = outcome.stderr.lines().last().unwrap_or_default();
        lines.push(format!("{} for the bytes {line}", refusal.0).replace(&hub.url, "http://HUB"));
        assert!(hub.asked_for_bytes());
        assert!(!hub.cache.path().join("models--org--demo-GGUF/snapshots").exists());
    }
    // The port is another each time.
    let lines: Vec<String> = lines.iter().map(|line| without_port(line)).collect();
    insta::assert_snapshot!(lines.join("\n"));
}

/// Leaves the number of a port out of an address.
fn without_port(line: &str) -> String {
    let mut parts = line.split("127.0.0.1:");
    let first = parts.next().unwrap_or_default().to_owned();
    let rest = parts.map(|part| part.trim_start_matches(|c: char| c.is_ascii_digit()));
    rest.fold(first, |text, part| text + "HUB" + part)
}

#[test]
fn the_layer_that_guesses_is_downloaded_where_it_would_guess() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(LAYER_FILE);
    write_layer_alone(&path, &[]);
    let hub = Hub::start_with(Some(fs::read(&path).unwrap()), None, None);
    let run = |cache: &Path, extra: &[&str]| {
        let args = [
            "run",
            "--raw",
            NAME,
            "Once upon a time",
            "-n",
            "12",
            "--temp",
            "0",
            "--no-echo",
        ];
        let mut run = command(args.iter().chain(extra));
        run.env("HF_HUB_OFFLINE", "0")
            .env("HF_HUB_CACHE", cache)
            .env("HF_HOME", cache)
            .env("HF_ENDPOINT", &hub.url);
        Outcome::of(&run.output().unwrap())
    };
    let layer_in =
        |cache: &Path| cache.join(format!("models--org--demo-GGUF/snapshots/{COMMIT}/{LAYER_FILE}"));
    let told = run(hub.cache.path(), &[]).error_line(3);
    assert!(told.contains("for its MTP layer"), "{told}");
    let with = run(hub.cache.path(), &["--yes", "--spec", "mtp"]).ok();
    assert!(layer_in(hub.cache.path()).exists());
    let other = tempfile::tempdir().unwrap();
    let without = run(other.path(), &["--yes", "--spec", "off"]).ok();
    assert!(!layer_in(other.path()).exists());
    assert_eq!(with, without);
    // A model that is already downloaded is used as it is.
    let line = run(other.path(), &["--yes", "--spec", "mtp"]).error_line(2);
    assert!(line.contains("has no MTP layer"), "{line}");
}
