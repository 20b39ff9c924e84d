//! [`Traffic`]: the bytes that a token of one sequence reads on each side and sends across the border.
//!
//! A placement states where parts are, not their sizes. Invariants: this is arithmetic only, and a
//! placement's traffic does not depend on the machine; [`Bandwidths`] convert it to seconds.

use tokenmill_backend::{NetworkPart, NetworkShape, Side};

use crate::{Bandwidths, LayerPlacement, Placement};

/// Bytes of a value that crosses.
const VALUE_BYTES: u64 = 4;

/// The bytes that a token reads of a layer, in the form of the host and of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerReads {
    /// The mixer's weights.
    pub mixer: [u64; 2],
    /// The feed-forward network's weights, without experts.
    pub ffn: [u64; 2],
    /// The weights of the token's experts.
    pub experts: [u64; 2],
    /// Keys and values.
    pub kv: u64,
    /// Whether there is a shared network in addition to the experts.
    pub has_shared: bool,
}

/// The bytes that a token reads of a network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenReads {
    /// The layers, first to last.
    pub layers: Vec<LayerReads>,
    /// The output norm and the head, which are on the device.
    pub head: u64,
}

/// The bytes that a token reads on each side and sends across the border.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes read on the host.
    pub host_bytes: u64,
    /// Bytes read on the device.
    pub device_bytes: u64,
    /// Number of crossings of the border.
    pub n_crossings: u64,
    /// Bytes sent across it.
    pub crossing_bytes: u64,
}

impl Traffic {
    /// Computes the traffic of a placement. `goes_to_device` says whether the device computes the
    /// feed-forward networks that both sides have in such a step; it has no effect if no network is on both
    /// sides.
    ///
    /// # Panics
    /// If the numbers of layers differ.
    pub fn of(
        placement: &Placement,
        network: &NetworkShape,
        reads: &TokenReads,
        goes_to_device: bool,
    ) -> Self {
        let places = placement.layers();
        assert_eq!(
            [network.layers.len(), reads.layers.len()],
            [places.len(); 2],
            "a shape and reads for each layer"
        );
        let mut traffic = Self::default();
        let n_embd = network.n_embd as u64;
        let mut now = places.first().map_or(Side::Device, |place| place.mixer);
        for (layer_idx, (shape, layer)) in network.layers.iter().zip(&reads.layers).enumerate() {
            let side = |part| placement.side(part, goes_to_device, now);
            let place = LayerPlacement {
                mixer: places[layer_idx].mixer,
                ffn: side(NetworkPart::Ffn(layer_idx)),
                experts: side(NetworkPart::Experts(layer_idx)),
            };
            if now != place.mixer {
                traffic.cross(1, n_embd);
            }
            traffic.read(place.mixer, layer.mixer[place.mixer as usize]);
            if let Some(store) = shape.kv {
                let sides = placement.sides(NetworkPart::Kv(store.idx));
                let side = if sides.has(place.mixer) {
                    place.mixer
                } else {
                    place.mixer.other()
                };
                traffic.read(side, layer.kv);
                if side != place.mixer {
                    let width = shape.attention.map_or(n_embd, |attention| {
                        (attention.n_heads * attention.head_dim_k.max(attention.head_dim_v)) as u64
                    });
                    traffic.cross(2, width);
                }
            }
            if place.mixer != place.ffn {
                traffic.cross(1, n_embd);
            }
            traffic.read(place.ffn, layer.ffn[place.ffn as usize]);
            if shape.experts.is_some() {
                traffic.read(place.experts, layer.experts[place.experts as usize]);
                if place.experts != place.ffn {
                    // The router's logits, the normed row and the shared network's output go to the experts'
                    // side, and a result comes back.
                    traffic.cross(3 + u64::from(layer.has_shared), n_embd);
                }
            }
            now = place.ffn;
        }
        if now != Side::Device {
            traffic.cross(1, n_embd);
        }
        traffic.read(Side::Device, reads.head);
        traffic
    }

    /// Returns the traffic of the host alone, including the head.
    pub fn of_host_alone(reads: &TokenReads) -> Self {
        let of_layer = |layer: &LayerReads| layer.mixer[0] + layer.ffn[0] + layer.experts[0] + layer.kv;
        Self {
            host_bytes: reads.layers.iter().map(of_layer).sum::<u64>() + reads.head,
            ..Self::default()
        }
    }

    fn read(&mut self, side: Side, n_bytes: u64) {
        match side {
            Side::Host => self.host_bytes += n_bytes,
            Side::Device => self.device_bytes += n_bytes,
        }
    }

    fn cross(&mut self, n_times: u64, width: u64) {
        self.n_crossings += n_times;
        self.crossing_bytes += n_times * width * VALUE_BYTES;
    }

    /// Returns a lower bound of the duration in seconds, with the sides working in turn.
    pub fn seconds(&self, bandwidths: &Bandwidths) -> f64 {
        let at = |n_bytes: u64, bytes_per_s: u64| n_bytes as f64 / bytes_per_s.max(1) as f64;
        at(self.host_bytes, bandwidths.host_bytes_per_s)
            + at(self.device_bytes, bandwidths.device_bytes_per_s)
            + at(self.crossing_bytes, bandwidths.link_bytes_per_s)
            + self.n_crossings as f64 * bandwidths.crossing_ns as f64 / 1e9
    }
}

#[cfg(test)]
mod tests {
    use tokenmill_backend::{AttentionShape, ExpertsShape, KvStoreOfLayer, LayerShape};

    use super::*;

    const N_EMBD: usize = 8;

    /// Layers with one store each, except the last, which reads the first one's.
    fn network(has_experts: bool) -> NetworkShape {
        let layer = |idx: usize| LayerShape {
            attention: Some(AttentionShape {
                n_heads: 3,
                n_kv_heads: 1,
                head_dim_k: 4,
                head_dim_v: 4,
            }),
            kv: Some(KvStoreOfLayer {
                idx: idx % 2,
                is_owner: idx < 2,
            }),
            experts: has_experts.then_some(ExpertsShape {
                n_experts: 8,
                n_used: 2,
                n_ff: 32,
            }),
            ..LayerShape::default()
        };
        NetworkShape {
            n_embd: N_EMBD,
            layers: (0..3).map(layer).collect(),
            has_streams: false,
            reads_hidden: false,
        }
    }

    fn reads(has_experts: bool, has_shared: bool) -> TokenReads {
        let layer = LayerReads {
            mixer: [100, 110],
            ffn: [1000, 1100],
            experts: if has_experts { [10_000, 11_000] } else { [0; 2] },
            kv: 7,
            has_shared,
        };
        TokenReads {
            layers: vec![layer; 3],
            head: 100_000,
        }
    }

    #[test]
    fn bytes_are_read_where_their_part_is_and_rows_cross_where_parts_are_apart() {
        let (host, device) = (Side::Host, Side::Device);
        let row = (N_EMBD * 4) as u64;
        let place = |mixer, ffn, experts| LayerPlacement { mixer, ffn, experts };
        let check = |name: &str, layers: [LayerPlacement; 3], has_experts, expected: Traffic| {
            let network = network(has_experts);
            let placement = Placement::new(&network, layers.to_vec());
            let found = Traffic::of(&placement, &network, &reads(has_experts, false), true);
            assert_eq!(found, expected, "{name}");
        };
        let traffic = |host_bytes, device_bytes, n_crossings, crossing_bytes| Traffic {
            host_bytes,
            device_bytes,
            n_crossings,
            crossing_bytes,
        };
        let whole = LayerPlacement::whole;
        check(
            "all on the device",
            [whole(device); 3],
            false,
            traffic(0, 3 * 1217 + 100_000, 0, 0),
        );
        // The last layer reads the keys and values of the first: its queries go there, and a result of the
        // same size comes back.
        check(
            "the last two layers",
            [whole(host), whole(device), whole(device)],
            false,
            traffic(1107 + 7, 2 * 1210 + 7 + 100_000, 1 + 2, row + 2 * 12 * 4),
        );
        check(
            "mixers on the host",
            [place(host, device, device); 3],
            false,
            traffic(321, 3300 + 100_000, 5, 5 * row),
        );
        check(
            "networks on the host",
            [place(device, host, host); 3],
            false,
            traffic(3000, 3 * 117 + 100_000, 6, 6 * row),
        );
        check(
            "experts of the first layer on the host",
            [place(device, device, host), whole(device), whole(device)],
            true,
            traffic(10_000, 3 * 1217 + 22_000 + 100_000, 3, 3 * row),
        );
        // A network without experts cannot have them elsewhere.
        check(
            "experts that there are not",
            [place(device, device, host); 3],
            false,
            traffic(0, 3 * 1217 + 100_000, 0, 0),
        );
    }

    #[test]
    fn networks_of_both_sides_are_read_on_the_side_that_the_step_goes_to() {
        let network = network(true);
        let place = LayerPlacement::whole(Side::Device);
        let placement = Placement::new(&network, vec![place; 3]).with_min_device_tokens(2);
        let of = |goes_to_device| Traffic::of(&placement, &network, &reads(true, false), goes_to_device);
        let on_device = 3 * (110 + 7) + 100_000;
        let expected = Traffic {
            device_bytes: on_device + 3 * 12_100,
            ..Traffic::default()
        };
        assert_eq!(of(true), expected);
        let expected = Traffic {
            host_bytes: 3 * 11_000,
            device_bytes: on_device,
            n_crossings: 6,
            crossing_bytes: 6 * (N_EMBD * 4) as u64,
        };
        assert_eq!(of(false), expected);
    }

    #[test]
    fn a_shared_network_sends_its_result_too() {
        let network = network(true);
        let place = LayerPlacement {
            experts: Side::Host,
            ..LayerPlacement::whole(Side::Device)
        };
        let placement = Placement::new(&network, vec![place; 3]);
        let n_crossings =
            |has_shared| Traffic::of(&placement, &network, &reads(true, has_shared), true).n_crossings;
        assert_eq!([false, true].map(n_crossings), [9, 12]);
    }

    #[test]
    fn the_host_alone_reads_everything() {
        let expected = Traffic {
            host_bytes: 3 * 11_107 + 100_000,
            ..Traffic::default()
        };
        assert_eq!(Traffic::of_host_alone(&reads(true, true)), expected);
    }

    #[test]
    fn seconds_are_those_of_bytes_and_of_crossings() {
        let traffic = Traffic {
            host_bytes: 10_000_000_000,
            device_bytes: 90_000_000_000,
            n_crossings: 1000,
            crossing_bytes: 5_000_000_000,
        };
        let bandwidths: Bandwidths = "gpu=900,cpu=40,link=25,crossing=15".parse().unwrap();
        assert!((traffic.seconds(&bandwidths) - (0.25 + 0.1 + 0.2 + 0.015)).abs() < 1e-12);
    }
}
