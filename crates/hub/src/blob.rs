//! [`download`]: downloads one file of a repository, over several connections, into a blob of the cache.
//!
//! This file has the parts, the connections and the hash; requests are elsewhere. Invariants: a blob gets its
//! name only when it is complete and its hash matches; the hashed bytes are those on the disk, since no byte
//! is written twice.

use std::{
    io::Read as _,
    path::Path,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use crate::{
    HubError, HubSettings, ModelName, PullEvent,
    address::shown,
    api::{Hub, RemoteFile, refusal},
    digest::Digest,
    http::{Ask, Reply, bad_answer, broken_body, plain_etag},
    incomplete::Incomplete,
    observer::Tally,
    retry::{Attempts, Fault},
};

/// Number of bytes read from a connection at once.
const BUFFER_BYTES: usize = 256 << 10;
/// Number of bytes that count as progress, so that a server cannot keep a download alive byte by byte.
const PROGRESS_BYTES: u64 = 64 << 10;

/// Downloads a file whose lock is held, and makes it the blob `target`. Bytes already at `incomplete` are
/// kept.
///
/// # Errors
/// [`HubError::Changed`] and [`HubError::Damaged`], after which nothing is kept; after other errors the
/// received bytes stay.
pub(crate) fn download(
    hub: &Hub<'_>,
    name: &ModelName,
    file: &RemoteFile,
    settings: &HubSettings,
    tally: &Tally<'_>,
    incomplete: &Path,
    target: &Path,
) -> Result<(), HubError> {
    let incomplete = Incomplete::open(incomplete, file.n_bytes, settings.part_bytes)?;
    tally.add(incomplete.done_bytes());
    let transfer = Transfer {
        hub,
        name,
        file,
        settings,
        tally,
        incomplete: &incomplete,
        location: Mutex::default(),
        seen_etag: Mutex::default(),
        is_aborted: AtomicBool::new(false),
    };
    match transfer.run() {
        Ok(()) => {
            incomplete.finish(target)?;
            tally.observer.event(PullEvent::Checked { file: &file.path });
            Ok(())
        }
        Err(error @ (HubError::Changed { .. } | HubError::Damaged { .. })) => {
            tally.take_back(incomplete.done_bytes());
            incomplete.discard()?;
            Err(error)
        }
        Err(error) => Err(error),
    }
}

struct Transfer<'a> {
    hub: &'a Hub<'a>,
    name: &'a ModelName,
    file: &'a RemoteFile,
    settings: &'a HubSettings,
    tally: &'a Tally<'a>,
    incomplete: &'a Incomplete,
    /// The target of redirects, so that not every part asks the endpoint.
    location: Mutex<Option<String>>,
    /// The etag of the first answer, if the announced one is not a hash.
    seen_etag: Mutex<Option<String>>,
    /// Set when the download ends early.
    is_aborted: AtomicBool,
}

/// A range of parts, the end excluded, for one connection.
type Span = (usize, usize);

impl Transfer<'_> {
    fn run(&self) -> Result<(), HubError> {
        let spans = self.spans()?;
        let n_workers = self.settings.n_connections.clamp(1, spans.len().max(1));
        let next = AtomicUsize::new(0);
        let first_error = Mutex::new(None);
        let fail = |error: HubError| {
            // Record the error first: errors of other connections, which are told to stop, are not the cause.
            lock(&first_error).get_or_insert(error);
            self.is_aborted.store(true, Ordering::Relaxed);
        };
        let work = || {
            while let Some(span) = spans.get(next.fetch_add(1, Ordering::Relaxed)) {
                if self.is_aborted.load(Ordering::Relaxed) {
                    return;
                }
                if let Err(error) = self.fetch(*span) {
                    return fail(error);
                }
            }
        };
        let found = thread::scope(|scope| {
            for worker_idx in 0..n_workers {
                match thread::Builder::new().spawn_scoped(scope, work) {
                    Ok(_) => {}
                    Err(source) if worker_idx == 0 => fail(HubError::Thread { source }),
                    // Fewer connections take longer.
                    Err(_) => break,
                }
            }
            self.hash().unwrap_or_else(|error| {
                fail(error);
                None
            })
        });
        if let Some(error) = lock(&first_error).take() {
            return Err(error);
        }
        match found {
            Some(found) if found != self.file.etag => Err(HubError::Damaged {
                file: self.file.path.clone(),
                expected: self.file.etag.clone(),
                found,
            }),
            _ => Ok(()),
        }
    }

    /// Returns the ranges to download: each missing part separately or, from a server without range requests,
    /// everything from the first missing byte on.
    fn spans(&self) -> Result<Vec<Span>, HubError> {
        let missing = self.incomplete.missing();
        let n_parts = self.incomplete.n_parts();
        match missing[..] {
            [first, _, ..] if !self.gives_parts()? => {
                self.tally.take_back(self.incomplete.forget_from(first + 1)?);
                Ok(vec![(first, n_parts)])
            }
            _ => Ok(missing.into_iter().map(|part| (part, part + 1)).collect()),
        }
    }

    /// Returns whether the server supports range requests for the file.
    fn gives_parts(&self) -> Result<bool, HubError> {
        self.attempts().run(|| {
            let reply = self.ask(Ask::Range(0, 1))?;
            self.first_byte(&reply).map(|_| reply.status == 206)
        })
    }

    fn attempts(&self) -> Attempts<'_> {
        Attempts::new(self.settings.retry_pause, self.tally.observer, &self.is_aborted)
    }

    /// Downloads parts, continuing after each interruption.
    fn fetch(&self, (first, end_part): Span) -> Result<(), HubError> {
        let mut at = self.incomplete.next_of(first);
        let end = self.incomplete.end_of(end_part - 1);
        let mut attempts = self.attempts();
        let mut counted_from = at;
        while at < end {
            let Err(fault) = self.receive(&mut at, end) else {
                continue;
            };
            if at >= counted_from + PROGRESS_BYTES {
                counted_from = at;
                attempts.reset();
            }
            attempts.failed(fault)?;
        }
        Ok(())
    }

    /// Receives the bytes of one answer, from `at` to `end`.
    fn receive(&self, at: &mut u64, end: u64) -> Result<(), Fault> {
        let is_whole = *at == 0 && end == self.file.n_bytes;
        let reply = self.ask(if is_whole {
            Ask::Whole
        } else {
            Ask::Range(*at, end)
        })?;
        let url = reply.url.clone();
        let first_byte = self.first_byte(&reply)?;
        let mut to_skip = at
            .checked_sub(first_byte)
            .ok_or_else(|| bad_answer(&url, "it is not the requested part of the file"))?;
        let mut reader = reply.into_reader();
        let mut buffer = vec![0; BUFFER_BYTES];
        while *at < end {
            if self.is_aborted.load(Ordering::Relaxed) {
                // The first error of the other connections is reported.
                return Err(early_end(&url));
            }
            if self.tally.observer.is_cancelled() {
                return Err(HubError::Cancelled.into());
            }
            let n_wanted = (to_skip + end - *at).min(BUFFER_BYTES as u64) as usize;
            let n_read = match reader.read(&mut buffer[..n_wanted]) {
                Ok(0) => return Err(early_end(&url)),
                Ok(n_read) => n_read,
                Err(error) => return Err(broken_body(&url, error)),
            };
            let n_skipped = to_skip.min(n_read as u64);
            to_skip -= n_skipped;
            let bytes = &buffer[n_skipped as usize..n_read];
            self.incomplete.append(bytes, *at)?;
            *at += bytes.len() as u64;
            self.tally.add(bytes.len() as u64);
        }
        Ok(())
    }

    /// Requests bytes of the file, from the earlier redirect target if that still answers.
    fn ask(&self, ask: Ask) -> Result<Reply, Fault> {
        let known = lock(&self.location).clone();
        let url = known.as_deref().unwrap_or(&self.file.url);
        let asked = self
            .hub
            .client
            .send(url, ask)
            .and_then(|reply| match reply.status {
                200 | 206 => Ok(reply),
                416 => Err(self.changed().into()),
                // The target of a redirect does not know the repository. A signed address expires after some
                // time.
                401 | 403 | 404 | 410 if known.is_some() => Err(Fault::again(HubError::Refused {
                    status: reply.status,
                    reason: String::new(),
                    url: shown(&self.file.url),
                })),
                400.. if !self.hub.client.is_own(&reply.url) => Err(refusal(&reply)),
                400.. => {
                    let plain = refusal(&reply);
                    match self.hub.judge(reply, self.name) {
                        // The repository exists, since its list was received.
                        Err(Fault::Final(HubError::NotFound { .. })) | Ok(_) => Err(plain),
                        Err(fault) => Err(fault),
                    }
                }
                status => Err(bad_answer(&reply.url, format!("its status is {status}")).into()),
            });
        match asked {
            Ok(reply) => {
                if reply.url != self.file.url {
                    *lock(&self.location) = Some(reply.url.clone());
                }
                Ok(reply)
            }
            Err(fault) => {
                *lock(&self.location) = None;
                Err(fault)
            }
        }
    }

    /// Checks that an answer belongs to the announced file, and returns the offset of its first byte.
    fn first_byte(&self, reply: &Reply) -> Result<u64, Fault> {
        let is_direct = reply.url == self.file.url;
        let announced = reply
            .linked_etag
            .as_deref()
            .or(if is_direct { reply.etag() } else { None });
        // Some servers have etags of another kind than the known hash; that hash decides at the end.
        let is_same_kind = |etag: &str| etag.len() == self.file.etag.len() || !is_hash(&self.file.etag);
        let is_other = |etag: &str| etag != self.file.etag && is_same_kind(etag);
        if announced.is_some_and(is_other) || !self.is_etag_the_same(reply) {
            return Err(self.changed().into());
        }
        if reply.status == 200 {
            return match reply.content_length() {
                Some(n_bytes) if n_bytes != self.file.n_bytes => Err(self.changed().into()),
                _ => Ok(0),
            };
        }
        let (first, last, total) = reply
            .content_range()
            .ok_or_else(|| bad_answer(&reply.url, "a part of the file does not say which"))?;
        if total.is_some_and(|total| total != self.file.n_bytes) || last >= self.file.n_bytes {
            return Err(self.changed().into());
        }
        Ok(first)
    }

    /// Returns whether the etag stays the same, for a server that announces no hash.
    fn is_etag_the_same(&self, reply: &Reply) -> bool {
        let Some(etag) = (reply.header("etag").map(plain_etag)).filter(|_| !is_hash(&self.file.etag)) else {
            return true;
        };
        lock(&self.seen_etag).get_or_insert_with(|| etag.to_owned()) == etag
    }

    fn changed(&self) -> HubError {
        HubError::Changed {
            file: self.file.path.clone(),
        }
    }

    /// Hashes the file from its beginning as its parts arrive; `None` if it has no hash or does not become
    /// complete.
    fn hash(&self) -> Result<Option<String>, HubError> {
        let mut digest = Digest::of_etag(&self.file.etag, self.file.n_bytes);
        let mut buffer = vec![0; BUFFER_BYTES];
        for part in 0..self.incomplete.n_parts() {
            if !self.incomplete.wait_for(part, &self.is_aborted) {
                return Ok(None);
            }
            let (mut at, end) = (self.incomplete.start_of(part), self.incomplete.end_of(part));
            while at < end {
                if self.tally.observer.is_cancelled() {
                    return Err(HubError::Cancelled);
                }
                let bytes = &mut buffer[..(end - at).min(BUFFER_BYTES as u64) as usize];
                self.incomplete.read(bytes, at)?;
                digest.update(bytes);
                at += bytes.len() as u64;
            }
        }
        Ok(digest.finish())
    }
}

/// Returns whether an etag is the hash of its file.
fn is_hash(etag: &str) -> bool {
    !matches!(Digest::of_etag(etag, 0), Digest::Unknown)
}

fn early_end(url: &str) -> Fault {
    broken_body(url, std::io::ErrorKind::UnexpectedEof.into())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
