//! Every kernel on the simulator against plain loops, over random shapes with 1 and ragged ones, without a single finding.

mod argmax;
mod attention;
mod bands;
mod bench;
mod embed;
mod experts;
mod halves;
mod latent;
mod layers;
mod many_rows;
mod matvec;
mod norm;
mod planted;
mod recurrence;
mod rope;
mod sample;
mod streams;
mod wide;
