//! The contract of the CUDA executor on the simulated device: captured decode, moving pages, and failures. A fault of a kernel on
//! the way loses the device and fails the test.

mod capture;
mod cards;
mod early;
mod failures;
mod first_use;
mod guessers;
mod long;
mod pages;
mod scene;
mod states;
mod steps;
mod verify;
