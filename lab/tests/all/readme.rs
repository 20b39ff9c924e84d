//! Rows of the README that list what a registry has.
//!
//! Tests of the tools, since only they may read both. Invariant: a list in the README is the registry's; whoever adds an
//! architecture or a weight format adds it there.

use std::{collections::BTreeSet, path::Path};

use tokenmill_quant::Format;

fn readme() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn the_readme_names_every_architecture_and_no_other() {
    let text = readme();
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

#[test]
fn the_readme_names_every_tensor_type_in_order() {
    let types: Vec<_> = Format::all().iter().map(Format::name).collect();
    let row = format!("| tensor types | {} |", types.join(", "));
    let text = readme();
    assert!(text.lines().any(|line| line == row), "the row must be `{row}`");
}
