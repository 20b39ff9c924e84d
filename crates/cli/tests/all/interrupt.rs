//! Ctrl-C: work ends with its exit code, and measurements so far are kept.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Child, Stdio},
};

use serde_json::Value;

use crate::support::{arg, await_handler, command, end_of, interrupt};

fn start(args: &[&str]) -> Child {
    command(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts")
}

#[test]
fn a_long_prompt_is_not_measured_to_its_end() {
    // Attention over so many tokens takes hours.
    let mut child = start(&["bench", "demo", "-p", "4000000", "-n", "0"]);
    await_handler(&mut child);
    interrupt(&child);
    assert_eq!(end_of(child).code, 130);
}

#[test]
fn a_long_chunk_is_not_scored_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.txt");
    fs::write(&text, "word and more of it, ".repeat(100_000)).unwrap();
    let mut child = start(&["perplexity", "demo", arg(&text), "-c", "200000"]);
    await_handler(&mut child);
    interrupt(&child);
    assert_eq!(end_of(child).code, 130);
}

#[test]
fn a_load_that_is_interrupted_reports_what_it_measured() {
    let mut server = start(&["serve", "demo", "--port", "0"]);
    let mut log = BufReader::new(server.stderr.take().unwrap()).lines();
    let mut next_line = || log.next().expect("the server goes on").expect("its log is text");
    let address = loop {
        if let Some((_, rest)) = next_line().split_once("address=\"") {
            break rest.split('"').next().unwrap().to_owned();
        }
    };
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("load.json");
    let mut load = start(&[
        "bench-serve",
        &address,
        "--model",
        "demo",
        "--warmup",
        "0",
        "--concurrency",
        "1",
        "--requests",
        "5000",
        "--max-tokens",
        "4",
        "--json",
        arg(&json),
    ]);
    await_handler(&mut load);
    // When the third is logged, the first two have ended on the side of the client too.
    for _ in 0..3 {
        while !next_line().contains("/v1/completions") {}
    }
    interrupt(&load);
    let load = end_of(load);
    assert_eq!(load.code, 130, "{}", load.stderr);
    assert!(
        load.stderr.contains(" of 5000 requests were measured"),
        "{}",
        load.stderr
    );
    assert!(load.stdout.contains("requests answered in"), "{}", load.stdout);
    let report: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert_eq!(report["interrupted"], true);
    let n_measured = report["requests"].as_array().unwrap().len();
    assert!((2..5000).contains(&n_measured), "{n_measured}");
    assert_eq!(report["report"]["answered"], n_measured);

    interrupt(&server);
    assert_eq!(end_of(server).code, 0);
}
