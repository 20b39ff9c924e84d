//! [`measure`]: runs a program and measures its time and its memory.
//!
//! Both sides of a comparison go through it. Invariant: the clock starts before the program does.

use std::{
    fs,
    io::Read,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};

/// Time between samples of the program's memory. The kernel keeps the maximum, so only an increase in the last moments
/// before the end can be missed.
const MEMORY_INTERVAL: Duration = Duration::from_millis(20);

/// A program that ended successfully.
#[derive(Debug)]
pub(super) struct Finished {
    /// Its standard output.
    pub(super) stdout: String,
    /// Seconds until it had printed `mark`, if it did.
    pub(super) marked_s: Option<f64>,
    /// The most memory it held, in bytes, including pages of mapped files; if the system reports it.
    pub(super) peak_memory_bytes: Option<u64>,
}

/// Runs a program to its end.
///
/// # Errors
/// It cannot be started, or fails; the error then contains the end of its output.
pub(super) fn measure(command: &mut Command, mark: &str) -> anyhow::Result<Finished> {
    let name = command.get_program().to_string_lossy().into_owned();
    let started = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {name}"))?;
    let status_file = format!("/proc/{}/status", child.id());
    let mut stdout = child.stdout.take().expect("piped");
    let mut stderr = child.stderr.take().expect("piped");
    let has_ended = AtomicBool::new(false);
    let (output, errors, peak_memory_bytes) = thread::scope(|scope| {
        let errors = scope.spawn(move || {
            let mut text = Vec::new();
            stderr.read_to_end(&mut text).map(|_| text)
        });
        let memory = scope.spawn(|| {
            let mut peak: Option<u64> = None;
            while !has_ended.load(Ordering::Relaxed) {
                let status = fs::read_to_string(&status_file).unwrap_or_default();
                peak = peak.max(peak_memory(&status));
                thread::sleep(MEMORY_INTERVAL);
            }
            peak
        });
        let output = read_until_end(&mut stdout, mark, started);
        has_ended.store(true, Ordering::Relaxed);
        let errors = errors.join().expect("the thread only reads");
        (output, errors, memory.join().expect("the thread only reads"))
    });
    let status = child.wait()?;
    let ((stdout, marked_s), errors) = (output?, errors?);
    if !status.success() {
        let errors = String::from_utf8_lossy(&errors);
        let last: Vec<&str> = errors.lines().rev().take(5).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        bail!("{name} ended with {status}: {}", last.join(" / "));
    }
    Ok(Finished {
        stdout: String::from_utf8(stdout).with_context(|| format!("the output of {name} is no text"))?,
        marked_s,
        peak_memory_bytes,
    })
}

/// Reads to the end; notes when `mark` appeared.
fn read_until_end(
    stdout: &mut impl Read,
    mark: &str,
    started: Instant,
) -> anyhow::Result<(Vec<u8>, Option<f64>)> {
    let (mut output, mut marked_s) = (Vec::new(), None);
    let mut buffer = [0; 4096];
    loop {
        let n_read = stdout.read(&mut buffer)?;
        if n_read == 0 {
            return Ok((output, marked_s));
        }
        output.extend_from_slice(&buffer[..n_read]);
        let is_marked = || output.windows(mark.len()).any(|bytes| bytes == mark.as_bytes());
        if marked_s.is_none() && is_marked() {
            marked_s = Some(started.elapsed().as_secs_f64());
        }
    }
}

/// Reads the line `VmHWM:  1234 kB` of a process's status.
fn peak_memory(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_read_in_bytes() {
        let status = "Name:\tx\nVmPeak:\t  900 kB\nVmHWM:\t   1234 kB\nVmRSS:\t 1000 kB\n";
        assert_eq!(peak_memory(status), Some(1234 * 1024));
        assert_eq!(peak_memory("Name:\tkthreadd\n"), None);
    }

    #[test]
    fn a_mark_may_come_in_pieces() {
        let mut text: &[u8] = b"[ {\"samples_ts\": [1]} ]";
        let (output, marked_s) = read_until_end(&mut text, "samples_ts", Instant::now()).unwrap();
        assert!(output.len() == 23 && marked_s.is_some());
        let mut text = (&b"[ sampl"[..]).chain(&b"es_ts"[..]);
        assert!(
            read_until_end(&mut text, "samples_ts", Instant::now())
                .unwrap()
                .1
                .is_some()
        );
        let mut text: &[u8] = b"[]";
        assert!(
            read_until_end(&mut text, "samples_ts", Instant::now())
                .unwrap()
                .1
                .is_none()
        );
    }

    #[test]
    #[cfg(unix)]
    fn a_program_that_fails_says_why() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo no such model >&2; exit 3"]);
        let error = measure(&mut command, "x").unwrap_err().to_string();
        assert!(error.contains('3') && error.ends_with("no such model"), "{error}");
        assert!(measure(&mut Command::new("/nonexistent/program"), "x").is_err());
    }
}
