//! The README's list of architectures is the registry's.
//!
//! A test of the tools, since only they may read both. Invariant: whoever adds an architecture adds it to the README.

use std::{collections::BTreeSet, path::Path};

#[test]
fn the_readme_names_every_architecture_and_no_other() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let text = std::fs::read_to_string(path).unwrap();
    let rows = (text.lines())
        .filter(|line| line.starts_with("| architectures |") || line.starts_with("| encoders |"));
    // Every second piece stands between backticks.
    let named: BTreeSet<&str> = rows.flat_map(|row| row.split('`').skip(1).step_by(2)).collect();
    let known: BTreeSet<&str> = tokenmill_model::architectures().into_iter().collect();
    assert_eq!(
        named, known,
        "the names in the README's rows, and those of the registry"
    );
    let count = format!("| model architectures | {} |", known.len());
    assert!(
        text.contains(&count),
        "the comparison's row should begin with {count}"
    );
}
