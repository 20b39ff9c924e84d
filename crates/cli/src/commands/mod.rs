//! The commands, one file each: its options, its examples, its work.

pub(crate) mod apply_template;
pub(crate) mod batch;
pub(crate) mod bench;
pub(crate) mod bench_serve;
pub(crate) mod chat;
pub(crate) mod compare;
pub(crate) mod completions;
pub(crate) mod convert;
pub(crate) mod decide;
pub(crate) mod detokenize;
pub(crate) mod devices;
pub(crate) mod doctor;
pub(crate) mod imatrix;
pub(crate) mod inspect;
pub(crate) mod list;
pub(crate) mod man;
pub(crate) mod perplexity;
pub(crate) mod pull;
pub(crate) mod quantize;
pub(crate) mod rm;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod tokenize;
