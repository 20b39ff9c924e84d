//! Formats against reference vectors and scalar code. One binary, so that the tests link once.

mod cpu_paths;
mod e4m3;
mod random_rows;
mod reference_vectors;
