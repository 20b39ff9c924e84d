//! Where reference data of others is found.
//!
//! Separate so that the rule stands once: tests name the variable, print that they were skipped where it is not set, and
//! never fail for want of data.

use std::{
    io::{Write, stderr},
    path::PathBuf,
};

/// The folder of reference data, from the variable `TOKENMILL_TEST_DATA`; says on stderr that `test` is skipped where it
/// is not set.
pub fn test_data(test: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("TOKENMILL_TEST_DATA").map(PathBuf::from);
    if folder.is_none() {
        // Not `eprintln!`, which the test harness shows of failed tests only.
        let _ = writeln!(
            stderr(),
            "{test}: skipped, since TOKENMILL_TEST_DATA names no folder of reference data"
        );
    }
    folder
}
