//! Options as people type them: numbers out of range, contexts that are too long or too short, options without effect.

use std::fs;

use crate::support::{arg, command, tokenmill, tokenmill_with};

/// The first line that a refused command prints.
#[track_caller]
pub(crate) fn refused(line: &str, code: i32) -> String {
    let outcome = tokenmill(line.split(' '));
    assert_eq!(
        (outcome.code, outcome.stdout.as_str()),
        (code, ""),
        "{line}: {}",
        outcome.stderr
    );
    outcome.stderr.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn numbers_out_of_range_are_refused_with_their_range() {
    let lines: Vec<String> = [
        "run demo x --temp -1",
        "run demo x --temp nan",
        "run demo x --top-p 1.5",
        "run demo x --logit-bias 2048+1",
        "run demo x --repeat-penalty 0",
        "run demo x --repeat-last-n -2",
        "run demo x --top-k -1",
        "run demo x -n -5",
        "run demo x -s -2",
        "run demo x -c -1",
        "run demo x -t -1",
        "run demo x -t 0",
        "run demo x -tb 0",
        "run demo x -np 0",
        "run demo x -ub 0",
        "run demo x -ub foo",
        "run demo x -b 0",
        "run demo x -tp 0",
        "run demo x --gpu-batch 0",
        "run demo x --gpu-batch foo",
        "run demo x -ngl -1",
        "run demo x -ngl foo",
        "run demo x --top-k foo",
        "run demo x --place attn",
        "run demo x -t 100000",
        "perplexity demo README.md --chunks -7",
        "bench demo -p -3",
        "serve demo --max-queued-requests -1",
        "batch demo in.jsonl --parallel 0",
    ]
    .iter()
    .map(|line| format!("{line}\n  {}", refused(line, 2)))
    .collect();
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn what_the_parser_refuses_is_one_line() {
    let lines: Vec<String> = [
        "run",
        "pull",
        "quantize in.gguf out.gguf",
        "quantize in.gguf",
        "quantize in.gguf out.gguf q9",
        "chta demo",
        "completions tcsh",
        "run demo x --temp hot",
        "run demo x --device gpu",
        "run demo x -ngl many",
        "run demo x --temp",
        "run demo x --temp 1 --temp 2",
        "run demo x --json=3",
        "run demo x --json-schema a --regex b",
        "perplexity demo text.txt --kl-base logits.bin",
        "serve demo --port 70000",
        "serve demo --tls-cert cert.pem",
        "bench demo --batch x",
    ]
    .iter()
    .map(|line| format!("{line}\n  {}", tokenmill(line.split(' ')).error_line(2)))
    .collect();
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn a_switch_that_is_given_twice_is_on() {
    let args = ["run", "--raw", "demo", "Hi", "-n", "1"];
    let twice = ["--json", "--json", "--no-mmap", "--no-mmap"];
    let text = tokenmill([&args[..], &twice].concat()).ok();
    assert!(text.starts_with('{'), "{text}");
}

#[test]
fn times_are_seconds_or_have_a_unit() {
    for option in [
        "--request-timeout",
        "--queue-timeout",
        "--write-timeout",
        "--drain-timeout",
    ] {
        for time in ["0", "5min", "soon"] {
            let line = refused(&format!("serve demo {option} {time}"), 2);
            let expected = format!(
                "error: `{time}` is not a value for `{option}`: expected a time of more than 0 seconds, such as 30, 90s, 5m or 1h30m"
            );
            assert_eq!(line, expected);
        }
    }
    let line = refused("bench-serve http://127.0.0.1:1 --mix plain=1 --seconds soon", 2);
    assert!(line.contains("such as 30, 90s, 5m or 1h30m"), "{line}");
}

#[cfg(target_os = "linux")]
#[test]
fn times_with_units_are_obeyed() {
    let wait = |time: &str| {
        let server = crate::server::Server::start(&["demo", "-c", "512", "--request-timeout", time]);
        let body = r#"{"prompt":"Once upon a time","max_tokens":400,"ignore_eos":true}"#;
        let (status, _) = server.ask("POST", "/v1/completions", body);
        server.end();
        status
    };
    assert_eq!(wait("1ms"), 504);
    assert_eq!(wait("5m"), 200);
}

#[test]
fn a_context_beyond_the_models_own_is_granted_with_a_warning() {
    let outcome = tokenmill(["run", "--raw", "demo", "Once upon a time", "-n", "2", "-c", "600"]);
    assert!(
        outcome
            .stderr
            .starts_with("the context of 600 tokens is longer than the 512 that the model was trained for"),
        "{}",
        outcome.stderr
    );
    assert!(outcome.ok().starts_with("Once upon a time"));
    let within = tokenmill(["run", "--raw", "demo", "Once upon a time", "-n", "2", "-c", "512"]);
    assert!(!within.stderr.contains("longer than"), "{}", within.stderr);
}

#[test]
fn a_context_that_cannot_be_had_is_spoken_of_as_such() {
    insta::assert_snapshot!(
        refused("run demo x -c 100000000000", 2),
        @"error: the size of the context is 100000000000, expected at most 4294967280 (hint: `-c N` is the number of tokens of one sequence)"
    );
    insta::assert_snapshot!(
        refused("run demo x -c 18446744073709551615 -np 128", 2),
        @"error: the size of the context is 18446744073709551615, expected at most 4294967280 (hint: `-c N` is the number of tokens of one sequence)"
    );
    insta::assert_snapshot!(
        refused("serve demo --port 0 -c 4000000000 --kv-cache-tokens 4294967295", 2),
        @"error: the size of all contexts together, in pages of 16 tokens, is 268435456, expected at most 268435455 (hint: give fewer tokens with `--kv-cache-tokens N`, or fewer sequences)"
    );
    // Terabytes of keys and values; a machine that has them grants the context.
    let outcome = tokenmill(["run", "--raw", "demo", "x", "-n", "1", "-c", "4000000000"]);
    let is_refused = outcome.code != 0;
    if is_refused {
        let line = outcome.failed(3);
        // Where the machine's memory is known it is compared; elsewhere the system refuses.
        let is_compared = line.contains("of memory, ") && line.contains("give a smaller context with `-c N`");
        let is_tried = line.contains("bytes of memory could not be allocated for the KV store")
            && line.contains("the whole load takes ")
            && line.contains("(hint: `-c N` and `-ctk q8_0 -ctv q8_0` reduce the memory of keys and values");
        assert!(is_compared || is_tried, "{line}");
    }
    if is_refused && cfg!(target_os = "linux") {
        let outcome = tokenmill(["doctor", "demo", "-c", "4000000000"]);
        assert_eq!(outcome.code, 3, "{}", outcome.stderr);
        let text = outcome.stdout;
        let row = text.lines().find(|line| line.starts_with("model, CPU")).unwrap();
        assert!(row.starts_with("model, CPU problem "), "{row}");
        assert!(row.ends_with("which is more than this machine has"), "{row}");
    }
}

#[test]
fn an_option_that_would_do_nothing_is_refused() {
    let stop = command(["run", "--raw", "demo", "x", "--stop", ""])
        .output()
        .unwrap();
    assert_eq!(stop.status.code(), Some(2));
    insta::assert_snapshot!(
        String::from_utf8_lossy(&stop.stderr),
        @"error: `--stop` is empty, which would end every text before it begins (hint: give the text to stop at, or leave it out)"
    );
    insta::assert_snapshot!(
        refused("bench demo -c 64", 2),
        @"error: `-c` does nothing here: each test has the context that it needs (hint: `-d N` puts N tokens into the context before a test begins)"
    );
    insta::assert_snapshot!(
        refused("serve demo --port 0 --kv-cache-tokens 1", 2),
        @"error: a KV cache of 1 tokens is less than one context of 512 tokens (hint: give 512 or more with --kv-cache-tokens, or a shorter context with `-c N`)"
    );
    insta::assert_snapshot!(
        refused("run demo x --spec off --spec-max 4", 2),
        @"error: `--spec-max` does nothing with `--spec off`"
    );
}

#[test]
fn an_unknown_option_is_one_line_with_what_is_near_it() {
    for (args, expected) in [
        (
            &["doctor", "demo", "--mmproj", "x"][..],
            "`--mmproj` is not an option of `doctor` (hint: an option of `run`, `chat`, `serve`, `batch`, `decide`, `convert`)",
        ),
        (
            &["run", "demo", "--zzzzzz"],
            "`--zzzzzz` is not an option of `run` (hint: `tokenmill run --help` lists its options)",
        ),
        (
            &["run", "demo", "--sesion", "x"],
            "`--sesion` is not an option of `run` (hint: near it: `--session`)",
        ),
        // A folder may be called as a command.
        (
            &["serve", "run", "--bogus"],
            "`--bogus` is not an option of `serve`",
        ),
        (
            &["--frobnicate"],
            "`--frobnicate` is not an option (hint: `tokenmill --help`",
        ),
    ] {
        let line = tokenmill(args).failed(2);
        assert!(line.contains(expected), "{line}");
    }
}

#[test]
fn what_the_parser_refuses_is_told_in_the_words_that_were_typed() {
    let lines: Vec<String> = [
        "run demo once upon",
        "chat demo hello",
        "tokenize demo once upon",
        "pull a/b c/d e/f",
        "perplexity demo --kl-base",
        "run demo x -ngl",
        "run demo x --seed 1 --seed 2",
        "run demo x -ctk f16 -ctk q8_0",
        "serve demo --props=x",
    ]
    .iter()
    .map(|line| format!("{line}\n  {}", refused(line, 2)))
    .collect();
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn gpus_together_are_left_out_where_there_is_none() {
    let outcome = tokenmill(["run", "--raw", "demo", "Hi", "--tensor-parallel-size", "2"]);
    // Where there are GPUs, they compute it, or say why not.
    if outcome.stderr.contains("no NVIDIA driver") {
        let line = outcome.failed(5);
        assert!(
            line.contains("(hint: leave `--tensor-parallel-size` out to compute on the CPU)"),
            "{line}"
        );
    }
}

#[test]
fn generating_nothing_shows_the_prompt_and_no_rate() {
    let outcome = tokenmill(["run", "--raw", "demo", "Once upon a time", "-n", "0"]);
    assert_eq!(
        outcome.stderr,
        "[prompt 5 tokens; nothing was computed, cut at the limit of -n]\n"
    );
    assert_eq!(outcome.ok(), "Once upon a time\n");
    assert_eq!(
        tokenmill(["run", "--raw", "demo", "Once", "-n", "0", "--no-echo"]).ok(),
        "\n"
    );
}

#[test]
fn an_answer_that_ends_at_once_does_not_deny_the_work_on_its_prompt() {
    let run = |prompt, n| tokenmill(["run", "--raw", "demo", prompt, "-n", n, "--temp", "0"]).stderr;
    assert_eq!(
        run("What is 3 + 4?", "8"),
        "[prompt 9 tokens; the model ended at once]\n"
    );
    let one = run("Once upon a time", "1");
    assert!(one.contains("; answer 1 token; first after"), "{one}");
}

#[test]
fn an_answer_that_is_cut_names_what_lifts_the_limit() {
    let chat = |extra: &[&str]| {
        let args = [&["chat", "demo", "--temp", "0"], extra].concat();
        tokenmill_with(&args, "Tell me a story.\n").stderr
    };
    assert_eq!(
        chat(&["-n", "3"]),
        "[cut at the limit of 3 tokens; /set n_predict -1 lifts it]\n"
    );
    assert_eq!(
        chat(&["-c", "16"]),
        "[cut where the context of 16 tokens ends; /drop forgets the oldest exchange, /undo the last, /clear all; \
         -c N at the start gives more]\n"
    );
}

#[test]
fn a_score_needs_a_context_and_a_text() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.txt");
    fs::write(&text, "Once upon a time there was a bear. ".repeat(8)).unwrap();
    let line = tokenmill(["perplexity", "demo", arg(&text), "-c", "3"]).failed(2);
    insta::assert_snapshot!(line, @"error: `-c 3` is too short a context to score anything in, expected at least 4");
    assert!(
        tokenmill(["perplexity", "demo", arg(&text), "-c", "4"])
            .ok()
            .contains("perplexity")
    );
}

#[test]
fn a_line_without_a_command_is_told_the_command() {
    for (line, expected) in [
        (
            "-m S.gguf -p hi",
            "error: `-p` follows no command (hint: a command comes first: `tokenmill run S.gguf -p hi`)",
        ),
        (
            "--port 80 --model=S.gguf",
            "error: `--port` follows no command (hint: a command comes first: `tokenmill serve S.gguf --port 80`)",
        ),
        (
            "chat demo -p hi",
            "error: `-p` is not an option of `chat` (hint: an option of `run`, `bench`)",
        ),
        (
            "serve demo --prompt hi",
            "error: `--prompt` is not an option of `serve` (hint: an option of `run`)",
        ),
    ] {
        assert_eq!(refused(line, 2), expected);
    }
}

#[test]
fn a_server_is_told_pages_hosts_and_names_that_can_match() {
    for (line, expected) in [
        (
            "--cors-origin bar",
            "`bar` is not a value for `--cors-origin`: an origin begins with a scheme, as in `https://bar`",
        ),
        (
            "--cors-origin https://a.example/,https://b.example/page",
            "`https://b.example/page` is not a value for `--cors-origin`: an origin has no path: `https://b.example`",
        ),
        (
            "--allow-host http://foo.example/",
            "`http://foo.example/` is not a value for `--allow-host`: a host name has no scheme, port or path: `--allow-host foo.example`",
        ),
        (
            "--served-model-name=",
            "`--served-model-name` is empty: clients could not ask for it; give a name, or leave the option out",
        ),
        (
            "--host 127.0.0.1:18115",
            "`--host 127.0.0.1:18115` is not an address to listen on: it takes a host alone (hint: `--host 127.0.0.1 --port 18115`)",
        ),
        (
            "--host http://127.0.0.1",
            "`--host http://127.0.0.1` is not an address to listen on: it takes a host alone (hint: `--host 127.0.0.1`)",
        ),
    ] {
        // Its port is taken, so that a server that starts all the same ends at once.
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let line = refused(&format!("serve demo --port {port} {line}"), 2);
        assert_eq!(line, format!("error: {expected}"));
    }
}

#[test]
#[cfg(unix)]
fn a_file_in_the_place_of_a_socket_stays() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let line = tokenmill(["serve", "demo", "--unix-socket", arg(file.path())]).error_line(1);
    assert!(
        line.ends_with("(hint: a file that is no socket is there; remove it, or give another path)"),
        "{line}"
    );
    assert!(file.path().is_file());
}

#[test]
fn an_empty_shape_is_refused_as_empty() {
    for option in ["--json-schema", "--grammar"] {
        let line = tokenmill(["run", "demo", "x", &format!("{option}= ")]).failed(2);
        assert_eq!(
            line,
            format!("error: `{option}` is empty (hint: name a file, or leave it out)")
        );
    }
}

#[test]
fn text_on_standard_input_next_to_a_prompt_is_not_dropped_without_a_word() {
    let note = "standard input is not read, since there is a prompt";
    let outcome = tokenmill_with(&["run", "demo", "Summarize:", "-n", "1"], "a text");
    assert!(
        outcome.code == 0 && outcome.stderr.contains(note),
        "{}",
        outcome.stderr
    );
    let outcome = tokenmill_with(&["run", "demo", "Summarize:", "-n", "1"], "");
    assert!(
        outcome.code == 0 && !outcome.stderr.contains(note),
        "{}",
        outcome.stderr
    );
}

#[test]
fn a_server_has_an_address_and_a_certificate_that_can_be_read() {
    let line = refused("serve demo --host no.such.name.invalid", 2);
    assert!(
        line.starts_with("error: `--host no.such.name.invalid` is not an address to listen on: "),
        "{line}"
    );
    insta::assert_snapshot!(
        tokenmill("serve demo --port 0 --tls-cert no-such.pem --tls-key no-such.key".split(' ')).error_line(3),
        @"error: cannot use the TLS file no-such.pem: I/O error: No such file or directory (hint: both files are PEM)"
    );
}

#[test]
fn folders_of_a_server_are_folders_and_their_limits_have_units() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, b"x").unwrap();
    for option in ["--prefix-dir", "--session-dir"] {
        let line = tokenmill(["serve", "demo", "--port", "0", option, arg(&file)]).error_line(2);
        assert!(
            line.contains(&format!("`{option} ")) && line.contains("is a file, and a folder is expected"),
            "{line}"
        );
        // A folder below a file cannot be made.
        let below = file.join("below");
        let line = tokenmill(["serve", "demo", "--port", "0", option, arg(&below)]).error_line(4);
        assert!(
            line.starts_with(&format!("error: cannot make the folder {}: ", arg(&below))),
            "{line}"
        );
        let limit = format!("{option}-bytes");
        let line = tokenmill(["serve", "demo", "--port", "0", &limit, "1GiB"]).failed(2);
        assert!(
            line.contains(&format!("needs `{option} <DIR>` as well")),
            "{line}"
        );
        let line =
            tokenmill(["serve", "demo", "--port", "0", option, arg(&file), &limit, "1GiB"]).error_line(2);
        assert!(line.contains("is a file"), "{line}");
    }
    let line = tokenmill(["serve", "none.gguf", "--port", "0", "--max-body-bytes", "2MB"]).error_line(3);
    assert!(line.contains("none.gguf"), "{line}");
}

#[test]
fn options_that_need_another_and_values_of_a_list_are_refused_in_a_line() {
    assert_eq!(
        refused("serve demo --session-dir-bytes 5GiB", 2),
        "error: `--session-dir-bytes` needs `--session-dir <DIR>` as well (hint: `tokenmill serve --help` describes the options)"
    );
    // Each option is named with what it needs itself.
    for line in [
        "serve demo --tls-cert c --session-dir-bytes 5GiB",
        "serve demo --session-dir-bytes 5GiB --tls-cert c",
    ] {
        let found = refused(line, 2);
        let [cert, dir] = [
            "`--tls-cert` needs `--tls-key <FILE>` as well",
            "`--session-dir-bytes` needs `--session-dir <DIR>` as well",
        ];
        let expected = if line.ends_with(" c") { dir } else { cert };
        assert!(
            found.starts_with(&format!("error: {expected} (hint")),
            "{line}: {found}"
        );
    }
    assert_eq!(
        refused("bench-serve http://127.0.0.1:1 --rounds=2 --mix plain=1", 2),
        "error: `--rounds` needs `--against-plain` as well (hint: `tokenmill bench-serve --help` describes the options)"
    );
    // The values of the other options are not arguments of their own.
    for (line, option, needed) in [
        ("run demo x --temp 0 --keep 5", "--keep", "--context-shift"),
        ("chat demo --seed 3 --keep 4", "--keep", "--context-shift"),
        (
            "run demo x -ngl 0 -np 2 --keep=5 --temp=0",
            "--keep",
            "--context-shift",
        ),
        (
            "bench demo -n 4 --output md --draft demo",
            "--draft",
            "--follow <FILE>",
        ),
    ] {
        let found = refused(line, 2);
        let expected = format!("error: `{option}` needs `{needed}` as well (hint");
        assert!(found.starts_with(&expected), "{line}: {found}");
    }
    assert_eq!(
        refused("run demo x --spec-max 99", 2),
        "error: `99` is not a value for `--spec-max`: expected a whole number from 1 to 32"
    );
    assert_eq!(
        refused("run demo x -ctk bf16", 2),
        "error: `bf16` is not a value for `-ctk` (hint: it takes f32, f16, q8_0, e4m3 (fp8), q4_0)"
    );
}
