//! [`Socket`]: the connections of a ZeroMQ socket, which waits for them or makes one.
//!
//! The messages are not its concern. Invariant: connections are bounded, and each has shaken hands in time
//! before it counts.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{
    config::Endpoint,
    zmtp::{Version, shake_hands},
};
use crate::sockets::byte_stream::{ByteStream, PeerStream};

/// Peers of a socket.
const MAX_PEERS: usize = 64;

/// Longest handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A peer that takes nothing for so long is left.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// The first and the longest wait before a connection is made again.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(5);

/// Types of ZeroMQ sockets: our own, and those of peers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    pub(super) own: &'static str,
    pub(super) peers: &'static [&'static str],
}

/// A socket that is bound, where it waits for its peers.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(tokio::net::UnixListener),
    Connects(String),
}

impl Socket {
    pub(super) async fn open(endpoint: &Endpoint) -> io::Result<Self> {
        Ok(match endpoint {
            Endpoint::Bind(address) => Self::Tcp(TcpListener::bind(address).await?),
            Endpoint::Connect(address) => Self::Connects(address.clone()),
            #[cfg(unix)]
            Endpoint::BindUnix(path) => Self::Unix(crate::sockets::unix_socket::listen_unix(path)?),
        })
    }

    /// The port that the system chose, where it chose one.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            _ => None,
        }
    }

    /// Lets `talk` speak with every peer, side by side. Dropping the future ends all of it.
    pub(super) async fn serve<F>(
        self,
        kind: Kind,
        talk: impl Fn(PeerStream, Version) -> F + Clone + Send + 'static,
    ) where
        F: Future<Output = io::Result<()>> + Send,
    {
        let places = Arc::new(Semaphore::new(MAX_PEERS));
        let mut peers = JoinSet::new();
        let mut retry = FIRST_RETRY;
        loop {
            while peers.try_join_next().is_some() {}
            let place = Arc::clone(&places).acquire_owned().await;
            let place = place.expect("the semaphore is never closed");
            let Ok(stream) = self.next().await else {
                sleep(retry).await;
                retry = (retry * 2).min(LAST_RETRY);
                continue;
            };
            retry = FIRST_RETRY;
            let talk = talk.clone();
            let peer = async move {
                let _place = place;
                let mut stream = PeerStream::new(stream, WRITE_TIMEOUT);
                let hands = shake_hands(&mut stream, kind.own, kind.peers);
                let ended = match timeout(HANDSHAKE_TIMEOUT, hands).await {
                    Ok(Ok(version)) => talk(stream, version).await,
                    Ok(Err(error)) => Err(error),
                    Err(late) => Err(late.into()),
                };
                note_end(&ended);
            };
            if let Self::Connects(_) = self {
                peer.await;
                sleep(FIRST_RETRY).await;
            } else {
                peers.spawn(peer);
            }
        }
    }

    async fn next(&self) -> io::Result<Box<dyn ByteStream>> {
        Ok(match self {
            Self::Tcp(listener) => at_once(listener.accept().await?.0)?,
            #[cfg(unix)]
            Self::Unix(listener) => Box::new(listener.accept().await?.0),
            Self::Connects(address) => at_once(TcpStream::connect(address).await?)?,
        })
    }
}

/// A stream whose messages, which are small, leave at once.
fn at_once(stream: TcpStream) -> io::Result<Box<dyn ByteStream>> {
    stream.set_nodelay(true)?;
    Ok(Box::new(stream))
}

fn note_end(ended: &io::Result<()>) {
    if let Err(error) = ended
        && error.kind() != io::ErrorKind::UnexpectedEof
    {
        tracing::debug!(%error, "a reader of the KV cache's events is gone");
    }
}
