//! [`PlacementRequest`]: the requested division of a network.
//!
//! A request is made before the network is known. Invariant: the placement contains everything requested;
//! everything left open is on the device in it.

use std::str::FromStr;

use tokenmill_backend::{NetworkShape, Side};

use crate::{LayerPlacement, Placement};

/// The number of layers on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceLayers {
    /// All layers; otherwise the load is refused.
    #[default]
    All,
    /// This number of trailing layers, or all if there are fewer.
    Last(usize),
    /// The fastest choice that fits.
    Auto,
}

/// A request for a placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacementRequest {
    /// The layers on the device.
    pub layers: DeviceLayers,
    /// Number of leading layers whose experts stay on the host.
    pub n_host_experts: usize,
    /// Parts of the device's layers that go elsewhere.
    pub parts: PartsRequest,
    /// Minimum step size, in tokens, at which the device computes its feed-forward networks.
    pub threshold: BatchThreshold,
}

/// Minimum step size, in tokens, at which the device computes its feed-forward networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchThreshold {
    /// This number; more than 1 loads these networks on both sides.
    Tokens(usize),
    /// The number from which it is faster, measured once the network is loaded.
    Measured,
}

impl BatchThreshold {
    /// Returns the threshold with which a network is loaded.
    fn at_load(self) -> usize {
        match self {
            Self::Tokens(n) => n,
            Self::Measured => usize::MAX,
        }
    }
}

impl Default for PlacementRequest {
    fn default() -> Self {
        Self {
            layers: DeviceLayers::All,
            n_host_experts: 0,
            parts: PartsRequest::default(),
            threshold: BatchThreshold::Tokens(1),
        }
    }
}

impl PlacementRequest {
    /// Returns whether everything must be on the device, with nothing left to choose.
    pub fn is_whole(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether it allows all of a network on the device if there is room: it asks for at least all
    /// layers, or leaves the number open.
    pub fn may_be_all_on_device(&self, network: &NetworkShape) -> bool {
        self.placement(network).is_all_on_device()
    }

    /// Returns whether it leaves everything open, including the host alone.
    pub fn is_all_left_open(&self) -> bool {
        let layers = DeviceLayers::Auto;
        *self
            == Self {
                layers,
                ..Self::default()
            }
    }

    /// Returns whether it mentions experts.
    pub fn names_experts(&self) -> bool {
        self.n_host_experts > 0 || self.parts.experts.is_some()
    }

    /// Returns the requested placement, with all layers on the device if the number is left open.
    pub fn placement(&self, network: &NetworkShape) -> Placement {
        self.placement_but(network, |_, _| {})
    }

    /// Does the same as [`Self::placement`], with changes to single layers.
    pub(crate) fn placement_but(
        &self,
        network: &NetworkShape,
        change: impl Fn(usize, &mut LayerPlacement),
    ) -> Placement {
        let n_layers = network.layers.len();
        let n_host_layers = match self.layers {
            DeviceLayers::All | DeviceLayers::Auto => 0,
            DeviceLayers::Last(n) => n_layers.saturating_sub(n),
        };
        let layers = (0..n_layers).map(|layer_idx| {
            let ffn = self.parts.ffn.unwrap_or(Side::Device);
            let mut place = if layer_idx < n_host_layers {
                LayerPlacement::whole(Side::Host)
            } else {
                LayerPlacement {
                    mixer: self.parts.mixer.unwrap_or(Side::Device),
                    ffn,
                    experts: if layer_idx < self.n_host_experts {
                        Side::Host
                    } else {
                        self.parts.experts.unwrap_or(ffn)
                    },
                }
            };
            change(layer_idx, &mut place);
            place
        });
        Placement::new(network, layers.collect()).with_min_device_tokens(self.threshold.at_load())
    }
}

/// The sides of layers' parts; `None` leaves a part with its layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartsRequest {
    /// Mixers: attention, recurrent layers, with their keys and values or states.
    pub mixer: Option<Side>,
    /// Feed-forward networks.
    pub ffn: Option<Side>,
    /// The matrices of experts.
    pub experts: Option<Side>,
}

/// The text does not assign parts to places.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartsRequestError {
    /// An entry is not a part with a place.
    #[error("`{found}` is not a part with a place; expected, for example, `ffn=gpu,attn=cpu`")]
    NoPlace {
        /// The entry.
        found: String,
    },
    /// The part is unknown.
    #[error("`{found}` is not a part of a layer; expected `attn`, `ffn` or `experts`")]
    UnknownPart {
        /// The part.
        found: String,
    },
    /// The place is unknown.
    #[error("`{found}` is not a place; expected `gpu` or `cpu`")]
    UnknownPlace {
        /// The place.
        found: String,
    },
    /// A part has two places.
    #[error("`{part}` has two places")]
    Twice {
        /// The part.
        part: String,
    },
}

impl FromStr for PartsRequest {
    type Err = PartsRequestError;

    fn from_str(text: &str) -> Result<Self, PartsRequestError> {
        let mut request = Self::default();
        for item in text.split(',') {
            let found = || item.to_owned();
            let Some((part, place)) = item.split_once('=') else {
                return Err(PartsRequestError::NoPlace { found: found() });
            };
            let place = match place {
                "gpu" => Side::Device,
                "cpu" => Side::Host,
                other => {
                    return Err(PartsRequestError::UnknownPlace {
                        found: other.to_owned(),
                    });
                }
            };
            let slot = match part {
                "attn" => &mut request.mixer,
                "ffn" => &mut request.ffn,
                "experts" => &mut request.experts,
                other => {
                    return Err(PartsRequestError::UnknownPart {
                        found: other.to_owned(),
                    });
                }
            };
            if slot.replace(place).is_some() {
                return Err(PartsRequestError::Twice {
                    part: part.to_owned(),
                });
            }
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use tokenmill_backend::LayerShape;

    use super::*;

    fn network(n_layers: usize) -> NetworkShape {
        NetworkShape {
            n_embd: 64,
            layers: vec![LayerShape::default(); n_layers],
            has_streams: false,
            reads_hidden: false,
        }
    }

    #[test]
    fn parts_are_read_or_refused() {
        let check = |text: &str, expected: Result<PartsRequest, &str>| {
            let found = text.parse::<PartsRequest>().map_err(|error| error.to_string());
            assert_eq!(found, expected.map_err(str::to_owned), "{text}");
        };
        check(
            "ffn=gpu,attn=cpu",
            Ok(PartsRequest {
                mixer: Some(Side::Host),
                ffn: Some(Side::Device),
                experts: None,
            }),
        );
        check(
            "norm=gpu",
            Err("`norm` is not a part of a layer; expected `attn`, `ffn` or `experts`"),
        );
        check("ffn=tpu", Err("`tpu` is not a place; expected `gpu` or `cpu`"));
        check("ffn=gpu,ffn=cpu", Err("`ffn` has two places"));
        for text in ["", "ffn", "ffn=gpu,"] {
            assert!(text.parse::<PartsRequest>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_last_layers_are_the_devices_and_more_than_all_are_all() {
        let check = |n, expected: &[Side]| {
            let request = PlacementRequest {
                layers: DeviceLayers::Last(n),
                ..PlacementRequest::default()
            };
            let placement = request.placement(&network(3));
            let mixers: Vec<_> = placement.layers().iter().map(|layer| layer.mixer).collect();
            assert_eq!(mixers, expected, "{n}");
        };
        check(0, &[Side::Host; 3]);
        check(1, &[Side::Host, Side::Host, Side::Device]);
        check(3, &[Side::Device; 3]);
        check(98, &[Side::Device; 3]);
    }

    #[test]
    fn as_many_layers_as_there_are_may_all_be_on_the_device() {
        let check = |request: PlacementRequest, expected| {
            assert_eq!(request.may_be_all_on_device(&network(3)), expected, "{request:?}");
        };
        let whole = PlacementRequest::default();
        check(whole, true);
        for (layers, expected) in [
            (DeviceLayers::Auto, true),
            (DeviceLayers::Last(3), true),
            (DeviceLayers::Last(99), true),
            (DeviceLayers::Last(2), false),
        ] {
            check(PlacementRequest { layers, ..whole }, expected);
        }
        let threshold = BatchThreshold::Tokens(4);
        check(PlacementRequest { threshold, ..whole }, false);
    }
}
