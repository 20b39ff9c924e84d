//! Files of other software, files on disk, wrong files and damaged ones. One binary, so that the tests link once.

mod files;
mod mutation;
mod reference_data;
mod refusals;
mod robustness;
