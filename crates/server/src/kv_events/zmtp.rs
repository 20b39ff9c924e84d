//! ZMTP 3.1, the protocol of ZeroMQ, as far as a publisher needs it: greeting, handshake without security,
//! frames.
//!
//! It is own code because the library for it reserves as many bytes as a peer's frame announces, so one
//! message can end the process. Invariants: a frame of a peer is refused by its length before memory is taken
//! for it; a message has gone out whole or the connection ends.
//!
//! Source: <https://rfc.zeromq.org/spec/23/> and, for heartbeats and subscriptions as commands,
//! <https://rfc.zeromq.org/spec/37/>.

use std::{io, time::Duration};

use axum::body::Bytes;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    time::timeout,
};

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Longest command of a handshake.
const MAX_COMMAND_BYTES: u64 = 4096;

/// A frame that a peer sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) is_command: bool,
    /// Whether more frames of the same message follow.
    pub(super) has_more: bool,
    pub(super) body: Vec<u8>,
}

/// The protocol version of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// 3.0, without heartbeats.
    V30,
    /// 3.1 or later: it answers a `PING`.
    V31,
}

/// Shakes hands as a socket of type `own` with a peer whose type is one of `peers`.
pub(super) async fn shake_hands(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    own: &str,
    peers: &[&str],
) -> io::Result<Version> {
    let greeting = greeting();
    stream.write_all(&greeting).await?;
    stream.flush().await?;
    let mut theirs = [0; 64];
    stream.read_exact(&mut theirs).await?;
    if theirs[0] != 0xff || theirs[9] & 1 == 0 || theirs[10] < 3 {
        return Err(broken("it does not speak ZMTP 3"));
    }
    if theirs[12..32] != greeting[12..32] {
        return Err(broken("it requires security, which is not supported"));
    }
    let version = match theirs[10..12] {
        [3, 0] => Version::V30,
        _ => Version::V31,
    };
    let mut ready = b"\x05READY\x0bSocket-Type".to_vec();
    ready.extend((own.len() as u32).to_be_bytes());
    ready.extend(own.as_bytes());
    let mut frame = Vec::new();
    write_frame(&mut frame, COMMAND, &ready);
    stream.write_all(&frame).await?;
    stream.flush().await?;
    let theirs = read_frame(stream, MAX_COMMAND_BYTES).await?;
    let Some((b"READY", properties)) = command(&theirs) else {
        return Err(broken("it is not ready"));
    };
    let kind = property(properties, "socket-type").ok_or_else(|| broken("it names no type"))?;
    if peers.iter().any(|peer| peer.as_bytes() == kind) {
        return Ok(version);
    }
    Err(broken("its type of socket does not fit"))
}

/// Returns the greeting that both sides send first: a signature, version 3.1, no security.
fn greeting() -> [u8; 64] {
    let mut greeting = [0; 64];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10..12].copy_from_slice(&[3, 1]);
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

/// Reads a frame of at most `max_bytes`.
pub(super) async fn read_frame(stream: &mut (impl AsyncRead + Unpin), max_bytes: u64) -> io::Result<Frame> {
    let flags = stream.read_u8().await?;
    if flags & !(MORE | LONG | COMMAND) != 0 {
        return Err(broken("a frame has unknown flags"));
    }
    let n_bytes = if flags & LONG == 0 {
        u64::from(stream.read_u8().await?)
    } else {
        stream.read_u64().await?
    };
    if n_bytes > max_bytes {
        return Err(broken("a frame is too long"));
    }
    let mut body = vec![0; n_bytes as usize];
    stream.read_exact(&mut body).await?;
    Ok(Frame {
        is_command: flags & COMMAND != 0,
        has_more: flags & MORE != 0,
        body,
    })
}

/// Name and content of a command.
pub(super) fn command(frame: &Frame) -> Option<(&[u8], &[u8])> {
    let (&n_name, rest) = frame.body.split_first().filter(|_| frame.is_command)?;
    rest.split_at_checked(usize::from(n_name))
}

/// Reads a frame as [`read_frame`]. A peer that is silent for `patience` is sent a `PING`, which is what `ping` does, if it answers those; one that is then silent
/// for as long again is left.
pub(super) async fn read_beating(
    stream: &mut (impl AsyncRead + Unpin),
    max_bytes: u64,
    version: Version,
    patience: Duration,
    ping: impl Future<Output = io::Result<()>>,
) -> io::Result<Frame> {
    let mut frame = std::pin::pin!(read_frame(stream, max_bytes));
    if version == Version::V30 {
        return frame.await;
    }
    if let Ok(frame) = timeout(patience, &mut frame).await {
        return frame;
    }
    ping.await?;
    match timeout(patience, frame).await {
        Ok(frame) => frame,
        Err(_) => Err(broken("it answers no heartbeat")),
    }
}

/// A `PING` without a time to live and a context.
pub(super) fn ping() -> Vec<u8> {
    let mut frame = Vec::new();
    write_frame(&mut frame, COMMAND, b"\x04PING\0\0");
    frame
}

/// The answer to a `PING`, whose content is a time to live and a context.
pub(super) fn pong(content: &[u8]) -> Option<Vec<u8>> {
    let context = content.get(2..)?;
    let mut body = b"\x04PONG".to_vec();
    body.extend(context);
    let mut frame = Vec::new();
    write_frame(&mut frame, COMMAND, &body);
    Some(frame)
}

/// The value of a property, whose name is compared without its case.
fn property<'b>(mut properties: &'b [u8], name: &str) -> Option<&'b [u8]> {
    while let Some((&n_name, rest)) = properties.split_first() {
        let (key, rest) = rest.split_at_checked(usize::from(n_name))?;
        let (n_value, rest) = rest.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*n_value) as usize)?;
        if key.eq_ignore_ascii_case(name.as_bytes()) {
            return Some(value);
        }
        properties = rest;
    }
    None
}

/// The bytes of a message.
pub(super) fn message(parts: &[&[u8]]) -> Bytes {
    let mut bytes = Vec::with_capacity(parts.iter().map(|part| part.len() + 9).sum());
    for (idx, part) in parts.iter().enumerate() {
        write_frame(&mut bytes, if idx + 1 < parts.len() { MORE } else { 0 }, part);
    }
    bytes.into()
}

fn write_frame(bytes: &mut Vec<u8>, flags: u8, body: &[u8]) {
    if let Ok(n_bytes) = u8::try_from(body.len()) {
        bytes.extend([flags, n_bytes]);
    } else {
        bytes.push(flags | LONG);
        bytes.extend((body.len() as u64).to_be_bytes());
    }
    bytes.extend(body);
}

/// A peer that does not keep to the protocol.
pub(super) fn broken(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}
