//! Tests of the library that see its inside, in rooms as the sources have them.
//!
//! They are not in the source files because `tests/shuttle` compiles those again, with threads of another
//! scheduler.

mod draft;
mod endless;
mod engine;
mod masks;
mod pages;

use crate::masks::constraint::{ConstraintFailure, ConstraintSource, TokenConstraint};
