//! Small PTX programs, one per feature and one per class of bug, with their results and reports.

mod arithmetic;
mod bench;
mod counters;
mod device_memory;
mod early;
mod exchange;
mod findings;
mod groups;
mod halves;
mod handed_over;
mod matrix;
mod memory;
mod mutated;
mod occupancy;
mod phases;
mod ptx_words;
mod published;
mod read_first;
mod residency;
mod roundings;
mod spins;
mod timing;
mod transposed;
mod written;
