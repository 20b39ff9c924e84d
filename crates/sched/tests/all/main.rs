//! The integration tests of the engine: its contract, its plans, and its traffic on a small real network.
//!
//! One program, so that the network is compiled and linked once for all of them. Invariant: no test changes what the process
//! shares; `shuttle` replaces the primitives of threads and is a program of its own.

mod adapters;
mod context_shift;
mod contract;
mod media;
mod memory_kinds;
mod plans;
mod prefilled;
mod remainders;
mod speculation;
mod tiny_model;
