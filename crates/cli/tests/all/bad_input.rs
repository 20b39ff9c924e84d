//! Input that cannot be used: one clear line, the right exit code, no panic, no partial output.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use tempfile::TempDir;
use tokenmill_gguf::{GgufFile, GgufWriter, TensorType};

use crate::support::{DEMO_GGUF, Outcome, arg, command, tokenmill, tokenmill_with};

/// A folder with one file.
fn file(name: &str, bytes: impl AsRef<[u8]>) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    (folder, path)
}

/// The line of a run with this model, without its folder.
fn run_error(path: &Path, code: i32) -> String {
    let folder = arg(path.parent().unwrap());
    let line = tokenmill(["run", "--raw", arg(path), "Hello", "--temp", "0"]).failed(code);
    line.replace(folder, "DIR")
}

/// The demo model with one tensor changed.
fn demo_with(name: &str, change: impl Fn(TensorType, Vec<u8>) -> (TensorType, Vec<u8>)) -> Vec<u8> {
    let demo = GgufFile::from_bytes(DEMO_GGUF).unwrap();
    let mut writer = GgufWriter::with_metadata(demo.metadata().clone());
    let mut tensors = Vec::new();
    for tensor in demo.tensors() {
        let bytes = demo.tensor(&tensor.name).unwrap().bytes.to_vec().unwrap();
        let (ty, bytes) = if tensor.name == name {
            change(tensor.ty, bytes)
        } else {
            (tensor.ty, bytes)
        };
        let dims: Vec<u64> = tensor.dims.iter().map(|&dim| dim as u64).collect();
        writer.add_tensor(&tensor.name, ty, &dims).unwrap();
        tensors.push(bytes);
    }
    let mut out = writer.write_header(Vec::new()).unwrap();
    for bytes in tensors {
        out.write(&bytes).unwrap();
    }
    out.finish().unwrap()
}

#[test]
fn files_that_are_no_model() {
    let mut lines = vec![run_error(Path::new("no-such-folder/model.gguf"), 3)];
    for (name, bytes) in [
        ("empty.gguf", &b""[..]),
        ("text.gguf", b"Once upon a time there was a model.\n"),
        ("magic.gguf", b"GGUG\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
        ("old.gguf", b"GGUF\x01\0\0\0\0\0\0\0\0\0\0\0"),
        ("short.gguf", &DEMO_GGUF[..100]),
        ("model.safetensors", b"\x10\0\0\0\0\0\0\0{\"a\":{}}        "),
        ("model.gguf.gz", b"\x1f\x8b\x08\0\0\0\0\0\0\x03"),
        ("model.gguf.zst", b"\x28\xb5\x2f\xfd\0\0"),
        ("model.onnx", b"\x08\x08\x12\x07pytorch\x1a\x052.1.0:"),
        ("page.gguf", b"\n<!DOCTYPE html>\n<html><head>"),
    ] {
        let (_folder, path) = file(name, bytes);
        lines.push(run_error(&path, 3));
    }
    insta::assert_snapshot!("no_model", lines.join("\n"));
}

#[test]
fn a_truncated_file_is_refused_wherever_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    // Cuts in the header, at its end and in the data; every single byte of a small file is tried in the file's crate.
    let n = DEMO_GGUF.len();
    for cut in [
        1,
        4,
        23,
        24,
        1_000,
        30_000,
        60_000,
        n / 3,
        n / 2,
        n - 4_000,
        n - 1,
    ] {
        fs::write(&path, &DEMO_GGUF[..cut]).unwrap();
        let line = run_error(&path, 3);
        assert!(
            line.starts_with("error: DIR/model.gguf: "),
            "cut at {cut}: {line}"
        );
    }
}

/// Whatever has no end, or waits for another program, is refused at once.
#[test]
#[cfg(unix)]
fn pipes_and_devices_are_no_files() {
    const REFUSAL: &str = "it is a pipe, a device or a socket, expected a regular file";
    let folder = tempfile::tempdir().unwrap();
    let pipe = |name: &str| {
        let path = folder.path().join(name);
        let status = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(status.success());
        path
    };
    let output = folder.path().join("out.jsonl");
    let input = pipe("in.jsonl");
    for input in [Path::new("/dev/zero"), &input] {
        let line = tokenmill(["batch", "demo", arg(input), arg(&output)]).failed(3);
        assert!(line.ends_with(REFUSAL), "{line}");
    }
    for name in ["model.gguf", "tokenizer.json"] {
        let path = pipe(name);
        let line = tokenmill(["tokenize", arg(&path), "a"]).failed(3);
        assert!(line.contains(REFUSAL), "{line}");
    }
}

#[test]
fn weights_that_cannot_be_computed() {
    let mut lines = Vec::new();
    let as_integers = |_, bytes: Vec<u8>| {
        // Q8_0 has 34 bytes for 32 elements.
        (TensorType::I32, vec![0; bytes.len() / 34 * 32 * 4])
    };
    let (_folder, path) = file("i32.gguf", demo_with("blk.0.attn_q.weight", as_integers));
    lines.push(run_error(&path, 3));

    let with_nan = |ty, mut bytes: Vec<u8>| {
        bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes());
        (ty, bytes)
    };
    let (_folder, path) = file("nan-norm.gguf", demo_with("blk.0.attn_norm.weight", with_nan));
    lines.push(run_error(&path, 3));

    let all_scales_nan = |ty, mut bytes: Vec<u8>| {
        for block in bytes.chunks_exact_mut(34) {
            block[..2].copy_from_slice(&[0x00, 0x7e]);
        }
        (ty, bytes)
    };
    let (_folder, path) = file(
        "nan-matrix.gguf",
        demo_with("blk.0.ffn_up.weight", all_scales_nan),
    );
    let code = tokenmill(["run", "--raw", arg(&path), "Hello"]).code;
    assert!(code == 1 || code == 3, "exit code {code}");
    lines.push(run_error(&path, code));
    insta::assert_snapshot!("bad_weights", lines.join("\n"));
}

#[test]
fn prompts_that_cannot_be_continued() {
    let long = "word ".repeat(600);
    let (_folder, latin1) = file("latin1.txt", b"caf\xe9");
    let lines = [
        tokenmill(["run", "--raw", "demo", ""]).failed(3),
        tokenmill_with(&["run", "--raw", "demo"], "").failed(3),
        tokenmill(["run", "--raw", "demo", &long]).failed(3),
        tokenmill(["run", "--raw", "demo", "Once upon a time", "-c", "3"]).failed(3),
        tokenmill(["run", "--raw", "demo", "-f", arg(&latin1)])
            .failed(3)
            .replace(arg(latin1.parent().unwrap()), "DIR"),
        tokenmill_with(&["chat", "demo"], &format!("{long}\n"))
            .code
            .to_string(),
    ];
    insta::assert_snapshot!("bad_prompts", lines.join("\n"));
}

#[test]
fn an_empty_key_does_not_open_the_server() {
    // Its port is taken, so that a server that starts all the same ends at once.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let args = ["serve", "demo", "--port", &port];
    let by_option = command(args.iter().chain(&["--api-key", ""])).output().unwrap();
    let by_variable = command(args).env("TOKENMILL_API_KEY", " ").output().unwrap();
    for (name, output) in [("--api-key", by_option), ("TOKENMILL_API_KEY", by_variable)] {
        assert_eq!(
            Outcome::of(&output).failed(2),
            format!(
                "error: `{name}` is empty, which would admit every client (hint: give a key, or leave it out)"
            )
        );
    }
}

#[test]
fn folders_are_not_guessed() {
    let folder = tempfile::tempdir().unwrap();
    let check = || {
        let line = tokenmill(["run", "--raw", arg(folder.path()), "Hello"]).failed(3);
        line.replace(arg(folder.path()), "DIR")
    };
    let mut lines = vec![check()];
    fs::write(folder.path().join("config.json"), "{}").unwrap();
    lines.push(check());
    fs::write(folder.path().join("pytorch_model-00001-of-00002.bin"), "").unwrap();
    lines.push(check());
    for name in ["b.gguf", "a.gguf"] {
        fs::write(folder.path().join(name), "").unwrap();
    }
    lines.push(check());
    insta::assert_snapshot!("bad_folders", lines.join("\n"));
    fs::remove_file(folder.path().join("a.gguf")).unwrap();
    fs::write(folder.path().join("b.gguf"), DEMO_GGUF).unwrap();
    let args = ["run", "--raw", arg(folder.path()), "Once upon a time", "-n", "1"];
    assert!(tokenmill(args).ok().starts_with("Once upon a time"));
}

#[test]
fn names_in_a_file_reach_the_terminal_without_their_escapes() {
    const RED: &str = "\u{1b}[31m";
    let mut writer = GgufWriter::new();
    let metadata = writer.metadata_mut();
    metadata
        .insert("general.architecture", format!("ll{RED}ama"))
        .unwrap();
    metadata.insert(format!("key{RED}"), "\u{9b}2J").unwrap();
    writer
        .add_tensor(&format!("tensor{RED}\u{202e}"), TensorType::F32, &[1])
        .unwrap();
    let mut out = writer.write_header(Vec::new()).unwrap();
    out.write(&[0; 4]).unwrap();
    let (_folder, path) = file("names.gguf", out.finish().unwrap());
    let json = tokenmill(["inspect", arg(&path), "--json"]).ok();
    for text in [
        tokenmill(["inspect", arg(&path)]).ok(),
        json.clone(),
        tokenmill(["run", "--raw", arg(&path), "Hello"]).failed(3),
    ] {
        let obeyed = text.chars().find(|&c| c.is_control() && c != '\n');
        assert_eq!(obeyed, None, "{text:?}");
        assert!(text.contains(r"\u{1b}[31m") || text == json, "{text}");
    }
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["metadata"][format!("key{RED}")], "\u{9b}2J");
}

#[test]
fn a_tokenizer_that_cannot_be_read_is_named() {
    let (_folder, broken) = file("tokenizer.json", "{");
    let (_other, empty) = file(
        "empty.gguf",
        GgufWriter::new()
            .write_header(Vec::new())
            .unwrap()
            .finish()
            .unwrap(),
    );
    let lines: Vec<String> = [broken, empty, PathBuf::from("no-such-folder/tokenizer.json")]
        .iter()
        .map(|path| {
            let line = tokenmill(["tokenize", arg(path), "Hello"]).failed(3);
            line.replace(arg(path.parent().unwrap()), "DIR")
        })
        .collect();
    insta::assert_snapshot!("bad_tokenizers", lines.join("\n"));
}

#[test]
fn an_address_that_is_not_http_is_answered_with_what_to_write() {
    let refused = |url| tokenmill(["bench-serve", url]).failed(2);
    insta::assert_snapshot!(
        refused("localhost:8080"),
        @"error: `localhost:8080` is not an http:// address (hint: write http://localhost:8080)"
    );
    insta::assert_snapshot!(
        refused("https://localhost:8080"),
        @"error: `https://localhost:8080` is not an http:// address (hint: measure behind the proxy that ends TLS)"
    );
}

#[test]
fn a_load_is_not_measured_for_a_report_that_cannot_be_written() {
    let args = [
        "bench-serve",
        "http://127.0.0.1:1",
        "--json",
        "/no/such/folder/load.json",
    ];
    insta::assert_snapshot!(
        tokenmill(args).failed(4),
        @"error: cannot write to /no/such/folder/load.json: No such file or directory"
    );
    // The file is only tried: where the load does not come about, none is left behind.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("load.json");
    let args = ["bench-serve", "http://127.0.0.1:1", "--json", arg(&path)];
    tokenmill(args).failed(1);
    assert!(!path.exists());
}

#[test]
fn templates_and_contexts_that_fail() {
    let (_folder, template) = file("t.jinja", "{{ raise_exception('no ' ~ x) }}");
    let (_folder, broken) = file("b.jinja", "\n{% if x %}");
    let cases = [
        [arg(&template), r#"{"x": "thanks"}"#],
        [arg(&broken), "{}"],
        [arg(&template), "{"],
        [arg(&template), "no-such-file.json"],
        [arg(&template), "[]"],
        [arg(&template), "null"],
    ];
    let lines: Vec<String> = cases
        .iter()
        .map(|[template, context]| {
            tokenmill(["apply-template", "--template", template, "--context", context]).failed(3)
        })
        .collect();
    insta::assert_snapshot!("bad_templates", lines.join("\n"));
    let line = tokenmill(["apply-template", "demo", "--context", "{}"]).failed(3);
    assert!(line.contains("(hint: write {\"messages\": ["), "{line}");
}

#[test]
#[cfg(target_os = "linux")]
fn output_that_cannot_be_written() {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = command(["inspect", "demo"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    insta::assert_snapshot!(
        String::from_utf8_lossy(&output.stderr),
        @"error: cannot write to standard output: No space left on device (hint: make room, or write to another disk)"
    );
    let folder = tempfile::tempdir().unwrap();
    let taken = folder.path().join("model.gguf");
    std::fs::write(&taken, "GGUF").unwrap();
    let over = tokenmill_with(&["chat", "demo"], &format!("/save {}\n", taken.display()));
    assert!(
        over.stderr.contains("model.gguf already exists (hint: "),
        "{}",
        over.stderr
    );
    assert_eq!(over.code, 2);
    assert_eq!(std::fs::read(&taken).unwrap(), b"GGUF");
    let save = tokenmill_with(&["chat", "demo"], "/save /no/such/folder/talk.json\n");
    assert_eq!(save.code, 4);
    insta::assert_snapshot!(save.stderr.trim_end(), @r"
    error: cannot write to /no/such/folder/talk.json: No such file or directory
    error: one command failed and was skipped
    ");
}

#[test]
fn a_model_that_is_not_there_is_said_before_a_prompt_is_read() {
    let lines = [
        "no-such-model",
        "no-such-owner/model-GGUF",
        "https://example.org/model.gguf",
        "no-such-folder/model.gguf",
    ]
    .map(|model| tokenmill(["run", "--raw", model]).failed(3));
    insta::assert_snapshot!("missing_models", lines.join("\n"));
}

#[test]
#[cfg(target_os = "linux")]
fn standard_error_that_cannot_be_written_does_not_end_the_work() {
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let run = [
        "run",
        "--raw",
        "demo",
        "Once upon a time",
        "-n",
        "3",
        "--temp",
        "0",
    ];
    let output = command(run).stderr(full()).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stdout), tokenmill(run).ok());
    // A failure keeps its code.
    let output = command(["run", "--raw", "no-such-model", "x"])
        .stderr(full())
        .output();
    assert_eq!(output.unwrap().status.code(), Some(3));
    for args in [
        &run[..],
        &["chat", "demo", "-n", "3"],
        &["run", "--raw", "no-such-model"],
    ] {
        let mut child = command(args)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stderr.take());
        let code = child.wait().unwrap().code();
        assert!(matches!(code, Some(0 | 3)), "{args:?}: {code:?}");
    }
}

#[test]
fn a_port_in_use_says_what_to_do() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    // It is told before the model is looked for.
    for model in ["demo", "no-such-model.gguf"] {
        let outcome = tokenmill(["serve", model, "--port", &port]);
        assert_eq!(outcome.code, 1, "{}", outcome.stderr);
        let line = outcome.stderr.lines().last().unwrap();
        assert!(
            line.contains("another program listens there") && line.contains("--port N"),
            "{line}"
        );
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    for args in [
        &["inspect", "demo", "--json"][..],
        &["run", "--raw", "demo", "Once upon a time", "--temp", "0"],
    ] {
        let mut child = command(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{args:?}");
    }
}
