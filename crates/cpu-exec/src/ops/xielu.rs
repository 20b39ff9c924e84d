//! [`xielu`]: the activation with learned numbers.
//!
//! Separate from the other activations, which have no numbers and are vectorized.

use tokenmill_backend::Xielu;

use crate::Host;

/// Values per chunk: a value takes some ten times as long as one of the vectorized functions.
const CHUNK_LEN: usize = 1024;

/// Applies the function to each value.
pub fn xielu(host: &Host, xielu: Xielu, x: &mut [f32]) {
    host.pool().for_each_chunk(x, CHUNK_LEN, |_, chunk| {
        for x in chunk {
            *x = xielu.apply(*x);
        }
    });
}
