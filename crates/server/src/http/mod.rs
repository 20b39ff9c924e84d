//! The front of the server: [`serve`] takes connections, [`router`] leads each request through its checks to
//! its endpoint.
//!
//! Invariant: no other module of the server imports this one.

mod answer_body;
mod auth;
mod connections;
pub(crate) mod listening;
mod origin;
pub(crate) mod router;
pub(crate) mod serve;
