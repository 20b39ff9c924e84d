//! Prints how much was compared with other software, and what was skipped and why.
//!
//! Not a test of libtest, which would hide it. Cargo tests packages in the order of their names, so this one is the last;
//! in another order the report says which tests had not run, and nothing is counted twice.

use std::{fs, io::Write as _, path::Path};

fn main() {
    let report = tokenmill_testkit::take_report();
    // A reader that went away is no failure of the tests.
    let _ = writeln!(std::io::stdout(), "\n{report}");
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("comparisons.txt");
    if let Err(error) = fs::write(&kept, report) {
        println!("cannot keep the report in {}: {error}", kept.display());
    }
}
