//! Thread placement: `--cpu-range`, `--cpu-strict` and `--numa` change no token, and impossible placements
//! are refused.

use serde_json::Value;

use crate::support::tokenmill;

fn ids(extra: &[&str]) -> Value {
    let base = [
        "run",
        "--raw",
        "demo",
        "Once upon",
        "-n",
        "20",
        "--temp",
        "0",
        "--json",
        "-c",
        "256",
    ];
    let answer: Value = serde_json::from_str(&tokenmill([&base, extra].concat()).ok()).unwrap();
    answer["ids"].clone()
}

/// The processors that this process may use, as the system writes them.
fn given() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.unwrap().trim().to_owned()
}

#[test]
fn threads_that_are_placed_say_the_same() {
    let (given, expected) = (given(), ids(&[]));
    let first = given.split(['-', ',']).next().unwrap();
    for extra in [
        &["--cpu-range", &given][..],
        &["-Cr", first, "-t", "3"],
        &["--cpu-strict", "1"],
        &["--cpu-strict", "1", "--cpu-range", first, "-t", "2", "-tb", "3"],
        &["--numa", "distribute"],
        &["--numa", "isolate", "--cpu-strict", "1"],
        &["--numa", "numactl", "--cpu-strict", "0"],
    ] {
        assert_eq!(ids(extra), expected, "{extra:?}");
    }
}

#[test]
fn more_threads_than_the_processors_that_are_left_are_warned_of() {
    let given = given();
    let first = given.split(['-', ',']).next().unwrap();
    let said = |extra: &[&str]| {
        let outcome = tokenmill([&["run", "--raw", "demo", "Once", "-n", "1"], extra].concat());
        let said = outcome.stderr.clone();
        assert!(outcome.ok().starts_with("Once"));
        said
    };
    let many = said(&["-t", "1000"]);
    assert!(many.starts_with("`-t 1000` is more than the "), "{many}");
    let two = said(&["--cpu-range", first, "-t", "2"]);
    assert!(
        two.starts_with("`-t 2` is more than the 1 processor available and slower; leave `-t` out"),
        "{two}"
    );
    for one in [said(&["-t", "1"]), said(&["--cpu-range", first, "-t", "1"])] {
        assert!(!one.contains("processors"), "{one}");
    }
}

#[test]
fn processors_that_are_not_there_are_refused_by_number() {
    let line = tokenmill(["run", "--raw", "demo", "Once", "-n", "1", "--cpu-range", "1023"]).failed(2);
    assert!(
        line.contains("processor 1023 does not exist or is not available to this process"),
        "{line}"
    );
    assert!(line.contains(&given()), "{line}");
}

#[test]
fn lists_and_words_that_make_no_sense_are_refused() {
    for (flag, value) in [
        ("--cpu-range", "3-1"),
        ("--cpu-range", "1024"),
        ("--cpu-range", ""),
        ("--numa", "interleave"),
        ("--cpu-strict", "2"),
    ] {
        let line = tokenmill(["run", "--raw", "demo", "Once", flag, value]).error_line(2);
        assert!(line.contains(flag), "{line}");
    }
    let line = tokenmill(["run", "--raw", "demo", "Once", "--cpu-mask", "f"]).error_line(2);
    assert!(line.contains("--cpu-range 0-3,8"), "{line}");
}
