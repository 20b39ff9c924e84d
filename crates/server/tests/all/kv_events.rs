//! The KV cache's events over ZeroMQ, byte by byte, as a subscriber without a library meets them.

use std::{path::Path, time::Duration};

use tokenmill_sched::EngineConfig;
use tokenmill_server::{
    ServerConfig,
    kv_events::{Endpoint, KvEventsConfig},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    time::timeout,
};

use crate::server::{Setup, TestServer};

/// A peer that speaks ZMTP 3.0.
struct Peer(UnixStream);

impl Peer {
    /// Shakes hands as a socket of this type.
    async fn connect(path: &Path, own: &str, theirs: &str) -> Self {
        let mut stream = UnixStream::connect(path).await.expect("the socket is there");
        let mut greeting = [0; 64];
        greeting[..12].copy_from_slice(b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0");
        greeting[12..16].copy_from_slice(b"NULL");
        stream.write_all(&greeting).await.unwrap();
        let mut answer = [0; 64];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer[..12], b"\xff\0\0\0\0\0\0\0\0\x7f\x03\x01");
        assert_eq!(&answer[12..33], b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        let mut peer = Self(stream);
        let ready = |kind: &str| {
            let mut body = b"\x05READY\x0bSocket-Type\0\0\0".to_vec();
            body.push(kind.len() as u8);
            body.extend(kind.as_bytes());
            body
        };
        peer.send(4, &ready(own)).await;
        assert_eq!(peer.frame().await, (4, ready(theirs)));
        peer
    }

    async fn send(&mut self, flags: u8, body: &[u8]) {
        let mut bytes = vec![flags, body.len() as u8];
        bytes.extend(body);
        self.0.write_all(&bytes).await.unwrap();
    }

    async fn frame(&mut self) -> (u8, Vec<u8>) {
        let flags = self.0.read_u8().await.expect("a frame");
        let n_bytes = match flags & 2 {
            0 => u64::from(self.0.read_u8().await.unwrap()),
            _ => self.0.read_u64().await.unwrap(),
        };
        let mut body = vec![0; n_bytes as usize];
        self.0.read_exact(&mut body).await.unwrap();
        (flags & !2, body)
    }

    async fn message(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        loop {
            let frame = timeout(Duration::from_secs(30), self.frame()).await;
            let (flags, body) = frame.expect("a message comes");
            frames.push(body);
            if flags & 1 == 0 {
                return frames;
            }
        }
    }

    /// Whether the other side ends the connection.
    async fn ends(&mut self) -> bool {
        let mut rest = Vec::new();
        let end = timeout(Duration::from_secs(30), self.0.read_to_end(&mut rest));
        end.await.is_ok()
    }
}

async fn start(folder: &Path) -> Option<TestServer> {
    let text = format!(
        r#"{{"enable_kv_cache_events": true, "endpoint": "ipc://{0}/events", "replay_endpoint": "ipc://{0}/replay",
            "topic": "kv@here@demo"}}"#,
        folder.display()
    );
    let config = KvEventsConfig::from_json(&text).unwrap().unwrap();
    assert_eq!(config.endpoint, Endpoint::BindUnix(folder.join("events")));
    TestServer::start_with(Setup {
        engine: EngineConfig {
            max_page_event_batches: Some(config.max_queue_size),
            ..EngineConfig::default()
        },
        server: ServerConfig {
            kv_events: Some(config),
            ..ServerConfig::default()
        },
        babbles: true,
        ..Setup::default()
    })
    .await
}

const BODY: &str =
    r#"{"prompt": [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21], "max_tokens": 1}"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_is_told_and_can_ask_again() {
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = start(folder.path()).await else {
        return;
    };
    let mut subscriber = Peer::connect(&folder.path().join("events"), "SUB", "PUB").await;
    subscriber.send(0, b"\x01kv@").await;
    subscriber.send(4, b"\x04PING\0\x10abc").await;
    assert_eq!(
        subscriber.frame().await,
        (4, b"\x04PONGabc".to_vec()),
        "so it has subscribed"
    );
    let mut other = Peer::connect(&folder.path().join("events"), "XSUB", "PUB").await;
    other.send(0, b"\x01other").await;
    server
        .post_ok("/v1/completions", &serde_json::from_str(BODY).unwrap())
        .await;
    let stored = subscriber.message().await;
    let [topic, number, payload] = &stored[..] else {
        panic!("{stored:?}");
    };
    assert_eq!((&topic[..], &number[..]), (&b"kv@here@demo"[..], &[0; 8][..]));
    // [time, [{type: BlockStored, block_hashes: [..
    assert_eq!((&payload[..2], payload[10]), (&b"\x93\xcb"[..], 0x91));
    assert_eq!(
        &payload[11..43],
        b"\x8b\xa4type\xabBlockStored\xacblock_hashes\x91"
    );
    let tokens = b"\xa9token_ids\xdc\x00\x10\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10\x11\x12\x13\x14\xaablock_size\x10";
    assert!(
        payload.windows(tokens.len()).any(|part| part == tokens),
        "{payload:02x?}"
    );

    let mut asker = Peer::connect(&folder.path().join("replay"), "REQ", "ROUTER").await;
    for (from, n_batches) in [(0_u64, 1), (1, 0)] {
        asker.send(1, b"").await;
        asker.send(0, &from.to_be_bytes()).await;
        for _ in 0..n_batches {
            assert_eq!(asker.message().await, [&b""[..], number, payload]);
        }
        assert_eq!(asker.message().await, [&b""[..], &[0xff; 8], b""]);
    }
    // The other subscriber was sent nothing: its first message is the answer to its question.
    other.send(4, b"\x04PING\0\x10").await;
    assert_eq!(other.frame().await, (4, b"\x04PONG".to_vec()));
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_that_break_the_protocol_are_left_and_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = start(folder.path()).await else {
        return;
    };
    let (events, replay) = (folder.path().join("events"), folder.path().join("replay"));
    // A frame of 2^62 bytes.
    let huge = b"\x02\x40\0\0\0\0\0\0\0";
    for path in [&events, &replay] {
        let mut stranger = Peer(UnixStream::connect(path).await.unwrap());
        stranger.0.write_all(&[b'G'; 64]).await.unwrap();
        assert!(stranger.ends().await, "no greeting");
    }
    let mut subscriber = Peer::connect(&events, "SUB", "PUB").await;
    subscriber.0.write_all(huge).await.unwrap();
    assert!(subscriber.ends().await);
    for request in [
        &huge[..],
        b"\0\x08\0\0\0\0\0\0\0\0",
        b"\x01\0\0\x01\x05",
        b"\x01\0\x01\0\x01\0\0\0",
    ] {
        let mut asker = Peer::connect(&replay, "DEALER", "ROUTER").await;
        asker.0.write_all(request).await.unwrap();
        assert!(asker.ends().await, "{request:?}");
    }
    let mut good = Peer::connect(&events, "SUB", "PUB").await;
    good.send(0, b"\x01").await;
    good.send(4, b"\x04PING\0\x10").await;
    good.frame().await;
    server
        .post_ok("/v1/completions", &serde_json::from_str(BODY).unwrap())
        .await;
    assert_eq!(good.message().await.len(), 3);
}
