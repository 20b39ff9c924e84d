//! Rows of the README that list what a registry has.
//!
//! Separate because it is about what the program can do and not about how it is written. Invariant: a list in the README is the
//! registry's, in its order.

use tokenmill_quant::Format;

use super::Finding;

const README: &str = "README.md";

/// Checks the README.
pub(super) fn check(text: &str) -> Vec<Finding> {
    let types: Vec<_> = Format::all().iter().map(Format::name).collect();
    let row = format!("| tensor types | {} |", types.join(", "));
    if text.lines().any(|line| line == row) {
        return Vec::new();
    }
    vec![Finding::error(
        README.to_owned(),
        format!("the row of tensor types must be `{row}`"),
    )]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_that_the_readme_lacks_is_found() {
        let findings = check("| tensor types | F32 |\n");
        let (_, row) = findings[0].message.split_once('`').unwrap();
        assert_eq!(check(row.trim_end_matches('`')), []);
    }
}
