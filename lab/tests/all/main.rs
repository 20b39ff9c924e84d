//! Tests of the tools from outside, in one binary.

mod commands;
mod readme;
