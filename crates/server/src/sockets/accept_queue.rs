//! [`listen_tcp`] and [`QUEUE_LEN`]: how many connections wait for a busy listener.
//!
//! TCP and UNIX sockets have the same queue. Invariant: a burst of as many clients as a server has places
//! connects without a retry. The kernel drops a `SYN` beyond the queue, and the client sends it again a
//! second later; on a UNIX socket it refuses the client. Most libraries set 128.

use std::{io, net::SocketAddr};

use tokio::net::{TcpListener, TcpSocket};

/// Connections that wait to be accepted. Linux allows `net.core.somaxconn` of them, which is 4,096 by default.
pub(crate) const QUEUE_LEN: u32 = 4096;

/// Listens on a TCP address.
///
/// # Errors
/// Fails if the system cannot create, bind or listen on the socket.
pub(crate) fn listen_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // A server that restarts takes its port although connections of the last one linger. On Windows the option means another thing.
    #[cfg(not(windows))]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(QUEUE_LEN)
}

#[cfg(all(test, target_os = "linux"))]
pub(crate) mod tests {
    use std::time::Duration;

    use tokio::{net::TcpStream, time::timeout};

    use super::*;

    /// Below the first retry of a `SYN`, which comes after a second.
    const SOON: Duration = Duration::from_millis(900);

    /// More clients than common queues hold, and no more than the kernel allows.
    pub(crate) fn n_clients() -> usize {
        let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn").expect("Linux has it");
        most.trim().parse::<usize>().expect("a number").min(400)
    }

    #[tokio::test]
    async fn a_burst_connects_while_nobody_accepts() {
        let listener = listen_tcp(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let mut clients = Vec::new();
        for at in 0..n_clients() {
            let connected = timeout(SOON, TcpStream::connect(address)).await;
            clients.push(
                connected
                    .unwrap_or_else(|_| panic!("client {at} waits"))
                    .expect("a connection"),
            );
        }
    }
}
