//! Reference data for the tests, found through `TOKENMILL_TEST_DATA`.

use std::{
    io::{Write, stderr},
    path::PathBuf,
};

/// The folder of reference data; prints why the test is skipped where there is none.
pub(crate) fn data() -> Option<PathBuf> {
    let path = std::env::var_os("TOKENMILL_TEST_DATA").map(PathBuf::from);
    if path.is_none() {
        // Not `eprintln!`, which the test harness shows of failed tests only.
        let _ = writeln!(
            stderr(),
            "skipped: TOKENMILL_TEST_DATA does not name the folder of reference data"
        );
    }
    path
}
