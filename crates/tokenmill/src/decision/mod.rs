//! Typed questions, and how the rows of a pass become probabilities of their options.
//!
//! Apart from [`decide`](crate::decide), which asks a model, because the words of a model know its family and its temperatures.

pub(crate) mod answer;
pub(crate) mod family;
pub(crate) mod question;
pub(crate) mod readout;
pub(crate) mod temperatures;
