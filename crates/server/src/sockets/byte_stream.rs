//! [`ByteStream`]: a connection of any kind.
//!
//! Behind one type, so that the protocols above are compiled once and not again for TCP, TLS and UNIX sockets.

use tokio::io::{AsyncRead, AsyncWrite};

use super::write_timeout::WriteTimeout;

/// A stream of bytes to a peer.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

/// A connection that fails if the peer takes nothing for a time.
pub(crate) type PeerStream = WriteTimeout<Box<dyn ByteStream>>;
