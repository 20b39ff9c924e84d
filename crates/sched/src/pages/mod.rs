//! Pages: which KV pages and recurrent states exist, who holds each, and which can be found again.
//!
//! [`pool`] has the pages of one group, [`states`] the slots of recurrent states, [`key`] their names in the
//! prefix cache, and [`store`] the interface to pages outside of the engine. Invariant: this module knows no
//! sequence.

pub(crate) mod events;
mod ghosts;
pub(crate) mod group;
pub(crate) mod key;
mod lru;
pub(crate) mod pool;
pub(crate) mod states;
pub(crate) mod store;
