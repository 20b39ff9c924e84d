//! Quantized files against those of other software, and files in the way. One binary, so that the tests link once.

mod files;
mod reference_hashes;
