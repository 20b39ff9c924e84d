//! Finds tests that no program runs: those inside a library whose manifest says that it is not compiled as a test.
//!
//! It reads manifests. Invariant: a module counts as run if `tests/all/main.rs` compiles it from its source.

use super::{Finding, RustFile};

/// Finds tests in the library of a crate with `[lib] test = false`. `manifests` are paths and texts; `read` returns the text of a
/// file by its path, if there is one.
pub(super) fn check(
    manifests: &[(String, String)],
    files: &[RustFile],
    read: impl Fn(&str) -> Option<String>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, _) in manifests.iter().filter(|(_, text)| leaves_tests_out(text)) {
        let folder = path.strip_suffix("Cargo.toml").unwrap_or(path);
        let program = read(&format!("{folder}tests/all/main.rs")).unwrap_or_default();
        let compiled: Vec<&str> = (program.lines())
            .filter_map(|line| line.strip_prefix("#[path = \"../../src/")?.strip_suffix("\"]"))
            .collect();
        let source = format!("{folder}src/");
        for file in files {
            let Some(inner) = file.path.strip_prefix(&source) else {
                continue;
            };
            let is_compiled = |module: &&str| match module.strip_suffix("mod.rs") {
                Some(modules) => inner.starts_with(modules),
                None => inner == *module,
            };
            let is_test = |code: &str| code.contains("#[test]") || code.contains("cfg(test)");
            let first = (file.source.lines.iter()).position(|line| is_test(&line.code));
            if let Some(index) = first.filter(|_| !compiled.iter().any(is_compiled)) {
                findings.push(Finding::error(
                    format!("{}:{}", file.path, index + 1),
                    format!(
                        "nothing runs this test: {path} says `test = false`; put it into a module of {folder}tests/all"
                    ),
                ));
            }
        }
    }
    findings
}

/// Returns whether the section `[lib]` of a manifest says `test = false`.
fn leaves_tests_out(manifest: &str) -> bool {
    let library = manifest.lines().skip_while(|line| *line != "[lib]").skip(1);
    (library.take_while(|line| !line.starts_with('['))).any(|line| line == "test = false")
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHOUT: &str = "[package]\nname = \"a\"\n\n[lib]\ntest = false\n\n[dependencies]\n";

    fn found(manifest: &str, path: &str, program: Option<&str>) -> usize {
        let manifests = [("crates/a/Cargo.toml".to_owned(), manifest.to_owned())];
        let text = "//! A.\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn a() {}\n}\n";
        let files = [RustFile::parse(path.to_owned(), text)];
        let read = |path: &str| {
            assert_eq!(path, "crates/a/tests/all/main.rs");
            program.map(str::to_owned)
        };
        check(&manifests, &files, read).len()
    }

    #[test]
    fn a_library_that_is_no_test_has_no_tests() {
        assert_eq!(found(WITHOUT, "crates/a/src/b.rs", None), 1);
        assert_eq!(found(WITHOUT, "crates/a/src/b.rs", Some("mod b;\n")), 1);
        assert_eq!(found(WITHOUT, "crates/a/tests/all/b.rs", None), 0);
        assert_eq!(found(WITHOUT, "crates/ab/src/b.rs", None), 0);
        let with = WITHOUT.replace("[lib]\ntest = false", "[[bin]]\nname = \"a\"\ntest = false");
        assert_eq!(found(&with, "crates/a/src/b.rs", None), 0);
    }

    #[test]
    fn a_module_that_a_test_program_compiles_may_have_tests() {
        let of = |module: &str| format!("#[path = \"../../src/{module}\"]\nmod b;\n");
        for (module, path, expected) in [
            ("b.rs", "crates/a/src/b.rs", 0),
            ("c.rs", "crates/a/src/b.rs", 1),
            ("b/mod.rs", "crates/a/src/b/c.rs", 0),
            ("b/mod.rs", "crates/a/src/bc.rs", 1),
        ] {
            assert_eq!(
                found(WITHOUT, path, Some(&of(module))),
                expected,
                "{module} {path}"
            );
        }
    }
}
