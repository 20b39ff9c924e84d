//! The rules that concern a single file.
//!
//! Each rule is a function from a file to findings, so that each has its own test. Invariant: only the path of a file
//! decides its kind (library, test, island).

use super::{
    Finding,
    source::{Line, Source},
};

/// Lines above which a file is worth a look.
const NOTE_LINES: usize = 600;

/// Words that mean unfinished work, in comments.
const UNFINISHED: [&str; 6] = ["FIXME", "TODO", "XXX", "HACK", "for now", "placeholder"];
/// Phrases for which the field has plainer words, in comments and in prose, and a suggested word.
const PHRASES: [(&str, &str); 12] = [
    ("anew", "again"),
    ("beside", "with, next to, compared with"),
    ("for want of", "because ... is missing"),
    ("go on", "continue"),
    ("goes on", "continues"),
    ("in vain", "without effect"),
    ("lets go of", "releases"),
    ("nobody", "no caller, no thread"),
    ("of its own accord", "by itself"),
    ("spoken of", "reported"),
    ("went on", "continued"),
    ("what became of", "the result of"),
];
/// Words with which no sentence may begin: the subject is the thing itself.
const OPENINGS: [&str; 5] = ["What ", "Who ", "Whose ", "Those ", "Of "];
/// Records of the past, which keep their original sentences.
const RECORDS: [&str; 4] = ["CHANGELOG.md", "bench/", "docs/decisions/", "docs/notebook/"];
/// Macros and attributes with the same meaning, in code.
const FORBIDDEN_CODE: [&str; 5] = ["todo!", "unimplemented!", "dbg!", "#[ignore", "#![ignore"];
/// The macros that a library must not use, because it does not print.
const PRINTING: [&str; 4] = ["println!", "print!", "eprintln!", "eprint!"];

/// Files that may use `unsafe`: the file map, SIMD kernels, the thread pool, the CUDA driver layer.
const UNSAFE_ISLANDS: [&str; 11] = [
    "crates/gguf/src/storage",
    // The constructor that maps, which is unsafe to call, and its test.
    "crates/gguf/src/file.rs",
    "crates/gguf/tests/all/files.rs",
    "crates/quant/src/simd",
    // The whole crate.
    "crates/cpu-kernels/src",
    "crates/cpu-exec/src/pool",
    "crates/cuda-exec/src/driver",
    "crates/ptx-sim/src/exec/simd",
    // The same interface from the other side, for tests.
    "crates/sim-driver/src/api",
    "crates/sim-driver/src/host_memory",
    // An allocator that counts, for one test.
    "crates/testkit/tests/step_allocations",
];
/// Crates with an island: their roots deny `unsafe` instead of forbidding it.
const ISLAND_CRATES: [&str; 6] = [
    "crates/gguf/",
    "crates/quant/",
    "crates/cpu-exec/",
    "crates/cuda-exec/",
    "crates/ptx-sim/",
    "crates/sim-driver/",
];

/// Checks one file, given its path relative to the workspace root.
pub(super) fn check_file(path: &str, text: &str) -> Vec<Finding> {
    let mut report = Report {
        path,
        findings: Vec::new(),
    };
    if is_written_by_hand(path) {
        check_blanks(text, &mut report);
    }
    if has_extension(path, "md") && !path.starts_with("bench/runs/") {
        for (line_number, line) in (1..).zip(text.lines()) {
            check_phrases(line_number, line, &mut report);
            let is_record = RECORDS.iter().any(|record| path.starts_with(record));
            if !is_record && !line.starts_with('#') {
                check_openings(line_number, line, &mut report);
            }
        }
    }
    if has_extension(path, "rs") {
        let source = Source::parse(text);
        for (line_number, line) in (1..).zip(&source.lines) {
            check_phrases(line_number, &line.comment, &mut report);
            check_openings(line_number, &line.comment, &mut report);
        }
        check_module_docs(text, &mut report);
        check_size(text, &mut report);
        check_words(&source, &mut report);
        check_lint_exceptions(&source, &mut report);
        check_unsafe(path, &source, &mut report);
        if is_crate_root(path) {
            check_crate_root(path, &source, &mut report);
        }
        if is_library(path) {
            check_library(&source, &mut report);
        }
    }
    report.findings
}

struct Report<'a> {
    path: &'a str,
    findings: Vec<Finding>,
}

impl Report<'_> {
    fn error(&mut self, line_number: usize, message: impl Into<String>) {
        self.findings.push(Finding {
            place: format!("{}:{line_number}", self.path),
            message: message.into(),
            is_note: false,
        });
    }

    fn note(&mut self, message: String) {
        self.findings.push(Finding {
            place: self.path.to_owned(),
            message,
            is_note: true,
        });
    }
}

pub(super) fn has_extension(path: &str, extension: &str) -> bool {
    path.rsplit_once('.').is_some_and(|(_, found)| found == extension)
}

/// Returns whether a file is source or prose; data and snapshots are not checked.
fn is_written_by_hand(path: &str) -> bool {
    [
        "rs", "md", "toml", "cu", "cuh", "h", "sh", "py", "html", "js", "css", "yml",
    ]
    .iter()
    .any(|extension| has_extension(path, extension))
        || path == ".ci/run"
}

/// Packages that may print and read the environment: programs, and packages that only tests use.
const NOT_LIBRARIES: [&str; 4] = [
    "crates/cli/",
    "crates/testkit/",
    "crates/ptx-sim/",
    "crates/sim-driver/",
];

/// Library files that may read the environment: the server's, and the one that looks up models by name with the variables of
/// `huggingface_hub`.
const READ_ENVIRONMENT: [&str; 2] = ["crates/server/", "crates/tokenmill/src/named.rs"];

/// Returns whether a path is part of a library of the product.
fn is_library(path: &str) -> bool {
    let is_product = path.starts_with("crates/") && path.contains("/src/");
    let is_exempt = NOT_LIBRARIES.iter().any(|package| path.starts_with(package));
    let is_program = path.ends_with("/main.rs") || path.contains("/bin/");
    let is_test = path.ends_with("/tests.rs") || path.contains("/tests/");
    is_product && !is_exempt && !is_program && !is_test
}

fn is_crate_root(path: &str) -> bool {
    path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs") || path.contains("/src/bin/")
}

fn check_blanks(text: &str, report: &mut Report<'_>) {
    for (line_number, line) in (1..).zip(text.lines()) {
        if line.ends_with([' ', '\t', '\r']) {
            report.error(line_number, "blanks at the end of the line");
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        report.error(text.lines().count(), "the last line has no end");
    }
    if text.ends_with("\n\n") {
        report.error(text.lines().count(), "an empty line at the end of the file");
    }
}

fn check_module_docs(text: &str, report: &mut Report<'_>) {
    if !text.starts_with("//! ") {
        report.error(
            1,
            "the file must open with `//!`: what is here, why it is separate, the invariant it keeps",
        );
    }
}

fn check_size(text: &str, report: &mut Report<'_>) {
    let n_lines = text.lines().count();
    if n_lines > NOTE_LINES {
        report.note(format!(
            "{n_lines} lines; a file should have about 400, unless it is a flat table"
        ));
    }
}

fn check_words(source: &Source, report: &mut Report<'_>) {
    for (line_number, line) in (1..).zip(&source.lines) {
        for word in UNFINISHED {
            if contains_word(&line.comment, word) {
                report.error(
                    line_number,
                    format!("`{word}`: finish the work, or say what holds today"),
                );
            }
        }
        for word in FORBIDDEN_CODE {
            if contains_word(&line.code, word) {
                report.error(line_number, format!("`{word}` does not belong in the project"));
            }
        }
    }
}

fn check_phrases(line_number: usize, text: &str, report: &mut Report<'_>) {
    let text = text.to_lowercase();
    for (phrase, plain) in PHRASES {
        if contains_word(&text, phrase) {
            report.error(
                line_number,
                format!("`{phrase}`: say it plainly, such as \"{plain}\""),
            );
        }
    }
}

/// Checks the start of a line or of a table's cell, and the text after each mark that ends a sentence. Questions may begin
/// with these words.
fn check_openings(line_number: usize, text: &str, report: &mut Report<'_>) {
    let is_mark = |c: char| c.is_whitespace() || "/!*-".contains(c);
    for sentence in text.split_inclusive(['.', '?', '!', '|']) {
        let sentence = sentence.trim_start_matches(is_mark);
        let word = OPENINGS.iter().find(|word| sentence.starts_with(**word));
        if let Some(word) = word.filter(|_| !sentence.ends_with('?')) {
            let word = word.trim_end();
            report.error(
                line_number,
                format!("a sentence begins with `{word}`: begin with the thing"),
            );
        }
    }
}

/// Returns whether `text` contains `word` without a letter, digit or underscore next to it.
fn contains_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let starts_inside = word.starts_with(is_part) && text[..at].ends_with(is_part);
        let ends_inside = word.ends_with(is_part) && text[at + word.len()..].starts_with(is_part);
        !starts_inside && !ends_inside
    })
}

fn check_lint_exceptions(source: &Source, report: &mut Report<'_>) {
    for (line_idx, line) in source.lines.iter().enumerate() {
        if line.code.contains("#[allow(") || line.code.contains("#![allow(") {
            report.error(
                line_idx + 1,
                "use `#[expect(lint, reason = \"...\")]` instead of `allow`",
            );
        }
        if let Some(at) = line.code.find("[expect(") {
            let attribute = attribute_text(&line.code[at..], &source.lines[line_idx + 1..]);
            if !attribute.contains("reason") {
                report.error(line_idx + 1, "an `expect` attribute needs a reason");
            }
        }
    }
}

/// Returns the text of an attribute up to its closing bracket, which may be on a later line.
fn attribute_text(start: &str, later: &[Line]) -> String {
    let mut text = start.to_owned();
    for line in later {
        if text.contains(")]") {
            break;
        }
        text.push_str(&line.code);
    }
    match text.find(")]") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

fn check_unsafe(path: &str, source: &Source, report: &mut Report<'_>) {
    let is_island = UNSAFE_ISLANDS.iter().any(|island| path.starts_with(island));
    let is_simd = path.contains("/simd");
    for (line_number, line) in (1..).zip(&source.lines) {
        if !is_island && contains_word(&line.code, "unsafe") {
            report.error(
                line_number,
                "`unsafe` outside the file map, SIMD modules, thread pool and CUDA driver layer",
            );
        }
        let names_arch = line.code.contains("std::arch::") || line.code.contains("core::arch::");
        let detects =
            line.code.contains("is_x86_feature_detected") || line.code.contains("_feature_detected!");
        if names_arch && !detects && !is_simd {
            report.error(line_number, "`std::arch` outside a `simd` module");
        }
    }
}

fn check_crate_root(path: &str, source: &Source, report: &mut Report<'_>) {
    let has = |attribute| source.lines.iter().any(|line| line.code.trim() == attribute);
    let is_island_crate = ISLAND_CRATES.iter().any(|island| path.starts_with(island));
    if has("#![forbid(unsafe_code)]") || UNSAFE_ISLANDS.iter().any(|island| path.starts_with(island)) {
        return;
    }
    if !is_island_crate {
        report.error(1, "the crate root must have `#![forbid(unsafe_code)]`");
    } else if !has("#![deny(unsafe_code)]") {
        report.error(
            1,
            "the crate root must have `#![deny(unsafe_code)]`, which its island lifts for itself",
        );
    }
}

fn check_library(source: &Source, report: &mut Report<'_>) {
    let path = report.path;
    for (line_number, line) in source.product_lines() {
        for name in PRINTING {
            if contains_word(&line.code, name) {
                report.error(
                    line_number,
                    format!("`{name}` in a library; return the text, or use `tracing`"),
                );
            }
        }
        let reads_env = contains_word(&line.code, "env::var") || contains_word(&line.code, "env::var_os");
        if reads_env && !READ_ENVIRONMENT.iter().any(|known| path.starts_with(known)) {
            report.error(
                line_number,
                "a library that reads the environment; take the value as an argument",
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIBRARY: &str = "crates/sched/src/queue.rs";

    /// Checks that a file has exactly the findings whose messages start as given, notes included.
    fn check(path: &str, text: &str, expected: &[&str]) {
        let findings = check_file(path, text);
        assert_eq!(findings.len(), expected.len(), "{findings:#?}");
        for (finding, expected) in findings.iter().zip(expected) {
            assert!(finding.message.starts_with(expected), "{finding:?}");
        }
    }

    #[test]
    fn an_orderly_file_passes() {
        check(LIBRARY, "//! Queue.\n\nfn f() {}\n", &[]);
    }

    #[test]
    fn every_file_opens_with_docs() {
        check(LIBRARY, "fn f() {}\n", &["the file must open"]);
        check("README.md", "# Title\n", &[]);
    }

    #[test]
    fn blanks_at_ends_are_found_in_any_text() {
        check("README.md", "a \n\n", &["blanks at the end", "an empty line"]);
        check("README.md", "a", &["the last line has no end"]);
        check("crates/a/tests/snapshots/b.snap", "a \n\n", &[]);
    }

    #[test]
    fn long_files_are_a_note() {
        let text = format!("//! Long.\n{}", "fn f() {}\n".repeat(NOTE_LINES));
        check(LIBRARY, &text, &["601 lines"]);
        assert!(check_file(LIBRARY, &text)[0].is_note);
    }

    #[test]
    fn unfinished_work_is_found_in_code_and_comments() {
        check(LIBRARY, "//! A.\n// FIXME: later\n", &["`FIXME`"]);
        check(LIBRARY, "//! A.\nfn f() { todo!() }\n", &["`todo!`"]);
        check(LIBRARY, "//! A.\nconst WORDS: &str = \"FIXME todo!()\";\n", &[]);
    }

    #[test]
    fn prose_is_plain() {
        check("docs/a.md", "It goes on.\n", &["`goes on`"]);
        check(LIBRARY, "//! A.\n/// Nobody reads it.\n", &["`nobody`"]);
        check(
            LIBRARY,
            "//! Besides, an ago on.\nfn nobody() { g(\"anew\") }\n",
            &[],
        );
        check("bench/runs/a/README.md", "It goes on.\n", &[]);
    }

    #[test]
    fn sentences_begin_with_the_thing() {
        let finding = ["a sentence begins"];
        check(LIBRARY, "//! What is here.\n", &finding);
        check(LIBRARY, "//! A.\n/// It ends. Of these, one.\n", &finding);
        check(LIBRARY, "//! A.\n//! - Those that run.\n", &finding);
        check("docs/a.md", "| a | Whose model it is |\n", &finding);
        check(
            LIBRARY,
            "//! Tells what is here: Of Mice and Men.\n/// `\"What is 3 + 4?\"`, Whatever.\nconst A: &str = \"What now\";\n",
            &[],
        );
        check("docs/a.md", "## What is read\n\nWhat does it cost?\n", &[]);
        check("docs/decisions/0001-a.md", "What is read.\n", &[]);
    }

    #[test]
    fn lint_exceptions_need_a_reason() {
        check(
            LIBRARY,
            "//! A.\n#[allow(dead_code)]\nfn f() {}\n",
            &["use `#[expect"],
        );
        check(
            LIBRARY,
            "//! A.\n#[expect(dead_code)]\nfn f() {}\n",
            &["an `expect` attribute needs"],
        );
        check(
            LIBRARY,
            "//! A.\n#[expect(\n    dead_code,\n    reason = \"r\"\n)]\nfn f() {}\n",
            &[],
        );
    }

    #[test]
    fn unsafe_stays_on_its_islands() {
        let text = "//! A.\nfn f() { unsafe { g() } }\n";
        check(LIBRARY, text, &["`unsafe` outside"]);
        check("crates/quant/src/simd.rs", text, &[]);
        check(
            LIBRARY,
            "//! A.\n// This is unsafe to do.\n#![forbid(unsafe_code)]\n",
            &[],
        );
        check(
            LIBRARY,
            "//! A.\nuse std::arch::x86_64::*;\n",
            &["`std::arch` outside"],
        );
    }

    #[test]
    fn crate_roots_restrict_unsafe() {
        check(
            "crates/sched/src/lib.rs",
            "//! A.\n",
            &["the crate root must have `#![forbid"],
        );
        check(
            "crates/gguf/src/lib.rs",
            "//! A.\n",
            &["the crate root must have `#![deny"],
        );
        check("crates/gguf/src/lib.rs", "//! A.\n#![deny(unsafe_code)]\n", &[]);
    }

    #[test]
    fn libraries_neither_print_nor_read_the_environment() {
        check(
            LIBRARY,
            "//! A.\nfn f() { println!(); }\n",
            &["`println!` in a library"],
        );
        check(
            LIBRARY,
            "//! A.\nfn f() { std::env::var(\"A\"); }\n",
            &["a library that reads"],
        );
        check(
            LIBRARY,
            "//! A.\n#[cfg(test)]\nmod tests {\n    fn f() { println!(); }\n}\n",
            &[],
        );
        check("crates/cli/src/run.rs", "//! A.\nfn f() { println!(); }\n", &[]);
    }
}
