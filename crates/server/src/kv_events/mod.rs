//! Tells routers which prefixes the KV cache holds, over ZeroMQ as vLLM does.
//!
//! A router with this knowledge sends a request to the replica that has its prefix. Each batch of the engine
//! is a message of three frames: the topic, a number of 8 bytes that counts up, and the payload
//! (`payload.rs`). A subscriber that missed messages asks the second socket for all from a number on.
//! Invariants: a slow reader delays neither the engine nor other readers; all readers share one copy of the
//! kept batches, bounded in messages and in bytes.

mod config;
mod payload;
mod sockets;
mod zmtp;

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::body::Bytes;
use tokenmill_backend::ExecutorLimits;
use tokenmill_sched::PageEvents;
use tokio::{
    io::{AsyncRead, AsyncWriteExt as _, split},
    sync::{mpsc, watch},
    time::sleep,
};

pub use self::config::{Endpoint, EventEncoding, KvEventsConfig, KvEventsError};
use self::{
    payload::Payloads,
    sockets::{Kind, Socket},
    zmtp::{Version, command, message, ping, pong, read_beating},
};
use crate::sockets::byte_stream::PeerStream;

/// Longest frame of a subscriber: a topic.
const MAX_TOPIC_BYTES: u64 = 1024;

/// Topics of a subscriber.
const MAX_TOPICS: usize = 64;

/// How long a peer may be silent.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// How long a subscriber may take to name a topic before it is disconnected.
    first_topic: Duration,
    /// Silence after which a peer gets a ping; as long again after it, the peer is disconnected.
    heartbeat: Duration,
}

const PATIENCE: Patience = Patience {
    first_topic: Duration::from_mins(1),
    heartbeat: Duration::from_secs(30),
};

/// Bytes of batches that are kept, for slow subscribers and to be requested again.
const MAX_KEPT_BYTES: usize = 256 << 20;

/// Sequence number of the message that ends a replay of old batches.
const END: [u8; 8] = [0xff; 8];

const PUBLISHES: Kind = Kind {
    own: "PUB",
    peers: &["SUB", "XSUB"],
};
const REPLAYS: Kind = Kind {
    own: "ROUTER",
    peers: &["REQ", "DEALER", "ROUTER"],
};

/// Sockets that are open and publish nothing yet.
#[derive(Debug)]
pub(crate) struct KvEvents {
    config: KvEventsConfig,
    publishes: Socket,
    replays: Option<Socket>,
}

/// Old batches, oldest first.
#[derive(Debug, Default)]
struct Kept {
    batches: VecDeque<(u64, Bytes)>,
    n_bytes: usize,
    /// The number of the next batch.
    end: u64,
}

/// The batches for one subscriber, which lags at most `hwm` messages behind.
struct Published {
    kept: Arc<Mutex<Kept>>,
    /// The number of the next batch, after each one.
    end: watch::Receiver<u64>,
    topic: Arc<[u8]>,
    hwm: u64,
}

impl KvEvents {
    /// Opens the sockets.
    ///
    /// # Errors
    /// The endpoint that cannot be listened on, and the system's error.
    pub(crate) async fn open(config: KvEventsConfig) -> Result<Self, (String, io::Error)> {
        let open = async |endpoint: &Endpoint| {
            let opened = Socket::open(endpoint).await;
            opened.map_err(|error| (endpoint.to_string(), error))
        };
        let publishes = open(&config.endpoint).await?;
        let replays = match &config.replay_endpoint {
            Some(endpoint) => Some(open(endpoint).await?),
            None => None,
        };
        tracing::info!(
            endpoint = %config.endpoint,
            address = publishes.address().map(tracing::field::display),
            replay = replays.as_ref().and_then(Socket::address).map(tracing::field::display),
            "publishing the KV cache's events"
        );
        Ok(Self {
            config,
            publishes,
            replays,
        })
    }

    /// Publishes until the events end. Dropping the future closes all connections.
    pub(crate) async fn run(self, mut events: PageEvents, limits: &ExecutorLimits) {
        let (told, end) = watch::channel(0);
        let topic: Arc<[u8]> = self.config.topic.as_bytes().into();
        let kept = Arc::new(Mutex::new(Kept::default()));
        let payloads = Payloads::new(self.config.encoding, limits);
        let n_kept = self.config.buffer_steps.max(self.config.hwm);
        let publish = async {
            while let Some(batch) = events.next_batch().await {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let payload = Bytes::from(payloads.write(now, &batch));
                let end = lock(&kept).push(payload, n_kept);
                told.send_replace(end);
            }
        };
        let to_subscribers = {
            let (kept, hwm) = (Arc::clone(&kept), self.config.hwm as u64);
            let talk = move |stream, version| {
                let published = Published {
                    kept: Arc::clone(&kept),
                    end: end.clone(),
                    topic: Arc::clone(&topic),
                    hwm,
                };
                send_messages(stream, version, PATIENCE, published)
            };
            self.publishes.serve(PUBLISHES, talk)
        };
        let to_askers = async {
            match self.replays {
                Some(socket) => {
                    let kept = Arc::clone(&kept);
                    let n_batches = self.config.buffer_steps as u64;
                    let talk = move |stream, version| {
                        replay(stream, version, PATIENCE, Arc::clone(&kept), n_batches)
                    };
                    socket.serve(REPLAYS, talk).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = publish => {}
            () = to_subscribers => {}
            () = to_askers => {}
        }
    }
}

impl Kept {
    /// Adds a batch and returns the number of the next one.
    fn push(&mut self, payload: Bytes, n_batches: usize) -> u64 {
        self.n_bytes += payload.len();
        self.batches.push_back((self.end, payload));
        self.end += 1;
        while self.batches.len() > n_batches || self.n_bytes > MAX_KEPT_BYTES {
            let Some((_, oldest)) = self.batches.pop_front() else {
                break;
            };
            self.n_bytes -= oldest.len();
        }
        self.end
    }

    /// The first batch from a number on.
    fn first_from(&self, number: u64) -> Option<(u64, Bytes)> {
        let at = self.batches.partition_point(|&(kept, _)| kept < number);
        self.batches.get(at).cloned()
    }
}

fn lock(kept: &Mutex<Kept>) -> std::sync::MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Published {
    /// Waits for a batch after those before `next`, and returns the number after the last; `None` where no more come.
    async fn wait(&mut self, next: u64) -> Option<u64> {
        self.end.wait_for(|&end| end > next).await.ok().map(|end| *end)
    }

    /// The batch `next`, or the oldest that is kept for a subscriber which was too slow and has missed some. It can ask for
    /// those by their numbers.
    fn first_from(&self, next: u64) -> Option<(u64, Bytes)> {
        let kept = lock(&self.kept);
        kept.first_from(next.max(kept.end.saturating_sub(self.hwm)))
    }
}

/// Sends a subscriber the batches that it asks for.
async fn send_messages(
    stream: PeerStream,
    version: Version,
    patience: Patience,
    mut published: Published,
) -> io::Result<()> {
    let mut next = *published.end.borrow();
    let (mut reader, mut writer) = split(stream);
    let topics = Mutex::new(Vec::new());
    let (answer, mut answers) = mpsc::channel::<Vec<u8>>(1);
    let read = async { read_topics(&mut reader, version, patience.heartbeat, &topics, &answer).await };
    let asks = async {
        sleep(patience.first_topic).await;
        if topics.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            return Err(zmtp::broken("it asks for no topic"));
        }
        std::future::pending().await
    };
    let write = async {
        loop {
            let bytes = tokio::select! {
                Some(answer) = answers.recv() => Bytes::from(answer),
                waited = published.wait(next) => {
                    let Some(end) = waited else {
                        return Ok(());
                    };
                    let Some((number, payload)) = published.first_from(next) else {
                        // Too large to be kept.
                        next = end;
                        continue;
                    };
                    next = number + 1;
                    let topics = topics.lock().unwrap_or_else(PoisonError::into_inner);
                    if !topics.iter().any(|wanted: &Vec<u8>| published.topic.starts_with(wanted)) {
                        continue;
                    }
                    message(&[&published.topic, &number.to_be_bytes(), &payload])
                }
            };
            writer.write_all(&bytes).await?;
            writer.flush().await?;
        }
    };
    tokio::select! {
        ended = read => ended,
        ended = write => ended,
        ended = asks => ended,
    }
}

/// Reads the topics that a subscriber adds and removes.
async fn read_topics(
    reader: &mut (impl AsyncRead + Unpin),
    version: Version,
    heartbeat: Duration,
    topics: &Mutex<Vec<Vec<u8>>>,
    answer: &mpsc::Sender<Vec<u8>>,
) -> io::Result<()> {
    loop {
        // A full queue means that messages are on their way to the peer; the ping follows them.
        let ask = async { answer.send(ping()).await.map_err(io::Error::other) };
        let frame = read_beating(reader, MAX_TOPIC_BYTES, version, heartbeat, ask).await?;
        let (wants, topic) = match (command(&frame), frame.body.split_first()) {
            (Some((b"SUBSCRIBE", topic)), _) | (None, Some((1, topic))) => (true, topic),
            (Some((b"CANCEL", topic)), _) | (None, Some((0, topic))) => (false, topic),
            (Some((b"PING", content)), _) => {
                if let Some(pong) = pong(content) {
                    // A full queue means that one is on its way.
                    let _on_its_way = answer.try_send(pong);
                }
                continue;
            }
            _ => continue,
        };
        let mut topics = topics.lock().unwrap_or_else(PoisonError::into_inner);
        if !wants {
            if let Some(idx) = topics.iter().position(|wanted| wanted == topic) {
                topics.remove(idx);
            }
        } else if topics.len() < MAX_TOPICS {
            topics.push(topic.to_vec());
        } else {
            return Err(zmtp::broken("it asks for too many topics"));
        }
    }
}

/// Sends the last `n_batches` to those who ask for them: each request is an empty frame and the first number.
async fn replay(
    stream: PeerStream,
    version: Version,
    patience: Patience,
    kept: Arc<Mutex<Kept>>,
    n_batches: u64,
) -> io::Result<()> {
    let (mut reader, mut stream) = split(stream);
    loop {
        let mut frames: Vec<Vec<u8>> = Vec::new();
        loop {
            let ask = async {
                stream.write_all(&ping()).await?;
                stream.flush().await
            };
            let frame = read_beating(&mut reader, MAX_TOPIC_BYTES, version, patience.heartbeat, ask).await?;
            if frame.is_command {
                if let Some((b"PING", content)) = command(&frame)
                    && let Some(pong) = pong(content)
                {
                    stream.write_all(&pong).await?;
                    stream.flush().await?;
                }
                continue;
            }
            frames.push(frame.body);
            if !frame.has_more {
                break;
            }
            if frames.len() > 2 {
                return Err(zmtp::broken("its request has too many frames"));
            }
        }
        let [delimiter, number] = &frames[..] else {
            return Err(zmtp::broken("its request is not an empty frame and a number"));
        };
        let Ok(number) = <[u8; 8]>::try_from(&number[..]) else {
            return Err(zmtp::broken("its request has no number of 8 bytes"));
        };
        // One at a time, so that a slow peer keeps no batch that others have forgotten.
        let end = lock(&kept).end;
        let mut next = u64::from_be_bytes(number).max(end.saturating_sub(n_batches));
        while next < end {
            let first = lock(&kept).first_from(next);
            let Some((number, payload)) = first else {
                break;
            };
            let bytes = message(&[delimiter, &number.to_be_bytes(), &payload]);
            stream.write_all(&bytes).await?;
            next = number + 1;
        }
        stream.write_all(&message(&[delimiter, &END, b""])).await?;
        stream.flush().await?;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::sockets::byte_stream::ByteStream;

    #[test]
    fn the_oldest_batches_are_forgotten_first() {
        let mut kept = Kept::default();
        assert_eq!((kept.first_from(0), kept.end), (None, 0));
        for number in 0..5 {
            assert_eq!(kept.push(Bytes::from_static(b"batch"), 3), number + 1);
        }
        let from = |number| kept.first_from(number).map(|(number, _)| number);
        assert_eq!([0, 2, 3, 5].map(from), [Some(2), Some(2), Some(3), None]);
        assert_eq!((kept.end, kept.n_bytes), (5, 15));
    }

    #[tokio::test]
    async fn a_slow_subscriber_misses_what_is_beyond_its_bound() {
        let kept = Arc::new(Mutex::new(Kept::default()));
        let (told, end) = watch::channel(0);
        let topic = Arc::from(&b""[..]);
        let mut published = Published {
            kept: Arc::clone(&kept),
            end,
            topic,
            hwm: 2,
        };
        for _ in 0..5 {
            told.send_replace(lock(&kept).push(Bytes::from_static(b"batch"), 10));
        }
        assert_eq!(published.wait(0).await, Some(5));
        let from = |number| published.first_from(number).map(|(number, _)| number);
        assert_eq!([0, 2, 4, 5].map(from), [Some(3), Some(3), Some(4), None]);
        drop(told);
        assert_eq!(
            (published.wait(4).await, published.wait(5).await),
            (Some(5), None)
        );
    }

    /// A peer of [`send_messages`], and the task that talks with it.
    fn peer(version: Version) -> (tokio::io::DuplexStream, tokio::task::JoinHandle<io::Result<()>>) {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (told, end) = watch::channel(0);
        let published = Published {
            kept: Arc::default(),
            end,
            topic: Arc::from(&b""[..]),
            hwm: 2,
        };
        let stream: Box<dyn ByteStream> = Box::new(ours);
        let stream = PeerStream::new(stream, Duration::from_secs(30));
        let talk = tokio::spawn(async move {
            let _told = told;
            send_messages(stream, version, SHORT, published).await
        });
        (theirs, talk)
    }

    const SHORT: Patience = Patience {
        first_topic: Duration::from_millis(400),
        heartbeat: Duration::from_millis(200),
    };

    const SUBSCRIBE: &[u8] = b"\x00\x01\x01";

    #[tokio::test]
    async fn a_peer_that_asks_for_nothing_gives_its_place_back() {
        for version in [Version::V30, Version::V31] {
            let (_theirs, talk) = peer(version);
            let began = Instant::now();
            assert!(talk.await.unwrap().is_err());
            assert!(began.elapsed() >= SHORT.first_topic, "{version:?}");
        }
    }

    #[tokio::test]
    async fn a_silent_subscriber_is_kept_as_long_as_it_answers() {
        let (mut theirs, talk) = peer(Version::V31);
        theirs.write_all(SUBSCRIBE).await.unwrap();
        for _ in 0..4 {
            let frame = zmtp::read_frame(&mut theirs, 100).await.unwrap();
            assert_eq!(command(&frame), Some((&b"PING"[..], &[0, 0][..])));
            theirs.write_all(&pong(&[0, 0]).unwrap()).await.unwrap();
        }
        assert!(!talk.is_finished());
        let began = Instant::now();
        assert!(talk.await.unwrap().is_err());
        assert!(began.elapsed() >= 2 * SHORT.heartbeat);
    }

    #[tokio::test]
    async fn a_subscriber_without_heartbeats_is_kept() {
        let (mut theirs, talk) = peer(Version::V30);
        theirs.write_all(SUBSCRIBE).await.unwrap();
        sleep(SHORT.first_topic + 2 * SHORT.heartbeat).await;
        assert!(!talk.is_finished());
        drop(theirs);
        assert!(talk.await.unwrap().is_err(), "it has gone");
    }

    #[tokio::test]
    async fn an_asker_that_answers_no_heartbeat_gives_its_place_back() {
        let (ours, _theirs) = tokio::io::duplex(1 << 16);
        let stream: Box<dyn ByteStream> = Box::new(ours);
        let stream = PeerStream::new(stream, Duration::from_secs(30));
        let began = Instant::now();
        assert!(
            replay(stream, Version::V31, SHORT, Arc::default(), 1)
                .await
                .is_err()
        );
        assert!(began.elapsed() >= 2 * SHORT.heartbeat);
    }
}
