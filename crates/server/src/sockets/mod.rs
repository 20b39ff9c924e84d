//! Listeners and connections below HTTP.
//!
//! Invariant: nothing here knows of HTTP, so that [`kv_events`](crate::kv_events) can use the same sockets.

pub(crate) mod accept_queue;
pub(crate) mod byte_stream;
#[cfg(unix)]
pub(crate) mod unix_socket;
pub(crate) mod write_timeout;
