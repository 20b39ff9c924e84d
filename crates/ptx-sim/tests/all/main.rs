//! Small PTX programs, one per feature and one per class of bug, with their results and reports.

mod arithmetic;
mod bench;
mod counters;
mod early;
mod exchange;
mod findings;
mod groups;
mod handed_over;
mod matrix;
mod memory;
mod mutated;
mod phases;
mod ptx_words;
mod published;
mod roundings;
mod spins;
mod timing;
mod transposed;
