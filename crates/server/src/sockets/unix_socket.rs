//! [`listen_unix`]: listens on a UNIX socket, and replaces the socket file of a server that is gone.
//!
//! The API and the events of the KV cache both use it. Invariant: a socket that answers stays.

use std::{
    fs, io,
    os::unix::{fs::FileTypeExt as _, net::UnixStream},
    path::Path,
};

use tokio::net::{UnixListener, UnixSocket};

use crate::sockets::accept_queue::QUEUE_LEN;

/// Listens on `path`. The socket file of a server that is gone is removed; with one that answers, this fails.
pub(crate) fn listen_unix(path: &Path) -> io::Result<UnixListener> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    if is_socket && UnixStream::connect(path).is_err() {
        // If removal fails, `bind` reports it.
        let _ = fs::remove_file(path);
    }
    let socket = UnixSocket::new_stream()?;
    socket.bind(path)?;
    socket.listen(QUEUE_LEN)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::sockets::accept_queue::tests::n_clients;

    #[tokio::test]
    async fn a_burst_connects_while_nobody_accepts() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let _listener = listen_unix(&path).expect("a free path");
        let mut clients = Vec::new();
        for _ in 0..n_clients() {
            let client = tokio::net::UnixStream::connect(&path).await;
            clients.push(client.expect("room in the queue"));
        }
    }
}
