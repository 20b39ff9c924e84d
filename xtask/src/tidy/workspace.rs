//! The rules that need all files: names that a layer must not use, items that may exist only once, and unused items.
//!
//! They read text and not types, so they are cheap and prefer to miss a finding. Invariant: a rule counts a name only in
//! code.

use std::collections::{BTreeMap, HashMap};

use super::{Finding, RustFile};

/// Crates that name no device.
const NAME_NO_DEVICE: &[&str] = &["backend", "model", "sched"];
/// Names of devices.
const DEVICES: [&str; 5] = ["cuda", "cudarc", "ptx", "nvidia", "avx"];

/// Crates whose names are counted separately: they are not part of the product.
const NOT_PRODUCT: [&str; 3] = ["testkit", "ptx-sim", "sim-driver"];

/// Names that two crates have for different things: a network and the front door's model, a GPU and the choice of a
/// device, a quant block and a block of a message; and the matrices and the KV store of each executor, which the seam
/// names as associated types.
const KNOWN_TWINS: &[&str] = &["Block", "Device", "KvStore", "Matrix", "Model"];

/// Kinds of items that have one owner. Functions are not included: the module qualifies names such as `check` and `run`.
const OWNED: &[&str] = &["struct", "enum", "trait", "type", "const", "static"];

/// Public items that nothing in the workspace uses: calls for programs with their own asynchronous runtime.
const KNOWN_UNUSED: &[&str] = &["into_stream"];

/// Checks all files.
pub(super) fn check(files: &[RustFile]) -> Vec<Finding> {
    let mut findings = device_names(files, NAME_NO_DEVICE);
    findings.extend(twins(files));
    findings.extend(unused(files));
    findings
}

/// Returns the crate of a file below `crates`.
fn crate_of(path: &str) -> Option<&str> {
    path.strip_prefix("crates/")?.split('/').next()
}

fn device_names(files: &[RustFile], crates: &[&str]) -> Vec<Finding> {
    let is_bound = |file: &&RustFile| {
        file.is_product() && crate_of(&file.path).is_some_and(|name| crates.contains(&name))
    };
    let mut findings = Vec::new();
    for file in files.iter().filter(is_bound) {
        for (line_number, line) in file.source.product_lines() {
            let code = line.code.to_lowercase();
            if let Some(device) = DEVICES.iter().find(|device| code.contains(**device)) {
                findings.push(Finding::error(
                    format!("{}:{line_number}", file.path),
                    format!("names `{device}`; this crate names no device"),
                ));
            }
        }
    }
    findings
}

/// A public item: its place, its kind, and its name.
struct Item<'a> {
    path: &'a str,
    line_number: usize,
    kind: &'a str,
    name: &'a str,
}

/// Lists the public items of a file. `starts` are the beginnings of their lines.
fn items<'a>(file: &'a RustFile, kinds: &'a [&'a str], is_nested: bool) -> impl Iterator<Item = Item<'a>> {
    file.source
        .product_lines()
        .filter_map(move |(line_number, line)| {
            let code = if is_nested {
                line.code.trim_start()
            } else {
                &line.code
            };
            let mut rest = code.strip_prefix("pub ")?;
            // `pub const fn` is a function, not a constant.
            if rest.contains("fn ") {
                rest = rest
                    .trim_start_matches("const ")
                    .trim_start_matches("unsafe ")
                    .trim_start_matches("async ");
            }
            let (kind, rest) = rest.split_once(' ')?;
            let kind = kinds.iter().find(|known| **known == kind)?;
            let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
            let path = &file.path;
            Some(Item {
                path,
                line_number,
                kind,
                name,
            })
        })
}

fn twins(files: &[RustFile]) -> Vec<Finding> {
    let mut owners: BTreeMap<&str, Vec<Item<'_>>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.is_product()) {
        if crate_of(&file.path).is_none_or(|name| NOT_PRODUCT.contains(&name)) {
            continue;
        }
        for item in items(file, OWNED, false) {
            owners.entry(item.name).or_default().push(item);
        }
    }
    let mut findings = Vec::new();
    for (name, items) in &owners {
        let first = &items[0];
        let other = items
            .iter()
            .find(|item| crate_of(item.path) != crate_of(first.path));
        if let Some(other) = other.filter(|_| !KNOWN_TWINS.contains(name)) {
            findings.push(Finding::error(
                format!("{}:{}", other.path, other.line_number),
                format!(
                    "`{} {name}` is also in {}; a fact has one owner",
                    other.kind, first.path
                ),
            ));
        }
    }
    findings
}

fn unused(files: &[RustFile]) -> Vec<Finding> {
    let mut n_uses: HashMap<&str, usize> = HashMap::new();
    for file in files {
        for line in &file.source.lines {
            for word in line.code.split(|c: char| !c.is_alphanumeric() && c != '_') {
                *n_uses.entry(word).or_default() += 1;
            }
        }
    }
    let kinds = ["fn", "struct", "enum", "const", "static", "trait", "type"];
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.is_product()) {
        for item in items(file, &kinds, true) {
            if n_uses.get(item.name) == Some(&1) && !KNOWN_UNUSED.contains(&item.name) {
                findings.push(Finding::error(
                    format!("{}:{}", item.path, item.line_number),
                    format!("nothing uses `{}`, no test and no example either", item.name),
                ));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> RustFile {
        RustFile::parse(path.to_owned(), text)
    }

    fn check(findings: &[Finding], expected: &[&str]) {
        let messages: Vec<&str> = findings.iter().map(|finding| finding.message.as_str()).collect();
        assert_eq!(messages.len(), expected.len(), "{messages:?}");
        for (message, expected) in messages.iter().zip(expected) {
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn a_crate_that_names_no_device_names_none_in_code() {
        let files = [
            file(
                "crates/model/src/a.rs",
                "//! Cuda.\nuse cuda_exec::A; // PTX\nfn f() { g(\"cuda\") }\n",
            ),
            file("crates/cuda-exec/src/a.rs", "//! A.\nuse cudarc::A;\n"),
            file("crates/model/tests/a.rs", "//! A.\nuse cuda_exec::A;\n"),
        ];
        check(&device_names(&files, &["model"]), &["names `cuda`"]);
        check(&device_names(&files, &["sched"]), &[]);
    }

    #[test]
    fn a_public_type_or_constant_exists_once() {
        let text = "//! A.\npub enum Kind {}\npub const SIZE: usize = 1;\npub struct Plan;\nimpl A {\n    \
                    pub const ALL: u8 = 1;\n}\npub fn check() {}\n";
        let files = [
            file("crates/a/src/a.rs", text),
            file("crates/b/src/a.rs", &text.replace("pub enum", "pub(crate) enum")),
            file("crates/testkit/src/a.rs", text),
        ];
        check(
            &twins(&files),
            &[
                "`struct Plan` is also in crates/a/src/a.rs",
                "`const SIZE` is also in crates/a/src/a.rs",
            ],
        );
    }

    #[test]
    fn a_public_item_is_used_somewhere() {
        let files = [
            file(
                "crates/a/src/a.rs",
                "//! lonely\nimpl A {\n    pub const fn lonely() {}\n    pub fn used() {}\n}\n",
            ),
            file(
                "crates/a/tests/a.rs",
                "//! A.\nfn test() { A::used() } // lonely\n",
            ),
        ];
        check(&unused(&files), &["nothing uses `lonely`"]);
    }
}
