//! [`identity_of`]: a number for a model, the same at every load.
//!
//! It is computed while the files are open. Invariant: everything that changes the memory of a sequence
//! changes the number: the network's description, the types that its weights are computed in, and the
//! weights, of which samples of every tensor are read.

use std::io;

use tokenmill_model::{Model as Network, RopeScaling};

use crate::checksum::checksum;

/// Samples of a tensor, evenly spread.
const N_SAMPLES: usize = 8;
/// Bytes of a sample.
const SAMPLE_BYTES: usize = 64;

/// The identity of an opened network that is loaded for contexts of `n_ctx` tokens.
pub(crate) fn identity_of(network: &Network, n_ctx: usize) -> io::Result<u128> {
    let descriptor = network.descriptor();
    let mut bytes = format!("{descriptor:?}").into_bytes();
    for rope in &descriptor.ropes {
        // Positions are scaled by the longest context.
        match rope.scaling {
            RopeScaling::LongRope { original_context, .. } => bytes.push(u8::from(n_ctx > original_context)),
            RopeScaling::Dynamic { original_context, .. } => {
                bytes.extend_from_slice(&n_ctx.max(original_context).to_le_bytes());
            }
            _ => {}
        }
    }
    let weights = network.weights();
    let mut infos = weights.infos();
    infos.sort_by(|a, b| a.name.cmp(&b.name));
    for info in infos {
        bytes.extend_from_slice(format!("{} {} {:?}\n", info.name, info.ty.name(), info.dims).as_bytes());
        let Some(tensor) = weights.tensor(&info.name) else {
            continue;
        };
        let len = tensor.bytes.len();
        let mut sample = [0; SAMPLE_BYTES];
        let sample = &mut sample[..len.min(SAMPLE_BYTES)];
        for n in 0..N_SAMPLES {
            let at = (len - sample.len()) / (N_SAMPLES - 1) * n;
            tensor.bytes.read_into(at, sample)?;
            bytes.extend_from_slice(sample);
        }
    }
    let [high, low] = [0, 1].map(|seed| u128::from(checksum(&bytes, seed)));
    Ok(high << 64 | low)
}
