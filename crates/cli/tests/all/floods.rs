//! Floods a server without keys with HTTP/2 connections and streams: probes and plain requests get answers within a second, and memory
//! returns to within 100 MB of its start.
//!
//! `TOKENMILL_FLOOD_SECONDS` sets the length of each flood. From 120 seconds on, a flood has the size that the documentation states; by
//! default it has an eighth of that and lasts a few seconds.

use std::{
    env, fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::server::Server;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const SETTINGS: u8 = 4;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const PING: u8 = 6;
const END_STREAM_AND_HEADERS: u8 = 5;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Encodes a `GET` without HPACK's tables.
fn get(stream: u32, path: &str) -> Vec<u8> {
    let fields = [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "127.0.0.1"),
    ];
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            block.push(text.len() as u8);
            block.extend_from_slice(text.as_bytes());
        }
    }
    frame(HEADERS, END_STREAM_AND_HEADERS, stream, &block)
}

/// Holds a connection that gives its streams a window of `window` bytes and answers pings and settings.
struct Peer {
    stream: TcpStream,
    unread: Vec<u8>,
    is_open: bool,
}

impl Peer {
    fn connect(address: &str, window: u32) -> Self {
        let mut stream = TcpStream::connect(address).expect("a connection");
        let setting = [&[0, 4][..], &window.to_be_bytes()].concat();
        let hello = [PREFACE, &frame(SETTINGS, 0, 0, &setting)].concat();
        let is_open = stream.write_all(&hello).is_ok();
        // It is not a fault if the server stops reading.
        let patience = Some(Duration::from_millis(200));
        stream.set_write_timeout(patience).expect("a socket can");
        Self {
            stream,
            unread: Vec::new(),
            is_open,
        }
    }

    /// Sends frames; returns false if the connection is closed.
    fn send(&mut self, bytes: &[u8]) -> bool {
        self.is_open = self.is_open && self.stream.write_all(bytes).is_ok();
        self.is_open
    }

    /// Answers settings and pings. Returns how many streams were reset.
    fn attend(&mut self) -> usize {
        let mut part = [0; 16 << 10];
        self.stream.set_nonblocking(true).expect("a socket can");
        loop {
            match self.stream.read(&mut part) {
                Ok(0) => {
                    self.is_open = false;
                    break;
                }
                Ok(n) => self.unread.extend_from_slice(&part[..n]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.is_open = false;
                    break;
                }
            }
        }
        self.stream.set_nonblocking(false).expect("a socket can");
        let (mut at, mut n_resets) = (0, 0);
        while let Some(head) = self.unread.get(at..at + 9) {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let (kind, flags) = (head[3], head[4]);
            let Some(payload) = self.unread.get(at + 9..at + 9 + length) else {
                break;
            };
            let answer = match (kind, flags & 1) {
                (SETTINGS, 0) => Some(frame(SETTINGS, 1, 0, &[])),
                (PING, 0) => Some(frame(PING, 1, 0, payload)),
                _ => None,
            };
            n_resets += usize::from(kind == RST_STREAM);
            at += 9 + length;
            if let Some(answer) = answer {
                self.is_open &= self.stream.write_all(&answer).is_ok();
            }
        }
        self.unread.drain(..at);
        n_resets
    }
}

/// Holds the size of a flood.
struct Size {
    time: Duration,
    /// Divisor of the full numbers.
    part: usize,
}

fn size() -> Size {
    let seconds = env::var("TOKENMILL_FLOOD_SECONDS").ok();
    let seconds = seconds.and_then(|text| text.parse().ok()).unwrap_or(3);
    Size {
        time: Duration::from_secs(seconds),
        part: if seconds >= 120 { 1 } else { 8 },
    }
}

/// Returns the server's resident memory, in megabytes.
fn resident_mb(server: &Server) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.id())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kb = line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok());
    kb.expect("a number") >> 10
}

/// Sends a probe and a plain request; each must get its answer within a second.
fn check_answers(server: &Server, flood: &str) {
    let plain = json!({ "prompt": "Once", "max_tokens": 2 }).to_string();
    for (method, path, body) in [("GET", "/livez", ""), ("POST", "/v1/completions", &plain)] {
        let begun = Instant::now();
        let (status, _) = server.ask(method, path, body);
        let took = begun.elapsed();
        assert_eq!(status, 200, "{flood}: {path}");
        assert!(took < Duration::from_secs(1), "{flood}: {path} took {took:?}");
    }
}

/// Runs a flood for its time, and checks the server during and after it.
fn watch(server: &Server, flood: &str, mut go_on: impl FnMut()) {
    let before = resident_mb(server);
    let (begun, time) = (Instant::now(), size().time);
    let mut next_look = begun;
    while begun.elapsed() < time {
        go_on();
        if Instant::now() >= next_look {
            check_answers(server, flood);
            next_look = Instant::now() + Duration::from_secs(1);
        }
    }
    let after = resident_mb(server);
    println!("{flood}: {before} MB before, {after} MB at the end");
    assert!(
        after < before + 100,
        "{flood}: {before} MB before, {after} MB after"
    );
}

#[test]
fn idle_connections_lock_nobody_out() {
    let server = Server::start(&["demo", "--api-key", "k"]);
    let server = server.with_key("k");
    let n_peers = 4096 / size().part;
    let mut peers = Vec::new();
    watch(&server, "idle", || {
        while peers.len() < n_peers {
            let mut peer = Peer::connect(server.address(), 1 << 16);
            peer.send(&get(1, "/livez"));
            peers.push(peer);
        }
        for peer in peers.iter_mut().filter(|peer| peer.is_open) {
            peer.attend();
        }
        thread::sleep(Duration::from_millis(100));
    });
}

#[test]
fn answers_that_nobody_reads_are_reset_and_hold_nothing() {
    let server = Server::start(&["demo", "--api-key", "k", "--write-timeout", "0.2"]);
    let server = server.with_key("k");
    let n_peers = 20 / size().part.min(4);
    let mut peers: Vec<(Peer, u32)> = Vec::new();
    let mut n_resets = 0;
    watch(&server, "unread", || {
        peers.retain(|(peer, _)| peer.is_open);
        while peers.len() < n_peers {
            peers.push((Peer::connect(server.address(), 1), 1));
        }
        for (peer, next) in &mut peers {
            n_resets += peer.attend();
            // As many streams as a connection may have, and as many again after those were reset.
            while *next < 200 * (1 + n_resets as u32 / (100 * n_peers as u32)) {
                if !peer.send(&get(*next, "/openapi.json")) {
                    break;
                }
                *next += 2;
            }
        }
        thread::sleep(Duration::from_millis(20));
    });
    assert!(n_resets >= 100, "{n_resets} streams were reset");
}

#[test]
fn a_flood_of_resets_leaves_nothing_behind() {
    let server = Server::start(&["demo", "--api-key", "k"]);
    let server = server.with_key("k");
    let n_resets = 100_000 / size().part;
    let mut peer = Peer::connect(server.address(), 1);
    let (mut next, mut n_sent) = (1, 0);
    watch(&server, "resets", || {
        peer.attend();
        // The server closes connections that reset streams without end.
        if !peer.is_open {
            peer = Peer::connect(server.address(), 1);
            next = 1;
        }
        for _ in 0..100 {
            let cancel = 8_u32.to_be_bytes();
            let stream = [get(next, "/openapi.json"), frame(RST_STREAM, 0, next, &cancel)].concat();
            if n_sent < n_resets && peer.send(&stream) {
                next += 2;
                n_sent += 1;
            }
        }
        thread::sleep(Duration::from_millis(2));
    });
    assert_eq!(n_sent, n_resets, "streams that were reset");
}
