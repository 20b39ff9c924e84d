//! The queue: how requests and commands travel from callers to the engine's thread, and events back.
//!
//! Everything here is data for both sides of the [`mailbox`].

pub(crate) mod adapters;
pub(crate) mod event;
pub(crate) mod gauge;
pub(crate) mod mailbox;
pub(crate) mod prefix_command;
pub(crate) mod submission;
