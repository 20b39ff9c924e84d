//! The integration tests of the library: models by their front door, conversion, and the examples.
//!
//! One program, so that the library is linked once for all of them. Invariant: no test changes what the process shares.

mod conversion;
mod decide;
mod decide_families;
mod encoders;
mod examples;
mod forced_calls;
mod front_door;
mod importance;
mod shapes;
mod template_variables;
mod vision;
