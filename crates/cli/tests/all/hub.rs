//! Models by name, without a network: the contents of the cache, and the errors for all else.
//! `tests/e2e/models.py` downloads.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::support::{DEMO_GGUF, Outcome, arg, command, put_ollama_model, with_input};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A cache with the demo model as `org/demo-GGUF:Q8_0`, as `huggingface_hub` leaves it.
fn cache() -> TempDir {
    let cache = tempfile::tempdir().unwrap();
    let folder = cache.path().join("models--org--demo-GGUF");
    let snapshot = folder.join("snapshots").join(COMMIT);
    for folder in [&folder.join("blobs"), &folder.join("refs"), &snapshot] {
        fs::create_dir_all(folder).unwrap();
    }
    fs::write(folder.join("blobs/etag"), DEMO_GGUF).unwrap();
    fs::write(folder.join("refs/main"), COMMIT).unwrap();
    link("../../blobs/etag", &snapshot.join("demo-Q8_0.gguf"));
    cache
}

#[cfg(unix)]
fn link(target: &str, path: &Path) {
    std::os::unix::fs::symlink(target, path).unwrap();
}

#[cfg(windows)]
fn link(target: &str, path: &Path) {
    std::os::windows::fs::symlink_file(target, path).unwrap();
}

fn in_cache(cache: &TempDir, args: &[&str]) -> Command {
    let mut command = command(args);
    command
        .env("HF_HUB_CACHE", cache.path())
        .env("OLLAMA_MODELS", cache.path().join("ollama"));
    command
}

fn outcome(cache: &TempDir, args: &[&str]) -> Outcome {
    Outcome::of(&in_cache(cache, args).output().expect("the program starts"))
}

#[test]
fn a_model_in_the_cache_runs_by_its_name() {
    let cache = cache();
    let by_file = outcome(
        &cache,
        &[
            "run",
            "--raw",
            "demo",
            "Once upon a time",
            "-n",
            "8",
            "--temp",
            "0",
        ],
    )
    .ok();
    for name in [
        "org/demo-GGUF",
        "org/demo-GGUF:q8_0",
        "hf://org/demo-GGUF",
        "org/demo-GGUF@main:demo-Q8_0.gguf",
    ] {
        let text = outcome(
            &cache,
            &["run", "--raw", name, "Once upon a time", "-n", "8", "--temp", "0"],
        )
        .ok();
        assert_eq!(text, by_file, "{name}");
    }
    let ids = outcome(&cache, &["tokenize", "org/demo-GGUF", "Once", "--ids"]).ok();
    assert_eq!(ids, outcome(&cache, &["tokenize", "demo", "Once", "--ids"]).ok());
    assert!(
        outcome(&cache, &["inspect", "org/demo-GGUF", "--summary"])
            .ok()
            .contains("demo-Q8_0.gguf")
    );
    let folder = tempfile::tempdir().unwrap();
    let [text, matrix] = ["text.txt", "imatrix.gguf"].map(|name| folder.path().join(name));
    fs::write(&text, "Once upon a time there was a bear. ".repeat(20)).unwrap();
    let measured = [
        "imatrix",
        "org/demo-GGUF",
        arg(&text),
        arg(&matrix),
        "-c",
        "32",
        "--chunks",
        "1",
    ];
    outcome(&cache, &measured).ok();
    assert!(matrix.exists());
}

#[test]
fn a_model_in_the_cache_is_quantized_by_its_name() {
    let cache = cache();
    let folder = tempfile::tempdir().unwrap();
    let [by_name, by_file, file] =
        ["name.gguf", "file.gguf", "demo.gguf"].map(|name| folder.path().join(name));
    fs::write(&file, DEMO_GGUF).unwrap();
    let quantize = |from: &str, to: &Path| {
        let args = ["quantize", from, arg(to), "q4_0", "--allow-requantize"];
        outcome(&cache, &args)
    };
    quantize(arg(&file), &by_file).ok();
    quantize("org/demo-GGUF:Q8_0", &by_name).ok();
    let written = fs::read(&by_name).unwrap();
    assert_eq!(written, fs::read(&by_file).unwrap());
    assert!(written.len() < DEMO_GGUF.len());
    let missing = quantize("org/demo-GGUF:F16", &folder.path().join("other.gguf")).failed(3);
    assert!(
        missing.contains("`org/demo-GGUF:F16` is not in the cache"),
        "{missing}"
    );
}

#[test]
fn an_encoder_of_images_that_is_not_here_can_be_pulled() {
    let cache = tempfile::tempdir().unwrap();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/vision/gemma3");
    let folder = cache.path().join("models--org--sees-GGUF");
    let snapshot = folder.join("snapshots").join(COMMIT);
    for folder in [&folder.join("refs"), &folder.join(".tokenmill"), &snapshot] {
        fs::create_dir_all(folder).unwrap();
    }
    fs::write(folder.join("refs/main"), COMMIT).unwrap();
    fs::copy(data.join("model.gguf"), snapshot.join("sees-F16.gguf")).unwrap();
    let image = data.join("0.png");
    let run = || {
        let args = [
            "run",
            "org/sees-GGUF",
            "Hi",
            "--image",
            arg(&image),
            "-n",
            "2",
            "-c",
            "256",
        ];
        outcome(&cache, &args)
    };
    let unknown = run().failed(3);
    assert!(
        unknown.contains("without an image encoder (hint: `tokenmill pull org/sees-GGUF` downloads")
            && unknown.contains("if its repository has one"),
        "{unknown}"
    );
    let note = folder.join(format!(".tokenmill/{COMMIT}.mmproj"));
    fs::write(&note, "mmproj-F16.gguf").unwrap();
    let hint = "(hint: `tokenmill pull org/sees-GGUF` downloads its image encoder)";
    assert!(run().failed(3).ends_with(hint));
    let chat = ["chat", "org/sees-GGUF", "-n", "2", "-c", "256"];
    let chat = with_input(&mut in_cache(&cache, &chat), &format!("/image {}\n", arg(&image)));
    assert!(chat.stderr.contains(hint), "{}", chat.stderr);
    fs::write(&note, "").unwrap();
    assert!(run().failed(3).contains("give one with `--mmproj FILE`"));
    fs::copy(data.join("mmproj-model.gguf"), snapshot.join("mmproj-F16.gguf")).unwrap();
    run().ok();
}

#[test]
fn the_cache_is_listed_and_emptied() {
    let cache = cache();
    let table = outcome(&cache, &["list"]).ok();
    assert_eq!(outcome(&cache, &["ls"]).ok(), table);
    assert_eq!(
        outcome(&cache, &["show", "org/demo-GGUF", "--summary"]).ok(),
        outcome(&cache, &["inspect", "org/demo-GGUF", "--summary"]).ok()
    );
    let row = table.lines().nth(1).unwrap();
    assert!(
        row.starts_with("org/demo-GGUF:Q8_0  Q8_0") && row.contains("MiB"),
        "{table}"
    );
    let json: serde_json::Value = serde_json::from_str(&outcome(&cache, &["list", "--json"]).ok()).unwrap();
    assert_eq!(json[0]["name"], "org/demo-GGUF:Q8_0");
    assert_eq!(json[0]["bytes"], DEMO_GGUF.len());
    assert!(Path::new(json[0]["path"].as_str().unwrap()).exists());

    let kept = outcome(&cache, &["rm", "org/demo-GGUF"]).failed(2);
    assert_eq!(
        kept,
        "error: `org/demo-GGUF` is still there (hint: `--yes` removes it without asking)"
    );
    let wrong = outcome(&cache, &["rm", "org/demo-GGUF:Q4_K_M", "--yes"]).failed(3);
    assert!(wrong.contains("it has Q8_0"), "{wrong}");
    assert_eq!(outcome(&cache, &["rm", "org/demo-GGUF:Q8_0", "--yes"]).ok(), "");
    assert!(!cache.path().join("models--org--demo-GGUF").exists());
    let gone = outcome(&cache, &["rm", "org/demo-GGUF", "--yes"]).failed(3);
    assert!(gone.contains("is not in the cache"), "{gone}");
    assert_eq!(outcome(&cache, &["list"]).ok(), "");
}

#[test]
#[cfg(unix)]
fn interrupted_downloads_are_listed_and_files_that_are_shared_count_once() {
    let cache = cache();
    let ollama = cache.path().join("ollama");
    for tag in ["tiny", "same"] {
        put_ollama_model(&ollama, "demo-model", tag);
    }
    let list = || outcome(&cache, &["list"]);
    let whole = list();
    let total = |outcome: &Outcome| outcome.stderr.lines().last().unwrap_or_default().to_owned();
    // The weights of Ollama's two models are one file.
    assert!(total(&whole).starts_with("7.3 MiB on disk"), "{}", whole.stderr);
    assert_eq!(whole.ok().lines().count(), 4);

    // As a download of 4 GiB leaves it that was interrupted after 100 kB.
    let blobs = cache.path().join("models--org--large-GGUF/blobs");
    fs::create_dir_all(&blobs).unwrap();
    let leave = |path: &Path| {
        fs::write(path, vec![1; 100_000]).unwrap();
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_len(4 << 30).unwrap();
    };
    leave(&blobs.join("etag.tokenmill.incomplete"));
    leave(&ollama.join("blobs/sha256-00.tokenmill.incomplete"));
    let found = list();
    let said = total(&found);
    assert!(
        said.starts_with("7.5 MiB on disk") && said.contains(" KiB of it are layers"),
        "{said}"
    );
    let table = found.ok();
    let row = table.lines().last().unwrap();
    assert!(
        row.starts_with("org/large-GGUF      incomplete ") && row.contains(" KiB "),
        "{table}"
    );
    let json: serde_json::Value = serde_json::from_str(&outcome(&cache, &["list", "--json"]).ok()).unwrap();
    let left = json.as_array().unwrap().last().unwrap();
    assert_eq!(
        (&left["type"], &left["commit"]),
        (&"incomplete".into(), &serde_json::Value::Null)
    );

    let removed = outcome(&cache, &["rm", "org/large-GGUF", "--yes"]);
    assert!(
        removed.stderr.contains(" KiB are free again"),
        "{}",
        removed.stderr
    );
    assert!(!blobs.exists());
    assert!(!list().ok().contains("incomplete"));
}

#[test]
fn a_model_of_ollama_runs_by_its_name() {
    let cache = cache();
    put_ollama_model(&cache.path().join("ollama"), "demo-model", "tiny");

    let prompt = ["Once upon a time", "-n", "8", "--temp", "0"];
    let run = |name: &str| outcome(&cache, &[&["run", "--raw", name], &prompt[..]].concat()).ok();
    let by_file = run("demo");
    for name in [
        "demo-model:tiny",
        "ollama:demo-model:tiny",
        "ollama.com/library/demo-model:tiny",
    ] {
        assert_eq!(run(name), by_file, "{name}");
    }
    let table = outcome(&cache, &["list"]).ok();
    assert!(table.contains("demo-model:tiny     Q8_0"), "{table}");
    let missing = outcome(&cache, &["run", "--raw", "demo-model:huge", "Hi", "--offline"]).failed(3);
    assert!(
        missing.contains("`demo-model:huge` is not in the cache"),
        "{missing}"
    );
    let text = outcome(&cache, &["inspect", "demo-model:tiny", "--summary"]).ok();
    assert!(text.starts_with("demo-model:tiny: 3.7 MiB"), "{text}");
    let reply = outcome(
        &cache,
        &["run", "--raw", "demo-model:tiny", "Hi", "-n", "1", "--json"],
    )
    .ok();
    let reply: serde_json::Value = serde_json::from_str(&reply).unwrap();
    assert_eq!(reply["model"], "demo-model:tiny");
    outcome(&cache, &["rm", "demo-model:tiny", "--yes"]).ok();
    assert!(!outcome(&cache, &["list"]).ok().contains("demo-model"));
}

#[test]
fn a_pull_of_what_is_here_says_where_it_is() {
    let cache = cache();
    put_ollama_model(&cache.path().join("ollama"), "tiny", "latest");
    for name in [
        "tiny:latest",
        "ollama:tiny",
        "org/demo-GGUF",
        "org/demo-GGUF:Q8_0",
    ] {
        let pulled = outcome(&cache, &["pull", name]);
        assert!(
            pulled.stderr.contains(" is here") && pulled.stderr.contains("downloads are switched off"),
            "{}",
            pulled.stderr
        );
        let path = pulled.ok();
        assert_eq!(
            fs::metadata(path.trim_end()).unwrap().len(),
            DEMO_GGUF.len() as u64
        );
    }
    let json = outcome(&cache, &["pull", "tiny:latest", "--json"]).ok();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["downloaded_bytes"], 0);
    // A name of Ollama's without its tag is not a name, but may be meant.
    let line = outcome(&cache, &["pull", "tiny"]).failed(2);
    assert!(
        line.ends_with("(hint: `tiny:latest` is on this machine)"),
        "{line}"
    );
    let other = outcome(&cache, &["pull", "tiny:1b"]).failed(3);
    assert!(other.contains("`tiny:1b` is not in the cache"), "{other}");
}

#[test]
fn a_pull_without_a_server_says_what_is_missing() {
    let cache = cache();
    let pull = |extra: &[&str]| {
        let mut command = in_cache(&cache, &[&["pull", "org/demo-GGUF"], extra].concat());
        // A port that no program listens on.
        command
            .env("HF_HUB_OFFLINE", "0")
            .env("HF_ENDPOINT", "http://127.0.0.1:9");
        Outcome::of(&command.output().unwrap())
    };
    let began = Instant::now();
    let unknown = pull(&[]);
    assert!(!unknown.stderr.contains("trying again"), "{}", unknown.stderr);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert!(
        unknown
            .stderr
            .contains("it is not known whether there is a newer one, nor whether it has an image encoder: "),
        "{}",
        unknown.stderr
    );
    unknown.ok();
    let note = cache.path().join("models--org--demo-GGUF/.tokenmill");
    fs::create_dir(&note).unwrap();
    let note = note.join(format!("{COMMIT}.mmproj"));
    fs::write(&note, "mmproj-F16.gguf").unwrap();
    for extra in [&["--offline"][..], &[], &["--dry-run", "--json"]] {
        let line = pull(extra).failed(1);
        assert!(
            line.starts_with("error: `org/demo-GGUF` is here without its image encoder, mmproj-F16.gguf: ")
                && line.contains("--no-projector"),
            "{line}"
        );
    }
    let unchecked = pull(&["--verify", "--no-projector"]);
    assert!(
        unchecked.stderr.contains("127.0.0.1:9 cannot be reached"),
        "{}",
        unchecked.stderr
    );
    assert_eq!(
        unchecked.code, 1,
        "what should be hashed is not said to be here unseen"
    );
    for known in [&["--offline", "--no-projector"][..], &["--no-projector"]] {
        assert!(!pull(known).stderr.contains("nor whether"));
        pull(known).ok();
    }
    fs::write(&note, "").unwrap();
    let whole = pull(&["--offline"]);
    assert!(
        whole.stderr.contains("is not known: downloads are switched off"),
        "{}",
        whole.stderr
    );
    whole.ok();
}

#[test]
fn without_models_both_places_are_named() {
    let empty = tempfile::tempdir().unwrap();
    let listed = outcome(&empty, &["list"]);
    assert!(
        listed.stderr.contains("no models in ") && listed.stderr.contains("and none of Ollama's in "),
        "{}",
        listed.stderr
    );
    assert!(listed.stderr.contains(arg(&empty.path().join("ollama"))));
    assert_eq!(listed.ok(), "");
}

#[test]
fn names_that_cannot_be_had_are_one_line() {
    let cache = cache();
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("mine")).unwrap();
    let path = folder.path().join("mine/model");
    let lines = [
        outcome(&cache, &["run", "--raw", "no-owner/model-GGUF", "Hi"]).failed(3),
        outcome(&cache, &["chat", "org/demo-GGUF:Q4_K_M"]).failed(3),
        outcome(&cache, &["pull", "org/none-GGUF"]).failed(3),
        outcome(&cache, &["run", "--raw", "llama3.2", "Hi"]).failed(3),
        outcome(&cache, &["run", "--raw", "hf://no-repository", "Hi"]).failed(2),
        outcome(&cache, &["pull", "no-repository"]).failed(2),
        outcome(&cache, &["pull", "a b"]).failed(2),
        outcome(&cache, &["pull", "demo"]).failed(2),
        outcome(&cache, &["rm", "demo"]).failed(2),
        outcome(&cache, &["pull", "src"]).failed(2),
        outcome(&cache, &["pull", "src/main.rs"]).failed(2),
        outcome(&cache, &["run", "--raw", arg(&path), "Hi"])
            .failed(3)
            .replace(arg(folder.path()), "DIR"),
    ];
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn without_a_network_the_host_is_named() {
    let cache = cache();
    put_ollama_model(&cache.path().join("ollama"), "tiny", "latest");
    let pull = |name: &str| {
        let mut command = in_cache(&cache, &["pull", name]);
        // A port that no program listens on.
        command
            .env("HF_HUB_OFFLINE", "0")
            .env("HF_ENDPOINT", "http://127.0.0.1:9")
            .env("OLLAMA_REGISTRY", "http://127.0.0.1:9")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    // Pulls of missing models try again for some seconds.
    let [of_hub, of_ollama, here] = ["org/other-GGUF", "other:1b", "tiny:latest"]
        .map(pull)
        .map(|child| Outcome::of(&child.wait_with_output().unwrap()));
    for (outcome, variable) in [(of_hub, "HF_ENDPOINT"), (of_ollama, "OLLAMA_REGISTRY")] {
        assert_eq!(outcome.code, 1, "{}", outcome.stderr);
        let last = outcome.stderr.lines().last().unwrap();
        assert!(
            last.starts_with("error: 127.0.0.1:9 cannot be reached: "),
            "{last}"
        );
        let hint = format!("(hint: check the network; {variable} names a mirror");
        assert!(last.contains(&hint), "{last}");
    }
    assert!(
        here.stderr.contains("tiny:latest is here") && here.stderr.contains("127.0.0.1:9 cannot be reached"),
        "{}",
        here.stderr
    );
    assert!(here.ok().contains("sha256-"));
}
