//! [`Results`]: the file of a batch's results, which also records the answered requests.
//!
//! Resuming depends on this file alone. Invariant: a result is in the file as a whole line or not at all. A
//! partial line, left by a killed process, is cut off when the file is opened again, and its request is
//! answered again.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, BufRead, BufReader, Write},
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::failure::Failure;

/// The prefix of result ids; the number of the request's line follows.
const ID: &str = "batch_req_";

/// The open file of results.
pub(super) struct Results {
    path: PathBuf,
    file: File,
    /// The input lines that have a result.
    done: HashMap<usize, Done>,
}

/// A result that the file has.
#[derive(Debug)]
struct Done {
    custom_id: Option<String>,
    kept: Kept,
}

/// How a request ended that has its result already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    Answered,
    /// The result is the reason why there is no answer.
    Refused,
}

/// How a request ended.
pub(super) enum Ending {
    /// The API answered, possibly with a refusal.
    Response {
        status_code: u16,
        request_id: Option<String>,
        body: Value,
    },
    /// The API gave no answer.
    Error { code: &'static str, message: String },
}

impl Results {
    /// Opens the file and reads the finished requests.
    ///
    /// # Errors
    /// A file that cannot be opened, that another process writes to, or that holds something else.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let unwritable = |error: io::Error| Failure::unwritable(path, error);
        // The record of finished requests is read from the file, and a device may never end.
        if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
            let failure = Failure::input(format!("{} is not a file", path.display()));
            return Err(failure.hint("OUTPUT also records the finished requests, so it must be a file"));
        }
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(path)
            .map_err(unwritable)?;
        // A file system without locks is not a reason to refuse.
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            return Err(Failure::work(format!(
                "another process is writing to {}",
                path.display()
            )));
        }
        let mut reader = BufReader::new(&file);
        let (mut done, mut whole_bytes) = (HashMap::new(), 0);
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            let n_bytes = reader.read_until(b'\n', &mut line).map_err(unwritable)?;
            let foreign = || {
                Failure::input(format!(
                    "line {number} of {} is not a result of a batch",
                    path.display()
                ))
                .hint("name a new file for the results")
            };
            if line.last() != Some(&b'\n') {
                if !is_begun(&line) {
                    return Err(foreign());
                }
                break;
            }
            whole_bytes += n_bytes as u64;
            let (request, result) = identify(&line).ok_or_else(foreign)?;
            done.insert(request, result);
        }
        file.set_len(whole_bytes).map_err(unwritable)?;
        Ok(Self {
            path: path.to_owned(),
            file,
            done,
        })
    }

    /// How a line of the input ended; `None` if it has no result.
    ///
    /// # Errors
    /// The result has another id than the line: the file belongs to another input.
    pub(super) fn of(&self, line_number: usize, custom_id: Option<&str>) -> Result<Option<Kept>, Failure> {
        match self.done.get(&line_number) {
            None => Ok(None),
            Some(found) if found.custom_id.as_deref() == custom_id => Ok(Some(found.kept)),
            Some(found) => {
                let shown =
                    |id: Option<&str>| id.map_or_else(|| "no id".to_owned(), |id| format!("id `{id}`"));
                let message = format!(
                    "{} belongs to another input: its result for line {line_number} has {}, the line has {}",
                    self.path.display(),
                    shown(found.custom_id.as_deref()),
                    shown(custom_id)
                );
                Err(Failure::input(message).hint("name a new file for the results"))
            }
        }
    }

    /// Adds the result of a line.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn add(
        &mut self,
        line_number: usize,
        custom_id: Option<&str>,
        ending: Ending,
    ) -> Result<(), Failure> {
        let (response, error) = match ending {
            Ending::Response {
                status_code,
                request_id,
                body,
            } => (
                json!({"status_code": status_code, "request_id": request_id, "body": body}),
                Value::Null,
            ),
            Ending::Error { code, message } => (Value::Null, json!({"code": code, "message": message})),
        };
        let result = json!({
            "id": format!("{ID}{line_number}"),
            "custom_id": custom_id,
            "response": response,
            "error": error,
        });
        // One write for the line with its end, so that little is ever cut off.
        let written = self.file.write_all(format!("{result}\n").as_bytes());
        written.map_err(|error| Failure::unwritable(&self.path, error))
    }

    /// Waits until the system has stored everything.
    ///
    /// # Errors
    /// The system could not.
    pub(super) fn sync(&self) -> Result<(), Failure> {
        let synced = self.file.sync_all();
        synced.map_err(|error| Failure::unwritable(&self.path, error))
    }
}

/// Which line of the input a result is for, its id, and whether it is an answer.
fn identify(line: &[u8]) -> Option<(usize, Done)> {
    let result: Value = serde_json::from_slice(line).ok()?;
    let number = result["id"].as_str()?.strip_prefix(ID)?.parse().ok()?;
    let custom_id = match result.get("custom_id")? {
        Value::Null => None,
        Value::String(id) => Some(id.clone()),
        _ => return None,
    };
    let kept = if result["response"]["status_code"] == 200 {
        Kept::Answered
    } else {
        Kept::Refused
    };
    Some((number, Done { custom_id, kept }))
}

/// Whether this may be the beginning of a result, as a killed process leaves it.
fn is_begun(tail: &[u8]) -> bool {
    let start = format!("{{\"id\":\"{ID}");
    let n_bytes = tail.len().min(start.len());
    tail[..n_bytes] == start.as_bytes()[..n_bytes]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_result_is_cut_off_and_a_whole_one_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.jsonl");
        let mut results = Results::open(&path).unwrap();
        let ending = |message: &str| Ending::Error {
            code: "invalid_request",
            message: message.to_owned(),
        };
        results.add(3, Some("c"), ending("no")).unwrap();
        results.add(1, None, ending("no")).unwrap();
        assert!(
            Results::open(&path).is_err(),
            "two processes do not write to one file"
        );
        drop(results);
        let whole = fs::read_to_string(&path).unwrap();
        for torn in ["{\"i", "{\"id\":\"batch_req_", "{\"id\":\"batch_req_2\",\"cus"] {
            fs::write(&path, format!("{whole}{torn}")).unwrap();
            drop(Results::open(&path).unwrap());
            assert_eq!(fs::read_to_string(&path).unwrap(), whole, "{torn}");
        }
        let results = Results::open(&path).unwrap();
        assert_eq!(results.done.len(), 2);
        assert_eq!(results.of(3, Some("c")).unwrap(), Some(Kept::Refused));
        assert_eq!(results.of(1, None).unwrap(), Some(Kept::Refused));
        assert_eq!(results.of(2, Some("b")).unwrap(), None);
        assert!(results.of(3, Some("d")).is_err(), "another input");
    }

    #[test]
    fn a_file_of_something_else_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes.txt");
        for text in [
            "buy milk\nand more",
            "buy milk",
            "{\"id\": 1}",
            "{\"name\":\"batch_req_1\"}",
        ] {
            fs::write(&path, text).unwrap();
            assert!(Results::open(&path).is_err(), "{text}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }
}
