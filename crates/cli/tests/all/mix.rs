//! `bench-serve --mix`: chats of several kinds side by side.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::Stdio,
};

use serde_json::Value;

use crate::support::{arg, command, end_of, interrupt, tokenmill};

#[test]
fn a_mix_is_measured_and_compared_with_plain_streams() {
    let mut server = command(["serve", "demo", "--port", "0"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut log = BufReader::new(server.stderr.take().unwrap()).lines();
    let address = loop {
        let line = log.next().expect("the server goes on").expect("its log is text");
        if let Some((_, rest)) = line.split_once("address=\"") {
            break rest.split('"').next().unwrap().to_owned();
        }
    };
    // Its pipe must not fill up.
    std::thread::spawn(move || log.for_each(drop));
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("mix.json");
    let mix = [
        "bench-serve",
        &address,
        "--mix",
        "plain=2,json,tools,reasoning",
        "--requests",
        "5",
        "--max-tokens",
        "12",
    ];
    let rest = [
        "--prompt-words",
        "8",
        "--against-plain",
        "--rounds",
        "1",
        "--live",
        "--json",
        arg(&json),
    ];
    let table = tokenmill([&mix[..], &rest].concat()).ok();
    assert!(table.contains("| reasoning | 1 | 12 |"), "{table}");
    assert!(
        table.contains("longest stall: ") && table.contains("median ratio: "),
        "{table}"
    );
    let report: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let kinds = report["runs"][0]["kinds"].as_object().expect("kinds");
    for (kind, n_answers) in [("plain", 2), ("json", 1), ("tools", 1), ("reasoning", 1)] {
        assert_eq!(kinds[kind]["answers"], n_answers, "{report}");
        assert_eq!(kinds[kind]["tokens"], 12 * n_answers, "{report}");
    }
    assert!(
        report["against_plain"]["median_ratio"]
            .as_f64()
            .is_some_and(|ratio| ratio > 0.0),
        "{report}"
    );

    let wrong = tokenmill(["bench-serve", &address, "--mix", "plain=1,image=1"]);
    assert_eq!(wrong.code, 2);
    assert!(
        wrong.stderr.contains("none of plain, json, tools and reasoning"),
        "{}",
        wrong.stderr
    );
    interrupt(&server);
    assert_eq!(end_of(server).code, 0);
}
