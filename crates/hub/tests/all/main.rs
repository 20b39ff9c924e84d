//! The crate against a server on this machine that does everything wrong that a server can.

mod cached;
mod disk;
mod faults;
mod names;
mod ollama;
mod server;
mod transfers;
