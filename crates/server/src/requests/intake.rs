//! [`Intake`]: bounds the cost of request bodies before the queue does: memory while they arrive, memory and
//! processor time while they are parsed and encoded.
//!
//! A body's parsed form can be many times its size, so its size is computed before it is built
//! ([`check_weight`]). Invariants: large bodies are held and processed within budgets of the whole server,
//! however many connections send them; a connection's small bodies need no budget up to the size of a large
//! one, and beyond that share one of the whole server. A large body takes its share as it arrives, so a
//! client that announces much and sends little holds little.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use axum::{
    body::{Body, Bytes, HttpBody as _},
    extract::Request,
    http::header,
};
use http_body_util::BodyExt as _;
use tokenmill::text::make_readable_json;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep_until, timeout_at},
};

use crate::{
    ApiError, ServerConfig,
    requests::off_thread::off_thread,
    requests::{
        shape_sizes::check_sizes,
        zstd_body::{Refused, decompress, is_compressed},
    },
};

/// Bodies from this size on count against the budgets.
pub(crate) const LARGE_BODY_BYTES: usize = 64 << 10;

/// Small bodies that the server holds at a time, besides those that each connection may have in any case.
const MAX_SMALL_BODIES: usize = 512;

/// Bodies of the largest size that are held at a time; more of them if they are smaller.
const MAX_LARGEST_BODIES: usize = 32;

/// Large bodies that are parsed and encoded at a time, at most; fewer on a small machine, whose engine needs the rest.
const MAX_WORKERS: usize = 4;

/// Most memory that the parsed form of a body may take.
const MAX_WEIGHT_BYTES: usize = 192 << 20;

// Most bytes that a value adds to the parsed form, on its way from a growing list to a tree and then to its type.
const VALUE_BYTES: usize = 128;
const ARRAY_BYTES: usize = 160;
const OBJECT_BYTES: usize = 640;

/// The budgets of a server.
#[derive(Debug)]
pub(crate) struct Intake {
    kib: Arc<Semaphore>,
    /// Room for one body of the largest size besides. Bodies that hold a part of the budget and wait for more would wait for
    /// each other for ever; the one with this room can finish.
    last_room: Arc<Semaphore>,
    small: Arc<Semaphore>,
    workers: Arc<Semaphore>,
}

/// Counts the bytes of a connection's small bodies that need no budget; all requests of the connection share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionBodies(Arc<AtomicUsize>);

/// Holds a small body's part of its connection's bytes until it is dropped.
#[derive(Debug, Default)]
struct Uncounted {
    connection: ConnectionBodies,
    n_bytes: usize,
}

impl Uncounted {
    /// Takes more bytes. Returns whether the connection may have them.
    fn grow(&mut self, n_bytes: usize) -> bool {
        self.n_bytes += n_bytes;
        self.connection.0.fetch_add(n_bytes, Ordering::Relaxed) + n_bytes <= LARGE_BODY_BYTES
    }
}

impl Drop for Uncounted {
    fn drop(&mut self) {
        self.connection.0.fetch_sub(self.n_bytes, Ordering::Relaxed);
    }
}

/// A body that arrived, and its share of the budget.
#[derive(Debug, Default)]
pub(crate) struct Received {
    pub(crate) bytes: Bytes,
    pub(crate) share: Share,
}

/// Holds a body's share of the budget until it is dropped; empty for the first small bodies of a connection.
#[derive(Debug, Default)]
pub(crate) struct Share {
    uncounted: Option<Uncounted>,
    small: Option<OwnedSemaphorePermit>,
    kib: Option<OwnedSemaphorePermit>,
    last_room: Option<OwnedSemaphorePermit>,
}

impl Share {
    /// Gives back what a body of `n_bytes` does not take.
    fn shrink(&mut self, n_bytes: usize) {
        if let Some(held) = &mut self.kib {
            drop(held.split(held.num_permits().saturating_sub(kib(n_bytes))));
        }
    }
}

impl Intake {
    /// Budgets for bodies of at most `max_body_bytes`.
    pub(crate) fn new(max_body_bytes: usize) -> Self {
        let n_processors = thread::available_parallelism().map_or(1, usize::from);
        let n_kib = kib(max_body_bytes).saturating_mul(MAX_LARGEST_BODIES - 1);
        Self {
            kib: Arc::new(Semaphore::new(n_kib.min(u32::MAX as usize))),
            last_room: Arc::new(Semaphore::new(1)),
            small: Arc::new(Semaphore::new(MAX_SMALL_BODIES)),
            workers: Arc::new(Semaphore::new((n_processors / 2).clamp(1, MAX_WORKERS))),
        }
    }

    /// Reads a body within its limits of size and time.
    ///
    /// # Errors
    /// A body that is too large or too slow, or no room for it in time; of a body that is too large, the shape or the tool that
    /// makes it so, where one does.
    pub(crate) async fn read(&self, config: &ServerConfig, request: Request) -> Result<Received, ApiError> {
        let is_compressed = is_compressed(request.headers())?;
        let limit_bytes = config.max_body_bytes;
        let deadline = Instant::now() + config.body_timeout;
        let connection = request.extensions().get::<ConnectionBodies>();
        let mut share = Share {
            uncounted: Some(Uncounted {
                connection: connection.cloned().unwrap_or_default(),
                n_bytes: 0,
            }),
            ..Share::default()
        };
        let awaits_consent = request.headers().contains_key(header::EXPECT);
        let mut body = request.into_body();
        let declared = body.size_hint();
        if awaits_consent && declared.lower() > limit_bytes as u64 {
            return Err(ApiError::BodyTooLarge { limit_bytes });
        }
        let most_bytes = declared
            .upper()
            .map_or(limit_bytes, |most| limit_bytes.min(most as usize));
        let mut whole = Vec::new();
        loop {
            let late = |_| ApiError::RequestTimeout {
                limit_s: config.body_timeout.as_secs(),
            };
            let frame = match timeout_at(deadline, body.frame()).await.map_err(late)? {
                None => break,
                Some(Ok(frame)) => frame,
                Some(Err(error)) => {
                    return Err(ApiError::MalformedJson {
                        reason: error.to_string(),
                    });
                }
            };
            // Trailers say nothing here.
            let Ok(data) = frame.into_data() else { continue };
            if whole.len() + data.len() > limit_bytes {
                discard(body, deadline).await;
                check_sizes(&whole)?;
                return Err(ApiError::BodyTooLarge { limit_bytes });
            }
            let n_bytes = whole.len() + data.len();
            self.count_small(&mut share, data.len(), deadline).await?;
            if n_bytes >= LARGE_BODY_BYTES && n_bytes > whole.capacity() {
                let capacity = n_bytes.max(most_bytes.min(2 * whole.capacity()));
                self.grow(&mut share, capacity, deadline).await?;
                (share.uncounted, share.small) = (None, None);
                whole.reserve_exact(capacity - whole.len());
            }
            whole.extend_from_slice(&data);
        }
        if is_compressed {
            whole = self.decompressed(config, &mut share, whole, deadline).await?;
        }
        // Clients write byte order marks and lone surrogates, which a strict reader refuses.
        make_readable_json(&mut whole);
        Ok(Received {
            bytes: whole.into(),
            share,
        })
    }

    /// Decompresses a body within the limit of bodies. One that is small in both forms is decompressed at once, and another one apart
    /// from the threads of connections, with room for the most that it can become.
    async fn decompressed(
        &self,
        config: &ServerConfig,
        share: &mut Share,
        compressed: Vec<u8>,
        deadline: Instant,
    ) -> Result<Vec<u8>, ApiError> {
        let limit_bytes = config.max_body_bytes;
        if compressed.len() < LARGE_BODY_BYTES {
            let small = decompress(&compressed, limit_bytes.min(LARGE_BODY_BYTES - 1));
            match small {
                Err(Refused::TooLarge | Refused::Window { .. }) => {}
                small => {
                    let small = small.map_err(|refused| refused.of_body(limit_bytes))?;
                    let n_more = small.len().saturating_sub(compressed.len());
                    self.count_small(share, n_more, deadline).await?;
                    return Ok(small);
                }
            }
        }
        let n_bytes = compressed.len().saturating_add(limit_bytes.saturating_mul(2));
        self.grow(share, n_bytes, deadline).await?;
        (share.uncounted, share.small) = (None, None);
        let turn = self.turn(config).await?;
        let whole = off_thread(move || {
            let whole = decompress(&compressed, limit_bytes);
            drop(turn);
            whole
        });
        let whole = (whole.await?).map_err(|refused| refused.of_body(limit_bytes))?;
        share.shrink(whole.len());
        Ok(whole)
    }

    /// Counts more bytes of a small body. Beyond the connection's own allowance it waits for a place among the server's small bodies.
    async fn count_small(
        &self,
        share: &mut Share,
        n_bytes: usize,
        deadline: Instant,
    ) -> Result<(), ApiError> {
        let Some(uncounted) = &mut share.uncounted else {
            return Ok(());
        };
        if uncounted.grow(n_bytes) {
            return Ok(());
        }
        let place = timeout_at(deadline, Arc::clone(&self.small).acquire_owned()).await;
        let place = place.map_err(|_| busy())?;
        share.small = Some(place.expect("the semaphore is never closed"));
        share.uncounted = None;
        Ok(())
    }

    /// Waits until a body may take `n_bytes`.
    async fn grow(&self, share: &mut Share, n_bytes: usize, deadline: Instant) -> Result<(), ApiError> {
        if share.last_room.is_some() {
            return Ok(());
        }
        let held = share.kib.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = u32::try_from(kib(n_bytes).saturating_sub(held)).unwrap_or(u32::MAX);
        tokio::select! {
            biased;
            permit = Arc::clone(&self.kib).acquire_many_owned(more) => {
                let permit = permit.expect("the semaphore is never closed");
                match &mut share.kib {
                    Some(held) => held.merge(permit),
                    none => *none = Some(permit),
                }
            }
            permit = Arc::clone(&self.last_room).acquire_owned() => {
                share.last_room = Some(permit.expect("the semaphore is never closed"));
            }
            () = sleep_until(deadline) => return Err(busy()),
        }
        Ok(())
    }

    /// Waits until a request may hold `n_bytes` besides its body.
    ///
    /// # Errors
    /// No room for them in time.
    pub(crate) async fn grow_by(
        &self,
        config: &ServerConfig,
        share: &mut Share,
        n_bytes: usize,
    ) -> Result<(), ApiError> {
        let held = share.kib.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let n_bytes = (held << 10).saturating_add(n_bytes);
        self.grow(share, n_bytes, Instant::now() + config.body_timeout)
            .await
    }

    /// Waits for the turn of a large body to be worked on; the work is done when the permit is dropped.
    ///
    /// # Errors
    /// The turn does not come in time.
    pub(crate) async fn turn(&self, config: &ServerConfig) -> Result<OwnedSemaphorePermit, ApiError> {
        let deadline = Instant::now() + config.body_timeout;
        match timeout_at(deadline, Arc::clone(&self.workers).acquire_owned()).await {
            Ok(permit) => Ok(permit.expect("the semaphore is never closed")),
            Err(_) => Err(busy()),
        }
    }
}

fn kib(n_bytes: usize) -> usize {
    n_bytes.div_ceil(1 << 10)
}

fn busy() -> ApiError {
    ApiError::QueueTokensFull {
        reason: "too many large requests are being read; try again later".to_owned(),
        retry_after_s: 5,
    }
}

/// Reads the rest of a body: closing on unread bytes resets the connection, and the refusal might never arrive.
async fn discard(mut body: Body, deadline: Instant) {
    let rest = async { while let Some(Ok(_)) = body.frame().await {} };
    let _ = timeout_at(deadline, rest).await;
}

/// Refuses JSON whose parsed form would take too much memory. Small bodies are never refused.
///
/// # Errors
/// [`ApiError::TooManyValues`].
pub(crate) fn check_weight(json: &[u8]) -> Result<(), ApiError> {
    if json.len() >= LARGE_BODY_BYTES && weight(json) > MAX_WEIGHT_BYTES {
        return Err(ApiError::TooManyValues {
            limit_bytes: MAX_WEIGHT_BYTES,
        });
    }
    Ok(())
}

/// Bounds the memory of `json`'s parsed form without its strings, in bytes. The arguments of earlier calls are JSON within a string and are
/// parsed too, so they count as well.
fn weight(json: &[u8]) -> usize {
    let mut weight = VALUE_BYTES;
    let mut bytes = json.iter();
    let mut name: &[u8] = b"";
    while let Some(byte) = bytes.next() {
        weight += value_bytes(*byte);
        match byte {
            b'"' => {
                let text = bytes.as_slice();
                // A name with escapes may be any.
                let is_json = name == b"arguments" || name.contains(&b'\\');
                while let Some(&byte) = bytes.next() {
                    match byte {
                        b'"' => break,
                        b'\\' => {
                            let is_code = bytes.next() == Some(&b'u');
                            if is_json && is_code {
                                weight += escaped(bytes.as_slice()).map_or(0, value_bytes);
                            }
                        }
                        _ if is_json => weight += value_bytes(byte),
                        _ => {}
                    }
                }
                name = &text[..text.len() - bytes.as_slice().len()];
                name = name.strip_suffix(b"\"").unwrap_or(name);
            }
            b':' | b' ' | b'\t' | b'\n' | b'\r' => {}
            _ => name = b"",
        }
    }
    weight
}

/// Reads the hexadecimal digits of an escaped ASCII character.
fn escaped(digits: &[u8]) -> Option<u8> {
    let digits = std::str::from_utf8(digits.get(..4)?).ok()?;
    u8::from_str_radix(digits, 16).ok()
}

/// Returns how many bytes of parsed form a byte outside of strings adds.
fn value_bytes(byte: u8) -> usize {
    match byte {
        b',' | b':' => VALUE_BYTES,
        b'[' => ARRAY_BYTES,
        b'{' => OBJECT_BYTES,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, time::Duration};

    use futures_util::{StreamExt as _, stream};
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    use tokio::{sync::watch, time::timeout};

    use super::*;

    #[test]
    fn a_form_is_weighed_by_its_values_not_its_text() {
        assert_eq!(weight(br#""[{,:\"[{,:""#), VALUE_BYTES);
        assert_eq!(weight(b"[1,2,3]"), ARRAY_BYTES + 3 * VALUE_BYTES);
        assert_eq!(weight(br#"{"a":{}}"#), 2 * OBJECT_BYTES + 2 * VALUE_BYTES);
        let text = br#"{"content":"[[","arguments" : "[[","b":"[["}"#;
        assert_eq!(weight(text), OBJECT_BYTES + 2 * ARRAY_BYTES + 6 * VALUE_BYTES);
        // Escapes hide neither the name nor the values.
        let written = br#"{"\u0061rguments":"\u007b\u005B\u00e9{\n"}"#;
        assert_eq!(weight(written), 3 * OBJECT_BYTES + ARRAY_BYTES + 2 * VALUE_BYTES);
    }

    #[test]
    fn bombs_are_refused_and_long_requests_are_not() {
        let list = |item: &str, n_bytes: usize| {
            let items = vec![item; n_bytes / (item.len() + 1)].join(",");
            format!(r#"{{"prompt":[{items}]}}"#)
        };
        for bomb in [r#"{"":{}}"#, "{}", "[]", "[1]", "1"] {
            assert!(check_weight(list(bomb, 8 << 20).as_bytes()).is_err(), "{bomb}");
        }
        for honest in [
            list("12345", 8 << 20),
            list(
                r#"{"role":"user","content":"Once upon a time in a land far away"}"#,
                8 << 20,
            ),
            format!(r#"{{"prompt":"{}"}}"#, "[{,:".repeat(2 << 20)),
            list(r#"{"":{}}"#, LARGE_BODY_BYTES / 2),
        ] {
            assert!(check_weight(honest.as_bytes()).is_ok());
        }
    }

    #[tokio::test]
    async fn large_bodies_share_one_budget() {
        let config = ServerConfig {
            max_body_bytes: 1 << 20,
            body_timeout: Duration::from_millis(50),
            ..ServerConfig::default()
        };
        let intake = Intake::new(config.max_body_bytes);
        let read = async |n_bytes: usize| {
            let body = Body::from(vec![b' '; n_bytes]);
            intake.read(&config, Request::new(body)).await
        };
        let mut held = Vec::new();
        for _ in 0..MAX_LARGEST_BODIES {
            held.push(read(1 << 20).await.expect("there is room"));
        }
        assert_eq!(read(1 << 20).await.expect_err("there is none").status(), 429);
        assert_eq!(
            read(LARGE_BODY_BYTES - 1).await.expect("it is small").bytes.len(),
            LARGE_BODY_BYTES - 1
        );
        held.pop();
        assert!(read(1 << 20).await.is_ok());
        assert_eq!(read((1 << 20) + 1).await.expect_err("too large").status(), 413);
    }

    #[tokio::test]
    async fn small_bodies_of_a_connection_share_a_budget_with_others() {
        let config = ServerConfig {
            body_timeout: Duration::from_millis(50),
            ..ServerConfig::default()
        };
        let intake = Intake::new(config.max_body_bytes);
        let read = async |connection: &ConnectionBodies, n_bytes: usize| {
            let mut request = Request::new(Body::from(vec![b' '; n_bytes]));
            request.extensions_mut().insert(connection.clone());
            intake.read(&config, request).await
        };
        let greedy = ConnectionBodies::default();
        let small = LARGE_BODY_BYTES - 1;
        let mut held = Vec::new();
        for _ in 0..=MAX_SMALL_BODIES {
            held.push(read(&greedy, small).await.expect("there is room"));
        }
        let refused = read(&greedy, small).await.expect_err("there is none");
        assert_eq!(refused.status(), 429);
        // Other connections have their own allowance, one body after the other.
        let other = ConnectionBodies::default();
        for _ in 0..3 {
            assert!(read(&other, small).await.is_ok());
        }
        held.clear();
        assert_eq!(greedy.0.load(Ordering::Relaxed), 0);
        assert!(read(&greedy, small).await.is_ok());
    }

    #[tokio::test]
    async fn compressed_bodies_take_the_room_of_what_they_become() {
        let config = ServerConfig {
            max_body_bytes: 1 << 20,
            body_timeout: Duration::from_millis(500),
            ..ServerConfig::default()
        };
        let intake = Intake::new(config.max_body_bytes);
        let n_free = || intake.kib.available_permits();
        let n_before = n_free();
        let read = async |n_bytes: usize, encoding: &str| {
            let body = compress_to_vec(&vec![b' '; n_bytes][..], CompressionLevel::Fastest);
            assert!(body.len() < LARGE_BODY_BYTES);
            let request = axum::http::Request::builder().header("content-encoding", encoding);
            let request = request.body(Body::from(body)).expect("a request");
            intake.read(&config, request).await
        };
        // A frame of one segment with a block that repeats a byte a thousand times.
        let small = [0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0xe8, 3, 0, 0, 0x43, 0x1f, 0, b' '];
        let request = axum::http::Request::builder().header("content-encoding", "zstd");
        let request = request.body(Body::from(small.to_vec())).expect("a request");
        let small = intake.read(&config, request).await.expect("it fits");
        assert_eq!((&small.bytes[..], n_free()), (&[b' '; 1000][..], n_before));
        let large = read(300_000, "ZSTD").await.expect("it fits");
        assert_eq!((large.bytes.len(), n_before - n_free()), (300_000, kib(300_000)));
        drop(large);
        assert_eq!(n_free(), n_before);
        assert_eq!(read(1 << 20, "zstd").await.expect("it fits").bytes.len(), 1 << 20);
        assert_eq!(
            read((1 << 20) + 1, "zstd").await.expect_err("too large").status(),
            413
        );
        for other in ["gzip", "zstd, zstd", "gzip, zstd"] {
            let refused = read(1000, other).await.expect_err(other);
            assert_eq!(refused.status(), 415, "{other}");
        }
        assert_eq!(n_free(), n_before);
        assert_eq!(
            intake.workers.available_permits(),
            Intake::new(1).workers.available_permits()
        );
    }

    /// A body of `n_bytes`, whose second half is sent when `go` is.
    fn halting(n_bytes: usize, mut go: watch::Receiver<bool>) -> Request {
        let half = Bytes::from(vec![b' '; n_bytes / 2]);
        let first = half.clone();
        let parts = stream::once(async { first }).chain(stream::once(async move {
            go.wait_for(|go| *go).await.expect("the test holds the sender");
            half
        }));
        Request::new(Body::from_stream(parts.map(Ok::<_, Infallible>)))
    }

    #[tokio::test]
    async fn slow_senders_hold_what_arrived_and_all_come_to_their_end() {
        let config = ServerConfig {
            max_body_bytes: 1 << 20,
            body_timeout: Duration::from_secs(20),
            ..ServerConfig::default()
        };
        let intake = Arc::new(Intake::new(config.max_body_bytes));
        let (sender, go) = watch::channel(false);
        // Twice as many as have room for all of their bytes, with half of them sent.
        let slow: Vec<_> = (0..2 * MAX_LARGEST_BODIES)
            .map(|_| {
                let (intake, config, go) = (Arc::clone(&intake), config.clone(), go.clone());
                tokio::spawn(async move {
                    let body = intake.read(&config, halting(1 << 20, go)).await;
                    body.map(|body| body.bytes.len())
                })
            })
            .collect();
        tokio::task::yield_now().await;
        sender.send_replace(true);
        for body in slow {
            assert_eq!(
                body.await.expect("no panic").expect("there is room in time"),
                1 << 20
            );
        }
        assert_eq!(intake.last_room.available_permits(), 1);
    }

    #[tokio::test]
    async fn what_is_announced_takes_nothing_from_others() {
        let config = ServerConfig {
            max_body_bytes: 8 << 20,
            // Longer than a busy machine takes for all of them.
            body_timeout: Duration::from_secs(20),
            ..ServerConfig::default()
        };
        let intake = Arc::new(Intake::new(config.max_body_bytes));
        let (_sender, go) = watch::channel(false);
        let slow = (0..40).map(|_| intake.read(&config, halting(8 << 20, go.clone())));
        let mut slow: Vec<_> = slow.map(Box::pin).collect();
        for body in &mut slow {
            let waiting = timeout(Duration::from_millis(1), body).await;
            assert!(waiting.is_err(), "it waits for its second half");
        }
        let honest = Request::new(Body::from(vec![b' '; 1 << 20]));
        assert!(intake.read(&config, honest).await.is_ok());
    }
}
