//! The count of comparisons with other software, and its report.

use tokenmill_testkit::comparisons::{Comparisons, Count, Row, shortfalls, table};

#[test]
fn the_report_tells_what_ran_what_was_skipped_and_what_is_silent() {
    let row = |name, reference, n_core| Row {
        name,
        reference,
        n_core,
    };
    let count = |n_compared, reasons: &[(&str, usize)]| {
        let skipped = reasons
            .iter()
            .map(|(reason, n)| ((*reason).to_owned(), *n))
            .collect();
        Some(Count { n_compared, skipped })
    };
    let rows = [
        (
            &row("logits", "transformers", 7),
            count(7, &[("no data", 3), ("no format", 1)]),
        ),
        (&row("templates", "transformers", 6), count(5, &[("no data", 2)])),
        (&row("perplexity", "llama.cpp", 9), None),
    ];
    assert_eq!(
        shortfalls(&rows),
        ["`templates` made 5 comparisons, and tests/data alone gives 6: a fixture is missing or not found"]
    );
    let text = table(&rows);
    let words: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(words[1], ["logits", "transformers", "7", "4"]);
    assert_eq!(words[2], ["templates", "transformers", "5", "2"]);
    assert_eq!(words[3], ["perplexity", "llama.cpp", "did", "not", "run"]);
    assert_eq!(words[4], ["all", "12", "6"]);
    assert_eq!(words[5], ["5", "skipped:", "no", "data"]);
    assert_eq!(words[6], ["1", "skipped:", "no", "format"]);
    assert!(
        text.ends_with(
            "1 of the tests did not run since the last report; `cargo test --workspace` runs all\n"
        )
    );
}

#[test]
fn what_is_not_there_is_counted() {
    let mut comparisons = Comparisons::of_core_set("logits, CPU");
    assert!(comparisons.find("no/such/fixture").is_none());
    assert!(comparisons.find("parity/qwen2/ref.json").is_some());
    assert_eq!(comparisons.count().skipped.values().sum::<usize>(), 1);
    // Not for the report.
    std::mem::forget(comparisons);
}
