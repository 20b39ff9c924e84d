//! [`Placement`]: which side has which part of a network.
//!
//! Separate from the backend, since a plan is made, printed and refused before there is one. Invariants: a part is somewhere; keys,
//! values and states are where their layer's mixer is; the output is the device's.

use tokenmill_backend::{NetworkPart, NetworkShape, Side};

/// Where the parts of a layer are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerPlacement {
    /// The mixer, with its keys and values or its state.
    pub mixer: Side,
    /// The feed-forward network, with the router of experts.
    pub ffn: Side,
    /// The matrices of experts, where the layer has any.
    pub experts: Side,
}

impl LayerPlacement {
    /// All of a layer on one side.
    pub fn whole(side: Side) -> Self {
        Self {
            mixer: side,
            ffn: side,
            experts: side,
        }
    }

    fn is_whole(self, side: Side) -> bool {
        self == Self::whole(side)
    }
}

/// Which side has which part of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    layers: Vec<LayerPlacement>,
    /// Sides of each layer of the KV store; both where layers of an encoder share one.
    kv: Vec<Sides>,
    /// Side of each layer of the store of states.
    states: Vec<Side>,
    has_experts: Vec<bool>,
    /// Rows of a step of which one goes to each expert, on average; 1 without experts.
    rows_of_expert: usize,
    /// Whether layers read keys and values that the other side has.
    reads_across: bool,
    /// Tokens of a step from which on the feed-forward networks of the device compute; the host has them too where this is more
    /// than 1.
    min_device_tokens: usize,
}

/// One side or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sides([bool; 2]);

impl Sides {
    pub(crate) const NONE: Self = Self([false; 2]);
    pub(crate) const BOTH: Self = Self([true; 2]);

    pub(crate) fn one(side: Side) -> Self {
        Self::NONE.with(side)
    }

    pub(crate) fn with(mut self, side: Side) -> Self {
        self.0[side as usize] = true;
        self
    }

    pub(crate) fn has(self, side: Side) -> bool {
        self.0[side as usize]
    }
}

impl Placement {
    /// Places the layers of a network.
    ///
    /// # Panics
    /// If there are not as many places as layers.
    pub fn new(network: &NetworkShape, layers: Vec<LayerPlacement>) -> Self {
        assert_eq!(network.layers.len(), layers.len(), "a place for each layer");
        let mut kv = Vec::new();
        let mut states = Vec::new();
        for (shape, place) in network.layers.iter().zip(&layers) {
            if let Some(store) = shape.kv {
                if kv.len() <= store.idx {
                    kv.resize(store.idx + 1, Sides::NONE);
                }
                if store.is_owner {
                    kv[store.idx] = kv[store.idx].with(place.mixer);
                }
            }
            if shape.state.is_some() {
                states.push(place.mixer);
            }
        }
        let reads_across = (network.layers.iter().zip(&layers))
            .any(|(shape, place)| (shape.kv).is_some_and(|store| kv[store.idx].has(place.mixer.other())));
        let rows_of_expert = (network.layers.iter().filter_map(|layer| layer.experts))
            .map(|experts| experts.n_experts.div_ceil(experts.n_used.max(1)))
            .max();
        Self {
            rows_of_expert: rows_of_expert.unwrap_or(1).max(1),
            reads_across,
            has_experts: network
                .layers
                .iter()
                .map(|layer| layer.experts.is_some())
                .collect(),
            layers,
            kv,
            states,
            min_device_tokens: 1,
        }
    }

    /// The last `n` layers on the device, whole, and the others on the host.
    pub fn last_layers(network: &NetworkShape, n: usize) -> Self {
        let n_layers = network.layers.len();
        let first = n_layers.saturating_sub(n);
        let side = |layer_idx| {
            if layer_idx < first {
                Side::Host
            } else {
                Side::Device
            }
        };
        let layers = (0..n_layers).map(|layer_idx| LayerPlacement::whole(side(layer_idx)));
        Self::new(network, layers.collect())
    }

    /// Gives the device's feed-forward networks to the host too, which computes them in steps of fewer than `n_tokens` tokens.
    #[must_use]
    pub fn with_min_device_tokens(mut self, n_tokens: usize) -> Self {
        self.min_device_tokens = n_tokens.max(1);
        self
    }

    /// Tokens of a step from which on the device computes the feed-forward networks that it has.
    pub fn min_device_tokens(&self) -> usize {
        self.min_device_tokens
    }

    /// The places of the layers.
    pub fn layers(&self) -> &[LayerPlacement] {
        &self.layers
    }

    /// Whether nothing of any layer is on the host.
    pub fn is_all_on_device(&self) -> bool {
        self.min_device_tokens == 1 && self.layers.iter().all(|layer| layer.is_whole(Side::Device))
    }

    /// Whether nothing of any layer is on the device.
    pub fn is_all_on_host(&self) -> bool {
        (self.layers.iter().zip(&self.has_experts)).all(|(layer, &has_experts)| {
            layer.mixer == Side::Host
                && layer.ffn == Side::Host
                && (layer.experts == Side::Host || !has_experts)
        })
    }

    /// How many layers the host has and how many the device, where these are whole layers, the device's behind the host's, and neither
    /// reads what the other has.
    pub(crate) fn n_in_order(&self) -> Option<(usize, usize)> {
        let n_host = (self.layers.iter())
            .take_while(|layer| layer.is_whole(Side::Host))
            .count();
        let n_device = self.layers.len() - n_host;
        let is_in_order = (self.layers[n_host..].iter()).all(|layer| layer.is_whole(Side::Device));
        (n_host > 0 && n_device > 0 && is_in_order && !self.reads_across).then_some((n_host, n_device))
    }

    pub(crate) fn rows_of_expert(&self) -> usize {
        self.rows_of_expert
    }

    /// The sides that have a part.
    pub(crate) fn sides(&self, part: NetworkPart) -> Sides {
        let routed = |side: Side| {
            let sides = Sides::one(side);
            if side == Side::Device && self.min_device_tokens > 1 {
                sides.with(Side::Host)
            } else {
                sides
            }
        };
        match part {
            NetworkPart::Common => Sides::BOTH,
            NetworkPart::Input => Sides::one(self.input()),
            NetworkPart::Output => Sides::one(Side::Device),
            NetworkPart::Mixer(layer_idx) => Sides::one(self.layers[layer_idx].mixer),
            NetworkPart::Ffn(layer_idx) => routed(self.layers[layer_idx].ffn),
            NetworkPart::Experts(layer_idx) => routed(self.layers[layer_idx].experts),
            NetworkPart::Kv(kv_idx) => self.kv[kv_idx],
            NetworkPart::State(state_idx) => Sides::one(self.states[state_idx]),
        }
    }

    /// Where a part's operations run; `goes_to_device` says whether those that both sides have are the device's in this step, `now` is
    /// where operations run that belong to no side.
    pub(crate) fn side(&self, part: NetworkPart, goes_to_device: bool, now: Side) -> Side {
        let sides = self.sides(part);
        match (sides.has(Side::Host), sides.has(Side::Device)) {
            (true, false) => Side::Host,
            (false, _) => Side::Device,
            (true, true) => match part {
                NetworkPart::Ffn(_) | NetworkPart::Experts(_) if !goes_to_device => Side::Host,
                NetworkPart::Ffn(_) | NetworkPart::Experts(_) => Side::Device,
                _ => now,
            },
        }
    }

    /// Where rows of tokens are made: where the first layer reads them.
    fn input(&self) -> Side {
        self.layers.first().map_or(Side::Device, |layer| layer.mixer)
    }

    /// The network as a side sees it: the layers' widths of what it computes.
    pub(crate) fn network_of(&self, side: Side, network: &NetworkShape) -> NetworkShape {
        let mut own = network.clone();
        for (layer_idx, layer) in own.layers.iter_mut().enumerate() {
            if !self.sides(NetworkPart::Mixer(layer_idx)).has(side) {
                layer.attention = None;
                layer.state = None;
                layer.has_latent_rows = false;
                layer.kv = None;
            }
            if !self.sides(NetworkPart::Experts(layer_idx)).has(side) {
                layer.experts = None;
            }
        }
        own
    }
}
