//! The program as its users meet it: arguments in, text and exit codes out. One binary, no downloads.
//!
//! Tests that compare with reference data find it through `TOKENMILL_TEST_DATA`; without it they say so and pass.

mod adapters;
mod bad_input;
mod batch;
mod bench;
#[cfg(target_os = "linux")]
mod changed_file;
mod chat;
mod commands;
mod context_shift;
mod convert;
mod decide;
mod demo;
#[cfg(target_os = "linux")]
mod disk;
#[cfg(unix)]
mod doctor;
mod drafts;
#[cfg(target_os = "linux")]
mod embedding_model;
mod encoders;
#[cfg(target_os = "linux")]
mod floods;
mod folders;
mod foreign_options;
#[cfg(target_os = "linux")]
#[cfg(feature = "cuda")]
mod gpu;
#[cfg(target_os = "linux")]
#[cfg(feature = "cuda")]
mod gpu_adapters;
#[cfg(target_os = "linux")]
#[cfg(feature = "cuda")]
mod gpu_first_use;
#[cfg(target_os = "linux")]
#[cfg(feature = "cuda")]
mod gpu_guesses;
#[cfg(target_os = "linux")]
#[cfg(feature = "cuda")]
mod gpu_images;
#[cfg(target_os = "linux")]
#[cfg(feature = "cuda")]
mod gpu_tiers;
#[cfg(target_os = "linux")]
#[cfg(feature = "cuda")]
mod group;
mod help;
#[cfg(target_os = "linux")]
mod hostile_files;
mod hub;
mod images;
#[cfg(target_os = "linux")]
mod interrupt;
#[cfg(target_os = "linux")]
mod large_fields;
mod memory;
#[cfg(target_os = "linux")]
mod mix;
mod mtp;
mod options;
mod perplexity;
#[cfg(target_os = "linux")]
mod places;
mod processors;
#[cfg(target_os = "linux")]
mod pty;
#[cfg(target_os = "linux")]
mod pulled;
mod quantize;
#[cfg(target_os = "linux")]
mod served_folders;
#[cfg(target_os = "linux")]
mod server;
mod sessions;
#[cfg(target_os = "linux")]
mod several_models;
mod shapes;
#[cfg(target_os = "linux")]
#[cfg(feature = "cuda")]
mod split;
#[cfg(target_os = "linux")]
#[cfg(feature = "cuda")]
mod split_choice;
mod support;
mod swapped;
#[cfg(target_os = "linux")]
mod terminal;
#[cfg(target_os = "linux")]
mod typing;
#[cfg(target_os = "linux")]
#[cfg(feature = "cuda")]
mod without_gpu;
