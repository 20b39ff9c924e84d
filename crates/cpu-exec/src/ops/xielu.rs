//! [`xielu`]: the activation with learned parameters.
//!
//! Unlike the other activations, it has parameters and is not vectorized.

use tokenmill_backend::Xielu;

use crate::Host;

/// The number of values per chunk: a value takes about ten times as long as with a vectorized function.
const CHUNK_LEN: usize = 1024;

/// Applies the function to each value.
pub fn xielu(host: &Host, xielu: Xielu, x: &mut [f32]) {
    host.pool().for_each_chunk(x, CHUNK_LEN, |_, chunk| {
        for x in chunk {
            *x = xielu.apply(*x);
        }
    });
}
