//! Prints how much was compared with other software, and what was skipped and why; fails where a test compared less than the
//! core set gives.
//!
//! Not a test of libtest, which would hide it. Cargo tests packages in the order of their names, so this one is the last;
//! in another order the report says which tests had not run, and nothing is counted twice.

use std::{fs, io::Write as _, path::Path, process::ExitCode};

fn main() -> ExitCode {
    let (report, shortfalls) = tokenmill_testkit::take_report();
    // A reader that went away is no failure of the tests.
    let _ = writeln!(std::io::stdout(), "\n{report}");
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("comparisons.txt");
    if let Err(error) = fs::write(&kept, report) {
        println!("cannot keep the report in {}: {error}", kept.display());
    }
    for shortfall in &shortfalls {
        println!("{shortfall}");
    }
    ExitCode::from(u8::from(!shortfalls.is_empty()))
}
