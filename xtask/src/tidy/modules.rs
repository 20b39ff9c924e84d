//! Import circles between the modules of a crate.
//!
//! A module here is a file or folder right below `src`. An item that the crate root re-exports counts for its module, so
//! that `use crate::Item` hides nothing. Tests do not count. Invariant: the list of known circles can only shrink.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, RustFile};

/// Remaining circles: a type and its methods in two files, or two types that name each other.
const KNOWN: &[(&str, &[&str])] = &[
    (
        "crates/cpu-exec",
        &["attention", "experts", "linear", "routes", "workspace"],
    ),
    ("crates/ptx-sim", &["decode", "kernel"]),
];

/// Checks all crates.
pub(super) fn check(files: &[RustFile]) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, Vec<&RustFile>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.is_product()) {
        if let Some((folder, _)) = file.path.split_once("/src/") {
            crates.entry(folder).or_default().push(file);
        }
    }
    let mut findings = Vec::new();
    let mut found = Vec::new();
    for (folder, files) in &crates {
        let imports = imports(folder, files);
        for circle in circles(&imports) {
            if !is_known(folder, &circle) {
                findings.push(Finding::error(
                    (*folder).to_owned(),
                    format!(
                        "modules import each other in a circle: {}; move what both need into a module below them",
                        describe(&circle, &imports)
                    ),
                ));
            }
            found.push((*folder, circle));
        }
    }
    for (folder, circle) in KNOWN {
        if !found
            .iter()
            .any(|(known, modules)| known == folder && modules == circle)
        {
            findings.push(Finding {
                place: (*folder).to_owned(),
                message: format!(
                    "the circle {} is gone or smaller; shorten the list in xtask/src/tidy/modules.rs",
                    circle.join(", ")
                ),
                is_note: true,
            });
        }
    }
    findings
}

/// Returns whether a circle is in the list, or a part of one in it.
fn is_known(folder: &str, circle: &[&str]) -> bool {
    KNOWN
        .iter()
        .any(|(known, modules)| *known == folder && circle.iter().all(|module| modules.contains(module)))
}

/// Modules and their imports.
type Imports<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

fn describe(circle: &[&str], imports: &Imports<'_>) -> String {
    let arrows = circle.iter().flat_map(|from| {
        let targets = imports[from].iter().filter(|to| circle.contains(to));
        targets.map(move |to| format!("{from} -> {to}"))
    });
    arrows.collect::<Vec<_>>().join(", ")
}

/// Returns the module of a file, given its path below `src`.
fn module_of(path: &str) -> &str {
    let first = path.split('/').next().expect("a path has a first part");
    first.strip_suffix(".rs").unwrap_or(first)
}

fn imports<'a>(folder: &str, files: &[&'a RustFile]) -> Imports<'a> {
    let below_src = |file: &'a RustFile| &file.path[folder.len() + "/src/".len()..];
    let modules: BTreeSet<&str> = files.iter().map(|file| module_of(below_src(file))).collect();
    let root = files
        .iter()
        .find(|file| ["lib.rs", "main.rs"].contains(&below_src(file)));
    let mut exports: BTreeMap<&str, &str> = BTreeMap::new();
    if let Some(root) = root {
        for (statement_at, _) in root.code.match_indices("use ") {
            let statement = &root.code[statement_at + "use ".len()..];
            let statement = &statement[..statement.find(';').unwrap_or(0)];
            let mut words = words(statement).skip_while(|word| ["crate", "self"].contains(word));
            if let Some(module) = words.next().and_then(|word| modules.get(word)) {
                exports.extend(words.map(|item| (item, *module)));
            }
        }
    }
    let mut imports = Imports::new();
    for file in files {
        let path = below_src(file);
        let module = module_of(path);
        if ["lib", "main"].contains(&module) {
            continue;
        }
        let targets = imports
            .entry(*modules.get(module).expect("it has files"))
            .or_default();
        // `super` of a file right below `src` is the root.
        let prefixes = if path.contains('/') {
            &["crate::"][..]
        } else {
            &["crate::", "super::"]
        };
        for item in prefixes
            .iter()
            .flat_map(|prefix| items_behind(&file.code, prefix))
        {
            let target = modules.get(item).or_else(|| exports.get(item));
            targets.extend(target.filter(|target| **target != module));
        }
    }
    imports
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
}

/// Lists the first names of all paths that begin with `prefix`, groups included: `a` and `B` of `crate::{a::C, B}`.
fn items_behind<'a>(code: &'a str, prefix: &str) -> Vec<&'a str> {
    let mut items = Vec::new();
    for (at, _) in code.match_indices(prefix) {
        let rest = &code[at + prefix.len()..];
        let Some(group) = rest.strip_prefix('{') else {
            items.extend(words(rest).next());
            continue;
        };
        let mut depth = 0;
        let mut is_first = true;
        for (at, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => is_first = true,
                c if is_first && !c.is_whitespace() => {
                    items.extend(words(&group[at..]).next());
                    is_first = false;
                }
                _ => {}
            }
        }
    }
    items
}

/// Returns the sets of modules that all import each other, directly or through others.
fn circles<'a>(imports: &Imports<'a>) -> Vec<Vec<&'a str>> {
    let reachable: Imports<'a> = imports
        .keys()
        .map(|from| (*from, reachable(from, imports)))
        .collect();
    let reaches = |from: &str, to: &str| reachable.get(from).is_some_and(|set| set.contains(to));
    let mut circles: Vec<Vec<&str>> = imports
        .keys()
        .filter(|module| reaches(module, module))
        .map(|module| {
            let others = imports.keys().copied();
            others
                .filter(|other| reaches(module, other) && reaches(other, module))
                .collect()
        })
        .collect();
    circles.dedup();
    circles.sort();
    circles.dedup();
    circles
}

fn reachable<'a>(from: &str, imports: &Imports<'a>) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&str> = imports[from].iter().copied().collect();
    while let Some(module) = open.pop() {
        if found.insert(module) {
            open.extend(imports.get(module).into_iter().flatten());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> RustFile {
        RustFile::parse(format!("crates/a/src/{path}"), text)
    }

    fn check_all(files: &[RustFile], expected: &[&str]) {
        let errors = check(files).into_iter().filter(|finding| !finding.is_note);
        let messages: Vec<String> = errors.map(|finding| finding.message).collect();
        assert_eq!(messages.len(), expected.len(), "{messages:?}");
        for (message, expected) in messages.iter().zip(expected) {
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn a_circle_is_found_through_groups_and_re_exports() {
        check_all(
            &[
                file(
                    "lib.rs",
                    "//! A.\nmod one;\nmod two;\npub use one::{One, other::Thing};\n",
                ),
                file(
                    "one.rs",
                    "//! A.\nuse crate::{\n    three::X,\n    two::{self, Two},\n};\n",
                ),
                file("two.rs", "//! A.\nfn f(_: crate::Thing) {}\n"),
                file("three.rs", "//! A.\n"),
            ],
            &["one -> two, two -> one"],
        );
    }

    #[test]
    fn parents_and_children_tests_and_comments_are_no_circle() {
        check_all(
            &[
                file("one.rs", "//! crate::two\nmod child;\nuse crate::two::Two;\n"),
                file(
                    "one/child.rs",
                    "//! A.\nuse super::One;\nuse crate::one::Other;\n",
                ),
                file(
                    "two.rs",
                    "//! A.\n#[cfg(test)]\nmod tests {\n    use crate::one::One;\n}\n",
                ),
                file("two/tests.rs", "//! A.\nuse crate::one::One;\n"),
            ],
            &[],
        );
    }
}
