//! [`Retreat`]: the parts that move to the host if a network does not fit on the device, and the fastest
//! placement that fits.
//!
//! Invariants: each level of a retreat has no more on the device than the previous one, so the first that
//! fits can be found by search; the choice depends on its arguments alone.

use tokenmill_backend::{NetworkShape, Side};

use crate::{Bandwidths, BatchThreshold, LayerPlacement, Placement, PlacementRequest, TokenReads, Traffic};

/// The kind of part that moves to the host first, from the first layer on. Once all layers have given it up,
/// whole layers follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retreat {
    /// Whole layers.
    Layers,
    /// The matrices of experts.
    Experts,
    /// Feed-forward networks, including experts.
    FeedForward,
    /// Mixers, with their keys and values or states.
    Mixers,
}

impl Retreat {
    /// All retreats, those with the fewest borders first.
    pub const ALL: [Self; 4] = [Self::Layers, Self::Experts, Self::FeedForward, Self::Mixers];

    /// Returns the retreats that a request leaves open, in the order of [`Self::ALL`].
    pub fn all(request: &PlacementRequest, network: &NetworkShape) -> Vec<Self> {
        let has_experts = network.layers.iter().any(|layer| layer.experts.is_some());
        let parts = request.parts;
        let is_open = |retreat: &Self| match retreat {
            Self::Layers => true,
            Self::Experts => has_experts && parts.experts.or(parts.ffn).is_none(),
            Self::FeedForward => parts.ffn.or(parts.experts).is_none(),
            Self::Mixers => parts.mixer.is_none(),
        };
        Self::ALL.into_iter().filter(is_open).collect()
    }

    /// Returns the last level, with no layer on the device.
    pub fn last_level(self, network: &NetworkShape) -> usize {
        let n_layers = network.layers.len();
        match self {
            Self::Layers => n_layers,
            _ => 2 * n_layers,
        }
    }

    /// Returns the placement of a level; level 0 is the request itself.
    pub fn placement(self, request: &PlacementRequest, network: &NetworkShape, level: usize) -> Placement {
        let n_layers = network.layers.len();
        let (n_apart, n_whole) = match self {
            Self::Layers => (0, level),
            _ => (level.min(n_layers), level.saturating_sub(n_layers)),
        };
        request.placement_but(network, |layer_idx, place| {
            if layer_idx < n_whole {
                *place = LayerPlacement::whole(Side::Host);
            } else if layer_idx < n_apart {
                match self {
                    Self::Layers => {}
                    Self::Experts => place.experts = Side::Host,
                    Self::FeedForward => (place.ffn, place.experts) = (Side::Host, Side::Host),
                    Self::Mixers => place.mixer = Side::Host,
                }
            }
        })
    }
}

/// A placement that fits, with its cost per token.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The kind of retreat.
    pub retreat: Retreat,
    /// The level of the retreat.
    pub level: usize,
    /// The placement.
    pub placement: Placement,
    /// The traffic of a token.
    pub traffic: Traffic,
    /// Estimated seconds per token.
    pub seconds: f64,
}

/// Returns the placements that fit and leave some part of a layer on the device, the fastest first; among
/// equals those with the fewest borders, then the one with most on the device. `first_fits` has the first
/// level that fits for each retreat, `None` if none does.
pub fn ranked(
    request: &PlacementRequest,
    network: &NetworkShape,
    reads: &TokenReads,
    bandwidths: &Bandwidths,
    first_fits: &[(Retreat, Option<usize>)],
) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for &(retreat, first) in first_fits {
        let Some(first) = first else { continue };
        for level in first..=retreat.last_level(network) {
            let placement = retreat.placement(request, network, level);
            if placement.is_all_on_host() {
                break;
            }
            // A step of one token takes the route of its threshold. A measured threshold takes the faster
            // route.
            let routes: &[bool] = match request.threshold {
                BatchThreshold::Tokens(0 | 1) => &[true],
                BatchThreshold::Tokens(_) => &[false],
                BatchThreshold::Measured => &[true, false],
            };
            let by_route = (routes.iter()).map(|&goes_to_device| {
                let traffic = Traffic::of(&placement, network, reads, goes_to_device);
                (traffic, traffic.seconds(bandwidths))
            });
            let quickest = by_route.min_by(|(_, a), (_, b)| a.total_cmp(b));
            let (traffic, seconds) = quickest.expect("each step takes a route");
            candidates.push(Candidate {
                retreat,
                level,
                placement,
                traffic,
                seconds,
            });
        }
    }
    candidates.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    candidates
}

/// Returns how many of the candidates `fits` accepts, assuming that for one retreat it accepts no level above
/// a refused one: this holds for host memory, since each level needs at least as much there. Calls `fits` for
/// few of them.
///
/// # Errors
/// The errors of `fits`.
pub fn n_accepted<E>(
    candidates: &[Candidate],
    mut fits: impl FnMut(&Placement) -> Result<bool, E>,
) -> Result<usize, E> {
    let mut n_all = 0;
    for retreat in Retreat::ALL {
        let mut own: Vec<&Candidate> = (candidates.iter())
            .filter(|candidate| candidate.retreat == retreat)
            .collect();
        own.sort_by_key(|candidate| candidate.level);
        let (mut low, mut high) = (0, own.len());
        // Usually all are accepted, so the last is tried first.
        let mut probe = high.saturating_sub(1);
        while low < high {
            if fits(&own[probe].placement)? {
                low = probe + 1;
            } else {
                high = probe;
            }
            probe = usize::midpoint(low, high);
        }
        n_all += low;
    }
    Ok(n_all)
}

#[cfg(test)]
mod tests {
    use tokenmill_backend::{ExpertsShape, LayerShape};

    use crate::{DeviceLayers, LayerReads, PartsRequest};

    use super::*;

    const N_LAYERS: usize = 8;
    const MIB: u64 = 1 << 20;

    const AUTO: PlacementRequest = PlacementRequest {
        layers: DeviceLayers::Auto,
        n_host_experts: 0,
        parts: PartsRequest {
            mixer: None,
            ffn: None,
            experts: None,
        },
        threshold: crate::BatchThreshold::Tokens(1),
    };

    fn network(has_experts: bool) -> NetworkShape {
        let experts = has_experts.then_some(ExpertsShape {
            n_experts: 64,
            n_used: 4,
            n_ff: 32,
        });
        let layer = LayerShape {
            experts,
            ..LayerShape::default()
        };
        NetworkShape {
            n_embd: 4096,
            layers: vec![layer; N_LAYERS],
            has_streams: false,
            reads_hidden: false,
        }
    }

    /// Returns the reads of a layer of 1 + 4 MiB; with experts, each of 64 takes 4 MiB, and a token reads 4 of them.
    fn reads(has_experts: bool) -> TokenReads {
        let layer = LayerReads {
            mixer: [MIB; 2],
            ffn: if has_experts { [MIB / 8; 2] } else { [4 * MIB; 2] },
            experts: if has_experts { [16 * MIB; 2] } else { [0; 2] },
            ..LayerReads::default()
        };
        TokenReads {
            layers: vec![layer; N_LAYERS],
            head: MIB,
        }
    }

    /// Returns a placement's bytes on the device: all experts, not only those that a token reads, and `kv`
    /// bytes of keys and values per layer.
    fn device_bytes(placement: &Placement, has_experts: bool, kv: u64) -> u64 {
        let reads = reads(has_experts);
        let of = |(place, layer): (&LayerPlacement, &LayerReads)| {
            let on = |side: Side, n_bytes: u64| if side == Side::Device { n_bytes } else { 0 };
            on(place.mixer, layer.mixer[1] + kv)
                + on(place.ffn, layer.ffn[1])
                + on(place.experts, layer.experts[1] * 16)
        };
        placement.layers().iter().zip(&reads.layers).map(of).sum::<u64>() + reads.head
    }

    fn first_fits(
        request: &PlacementRequest,
        has_experts: bool,
        room: u64,
        kv: u64,
    ) -> Vec<(Retreat, Option<usize>)> {
        let network = network(has_experts);
        Retreat::all(request, &network)
            .into_iter()
            .map(|retreat| {
                let fits = |level: &usize| {
                    device_bytes(&retreat.placement(request, &network, *level), has_experts, kv) <= room
                };
                (retreat, (0..=retreat.last_level(&network)).find(fits))
            })
            .collect()
    }

    /// Returns the choice for some room, with `kv` bytes of keys and values per layer that are not read yet.
    fn chosen(
        request: &PlacementRequest,
        has_experts: bool,
        room: u64,
        kv: u64,
        bandwidths: &str,
    ) -> Option<(Retreat, usize)> {
        let first_fits = first_fits(request, has_experts, room, kv);
        let bandwidths = bandwidths.parse().unwrap();
        let ranked = ranked(
            request,
            &network(has_experts),
            &reads(has_experts),
            &bandwidths,
            &first_fits,
        );
        assert!(ranked.is_sorted_by(|a, b| a.seconds <= b.seconds));
        let best = ranked.first()?;
        assert!(device_bytes(&best.placement, has_experts, kv) <= room);
        Some((best.retreat, best.level))
    }

    #[test]
    fn the_quickest_placement_that_fits_is_chosen_by_bandwidths() {
        use Retreat::{Experts, FeedForward, Layers, Mixers};
        let pcie = "gpu=900,cpu=40,link=25,crossing=15";
        let check = |name: &str, has_experts, room_mib: u64, kv_mib: u64, bandwidths: &str, expected| {
            let found = chosen(&AUTO, has_experts, room_mib * MIB, kv_mib * MIB, bandwidths);
            assert_eq!(found, expected, "{name}");
        };
        check("everything fits", false, 41, 0, pcie, Some((Layers, 0)));
        // 21 MiB have room for four whole layers, or for all mixers and three networks; both leave 20 MiB on
        // the host, so a single border is best.
        check("dense", false, 21, 0, pcie, Some((Layers, 4)));
        // 25 MiB have room for a fourth network besides all mixers, but not for a fifth layer: 16 MiB and 8
        // crossings, or 20 MiB and one.
        let quick = "gpu=900,cpu=40,link=2000,crossing=0.01";
        check("dense, quick border", false, 25, 0, quick, Some((FeedForward, 4)));
        let dear = "gpu=900,cpu=40,link=25,crossing=50";
        check("dense, dear border", false, 25, 0, dear, Some((Layers, 4)));
        // With 16 MiB of keys and values per layer there is room for two layers, or for no mixer and all
        // networks.
        check("long contexts", false, 43, 16, pcie, Some((Mixers, 8)));
        check(
            "long contexts, dear border",
            false,
            43,
            16,
            dear,
            Some((Layers, 6)),
        );
        // A layer's experts are as large as 200 mixers. There is room for those of two layers.
        check("experts", true, 600, 0, pcie, Some((Layers, 6)));
        check("experts, quick border", true, 600, 0, quick, Some((Experts, 6)));
        // There is room for no experts, and for everything else. Except in the last layer, a mixer of 1 MiB
        // on the device is not worth two crossings.
        check("no room for experts", true, 40, 0, pcie, Some((FeedForward, 15)));
        check(
            "no room for experts, quick border",
            true,
            40,
            0,
            quick,
            Some((Experts, 8)),
        );
        // A device slower than the host gets as little as possible: a mixer.
        let slow = "gpu=4,cpu=40,link=25,crossing=15";
        check("a slow device", false, 21, 0, slow, Some((FeedForward, 15)));
        check("no room", false, 0, 0, pcie, None);
    }

    #[test]
    fn a_placement_is_weighed_by_the_route_that_a_token_takes() {
        let network = network(false);
        let bandwidths: Bandwidths = "gpu=900,cpu=40,link=25,crossing=15".parse().unwrap();
        let whole = [(Retreat::Layers, Some(0))];
        let best = |threshold, bandwidths| {
            let request = PlacementRequest { threshold, ..AUTO };
            ranked(&request, &network, &reads(false), bandwidths, &whole)
                .into_iter()
                .find(|candidate| candidate.level == 0)
                .expect("all on the device fits")
        };
        let one = best(BatchThreshold::Tokens(1), &bandwidths);
        assert_eq!(one.traffic.host_bytes, 0);
        // Steps of one token run on the host.
        let more = best(BatchThreshold::Tokens(2), &bandwidths);
        assert_eq!(more.traffic.host_bytes, N_LAYERS as u64 * 4 * MIB);
        assert!(more.seconds > one.seconds);
        // A measured threshold takes the faster route.
        assert_eq!(best(BatchThreshold::Measured, &bandwidths).traffic, one.traffic);
        let slow: Bandwidths = "gpu=4,cpu=40,link=25,crossing=15".parse().unwrap();
        assert_eq!(best(BatchThreshold::Measured, &slow).traffic, more.traffic);
    }

    #[test]
    fn candidates_that_the_host_has_no_memory_for_are_not_counted() {
        let network = network(true);
        let bandwidths: Bandwidths = "gpu=900,cpu=40,link=25,crossing=15".parse().unwrap();
        let first_fits = first_fits(&AUTO, true, 600 * MIB, 0);
        let candidates = ranked(&AUTO, &network, &reads(true), &bandwidths, &first_fits);
        let all = device_bytes(&AUTO.placement(&network), true, 0);
        for host_room in (0..=all).step_by(3 * MIB as usize) {
            let fits = |placement: &Placement| all - device_bytes(placement, true, 0) <= host_room;
            let expected = (candidates.iter())
                .filter(|candidate| fits(&candidate.placement))
                .count();
            let mut n_asked = 0;
            let found = n_accepted(&candidates, |placement| {
                n_asked += 1;
                Ok::<_, ()>(fits(placement))
            });
            assert_eq!(found, Ok(expected), "{host_room}");
            assert!(n_asked <= 4 * 6, "{n_asked} questions");
        }
        assert_eq!(n_accepted(&candidates, |_| Err("no plan")), Err("no plan"));
    }

    #[test]
    fn what_was_asked_for_stays_where_it_is() {
        use Retreat::{Experts, FeedForward, Layers, Mixers};
        let check = |parts: &str, expected: &[Retreat]| {
            let request = PlacementRequest {
                parts: parts.parse().unwrap(),
                ..AUTO
            };
            assert_eq!(Retreat::all(&request, &network(true)), expected, "{parts}");
            for (retreat, _) in first_fits(&request, true, 0, 0) {
                let first = retreat.placement(&request, &network(true), 0);
                assert_eq!(first, request.placement(&network(true)), "{parts}");
            }
        };
        check("ffn=gpu", &[Layers, Mixers]);
        check("experts=cpu", &[Layers, Mixers]);
        check("attn=cpu", &[Layers, Experts, FeedForward]);
        check("attn=cpu,ffn=gpu", &[Layers]);
        let dense = Retreat::all(&AUTO, &network(false));
        assert_eq!(dense, [Layers, FeedForward, Mixers]);
    }

    #[test]
    fn every_level_has_less_on_the_device() {
        for has_experts in [false, true] {
            let network = network(has_experts);
            for retreat in Retreat::all(&AUTO, &network) {
                let placement = |level| retreat.placement(&AUTO, &network, level);
                let sizes: Vec<_> = (0..=retreat.last_level(&network))
                    .map(|level| device_bytes(&placement(level), has_experts, MIB))
                    .collect();
                assert!(
                    sizes.is_sorted_by(|more, less| more > less),
                    "{retreat:?}: {sizes:?}"
                );
                assert!(placement(0).is_all_on_device(), "{retreat:?}");
                assert!(placement(sizes.len() - 1).is_all_on_host(), "{retreat:?}");
            }
        }
    }
}
