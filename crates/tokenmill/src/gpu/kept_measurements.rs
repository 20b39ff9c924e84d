//! Stores measurements of this machine in files for the next load.
//!
//! Bandwidths and thresholds are stored alike. Invariants: a file counts only if it says that it is of the
//! same subject; a stale, damaged or unreadable file leads to a new measurement, and a file that cannot be
//! written stops no load.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::{
    atomic_write::write_atomically,
    checksum::checksum,
    measurements::{MeasuredWhen, Measurements},
};

/// Changes where values that were written before mean something else now.
const FORMAT: u64 = 1;

/// Maximum size of a file in bytes; a larger file is not a measurement.
const MAX_FILE_BYTES: u64 = 64 << 10;

impl Measurements {
    /// Returns the measurements of a load. While other models compute, earlier measurements are used, and new ones are not stored.
    pub(crate) fn of_load(&self, is_quiet: bool) -> OfLoad<'_> {
        OfLoad {
            measurements: self,
            is_quiet,
        }
    }
}

/// Measurements as a load takes and makes them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OfLoad<'a> {
    measurements: &'a Measurements,
    is_quiet: bool,
}

impl OfLoad<'_> {
    /// Reads the stored measurement of `subject`; `None` if it is to be measured again or there is no folder.
    pub(crate) fn find(&self, kind: &str, subject: &str) -> Option<Value> {
        let folder = self.measurements.folder.as_ref()?;
        let is_taken = self.is_quiet || !self.measurements.is_made_again;
        is_taken
            .then(|| read(&path_of(folder, kind, subject), subject))
            .flatten()
    }

    /// Stores the measurement of `subject` for the next load.
    ///
    /// # Errors
    /// Returns the system's error if the file cannot be written.
    pub(crate) fn keep(&self, kind: &str, subject: &str, values: &Value) -> io::Result<()> {
        let Some(folder) = &self.measurements.folder else {
            return Ok(());
        };
        write(folder, &path_of(folder, kind, subject), subject, values)
    }

    /// Returns the measurement of `subject` from this load or an earlier one. `kind` names the file; `from_json` reads the output of
    /// `to_json` and refuses other values.
    ///
    /// # Errors
    /// Returns the errors of `measure`.
    pub(crate) fn find_or_make<T, E>(
        &self,
        kind: &str,
        subject: &str,
        from_json: impl FnOnce(&Value) -> Option<T>,
        to_json: impl FnOnce(&T) -> Value,
        measure: impl FnOnce() -> Result<T, E>,
    ) -> Result<(T, MeasuredWhen), E> {
        self.find_or_try(kind, subject, from_json, to_json, || Ok((measure()?, None)))
    }

    /// Does the same as [`Self::find_or_make`]; `measure` may also say why its result must not be stored.
    ///
    /// # Errors
    /// Returns the errors of `measure`.
    pub(crate) fn find_or_try<T, E>(
        &self,
        kind: &str,
        subject: &str,
        from_json: impl FnOnce(&Value) -> Option<T>,
        to_json: impl FnOnce(&T) -> Value,
        measure: impl FnOnce() -> Result<(T, Option<String>), E>,
    ) -> Result<(T, MeasuredWhen), E> {
        let Some(folder) = &self.measurements.folder else {
            return Ok((measure()?.0, MeasuredWhen::Now { not_kept: None }));
        };
        let path = path_of(folder, kind, subject);
        if (self.is_quiet || !self.measurements.is_made_again)
            && let Some(found) = read(&path, subject).and_then(|values| from_json(&values))
        {
            return Ok((found, MeasuredWhen::Before));
        }
        let (measured, reason) = measure()?;
        let while_others = self.is_quiet.then(|| "other models compute meanwhile".to_owned());
        let not_kept = while_others.or(reason);
        if not_kept.is_some() {
            return Ok((measured, MeasuredWhen::Now { not_kept }));
        }
        let kept = write(folder, &path, subject, &to_json(&measured));
        let not_kept = kept
            .err()
            .map(|error| format!("cannot write {}: {error}", path.display()));
        Ok((measured, MeasuredWhen::Now { not_kept }))
    }
}

/// The file of a subject, which has a name of its own.
fn path_of(folder: &Path, kind: &str, subject: &str) -> PathBuf {
    folder.join(format!("{kind}-{:016x}.json", checksum(subject.as_bytes(), 0)))
}

/// The values of a file that is of the subject.
fn read(path: &Path, subject: &str) -> Option<Value> {
    let metadata = fs::metadata(path).ok()?;
    if !metadata.is_file() || metadata.len() > MAX_FILE_BYTES {
        return None;
    }
    let mut found: Value = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    let is_of_it = found["format"].as_u64() == Some(FORMAT) && found["of"].as_str() == Some(subject);
    is_of_it.then(|| found["values"].take())
}

fn write(folder: &Path, path: &Path, subject: &str, values: &Value) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let content = json!({ "format": FORMAT, "of": subject, "values": values });
    write_atomically(path, |file| {
        io::Write::write_all(file, format!("{content:#}\n").as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A number that was measured, or is now; and when.
    fn number(measurements: &Measurements, subject: &str, now: u64) -> (u64, MeasuredWhen) {
        let found = measurements.of_load(false).find_or_make(
            "number",
            subject,
            |values| values.as_u64().filter(|&n| n > 0),
            |&n| json!(n),
            || Ok::<_, ()>(now),
        );
        found.unwrap()
    }

    const NOW: MeasuredWhen = MeasuredWhen::Now { not_kept: None };

    fn in_folder(folder: &Path) -> Measurements {
        Measurements {
            folder: Some(folder.join("of/tokenmill")),
            ..Measurements::default()
        }
    }

    #[test]
    fn what_was_measured_is_found_at_the_next_load() {
        let folder = tempfile::tempdir().unwrap();
        let kept = in_folder(folder.path());
        assert_eq!(number(&kept, "a", 1), (1, NOW));
        assert_eq!(number(&kept, "a", 2), (1, MeasuredWhen::Before));
        // There is nothing yet about another subject.
        assert_eq!(number(&kept, "b", 3), (3, NOW));
        assert_eq!(number(&kept, "a", 4), (1, MeasuredWhen::Before));
        let again = Measurements {
            is_made_again: true,
            ..kept.clone()
        };
        assert_eq!(number(&again, "a", 5), (5, NOW));
        assert_eq!(number(&kept, "a", 6), (5, MeasuredWhen::Before));
        assert_eq!(number(&Measurements::default(), "a", 7), (7, NOW));
    }

    #[test]
    fn files_of_something_else_are_measured_anew_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let kept = in_folder(folder.path());
        let path = path_of(kept.folder.as_ref().unwrap(), "number", "a");
        let of = |format: u64, of: &str, values: Value| {
            json!({ "format": format, "of": of, "values": values }).to_string()
        };
        number(&kept, "a", 1);
        for (name, content) in [
            ("older", of(FORMAT - 1, "a", json!(9))),
            ("newer", of(FORMAT + 1, "a", json!(9))),
            ("another subject", of(FORMAT, "b", json!(9))),
            ("no number", of(FORMAT, "a", json!("many"))),
            ("no measurement", of(FORMAT, "a", json!(0))),
            ("no values", json!({ "format": FORMAT, "of": "a" }).to_string()),
            ("cut", of(FORMAT, "a", json!(9))[..10].to_owned()),
            ("empty", String::new()),
            (
                "large",
                of(FORMAT, "a", json!(9)) + &" ".repeat(MAX_FILE_BYTES as usize),
            ),
        ] {
            fs::write(&path, content).unwrap();
            assert_eq!(number(&kept, "a", 2), (2, NOW), "{name}");
            assert_eq!(number(&kept, "a", 3), (2, MeasuredWhen::Before), "{name}");
        }
        fs::write(&path, [0xff, 0xfe]).unwrap();
        assert_eq!(number(&kept, "a", 4), (4, NOW));
    }

    #[test]
    fn a_folder_that_cannot_be_written_to_stops_no_load_and_is_told() {
        let folder = tempfile::tempdir().unwrap();
        // A file where the folder should be: the owner of a folder may be allowed everything.
        fs::write(folder.path().join("of"), "a file").unwrap();
        let kept = in_folder(folder.path());
        let (found, when) = number(&kept, "a", 1);
        assert_eq!(found, 1);
        let told = when.to_string();
        assert!(
            told.starts_with("measured now and not kept: cannot write ") && told.contains("number-"),
            "{told}"
        );
        assert_eq!(number(&kept, "a", 2).0, 2);
    }

    #[test]
    fn while_other_models_compute_nothing_is_kept_and_what_was_kept_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let mut kept = in_folder(folder.path());
        let quiet = |kept: &Measurements, now: u64| {
            let found = kept.of_load(true).find_or_make(
                "number",
                "a",
                Value::as_u64,
                |&n| json!(n),
                || Ok::<_, ()>(now),
            );
            found.unwrap().0
        };
        assert_eq!(quiet(&kept, 3), 3);
        assert_eq!(number(&kept, "a", 4).0, 4);
        kept.is_made_again = true;
        assert_eq!(quiet(&kept, 5), 4);
    }

    #[test]
    fn what_is_not_to_be_kept_is_measured_again() {
        let folder = tempfile::tempdir().unwrap();
        let kept = in_folder(folder.path());
        let small = |now: u64| {
            let found = kept.of_load(false).find_or_try(
                "number",
                "a",
                Value::as_u64,
                |&n| json!(n),
                || Ok::<_, ()>((now, Some("little".to_owned()))),
            );
            found.unwrap()
        };
        let not_kept = Some("little".to_owned());
        assert_eq!(
            small(1),
            (
                1,
                MeasuredWhen::Now {
                    not_kept: not_kept.clone()
                }
            )
        );
        assert_eq!(small(2), (2, MeasuredWhen::Now { not_kept }));
        assert_eq!(number(&kept, "a", 3), (3, NOW));
        assert_eq!(small(4), (3, MeasuredWhen::Before));
    }

    #[test]
    fn a_measurement_that_fails_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let kept = in_folder(folder.path());
        let n_tried = Cell::new(0);
        let fail = || {
            let read = |values: &Value| values.as_u64();
            kept.of_load(false).find_or_make(
                "number",
                "a",
                read,
                |&n| json!(n),
                || {
                    n_tried.set(n_tried.get() + 1);
                    Err::<u64, _>("no memory")
                },
            )
        };
        assert_eq!(fail().unwrap_err(), "no memory");
        assert_eq!(fail().unwrap_err(), "no memory");
        assert_eq!(n_tried.get(), 2);
        assert_eq!(number(&kept, "a", 3), (3, NOW));
    }
}
