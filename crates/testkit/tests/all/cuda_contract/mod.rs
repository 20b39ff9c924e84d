//! The contract of the CUDA executor on the simulated device: captured decode, pages on the move, and what happens when something
//! fails. Whatever a kernel does wrong on the way loses the device and fails the test.

mod capture;
mod early;
mod failures;
mod guessers;
mod pages;
mod scene;
mod states;
mod steps;
mod verify;
