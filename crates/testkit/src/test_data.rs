//! Where reference data of others is found, and how a test says that it cannot run here.
//!
//! Separate so that both rules stand once: nothing else in the workspace reads `TOKENMILL_TEST_DATA`, and every comparison
//! that does not run goes through [`skip`]. A test never fails for want of data.

use std::{
    io::{Write, stderr},
    path::PathBuf,
};

/// The folder of reference data, from the variable `TOKENMILL_TEST_DATA`; skips `comparison` where it is not set.
pub fn test_data(comparison: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("TOKENMILL_TEST_DATA").map(PathBuf::from);
    if folder.is_none() {
        skip(
            comparison,
            "TOKENMILL_TEST_DATA does not name the folder of reference data",
        );
    }
    folder
}

/// Says on stderr that a comparison is skipped, and why.
pub fn skip(comparison: &str, reason: &str) {
    // Not `eprintln!`, which the test harness shows of failed tests only.
    let _ = writeln!(stderr(), "{comparison}: skipped, {reason}");
}
