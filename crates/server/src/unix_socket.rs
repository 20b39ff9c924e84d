//! [`listen_unix`]: listens on a UNIX socket in the place of a server that is gone.
//!
//! Separate because the API and the events of the KV cache do so alike. Invariant: a socket that answers stays.

use std::{
    fs, io,
    os::unix::{fs::FileTypeExt as _, net},
    path::Path,
};

use tokio::net::{UnixListener, UnixSocket};

use crate::accept_queue::QUEUE_LEN;

/// Listens on `path`. The socket file of a server that is gone is removed; with one that answers, this fails.
pub(crate) fn listen_unix(path: &Path) -> io::Result<UnixListener> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    if is_socket && net::UnixStream::connect(path).is_err() {
        // What cannot be removed is in the way of what follows, which then says so.
        let _ = fs::remove_file(path);
    }
    let socket = UnixSocket::new_stream()?;
    socket.bind(path)?;
    socket.listen(QUEUE_LEN)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::time::Duration;

    use tokio::{net::UnixStream, time::timeout};

    use super::*;
    use crate::accept_queue::burst_len;

    #[tokio::test]
    async fn a_burst_connects_while_no_client_is_accepted() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let _listener = listen_unix(&path).expect("a free path");
        let mut clients = Vec::new();
        for at in 0..burst_len() {
            let connected = timeout(Duration::from_millis(500), UnixStream::connect(&path)).await;
            let connected = connected.unwrap_or_else(|_| panic!("client {at} waits"));
            clients.push(connected.expect("a connection"));
        }
    }
}
