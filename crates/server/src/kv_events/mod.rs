//! Tells routers which prefixes the KV cache holds, over ZeroMQ as vLLM does.
//!
//! A router that knows them sends a request to the replica that has its prefix. Separate from HTTP, with which it shares
//! nothing. Each batch of the engine is a message of three frames: the topic, a number that counts up in 8 bytes, and
//! the payload (`payload.rs`). Who missed some asks the second socket for all from a number on. Invariants: a
//! slow reader holds up neither the engine nor other readers; what is kept for it is bounded.

mod config;
mod payload;
mod sockets;
mod zmtp;

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use axum::body::Bytes;
use tokenmill_backend::ExecutorLimits;
use tokenmill_sched::PageEvents;
use tokio::{
    io::{AsyncRead, AsyncWriteExt as _, split},
    sync::{broadcast, mpsc},
};

pub use self::config::{Endpoint, EventEncoding, KvEventsConfig, KvEventsError};
use self::{
    payload::Payloads,
    sockets::{Kind, PeerStream, Socket},
    zmtp::{command, message, pong, read_frame},
};

/// Longest frame of a subscriber: a topic.
const MAX_TOPIC_BYTES: u64 = 1024;

/// Topics of a subscriber.
const MAX_TOPICS: usize = 64;

/// Bytes that are kept to be asked for again.
const MAX_KEPT_BYTES: usize = 256 << 20;

/// What ends the answer to a request for old batches.
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
}

impl KvEvents {
    /// Opens the sockets.
    ///
    /// # Errors
    /// The endpoint that cannot be listened on, and what the system said.
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
        let (messages, _) = broadcast::channel(self.config.hwm);
        let topic: Arc<[u8]> = self.config.topic.as_bytes().into();
        let kept = Arc::new(Mutex::new(Kept::default()));
        let payloads = Payloads::new(self.config.encoding, limits);
        let publish = async {
            let mut number: u64 = 0;
            while let Some(batch) = events.next_batch().await {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let payload = Bytes::from(payloads.write(now, &batch));
                // It fails where there is no subscriber.
                let _unsent = messages.send(message(&[&topic, &number.to_be_bytes(), &payload]));
                lock(&kept).push(number, payload, self.config.buffer_steps);
                number += 1;
            }
        };
        let to_subscribers = {
            let (messages, topic) = (messages.clone(), Arc::clone(&topic));
            let talk = move |stream| send_messages(stream, messages.subscribe(), Arc::clone(&topic));
            self.publishes.serve(PUBLISHES, talk)
        };
        let to_askers = async {
            match self.replays {
                Some(socket) => {
                    let kept = Arc::clone(&kept);
                    let talk = move |stream| replay(stream, Arc::clone(&kept));
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
    fn push(&mut self, number: u64, payload: Bytes, n_batches: usize) {
        self.n_bytes += payload.len();
        self.batches.push_back((number, payload));
        while self.batches.len() > n_batches || self.n_bytes > MAX_KEPT_BYTES {
            let Some((_, oldest)) = self.batches.pop_front() else {
                break;
            };
            self.n_bytes -= oldest.len();
        }
    }

    /// The first batch from a number on.
    fn first_from(&self, number: u64) -> Option<(u64, Bytes)> {
        let at = self.batches.partition_point(|&(kept, _)| kept < number);
        self.batches.get(at).cloned()
    }

    /// The number of the next batch, where there was one.
    fn end(&self) -> u64 {
        self.batches.back().map_or(0, |&(newest, _)| newest + 1)
    }
}

fn lock(kept: &Mutex<Kept>) -> std::sync::MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends a subscriber what it asks for.
async fn send_messages(
    stream: PeerStream,
    mut messages: broadcast::Receiver<Bytes>,
    topic: Arc<[u8]>,
) -> io::Result<()> {
    let (mut reader, mut writer) = split(stream);
    let topics = Mutex::new(Vec::new());
    let (answer, mut answers) = mpsc::channel::<Vec<u8>>(1);
    let read = async { read_topics(&mut reader, &topics, &answer).await };
    let write = async {
        loop {
            let (is_wanted, bytes) = tokio::select! {
                Some(answer) = answers.recv() => (true, Bytes::from(answer)),
                received = messages.recv() => match received {
                    Ok(message) => {
                        let topics = topics.lock().unwrap_or_else(PoisonError::into_inner);
                        (topics.iter().any(|wanted: &Vec<u8>| topic.starts_with(wanted)), message)
                    }
                    // It was too slow and has missed some, whose numbers it can ask for.
                    Err(broadcast::error::RecvError::Lagged(_)) => continue,
                    Err(broadcast::error::RecvError::Closed) => return Ok(()),
                },
            };
            if is_wanted {
                writer.write_all(&bytes).await?;
                writer.flush().await?;
            }
        }
    };
    tokio::select! {
        ended = read => ended,
        ended = write => ended,
    }
}

/// Reads what a subscriber wants and what it does not want any more.
async fn read_topics(
    reader: &mut (impl AsyncRead + Unpin),
    topics: &Mutex<Vec<Vec<u8>>>,
    answer: &mpsc::Sender<Vec<u8>>,
) -> io::Result<()> {
    loop {
        let frame = read_frame(reader, MAX_TOPIC_BYTES).await?;
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

/// Sends old batches to those who ask for them: each request is an empty frame and a number.
async fn replay(mut stream: PeerStream, kept: Arc<Mutex<Kept>>) -> io::Result<()> {
    loop {
        let mut frames: Vec<Vec<u8>> = Vec::new();
        loop {
            let frame = read_frame(&mut stream, MAX_TOPIC_BYTES).await?;
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
        let (mut next, end) = (u64::from_be_bytes(number), lock(&kept).end());
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
    use super::*;

    #[test]
    fn the_oldest_batches_are_forgotten_first() {
        let mut kept = Kept::default();
        assert_eq!((kept.first_from(0), kept.end()), (None, 0));
        for number in 0..5 {
            kept.push(number, Bytes::from_static(b"batch"), 3);
        }
        let from = |number| kept.first_from(number).map(|(number, _)| number);
        assert_eq!([0, 2, 3, 5].map(from), [Some(2), Some(2), Some(3), None]);
        assert_eq!((kept.end(), kept.n_bytes), (5, 15));
    }
}
