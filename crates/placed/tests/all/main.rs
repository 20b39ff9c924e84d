//! The integration tests of split networks: on a host and a device, and on several devices.
//!
//! One program, so that the network is compiled and linked once for all of them. Invariant: no test changes what the process
//! shares.

mod conformance;
mod contract;
mod group;
mod overlap;
mod splits;
