//! [`Overlap`]: computes some steps in two parts, so that host and device work at the same time.
//!
//! This only decides where a step is cut. The device queues its work. So if its layers follow the host's, the
//! host computes its layers for the second part of the rows while the device computes its own for the first.
//! Each part reads all weights, so parts need enough rows to be limited by computation. Invariant: the parts
//! compute the same as the step, like chunks of a prompt.

use tokenmill_backend::ForwardBatch;

use crate::Placement;

/// The condition for computing a step in two parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overlap {
    /// If the device's layers follow the host's, the device works independently of the host, and each part
    /// has enough rows that reading the weights twice costs little ([`Placement::min_part_rows`]).
    #[default]
    Auto,
    /// Never.
    Never,
    /// If each part has at least this many rows, whatever the placement and the device.
    From(usize),
}

/// Number of rows from which a product on a CPU takes several times as long as reading its weights. With 64
/// rows a weight of at most one byte is used in at least 128 operations, and CPUs do some 10 to 30 per byte
/// that they read.
const MIN_ROWS_OF_HOST: usize = 64;
/// The same for a GPU, which does some 300 operations per byte.
const MIN_ROWS_OF_DEVICE: usize = 256;
/// Maximum ratio of device layers to host layers with which the device waits for the host at
/// [`MIN_ROWS_OF_HOST`] rows: a fast CPU computes 64 rows of a layer in several times the time that a slow
/// GPU needs to read it.
const MAX_RATIO: usize = 8;
/// Granularity of cuts within a sequence, in tokens: the number that recurrent layers process at a time on a
/// GPU.
const BLOCK: usize = 64;

impl Placement {
    /// Returns the minimum rows per part for computing a step in two parts; `None` if the device's layers do
    /// not follow the host's, so that each would wait for the other in every part. It is derived from the
    /// rows that take longer than the weights, see [`Overlap`]. Each expert is read for its own rows only, so
    /// the fewer experts a row uses, the more rows are needed.
    pub fn min_part_rows(&self) -> Option<usize> {
        let (n_host, n_device) = self.n_in_order()?;
        let rows = if n_device <= MAX_RATIO * n_host {
            MIN_ROWS_OF_HOST
        } else {
            MIN_ROWS_OF_DEVICE
        };
        Some(rows * self.rows_of_expert())
    }
}

impl Overlap {
    /// Returns the token before which a step is cut in two; `None` if it is not cut. `works_apart` says
    /// whether the device works independently and has the parts placed there.
    pub(crate) fn cut_of(
        self,
        batch: &ForwardBatch,
        placement: &Placement,
        works_apart: bool,
    ) -> Option<usize> {
        let min_rows = match self {
            // Decoding steps are limited by reading weights.
            Self::Auto if works_apart && batch.n_tokens() > batch.n_seqs() => placement.min_part_rows()?,
            Self::Auto | Self::Never => return None,
            Self::From(n_rows) => n_rows.max(1),
        };
        cut(batch, min_rows)
    }
}

/// Returns the cut next to the middle: the start of a sequence, or a multiple of [`BLOCK`] tokens within one.
fn cut(batch: &ForwardBatch, min_rows: usize) -> Option<usize> {
    let n_tokens = batch.n_tokens();
    if n_tokens / 2 < min_rows || !batch.last_seen.is_empty() || !batch.window_seen.is_empty() {
        return None;
    }
    let middle = n_tokens / 2;
    let seq_idx = batch
        .seq_starts
        .partition_point(|&start| start as usize <= middle)
        - 1;
    let tokens = batch.tokens_of(seq_idx);
    let into = (middle - tokens.start + BLOCK / 2) / BLOCK * BLOCK;
    let mut place = tokens.start + into.min(tokens.len());
    if tokens.len() < BLOCK {
        // A short sequence is not cut.
        let is_nearer = middle - tokens.start <= tokens.end - middle;
        place = if is_nearer { tokens.start } else { tokens.end };
    }
    (place >= min_rows && n_tokens - place >= min_rows).then_some(place)
}

#[cfg(test)]
mod tests {
    use tokenmill_backend::{ExpertsShape, KvStoreOfLayer, LayerShape, NetworkShape, Side, TokenSource};

    use super::*;
    use crate::LayerPlacement;

    fn batch(lens: &[u32]) -> ForwardBatch {
        let mut batch = ForwardBatch::default();
        for &len in lens {
            let pages: Vec<u32> = (0..len.div_ceil(16)).collect();
            batch.push_sequence((0..len).map(TokenSource::Id), 0, &pages);
        }
        batch
    }

    #[test]
    fn a_step_is_cut_next_to_its_middle() {
        for (lens, min_rows, expected) in [
            (&[128][..], 64, Some(64)),
            (&[127], 64, None),
            (&[190], 64, Some(64)),
            (&[512], 64, Some(256)),
            // Between sequences, or inside the long one.
            (&[40, 40, 40, 40], 64, Some(80)),
            (&[40, 50, 40], 60, None),
            (&[40, 50, 40], 40, Some(40)),
            (&[1, 1, 1, 400], 64, Some(195)),
            (&[300, 100], 64, Some(192)),
            (&[30, 300], 64, Some(158)),
            // A part would be too small.
            (&[100, 100], 90, Some(100)),
            (&[70, 63, 70], 70, Some(70)),
            (&[70, 63, 70], 71, None),
            (&[1], 1, None),
            (&[1, 1], 1, Some(1)),
            (&[], 1, None),
        ] {
            assert_eq!(cut(&batch(lens), min_rows), expected, "{lens:?} by {min_rows}");
        }
    }

    #[test]
    fn rows_that_see_those_behind_them_stay_in_one_step() {
        let mut batch = batch(&[512]);
        batch.see_each_other(3..9);
        assert_eq!(cut(&batch, 64), None);
    }

    fn network(n_layers: usize, experts: Option<ExpertsShape>, shared_kv: bool) -> NetworkShape {
        let layer = |idx| LayerShape {
            kv: Some(KvStoreOfLayer {
                idx: if shared_kv { 0 } else { idx },
                is_owner: !shared_kv || idx == 0,
            }),
            experts,
            ..LayerShape::default()
        };
        NetworkShape {
            n_embd: 32,
            layers: (0..n_layers).map(layer).collect(),
            has_streams: false,
            reads_hidden: false,
        }
    }

    #[test]
    fn parts_have_the_rows_that_the_placement_asks_for() {
        let rows = |n_layers, n_device| {
            let network = network(n_layers, None, false);
            Placement::last_layers(&network, n_device).min_part_rows()
        };
        assert_eq!(rows(32, 16), Some(64));
        assert_eq!(rows(9, 8), Some(64));
        assert_eq!(rows(10, 9), Some(256));
        assert_eq!([rows(8, 0), rows(8, 8)], [None, None]);
        let experts = ExpertsShape {
            n_experts: 128,
            n_used: 8,
            n_ff: 32,
        };
        let placement = Placement::last_layers(&network(4, Some(experts), false), 2);
        assert_eq!(placement.min_part_rows(), Some(64 * 16));
    }

    #[test]
    fn a_device_that_waits_for_the_host_in_each_part_computes_whole_steps() {
        let network_of_four = network(4, None, false);
        let mut layers = vec![LayerPlacement::whole(Side::Host); 4];
        layers[1] = LayerPlacement::whole(Side::Device);
        assert_eq!(
            Placement::new(&network_of_four, layers.clone()).min_part_rows(),
            None
        );
        layers.fill(LayerPlacement::whole(Side::Device));
        layers[0].mixer = Side::Host;
        assert_eq!(Placement::new(&network_of_four, layers).min_part_rows(), None);
        // Layers on the device with keys and values on the host.
        let shared = network(4, None, true);
        assert_eq!(Placement::last_layers(&shared, 2).min_part_rows(), None);
    }
}
