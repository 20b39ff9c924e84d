//! Checks lists in the README and the docs, and a recipe, against the registries of the code.
//!
//! These are tests of the tools, since only the tools may read both. Invariant: a list has exactly the registry's entries, so
//! an architecture or a weight format is added to its page together with its code.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use tokenmill_model::{LoadError, Model};
use tokenmill_quant::Format;

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
    fs::read_to_string(path).unwrap()
}

/// Returns the names between backticks in one column of the rows that list architectures.
fn names_in_column(page: &str, column: usize) -> BTreeSet<&str> {
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.map(|row| row.split('|').nth(column).unwrap());
    // Every second piece stands between backticks.
    cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect()
}

/// Returns the classes of all folders that can be loaded, as the error for an unknown class lists them.
fn folder_classes() -> BTreeSet<&'static str> {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.json");
    fs::write(&config, r#"{"architectures": ["NoSuchClass"]}"#).unwrap();
    match Model::from_hf(folder.path(), &config) {
        Err(LoadError::UnknownArchitecture { supported, .. }) => supported.into_iter().collect(),
        Err(error) => panic!("another error: {error}"),
        Ok(_) => panic!("the class should be unknown"),
    }
}

#[test]
fn the_page_of_architectures_names_each_one_and_no_other() {
    let text = page("docs/architectures.md");
    let known: BTreeSet<&str> = tokenmill_model::architectures().into_iter().collect();
    assert_eq!(names_in_column(&text, 1), known, "the names in GGUF files");
    assert_eq!(
        names_in_column(&text, 3),
        folder_classes(),
        "the classes in folders"
    );
}

/// The newest architecture: its name, its class in folders and its family. The recipe of CONTRIBUTING promises two files.
const NEWEST: (&str, &str, &str) = ("afmoe", "AfmoeForCausalLM", "afmoe");

/// Lists the Rust files below a folder whose product code says one of the words.
fn files_that_say(folder: &Path, words: &[String], found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_that_say(&path, words, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let product = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
            if words.iter().any(|word| product.contains(word.as_str())) {
                found.push(path);
            }
        }
    }
}

#[test]
fn the_newest_architecture_stands_in_two_files() {
    let (name, class, family) = NEWEST;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let words = [
        format!("\"{name}\""),
        class.to_owned(),
        format!("mod {family};"),
        format!("{family}::"),
    ];
    let mut found = Vec::new();
    for entry in fs::read_dir(root.join("crates")).unwrap() {
        let source = entry.unwrap().path().join("src");
        // Pre-tokenizers have names of their own, some of which are also those of architectures.
        if source.is_dir() && !source.ends_with("text/src") {
            files_that_say(&source, &words, &mut found);
        }
    }
    found.sort();
    let arch = root.join("crates/model/src/arch");
    let mut expected = [arch.join(format!("{family}.rs")), arch.join("mod.rs")];
    expected.sort();
    assert_eq!(
        found, expected,
        "an architecture is a file of its family and a row"
    );
    assert!(tokenmill_model::architectures().contains(&name));
    assert!(folder_classes().contains(class));
}

#[test]
fn the_readme_counts_the_architectures() {
    let text = page("README.md");
    let n_known = tokenmill_model::architectures().len();
    for count in [
        format!("| model architectures | {n_known} |"),
        format!("lists all {n_known} architectures"),
    ] {
        assert!(text.contains(&count), "the README should contain `{count}`");
    }
}

#[test]
fn the_readme_names_every_tensor_type_in_order() {
    let types: Vec<_> = Format::all().iter().map(Format::name).collect();
    let row = format!("| tensor types | {} |", types.join(", "));
    let text = page("README.md");
    assert!(text.lines().any(|line| line == row), "the row must be `{row}`");
}
